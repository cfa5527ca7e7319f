//! The counts by which caches detect changes of an address vector. They are in this process's memory, or in that of a
//! shared vector.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Av;

/// The counts of one vector.
#[derive(Debug, Default)]
#[repr(C)]
pub struct AvCounts {
    removals: AtomicU32,
    insertions: AtomicU32,
}

/// The counts of an absent vector.
static NONE: AvCounts = AvCounts { removals: AtomicU32::new(0), insertions: AtomicU32::new(0) };

impl AvCounts {
    /// Counts removals: when it changes, any number may stand for a different address.
    #[inline]
    pub fn removals(&self) -> u32 {
        self.removals.load(Ordering::Acquire)
    }

    /// Counts insertions: while it does not change, a missing address is still missing.
    #[inline]
    pub fn insertions(&self) -> u32 {
        self.insertions.load(Ordering::Acquire)
    }

    /// Records that a number has become invalid, or is reported as a different one.
    pub fn removed(&self) {
        self.removals.fetch_add(1, Ordering::Release);
    }

    /// Records that a number became valid.
    pub fn inserted(&self) {
        self.insertions.fetch_add(1, Ordering::Release);
    }
}

/// Access to the counts of an address vector by one load. It keeps the vector open. Without a vector, the counts never
/// change.
pub struct CountsOf {
    counts: NonNull<AvCounts>,
    _av: Option<Arc<Av>>,
}

// SAFETY: the counts are atomics, and `_av` (which is Send and Sync) keeps them where they are.
unsafe impl Send for CountsOf {}
// SAFETY: as above.
unsafe impl Sync for CountsOf {}

impl CountsOf {
    /// Those of `av`.
    pub fn new(av: &Arc<Av>) -> Self {
        Self { counts: NonNull::from(av.counts()), _av: Some(Arc::clone(av)) }
    }

    /// The counts.
    #[inline(always)]
    pub fn get(&self) -> &AvCounts {
        // SAFETY: they lie in a box or a mapping that the vector owns and never moves, and `_av` keeps the vector; or
        // they are static.
        unsafe { self.counts.as_ref() }
    }
}

impl Default for CountsOf {
    fn default() -> Self {
        Self { counts: NonNull::from(&NONE), _av: None }
    }
}
