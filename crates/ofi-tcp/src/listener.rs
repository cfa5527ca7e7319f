//! A listening socket in a set of ready descriptors. It is ready for as long as a connection waits, so it rests while
//! the process has no descriptor or memory for that connection: otherwise a thread that sleeps on the set would wake
//! in a loop.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ofi_api::Result;
use ofi_core::log::Limit;

use crate::sys::{self, Interest, Ready};

/// The pause after a connection that could not be accepted.
const REST: Duration = Duration::from_millis(100);
const LISTENING: Interest = Interest { read: true, write: false };

/// A listening socket, and whether it rests.
pub struct Listener {
    socket: OwnedFd,
    /// Its number in the set.
    number: u64,
    /// The end of its rest.
    again: Option<Instant>,
}

impl Listener {
    /// Adds a listening socket to the set.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub fn new(socket: OwnedFd, number: u64, ready: &Ready) -> Result<Self> {
        ready.add(&socket, number, LISTENING)?;
        Ok(Self { socket, number, again: None })
    }

    /// Accepts the next connection. `None` if none waits, or the system refuses it: then the listener rests.
    pub fn accept(&mut self, ready: &Ready) -> Option<OwnedFd> {
        match sys::accept(self.socket.as_fd()) {
            Ok(accepted) => accepted.map(|(socket, _)| socket),
            Err(errno) => {
                static LIMIT: Limit = Limit::new();
                if let Some(more) = LIMIT.pass() {
                    let error = errno.name();
                    tracing::warn!(target: "ofi::tcp::ep_ctrl", error, more, "cannot accept a connection");
                }
                ready.change(&self.socket, self.number, Interest::default());
                self.again = Some(Instant::now() + REST);
                None
            }
        }
    }

    /// When the rest ends, if it rests.
    pub fn again(&self) -> Option<Instant> {
        self.again
    }

    /// Ends a rest that is due. Returns whether connections may be accepted.
    pub fn is_awake(&mut self, now: Instant, ready: &Ready) -> bool {
        if self.again.is_some_and(|again| now < again) {
            return false;
        }
        if self.again.take().is_some() {
            ready.change(&self.socket, self.number, LISTENING);
        }
        true
    }

    /// Stops listening.
    pub fn leave(&self, ready: &Ready) {
        ready.remove(&self.socket);
    }
}
