//! The behaviour of the network, and the random numbers that decide it.

use std::time::Duration;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number less than `below`, which is not 0.
    pub fn below(&mut self, below: u64) -> u64 {
        self.bits() % below
    }

    /// True with probability `per_mille` per 1,000.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// The behaviour of the network.
#[derive(Clone, Debug)]
pub struct NetworkLink {
    /// Datagrams lost, per 1,000.
    pub loss: u32,
    /// Number of consecutive datagrams that a loss affects.
    pub burst: u32,
    /// Datagrams duplicated, per 1,000.
    pub duplicate: u32,
    /// Datagrams delayed by up to ten times the delay, per 1,000.
    pub reorder: u32,
    /// Datagrams with a flipped bit, per 1,000. Sessions then use checksums.
    pub corrupt: u32,
    /// Delay from one host to another.
    pub delay: Duration,
    /// Additional random delay, at most.
    pub jitter: Duration,
    /// Longer datagrams are dropped.
    pub longest: usize,
    /// The sender's system refuses datagrams longer than this.
    pub refused: usize,
    /// Nanoseconds per byte on the receiver's link.
    pub byte_time: u64,
    /// Capacity in bytes of the queue before a receiver's link; datagrams beyond it are dropped.
    pub queue: u64,
    /// Bytes in that queue from which on datagrams are marked (ECN) rather than dropped.
    pub marking: u64,
    /// Datagrams also reflected to their senders, with the original destination as source, per 1,000.
    pub reflect: u32,
    /// Datagrams also delivered to another host, from the same source, per 1,000.
    pub redirect: u32,
    /// Datagrams followed by a replay of any earlier one, per 1,000.
    pub replay: u32,
    /// Whether hosts report datagrams to closed ports (ICMP), and whether with Linux's rate limit.
    pub reports: Option<bool>,
    /// A function that damages the bytes of each datagram.
    pub damage: Option<fn(&mut [u8])>,
}

impl Default for NetworkLink {
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
            reports: None,
            damage: None,
        }
    }
}
