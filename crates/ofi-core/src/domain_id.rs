//! Identifies the domain of this process in which an object was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tells domains of a process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(u64);

impl DomainId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
