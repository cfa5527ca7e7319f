//! A libfabric 2.x on a system with an older one, and mdBook: Debian trixie's, unpacked beside the build with the C
//! library that they need. Nothing is installed, and no privileges are needed.
//!
//! apt fetches the packages, with a separate state and from the system's mirror, and checks the signatures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::StepResult;
use crate::step::{Outcome, command, output, target_dir};
use crate::stock::Stock;

const RELEASE: &str = "trixie";
const NAME: &str = "libfabric 2.x of Debian trixie";
/// The requested packages; apt adds their dependencies.
const PACKAGES: [&str; 3] = ["libfabric-bin", "libfabric-dev", "mdbook"];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The checks that could not run, each with the reason.
pub fn without<const N: usize>(what: [&str; N], why: &str) -> Vec<String> {
    what.into_iter().map(|what| format!("{what}, of {NAME}: {why}")).collect()
}

/// That libfabric, from an earlier run or from the network.
///
/// # Errors
/// The reason why it is not available.
pub fn stock() -> Result<Stock, String> {
    let root = target_dir(RELEASE);
    if !root.exists() {
        fetch(&root)?;
    }
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let loader = loader(&libraries)?;
    Ok(Stock::under(NAME, root, loader, libraries))
}

/// mdBook, of the same release.
///
/// # Errors
/// The reason why it is not available.
pub fn mdbook() -> Result<Command, String> {
    let stock = stock()?;
    let program = target_dir(RELEASE).join("usr/bin/mdbook");
    if !program.exists() {
        return Err(format!("target/{RELEASE} was fetched before mdBook was part of it: remove it"));
    }
    Ok(stock.command(&program))
}

/// Checks that its programs run on it, and not on the system's.
///
/// # Errors
/// The library that they run on.
pub fn check(stock: &Stock) -> StepResult {
    let version = output(stock.info().arg("--version"))?;
    if version.contains("libfabric: 2.") {
        return Ok(Outcome::Passed);
    }
    Err(format!("fi_info of {NAME} runs on another library:\n{version}"))
}

/// `ld-linux-x86-64.so.2`, or its name on another processor.
fn loader(libraries: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(libraries).map_err(|error| format!("{}: {error}", libraries.display()))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    let is_loader =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux"));
    names.find(is_loader).ok_or_else(|| format!("no loader in {}", libraries.display()))
}

/// Fetches the packages and unpacks them to `root`, completely or not at all.
fn fetch(root: &Path) -> Result<(), String> {
    if !Path::new(KEYRING).exists() {
        return Err("no keys to check packages with (apt-get install debian-archive-keyring)".into());
    }
    let mirror = mirror()?;
    let work = root.with_extension(std::process::id().to_string());
    let fetched = fetch_into(&work, &mirror).and_then(|()| {
        // Another run may have been faster; its folder is equivalent.
        fs::rename(work.join("root"), root)
            .or_else(|error| if root.exists() { Ok(()) } else { Err(told(root, &error)) })
    });
    let _ = fs::remove_dir_all(&work);
    fetched
}

fn fetch_into(work: &Path, mirror: &str) -> Result<(), String> {
    let (archives, unpacked) = (work.join("cache/archives"), work.join("root"));
    for folder in [work.join("state/lists/partial"), archives.join("partial"), unpacked.clone()] {
        fs::create_dir_all(&folder).map_err(|error| told(&folder, &error))?;
    }
    let shown = work.display();
    // One index and its packages; none of the system's state, sources or preferences.
    let files = [
        ("sources.list", format!("deb [target=Packages signed-by={KEYRING}] {mirror} {RELEASE} main\n")),
        ("status", String::new()),
        (
            "apt.conf",
            format!(
                "Dir::State \"{shown}/state\";\nDir::State::status \"{shown}/status\";\nDir::Cache \"{shown}/cache\";\n\
                 Dir::Etc::sourcelist \"{shown}/sources.list\";\nDir::Etc::sourceparts \"/dev/null\";\n\
                 Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
                 APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"root\";\nAPT::Update::Error-Mode \"any\";\n\
                 Acquire::Languages \"none\";\nAcquire::Retries \"1\";\nAcquire::http::Timeout \"10\";\n\
                 Acquire::https::Timeout \"10\";\n"
            ),
        ),
    ];
    for (name, text) in files {
        let path = work.join(name);
        fs::write(&path, text).map_err(|error| told(&path, &error))?;
    }
    let apt = |args: &[&str]| {
        let mut apt = command("apt-get");
        apt.args(["-qq", "-c"]).arg(work.join("apt.conf")).args(args);
        quietly(&mut apt)
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--download-only"][..], &PACKAGES].concat())?;
    for entry in fs::read_dir(&archives).map_err(|error| told(&archives, &error))?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "deb") {
            quietly(command("dpkg-deb").arg("-x").arg(entry.path()).arg(&unpacked))?;
        }
    }
    Ok(())
}

/// The mirror of the system's own packages.
fn mirror() -> Result<String, String> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| release.lines().find_map(|line| line.strip_prefix(key));
    let (Some("debian"), Some(codename)) = (value("ID="), value("VERSION_CODENAME=")) else {
        return Err("this system is not Debian".into());
    };
    let targets = ["indextargets", "--format", "$(RELEASE) $(SITE)", "Created-By: Packages"];
    let targets = quietly(command("apt-get").args(targets))?;
    let mut sites = targets.lines().filter_map(|line| line.strip_prefix(codename)?.strip_prefix(' '));
    sites.next().map(Into::into).ok_or_else(|| format!("apt has no source of {codename}"))
}

/// The standard output of a command; its standard error is in the error, and not in the output.
fn quietly(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!("{program}: {first}"))
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
