//! The round-trip time to a peer, estimated as RFC 9002, section 5, does.

use core::time::Duration;

/// The estimate of the round-trip time to one peer.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    latest: Nanos,
    /// The largest value before the first sample.
    smoothed: Nanos,
    variation: Nanos,
    least: Nanos,
}

/// Nanoseconds, in half the size of a `Duration`, because every peer has four of them. The largest value stands for
/// anything longer, and for no value.
type Nanos = u64;

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Assumed before the first sample. Sessions within a data centre are far below it.
const INITIAL: Duration = Duration::from_millis(20);
/// The maximum round-trip sample, in nanoseconds: a day. Longer samples are clamped to it.
const MAX_SAMPLE: Nanos = 86_400 * 1_000_000_000;
/// The timer granularity. RFC 9002 has 1 ms, once typical of operating systems' timers. Here a waiting program polls,
/// and an unnecessary probe costs only two packets.
const GRANULARITY: Duration = Duration::from_micros(250);

impl Default for Rtt {
    fn default() -> Self {
        let latest = nanos(INITIAL);
        Self { latest, smoothed: Nanos::MAX, variation: latest / 2, least: Nanos::MAX }
    }
}

impl Rtt {
    /// Adds a sample. `delay` is the time by which the peer says it delayed its answer.
    pub fn sample(&mut self, sample: Duration, delay: Duration) {
        // No sample equals the two special values, and sums of eight do not overflow.
        let (sample, delay) = (nanos(sample).min(MAX_SAMPLE), nanos(delay));
        self.latest = sample;
        self.least = self.least.min(sample);
        if self.smoothed == Nanos::MAX {
            (self.smoothed, self.variation) = (sample, sample / 2);
            return;
        }
        let adjusted = if sample >= self.least.saturating_add(delay) { sample - delay } else { sample };
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (self.smoothed * 7 + adjusted) / 8;
    }

    /// Whether the last sample indicates a queue on the path: it exceeds the minimum by an eighth and by 100 µs, the
    /// least that a descheduled thread costs.
    pub fn shows_queue(&self) -> bool {
        let least = self.least.min(self.latest);
        self.latest - least > (least / 8).max(nanos(Duration::from_micros(100)))
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Duration {
        if self.smoothed == Nanos::MAX { INITIAL } else { Duration::from_nanos(self.smoothed) }
    }

    /// The shortest sample, if there is one.
    pub fn least(&self) -> Option<Duration> {
        (self.least != Nanos::MAX).then(|| Duration::from_nanos(self.least))
    }

    /// The time after which an overtaken packet counts as lost.
    pub fn loss_delay(&self) -> Duration {
        let rtt = self.smoothed().max(Duration::from_nanos(self.latest));
        (rtt + rtt / 8).max(GRANULARITY)
    }

    /// The wait for an acknowledgement before a probe.
    pub fn probe_timeout(&self) -> Duration {
        self.smoothed() + Duration::from_nanos(self.variation * 4).max(GRANULARITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_samples_settle_and_an_answer_s_delay_is_taken_off() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.smoothed(), INITIAL);
        let (time, delay) = (Duration::from_millis(4), Duration::from_millis(2));
        rtt.sample(time, Duration::ZERO);
        assert_eq!(rtt.probe_timeout(), time * 3);
        for _ in 0..100 {
            rtt.sample(time + delay, delay);
        }
        assert!(rtt.smoothed().abs_diff(time) < Duration::from_micros(10), "{:?}", rtt.smoothed());
        assert!(rtt.probe_timeout() < time + GRANULARITY * 2);
        assert!(rtt.shows_queue(), "2 ms more than the least");
        rtt.sample(time + Duration::from_micros(90), Duration::ZERO);
        assert!(!rtt.shows_queue());
    }
}
