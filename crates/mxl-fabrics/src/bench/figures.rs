//! Repeated measurements of one time, in nanoseconds.

use serde_json::{Value, json};

/// Times in ascending order.
#[derive(Clone, Debug)]
pub struct Figures(Vec<u64>);

impl Figures {
    pub fn new(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that `per_mille` of all do not exceed; 0 without times.
    pub fn at(&self, per_mille: usize) -> u64 {
        let rank = (self.0.len() * per_mille).div_ceil(1000).max(1);
        self.0.get(rank - 1).copied().unwrap_or(0)
    }

    pub fn to_json(&self) -> Value {
        let [p50, p99, p999, max] = self.shown();
        json!({ "count": self.len(), "p50": p50, "p99": p99, "p99_9": p999, "max": max })
    }

    /// p50, p99, p99.9, the longest.
    pub fn shown(&self) -> [u64; 4] {
        [500, 990, 999, 1000].map(|per_mille| self.at(per_mille))
    }

    /// The number of operations per second, one after the other.
    pub fn rate(&self) -> f64 {
        let sum: u64 = self.0.iter().sum();
        if sum == 0 { 0.0 } else { self.0.len() as f64 * 1e9 / sum as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn percentiles_are_times_that_were_seen() {
        let figures = Figures::new((1..=2000).rev().collect());
        assert_eq!(figures.shown(), [1000, 1980, 1998, 2000]);
        assert_eq!(Figures::new(vec![7]).shown(), [7; 4]);
        assert_eq!((Figures::new(Vec::new()).shown(), Figures::new(Vec::new()).rate()), ([0; 4], 0.0));
        assert_eq!(Figures::new(vec![500_000; 4]).rate(), 2000.0);
    }
}
