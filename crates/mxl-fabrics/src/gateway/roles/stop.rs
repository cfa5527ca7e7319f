//! The signals that end the program: SIGINT and SIGTERM.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Result};

/// Becomes readable by the first of the signals.
#[derive(Debug)]
pub struct Stop(SignalFd);

impl Stop {
    /// Blocks the signals in this thread, and in those that it starts later: call it first.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system refuses.
    pub fn block() -> Result<Self> {
        let refused = |error| Error::Argument(format!("wait for SIGINT and SIGTERM: {error}"));
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        signals.thread_block().map_err(refused)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&signals, flags).map(Self).map_err(refused)
    }

    /// Its descriptor, to wait for it among others.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sleeps until one of the signals has come, at most for `timeout`. Returns whether one has.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timespec(timeout))).is_ok_and(|ready| ready > 0)
    }
}

/// A duration as the kernel takes it.
pub fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}
