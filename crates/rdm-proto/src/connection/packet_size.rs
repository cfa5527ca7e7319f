//! The longest packet that the path carries, found by packets of padding (RFC 8899, much reduced).

/// What every path carries: an IPv6 packet of 1,280 bytes, less its headers.
pub const BASE_PACKET: u64 = 1232;
/// Longest packet that there is.
pub const LONGEST_PACKET: u64 = 65_000;
/// What is tried, besides the longest that both ends take: steps below a loopback, jumbo frames, Ethernet, Ethernet through a tunnel.
const CANDIDATES: [u64; 5] = [32_716, 16_332, 8952, 1452, 1372];
/// Probes of a size before it counts as too long.
const TRIES: u32 = 2;

/// See the module.
#[derive(Debug)]
pub struct PacketSize {
    longest: u64,
    packet: u64,
    /// What is being tried, and how often it was.
    probing: Option<(u64, u32)>,
    /// A probe is under way.
    waiting: bool,
}

impl PacketSize {
    pub fn new(longest: u64) -> Self {
        let longest = longest.min(LONGEST_PACKET);
        let packet = BASE_PACKET.min(longest);
        Self { longest, packet, probing: (longest > packet).then_some((longest, 0)), waiting: false }
    }

    /// Longest packet to send.
    pub fn packet(&self) -> u64 {
        self.packet
    }

    /// The size of the probe to send now.
    pub fn probe(&self) -> Option<u64> {
        self.probing.filter(|_| !self.waiting).map(|(size, _)| size)
    }

    /// The probe is under way.
    pub fn on_probe_sent(&mut self) {
        self.waiting = true;
    }

    /// A probe of `size` arrived. Whether packets may be longer now.
    pub fn on_probe_acked(&mut self, size: u64) -> bool {
        self.waiting = false;
        if self.probing.is_some_and(|(probed, _)| probed <= size) {
            self.probing = None;
        }
        let longer = size > self.packet;
        self.packet = self.packet.max(size);
        longer
    }

    /// A probe of `size` did not; `never`: the system says that it cannot.
    pub fn on_probe_lost(&mut self, size: u64, never: bool) {
        self.waiting = false;
        let Some((probed, tries)) = self.probing.filter(|&(probed, _)| probed == size) else { return };
        if !never && tries + 1 < TRIES {
            self.probing = Some((probed, tries + 1));
            return;
        }
        let next = CANDIDATES.into_iter().find(|&candidate| candidate < probed);
        self.probing = next.filter(|&candidate| candidate > self.packet).map(|candidate| (candidate, 0));
    }

    /// Packets vanish: the path may have changed. Whether packets must be shorter now.
    pub fn on_black_hole(&mut self) -> bool {
        let base = BASE_PACKET.min(self.longest);
        let shorter = self.packet > base;
        if shorter {
            self.packet = base;
            self.probing = Some((self.longest, 0));
        }
        shorter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_size_that_passes_is_found() {
        for path in [1232, 1372, 1452, 1500, 8952, 20_000, 65_000, 70_000] {
            let mut size = PacketSize::new(65_536);
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
            let best =
                [65_000, 32_716, 16_332, 8952, 1452, 1372, 1232].into_iter().find(|&size| size <= path);
            assert_eq!(Some(size.packet()), best);
            assert!(probes <= 12);
        }
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
