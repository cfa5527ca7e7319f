//! What datagrams meet on their way, and the random numbers that decide it.

use std::time::Duration;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `below`, which is not 0.
    pub fn below(&mut self, below: u64) -> u64 {
        self.bits() % below
    }

    /// True in `per_mille` of 1,000 cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// What every datagram meets.
#[derive(Clone, Debug)]
pub struct Link {
    /// Lost, of 1,000.
    pub loss: u32,
    /// A loss begins a burst of this many.
    pub burst: u32,
    /// Repeated, of 1,000.
    pub duplicate: u32,
    /// Held back for up to ten times the delay, of 1,000.
    pub reorder: u32,
    /// With a bit flipped, of 1,000. Sessions are checked then.
    pub corrupt: u32,
    /// From one host to another.
    pub delay: Duration,
    /// And up to this much more.
    pub jitter: Duration,
    /// Longer datagrams vanish.
    pub longest: usize,
    /// Datagrams longer than this are refused by the sender's system.
    pub refused: usize,
    /// Nanoseconds that a byte occupies the receiver's link.
    pub byte_time: u64,
    /// Bytes that wait for a receiver's link at most; what comes then is lost.
    pub queue: u64,
    /// Bytes that wait for a receiver's link from which on what comes is marked (ECN), not lost.
    pub marking: u64,
    /// Sent back to their senders as well, as from where they were going, of 1,000.
    pub reflect: u32,
    /// Delivered to another host as well, from the same source, of 1,000.
    pub redirect: u32,
    /// Followed by any datagram of the past, however old, of 1,000.
    pub replay: u32,
    /// What happens to the bytes of each datagram.
    pub damage: Option<fn(&mut [u8])>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            loss: 0,
            burst: 1,
            duplicate: 0,
            reorder: 0,
            corrupt: 0,
            delay: Duration::from_micros(50),
            jitter: Duration::ZERO,
            longest: usize::MAX,
            refused: usize::MAX,
            byte_time: 0,
            queue: u64::MAX,
            marking: u64::MAX,
            reflect: 0,
            redirect: 0,
            replay: 0,
            damage: None,
        }
    }
}
