//! Domains for a test, and turns of both ends.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../mxl/tests/common/folder.rs"]
mod folder;

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
