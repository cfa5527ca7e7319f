//! Finds the longest packet that the path carries, with padded probes (a simplified RFC 8899). The search is repeated
//! now and then, because a path's limit may grow.

use core::time::Duration;

use crate::time::Instant;

/// The size that every path carries: an IPv6 packet of 1,280 bytes, less its headers.
pub const BASE_PACKET: u64 = 1232;
/// The maximum length of a packet, in bytes: below the 65,507 bytes of an IPv4 datagram's payload (RFC 768, RFC 791).
pub const MAX_PACKET_LEN: u64 = 65_000;
/// Sizes to try, besides the longest that both ends accept: two below a loopback's limit; links of 9,000 bytes, and of
/// 8,896 (Google Cloud); InfiniBand datagrams of 4,092 and 2,044; Ethernet, and tunnels over it that leave 1,460 (the
/// default of Google Cloud) or 1,420. Each less 48 for the headers of IPv6 and UDP.
const CANDIDATES: [u32; 9] = [32_716, 16_332, 8952, 8848, 4044, 1996, 1452, 1412, 1372];
/// Probes of a size before it counts as too long.
const TRIES: u8 = 2;
/// The time after which a longer size is tried again (RFC 8899, section 5.1.1: PMTU_RAISE_TIMER).
const RAISE_AFTER: Duration = Duration::from_secs(600);

/// The search for the longest packet that one peer's path carries.
#[derive(Debug)]
pub struct PacketSize {
    longest: u32,
    packet: u32,
    /// The size being probed, 0 if none, and the number of its probes.
    probing: u32,
    tries: u8,
    /// A probe is in flight.
    waiting: bool,
    /// When to try a longer size. Zero until the search has ended.
    raise_at: Instant,
}

impl PacketSize {
    pub fn new(longest: u64) -> Self {
        let longest = longest.min(MAX_PACKET_LEN) as u32;
        let packet = longest.min(BASE_PACKET as u32);
        let probing = if longest > packet { longest } else { 0 };
        Self { longest, packet, probing, tries: 0, waiting: false, raise_at: Instant::default() }
    }

    /// The longest packet to send.
    pub fn packet(&self) -> u64 {
        self.packet.into()
    }

    /// The size of the probe to send now.
    pub fn probe(&self) -> Option<u64> {
        (self.probing > 0 && !self.waiting).then_some(self.probing.into())
    }

    /// Bytes of the probe in flight.
    pub fn under_way(&self) -> u64 {
        if self.waiting { self.probing.into() } else { 0 }
    }

    /// Starts a search for a longer size, if the last search was long ago. Called before data is sent.
    pub fn raise(&mut self, now: Instant) {
        if self.probing > 0 || self.packet == self.longest {
            return;
        }
        if self.raise_at == Instant::default() {
            self.raise_at = now + RAISE_AFTER;
        } else if self.raise_at <= now {
            self.begin();
        }
    }

    fn begin(&mut self) {
        (self.probing, self.tries, self.raise_at) = (self.longest, 0, Instant::default());
    }

    /// A probe was sent.
    pub fn on_probe_sent(&mut self) {
        self.waiting = true;
    }

    /// Records that a probe of `size` arrived. Returns whether packets may be longer now.
    pub fn on_probe_acked(&mut self, size: u64) -> bool {
        self.waiting = false;
        if u64::from(self.probing) <= size {
            self.probing = 0;
        }
        let longer = size > self.packet();
        self.packet = self.packet.max(size.min(MAX_PACKET_LEN) as u32);
        longer
    }

    /// A probe of `size` was lost. `never`: the system cannot send this size.
    pub fn on_probe_lost(&mut self, size: u64, never: bool) {
        self.waiting = false;
        if self.probing == 0 || u64::from(self.probing) != size {
            return;
        }
        self.tries += 1;
        if never || self.tries == TRIES {
            let next = CANDIDATES.into_iter().find(|&candidate| candidate < self.probing);
            (self.probing, self.tries) = (next.filter(|&candidate| candidate > self.packet).unwrap_or(0), 0);
        }
    }

    /// Called when packets vanish, because the path may have changed. Returns whether packets must be shorter now.
    pub fn on_black_hole(&mut self) -> bool {
        let base = self.longest.min(BASE_PACKET as u32);
        let shorter = self.packet > base;
        if shorter {
            self.packet = base;
            self.begin();
        }
        shorter
    }
}

/// The path's limit counts as reduced if long packets vanish for this many rounds while short ones arrive, and the
/// rounds took at least this long.
const VANISHED: (u32, Duration) = (4, Duration::from_millis(50));

