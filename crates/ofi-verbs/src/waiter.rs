//! What a sleeper waits on.

use std::os::fd::RawFd;
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::{Timer, WaitSet};

/// A descriptor that becomes readable when one of others does, or at a time.
pub struct Waiter {
    set: WaitSet,
    timer: Timer,
}

impl Waiter {
    /// For these descriptors, which stay open as long as this.
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

    /// Has it become readable after this time; `None`: not for that.
    pub fn wake_after(&self, time: Option<Duration>) {
        self.timer.set(time);
    }
}
