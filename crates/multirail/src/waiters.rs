//! The waiters of an agent: threads and futures.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use ofi::raw::CompletionQueue;

/// The waiting threads and futures. The agent's lock protects them.
#[derive(Default)]
pub(crate) struct Waiters {
    /// A thread sleeps on the rails' descriptors until this time, or is about to.
    pub(crate) led_until: Option<Duration>,
    /// The queues on whose descriptors it sleeps.
    pub(crate) led: Arc<[Arc<dyn CompletionQueue>]>,
    /// Another thread has polled since, or has changed the state.
    pub(crate) is_disarmed: bool,
    pub(crate) followers: usize,
    pub(crate) wakers: Vec<Waker>,
}

impl Waiters {
    /// Registers a future for another poll after the next event.
    pub(crate) fn register(&mut self, waker: Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(&waker)) {
            self.wakers.push(waker);
        }
    }
}
