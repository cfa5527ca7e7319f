//! How a thread that polls without success yields its core to others.
//!
//! A thread that busy-polls for a message may occupy the core that the sender needs. With more polling threads than
//! cores, each message then costs a time slice of the scheduler (about 3 ms). So each source (an endpoint, a counter)
//! reads the clock now and then while its polls find nothing, and makes the poll yield.
//!
//! Invariants:
//! I1. A thread yields only if it was preempted within the last second: a thread with a core of its own spins.
//! I2. A thread yields only after it has polled without success for `SPIN`, and only if its polls follow each other
//!     closely: between polls that are far apart it does other work.
//! I3. A thread that yields to one that never yields gets its core back after a whole time slice. So it sleeps
//!     instead, for a while: the scheduler prefers sleepers that wake to threads that have used up their share.
//! I4. The clock is read once per `POLLS_PER_CLOCK_READ` unsuccessful polls and at the end of such a run, and never
//!     otherwise.

use std::time::{Duration, Instant};

use crate::settings;
use crate::sys;

/// Unsuccessful polls between two reads of the clock: a read costs as much as half a poll of an endpoint.
const POLLS_PER_CLOCK_READ: u32 = 32;
/// The time for which a thread spins before it yields: more than a UDP message takes between two nearby hosts.
const SPIN: Duration = Duration::from_micros(10);
/// A thread whose [`POLLS_PER_CLOCK_READ`] polls take longer does not spin: a poll of a socket takes 1 to 5 us.
const DENSE: Duration = Duration::from_micros(400);
/// The least time that a preempted thread loses: Linux's `base_slice_ns` is 700 us on one core, and more on several.
const LOST: Duration = Duration::from_micros(500);
/// The time for which a loss of the core, and a thread that did not yield in turn, are remembered.
const CONTENDED: Duration = Duration::from_secs(1);
const RUDE: Duration = Duration::from_millis(100);
/// The length of a sleep. The system adds its slack (`PR_SET_TIMERSLACK`, 50 us by default).
const REST: Duration = Duration::from_micros(1);

/// The action that a poll requests from its thread, once no lock is held. The variants are ordered: the largest request
/// of several sources counts, but [`Turn::Busy`] above all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// No action: something was found, or the polls have not been empty for long.
    Busy,
    /// No action, but the source permits that another one yields.
    Idle,
    /// Yield to threads that wait for the core.
    Yield,
    /// Sleep as shortly as the system can.
    Rest,
}

impl Turn {
    /// The combined request of two sources of one poll.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Busy || other == Self::Busy { Self::Busy } else { self.max(other) }
    }

    /// Performs the action.
    #[inline]
    pub fn take(self) {
        if self > Self::Idle {
            self.give_way();
        }
    }

    #[cold]
    fn give_way(self) {
        match self {
            Self::Rest => std::thread::sleep(REST),
            _ => std::thread::yield_now(),
        }
    }
}

/// A run of unsuccessful polls.
#[derive(Debug)]
struct PollRun {
    since: Instant,
    looked: Instant,
    /// The request at that time.
    asked: Turn,
}

/// A source's record of the threads that poll it.
#[derive(Debug)]
pub struct SpinPolicy {
    /// Unsuccessful polls since the last read of the clock.
    vain: u32,
    /// The action to request until the next read of the clock.
    until_then: Turn,
    on: bool,
    /// Once a look was taken.
    row: Option<PollRun>,
    /// The thread's involuntary context switches at the last check.
    aside: i64,
    contended: Option<Instant>,
    rude: Option<Instant>,
}

impl Default for SpinPolicy {
    /// As the settings say.
    fn default() -> Self {
        Self {
            vain: 0,
            until_then: Turn::Busy,
            on: settings::give_way(),
            row: None,
            aside: 0,
            contended: None,
            rude: None,
        }
    }
}

impl SpinPolicy {
    /// Records the result of a poll. Returns the action to request.
    #[inline]
    pub fn polled(&mut self, found: bool) -> Turn {
        if found {
            if self.row.is_some() {
                self.end(Instant::now(), sys::times_put_aside);
            }
            self.vain = 0;
            return Turn::Busy;
        }
        self.vain += 1;
        if self.vain == POLLS_PER_CLOCK_READ {
            self.vain = 0;
            return self.look(Instant::now(), sys::times_put_aside);
        }
        self.until_then
    }

    /// A run has ended. The thread may have been preempted in it while the awaited event arrived.
    #[cold]
    fn end(&mut self, now: Instant, aside: impl FnOnce() -> i64) {
        if let Some(row) = self.row.take() {
            self.learn(&row, now, aside);
        }
        self.until_then = Turn::Busy;
    }

    #[cold]
    fn look(&mut self, now: Instant, aside: impl FnOnce() -> i64) -> Turn {
        if !self.on {
            return Turn::Busy;
        }
        let mut row = self.row.take().unwrap_or(PollRun { since: now, looked: now, asked: Turn::Idle });
        self.learn(&row, now, aside);
        if row.asked <= Turn::Idle && now.duration_since(row.looked) > DENSE {
            row.since = now;
        }
        let turn = if now.duration_since(row.since) < SPIN {
            Turn::Busy
        } else if self.contended.is_none_or(|until| now >= until) {
            Turn::Idle
        } else if self.rude.is_some_and(|until| now < until) {
            Turn::Rest
        } else {
            Turn::Yield
        };
        (row.looked, row.asked) = (now, turn);
        self.row = Some(row);
        self.until_then = turn.min(Turn::Idle);
        turn
    }

    /// Evaluates the time since the last read of the clock.
    fn learn(&mut self, row: &PollRun, now: Instant, aside: impl FnOnce() -> i64) {
        if now.duration_since(row.looked) <= LOST {
            return;
        }
        if row.asked > Turn::Idle {
            self.rude = Some(now + RUDE);
        } else {
            let before = std::mem::replace(&mut self.aside, aside());
            if before == self.aside {
                return; // the thread itself had something else to do
            }
        }
        self.contended = Some(now + CONTENDED);
    }
}

#[cfg(test)]
mod tests;
