//! The round-trip time to a peer, estimated as RFC 9002, section 5, does.

use core::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    latest: Duration,
    smoothed: Option<Duration>,
    variation: Duration,
    least: Duration,
}

/// Assumed before the first sample. A session within a data centre is far below it.
const INITIAL: Duration = Duration::from_millis(20);
/// The least time that timers count with. RFC 9002 has 1 ms, which is what timers of operating systems once did; who waits for
/// a message here polls, and a probe too many costs two packets.
const GRANULARITY: Duration = Duration::from_micros(250);

impl Default for Rtt {
    fn default() -> Self {
        Self { latest: INITIAL, smoothed: None, variation: INITIAL / 2, least: Duration::MAX }
    }
}

impl Rtt {
    /// Takes a sample; the peer says that it waited for `delay` before it answered.
    pub fn sample(&mut self, sample: Duration, delay: Duration) {
        self.latest = sample;
        self.least = self.least.min(sample);
        let Some(smoothed) = self.smoothed else {
            (self.smoothed, self.variation) = (Some(sample), sample / 2);
            return;
        };
        let adjusted = if sample >= self.least.saturating_add(delay) { sample - delay } else { sample };
        self.variation = (self.variation * 3 + smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = Some((smoothed * 7 + adjusted) / 8);
    }

    /// Whether the last sample says that packets wait in a queue on the way: that it is above the least one by an eighth, and
    /// by 100 us, which is what a descheduled thread costs at the least.
    pub fn shows_queue(&self) -> bool {
        let least = self.least.min(self.latest);
        self.latest - least > (least / 8).max(Duration::from_micros(100))
    }

    /// The smoothed time.
    pub fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL)
    }

    /// How long a packet may be overtaken before it counts as lost.
    pub fn loss_delay(&self) -> Duration {
        let rtt = self.smoothed().max(self.latest);
        (rtt + rtt / 8).max(GRANULARITY)
    }

    /// How long to wait for an acknowledgement before probing.
    pub fn probe_timeout(&self) -> Duration {
        self.smoothed() + (self.variation * 4).max(GRANULARITY)
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
