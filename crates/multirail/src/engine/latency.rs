//! Latencies of a rail's accesses, by length.

use std::time::Duration;

/// Upper ends of the classes of lengths; the last has none.
pub const CLASSES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Bucket `n` counts times below `2^n` microseconds that are not in an earlier bucket; the last counts all longer
/// times.
const BUCKETS: usize = 32;

/// Times from post to completion of the accesses, or the transfers, of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKETS],
    /// Sum in nanoseconds.
    sum: u64,
}

/// Histograms of a rail, or of all transfers: one for each of [`CLASSES`], and one for longer accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies([Histogram; CLASSES.len() + 1]);

/// The class of a length.
#[inline]
pub(super) fn class(len: u64) -> usize {
    CLASSES.iter().map(|&end| usize::from(len > end)).sum()
}

impl Latencies {
    /// Counts `count` successful accesses of `len` bytes, which took `nanos` nanoseconds each.
    pub(super) fn add(&mut self, len: u64, count: u32, nanos: u64) {
        let class = class(len);
        let us = nanos / 1000;
        let bucket = (u64::BITS - us.leading_zeros()) as usize;
        let histogram = &mut self.0[class];
        histogram.buckets[bucket.min(BUCKETS - 1)] += u64::from(count);
        histogram.sum = histogram.sum.saturating_add(nanos.saturating_mul(u64::from(count)));
    }

    /// The classes, with the longest access of each; `None` for the class without an upper end.
    pub fn classes(&self) -> impl Iterator<Item = (Option<u64>, &Histogram)> {
        CLASSES.into_iter().map(Some).chain([None]).zip(&self.0)
    }
}

impl Histogram {
    /// Counts of times below 1 microsecond, from 1 to below 2, from 2 to below 4, and so on; the last is of all longer
    /// times.
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// The sum of all times.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// The number of counted times.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// An upper bound, a power of two of microseconds, for the times of `per_cent` (0 to 100) of the accesses. `None`
    /// without accesses.
    pub fn at_most(&self, per_cent: u64) -> Option<Duration> {
        let count = self.count();
        let wanted = (count * per_cent.min(100)).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|&bucket| {
            seen += bucket;
            seen >= wanted
        })?;
        Some(Duration::from_micros(1 << bucket))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with sorted times: the bound is not below the percentile, and less than twice the percentile (or a
        /// microsecond).
        #[test]
        fn percentiles_are_bounds_of_the_sorted_times(
            mut times in proptest::collection::vec(0_u64..1 << 30, 1..200),
            per_cent in 0_u64..=100,
        ) {
            let mut latencies = Latencies::default();
            times.iter().for_each(|&us| latencies.add(100, 1, us * 1000));
            times.sort_unstable();
            let nth = (times.len() as u64 * per_cent).div_ceil(100).max(1) - 1;
            let exact = times[nth as usize];
            let (_, first) = latencies.classes().next().unwrap();
            let bound = first.at_most(per_cent).unwrap().as_micros() as u64;
            prop_assert!(bound > exact && bound <= (2 * exact).max(1), "{bound} for {exact}");
            prop_assert_eq!(first.count(), times.len() as u64);
            prop_assert_eq!(first.sum(), Duration::from_micros(times.iter().sum()));
        }
    }

    #[test]
    fn lengths_go_to_their_class_and_absurd_times_to_the_last_bucket() {
        let mut latencies = Latencies::default();
        for len in [1, 4 << 10, (4 << 10) + 1, 1 << 20, u64::MAX] {
            latencies.add(len, 1, u64::MAX);
        }
        let counts: Vec<_> = latencies.classes().map(|(end, times)| (end, times.count())).collect();
        assert_eq!(counts, [(Some(4096), 2), (Some(65_536), 1), (Some(1 << 20), 1), (None, 1)]);
        assert_eq!(Histogram::default().at_most(50), None);
    }
}
