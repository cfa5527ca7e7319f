//! Waiting for one flow or for the first of many, and time limits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::flow::Flow;
use super::futex;
use super::time::{self, Rational};
use crate::protocol::Miss;

/// The time limit of a read. Every wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    Not,
    /// Sleep until the writer wakes the reader, at most for this long.
    For(Duration),
    /// Sleep until the writer wakes the reader, at most until this time.
    Until(Instant),
    /// Busy-poll, at most for this long: the lowest latency, at the cost of a core.
    Busy(Duration),
}

/// Maximum time of one sleep. After it, the reader checks that the flow still exists.
pub const SLICE: Duration = Duration::from_millis(100);
/// Length of a sleep if the kernel cannot wait for several words.
pub const FALLBACK: Duration = Duration::from_micros(500);

/// The reason why a wait ended without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The data is missing, for the protocol's reason.
    Missed(Miss),
    /// The flow was deleted or replaced.
    Invalid,
}

/// Tries until the data is no longer too early, or the time is over.
///
/// Before each sleep, and occasionally in a busy wait, it calls `idle` for work that must not delay a wake-up. `idle`
/// returns the longest permitted sleep.
#[inline]
pub fn until<T>(
    flow: &Flow,
    wait: Wait,
    mut attempt: impl FnMut() -> Result<T, Miss>,
    idle: impl FnMut() -> Duration,
) -> Result<T, Ended> {
    match attempt() {
        Ok(there) => Ok(there),
        Err(Miss::Early) => later(flow, wait, attempt, idle),
        Err(miss) => Err(Ended::Missed(miss)),
    }
}

#[cold]
fn later<T>(
    flow: &Flow,
    wait: Wait,
    mut attempt: impl FnMut() -> Result<T, Miss>,
    mut idle: impl FnMut() -> Duration,
) -> Result<T, Ended> {
    let begin = Instant::now();
    let (end, busy) = match wait {
        Wait::Not => {
            return Err(if flow.seems_current() { Ended::Missed(Miss::Early) } else { Ended::Invalid });
        }
        Wait::For(time) => (begin + time.min(YEAR), false),
        Wait::Until(end) => (end, false),
        Wait::Busy(time) => (begin + time.min(YEAR), true),
    };
    let counter = flow.words().counter;
    let (mut turns, mut woken) = (0_u32, false);
    loop {
        // Read before the attempt, so that a commit after it changes the counter and prevents the sleep.
        let seen = counter.load(Ordering::Acquire);
        match attempt() {
            Ok(there) => return Ok(there),
            Err(Miss::Early) => {}
            Err(miss) => return Err(Ended::Missed(miss)),
        }
        if busy {
            std::hint::spin_loop();
            turns = turns.wrapping_add(1);
            if !turns.is_multiple_of(64) {
                continue;
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(if flow.is_current() { Ended::Missed(Miss::Early) } else { Ended::Invalid });
        }
        if busy {
            if !flow.seems_current() {
                return Err(Ended::Invalid);
            }
            idle();
            continue;
        }
        // After a wake-up the attempt comes first: a check of the file system takes microseconds, and is not needed if
        // the attempt finds data.
        if woken && !flow.seems_current() {
            return Err(Ended::Invalid);
        }
        let limit = idle().min(SLICE);
        futex::wait(counter, seen, left.min(limit));
        woken = counter.load(Ordering::Acquire) != seen;
        if !woken && !flow.seems_current() {
            return Err(Ended::Invalid);
        }
    }
}

/// Schedules checks for samples whose commits wake no reader, because they complete no batch of their writer's hint
/// ([`BatchHints`](crate::BatchHints)). The first check comes when they are due by the flow's rate; each later one
/// waits as long again as they are late.
#[derive(Clone, Copy, Debug)]
pub struct Looks {
    head: u64,
    /// When the head was first seen at its current value.
    since: Instant,
}

impl Looks {
    pub fn new() -> Self {
        Self { head: 0, since: Instant::now() }
    }

    /// The time to sleep at `now` for samples up to `index`, given the flow's head.
    pub fn next(&mut self, head: u64, index: u64, rate: Rational, now: Instant) -> Duration {
        if head != self.head {
            *self = Self { head, since: now };
        }
        let missing = index.saturating_sub(head).min(1 << 32);
        let due = time::index_to_timestamp(rate, missing).map_or(SLICE, Duration::from_nanos);
        let waited = now.saturating_duration_since(self.since);
        let sleep = match due.checked_sub(waited) {
            Some(left) => left + FALLBACK,
            None => FALLBACK.max(waited - due),
        };
        sleep.min(SLICE)
    }
}

/// Longer than any wait, but short enough to be added to an `Instant`.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The state of a flow at some moment: [`wait_any`] sleeps until one of several flows has changed since then.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    word: &'a AtomicU32,
    seen: u32,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(flow: &'a Flow) -> Self {
        let word = flow.words().counter;
        Self { word, seen: word.load(Ordering::Acquire) }
    }

    /// The state of a counter.
    #[cfg(all(test, feature = "stream"))]
    pub(crate) fn of(word: &'a AtomicU32) -> Self {
        Self { word, seen: word.load(Ordering::Acquire) }
    }

    /// The counter that changes with the flow.
    #[cfg(feature = "stream")]
    pub(crate) fn word(&self) -> &'a AtomicU32 {
        self.word
    }

    /// The counter's value at that moment.
    #[cfg(feature = "stream")]
    pub(crate) fn seen(&self) -> u32 {
        self.seen
    }

    /// Whether the flow was written or deleted since then.
    pub fn changed(&self) -> bool {
        self.word.load(Ordering::Acquire) != self.seen
    }
}

