//! The messages besides payloads, and the CQ data of remote writes. Little-endian.
//!
//! Without remote writes, payloads travel in messages as well ([`Piece`]).
//!
//! The sender may be untrusted. An invalid message parses to `None`, and is counted.

mod piece;

pub use piece::{Piece, is_piece};

pub use crate::shape::{Span, numbers as geometry};

/// Maximum length of a message without a payload, in bytes.
pub const MAX_MESSAGE_LEN: usize = 512;
/// The protocol version of this library. Other versions are refused.
pub const VERSION: u16 = 4;
/// The number of commits by which an initiator may be ahead of its target's publications. The lowest eight bits of its
/// number identify a commit.
pub const WINDOW: u64 = 64;
/// Interval at which a target repeats its last report to an initiator that commits nothing. The transport reports the
/// death of a process only to peers that have an operation under way to it; an initiator counts a target as dead that
/// stops repeating.
pub const KEEPALIVE: std::time::Duration = std::time::Duration::from_secs(5);
/// Maximum length of an endpoint's address, in bytes.
pub const MAX_ADDRESS_LEN: usize = 256;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// An initiator asks to connect.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// The id of the intended target.
        target: u64,
        /// Identifies this attempt; the answer repeats it.
        nonce: u64,
        /// The flow's properties.
        geometry: [u64; 8],
        /// 1 if the initiator has no remote writes and sends payloads in messages; otherwise 0.
        messages: u8,
        /// The format of its endpoint's address, and the address.
        format: u32,
        /// See `format`.
        address: Vec<u8>,
    },
    /// The target accepts the initiator.
    Welcome {
        /// The nonce of the `Hello`.
        nonce: u64,
        /// Identifies the connection in all later messages of both ends.
        token: u64,
        /// Samples only: the memory of the rings.
        rings: Remote,
        /// Samples only: length of a channel's ring, in samples.
        length: u64,
        /// Maximum length of a message with a payload, in bytes; 0 if payloads are written remotely.
        receive: u64,
    },
    /// The target refuses the initiator, or ends its connection (a farewell). A farewell may be lost: the initiator
    /// then notices when its requests or writes fail.
    Refused {
        /// The nonce of the `Hello`, which only the initiator and this target know.
        nonce: u64,
        /// The reason.
        why: Why,
    },
    /// The initiator requests to write an index, and has no write in flight below `floor`.
    Open {
        /// The token of the `Welcome`.
        token: u64,
        /// Grain, or the first sample.
        index: u64,
        /// All indices below are complete or abandoned.
        floor: u64,
    },
    /// The target's slot is open for a grain.
    Grant {
        /// The token of the `Welcome`.
        token: u64,
        /// The index of the grain.
        index: u64,
        /// The memory for its payload; empty if the payload travels in messages.
        payload: Remote,
    },
    /// Samples up to an index may be written.
    Room {
        /// The token of the `Welcome`.
        token: u64,
        /// The limit for the end of a window.
        until: u64,
    },
    /// A grain's payload is invalid.
    Invalid {
        /// The token of the `Welcome`.
        token: u64,
        /// The number of this commit.
        number: u64,
        /// The index of the grain.
        index: u64,
    },
    /// All writes or messages of a commit are complete, with this result; nothing is published before.
    Verdict {
        /// The token of the `Welcome`.
        token: u64,
        /// The number of the commit.
        number: u64,
        /// 1 if the data is whole; 0 if the source's writer overwrote it while it was sent, or flagged it invalid; 2 if
        /// that happened before all was sent, and no more follows.
        whole: u64,
    },
    /// Commits with lower numbers were published: readers see them, and the initiator may begin [`WINDOW`] commits from
    /// this number on.
    Published {
        /// The token of the `Welcome`.
        token: u64,
        /// The number of the next commit.
        number: u64,
    },
    /// The initiator disconnects.
    Bye {
        /// The token of the `Welcome`.
        token: u64,
    },
}

impl Message {
    /// The token in a message of an initiator, which only the one who has read the `Welcome` knows.
    pub(crate) fn token_of_initiator(&self) -> Option<u64> {
        match *self {
            Self::Open { token, .. }
            | Self::Invalid { token, .. }
            | Self::Verdict { token, .. }
            | Self::Bye { token } => Some(token),
            _ => None,
        }
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// The key that protects it.
    pub key: u64,
}

/// The reason why a target refuses an initiator, or ends its connection.
///
/// The code on the wire is the place in this list. New codes need no new [`VERSION`]: an initiator drops a message with
/// a code that it does not know. [`Closed`](Self::Closed) and the codes after it were added that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The initiator has another protocol version.
    Version,
    /// Another target has this address now.
    Target,
    /// The initiator's flow has other properties.
    Geometry,
    /// Another initiator has replaced it.
    Replaced,
    /// The target's endpoint or flow failed: see its log.
    Broken,
    /// The target closes. It may come back at its address.
    Closed,
    /// A message of the target to the initiator failed.
    Failed,
    /// The initiator left too many messages unread.
    Unheard,
}

