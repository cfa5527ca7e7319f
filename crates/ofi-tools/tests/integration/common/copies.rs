//! Shared by the tests of `ofi cp`: folders with contents, servers and clients.
#![allow(dead_code, reason = "not every test program uses all of it")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const OFI: &str = env!("CARGO_BIN_EXE_ofi");
pub const MIB: usize = 1 << 20;
pub const LIMIT: Duration = Duration::from_secs(20);

pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ofi-cp-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("served/sub")).unwrap();
        fs::create_dir_all(folder.join("got")).unwrap();
        Self(folder)
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Writes a file to copy, in which no two blocks are the same.
    pub fn fill(&self, path: &str, len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        let mut state = 88_172_645_463_325_252_u64;
        for part in content.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
        }
        fs::write(self.at(path), &content).unwrap();
        content
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed when the test ends.
pub struct Running(pub Child);

impl Running {
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn ofi(arguments: &[&str]) -> Command {
    ofi_under(&[], arguments)
}

/// `ofi cp`, started through a program that runs its arguments.
pub fn ofi_under(wrapper: &[&str], arguments: &[&str]) -> Command {
    let words = [wrapper, &[OFI]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    // Forces sockets: within a host udp would use shared memory.
    command.env_remove("FI_PROVIDER").env("FI_UDP_SHARED_MEMORY", "0").arg("cp").args(arguments);
    command
}

/// Starts a server for the folder, and returns the address that it prints.
pub fn serve(folder: &Folder, arguments: &[&str]) -> (Running, String) {
    listening(ofi(&["serve", folder.at("served").to_str().unwrap()]), arguments)
}

/// Starts a server with this command, and returns the address that it prints.
pub fn listening(mut command: Command, arguments: &[&str]) -> (Running, String) {
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().expect("the server starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening at ").unwrap_or_else(|| panic!("{line:?}")).to_string();
    (Running(child), address)
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !there() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}

/// Every regular file below a folder, with its content, and every folder; links are not followed.
pub fn below(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let path = entry.path().strip_prefix(folder).unwrap().to_path_buf();
            if entry.file_type().unwrap().is_dir() {
                all.push((path, None));
                todo.push(entry.path());
            } else if entry.file_type().unwrap().is_file() {
                all.push((path, Some(fs::read(entry.path()).unwrap())));
            }
        }
    }
    all.sort();
    all
}
