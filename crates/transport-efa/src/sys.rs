//! System calls: a timer that a sleeper waits on.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::os_error;

/// A descriptor that becomes readable at a time.
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new() -> Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(os_error("timerfd_create"));
        }
        // SAFETY: a descriptor that was just opened, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Has it become readable after this time; `None`: not.
    pub fn set(&self, time: Option<Duration>) {
        let (secs, nanos) = time.map_or((0, 0), |time| (time.as_secs() as i64, time.subsec_nanos().max(1)));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at = libc::timespec { tv_sec: secs, tv_nsec: nanos.into() };
        let value = libc::itimerspec { it_interval: zero, it_value: at };
        // SAFETY: the timer is open, and the value is read during the call.
        unsafe { libc::timerfd_settime(self.fd(), 0, &value, std::ptr::null_mut()) };
    }
}
