//! The identity of an object, as reported in events.

use std::sync::atomic::{AtomicU64, Ordering};

/// The object of an event: C's `fid`, as a number that is unique in this process and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fid(pub u64);

impl Fid {
    /// No object.
    pub const NONE: Self = Self(0);

    /// Returns a number that has not been used before.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
