//! Congestion marks (ECN, RFC 3168): routers mark packets when their queues grow, and the receiver reports the number
//! of marked packets to the sender.

use super::{Connection, Session};
use crate::time::Instant;

/// Counters of congestion marks. Few peers have any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// Packets received with a mark in this session.
    pub received: u64,
    /// Packets sent in this session that the peer reported as marked.
    heard: u64,
    /// The path marks every packet, so its marks carry no information.
    is_mangled: bool,
    /// Totals of all sessions: marks received, and marks reported by the peer.
    pub total: [u64; 2],
}

/// If the first packets, up to this number, are all marked, the path is assumed to mark everything (RFC 9000, section
/// 13.4.2.1).
const TESTED: u64 = 10;

impl Marks {
    /// Resets the state for a new session.
    pub fn restart(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    /// Handles the peer's report of `count` marked packets, out of `arrived` packets that are known to have arrived.
    /// Returns whether the sender must slow down.
    fn hear(&mut self, count: u64, arrived: u64) -> bool {
        if self.heard < TESTED && count >= TESTED {
            self.is_mangled = count >= arrived;
        }
        self.total[1] += count - self.heard;
        self.heard = count;
        !self.is_mangled
    }
}

impl Connection {
    /// `count` packets of the session arrived with marks.
    pub fn on_marked(&mut self, count: u64) {
        let marks = self.marks.get_or_insert_default();
        (marks.received, marks.total[0]) = (marks.received + count, marks.total[0] + count);
        if let Some(session) = self.session.as_deref_mut() {
            // The sender should learn of marks at once. Packets that asked for no acknowledgement get none: otherwise
            // two ends would acknowledge acknowledgements.
            session.ack_now |= session.unacked > 0;
        }
    }

    /// Packets of the session that arrived with marks.
    pub(super) fn marked(&self) -> u64 {
        self.marks.as_ref().map_or(0, |marks| marks.received)
    }

    /// The peer reports `count` marked packets so far. Returns whether that reduced the congestion window.
    pub(super) fn on_marks(&mut self, now: Instant, count: u64) -> bool {
        let Some(session) = self.session.as_deref_mut() else { return false };
        let heard = self.marks.as_ref().map_or(0, |marks| marks.heard);
        // A late report, or a false one.
        if count <= heard || count > session.next_number {
            return false;
        }
        if !self.marks.get_or_insert_default().hear(count, session.arrived()) {
            return false;
        }
        let window = session.controller.window();
        session.controller.on_marked(now, session.largest_left);
        session.controller.window() < window
    }
}

impl Session {
    /// Packets that arrived, or at least are no longer in flight.
    fn arrived(&self) -> u64 {
        self.next_number.saturating_sub(self.in_flight_packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_marks_everything_is_not_believed() {
        let mut marks = Marks::default();
        assert!(marks.hear(4, 4), "too few to tell");
        assert!(!marks.hear(12, 12) && !marks.hear(13, 500));
        assert_eq!(marks.total, [0, 13]);
        marks.restart();
        assert!(marks.hear(10, 11) && marks.hear(500, 500), "one came without");
        assert_eq!(marks.total, [0, 513]);
    }
}
