//! The clear part of every datagram.

use super::{Malformed, Reader, VERSION, Writer};
use crate::hash;

/// Bytes of the header.
pub const LEN: usize = 24;

/// Flags of a packet.
pub mod flag {
    /// The header contains a checksum.
    pub const CHECKED: u16 = 1;
    /// The sender waits: acknowledge at once.
    pub const URGENT: u16 = 2;
    /// In [`super::Kind::Answer`]: the endpoint lives.
    pub const ALIVE: u16 = 4;
    /// The body is encrypted and ends with an authentication tag.
    pub const SEALED: u16 = 8;
    /// All flags.
    pub const ALL: u16 = 15;
}

/// Kinds of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Frames of a session.
    Data = 0,
    /// A client asks for a session.
    Init = 1,
    /// A server asks the client to prove its address.
    Retry = 2,
    /// A server grants a session.
    Accept = 3,
    /// The session does not exist.
    Reset = 4,
    /// Asks a liveness port whether an endpoint lives.
    Ask = 5,
    /// The answer to `Ask`.
    Answer = 6,
    /// The versions that a server speaks.
    Versions = 7,
    /// A server refuses a session. The number is a [`crate::Refusal`].
    Refused = 8,
    /// The endpoint from which a session was requested lives, but is not being polled.
    Wait = 10,
}

impl Kind {
    fn parse(kind: u8) -> Result<Self, Malformed> {
        Ok(match kind {
            0 => Self::Data,
            1 => Self::Init,
            2 => Self::Retry,
            3 => Self::Accept,
            4 => Self::Reset,
            5 => Self::Ask,
            6 => Self::Answer,
            7 => Self::Versions,
            8 => Self::Refused,
            10 => Self::Wait,
            other => return Err(Malformed::Kind(other)),
        })
    }
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of datagram.
    pub kind: Kind,
    /// [`flag`].
    pub flags: u16,
    /// The session, by the name that its receiver chose. In liveness packets, the epoch of the endpoint.
    pub session: u64,
    /// One more than that of the previous packet, or two more if a number was skipped; never reused. In liveness
    /// packets, the nonce.
    pub number: u64,
}

impl Header {
    /// A header without flags.
    pub const fn new(kind: Kind, session: u64, number: u64) -> Self {
        Self { kind, flags: 0, session, number }
    }

    /// Writes the header to the front of `packet`, and the checksum of the whole `packet` if the flags say so.
    pub fn write(&self, packet: &mut [u8]) {
        Writer::new(packet)
            .u8(VERSION)
            .u8(self.kind as u8)
            .u16(self.flags)
            .u32(0)
            .u64(self.session)
            .u64(self.number);
        if self.flags & flag::CHECKED != 0
            && let Some((head, body)) = packet.split_first_chunk_mut::<LEN>()
        {
            let sum = hash::crc(&[head, body]);
            head[4..8].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Flags and number of a packet of session `session` that is neither checked nor sealed. `None` for any other
    /// packet, and for malformed ones.
    #[inline]
    pub fn of_data(packet: &[u8], session: u64) -> Option<(u16, u64)> {
        let head = packet.first_chunk::<LEN>()?;
        let word = |at: usize| head[at..].first_chunk::<8>().map(|word| u64::from_be_bytes(*word));
        let (front, name, number) = (word(0)?, word(8)?, word(16)?);
        let flags = (front >> 32) as u16;
        let plain =
            front == (u64::from(VERSION) << 56) | (u64::from(flags) << 32) | (Kind::Data as u64) << 48;
        (plain && name == session && flags & !flag::URGENT == 0).then_some((flags, number))
    }

    /// Parses `packet`: its header, and the bytes after it.
    ///
    /// # Errors
    /// The header is malformed. The version is checked first.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut reader = Reader(packet);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let (kind, flags, sum) = (reader.u8()?, reader.u16()?, reader.u32()?);
        let (session, number) = (reader.u64()?, reader.u64()?);
        if flags & !flag::ALL != 0 {
            return Err(Malformed::Field("flags"));
        }
        if flags & flag::CHECKED != 0 {
            let head: &[u8] = packet.get(..LEN).ok_or(Malformed::Truncated)?;
            if hash::crc(&[&head[..4], &[0; 4], &head[8..], reader.0]) != sum {
                return Err(Malformed::Checksum);
            }
        } else if sum != 0 {
            return Err(Malformed::Field("checksum"));
        }
        Ok((Self { kind: Kind::parse(kind)?, flags, session, number }, reader.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_of_a_checked_packet_shows() {
        let header = Header { flags: flag::CHECKED, ..Header::new(Kind::Accept, 0x1122_3344_5566_7788, 99) };
        let mut packet = [7u8; LEN + 13];
        header.write(&mut packet);
        assert_eq!(Header::parse(&packet), Ok((header, &[7u8; 13][..])));
        for bit in 0..packet.len() * 8 {
            let mut bad = packet;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bad).is_err(), "bit {bit}");
        }
        for len in 0..LEN {
            assert!(Header::parse(&packet[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_plain_data_packet_is_seen_as_what_it_parses_to_and_nothing_else_is() {
        let session = 0x1122_3344_5566_7788;
        for flags in [0, flag::URGENT] {
            let header = Header { flags, ..Header::new(Kind::Data, session, 99) };
            let mut packet = [0u8; LEN + 3];
            header.write(&mut packet);
            assert_eq!(Header::of_data(&packet, session), Some((flags, 99)));
            assert_eq!(Header::of_data(&packet, session + 1), None);
            assert!((0..LEN).all(|len| Header::of_data(&packet[..len], session).is_none()));
            for bit in 0..LEN * 8 {
                let mut other = packet;
                other[bit / 8] ^= 1 << (bit % 8);
                if let Some((flags, number)) = Header::of_data(&other, session) {
                    let parsed = Header { flags, ..Header::new(Kind::Data, session, number) };
                    assert_eq!(Header::parse(&other).unwrap().0, parsed, "bit {bit}");
                    assert!(bit >= 16 * 8 || flags != header.flags, "bit {bit}");
                }
            }
        }
    }
}
