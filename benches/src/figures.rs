//! Figures with their units, and their statistics.

use serde::{Deserialize, Serialize};

/// The shares of rounds, in percent, for [`Figures::percentiles_us`]; the last one is the slowest round.
pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// The result of one run of one benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(non_snake_case, reason = "GB_s is the unit: 10^9 bytes a second")]
pub struct Figures {
    /// Bytes of one message.
    pub size: usize,
    /// Time from one side to the other, or the round trip if the row says so, in microseconds.
    pub latency_us: Option<f64>,
    /// Messages completed per second.
    pub msgs_per_s: f64,
    /// Payload in 10^9 bytes per second.
    pub GB_s: f64,
    /// Share of one core that a blocked reader used, if measured.
    pub cpu_share: Option<f64>,
    /// Resident memory of one more peer, in bytes, if measured.
    pub bytes_each: Option<f64>,
    /// The one-way time in microseconds within which each share of [`PERCENTILES`] ended, if each round was timed.
    pub percentiles_us: Option<[f64; PERCENTILES.len()]>,
}

impl Figures {
    /// The figures of a ping-pong that took `one_way_us` from one side to the other.
    pub fn from_latency(size: usize, one_way_us: f64) -> Self {
        Self { latency_us: Some(one_way_us), ..Self::from_rate(size, 1e6 / one_way_us) }
    }

    /// The figures of rounds that took `rounds` nanoseconds there and back, one number each; `None` without rounds. The
    /// latency is the median.
    pub fn from_rounds(size: usize, mut rounds: Vec<u64>) -> Option<Self> {
        rounds.sort_unstable();
        let last = rounds.len().checked_sub(1)?;
        let within = |percent: f64| {
            let place = (rounds.len() as f64 * percent / 100.0).ceil() as usize;
            rounds[place.saturating_sub(1).min(last)] as f64 / 2e3
        };
        let percentiles = PERCENTILES.map(within);
        Some(Self { percentiles_us: Some(percentiles), ..Self::from_latency(size, percentiles[0]) })
    }

    /// The figures of a stream of `msgs_per_s` messages.
    pub fn from_rate(size: usize, msgs_per_s: f64) -> Self {
        Self {
            size,
            latency_us: None,
            msgs_per_s,
            GB_s: msgs_per_s * size as f64 / 1e9,
            cpu_share: None,
            bytes_each: None,
            percentiles_us: None,
        }
    }

    /// The number that a row compares.
    pub fn get(&self, quantity: Quantity) -> Option<f64> {
        match quantity {
            Quantity::LatencyNs => self.latency_us.map(|us| us * 1e3),
            Quantity::RateM => Some(self.msgs_per_s / 1e6),
            Quantity::Bandwidth => Some(self.GB_s),
            Quantity::CpuShare => self.cpu_share,
            Quantity::BytesEach => self.bytes_each,
        }
    }

    /// Nanoseconds per operation; compared with the bounce.
    pub fn ns_per_op(&self) -> f64 {
        self.latency_us.map_or(1e9 / self.msgs_per_s, |us| us * 1e3)
    }

    /// The figures of a run `factor` times as fast.
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            latency_us: self.latency_us.map(|us| us / factor),
            msgs_per_s: self.msgs_per_s * factor,
            GB_s: self.GB_s * factor,
            ..self
        }
    }
}

/// The figure that a row compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Nanoseconds; less is better.
    LatencyNs,
    /// Millions of messages a second; more is better.
    RateM,
    /// 10^9 bytes a second; more is better.
    Bandwidth,
    /// Share of one core while blocked; less is better.
    CpuShare,
    /// Bytes that one peer takes; less is better.
    BytesEach,
}

impl Quantity {
    /// `value` with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::LatencyNs if value >= 10_000.0 => format!("{:.1} us", value / 1e3),
            Self::LatencyNs => format!("{value:.0} ns"),
            Self::RateM => format!("{value:.2} M/s"),
            Self::Bandwidth => format!("{value:.2} GB/s"),
            Self::CpuShare => format!("{:.2} %", value * 100.0),
            Self::BytesEach => format!("{value:.0} B"),
        }
    }
}

/// The median of `values`; `None` if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The smallest and the largest of `values`.
pub fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([]), None);
        assert_eq!(range([3.0, 1.0, 2.0]), Some((1.0, 3.0)));
    }

    #[test]
    fn rounds_are_told_by_the_share_that_was_over() {
        let rounds = (1..=1000).rev().map(|number| number * 2000).collect();
        let figures = Figures::from_rounds(64, rounds).unwrap();
        assert_eq!(figures.percentiles_us, Some([500.0, 900.0, 990.0, 999.0, 1000.0, 1000.0]));
        assert_eq!(figures.latency_us, Some(500.0));
        assert_eq!(Figures::from_rounds(64, vec![7_000]).unwrap().percentiles_us, Some([3.5; 6]));
        assert_eq!(Figures::from_rounds(64, Vec::new()), None);
    }

    #[test]
    fn a_latency_and_a_rate_agree() {
        let figures = Figures::from_latency(64, 0.25);
        assert_eq!(figures.get(Quantity::LatencyNs), Some(250.0));
        assert_eq!(figures.get(Quantity::RateM), Some(4.0));
        assert_eq!(figures.ns_per_op(), Figures::from_rate(64, 4e6).ns_per_op());
        assert_eq!(figures.scaled(2.0).latency_us, Some(0.125));
    }
}
