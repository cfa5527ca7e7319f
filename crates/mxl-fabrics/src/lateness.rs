//! Whether data is late, by this host's clock: an index counts periods since 1970 on TAI.

use std::time::Duration;

use mxl::{Geometry, time};

/// Time after which samples are late: a batch of the C++ SDK.
const BATCH: Duration = Duration::from_millis(10);

/// Whether it is late, at this moment, for a grain of an index, or for samples up to an index.
///
/// A grain is written during its period, and has the next one to arrive. Samples have [`BATCH`] from their time on.
pub fn is_late(geometry: &Geometry, index: u64) -> bool {
    is_late_at(geometry, index, time::now())
}

fn is_late_at(geometry: &Geometry, index: u64, now: u64) -> bool {
    let due = match geometry {
        Geometry::Grains { rate, .. } => time::index_to_timestamp(*rate, index.saturating_add(2)),
        Geometry::Samples { rate, .. } => {
            let end = time::index_to_timestamp(*rate, index);
            end.map(|end| end.saturating_add(BATCH.as_nanos() as u64))
        }
    };
    due.is_some_and(|due| now > due)
}

#[cfg(test)]
mod tests {
    use mxl::Rational;

    use super::*;

    #[test]
    fn grains_have_a_period_to_arrive_and_samples_ten_milliseconds() {
        let rate = Rational::new(50, 1);
        let grains = Geometry::Grains { rate, payload: 1, slices: 1, slice_sizes: [1, 0, 0, 0] };
        let samples = Geometry::Samples { rate: Rational::new(48_000, 1), channels: 2, word: 4 };
        for (geometry, index, end) in [(grains, 100, 2_040_000_000), (samples, 96_000, 2_010_000_000)] {
            assert!(!is_late_at(&geometry, index, end), "{geometry:?}");
            assert!(is_late_at(&geometry, index, end + 1), "{geometry:?}");
        }
    }
}
