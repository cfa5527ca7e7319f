//! Order by message id: stores a peer's messages that arrive before their turn.

use rustc_hash::FxHashMap;

use crate::ranges::{Misfit, Ranges};

/// Limits in bytes of a peer's held messages. Above the first, this end asks the peer to pause. Above the second, it
/// gives up the peer.
pub const HELD: (usize, usize) = (1 << 20, 256 << 20);
/// Approximate memory overhead of a held message in bytes. It bounds the number of held messages.
const MESSAGE_OVERHEAD: usize = 128;
/// Maximum distance of a message from its turn. All messages before a farther one would be held, and would exceed the
/// second limit.
const MAX_MESSAGES_AHEAD: u32 = 1 << 24;
const _: () = assert!(HELD.1 / MESSAGE_OVERHEAD < MAX_MESSAGES_AHEAD as usize / 4);

/// The received part of a message.
pub enum PartialMessage {
    /// A whole packet.
    Packet(Box<[u8]>),
    /// Parts of a message in several packets.
    Parts {
        /// The packet that arrived first, without its payload.
        head: Box<[u8]>,
        /// The message.
        bytes: Box<[u8]>,
        /// Number of bytes received.
        got: usize,
        /// The parts that were received.
        arrived: Ranges,
    },
    /// The sender has given up the message.
    Skipped,
}

impl PartialMessage {
    fn is_whole(&self) -> bool {
        !matches!(self, Self::Parts { bytes, got, .. } if *got < bytes.len())
    }

    fn size(&self) -> usize {
        match self {
            Self::Packet(bytes) => bytes.len(),
            Self::Parts { head, bytes, .. } => head.len() + bytes.len(),
            Self::Skipped => 0,
        }
    }
}

/// Messages of one peer that wait for their turn.
#[derive(Default)]
pub struct Window {
    /// The id of the message whose turn it is.
    expected: u32,
    held: FxHashMap<u32, PartialMessage>,
    /// Deferred packets: it is not known yet which count their ids belong to.
    deferred: Vec<Box<[u8]>>,
    /// Number of bytes held and deferred.
    bytes: usize,
}

impl Window {
    /// Whether it is this message's turn and no part of it is held.
    pub fn is_next(&self, msg_id: u32) -> bool {
        msg_id == self.expected && !self.held.contains_key(&msg_id)
    }

    /// Whether a message may arrive now: its turn is not over, and it is not too far ahead. A sender may get far ahead
    /// of a packet that its device delays. Such a message must not be dropped, because the sender's device has reported
    /// its arrival.
    pub fn admits(&self, msg_id: u32) -> bool {
        msg_id.wrapping_sub(self.expected) < MAX_MESSAGES_AHEAD
    }

    /// Whether the peer should pause, because too many messages or bytes are held.
    pub fn is_full(&self, messages: usize) -> bool {
        self.memory() > HELD.0 || self.held.len() >= messages
    }

    /// Whether there is room for this many more bytes.
    pub fn has_room(&self, len: usize) -> bool {
        self.memory().saturating_add(len) <= HELD.1
    }

    fn memory(&self) -> usize {
        self.bytes + (self.held.len() + self.deferred.len()) * MESSAGE_OVERHEAD
    }

    /// Whether no message has been processed or held yet.
    pub fn is_new(&self) -> bool {
        self.expected == 0 && self.held.is_empty()
    }

    /// Restarts the peer's ids at 0. Held messages belong to the old count and are dropped, because one of the new
    /// count may have the same id. Returns the number of dropped messages.
    pub fn restart(&mut self) -> usize {
        self.expected = 0;
        let dropped = std::mem::take(&mut self.held);
        self.bytes -= dropped.values().map(PartialMessage::size).sum::<usize>();
        dropped.len()
    }

    /// Defers a packet until it is known which count its id belongs to.
    pub fn defer(&mut self, packet: Box<[u8]>) {
        self.bytes += packet.len();
        self.deferred.push(packet);
    }

    /// Whether packets are deferred.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Removes and returns the deferred packets.
    pub fn take_deferred(&mut self) -> Vec<Box<[u8]>> {
        let packets = std::mem::take(&mut self.deferred);
        self.bytes -= packets.iter().map(|packet| packet.len()).sum::<usize>();
        packets
    }

    /// Advances to the next message, after the current one was processed.
    pub fn step(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }

    /// Number of bytes held and deferred.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Holds a message. If it is already held, the old one stays.
    pub fn hold(&mut self, msg_id: u32, held: PartialMessage) -> bool {
        let size = held.size();
        let vacant = !self.held.contains_key(&msg_id);
        if vacant {
            self.bytes += size;
            self.held.insert(msg_id, held);
        }
        vacant
    }

    /// Holds a part of a message. A part that was repeated and is already held changes nothing.
    pub fn hold_part(
        &mut self,
        msg_id: u32,
        head: &[u8],
        (len, offset): (usize, usize),
        part: &[u8],
    ) -> Result<(), Misfit> {
        let bytes = &mut self.bytes;
        let held = self.held.entry(msg_id).or_insert_with(|| {
            let arrived = Ranges::default();
            let held =
                PartialMessage::Parts { head: head.into(), bytes: vec![0; len].into(), got: 0, arrived };
            *bytes += held.size();
            held
        });
        if matches!(held, PartialMessage::Skipped) {
            return Ok(()); // a part that was late or repeated
        }
        let PartialMessage::Parts { bytes, got, arrived, .. } = held else { return Err(Misfit) };
        let end = offset.checked_add(part.len()).ok_or(Misfit)?;
        let whole = bytes.len();
        let to = bytes.get_mut(offset..end).ok_or(Misfit)?;
        if whole != len || (part.is_empty() && len > 0) {
            return Err(Misfit);
        }
        if !arrived.add(offset, end)? {
            return Ok(());
        }
        to.copy_from_slice(part);
        *got += part.len();
        Ok(())
    }

