//! Wakes a thread that blocks on a completion queue.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ofi_api::Result;

use crate::sys;

/// Nobody blocks.
const IDLE: u8 = 0;
/// A reader found nothing, and blocks or is about to.
const ARMED: u8 = 1;
/// The descriptor is readable.
const STRUCK: u8 = 2;

struct Shared {
    event: OwnedFd,
    state: AtomicU8,
}

/// An eventfd that is written only while somebody may be asleep. Clones share it.
#[derive(Clone)]
pub struct Bell(Arc<Shared>);

impl Bell {
    /// A bell that nobody listens to yet.
    ///
    /// # Errors
    /// What eventfd(2) answers.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(Shared { event: sys::eventfd()?, state: AtomicU8::new(IDLE) })))
    }

    /// Says that the caller will look once more, and then block. What happens before that look it sees; what happens
    /// after makes the descriptor readable.
    pub fn arm(&self) {
        if self.0.state.swap(ARMED, Ordering::SeqCst) == STRUCK {
            sys::drain_eventfd(self.0.event.as_raw_fd());
        }
    }

    /// Wakes the reader, if it armed the bell.
    #[inline]
    pub fn ring(&self) {
        if self.0.state.load(Ordering::Relaxed) == ARMED {
            self.strike();
        }
    }

    /// Wakes the reader in any case: the next block returns at once.
    #[cold]
    pub fn strike(&self) {
        if self.0.state.swap(STRUCK, Ordering::SeqCst) != STRUCK {
            sys::signal_eventfd(self.0.event.as_raw_fd());
        }
    }

    /// The descriptor to block on.
    pub fn fd(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }
}