/// Sleeps until one of the flows has changed since its watch was taken. [`Watch::changed`] tells which.
///
/// First take the watches, then read everything available, then wait: that way no write is missed. One system call
/// waits for up to 128 flows. For more flows, and on kernels before 5.16, the function polls twice per millisecond.
///
/// Returns whether a flow has changed; `false` at the end of the wait.
pub fn wait_any(flows: &[Watch<'_>], wait: Wait) -> bool {
    let begin = Instant::now();
    let (end, busy) = match wait {
        Wait::Not => (begin, false),
        Wait::For(time) => (begin + time.min(YEAR), false),
        Wait::Until(end) => (end, false),
        Wait::Busy(time) => (begin + time.min(YEAR), true),
    };
    let words: Vec<(&AtomicU32, u32)> = flows.iter().map(|watch| (watch.word, watch.seen)).collect();
    loop {
        if flows.iter().any(Watch::changed) {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        if busy {
            std::hint::spin_loop();
        } else if !futex::wait_many(&words, left) {
            std::thread::sleep(left.min(FALLBACK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_looked_for_when_they_are_due_and_ever_less_often_afterwards() {
        let (rate, begin) = (Rational::new(48_000, 1), Instant::now());
        let ms = Duration::from_millis;
        let mut looks = Looks::new();
        assert_eq!(looks.next(1000, 1480, rate, begin), ms(10) + FALLBACK);
        // An event of another flow, halfway.
        assert_eq!(looks.next(1000, 1480, rate, begin + ms(4)), ms(6) + FALLBACK);
        assert_eq!(looks.next(1000, 1480, rate, begin + ms(10)), FALLBACK);
        assert_eq!(looks.next(1000, 1480, rate, begin + ms(13)), ms(3));
        assert_eq!(looks.next(1000, 1480, rate, begin + ms(50)), ms(40));
        assert_eq!(looks.next(1000, 1480, rate, begin + ms(5000)), SLICE);
        // The due time moves with the head.
        assert_eq!(looks.next(1240, 1480, rate, begin + ms(5000)), ms(5) + FALLBACK);
        assert_eq!(looks.next(1240, u64::MAX, rate, begin + ms(5000)), SLICE);
        assert_eq!(looks.next(1240, 1480, Rational::new(0, 1), begin), SLICE);
    }
}
