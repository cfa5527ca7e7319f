//! The rings to the peer and from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi_ring::doorbell::DoorbellSender;
use ofi_ring::record::{Consumer, Producer};

use crate::pair::{OwnPair, PeerParts};
use crate::sys::Mapping;

/// This end's rings to the peer, usable before the peer has seen them.
///
/// Fields are dropped in order: users of memory before the mappings.
pub struct Link {
    pub commands: Producer,
    pub replies: Producer,
    pub up: Option<Up>,
    pub own: Arc<OwnPair>,
}

/// The part that exists once both ends have each other's memory.
pub struct Up {
    pub commands: Consumer,
    pub replies: Consumer,
    pub bell: DoorbellSender,
    /// A copy through a grant is announced with a fence, because one of the two processes lacks the barrier.
    pub fences: bool,
    pub wish: *const AtomicU32,
    /// The mapped memory that all fields above point into.
    pub parts: Box<PeerParts>,
}

// SAFETY: the pointer leads into `parts.pair`, which moves along.
unsafe impl Send for Up {}

impl Up {
    /// The peer's pair memory.
    #[inline]
    pub fn pair(&self) -> &Mapping {
        &self.parts.pair
    }

    /// The word in which the peer asks this end to hold its payloads.
    #[inline]
    pub fn wish(&self) -> u32 {
        // SAFETY: aligned and mapped while `parts` lives; accessed atomically.
        unsafe { &*self.wish }.load(Ordering::Relaxed)
    }
}
