//! Waits of an end of a flow: the thread sleeps on the descriptors of the queues, which announce events.
//!
//! No progress depends on a descriptor alone: after at most [`MAX_SLEEP`] the end polls again, for example to greet a
//! silent target.
#![allow(unsafe_code)] // borrows descriptors of queues that the caller keeps

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::CompletionQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum time of one sleep.
pub const MAX_SLEEP: Duration = Duration::from_millis(20);
/// Sleep of an end that waits for room, or whose queues have no descriptor.
pub const NAP: Duration = Duration::from_micros(50);
/// Consecutive sleeps that could not begin, after which the thread naps.
const MISSES: u32 = 64;

/// The condition that ends the wait of an idle end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// An event on the descriptors.
    Announced,
    /// An event on the descriptors, or this time, when something is due.
    Until(Instant),
    /// Room for pending work, which a descriptor may announce, but need not.
    Room,
}

impl WaitFor {
    /// The condition that ends first.
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Room, _) | (_, Self::Room) => Self::Room,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
            (Self::Until(due), Self::Announced) | (Self::Announced, Self::Until(due)) => Self::Until(due),
            (Self::Announced, Self::Announced) => Self::Announced,
        }
    }

    /// The time to sleep at `now`.
    pub fn limit(self, now: Instant) -> Duration {
        match self {
            Self::Announced => MAX_SLEEP,
            Self::Until(due) => due.saturating_duration_since(now).min(MAX_SLEEP),
            Self::Room => NAP,
        }
    }
}

/// The sleeps of one thread.
#[derive(Debug, Default)]
pub(crate) struct Sleeper {
    /// Consecutive sleeps that did not begin because there was something to poll for.
    misses: u32,
}

impl Sleeper {
    /// Arms the descriptors for the next event. Returns false if there is something to poll for already.
    pub fn prepare(&mut self, queues: &[Arc<dyn CompletionQueue>]) -> bool {
        let may_sleep = queues.iter().all(|queue| queue.trywait().is_ok());
        self.misses = if may_sleep { 0 } else { self.misses.saturating_add(1) };
        may_sleep
    }

    /// Must be called, without a lock, after [`prepare`](Self::prepare) returned false. Naps if a queue keeps having
    /// something to poll for, however often it is polled.
    pub fn stay_awake(&self) {
        if self.must_nap() {
            std::thread::sleep(NAP);
        }
    }

    /// Whether a queue keeps having something to poll for.
    pub fn must_nap(&self) -> bool {
        self.misses > MISSES
    }

    /// Waits until there may be something to poll for, for `left` at most.
    pub fn wait(&mut self, queues: &[Arc<dyn CompletionQueue>], rest: WaitFor, left: Duration) {
        let fds = descriptors(queues);
        if self.prepare(queues) {
            sleep(fds.as_deref(), rest.limit(Instant::now()).min(left));
        } else {
            self.stay_awake();
        }
    }
}

/// The descriptors that announce events of queues; `None` if a queue has none, or there are no queues. Called before a
/// thread first prepares to sleep on them: from then on the queues signal them.
pub(crate) fn descriptors(queues: &[Arc<dyn CompletionQueue>]) -> Option<Vec<RawFd>> {
    let of_queue = |queue: &Arc<dyn CompletionQueue>| Some(queue.wait_fds()).filter(|fds| !fds.is_empty());
    let fds: Vec<RawFd> = queues.iter().map(of_queue).collect::<Option<Vec<_>>>()?.concat();
    (!fds.is_empty()).then_some(fds)
}

/// Sleeps on the descriptors of [prepared](Sleeper::prepare) queues until one of these announces something, for `limit`
/// at most. The caller keeps the queues.
pub(crate) fn sleep(fds: Option<&[RawFd]>, limit: Duration) {
    let Some(fds) = fds else { return std::thread::sleep(limit.min(NAP)) };
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|&fd| {
            // SAFETY: the descriptor belongs to a queue, or to an endpoint of it, and the caller keeps them.
            PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN)
        })
        .collect();
    let time = Timespec { tv_sec: 0, tv_nsec: limit.min(MAX_SLEEP).subsec_nanos().into() };
    // A signal ends the sleep early, which is harmless.
    let _ = poll(&mut fds, Some(&time));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_that_ends_first_counts() {
        let now = Instant::now();
        let at = |ms| WaitFor::Until(now + Duration::from_millis(ms));
        assert_eq!(WaitFor::Announced.or(WaitFor::Announced), WaitFor::Announced);
        assert_eq!((at(3).or(at(2)), at(2).or(at(3))), (at(2), at(2)));
        assert_eq!((at(3).or(WaitFor::Announced), WaitFor::Announced.or(at(3))), (at(3), at(3)));
        assert_eq!(
            (at(0).or(WaitFor::Room), WaitFor::Room.or(WaitFor::Announced)),
            (WaitFor::Room, WaitFor::Room)
        );
        let limits = [WaitFor::Announced, at(3), at(100), WaitFor::Until(now), WaitFor::Room]
            .map(|rest| rest.limit(now));
        assert_eq!(limits, [MAX_SLEEP, Duration::from_millis(3), MAX_SLEEP, Duration::ZERO, NAP]);
    }

    #[test]
    fn a_wait_without_queues_ends() {
        Sleeper::default().wait(&[], WaitFor::Announced, Duration::from_secs(3600));
    }
}
