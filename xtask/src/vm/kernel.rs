//! Debian's kernel, unpacked beside the build and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::told;
use crate::step::command;

/// A kernel and its modules.
pub struct Kernel {
    /// The folder with everything.
    pub folder: PathBuf,
    /// The image that QEMU boots.
    pub image: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

/// The kernel from an earlier run, or apt's current one.
///
/// # Errors
/// The reason why it is not available.
pub fn kernel(folder: &Path) -> Result<Kernel, String> {
    let root = folder.join("kernel");
    if !root.exists() {
        fetch(folder, &root)?;
    }
    let images = first(&root.join("boot"), "vmlinuz-")?;
    let modules = root.join("lib/modules");
    let modules = if modules.exists() { modules } else { root.join("usr/lib/modules") };
    Ok(Kernel { folder: root, image: images, modules })
}

/// The first entry of a folder whose name begins with `start`.
fn first(folder: &Path, start: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|error| told(folder, &error))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let begins =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start));
    paths.find(begins).ok_or_else(|| format!("no {start}* in {}", folder.display()))
}

/// Unpacks the kernel's package to `root`, completely or not at all.
fn fetch(folder: &Path, root: &Path) -> Result<(), String> {
    let name = package()?;
    eprintln!("fetching {name}");
    let work = folder.join(format!("fetch-{}", std::process::id()));
    let unpacked = work.join("root");
    fs::create_dir_all(&unpacked).map_err(|error| told(&unpacked, &error))?;
    let fetched = quietly("apt-get", &["download", &name], &work)
        .and_then(|_| first(&work, "linux-image-"))
        .and_then(|package| {
            quietly("dpkg-deb", &["-x", &package.to_string_lossy(), &unpacked.to_string_lossy()], &work)
        })
        .and_then(|_| {
            // Another run may have been faster; its folder is equivalent.
            fs::rename(&unpacked, root)
                .or_else(|error| if root.exists() { Ok(()) } else { Err(told(root, &error)) })
        });
    let _ = fs::remove_dir_all(&work);
    fetched
}

/// The package with Debian's newest kernel, on which the metapackage depends by name. The kernel for clouds has no
/// soft-RoCE.
fn package() -> Result<String, String> {
    let text = quietly("apt-cache", &["depends", "--no-recommends", "linux-image-amd64"], Path::new("/"))?;
    let named = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let name = named.filter(|name| name.starts_with("linux-image-"));
    name.map(Into::into).ok_or_else(|| {
        "apt knows no package linux-image-amd64 (this needs Debian, after `apt-get update`)".to_string()
    })
}

fn quietly(program: &str, args: &[&str], folder: &Path) -> Result<String, String> {
    let output = command(program).args(args).current_dir(folder).stderr(Stdio::piped()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let why = errors.lines().find(|line| line.starts_with("E:")).or(errors.lines().next());
    Err(format!("{program} {}: {}", args.join(" "), why.unwrap_or("no reason given")))
}
