//! Predicts the time of a flow's next commit: flows are written at even intervals, so a thread can be awake in time.
//!
//! A thread that sleeps until a descriptor is ready returns tens of microseconds late: its core has gone to sleep too.
//! A thread that begins to poll a moment before the event does not. A wrong prediction costs one short poll and misses
//! nothing: the thread then sleeps on its descriptors as before.

use std::time::{Duration, Instant};

/// Minimum gap between two commits. Closer events belong to one commit: its parts, and the answers to them.
const APART: Duration = Duration::from_micros(150);
/// Number of compared intervals.
const KEPT: usize = 8;
/// Maximum distance of an interval from the usual one, and maximum lateness of an awaited commit.
const NEAR: Duration = Duration::from_micros(60);
/// Time before the predicted moment at which the thread should be awake, because timers are late too.
const BEFORE: Duration = Duration::from_micros(50);
/// Minimum interval that is predicted: at shorter ones the thread would hardly sleep.
const MIN_INTERVAL: Duration = Duration::from_micros(400);
/// Maximum interval that is predicted: flows of 10 grains a second.
const MAX_INTERVAL: Duration = Duration::from_millis(100);

/// The commits of the last intervals.
#[derive(Debug, Default)]
pub(crate) struct IntervalPredictor {
    /// The first event of the last commit, and the last one.
    last: Option<(Instant, Instant)>,
    /// The last intervals, in a circle, and how many there were.
    intervals: [Duration; KEPT],
    count: usize,
}

impl IntervalPredictor {
    /// Records an event.
    pub fn happened(&mut self, now: Instant) {
        let Some((first, latest)) = &mut self.last else {
            self.last = Some((now, now));
            return;
        };
        if now.saturating_duration_since(*latest) >= APART {
            self.intervals[self.count % KEPT] = now.saturating_duration_since(*first);
            self.count += 1;
            *first = now;
        }
        *latest = now;
    }

    /// The usual interval: most of the last intervals are near it, in any order. `None` if there is none.
    fn interval(&self) -> Option<Duration> {
        if self.count < KEPT {
            return None;
        }
        let mut sorted = self.intervals;
        sorted.sort_unstable();
        let median = sorted[KEPT / 2];
        let near = sorted.iter().filter(|interval| interval.abs_diff(median) <= NEAR).count();
        (near * 4 > KEPT * 3 && (MIN_INTERVAL..=MAX_INTERVAL).contains(&median)).then_some(median)
    }

    /// The time to be awake for the next commit, which may be past. `None` if the commit is unpredictable or overdue.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let due = self.last?.0 + self.interval()?;
        (now < due + NEAR).then(|| due - BEFORE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Commits after these intervals, each with an answer. Returns the last commit's moment too.
    fn after(intervals: impl IntoIterator<Item = u64>) -> (IntervalPredictor, Instant) {
        let (mut rhythm, mut now) = (IntervalPredictor::default(), Instant::now());
        rhythm.happened(now);
        for interval in intervals {
            rhythm.happened(now + US(100));
            now += US(interval);
            rhythm.happened(now);
        }
        (rhythm, now)
    }

    #[test]
    fn even_intervals_are_foreseen() {
        let (rhythm, last) = after([463; 8]);
        let from = last + US(463) - BEFORE;
        assert_eq!(rhythm.next(last), Some(from));
        assert_eq!(rhythm.next(last + US(463)), Some(from));
        assert_eq!(rhythm.next(last + US(463) + NEAR), None, "overdue");
        // Some jitter, and the pause after the last slice of a grain.
        let (rhythm, last) = after([463, 470, 450, 1200, 463, 440, 480, 463]);
        assert_eq!(rhythm.next(last), Some(from_median(last, 463)));
    }

    fn from_median(last: Instant, median: u64) -> Instant {
        last + US(median) - BEFORE
    }

    #[test]
    fn what_has_no_rhythm_is_not_foreseen() {
        for intervals in [
            vec![463; 7],
            vec![463, 700, 463, 1200, 463, 463, 900, 463],
            vec![300; 20],
            vec![200_000; 20],
            (0..40).map(|at| 500 + at * 200).collect(),
        ] {
            let (rhythm, last) = after(intervals.clone());
            assert_eq!(rhythm.next(last), None, "{intervals:?}");
        }
        assert_eq!(IntervalPredictor::default().next(Instant::now()), None);
    }

    #[test]
    fn a_rhythm_that_changes_is_found_again() {
        let (rhythm, last) = after([463; 20].into_iter().chain([1000; 8]));
        assert_eq!(rhythm.next(last), Some(last + US(1000) - BEFORE));
    }
}
