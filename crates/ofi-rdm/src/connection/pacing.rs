//! Decides when the next packet may leave. On long round trips, pacing spreads a window of packets over one round trip,
//! so that no queue on the path has to hold all of it at once.

use core::time::Duration;

use super::Session;
use crate::time::Instant;

/// Shorter round-trip times are not paced: the only queues are those of one switch and two hosts, and waiting would
/// cost more than it saves.
const SHORT: Duration = Duration::from_millis(1);
/// The burst that may leave at once: this many packets, plus the packets of this time at the pace, because timers are
/// inexact.
const BURST: (u64, Duration) = (10, Duration::from_micros(250));

/// The pacer of one session: each packet delays the next by the time that it takes at the pace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    /// The time at which everything sent so far would have left at the pace.
    paid: Instant,
    /// Nothing leaves before this time.
    until: Option<Instant>,
}

/// The sending rate of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds per 1,024 bytes, and the nanoseconds by which the sender may run ahead.
    per_kilobyte: u64,
    burst: u64,
}

impl Pace {
    fn new(bytes: u64, time: Duration, packet: u64) -> Self {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(10_000_000_000);
        let per_kilobyte = (time * 1024 / bytes.max(1)).max(1);
        let (packets, least) = BURST;
        let burst = (packets * packet * per_kilobyte / 1024).max(least.as_nanos() as u64);
        Self { per_kilobyte, burst }
    }

    fn time(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.per_kilobyte) / 1024
    }
}

impl Session {
    /// The pace of its packets. `None`: no pacing.
    pub(super) fn pace(&self) -> Option<Pace> {
        if self.rtt.least()? < SHORT {
            return None;
        }
        let bytes = self.controller.pace()?;
        Some(Pace::new(bytes, self.rtt.smoothed(), self.size.packet()))
    }
}

impl Pacer {
    /// The number of bytes that may leave now. If it is 0, also sets the time when some may.
    pub fn allows(&mut self, now: Instant, pace: Option<Pace>) -> u64 {
        let Some(pace) = pace else {
            self.until = None;
            return u64::MAX;
        };
        if self.until.is_some_and(|until| now < until) {
            return 0;
        }
        let debt = self.paid.since(now).as_nanos() as u64;
        if debt < pace.burst {
            self.until = None;
            return ((pace.burst - debt).saturating_mul(1024) / pace.per_kilobyte).max(1);
        }
        // Wait until half of a burst may leave at once again.
        self.until = Some(now + Duration::from_nanos(debt - pace.burst / 2));
        0
    }

    /// `bytes` leave.
    pub fn sent(&mut self, now: Instant, bytes: u64, pace: Option<Pace>) {
        if let Some(pace) = pace {
            self.paid = self.paid.max(now) + Duration::from_nanos(pace.time(bytes));
        }
    }

    /// The time at which packets may leave again, if none may now.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Time has passed.
    pub fn on_time(&mut self, now: Instant) {
        self.until = self.until.filter(|&until| now < until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 KB in each 10 ms, packets of 1,000 bytes.
    #[test]
    fn a_burst_leaves_at_once_and_then_as_much_as_the_pace_allows() {
        let pace = Some(Pace::new(100_000, Duration::from_millis(10), 1000));
        let (mut pacer, mut now, mut sent) = (Pacer::default(), Instant::from_nanos(1_000_000), 0u64);
        let end = now + Duration::from_millis(20);
        let mut first = None;
        while now < end {
            let mut here = 0;
            while pacer.allows(now, pace) > 0 {
                pacer.sent(now, 1000, pace);
                here += 1;
            }
            first.get_or_insert(here);
            assert!((5..=11).contains(&here), "{here} packets");
            sent += here;
            let until = pacer.until().expect("it waits for something");
            assert!(until > now);
            pacer.on_time(now);
            assert!(pacer.until().is_some());
            now = until;
            pacer.on_time(now);
            assert_eq!(pacer.until(), None);
        }
        assert!((10..=11).contains(&first.unwrap()), "{first:?}");
        assert!((200..=222).contains(&sent), "{sent} packets in 20 ms");
        assert_eq!(pacer.allows(now, None), u64::MAX, "nothing is owed where nothing is paced");
    }
}
