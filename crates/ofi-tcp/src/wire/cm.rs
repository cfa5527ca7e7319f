//! Connection messages: 32 bytes of header, and up to 256 of payload.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 3 |
//! | 1 | kind |
//! | 2..4 | bytes of payload, big endian |
//! | 4..8 | 0; between ends of this library, [`Extras::bulk`] in network byte order |
//! | 8..16 | 0; between ends of this library, what the sender takes beyond C's protocol ([`Extras`]) |
//! | 16..24 | 0; between ends of this library, [`Extras::window`] in network byte order |
//! | 24..32 | 1, in the sender's byte order; 0 in a refusal |

use super::Order;

/// Bytes of the header.
pub const HEADER: usize = 32;
/// The maximum length of the payload, in bytes.
pub const MAX_PAYLOAD_LEN: usize = 256;

const VERSION: u8 = 3;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmKind {
    /// Asks for the connection.
    Request,
    /// Accepts it.
    Response,
    /// Refuses it.
    Refusal,
}

/// What a sender takes beyond C's protocol. An end of C libfabric writes zeros there and does not look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Packets that refuse an access ([`super::Packet::Refusal`]), in place of the end of the connection.
    pub refusals: bool,
    /// Atomic operations ([`super::Packet::Atomic`]).
    pub atomics: bool,
    /// Notes between cores ([`super::Packet::Note`]).
    pub notes: bool,
    /// Announced messages that it has not asked for ([`super::Packet::Data`]), before the sender's end.
    pub unasked: bool,
    /// The bytes of messages, as they [count](super::charge), that the sender keeps for this peer without receives. If
    /// both ends say a number, each sends so many bytes unasked, and announces further messages, with or without a tag,
    /// until it gets [more](super::Packet::Grant). 0: it does not count.
    pub window: u64,
    /// What a request for a bulk connection to the sender has to name ([`Extras::is_bulk`]). 0: it takes none.
    pub bulk: u32,
    /// The request is for a bulk connection, beside the connection on which its receiver has said [`Extras::bulk`].
    pub is_bulk: bool,
}

impl Extras {
    /// All that this library has, without a window.
    pub const OURS: Self = Self { refusals: true, atomics: true, notes: true, unasked: true, ..Self::NONE };
    /// Those of C.
    pub const NONE: Self = Self {
        refusals: false,
        atomics: false,
        notes: false,
        unasked: false,
        window: 0,
        bulk: 0,
        is_bulk: false,
    };
    /// The first six bytes; a number follows, in network byte order, with a bit for each of them.
    const MARK: [u8; 6] = *b"ofi-rs";
    const REFUSALS: u16 = 1;
    const ATOMICS: u16 = 2;
    const NOTES: u16 = 4;
    const UNASKED: u16 = 8;
    const IS_BULK: u16 = 16;
    const ALL: u16 = 31;

    /// Bytes 4 to 24 of a message.
    fn encode(self) -> [u8; 20] {
        let bit = |is_taken, bit| if is_taken { bit } else { 0 };
        let bits = bit(self.refusals, Self::REFUSALS)
            | bit(self.atomics, Self::ATOMICS)
            | bit(self.notes, Self::NOTES)
            | bit(self.unasked, Self::UNASKED)
            | bit(self.is_bulk, Self::IS_BULK);
        let [high, low] = bits.to_be_bytes();
        let [a, b, c, d, e, f] = Self::MARK;
        let mut bytes = [0; 20];
        if bits != 0 {
            bytes[..4].copy_from_slice(&self.bulk.to_be_bytes());
            bytes[4..12].copy_from_slice(&[a, b, c, d, e, f, high, low]);
            bytes[12..].copy_from_slice(&self.window.to_be_bytes());
        }
        bytes
    }

