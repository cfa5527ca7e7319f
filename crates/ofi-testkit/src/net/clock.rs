//! A host's own clock, which starts at an arbitrary time and runs faster or slower than the network's.

use std::time::Duration;

use ofi_rdm::Instant;

use super::Random;

/// Largest drift in parts per million: quartz is within 100.
const DRIFT: u64 = 500;
/// Largest offset.
const AHEAD: u64 = 10_000_000_000;
const MILLION: i128 = 1_000_000;

/// The clock of one host: its offset and its drift.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    ahead: u64,
    drift: i64,
}

impl Clock {
    pub fn new(random: &mut Random) -> Self {
        Self { ahead: random.below(AHEAD), drift: random.below(2 * DRIFT + 1) as i64 - DRIFT as i64 }
    }

    /// The reading at a time of the network.
    pub fn at(self, time: Instant) -> Instant {
        let passed = i128::from(time.as_nanos());
        let shown = passed + passed * i128::from(self.drift) / MILLION;
        Instant::from_nanos(self.ahead + shown as u64)
    }

    /// The network's time when the clock reads `shown` or has just passed it; the network's start if that was earlier.
    pub fn when(self, shown: Instant) -> Instant {
        let shown = i128::from(shown.as_nanos().saturating_sub(self.ahead));
        let mut time = Instant::from_nanos((shown * MILLION / (MILLION + i128::from(self.drift))) as u64);
        while i128::from(self.at(time).as_nanos() - self.ahead) < shown {
            time = time + Duration::from_nanos(1);
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_what_is_waited_for_when_it_is_waited_for() {
        let mut random = Random(5);
        for _ in 0..1000 {
            let clock = Clock::new(&mut random);
            let time = Instant::from_nanos(random.below(1 << 50));
            let shown = clock.at(time);
            let when = clock.when(shown);
            assert!(when <= time && clock.at(when) == shown, "{clock:?} {time:?}");
        }
    }
}
