//! The shared library as C programs see it: its symbols, and a program that calls all of them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.parent().unwrap().join("libmxl_capi.so");
    assert!(beside.exists(), "{} is not there", beside.display());
    beside
}

fn answers(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A directory that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(base: &Path, name: &str) -> Self {
        let path = base.join(format!("mxl-capi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_library_has_the_sdks_functions_and_hides_the_rest() {
    if !answers("nm") {
        println!("NOT RUN: symbols of libmxl: no nm (apt-get install binutils)");
        return;
    }
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let wanted: Vec<&str> = include_str!("functions.txt").lines().collect();
    assert_eq!(names, wanted);
}

#[test]
fn a_c_program_calls_every_function() {
    if !answers("cc") {
        println!("NOT RUN: a C program on libmxl: no C compiler (apt-get install gcc libc6-dev)");
        return;
    }
    let shm = Path::new("/dev/shm");
    let domain = Folder::new(if shm.is_dir() { shm } else { Path::new("/tmp") }, "domain");
    let built = Folder::new(&std::env::temp_dir(), "built");
    // As it is installed: under the name that programs look for.
    std::os::unix::fs::symlink(library(), built.0.join("libmxl.so.1")).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = built.0.join("flows");
    let mut cc = Command::new("cc");
    cc.args(["-std=c17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]).arg(here.join("include"));
    cc.arg(here.join("tests/programs/flows.c")).arg("-o").arg(&program);
    cc.arg(built.0.join("libmxl.so.1"));
    let compiled = cc.output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut run = Command::new("timeout");
    run.arg("60").arg(&program).arg(&domain.0).env("LD_LIBRARY_PATH", &built.0);
    let ran = run.output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    // The instance deleted the flows of which it was the last writer.
    assert_eq!(std::fs::read_dir(&domain.0).unwrap().count(), 0);
}
