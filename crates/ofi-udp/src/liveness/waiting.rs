//! Endpoints with messages that gather in an open packet until the next poll. A poll sends them, usually soon. If none
//! comes, the thread does: so an application may inject messages and never poll again.
//!
//! An endpoint that begins to wait is listed, and the thread looks at the list at each tick of its timer, which runs
//! while something is listed. It lets out what waits since before the previous tick. An endpoint that is polled all the
//! time costs it a look per tick, and its lock is left alone.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::{Timer, is_readable};
use ofi_ring::overdue::Overdue;

/// The time between two looks. What waits leaves after one to two of them.
const TICK: Duration = Duration::from_micros(500);

/// What an endpoint tells the thread. All but [`List::look`] is called under the endpoint's lock.
#[derive(Default)]
pub struct Waiting {
    overdue: Overdue,
    /// How often it began to wait.
    times: AtomicU32,
}

impl Waiting {
    /// Something waits. Whether the endpoint must be listed.
    #[inline]
    pub fn begin(&self) -> bool {
        if self.overdue.is_due() {
            return false; // and listed, or about to be let out
        }
        self.times.store(self.times.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.overdue.begin()
    }

    /// Nothing waits.
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
    /// How often it had begun to wait at the last look.
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

    /// Readable when it is time for a look.
    pub fn fd(&self) -> RawFd {
        self.timer.fd()
    }

    /// An endpoint waits.
    #[cold]
    pub fn add(&self, waiting: &Arc<Waiting>, epoch: u64) {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.is_empty() {
            self.timer.set(Some(TICK));
        }
        listed.push(Listed { waiting: Arc::clone(waiting), epoch, times: None });
    }

    /// If it is time, passes each endpoint to `let_out` that has waited since before the last look.
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
            // If it was listed meanwhile, that is a second entry, to be added behind this lock.
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
        // The second is polled, and waits again: it begins anew.
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
