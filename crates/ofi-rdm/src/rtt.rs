//! The round-trip time to a peer, estimated as RFC 9002, section 5, does.

use core::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    latest: Nanos,
    /// None before the first sample.
    smoothed: Nanos,
    variation: Nanos,
    least: Nanos,
}

/// Nanoseconds, in half the room of a `Duration`: every peer has four of them. The longest stands for more, and for
/// none.
type Nanos = u64;

fn nanos(time: Duration) -> Nanos {
    Nanos::try_from(time.as_nanos()).unwrap_or(Nanos::MAX)
}

/// Assumed before the first sample. A session within a data centre is far below it.
const INITIAL: Duration = Duration::from_millis(20);
/// Longest sample that is believed: a day.
const LONGEST: Nanos = 86_400 * 1_000_000_000;
/// The least time that timers count with. RFC 9002 has 1 ms, which is what timers of operating systems once did; who
/// waits for a message here polls, and a probe too many costs two packets.
const GRANULARITY: Duration = Duration::from_micros(250);

impl Default for Rtt {
    fn default() -> Self {
        let latest = nanos(INITIAL);
        Self { latest, smoothed: Nanos::MAX, variation: latest / 2, least: Nanos::MAX }
    }
}

impl Rtt {
    /// Takes a sample; the peer says that it waited for `delay` before it answered.
    pub fn sample(&mut self, sample: Duration, delay: Duration) {
        // No sample is as long as the two that stand for something else, and sums of eight do not overflow.
        let (sample, delay) = (nanos(sample).min(LONGEST), nanos(delay));
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

    /// Whether the last sample says that packets wait in a queue on the way: that it is above the least one by an
    /// eighth, and by 100 us, which is what a descheduled thread costs at the least.
    pub fn shows_queue(&self) -> bool {
        let least = self.least.min(self.latest);
        self.latest - least > (least / 8).max(nanos(Duration::from_micros(100)))
    }

    /// The smoothed time.
    pub fn smoothed(&self) -> Duration {
        if self.smoothed == Nanos::MAX { INITIAL } else { Duration::from_nanos(self.smoothed) }
    }

    /// The shortest sample, if there was one.
    pub fn least(&self) -> Option<Duration> {
        (self.least != Nanos::MAX).then(|| Duration::from_nanos(self.least))
    }

    /// How long a packet may be overtaken before it counts as lost.
    pub fn loss_delay(&self) -> Duration {
        let rtt = self.smoothed().max(Duration::from_nanos(self.latest));
        (rtt + rtt / 8).max(GRANULARITY)
    }

    /// How long to wait for an acknowledgement before probing.
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
