//! How a thread that polls without success yields its core to others.
//!
//! A thread that busy-polls for a message may occupy the core that the sender needs. With more polling threads than
//! cores, each message then costs a time slice of the scheduler (about 3 ms). So each source (an endpoint, a counter)
//! reads the clock now and then while its polls find nothing, and makes the poll yield.
//!
//! Invariants:
//! I1. A thread yields only if it was preempted within the last second: a thread with a core of its own spins.
//! I2. A thread yields only after it has polled without success for `SPIN` (but see I5), and only if its polls follow
//!     each other closely: between polls that are far apart it does other work.
//! I3. A thread that yields to one that never yields gets its core back only after a whole time slice. So it sleeps
//!     instead, for a while: the scheduler prefers sleepers that wake over threads that have used up their share.
//! I4. The clock is read once per `POLLS_PER_CLOCK_READ` unsuccessful polls and at the end of such a run, and never
//!     otherwise. Between threads that yield to each other, it is read once per `POLLS_BETWEEN_YIELDS`.
//! I5. If what a thread waited for came after it had yielded and got its core back, its next run does not spin: more
//!     threads than cores wait for each other. This ends when a thread does not yield back, when this one does other
//!     work between its polls, or with the second of I1.

use std::time::{Duration, Instant};

use ofi_config::settings;

use crate::sys;

/// Unsuccessful polls between two reads of the clock: a read costs as much as half a poll of an endpoint.
const POLLS_PER_CLOCK_READ: u32 = 32;
/// The same between threads that yield to each other.
const POLLS_BETWEEN_YIELDS: u32 = 8;
/// The time for which a thread spins before it yields: more than a UDP message takes between two nearby hosts.
const SPIN: Duration = Duration::from_micros(10);
/// A thread whose [`POLLS_PER_CLOCK_READ`] polls take longer does not spin: a poll of a socket takes 1 to 5 us.
const DENSE: Duration = Duration::from_micros(400);
/// The same for [`POLLS_BETWEEN_YIELDS`].
const DENSE_BETWEEN_YIELDS: Duration = Duration::from_micros(100);
/// The shortest preemption: Linux's `base_slice_ns` is 700 us on one core, and more on several.
const MIN_PREEMPTION: Duration = Duration::from_micros(500);
/// The time for which a preemption is remembered.
const CONTENDED: Duration = Duration::from_secs(1);
/// How long it is remembered that another thread did not yield back.
const NO_YIELD_BACK: Duration = Duration::from_millis(100);
/// The length of a sleep. The system adds its slack (`PR_SET_TIMERSLACK`, 50 us by default).
const SLEEP: Duration = Duration::from_micros(1);

/// What a poll asks its thread to do once no lock is held. The variants are ordered: the largest request of several
/// sources counts, except that [`YieldHint::Busy`] overrides all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum YieldHint {
    /// No action: something was found, or the polls have not been empty for long.
    Busy,
    /// No action, but the source permits that another one yields.
    Idle,
    /// Yield to threads that wait for the core.
    Yield,
    /// Sleep as shortly as the system can.
    Sleep,
}

impl YieldHint {
    /// The combined request of two sources of one poll.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Busy || other == Self::Busy { Self::Busy } else { self.max(other) }
    }

    /// Performs the action.
    #[inline]
    pub fn apply(self) {
        if self > Self::Idle {
            self.leave_core();
        }
    }

    #[cold]
    fn leave_core(self) {
        match self {
            Self::Sleep => std::thread::sleep(SLEEP),
            _ => std::thread::yield_now(),
        }
    }
}

/// A run of unsuccessful polls.
#[derive(Debug)]
struct PollRun {
    since: Instant,
    last_check: Instant,
    /// The request at that time.
    hint: YieldHint,
}