/// Detects that only long packets vanish. Probes after a timeout are then answered, so there is no silence to notice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Vanishing {
    rounds: u32,
    since: Instant,
    /// When the last round was noticed. Packets sent before belong to that round or an earlier one.
    noticed: Instant,
}

impl Vanishing {
    /// A packet of `size` bytes arrived.
    pub fn on_acked(&mut self, size: u64) {
        if size > BASE_PACKET {
            self.rounds = 0;
        }
    }

    /// Records the loss of a packet that was sent at `sent`. Returns whether the path's limit counts as reduced now.
    pub fn on_lost(&mut self, now: Instant, sent: Instant, size: u64) -> bool {
        if size <= BASE_PACKET || (self.rounds > 0 && sent <= self.noticed) {
            return false;
        }
        if self.rounds == 0 {
            self.since = sent;
        }
        (self.rounds, self.noticed) = (self.rounds + 1, now);
        let (rounds, time) = VANISHED;
        let over = self.rounds >= rounds && self.since + time <= now;
        if over {
            self.rounds = 0;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes a path of this limit until nothing is left to try. Returns the number of probes.
    fn search(size: &mut PacketSize, path: u64) -> u32 {
        let mut probes = 0;
        while let Some(probe) = size.probe() {
            probes += 1;
            size.on_probe_sent();
            assert_eq!(size.probe(), None, "one at a time");
            if probe <= path {
                size.on_probe_acked(probe);
            } else {
                size.on_probe_lost(probe, false);
            }
        }
        probes
    }

    #[test]
    fn the_longest_size_that_passes_is_found() {
        for path in [1232, 1372, 1412, 1452, 1500, 2000, 4044, 8848, 8952, 20_000, 65_000, 70_000] {
            let mut size = PacketSize::new(65_536);
            let probes = search(&mut size, path);
            let best = [65_000]
                .into_iter()
                .chain(CANDIDATES)
                .chain([1232])
                .map(u64::from)
                .find(|&size| size <= path);
            assert_eq!(Some(size.packet()), best);
            assert!(probes <= 20);
        }
    }

    #[test]
    fn what_was_found_is_tried_to_be_raised_after_ten_minutes() {
        let at = |seconds| Instant::from_nanos(1) + Duration::from_secs(seconds);
        let mut size = PacketSize::new(9000);
        search(&mut size, 1500);
        assert_eq!(size.packet(), 1452);
        for (second, raises) in [(0, false), (599, false), (600, true)] {
            size.raise(at(second));
            assert_eq!(size.probe().is_some(), raises, "after {second} s");
        }
        search(&mut size, 1500);
        assert_eq!(size.packet(), 1452);
        size.raise(at(1000));
        size.raise(at(1600));
        search(&mut size, 9000);
        assert_eq!(size.packet(), 9000);
        size.raise(at(9999));
        size.raise(at(99_999));
        assert_eq!(size.probe(), None, "there is no more");
    }

    #[test]
    fn long_packets_that_vanish_round_after_round_are_no_accident() {
        let at = |millis| Instant::from_nanos(1) + Duration::from_millis(millis);
        let mut vanishing = Vanishing::default();
        // A row lost at once is one round, and short packets are not counted.
        assert!((0..100).all(|_| !vanishing.on_lost(at(100), at(10), 9000)));
        assert!((1..100).all(|round| !vanishing.on_lost(at(100 + 10 * round), at(99 + 10 * round), 1232)));
        assert!(!vanishing.on_lost(at(120), at(110), 9000) && !vanishing.on_lost(at(140), at(130), 9000));
        assert!(vanishing.on_lost(at(160), at(150), 9000));
        // One long packet that arrives shows that others may, too.
        for round in 0..20 {
            assert!(!vanishing.on_lost(at(210 + 20 * round), at(200 + 20 * round), 9000));
            if round % 3 == 2 {
                vanishing.on_acked(9000);
            }
        }
        // Rounds of a millisecond count only after some time has passed.
        vanishing.on_acked(9000);
        let told = (0..200).find(|round| vanishing.on_lost(at(1002 + 2 * round), at(1001 + 2 * round), 9000));
        assert_eq!(told, Some(25));
    }

    #[test]
    fn a_black_hole_leads_back_to_the_base_and_to_new_probes() {
        let mut size = PacketSize::new(9000);
        size.on_probe_acked(9000);
        assert_eq!((size.packet(), size.probe()), (9000, None));
        assert!(size.on_black_hole());
        assert_eq!((size.packet(), size.probe()), (BASE_PACKET, Some(9000)));
        size.on_probe_lost(9000, true);
        assert_eq!(size.probe(), Some(8952));
    }
}
