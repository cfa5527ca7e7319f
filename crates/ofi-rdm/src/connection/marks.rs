//! Marks of congestion (ECN, RFC 3168): routers mark packets when their queues grow, and the receiver tells the sender
//! how many came so.

use super::{Connection, Session};
use crate::time::Instant;

/// What is known of a peer's marks. Few peers have any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    /// Packets of the session that came with one.
    pub received: u64,
    /// Packets that were sent in it and that the peer got with one, as far as it has said.
    heard: u64,
    /// The path marks everything: its marks say nothing.
    is_mangled: bool,
    /// Of all sessions: received, and heard of.
    pub total: [u64; 2],
}

/// Packets after which a path that has marked all of them counts as one that always does (RFC 9000, section 13.4.2.1).
const TESTED: u64 = 10;

impl Marks {
    /// A new session begins.
    pub fn restart(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    /// The peer has had `count` by now, of packets of which `arrived` are known to have arrived. Whether the sender is
    /// to slow down.
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
    /// `count` packets of the session have come with marks.
    pub fn on_marked(&mut self, count: u64) {
        let marks = self.marks.get_or_insert_default();
        (marks.received, marks.total[0]) = (marks.received + count, marks.total[0] + count);
        if let Some(session) = self.session.as_deref_mut() {
            // The sender is to know at once; but not of what asked for nothing, or two ends acknowledge
            // acknowledgements.
            session.ack_now |= session.unacked > 0;
        }
    }

    /// Packets of the session that came with marks.
    pub(super) fn marked(&self) -> u64 {
        self.marks.as_ref().map_or(0, |marks| marks.received)
    }

    /// The peer has had so many with marks by now.
    pub(super) fn on_marks(&mut self, now: Instant, count: u64) {
        let Some(session) = self.session.as_deref_mut() else { return };
        let heard = self.marks.as_ref().map_or(0, |marks| marks.heard);
        // Late, or untrue.
        if count <= heard || count > session.next_number {
            return;
        }
        if self.marks.get_or_insert_default().hear(count, session.arrived()) {
            session.controller.on_marked(now, session.largest_left);
        }
    }
}

impl Session {
    /// Packets that have arrived, or at least are not under way.
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
