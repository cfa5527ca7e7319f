//! A part of a payload in a message, for ends without remote writes.

use super::Bytes;
use crate::shape::{PIECES, Span};

/// Its kind among the messages.
const KIND: u8 = 10;
/// Bytes before the spans.
const FIXED: usize = 1 + 3 * 8 + 2 * 4 + 1;
/// Bytes of a span.
const SPAN: usize = 8 + 4;

/// The header in front of a payload that travels in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token of the `Welcome`.
    pub token: u64,
    /// The number of the commit.
    pub number: u64,
    /// Grain, or the index after the last sample.
    pub index: u64,
    /// Number of slices that are valid when all parts have arrived, or of samples in the batch.
    pub amount: u32,
    /// Messages of the commit: at least one.
    pub parts: u32,
    /// Destinations of the bytes in the target's memory, in order: 1 to `PIECES` - 1 spans. `from` is local to the
    /// sender; in a parsed header it is the offset in the payload.
    pub spans: Vec<Span>,
}

/// Whether the bytes begin like a message with a payload.
pub fn is_piece(bytes: &[u8]) -> bool {
    bytes.first() == Some(&KIND)
}

impl Piece {
    /// Bytes before the payload.
    pub const fn bytes_before(spans: usize) -> usize {
        FIXED + spans * SPAN
    }

    /// Encodes the bytes before the payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::bytes_before(self.spans.len()));
        bytes.push(KIND);
        [self.token, self.number, self.index].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        [self.amount, self.parts].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.push(self.spans.len() as u8);
        for span in &self.spans {
            bytes.extend(span.to.to_le_bytes());
            bytes.extend((span.len as u32).to_le_bytes());
        }
        bytes
    }

    /// A piece and its payload, if the payload is as long as the spans and none of them is empty or ends beyond 64
    /// bits.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut rest = Bytes(bytes);
        let [KIND] = rest.take()? else { return None };
        let (token, number, index) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let (amount, parts) = (u32::from_le_bytes(rest.take()?), u32::from_le_bytes(rest.take()?));
        let [count] = rest.take()?;
        if !(1..PIECES).contains(&count.into()) || parts == 0 {
            return None;
        }
        let mut from = 0;
        let mut spans = Vec::with_capacity(PIECES);
        for _ in 0..count {
            let (to, len) = (rest.u64()?, u64::from(u32::from_le_bytes(rest.take()?)));
            to.checked_add(len).filter(|_| len > 0)?;
            spans.push(Span { from, to, len });
            from += len;
        }
        let payload = rest.0;
        (from == payload.len() as u64)
            .then_some((Self { token, number, index, amount, parts, spans }, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_survive_and_cut_or_longer_ones_are_refused(
            token: u64, number: u64, index: u64, amount: u32, parts in 1_u32..,
            to in proptest::collection::vec((0..u64::MAX - 40, 1_u64..20), 1..PIECES),
        ) {
            let mut from = 0;
            let spans: Vec<Span> = to.into_iter().map(|(to, len)| {
                from += len;
                Span { from: from - len, to, len }
            }).collect();
            let piece = Piece { token, number, index, amount, parts, spans };
            let mut bytes = piece.encode();
            prop_assert_eq!(bytes.len(), Piece::bytes_before(piece.spans.len()));
            let payload: Vec<u8> = (0..from as u8).collect();
            bytes.extend(&payload);
            prop_assert!(is_piece(&bytes));
            prop_assert_eq!(Piece::parse(&bytes), Some((piece, &payload[..])));
            for len in 0..bytes.len() {
                prop_assert_eq!(Piece::parse(&bytes[..len]), None);
            }
            bytes.push(0);
            prop_assert_eq!(Piece::parse(&bytes), None);
        }

        #[test]
        fn what_parses_encodes_to_the_same_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..90), count in 0_u8..9) {
            if let Some(first) = bytes.first_mut() {
                *first = KIND;
            }
            if let Some(spans) = bytes.get_mut(FIXED - 1) {
                *spans = count;
            }
            if let Some((piece, payload)) = Piece::parse(&bytes) {
                prop_assert_eq!([&piece.encode(), payload].concat(), bytes);
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let piece = Piece {
            token: 1,
            number: 2,
            index: 3,
            amount: 4,
            parts: 1,
            spans: vec![Span { from: 0, to: 0, len: 1 }],
        };
        let bytes = |piece: &Piece, payload: &[u8]| [&piece.encode(), payload].concat();
        assert!(Piece::parse(&bytes(&piece, &[7])).is_some());
        let none = Piece { spans: vec![], ..piece.clone() };
        assert!(Piece::parse(&bytes(&none, &[])).is_none());
        let empty = Piece { spans: vec![Span { from: 0, to: 0, len: 0 }], ..piece.clone() };
        assert!(Piece::parse(&bytes(&empty, &[])).is_none());
        let beyond = Piece { spans: vec![Span { from: 0, to: u64::MAX, len: 1 }], ..piece.clone() };
        assert!(Piece::parse(&bytes(&beyond, &[7])).is_none());
        assert!(Piece::parse(&bytes(&Piece { parts: 0, ..piece }, &[7])).is_none());
    }
}
