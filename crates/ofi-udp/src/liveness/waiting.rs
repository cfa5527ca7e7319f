//! Endpoints with messages in an open packet. Usually a poll soon sends them. Otherwise the thread does, so that an
//! application may inject messages and never poll again.
//!
//! An endpoint is listed when it queues a message. The thread checks the list at each tick of its timer, which runs
//! while the list is not empty, and flushes endpoints whose messages were queued before the previous tick. For an
//! endpoint that is polled all the time, the thread makes one check per tick and never takes its lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::{Timer, is_readable};
use ofi_ring::deferred_check::DeferredCheck;

/// Time between two ticks. Messages are flushed after one to two of them.
const TICK: Duration = Duration::from_micros(500);

/// The state of one endpoint that it shares with the thread. All methods but [`List::look`] are called under the
/// endpoint's lock.
#[derive(Default)]
pub struct Waiting {
    overdue: DeferredCheck,
    /// How often the endpoint began to queue messages.
    times: AtomicU32,
}

impl Waiting {
    /// Records that messages are queued. Returns whether the endpoint must be listed.
    #[inline]
    pub fn begin(&self) -> bool {
        if self.overdue.is_due() {
            return false; // and listed, or about to be let out
        }
        self.times.store(self.times.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.overdue.begin()
    }

    /// Records that no messages are queued.
    #[inline]
    pub fn end(&self) {
        if self.overdue.is_due() {
            self.overdue.end();
        }
    }
}

/// A listed endpoint.
pub(super) struct Listed {
    waiting: Arc<Waiting>,
    pub(super) epoch: u64,
    /// The endpoint's count at the last tick.
    times: Option<u32>,
}

/// The list of endpoints with unsent messages, and the timer that flushes them.
pub struct List {
    pub(super) listed: Mutex<Vec<Listed>>,
    /// Runs while something is listed.
    timer: Timer,
}

impl List {
    /// An empty list.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new() -> Result<Self> {
        Ok(Self { listed: Mutex::default(), timer: Timer::new()? })
    }

    /// Readable at the next tick.
    pub fn fd(&self) -> RawFd {
        self.timer.fd()
    }

    /// Lists an endpoint.
    #[cold]
    pub fn add(&self, waiting: &Arc<Waiting>, epoch: u64) {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.is_empty() {
            self.timer.set(Some(TICK));
        }
        listed.push(Listed { waiting: Arc::clone(waiting), epoch, times: None });
    }

    /// At a tick, calls `let_out` for each endpoint whose messages were queued before the previous tick.
    pub fn look(&self, mut let_out: impl FnMut(u64)) {
        if !is_readable(self.fd()) {
            return;
        }
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        listed.retain_mut(|Listed { waiting, epoch, times }| {
            if !waiting.overdue.look() {
                return false;
            }
            let now = waiting.times.load(Ordering::Relaxed);
            if times.replace(now) == Some(now) {
                let_out(*epoch);
                return false;
            }
            // If it was listed meanwhile, that is a second entry, which is added after this lock is released.
            waiting.overdue.keep()
        });
        self.timer.set((!listed.is_empty()).then_some(TICK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for the next tick, and returns what it lets out.
    fn tick(list: &List) -> Vec<u64> {
        let bound = std::time::Instant::now() + Duration::from_secs(10);
        assert!(ofi_core::sys::wait_readable(&[list.fd()], Some(bound)), "the timer does not run");
        let mut out = Vec::new();
        list.look(|epoch| out.push(epoch));
        out
    }

    #[test]
    fn what_waits_for_a_whole_tick_is_let_out_and_what_is_polled_is_not() {
        let list = List::new().unwrap();
        let endpoints: [Arc<Waiting>; 3] = std::array::from_fn(|_| Arc::default());
        let begin = |index: usize| {
            if endpoints[index].begin() {
                list.add(&endpoints[index], index as u64);
            }
        };
        (0..3).for_each(begin);
        begin(1);
        endpoints[2].end();
        assert_eq!(tick(&list), [], "nothing has waited for long");
        // The second endpoint is polled and queues again, so its time starts anew.
        endpoints[1].end();
        begin(1);
        assert_eq!(tick(&list), [0]);
        endpoints[0].end();
        assert_eq!(tick(&list), [1]);
        endpoints[1].end();
        assert!(!is_readable(list.fd()) && list.listed.lock().unwrap().is_empty());
        begin(0);
        assert_eq!((tick(&list), tick(&list)), (vec![], vec![0]));
    }
}