/// A source's record of the threads that poll it.
#[derive(Debug)]
pub struct SpinPolicy {
    /// Unsuccessful polls since the last read of the clock.
    empty_polls: u32,
    /// How many there are until the next.
    polls_per_read: u32,
    /// When the last run ended, if it ended after a yield (I5).
    yielded: Option<Instant>,
    /// The action to request until the next read of the clock.
    hint: YieldHint,
    on: bool,
    /// The current run, once the clock was read in it.
    run: Option<PollRun>,
    /// The thread's involuntary context switches at the last check.
    preemptions: i64,
    contended: Option<Instant>,
    no_yield_back: Option<Instant>,
}

impl Default for SpinPolicy {
    /// As the settings say.
    fn default() -> Self {
        Self {
            empty_polls: 0,
            polls_per_read: POLLS_PER_CLOCK_READ,
            yielded: None,
            hint: YieldHint::Busy,
            on: settings::give_way(),
            run: None,
            preemptions: 0,
            contended: None,
            no_yield_back: None,
        }
    }
}

impl SpinPolicy {
    /// Records the result of a poll. Returns the action to request.
    #[inline]
    pub fn polled(&mut self, found: bool) -> YieldHint {
        if found {
            if self.run.is_some() {
                self.end(Instant::now(), sys::involuntary_switches);
            }
            self.empty_polls = 0;
            return YieldHint::Busy;
        }
        self.empty_polls += 1;
        if self.empty_polls >= self.polls_per_read {
            self.empty_polls = 0;
            return self.check_clock(Instant::now(), sys::involuntary_switches);
        }
        self.hint
    }

    /// Ends a run. The thread may have been preempted in it while the awaited event arrived.
    #[cold]
    fn end(&mut self, now: Instant, preemptions: impl FnOnce() -> i64) {
        if let Some(run) = self.run.take() {
            self.evaluate(&run, now, preemptions);
            let yields_back = self.no_yield_back.is_none_or(|until| now >= until);
            self.alternates((run.hint == YieldHint::Yield && yields_back).then_some(now));
        }
        self.hint = YieldHint::Busy;
    }

    /// Whether this thread and others yield to each other (I5), and when its last run ended.
    fn alternates(&mut self, yielded: Option<Instant>) {
        self.polls_per_read = if yielded.is_some() { POLLS_BETWEEN_YIELDS } else { POLLS_PER_CLOCK_READ };
        self.yielded = yielded;
    }

    /// Reads the clock, and decides what to request until the next time.
    #[cold]
    fn check_clock(&mut self, now: Instant, preemptions: impl FnOnce() -> i64) -> YieldHint {
        if !self.on {
            return YieldHint::Busy;
        }
        let mut run = self.run.take().unwrap_or_else(|| {
            if self.yielded.is_some_and(|ended| now.duration_since(ended) > DENSE_BETWEEN_YIELDS) {
                self.alternates(None);
            }
            PollRun { since: now, last_check: now, hint: YieldHint::Idle }
        });
        self.evaluate(&run, now, preemptions);
        if run.hint <= YieldHint::Idle && now.duration_since(run.last_check) > DENSE {
            run.since = now;
        }
        let spin = if self.yielded.is_some() { Duration::ZERO } else { SPIN };
        let hint = if now.duration_since(run.since) < spin {
            YieldHint::Busy
        } else if self.contended.is_none_or(|until| now >= until) {
            self.alternates(None);
            YieldHint::Idle
        } else if self.no_yield_back.is_some_and(|until| now < until) {
            YieldHint::Sleep
        } else {
            YieldHint::Yield
        };
        (run.last_check, run.hint) = (now, hint);
        self.run = Some(run);
        self.hint = hint.min(YieldHint::Idle);
        hint
    }

    /// Evaluates the time since the last read of the clock.
    fn evaluate(&mut self, run: &PollRun, now: Instant, preemptions: impl FnOnce() -> i64) {
        if now.duration_since(run.last_check) <= MIN_PREEMPTION {
            return;
        }
        if run.hint > YieldHint::Idle {
            self.no_yield_back = Some(now + NO_YIELD_BACK);
            self.alternates(None);
        } else {
            let before = std::mem::replace(&mut self.preemptions, preemptions());
            if before == self.preemptions {
                return; // the thread did other work
            }
        }
        self.contended = Some(now + CONTENDED);
    }
}

#[cfg(test)]
mod tests;
