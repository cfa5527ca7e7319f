//! Who waits for an agent: threads and futures.

use std::task::Waker;
use std::time::Duration;

/// Who waits. Behind the agent's lock.
#[derive(Default)]
pub(crate) struct Waiters {
    /// A thread sleeps on the rails' descriptors until this time, or is about to.
    pub(crate) led_until: Option<Duration>,
    /// Another thread has polled since, or has changed something.
    pub(crate) is_disarmed: bool,
    pub(crate) followers: usize,
    pub(crate) wakers: Vec<Waker>,
}

impl Waiters {
    /// Has a future polled again when something has happened.
    pub(crate) fn register(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}