    /// Bits of later versions are passed over.
    fn parse(bytes: [u8; 20]) -> Self {
        let [n0, n1, n2, n3, ref said @ ..] = bytes;
        if said[..6] != Self::MARK {
            return Self::NONE;
        }
        let bits = u16::from_be_bytes([said[6], said[7]]);
        if bits & Self::ALL == 0 {
            return Self::NONE;
        }
        let has = |bit| bits & bit != 0;
        let window = u64::from_be_bytes(std::array::from_fn(|at| said[8 + at]));
        Self {
            refusals: has(Self::REFUSALS),
            atomics: has(Self::ATOMICS),
            notes: has(Self::NOTES),
            unasked: has(Self::UNASKED),
            window,
            bulk: u32::from_be_bytes([n0, n1, n2, n3]),
            is_bulk: has(Self::IS_BULK),
        }
    }
}

/// A connection message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMessage<'a> {
    /// What it says.
    pub kind: CmKind,
    /// The sender's byte order.
    pub order: Order,
    /// What it takes beyond C's protocol.
    pub extras: Extras,
    /// The data that the endpoint or the application attached.
    pub payload: &'a [u8],
}

/// The reason why bytes are not a connection message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Another version.
    Version(u8),
    /// No such kind.
    CmKind(u8),
    /// A payload above the maximum.
    Payload(u16),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(found) => write!(f, "version {found} of connection messages, instead of {VERSION}"),
            Self::CmKind(found) => write!(f, "connection message of kind {found}, instead of 0, 1 or 6"),
            Self::Payload(found) => {
                write!(f, "connection message with {found} bytes, instead of {MAX_PAYLOAD_LEN} at most")
            }
        }
    }
}

impl<'a> CmMessage<'a> {
    /// A message as C sends it.
    pub const fn new(kind: CmKind, payload: &'a [u8]) -> Self {
        Self { kind, order: Order::Own, extras: Extras::NONE, payload }
    }

    /// A message that also says what this end takes beyond C's protocol.
    pub const fn ours(kind: CmKind, payload: &'a [u8]) -> Self {
        Self { extras: Extras::OURS, ..Self::new(kind, payload) }
    }

