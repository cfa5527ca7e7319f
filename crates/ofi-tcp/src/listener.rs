//! A listening socket in a set of ready descriptors. It is ready for as long as a connection waits, so it rests while
//! the process has no descriptor or memory for that connection: otherwise a thread that sleeps on the set would wake
//! in a loop. The end of a rest is an event of the set too, for whichever thread polls or sleeps.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use ofi_api::{Errno, Result};
use ofi_core::log::Limit;
use ofi_core::sys::{Timer, is_readable};

use crate::sys::{self, Interest, Ready};

/// The pause after a connection that could not be accepted.
const REST: Duration = Duration::from_millis(100);
/// The errors of a system without descriptors or memory. Others are those of one connection.
const SHORTAGES: [Errno; 4] = [Errno::EMFILE, Errno::from_raw(libc::ENFILE), Errno::ENOBUFS, Errno::ENOMEM];
const LISTENING: Interest = Interest { read: true, write: false };

/// The result of one call of accept(2).
pub enum Accepted {
    Connection(OwnedFd),
    /// A connection that has failed. Others may wait.
    Failed,
    /// No connection waits, or the listener rests.
    Nothing,
}

/// A listening socket, and whether it rests.
pub struct Listener {
    socket: OwnedFd,
    /// Its number in the set.
    number: u64,
    /// Ends a rest. It exists from the start, because the process has no descriptor for it when a rest begins.
    timer: Timer,
    is_resting: bool,
}

impl Listener {
    /// Adds a listening socket to the set as `number`, and as `end` the timer that ends its rests.
    ///
    /// # Errors
    /// Errors of timerfd_create(2) and epoll_ctl(2).
    pub fn new(socket: OwnedFd, number: u64, end: u64, ready: &Ready) -> Result<Self> {
        let timer = Timer::new()?;
        ready.add(&socket, number, LISTENING)?;
        // SAFETY: the timer is open.
        unsafe { ready.add_raw(timer.fd(), end, LISTENING) }?;
        Ok(Self { socket, number, timer, is_resting: false })
    }

    /// Accepts the next connection. The listener rests if the system has no descriptor or memory for it.
    pub fn accept(&mut self, ready: &Ready) -> Accepted {
        let errno = match sys::accept(self.socket.as_fd()) {
            Ok(Some((socket, _))) => return Accepted::Connection(socket),
            Ok(None) => return Accepted::Nothing,
            Err(errno) => errno,
        };
        let is_short = SHORTAGES.contains(&errno);
        // Linux takes the descriptor before it looks whether a connection waits.
        if is_short && !is_readable(self.socket.as_raw_fd()) {
            return Accepted::Nothing;
        }
        static LIMIT: Limit = Limit::new();
        if let Some(more) = LIMIT.pass() {
            let error = errno.name();
            tracing::warn!(target: "ofi::tcp::ep_ctrl", error, more, "cannot accept a connection");
        }
        if !is_short {
            return Accepted::Failed;
        }
        ready.change(&self.socket, self.number, Interest::default());
        self.timer.set(Some(REST));
        self.is_resting = true;
        Accepted::Nothing
    }

    /// Ends the rest. The set is readable if a connection waits.
    pub fn end_rest(&mut self, ready: &Ready) {
        if std::mem::take(&mut self.is_resting) {
            self.timer.set(None);
            ready.change(&self.socket, self.number, LISTENING);
        }
    }

    /// Ends a rest that is due, for those who do not ask the set. Returns whether the listener rests.
    pub fn rests(&mut self, ready: &Ready) -> bool {
        if self.is_resting && is_readable(self.timer.fd()) {
            self.end_rest(ready);
        }
        self.is_resting
    }

    /// Stops listening.
    pub fn leave(&self, ready: &Ready) {
        self.timer.set(None);
        ready.remove(&self.socket);
    }
}
