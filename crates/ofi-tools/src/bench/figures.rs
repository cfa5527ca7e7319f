//! The results of a measurement, and their output.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The times of one measurement's transfers, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Figures {
    prepare: Vec<u64>,
    post: Vec<u64>,
    transfer: Vec<u64>,
}

/// Mean and percentiles, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Times {
    mean: f64,
    p50: f64,
    p99: f64,
}

/// One measurement.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    way: &'static str,
    size: u64,
    batch: u64,
    transfers: usize,
    /// 10^9 bytes per second, summed over all threads, each by the sum of its transfers' times.
    gigabytes_per_second: f64,
    prepare_us: Times,
    post_us: Times,
    transfer_us: Times,
}

impl Figures {
    pub(super) fn add(&mut self, prepare: Duration, post: Duration, transfer: Duration) {
        self.prepare.push(prepare.as_nanos() as u64);
        self.post.push(post.as_nanos() as u64);
        self.transfer.push(transfer.as_nanos() as u64);
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.prepare.extend(other.prepare);
        self.post.extend(other.post);
        self.transfer.extend(other.transfer);
    }

    pub(super) fn row(self, is_write: bool, size: u64, batch: u64, threads: u64) -> Row {
        let transfers = self.transfer.len();
        let busy: u64 = self.transfer.iter().sum::<u64>().max(1) / threads;
        Row {
            way: if is_write { "write" } else { "read" },
            size,
            batch,
            transfers,
            gigabytes_per_second: (size * batch) as f64 * transfers as f64 / busy.max(1) as f64,
            prepare_us: Times::of(self.prepare),
            post_us: Times::of(self.post),
            transfer_us: Times::of(self.transfer),
        }
    }
}

impl Times {
    fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at =
            |per_cent: usize| times.get(times.len().saturating_sub(1) * per_cent / 100).copied().unwrap_or(0);
        let sum: u64 = times.iter().sum();
        let mean = sum as f64 / times.len().max(1) as f64;
        Self { mean: mean / 1e3, p50: at(50) as f64 / 1e3, p99: at(99) as f64 / 1e3 }
    }
}

impl Row {
    pub(super) const HEADING: &'static str = "way        block  batch  transfers      GB/s  prepare us (p99)     post us (p99)  transfer us (p50, p99)\n";

    /// The label of the row's line in the plot.
    pub(super) fn series(&self) -> String {
        format!("{}, {} {}", self.way, self.batch, if self.batch == 1 { "block" } else { "blocks" })
    }

    /// Size of a block in bytes.
    pub(super) fn block(&self) -> u64 {
        self.size
    }

    /// 10^9 bytes per second.
    pub(super) fn bandwidth(&self) -> f64 {
        self.gigabytes_per_second
    }

    /// Median time of a transfer, in microseconds.
    pub(super) fn median(&self) -> f64 {
        self.transfer_us.p50
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            way,
            size,
            batch,
            transfers,
            gigabytes_per_second: rate,
            prepare_us,
            post_us,
            transfer_us,
        } = self;
        writeln!(
            f,
            "{way:5} {size:>10} {batch:>6} {transfers:>10} {rate:>9.3} {:>9.1} {:>7.1} {:>9.1} {:>7.1} {:>10.1} {:>7.1} {:>7.1}",
            prepare_us.mean,
            prepare_us.p99,
            post_us.mean,
            post_us.p99,
            transfer_us.mean,
            transfer_us.p50,
            transfer_us.p99
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentiles_are_those_of_the_times() {
        let mut figures = Figures::default();
        for nth in 1..=100 {
            figures.add(Duration::from_micros(1), Duration::from_micros(2), Duration::from_micros(nth));
        }
        let row = figures.row(true, 1000, 2, 1);
        assert!((row.gigabytes_per_second - 200_000.0 / 5_050_000.0).abs() < 1e-9);
        assert_eq!((row.transfer_us.p50, row.transfer_us.p99, row.transfer_us.mean), (50.0, 99.0, 50.5));
    }
}
