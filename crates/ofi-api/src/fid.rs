//! The identity of an object, which events carry.

use std::sync::atomic::{AtomicU64, Ordering};

/// The object of an event: C's `fid`, as a number that no other object of this process ever has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fid(pub u64);

impl Fid {
    /// No object.
    pub const NONE: Self = Self(0);

    /// A number that was never given out before.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
