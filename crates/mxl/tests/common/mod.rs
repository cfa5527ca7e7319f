//! A domain for one test, and a second process that runs the same test.
#![allow(dead_code, reason = "each test uses a part")]

mod folder;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

pub use folder::Folder;
use mxl::{FlowDefinition, Rational, Wait};

/// Long, for a loaded machine; tests end when the awaited event happens.
pub const SOON: Wait = Wait::For(Duration::from_secs(20));

/// A picture of 4 lines of 128 bytes, 50 a second: a ring of 10.
pub fn camera() -> FlowDefinition {
    FlowDefinition::video("camera", 48, 4, Rational::new(50, 1)).unwrap()
}

/// 48 kHz: a ring of 19,456 samples of each channel.
pub fn microphone(channels: u32) -> FlowDefinition {
    FlowDefinition::audio("microphone", channels, Rational::new(48_000, 1)).unwrap()
}

/// The role of the other process: `None` in the process that the test runner started.
pub fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var("MXL_TEST_ROLE").ok()?, std::env::var_os("MXL_TEST_DOMAIN")?.into()))
}

/// The command that runs a test in another process, by its name with its module.
pub fn other_command(test: &str, role: &str, domain: &Path) -> Command {
    assert!(test.contains("::"), "{test} without its module is no test, and would pass");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    command.env("MXL_TEST_ROLE", role).env("MXL_TEST_DOMAIN", domain);
    command
}

/// Runs the test of that name in another process.
pub fn other_process(test: &str, role: &str, domain: &Path) -> Child {
    other_command(test, role, domain).spawn().unwrap()
}

/// The path of a flow's file.
pub fn file(folder: &Folder, definition: &FlowDefinition, name: &str) -> PathBuf {
    folder.path().join(format!("{}.mxl-flow", definition.id)).join(name)
}

/// The bytes of grain `index`, different for each grain.
pub fn picture(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index.wrapping_mul(31).wrapping_add(at * 7)) as u8).collect()
}
