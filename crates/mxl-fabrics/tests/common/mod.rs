//! Domains for a test, and turns of both ends.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../mxl/tests/common/folder.rs"]
mod folder;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use folder::Folder;
use mxl::{FlowDefinition, Rational};
use mxl_fabrics::{Initiator, Received, Target};

/// Longer than anything takes on a loaded machine.
pub const LONG: Duration = Duration::from_secs(40);

/// Small pictures, many a second.
pub fn camera() -> FlowDefinition {
    FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap()
}

pub fn microphone(channels: u32) -> FlowDefinition {
    FlowDefinition::audio("microphone", channels, Rational::new(48_000, 1)).unwrap()
}

/// Gives both ends turns until what is expected has happened.
pub fn both(
    initiator: &mut Initiator,
    target: &mut Target,
    mut is_done: impl FnMut(&mut Initiator, Option<Received>) -> bool,
) {
    let begin = Instant::now();
    loop {
        initiator.poll().unwrap();
        let received = target.poll().unwrap();
        if is_done(initiator, received) {
            return;
        }
        assert!(begin.elapsed() < LONG, "it did not happen: {:?}", target.stats());
    }
}

/// A program that ends with the test.
pub struct Running(Child);

impl Running {
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Whether it has died by SIGKILL.
    ///
    /// # Panics
    /// If it ended in another way.
    pub fn is_dead(&mut self) -> bool {
        let status = self.0.try_wait().unwrap();
        assert!(status.is_none_or(|status| status.signal() == Some(9)), "{status:?}");
        status.is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn demo(arguments: &[&str], domain: &Folder) -> Running {
    Running(command(arguments, domain).spawn().unwrap())
}

/// One that dies when it comes to a step (`ofi_ring::crash_point`) as often as `step` says.
pub fn demo_until(step: &str, arguments: &[&str], domain: &Folder) -> Running {
    Running(command(arguments, domain).env("OFI_CRASH_AT", step).spawn().unwrap())
}

fn command(arguments: &[&str], domain: &Folder) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mxl-fabrics-demo"));
    // Devices are to carry what they are tested for, though both ends are on one host.
    program.env("FI_VERBS_SHARED_MEMORY", "0").env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    program.arg("-d").arg(domain.path()).args(arguments).stdout(Stdio::null());
    program
}

/// What every byte of a grain is.
pub fn byte_of(index: u64) -> u8 {
    (index * 37 + 11) as u8
}
