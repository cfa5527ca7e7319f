//! Connection packets: 24 bytes of header, then the application's data. All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `ofi-cm` and the version, 1, as a 16-bit number |
//! | 8..10 | kind |
//! | 10..12 | bytes of data |
//! | 12..16 | error number of a rejection, otherwise 0 |
//! | 16..24 | cookie |

use super::DATA_SIZE;

const MAGIC: u64 = u64::from_le_bytes(*b"ofi-cm\x01\0");
const HEADER: usize = 24;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Requests a connection.
    Request,
    /// The sender accepts the request.
    Accept,
    /// Confirms that the acceptance has arrived.
    Confirm,
    /// Refuses the request.
    Reject,
    /// The sender has ended the connection.
    Shutdown,
    /// An endpoint accepts, and its [`Kind::Accept`] comes from that endpoint: the sender of this packet may close.
    Granted,
}

const KINDS: [Kind; 6] =
    [Kind::Request, Kind::Accept, Kind::Confirm, Kind::Reject, Kind::Shutdown, Kind::Granted];

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its content.
    pub kind: Kind,
    /// The cookie of the connection.
    pub cookie: u64,
    /// The reason for a rejection, as a positive error number; 0 for other kinds.
    pub errno: u32,
    /// The data that the application attached.
    pub data: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet without error number.
    pub const fn new(kind: Kind, cookie: u64, data: &'a [u8]) -> Self {
        Self { kind, cookie, errno: 0, data }
    }

    /// Encodes the packet. Data beyond [`DATA_SIZE`] is truncated.
    pub fn encode(&self) -> Vec<u8> {
        let data = super::cut(self.data);
        let mut bytes = Vec::with_capacity(HEADER + data.len());
        bytes.extend(MAGIC.to_le_bytes());
        let kind = KINDS.iter().position(|&kind| kind == self.kind).unwrap_or(0) as u16 + 1;
        bytes.extend(kind.to_le_bytes());
        bytes.extend((data.len() as u16).to_le_bytes());
        bytes.extend(self.errno.to_le_bytes());
        bytes.extend(self.cookie.to_le_bytes());
        bytes.extend(data);
        bytes
    }

    /// Parses a packet. `None` for bytes that [`Packet::encode`] never produces.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, data) = bytes.split_first_chunk::<HEADER>()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        let (kind, len, errno) = (word(8) as u16, (word(8) >> 16) as u16, (word(8) >> 32) as u32);
        let kind = *KINDS.get(usize::from(kind).checked_sub(1)?)?;
        let errno_fits = if kind == Kind::Reject { (1..=4096).contains(&errno) } else { errno == 0 };
        let whole = usize::from(len) == data.len() && data.len() <= DATA_SIZE;
        let fits = word(0) == MAGIC && errno_fits && whole;
        fits.then_some(Self { kind, cookie: word(16), errno, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_beyond_the_limit_is_cut_off() {
        let bytes = Packet::new(Kind::Request, 1, &[7; 300]).encode();
        assert_eq!(Packet::parse(&bytes).unwrap().data, [7; DATA_SIZE]);
        assert!(bytes.len() <= crate::transport::MAX_PACKET);
    }

    proptest! {
        #[test]
        fn parse_inverts_encode(
            kind in 0usize..KINDS.len(), cookie: u64, errno in 1u32..200, data in prop::collection::vec(any::<u8>(), 0..=DATA_SIZE)
        ) {
            let kind = KINDS[kind];
            let errno = if kind == Kind::Reject { errno } else { 0 };
            let packet = Packet { kind, cookie, errno, data: &data };
            let bytes = packet.encode();
            prop_assert_eq!(Packet::parse(&bytes), Some(packet));
        }

        #[test]
        fn what_parses_encodes_to_the_same_bytes(
            change in prop::collection::vec((0usize..32, any::<u8>()), 0..4), cut in 0usize..40
        ) {
            let mut bytes = Packet::new(Kind::Accept, 3, b"abcdefgh").encode();
            for (at, byte) in change {
                bytes[at] = byte;
            }
            bytes.truncate(cut);
            if let Some(packet) = Packet::parse(&bytes) {
                prop_assert_eq!(packet.encode(), bytes);
            }
        }
    }
}
