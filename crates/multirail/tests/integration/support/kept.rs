//! An engine whose rails keep the messages they are given, and the numbers that it draws.

use std::sync::atomic::{AtomicU64, Ordering};

use multirail::engine::{Access, OpId, Plan, Refused, Sink};
use ofi::Errno;

/// Rails that keep the messages they are given.
#[derive(Default)]
pub struct Kept(pub Vec<(OpId, Vec<u8>)>);

impl Sink<()> for Kept {
    fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        unreachable!("no transfer has data")
    }

    fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.0.push((op, bytes));
        Ok(())
    }

    /// Every address is another one.
    fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
        static INSERTED: AtomicU64 = AtomicU64::new(0);
        Ok(INSERTED.fetch_add(1, Ordering::Relaxed))
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

/// Pseudorandom numbers from a seed (splitmix64).
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}
