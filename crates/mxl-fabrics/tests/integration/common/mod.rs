//! Domains for a test, and turns of both ends.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../../mxl/tests/common/folder.rs"]
mod folder;
pub mod sdk;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use folder::Folder;
use mxl::{BatchHints, FlowDefinition, GrainWriter, Rational};
use mxl_fabrics::{Initiator, Provider, Received, Target};

/// Longer than any operation takes on a loaded machine.
pub const LONG: Duration = Duration::from_secs(40);

/// Small pictures at a high rate.
pub fn camera() -> FlowDefinition {
    FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap()
}

pub fn microphone(channels: u32) -> FlowDefinition {
    FlowDefinition::audio("microphone", channels, Rational::new(48_000, 1)).unwrap()
}

/// Any address of this host.
pub const ANY: (Option<&str>, Option<&str>) = (None, None);

/// Both ends of a flow of grains, which are not connected yet. Bind all fields: each lives as long as the test needs.
pub struct Ends {
    pub near: Folder,
    pub far: Folder,
    pub definition: FlowDefinition,
    pub writer: GrainWriter,
    pub target: Target,
    pub initiator: Initiator,
}

impl Ends {
    pub fn open(provider: Provider) -> Self {
        let (near, far, definition) = (Folder::new(), Folder::new(), camera());
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        Self { near, far, definition, writer, target, initiator }
    }
}

/// Drives both ends until the expected event has occurred.
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
        assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
}

/// A program that is killed at the end of the test.
pub struct Running(pub Child);

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

/// Starts a program that dies when it reaches a step (`ofi_ring::crash_point`), at the occurrence that `step` gives.
pub fn demo_until(step: &str, arguments: &[&str], domain: &Folder) -> Running {
    Running(command(arguments, domain).env("OFI_CRASH_AT", step).spawn().unwrap())
}

pub fn command(arguments: &[&str], domain: &Folder) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mxl-fabrics-demo"));
    // The devices under test must carry the data, although both ends are on one host.
    program.env("FI_VERBS_SHARED_MEMORY", "0").env("FI_EFA_ENABLE_SHM_TRANSFER", "0");
    program.arg("-d").arg(domain.path()).args(arguments).stdout(Stdio::null());
    program
}

/// The value of every byte of a grain.
pub fn byte_of(index: u64) -> u8 {
    (index * 37 + 11) as u8
}
