//! Histograms of durations.

use std::fmt;

use serde::Serialize;

use super::parse::is_name;

/// Maximum buckets: the bound of the last but one is 584,000 years.
const MAX_BUCKETS: usize = 65;

/// Durations of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Histogram {
    /// A stable name, which ends with `_seconds`.
    pub name: String,
    /// Labels that distinguish it from others of this name.
    pub labels: Vec<(String, String)>,
    /// Sum of the durations, in microseconds.
    pub sum_us: u64,
    /// Bucket `n` counts durations below `2^n` microseconds that no earlier bucket counts; the last bucket counts all
    /// longer ones.
    pub buckets: Vec<u64>,
    /// The measured operation.
    pub help: String,
}

impl Histogram {
    /// Parses the fields of a line of `ofi_core::export`.
    ///
    /// # Errors
    /// The expected and the actual text.
    pub fn parse(name: &str, labels: &str, sum: &str, counts: &str, help: &str) -> Result<Self, String> {
        if !is_name(name) {
            return Err(format!("wanted a histogram's name, found {name:?}"));
        }
        let number = |text: &str| text.parse().map_err(|_| format!("wanted a number, found {text:?}"));
        let label = |text: &str| match text.split_once('=') {
            Some((name, value)) if is_name(name) => Ok((name.to_string(), value.to_string())),
            _ => Err(format!("wanted NAME=VALUE, found {text:?}")),
        };
        let labels = labels.split(';').filter(|text| !text.is_empty()).map(label);
        let buckets = counts.split(',').map(number).collect::<Result<Vec<u64>, String>>()?;
        if buckets.len() > MAX_BUCKETS {
            return Err(format!("{} buckets, more than {MAX_BUCKETS}", buckets.len()));
        }
        Ok(Self {
            name: name.into(),
            labels: labels.collect::<Result<_, _>>()?,
            sum_us: number(sum)?,
            buckets,
            help: help.into(),
        })
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, &bucket| sum.saturating_add(bucket))
    }

    /// The number of durations below each bound, which is in seconds. The last bound is infinite.
    pub fn below(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let last = self.buckets.len() - 1;
        self.buckets.iter().enumerate().scan(0_u64, move |sum, (nth, &bucket)| {
            *sum = sum.saturating_add(bucket);
            Some(((nth < last).then(|| 2_f64.powi(nth as i32) / 1e6), *sum))
        })
    }

    /// The bound in microseconds of the first `per_cent` percent of the durations; `None` if it is infinite, or without
    /// durations.
    fn at_most(&self, per_cent: u64) -> Option<u64> {
        let wanted = u128::from(self.count()) * u128::from(per_cent);
        let found = self.below().position(|(_, below)| below > 0 && u128::from(below) * 100 >= wanted)?;
        (found + 1 < self.buckets.len()).then(|| 1_u64.checked_shl(found as u32)).flatten()
    }
}

/// For people: name, labels, count, mean, median and 99th percentile, as upper bounds.
impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<String> = self.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mean = self.sum_us as f64 / self.count().max(1) as f64;
        let bound = |per_cent| self.at_most(per_cent).map_or("?".to_string(), |us| us.to_string());
        let (name, count, half, most) = (&self.name, self.count(), bound(50), bound(99));
        write!(
            f,
            "{name:<26} {count:>16}  {}: {mean:.1} us, half <= {half} us, 99 % <= {most} us",
            labels.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_a_mean_and_two_percentiles() {
        let histogram =
            Histogram::parse("x_seconds", "rail=0;bytes=4096", "1000", "0,0,98,0,2,0", "x").unwrap();
        let text = histogram.to_string();
        assert!(text.contains("100  rail=0 bytes=4096: 10.0 us, half <= 4 us, 99 % <= 16 us"), "{text}");
        let none = Histogram::parse("x_seconds", "", "0", "0,0", "x").unwrap();
        assert!(none.to_string().ends_with("0.0 us, half <= ? us, 99 % <= ? us"), "{none}");
        let long = Histogram::parse("x_seconds", "", "9", "0,1", "x").unwrap();
        assert!(long.to_string().contains("half <= ? us"), "{long}");
    }

    #[test]
    fn numbers_that_are_none_labels_without_a_name_and_too_many_buckets_are_refused() {
        let many = vec!["1"; MAX_BUCKETS + 1].join(",");
        for (labels, sum, counts) in [
            ("", "x", "1"),
            ("", "1", ""),
            ("", "1", "1,-1"),
            ("a", "1", "1"),
            ("=b", "1", "1"),
            ("", "1", &many),
        ] {
            assert!(Histogram::parse("x", labels, sum, counts, "").is_err(), "{labels} {sum} {counts}");
        }
        let huge = Histogram::parse("x", "", "1", &format!("{0},{0}", u64::MAX), "").unwrap();
        assert_eq!(huge.count(), u64::MAX);
        assert!(Histogram::parse("x y", "", "1", "1", "").is_err());
    }
}
