//! Installs the peers' programs from Debian's packages if they are missing.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use super::libfabric;
use crate::{Error, Result, error::tail};

/// A program and its package.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The name on `PATH`.
    pub name: &'static str,
    /// Debian's package.
    pub package: &'static str,
}

/// libfabric's ping-pong.
pub const FI_PINGPONG: Program = Program { name: "fi_pingpong", package: "libfabric-bin" };
/// UCX's benchmark.
pub const UCX_PERFTEST: Program = Program { name: "ucx_perftest", package: "ucx-utils" };

/// Installs missing programs of the peers.
///
/// # Errors
/// A program is missing and `install` is false, this is not root, there is no `apt-get`, or it fails (for example
/// without a network). The error names the command that would help.
pub fn ensure(install: bool) -> Result<()> {
    let own_libfabric = env::var_os(libfabric::PREFIX).is_some();
    let needed = if own_libfabric { &[UCX_PERFTEST][..] } else { &[FI_PINGPONG, UCX_PERFTEST] };
    let missing: Vec<Program> = needed.iter().copied().filter(|program| !on_path(program.name)).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let packages: Vec<&str> = missing.iter().map(|program| program.package).collect();
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    let refuse = |reason: String| Error::Missing { program: first.name.to_owned(), reason };
    if !install {
        return Err(refuse(format!("not installing, as asked; as root: {by_hand}")));
    }
    if !is_root() {
        return Err(refuse(format!("only root can install it: {by_hand}")));
    }
    if !on_path("apt-get") {
        return Err(refuse(format!(
            "no apt-get here; the programs of {} are needed",
            packages.join(" and ")
        )));
    }
    eprintln!("installing {} for the peers' side", packages.join(" and "));
    if apt_get_install(&packages).is_err() {
        // A fresh container has no package lists yet.
        apt_get(&["update"]).and_then(|()| apt_get_install(&packages)).map_err(|words| {
            refuse(format!("apt-get failed (is there a network?): {words}; by hand: {by_hand}"))
        })?;
    }
    match missing.iter().find(|program| !on_path(program.name)) {
        Some(program) => Err(Error::Missing {
            program: program.name.to_owned(),
            reason: format!("package {} was installed, but does not contain the program", program.package),
        }),
        None => Ok(()),
    }
}

fn apt_get_install(packages: &[&str]) -> Result<(), String> {
    let mut args = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    args.extend(packages);
    apt_get(&args)
}

fn apt_get(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.args(args).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(tail(&String::from_utf8_lossy(&output.stderr))) }
}

fn is_root() -> bool {
    // The owner of /proc/self is the effective user, as long as the process may be traced.
    fs::metadata("/proc/self").is_ok_and(|status| status.uid() == 0)
}

/// Whether an executable file of this name is on `PATH`.
pub fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| {
        fs::metadata(folder.join(name)).is_ok_and(|status| status.is_file() && status.mode() & 0o111 != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-anywhere"));
    }
}
