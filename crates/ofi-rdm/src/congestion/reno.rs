//! NewReno as in RFC 9002, section 7, with the initial window of RFC 6928. Its share of a link is similar to TCP's.
//!
//! There is one difference. A loss while the round-trip time is at its minimum may be a transmission error rather than
//! congestion, so it reduces the window by three eighths, not by half. Queues may also be so short that round-trip
//! times do not show them. A sender that reduces its window by a fraction `b` then gets more than one that halves it:
//! by the square root of `(2 - b) / 3b` (here 1.2) if losses come one by one, and by more if flows lose packets
//! together. An eighth leaves TCP nothing (`ofi-testkit/tests/protocol/fairness.rs`); a half costs lossy lines more
//! than necessary.

use super::Controller;
use crate::time::Instant;

/// The state of NewReno for one session.
#[derive(Debug)]
pub struct Reno {
    window: u64,
    threshold: u64,
    packet: u64,
    paced: bool,
    /// Losses of packets sent before this belong to a congestion event that has been handled.
    recovery: Option<Instant>,
    /// Above the threshold: bytes acknowledged since the window last grew.
    counted: u64,
}

/// Initial window in packets: ten of 1,500 bytes (RFC 6928), or at least 64 KiB if packets are large.
const INITIAL_PACKETS: u64 = 10;
/// The minimum window, in packets.
const LEAST_PACKETS: u64 = 2;

impl Reno {
    /// Creates a controller for packets of `packet` bytes, with or without pacing.
    pub fn new(packet: u64, paced: bool) -> Self {
        let (window, threshold) = (INITIAL_PACKETS * packet, u64::MAX);
        Self { window, threshold, packet, paced, recovery: None, counted: 0 }
    }

    /// Reacts to a sign of congestion: the window becomes `kept`, once for all packets sent before now.
    fn answer(&mut self, now: Instant, sent: Instant, kept: u64) {
        if self.recovery.is_some_and(|start| sent <= start) {
            return; // the same event
        }
        self.recovery = Some(now);
        self.window = kept.max(LEAST_PACKETS * self.packet);
        self.threshold = self.window;
        self.counted = 0;
    }
}

impl Controller for Reno {
    fn window(&self) -> u64 {
        self.window
    }

    /// Slightly more than the window, so that the window remains the limit (RFC 9002, section 7.7); twice the window in
    /// slow start.
    fn pace(&self) -> Option<u64> {
        let grown = if self.window < self.threshold { self.window } else { self.window / 4 };
        self.paced.then_some(self.window.saturating_add(grown))
    }

    fn on_acked(&mut self, _now: Instant, sent: Instant, bytes: u64, limited: bool) {
        if self.recovery.is_some_and(|start| sent <= start) || !limited {
            return;
        }
        if self.window < self.threshold {
            self.window += bytes;
            return;
        }
        self.counted += bytes;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window += self.packet;
        }
    }

    fn on_lost(&mut self, now: Instant, sent: Instant, _bytes: u64, queue: bool) {
        self.answer(now, sent, if queue { self.window / 2 } else { self.window / 8 * 5 });
    }

    /// Queues that mark are kept short, so they drain after a reduction by less than half. CUBIC reduces by three
    /// tenths (RFC 9438, section 4.6). With the fifth of RFC 8511, a TCP that halves its window would get only a
    /// quarter of the share over queues of a few packets.
    fn on_marked(&mut self, now: Instant, sent: Instant) {
        self.answer(now, sent, self.window / 10 * 7);
    }

    /// Follows RFC 9002, section 7.6: slow start leads back to half of the previous window. Losses that are found
    /// later, but belong to this silence, do not count again.
    fn on_silence(&mut self, now: Instant) {
        let least = LEAST_PACKETS * self.packet;
        self.threshold = (self.window / 2).max(least);
        (self.window, self.counted) = (least, 0);
        self.recovery = Some(now);
    }

    fn on_heard(&mut self, now: Instant) {
        self.recovery = Some(now);
    }

    fn set_packet_size(&mut self, bytes: u64) {
        self.window =
            self.window.max(if bytes > self.packet { INITIAL_PACKETS } else { LEAST_PACKETS } * bytes);
        self.packet = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn it_doubles_until_a_loss_halves_it_once_and_then_grows_by_a_packet() {
        let mut reno = Reno::new(1000, true);
        assert_eq!((reno.window(), reno.pace()), (10_000, Some(20_000)));
        reno.on_acked(at(2), at(1), 10_000, true);
        assert_eq!(reno.window(), 20_000);
        reno.on_lost(at(3), at(2), 1000, true);
        reno.on_lost(at(3), at(2), 1000, true);
        assert_eq!(reno.window(), 10_000, "two packets of one burst are one event");
        assert_eq!((reno.pace(), Reno::new(1000, false).pace()), (Some(12_500), None));
        reno.on_acked(at(4), at(3), 5000, true);
        assert_eq!(reno.window(), 10_000, "left before the loss was known");
        reno.on_acked(at(5), at(4), 10_000, true);
        assert_eq!(reno.window(), 11_000);
        reno.on_acked(at(5), at(4), 90_000, false);
        assert_eq!(reno.window(), 11_000, "the window was not the limit");
        reno.on_lost(at(7), at(6), 1000, false);
        assert_eq!(reno.window(), 6875, "less than half, as no queue shows");
        reno.on_marked(at(7), at(7));
        assert_eq!(reno.window(), 6875, "left before the loss was known");
        reno.on_marked(at(8), at(8));
        reno.on_marked(at(8), at(8));
        assert_eq!(reno.window(), 4809, "three tenths less, once");
        reno.on_silence(at(8));
        assert_eq!(reno.window(), 2000);
        reno.on_lost(at(9), at(7), 1000, true);
        assert_eq!(reno.window(), 2000, "a loss of the silence");
        reno.on_heard(at(10));
        reno.on_lost(at(10), at(9), 1000, true);
        reno.on_acked(at(13), at(11), 2000, true);
        reno.on_acked(at(15), at(13), 2000, true);
        assert_eq!(reno.window(), 4000, "what was possible before is reached quickly");
    }
}
