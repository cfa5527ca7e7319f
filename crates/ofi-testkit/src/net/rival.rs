//! Cross traffic: a flow that always has data to send, and shares a link as TCP does: NewReno's window (RFC 5681), with
//! losses detected packet by packet by those that overtook them, and the last ones of a window by a probe (RACK and
//! TLP, RFC 8985).

use std::collections::BTreeMap;
use std::time::Duration;

use ofi_rdm::Instant;

/// Bytes of a packet.
pub const SEGMENT: usize = 1460;
/// A packet is lost once this many later packets have overtaken it.
const REORDERING: u64 = 3;
/// Without an acknowledgement for this time, everything counts as lost (RFC 6298 has 200 ms to 1 s in practice).
const TIMEOUT: Duration = Duration::from_millis(200);

/// The sender. Its receiver acknowledges each packet.
#[derive(Debug)]
pub struct Rival {
    window: f64,
    threshold: f64,
    next: u64,
    under_way: BTreeMap<u64, Instant>,
    /// Losses of packets below this number have been handled.
    recovered: u64,
    heard: Instant,
    /// The minimum round-trip time.
    least: Duration,
    /// One packet may exceed the window.
    probe: bool,
    /// Packets received.
    pub arrived: u64,
}

impl Rival {
    /// Starts with the window of RFC 6928, and the round-trip time of its handshake.
    pub fn new(now: Instant, least: Duration) -> Self {
        let (window, threshold) = (10.0, f64::MAX);
        let under_way = BTreeMap::new();
        Self {
            window,
            threshold,
            next: 0,
            under_way,
            recovered: 0,
            heard: now,
            least,
            probe: false,
            arrived: 0,
        }
    }

    /// The next packet to send, if the window allows one.
    pub fn send(&mut self, now: Instant) -> Option<u64> {
        if self.under_way.len() as f64 >= self.window && !std::mem::take(&mut self.probe) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, now);
        Some(number)
    }

    /// Processes the acknowledgement of a packet.
    pub fn on_ack(&mut self, now: Instant, number: u64) {
        let Some(sent) = self.under_way.remove(&number) else { return };
        self.least = self.least.min(now.since(sent));
        let reordering = self.least / 4;
        (self.heard, self.arrived) = (now, self.arrived + 1);
        if number >= self.recovered {
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        }
        let earlier = self.under_way.range(..number);
        let lost: Vec<u64> = earlier
            .filter(|(n, at)| **n + REORDERING <= number || **at + reordering <= sent)
            .map(|(n, _)| *n)
            .collect();
        for number in lost {
            self.under_way.remove(&number);
            self.on_mark(number);
        }
    }

    /// The packet was marked: handled like a loss (RFC 3168).
    pub fn on_mark(&mut self, number: u64) {
        if number >= self.recovered {
            self.threshold = (self.window / 2.0).max(2.0);
            (self.window, self.recovered) = (self.threshold, self.next);
        }
    }

    /// Checks for a timeout.
    pub fn on_time(&mut self, now: Instant) {
        self.probe = !self.under_way.is_empty() && now.since(self.heard) > self.least * 2;
        if !self.under_way.is_empty() && now.since(self.heard) > TIMEOUT {
            self.under_way.clear();
            self.threshold = (self.window / 2.0).max(2.0);
            (self.window, self.recovered, self.heard) = (1.0, self.next, now);
        }
    }
}