impl Why {
    const ALL: [Self; 8] = [
        Self::Version,
        Self::Target,
        Self::Geometry,
        Self::Replaced,
        Self::Broken,
        Self::Closed,
        Self::Failed,
        Self::Unheard,
    ];

    /// Whether it ends a connection; the others refuse one.
    pub fn is_farewell(self) -> bool {
        !matches!(self, Self::Version | Self::Target | Self::Geometry)
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Version => "the target has another protocol version",
            Self::Target => "another target has this address",
            Self::Geometry => "the target's flow has another format, size or rate",
            Self::Replaced => "another initiator writes to the target",
            Self::Broken => "the target's endpoint or flow failed: see its log",
            Self::Closed => "the target closed",
            Self::Failed => "a message of the target failed",
            Self::Unheard => "the initiator left the target's messages unread",
        })
    }
}

/// The remaining bytes of a message.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn remote(&mut self) -> Option<Remote> {
        Some(Remote { addr: self.u64()?, key: self.u64()? })
    }
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let mut put = |kind: u8, numbers: &[u64]| {
            bytes.push(kind);
            numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        };
        match self {
            Self::Hello { version, target, nonce, geometry, messages, format, address } => {
                put(1, &[*target, *nonce]);
                bytes.extend(version.to_le_bytes());
                geometry.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
                bytes.push(*messages);
                bytes.extend(format.to_le_bytes());
                bytes.extend(address);
            }
            Self::Welcome { nonce, token, rings, length, receive } => {
                put(2, &[*nonce, *token, rings.addr, rings.key, *length, *receive])
            }
            Self::Refused { nonce, why } => {
                put(3, &[*nonce]);
                bytes.push(Why::ALL.iter().position(|other| other == why).unwrap_or(0) as u8);
            }
            Self::Open { token, index, floor } => put(4, &[*token, *index, *floor]),
            Self::Grant { token, index, payload } => put(5, &[*token, *index, payload.addr, payload.key]),
            Self::Room { token, until } => put(6, &[*token, *until]),
            Self::Invalid { token, number, index } => put(7, &[*token, *number, *index]),
            Self::Bye { token } => put(8, &[*token]),
            Self::Verdict { token, number, whole } => put(9, &[*token, *number, *whole]),
            Self::Published { token, number } => put(11, &[*token, *number]),
        }
        bytes
    }

    /// Parses a message, if the bytes are exactly one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        let [kind] = rest.take()?;
        let message = match kind {
            1 => {
                let (target, nonce) = (rest.u64()?, rest.u64()?);
                let version = u16::from_le_bytes(rest.take()?);
                let mut geometry = [0; 8];
                for number in &mut geometry {
                    *number = rest.u64()?;
                }
                let [messages @ (0 | 1)] = rest.take()? else { return None };
                let format = u32::from_le_bytes(rest.take()?);
                let address = std::mem::take(&mut rest.0).to_vec();
                if address.is_empty() || address.len() > MAX_ADDRESS_LEN {
                    return None;
                }
                Self::Hello { version, target, nonce, geometry, messages, format, address }
            }
            2 => Self::Welcome {
                nonce: rest.u64()?,
                token: rest.u64()?,
                rings: rest.remote()?,
                length: rest.u64()?,
                receive: rest.u64()?,
            },
            3 => {
                let (nonce, [why]) = (rest.u64()?, rest.take()?);
                Self::Refused { nonce, why: *Why::ALL.get(usize::from(why))? }
            }
            4 => Self::Open { token: rest.u64()?, index: rest.u64()?, floor: rest.u64()? },
            5 => Self::Grant { token: rest.u64()?, index: rest.u64()?, payload: rest.remote()? },
            6 => Self::Room { token: rest.u64()?, until: rest.u64()? },
            7 => Self::Invalid { token: rest.u64()?, number: rest.u64()?, index: rest.u64()? },
            8 => Self::Bye { token: rest.u64()? },
            9 => Self::Verdict { token: rest.u64()?, number: rest.u64()?, whole: rest.u64()? },
            // 10 is a piece of a payload.
            11 => Self::Published { token: rest.u64()?, number: rest.u64()? },
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

/// The CQ data of a remote write: it names the commit that the write belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Slices of a grain up to `end` have arrived. The lower half is the C++ SDK's: slot, end.
    Grain {
        /// The lowest eight bits of the commit's number.
        number: u8,
        /// The lowest sixteen bits of the index, which identify a granted index.
        index: u16,
        /// Number of slices that are valid now.
        end: u16,
        /// Writes of these slices, less one.
        parts: u16,
    },
    /// A part of a batch of samples has arrived.
    Samples {
        /// The lowest eight bits of the commit's number.
        number: u8,
        /// Writes of the whole batch, less one.
        parts: u8,
        /// The lowest 32 bits of the index.
        index: u32,
        /// Samples, at most 65,535.
        count: u16,
    },
}

