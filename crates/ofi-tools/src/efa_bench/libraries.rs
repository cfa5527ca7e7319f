//! The libraries that a process has loaded or a program would load, and what they can do.

use std::path::{Path, PathBuf};
use std::process::Command;

/// rdma-core's version with which libefa's queue pairs post writes of the device (its 50th release).
pub const WRITES_SINCE: u32 = 50;

/// The file behind a library of this process, such as `libefa.so.1`, with the links resolved.
pub fn loaded(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    path_in(&maps, name)
}

fn path_in(maps: &str, name: &str) -> Option<PathBuf> {
    let mut paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let stem = name.split(".so").next().unwrap_or(name);
    let is_it = |path: &&Path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so"))
    };
    let found = paths.rfind(is_it)?;
    Some(std::fs::canonicalize(found).unwrap_or_else(|_| found.to_owned()))
}

/// The release of rdma-core in the name of one of its libraries: `libefa.so.1.1.44.0` is of 44.0.
pub fn release(path: &Path) -> Option<(u32, u32)> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let numbers: Vec<u32> =
        name.split(".so.").nth(1)?.split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [_, _, major, minor] => Some((major, minor)),
        _ => None,
    }
}

/// A library for the page: its file, and rdma-core's release.
pub fn described(name: &str) -> String {
    let Some(path) = loaded(name) else { return format!("{name} is not loaded") };
    match release(&path) {
        Some((major, minor)) => format!("{} (rdma-core {major}.{minor})", path.display()),
        None => format!("{} (its name does not say which rdma-core)", path.display()),
    }
}

/// The libfabric that a program would load: the file, and its `fi_version` as reported by the `fi_info` beside the
/// program.
pub fn libfabric_of(mut info: Command) -> Option<String> {
    let mut lists = Command::new(info.get_program());
    for (key, value) in info.get_envs() {
        match value {
            Some(value) => lists.env(key, value),
            None => lists.env_remove(key),
        };
    }
    // The loader prints what it would load, and does not start the program.
    let listed = lists.env("LD_TRACE_LOADED_OBJECTS", "1").output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed.lines().find(|line| line.trim_start().starts_with("libfabric.so.1"))?;
    let path = line.split("=>").nth(1)?.split_whitespace().next()?;
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let output = info.arg("--version").output().ok()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = output.lines().find_map(|line| line.strip_prefix("libfabric: ")).unwrap_or("unknown");
    Some(format!("libfabric {version} ({})", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_s_file_says_its_release() {
        for (name, wanted) in [
            ("/usr/lib/libefa.so.1.1.44.0", Some((44, 0))),
            ("/lib/libibverbs.so.1.14.56.1", Some((56, 1))),
            ("/lib/libefa.so.1", None),
            ("/lib/libefa.so.1.a.b.c", None),
            ("/lib/libefa.a", None),
        ] {
            assert_eq!(release(Path::new(name)), wanted, "{name}");
        }
        let maps = "7f0 r--p 0 0 0 /lib/none/libefa.so.1.1.44.0\n7f1 r--p 0 0 0 [heap]\n7f2 r--p 0 /lib/none/libefadv.so.1\n";
        assert_eq!(path_in(maps, "libefa.so.1"), Some("/lib/none/libefa.so.1.1.44.0".into()));
        assert_eq!(path_in(maps, "libibverbs.so.1"), None);
        assert!(loaded("libc.so.6").is_some());
    }
}
