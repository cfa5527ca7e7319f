//! Domains for a test, and turns of both ends.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mxl::{Domain, FlowDefinition, Rational};
use mxl_fabrics::{Initiator, Received, Target};

/// Longer than anything takes on a loaded machine.
pub const LONG: Duration = Duration::from_secs(40);

/// A directory that goes with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("mxl-fabrics-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn domain(&self) -> Domain {
        Domain::open(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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
