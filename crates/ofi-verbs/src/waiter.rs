//! The descriptor that a blocked thread waits on.

use std::os::fd::RawFd;
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::{Timer, WaitSet};

/// A descriptor that becomes readable when one of several others does, or at a given time.
pub struct Waiter {
    set: WaitSet,
    timer: Timer,
}

impl Waiter {
    /// Waits for these descriptors, which must stay open as long as this exists.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new(of: &[RawFd]) -> Result<Self> {
        let (set, timer) = (WaitSet::new()?, Timer::new()?);
        for &fd in of.iter().chain([&timer.fd()]) {
            set.add(fd)?;
        }
        Ok(Self { set, timer })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.set.fd()
    }

    /// Also waits for this descriptor, until it is closed or [forgotten](Waiter::forget).
    ///
    /// # Errors
    /// `FI_ENOSPC`, `FI_ENOMEM`.
    pub fn watch(&self, fd: RawFd) -> Result<()> {
        self.set.add(fd)
    }

    /// Stops waiting for one of the descriptors: that of a lost queue may stay readable forever.
    pub fn forget(&self, fd: RawFd) {
        self.set.remove(fd);
    }

    /// Makes the descriptor readable after this time; `None` cancels that.
    pub fn wake_after(&self, time: Option<Duration>) {
        self.timer.set(time);
    }
}
