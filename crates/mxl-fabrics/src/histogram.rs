//! Latencies of transfers: counts by powers of two, and their form in Prometheus's text format.

use std::fmt::Write as _;
use std::time::Duration;

/// Bounds: 1 us, 2 us, 4 us and so on up to 2^20 us (about a second); and beyond.
const BOUNDS: usize = 21;

/// Times, counted by powers of two of a microsecond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// For each bound, the number of times that do not exceed it but exceed the previous one. The last entry
    /// counts times beyond all bounds.
    counts: [u64; BOUNDS + 1],
    sum: Duration,
}

impl Histogram {
    /// Counts a time.
    pub fn record(&mut self, time: Duration) {
        let us = time.as_nanos().div_ceil(1000);
        let at = (0..BOUNDS).find(|at| us <= 1 << at).unwrap_or(BOUNDS);
        self.counts[at] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// The number of counted times.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all times.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// An upper bound for `per_mille` of the times, to a factor of two; `None` without samples, or if it exceeds a
    /// second.
    pub fn bound(&self, per_mille: u32) -> Option<Duration> {
        let wanted = (u128::from(self.count()) * u128::from(per_mille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, count) in self.counts[..BOUNDS].iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return Some(Duration::from_micros(1 << at));
            }
        }
        None
    }

    /// Its samples in Prometheus's text format, without the lines that describe the metric. `labels` has no braces.
    pub(crate) fn samples(&self, name: &str, labels: &str, to: &mut String) {
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            let bound = if at < BOUNDS {
                format!("{}", Duration::from_micros(1 << at).as_secs_f64())
            } else {
                "+Inf".to_owned()
            };
            // Writing to a `String` cannot fail.
            let _ = writeln!(to, "{name}_bucket{{{labels},le=\"{bound}\"}} {seen}");
        }
        let sum = self.sum.as_secs_f64();
        let _ = writeln!(to, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {seen}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_their_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.bound(500), histogram.count()), (None, 0));
        for us in [0, 1, 2, 3, 4, 1_048_576] {
            histogram.record(Duration::from_micros(us));
        }
        histogram.record(Duration::from_nanos(4001));
        histogram.record(Duration::from_secs(3));
        assert_eq!(histogram.counts[..4], [2, 1, 2, 1]);
        assert_eq!(histogram.bound(500), Some(Duration::from_micros(4)));
        assert_eq!(
            (histogram.bound(875), histogram.bound(1000)),
            (Some(Duration::from_micros(1_048_576)), None)
        );
        let mut text = String::new();
        histogram.samples("t", "a=\"b\"", &mut text);
        assert!(
            text.starts_with("t_bucket{a=\"b\",le=\"0.000001\"} 2\nt_bucket{a=\"b\",le=\"0.000002\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("le=\"1.048576\"} 7\n") && text.contains("le=\"+Inf\"} 8\n"), "{text}");
        assert!(text.ends_with("t_count{a=\"b\"} 8\n"), "{text}");
    }
}
