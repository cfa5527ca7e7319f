//! The due times of a flow's writes.

use std::time::{Duration, Instant};

use mxl::Rational;

use crate::{Error, Result};

/// A number of moments, a period apart.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// The period in seconds.
    period: f64,
    pub rounds: u64,
}

impl Schedule {
    /// Moments during `seconds`, one for each `units` grains or samples of a flow.
    ///
    /// # Errors
    /// [`Error::Argument`] for a duration of zero, or one too long for the measurements to fit into memory.
    pub fn new(rate: Rational, units: u64, seconds: f64) -> Result<Self> {
        let period = units as f64 * rate.denominator as f64 / rate.numerator as f64;
        let rounds = (seconds / period).ceil();
        if !(1.0..=1e7).contains(&rounds) {
            let found =
                format!("{seconds} s contain {rounds} grains or batches: 1 to 10 million can be measured");
            return Err(Error::Argument(found));
        }
        Ok(Self { period, rounds: rounds as u64 })
    }

    pub fn period(&self) -> Duration {
        Duration::from_secs_f64(self.period)
    }

    /// The number of rounds in this time.
    pub fn rounds_in(&self, time: Duration) -> u64 {
        (time.as_secs_f64() / self.period).ceil() as u64
    }

    /// The time at which a round is due, plus `part` of a period.
    pub fn due(&self, start: Instant, round: u64, part: f64) -> Instant {
        start + Duration::from_secs_f64((round as f64 + part) * self.period)
    }
}

/// Sleeps until `due`.
pub fn sleep_until(due: Instant) {
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_do_not_drift() {
        let beat = Schedule::new(Rational::new(60_000, 1001), 1, 60.06).unwrap();
        assert_eq!(beat.rounds, 3600);
        let start = Instant::now();
        let last = beat.due(start, 3600, 0.0) - start;
        assert!(last.abs_diff(Duration::from_millis(60_060)) < Duration::from_micros(1), "{last:?}");
        let batch = Schedule::new(Rational::new(48_000, 1), 48, 1.0).unwrap();
        assert_eq!((batch.rounds, batch.period()), (1000, Duration::from_millis(1)));
        assert_eq!(batch.due(start, 2, 0.5) - start, Duration::from_micros(2500));
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Schedule::new(Rational::new(50, 1), 1, seconds).is_err(), "{seconds}");
        }
    }
}
