//! C programs that use the shared libraries that cargo built beside their test.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;

/// The library that cargo built beside this test.
fn library(file: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let beside = test.parent().unwrap().join(file);
    assert!(beside.exists(), "{} does not exist", beside.display());
    beside
}

fn answers(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// The symbols that a library exports; `None`, with a printed line, if no tool can list them.
pub fn exported(file: &str) -> Option<Vec<String>> {
    if !answers("nm") {
        println!("NOT RUN: symbols of {file}: no nm (apt-get install binutils)");
        return None;
    }
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library(file)).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<String> =
        listed.lines().filter_map(|line| Some(line.split_whitespace().last()?.to_owned())).collect();
    names.sort_unstable();
    Some(names)
}

/// A program in C.
pub struct Program<'a> {
    pub source: PathBuf,
    pub include: Vec<PathBuf>,
    /// The cargo name of each library, and its installed name.
    pub libraries: &'a [(&'a str, &'a str)],
}

/// A compiled program, in a folder with its libraries.
pub struct Compiled(Folder);

impl Compiled {
    /// The command that runs it, for further arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.0.path().join("program"));
        command.env("LD_LIBRARY_PATH", self.0.path());
        command
    }
}

impl Program<'_> {
    /// Compiles the program. `None`, with a printed line, without a compiler.
    pub fn compile(&self) -> Option<Compiled> {
        let Self { source, include, libraries } = self;
        if !answers("cc") {
            println!("NOT RUN: {}: no C compiler (apt-get install gcc libc6-dev)", source.display());
            return None;
        }
        let built = Folder::new();
        let mut cc = Command::new("cc");
        cc.args(["-std=c17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"]);
        cc.args(include.iter().flat_map(|folder| ["-I".as_ref(), folder.as_os_str()]));
        cc.arg(source).arg("-o").arg(built.path().join("program"));
        for (file, name) in *libraries {
            // Links the library under its installed name.
            std::os::unix::fs::symlink(library(file), built.path().join(name)).unwrap();
            cc.arg(built.path().join(name));
        }
        let compiled = cc.output().unwrap();
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(Compiled(built))
    }

    /// Compiles and runs the program. False, with a printed line, without a compiler.
    pub fn run(&self, arguments: &[&Path]) -> bool {
        let Some(compiled) = self.compile() else { return false };
        let program = compiled.command();
        let mut run = Command::new("timeout");
        run.arg("120").arg(program.get_program()).args(arguments);
        run.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = run.output().unwrap();
        assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
        true
    }
}
