//! Wakes a thread that blocks on a completion queue.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ofi_api::Result;
use ofi_ring::wake_state::WakeState;

use crate::sys;

struct WakeShared {
    event: OwnedFd,
    state: WakeState,
    /// Threads that block in a call of the library, or are about to.
    asleep: AtomicU32,
    /// Threads may also block on the descriptor directly.
    is_shown: AtomicBool,
}

/// An eventfd that is written only while a thread may be asleep. Clones share it.
#[derive(Clone)]
pub struct WakeFd(Arc<WakeShared>);

impl WakeFd {
    /// A wake fd that only calls of the library wait for.
    ///
    /// # Errors
    /// Errors of eventfd(2).
    pub fn new() -> Result<Self> {
        Self::of(false)
    }

    /// The same; `is_shown` says whether the application may wait for the descriptor itself.
    ///
    /// # Errors
    /// As [`WakeFd::new`].
    pub fn of(is_shown: bool) -> Result<Self> {
        Ok(Self(Arc::new(WakeShared {
            event: sys::eventfd()?,
            state: WakeState::default(),
            asleep: AtomicU32::new(0),
            is_shown: AtomicBool::new(is_shown),
        })))
    }

    /// Announces that the caller will check once more and then block. The check sees all earlier events, and later
    /// events make the descriptor readable.
    pub fn arm(&self) {
        if self.0.state.arm() {
            sys::drain_eventfd(&self.0.event);
        }
    }

    /// Wakes the reader if it has armed the wake fd. A reader that is not woken sees everything that the caller stored
    /// before, by a `SeqCst` operation or under a lock that the reader takes after arming.
    #[inline]
    pub fn notify(&self) {
        if self.0.state.is_armed() {
            self.signal();
        }
    }

    /// Whether a thread would be woken.
    pub fn is_armed(&self) -> bool {
        self.0.state.is_armed()
    }

    /// From now on, the application may wait for the descriptor itself.
    pub fn show(&self) {
        self.0.is_shown.store(true, Ordering::SeqCst);
    }

    /// Whether the application may wait for the descriptor itself.
    pub fn is_shown(&self) -> bool {
        self.0.is_shown.load(Ordering::SeqCst)
    }

    /// Counts the caller as asleep while it arms the wake fd and blocks.
    pub fn asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.0.asleep.fetch_add(1, Ordering::SeqCst);
        let slept = sleep();
        self.0.asleep.fetch_sub(1, Ordering::SeqCst);
        slept
    }

    /// Whether a thread may be waiting: one that is [asleep](WakeFd::asleep), or one that blocks on the descriptor,
    /// which is not visible to the library.
    pub fn is_slept_on(&self) -> bool {
        self.is_armed() && (self.is_shown() || self.0.asleep.load(Ordering::SeqCst) > 0)
    }

    /// Whether both are the same.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wakes the reader unconditionally: the next block returns at once.
    #[cold]
    pub fn signal(&self) {
        if self.0.state.notify() {
            sys::signal_eventfd(&self.0.event);
        }
    }

    /// The descriptor to block on.
    pub fn fd(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }
}