impl Commit {
    /// Encodes the commit as CQ data; each end knows which of the two kinds its flow uses.
    pub fn encode(self) -> u64 {
        match self {
            Self::Grain { number, index, end, parts } => {
                u64::from(index) | u64::from(end) << 16 | u64::from(number) << 32 | u64::from(parts) << 40
            }
            Self::Samples { number, parts, index, count } => {
                u64::from(index) | u64::from(count) << 32 | u64::from(parts) << 48 | u64::from(number) << 56
            }
        }
    }

    /// Decodes a commit of a flow of grains. `None` for invalid bits.
    pub fn of_grain(data: u64) -> Option<Self> {
        let [a, b, c, d, number, e, f, 0] = data.to_le_bytes() else { return None };
        let (index, end) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        Some(Self::Grain { number, index, end, parts: u16::from_le_bytes([e, f]) })
    }

    /// Decodes a commit of a flow of samples.
    pub fn of_samples(data: u64) -> Self {
        let [a, b, c, d, e, f, parts, number] = data.to_le_bytes();
        let (index, count) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        Self::Samples { number, parts, index, count }
    }
}

/// The number near `near` whose lowest `bits` bits are `low`.
pub fn widen(near: u64, low: u64, bits: u32) -> u64 {
    let span = 1_u64 << bits;
    let ahead = low.wrapping_sub(near) & (span - 1);
    if ahead < span / 2 { near.wrapping_add(ahead) } else { near.wrapping_add(ahead).wrapping_sub(span) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Vec<Message> {
        let remote = Remote { addr: 0x7f00_0000_1000, key: u64::MAX };
        let mut all = vec![
            Message::Hello {
                version: 1,
                target: 2,
                nonce: 3,
                geometry: [4; 8],
                messages: 1,
                format: 2,
                address: vec![5; 16],
            },
            Message::Welcome { nonce: 1, token: 2, rings: remote, length: 19_456, receive: 65_536 },
            Message::Open { token: 1, index: 2, floor: 3 },
            Message::Grant { token: 1, index: 2, payload: remote },
            Message::Room { token: 1, until: 2 },
            Message::Invalid { token: 1, number: 2, index: 3 },
            Message::Bye { token: 1 },
            Message::Verdict { token: 1, number: 2, whole: 1 },
            Message::Published { token: 1, number: 2 },
        ];
        all.extend(Why::ALL.map(|why| Message::Refused { nonce: 1, why }));
        all
    }

    #[test]
    fn messages_survive_and_cut_ones_are_refused() {
        for message in all() {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_MESSAGE_LEN);
            assert_eq!(Message::parse(&bytes), Some(message.clone()));
            let shortest =
                if matches!(message, Message::Hello { .. }) { bytes.len() - 16 } else { bytes.len() - 1 };
            for len in 0..=shortest {
                assert_eq!(Message::parse(&bytes[..len]), None, "{message:?} cut to {len}");
            }
        }
        assert_eq!(Message::parse(&[12; 40]), None);
    }

    /// Codes are appended: an older initiator drops what it does not know, and the old codes keep their meaning.
    #[test]
    fn reasons_have_the_codes_that_older_initiators_know_and_unknown_ones_are_refused() {
        let code = |why| *Message::Refused { nonce: 1, why }.encode().last().unwrap();
        assert_eq!(Why::ALL.map(code), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((code(Why::Replaced), code(Why::Broken), code(Why::Closed)), (3, 4, 5));
        let mut bytes = Message::Refused { nonce: 1, why: Why::Closed }.encode();
        for unknown in 8..=u8::MAX {
            *bytes.last_mut().unwrap() = unknown;
            assert_eq!(Message::parse(&bytes), None, "{unknown}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_encodes_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Some(message) = Message::parse(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }

        #[test]
        fn commits_survive(number: u8, parts: u16, index: u32, count: u16) {
            let samples = Commit::Samples { number, parts: parts as u8, index, count };
            prop_assert_eq!(Commit::of_samples(samples.encode()), samples);
            let grain = Commit::Grain { number, index: index as u16, end: count, parts };
            prop_assert_eq!(Commit::of_grain(grain.encode()), Some(grain));
        }

        #[test]
        fn numbers_are_known_by_their_lowest_bits(near: u64, by in -127_i64..=127) {
            let number = near.wrapping_add_signed(by);
            prop_assert_eq!(widen(near, number & 0xff, 8), number);
        }
    }
}
