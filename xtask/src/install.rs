//! `cargo xtask install`: library, plug-ins, pkg-config file, tools, their man pages and completions, under a prefix.

use std::fs;
use std::path::{Path, PathBuf};

use crate::StepResult;
use crate::capi::{self, INTERFACE, NO_COMPILER, SONAME, copy, has_compiler, symlink};
use crate::plugins;
use crate::step::{Outcome, cargo, command, not_run, run};

/// Programs of `ofi-tools` that are installed.
pub const TOOLS: [&str; 7] =
    ["ofi", "fi_info", "fi_pingpong", "fi_dump", "fi_write_demo", "mr-topo", "mr-bench"];

/// The destination folders.
pub struct Places {
    /// Programs.
    pub bin: PathBuf,
    /// The library, `pkgconfig` and the plug-ins.
    pub lib: PathBuf,
    /// `man` and the shells' completions.
    pub share: PathBuf,
    /// The library's folder as stated in the pkg-config file.
    pub told: PathBuf,
}

/// The command.
///
/// # Errors
/// A part cannot be built or written.
pub fn run_install(prefix: &Path) -> StepResult {
    if !has_compiler() {
        return not_run(SONAME, NO_COMPILER);
    }
    let folder = build(true)?;
    under(&folder, prefix)?;
    println!("installed into {}", prefix.display());
    Ok(Outcome::Passed)
}

/// Builds everything that is installed. Returns the folder of the library.
///
/// # Errors
/// The error of a compiler.
pub fn build(release: bool) -> Result<PathBuf, String> {
    let folder = capi::link(release)?;
    plugins::link(&folder)?;
    tools(release)?;
    Ok(folder)
}

/// Builds the tools.
///
/// # Errors
/// The error of the compiler.
pub fn tools(release: bool) -> Result<(), String> {
    let mut tools = cargo(&["build", "--quiet", "--package", "ofi-tools", "--bins"]);
    if release {
        tools.arg("--release");
    }
    run(&mut tools).map(|_| ())
}

/// Installs the build in `folder` under `prefix`.
///
/// # Errors
/// A file cannot be written.
pub fn under(folder: &Path, prefix: &Path) -> Result<(), String> {
    let prefix = std::path::absolute(prefix).map_err(|error| error.to_string())?;
    let lib = prefix.join("lib");
    into(folder, &Places { bin: prefix.join("bin"), share: prefix.join("share"), told: lib.clone(), lib })
}

/// Installs the build in `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn into(folder: &Path, to: &Places) -> Result<(), String> {
    let (pkgconfig, plugins) = (to.lib.join("pkgconfig"), to.lib.join("ofi-plugins"));
    for folder in [&pkgconfig, &plugins, &to.bin] {
        make(folder)?;
    }
    copy(&folder.join(SONAME), &to.lib.join(SONAME))?;
    symlink(SONAME, &to.lib.join("libfabric.so"))?;
    for (_, name) in plugins::OURS {
        let file = format!("lib{name}-fi.so");
        copy(&plugins::linked(folder).join(&file), &plugins.join(&file))?;
    }
    let built = folder.parent().unwrap_or(Path::new("."));
    for tool in TOOLS {
        copy(&built.join(tool), &to.bin.join(tool))?;
    }
    pages(&built.join("ofi"), &built.join("pages"), &to.share)?;
    let text = format!(
        "libdir={}\n\nName: libfabric\nDescription: libfabric's C interface, in Rust\n\
         URL: https://github.com/ofi-rs/ofi\nVersion: {INTERFACE}\nLibs: -L${{libdir}} -lfabric\nCflags:\n",
        to.told.display()
    );
    fs::write(pkgconfig.join("libfabric.pc"), text).map_err(|error| error.to_string())
}

/// Installs man pages and completions where each shell looks for them.
fn pages(ofi: &Path, work: &Path, share: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(work);
    run(command(ofi).arg("pages").arg(work))?;
    let places = [
        ("man/man1", "man/man1"),
        ("bash", "bash-completion/completions"),
        ("zsh", "zsh/vendor-completions"),
        ("fish", "fish/vendor_completions.d"),
    ];
    for (from, to) in places {
        let to = share.join(to);
        make(&to)?;
        let entries = fs::read_dir(work.join(from)).map_err(|error| format!("{from}: {error}"))?;
        for entry in entries.flatten() {
            // bash looks for a file with the program's name.
            let name = entry.file_name().to_string_lossy().trim_end_matches(".bash").to_string();
            copy(&entry.path(), &to.join(name))?;
        }
    }
    Ok(())
}

fn make(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}
