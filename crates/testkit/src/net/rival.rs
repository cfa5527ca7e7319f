//! Cross traffic: a flow that always has something to send, and shares a link as TCP does (RFC 5681, with the losses told apart
//! packet by packet, as with RFC 6675).

use std::collections::BTreeMap;
use std::time::Duration;

use rdm_proto::Instant;

/// Bytes of a packet.
pub const SEGMENT: usize = 1460;
/// Packets that may be overtaken by so many before they count as lost.
const REORDERING: u64 = 3;
/// Without an acknowledgement for so long, everything counts as lost (RFC 6298 has 200 ms to 1 s in practice).
const TIMEOUT: Duration = Duration::from_millis(200);

/// The sender. Its receiver acknowledges each packet.
#[derive(Debug)]
pub struct Rival {
    window: f64,
    threshold: f64,
    next: u64,
    under_way: BTreeMap<u64, Instant>,
    /// Losses of packets below have been answered.
    recovered: u64,
    heard: Instant,
    /// Packets that have arrived.
    pub arrived: u64,
}

impl Rival {
    /// With the window of RFC 6928.
    pub fn new(now: Instant) -> Self {
        let (window, threshold) = (10.0, f64::MAX);
        Self { window, threshold, next: 0, under_way: BTreeMap::new(), recovered: 0, heard: now, arrived: 0 }
    }

    /// The next packet to send, if the window allows one.
    pub fn send(&mut self, now: Instant) -> Option<u64> {
        if self.under_way.len() as f64 >= self.window {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number, now);
        Some(number)
    }

    /// A packet has been acknowledged.
    pub fn on_ack(&mut self, now: Instant, number: u64) {
        if self.under_way.remove(&number).is_none() {
            return;
        }
        (self.heard, self.arrived) = (now, self.arrived + 1);
        if number >= self.recovered {
            self.window += if self.window < self.threshold { 1.0 } else { 1.0 / self.window };
        }
        let lost: Vec<u64> =
            self.under_way.range(..=number.saturating_sub(REORDERING)).map(|(n, _)| *n).collect();
        for number in lost {
            self.under_way.remove(&number);
            if number >= self.recovered {
                self.threshold = (self.window / 2.0).max(2.0);
                (self.window, self.recovered) = (self.threshold, self.next);
            }
        }
    }

    /// Looks whether it has waited for too long.
    pub fn on_time(&mut self, now: Instant) {
        if !self.under_way.is_empty() && now.since(self.heard) > TIMEOUT {
            self.under_way.clear();
            self.threshold = (self.window / 2.0).max(2.0);
            (self.window, self.recovered, self.heard) = (1.0, self.next, now);
        }
    }
}
