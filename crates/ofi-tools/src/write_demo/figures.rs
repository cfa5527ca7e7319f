//! The writer's measurements.

use std::time::Instant;

use serde_json::{Value, json};

use super::job::Served;
use crate::failure::Result;
use crate::output;

/// The figures of all requests together.
#[derive(Debug, Default)]
pub struct Figures {
    writes: u64,
    bytes: u64,
    times: Vec<u32>,
    span: Option<(Instant, Instant)>,
}

impl Figures {
    /// Adds a request.
    pub fn add(&mut self, served: Served) {
        let Served { writes, bytes, times, span } = served;
        self.merge(Self { writes, bytes, times, span });
    }

    /// Adds the figures of another thread.
    pub fn merge(&mut self, other: Self) {
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.times.extend(other.times);
        self.span = match (self.span, other.span) {
            (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
            (one, two) => one.or(two),
        };
    }

    /// Completed writes.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    fn seconds(&self) -> f64 {
        self.span.map_or(0.0, |(from, to)| (to - from).as_secs_f64())
    }

    /// 10^9 bits per second, from the first post to the last completion.
    fn gigabits(&self) -> f64 {
        if self.seconds() > 0.0 { self.bytes as f64 * 8.0 / self.seconds() / 1e9 } else { 0.0 }
    }

    /// As JSON.
    pub fn json(&mut self) -> Value {
        let [p50, p99] = self.percentiles();
        json!({
            "writes": self.writes, "bytes": self.bytes, "seconds": self.seconds(),
            "gigabits_per_second": self.gigabits(), "write_us": { "p50": p50, "p99": p99 },
        })
    }

    /// Prints the figures.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn print(&mut self, json: bool) -> Result<()> {
        if json {
            return output::print(&format!("{}\n", self.json()));
        }
        let [p50, p99] = self.percentiles();
        let (writes, bytes, seconds, rate) = (self.writes, self.bytes, self.seconds(), self.gigabits());
        output::print(&format!(
            "{writes} writes, {bytes} bytes in {seconds:.3} s: {rate:.3} Gb/s; a write takes {p50:.1} us (p50), {p99:.1} us (p99)\n"
        ))
    }

    fn percentiles(&mut self) -> [f64; 2] {
        self.times.sort_unstable();
        [50, 99].map(|cent| percentile(&self.times, cent))
    }
}

/// A percentile of ascending times in nanoseconds, in microseconds; 0 for an empty list.
pub fn percentile(times: &[u32], cent: usize) -> f64 {
    let at = times.len().saturating_sub(1) * cent / 100;
    times.get(at).map_or(0.0, |&nanos| f64::from(nanos) / 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_at_the_same_time_are_one_span() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut figures = Figures::default();
        for (from, to) in [(0, 2), (1, 4)] {
            let span = Some((at(from), at(to)));
            figures.add(Served { writes: 10, bytes: 1_000_000_000, times: vec![1000; 10], span });
        }
        let json = figures.json();
        assert_eq!(json["gigabits_per_second"], 4.0);
        assert_eq!((json["writes"].as_u64(), json["write_us"]["p99"].as_f64()), (Some(20), Some(1.0)));
        assert_eq!(percentile(&[], 50), 0.0);
    }
}