    /// Removes and returns the message whose turn it is, if all of it has arrived.
    pub fn take(&mut self) -> Option<PartialMessage> {
        if !self.held.get(&self.expected)?.is_whole() {
            return None;
        }
        let held = self.held.remove(&self.expected)?;
        self.bytes -= held.size();
        Some(held)
    }

    /// Puts back a message that [`Window::take`] returned, because there is no room for it yet.
    pub fn put_back(&mut self, held: PartialMessage) {
        self.bytes += held.size();
        self.held.insert(self.expected, held);
    }

    /// Records that a message, or the rest of one, will not arrive.
    pub fn skip(&mut self, msg_id: u32) {
        if let Some(old) = self.held.insert(msg_id, PartialMessage::Skipped) {
            self.bytes -= old.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(byte: u8) -> PartialMessage {
        PartialMessage::Packet([byte].into())
    }

    #[test]
    fn a_late_part_of_a_skipped_message_changes_nothing() {
        let mut window = Window::default();
        window.skip(0);
        assert_eq!(window.hold_part(0, b"head", (8, 0), b"part"), Ok(()));
        assert_eq!(window.bytes(), 0);
        assert!(matches!(window.take(), Some(PartialMessage::Skipped)));
    }

    proptest! {
        /// Compares with a sorted list: in any order of arrival, and across the wrap of the ids.
        #[test]
        fn messages_leave_in_order_and_once(order in Just((0..40u8).collect::<Vec<_>>()).prop_shuffle(), first in any::<u32>()) {
            let mut window = Window { expected: first, ..Window::default() };
            let mut left = Vec::new();
            for &at in &order {
                let id = first.wrapping_add(at.into());
                prop_assert!(window.admits(id));
                prop_assert!(window.hold(id, packet(at)));
                prop_assert!(!window.hold(id, packet(99)), "twice");
                while let Some(held) = window.take() {
                    let PartialMessage::Packet(bytes) = held else { unreachable!() };
                    left.push(bytes[0]);
                    window.step();
                }
            }
            prop_assert_eq!(left, (0..40).collect::<Vec<u8>>());
            prop_assert_eq!(window.bytes(), 0);
            prop_assert!(!window.admits(first), "an old one");
        }
    }

    #[test]
    fn parts_make_a_message_in_any_order_and_misfits_are_refused() {
        let mut window = Window::default();
        assert_eq!(window.hold_part(0, b"head", (5, 3), b"lo"), Ok(()));
        assert!(window.take().is_none());
        assert_eq!(window.hold_part(0, b"head", (6, 0), b"hel"), Err(Misfit), "another length");
        assert_eq!(window.hold_part(0, b"head", (5, 4), b"lo"), Err(Misfit), "past the end");
        assert_eq!(window.hold_part(0, b"head", (5, 0), b"hell"), Err(Misfit), "more than there is");
        assert_eq!(window.hold_part(0, b"head", (5, 0), b""), Err(Misfit), "nothing");
        assert_eq!(window.hold_part(0, b"head", (5, 3), b"lo"), Ok(()), "a repeated part");
        assert!(window.take().is_none());
        assert_eq!(window.hold_part(0, b"head", (5, 0), b"hel"), Ok(()));
        let Some(PartialMessage::Parts { bytes, .. }) = window.take() else { panic!("it is whole") };
        assert_eq!((&*bytes, window.bytes()), (&b"hello"[..], 0));
    }

    #[test]
    fn messages_far_ahead_are_held_until_their_memory_exceeds_a_limit() {
        let mut window = Window { expected: u32::MAX, ..Window::default() };
        let ahead = |distance: u32| u32::MAX.wrapping_add(distance);
        assert!(window.admits(ahead(MAX_MESSAGES_AHEAD - 1)));
        assert!(!window.admits(ahead(MAX_MESSAGES_AHEAD)) && !window.admits(ahead(u32::MAX)));
        for distance in 1..100 {
            assert!(!window.is_full(100), "{distance}");
            assert!(window.hold(ahead(distance), packet(1)));
        }
        assert!(!window.is_full(100) && window.is_full(99), "by their number");
        assert!(
            window.has_room(HELD.1 - 99 * (1 + MESSAGE_OVERHEAD))
                && !window.has_room(HELD.1 - 99 * (1 + MESSAGE_OVERHEAD) + 1)
        );
        // Messages without bytes take memory too.
        for distance in 100..=(HELD.0 / MESSAGE_OVERHEAD) as u32 {
            window.skip(ahead(distance));
        }
        assert!(window.is_full(usize::MAX), "by their memory");
        assert!(window.has_room(0) && !window.has_room(usize::MAX));
    }

    #[test]
    fn what_is_held_ends_with_its_count_and_what_is_deferred_does_not() {
        let mut window = Window::default();
        assert!(window.is_new());
        window.step();
        assert!(window.hold(3, packet(1)));
        assert_eq!(window.hold_part(2, b"head", (5, 3), b"lo"), Ok(()));
        window.defer(b"packet"[..].into());
        assert_eq!(window.bytes(), 1 + 9 + 6);
        assert_eq!(window.restart(), 2);
        assert_eq!(window.bytes(), 6);
        assert!(window.is_new() && window.admits(0));
        assert!(window.hold(3, packet(2)), "the new count's message has its id for itself");
        assert_eq!(window.take_deferred(), [b"packet"[..].into()]);
        assert!(!window.has_deferred());
        assert_eq!(window.bytes(), 1);
    }
}