    /// As bytes, to be sent by one call. A payload beyond [`MAX_PAYLOAD_LEN`] is cut off.
    pub fn encode(&self) -> Vec<u8> {
        let payload = &self.payload[..self.payload.len().min(MAX_PAYLOAD_LEN)];
        let kind = match self.kind {
            CmKind::Request => 0,
            CmKind::Response => 1,
            CmKind::Refusal => 6,
        };
        let mark = u64::from(self.kind != CmKind::Refusal);
        let mut bytes = vec![0; HEADER];
        (bytes[0], bytes[1]) = (VERSION, kind);
        bytes[2..4].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        bytes[4..24].copy_from_slice(&self.extras.encode());
        bytes[24..].copy_from_slice(&self.order.u64(mark).to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Parses a message at the front of `input`. Returns it with its length, or `None` while bytes are missing.
    ///
    /// # Errors
    /// The reason why the bytes will never be a message.
    pub fn parse(input: &'a [u8]) -> Result<Option<(Self, usize)>, Unreadable> {
        match input.first() {
            Some(&VERSION) | None => {}
            Some(&other) => return Err(Unreadable::Version(other)),
        }
        let kind = match input.get(1) {
            Some(0) => CmKind::Request,
            Some(1) => CmKind::Response,
            Some(6) => CmKind::Refusal,
            Some(&other) => return Err(Unreadable::CmKind(other)),
            None => return Ok(None),
        };
        let Some((header, rest)) = input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let len = u16::from_be_bytes([header[2], header[3]]);
        if usize::from(len) > MAX_PAYLOAD_LEN {
            return Err(Unreadable::Payload(len));
        }
        let Some(payload) = rest.get(..usize::from(len)) else { return Ok(None) };
        let mark = u64::from_ne_bytes(std::array::from_fn(|at| header[24 + at]));
        // A refusal says nothing about the order.
        let order = if mark == 1 || kind == CmKind::Refusal { Order::Own } else { Order::Swapped };
        let extras = Extras::parse(std::array::from_fn(|at| header[4 + at]));
        Ok(Some((Self { kind, order, extras, payload }, HEADER + payload.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let value = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(value).collect()
    }

    /// A request and the answer to it, as C libfabric 2.6 exchanges them.
    #[test]
    fn what_c_sends_is_what_this_end_sends() {
        let zeros = "00".repeat(20);
        for (kind, head, payload) in [
            (CmKind::Request, "03000008", "0100af4500007fe5"),
            (CmKind::Response, "03010008", "8100af4500007fb9"),
        ] {
            let captured = bytes(&format!("{head}{zeros}0100000000000000{payload}"));
            let payload = bytes(payload);
            let message = CmMessage::new(kind, &payload);
            assert_eq!(message.encode(), captured);
            assert_eq!(CmMessage::parse(&captured), Ok(Some((message, 40))));
        }
        let refusal = CmMessage::new(CmKind::Refusal, b"no").encode();
        assert_eq!(refusal[..4], [3, 6, 0, 2]);
        assert_eq!(refusal[24..], [0, 0, 0, 0, 0, 0, 0, 0, b'n', b'o']);
    }

    #[test]
    fn what_goes_beyond_c_is_said_where_c_has_zeros() {
        let ours = CmMessage::ours(CmKind::Request, &[7; 8]).encode();
        assert_eq!(ours[8..24], *b"ofi-rs\0\x0F\0\0\0\0\0\0\0\0");
        assert_eq!(CmMessage::parse(&ours).unwrap().unwrap().0.extras, Extras::OURS);
        let mut plain = CmMessage::new(CmKind::Request, &[7; 8]).encode();
        assert!(plain[4..24].iter().all(|&byte| byte == 0));
        // A number that C or somebody else puts there, and what a later version may add.
        for (bytes, expected) in [
            (b"ofi-rt\0\x07", Extras::NONE),
            (b"ofi-rs\0\x01", Extras { refusals: true, ..Extras::NONE }),
            (b"ofi-rs\xFF\xEF", Extras::OURS),
            (b"ofi-rs\0\x10", Extras { is_bulk: true, ..Extras::NONE }),
            (b"\0\0\0\0\0\0\0\x07", Extras::NONE),
        ] {
            plain[8..16].copy_from_slice(bytes);
            assert_eq!(CmMessage::parse(&plain).unwrap().unwrap().0.extras, expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_wrong_version_kind_or_length_is_refused_at_its_byte() {
        let good = CmMessage::new(CmKind::Request, &[7; 8]).encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        assert_eq!(CmMessage::parse(&[2]), Err(Unreadable::Version(2)));
        assert_eq!(CmMessage::parse(&with(1, 2)[..2]), Err(Unreadable::CmKind(2)));
        assert_eq!(CmMessage::parse(&with(2, 1)), Err(Unreadable::Payload(0x108)));
        assert_eq!(CmMessage::parse(&with(2, 1)[..31]), Ok(None), "the length is read with the whole header");
    }

    proptest! {
        #[test]
        fn every_message_comes_back_and_no_part_of_it_does(
            kind in prop::sample::select(vec![CmKind::Request, CmKind::Response, CmKind::Refusal]),
            swapped: bool,
            (refusals, atomics, notes, unasked, is_bulk) in any::<(bool, bool, bool, bool, bool)>(),
            (size, number) in any::<(u64, u32)>(),
            payload in prop::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD_LEN),
        ) {
            let order = if swapped && kind != CmKind::Refusal { Order::Swapped } else { Order::Own };
            // Nothing is said by an end that takes nothing.
            let says = refusals || atomics || notes || unasked || is_bulk;
            let (window, bulk) = if says { (size, number) } else { (0, 0) };
            let extras = Extras { refusals, atomics, notes, unasked, window, bulk, is_bulk };
            let message = CmMessage { kind, order, extras, payload: &payload };
            let mut bytes = message.encode();
            let len = bytes.len();
            for cut in 0..len {
                prop_assert_eq!(CmMessage::parse(&bytes[..cut]), Ok(None));
            }
            bytes.extend([9; 5]); // packets may follow a response
            prop_assert_eq!(CmMessage::parse(&bytes), Ok(Some((message, len))));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Some((message, len))) = CmMessage::parse(&bytes) {
                prop_assert_eq!(len, HEADER + message.payload.len());
            }
        }
    }
}
