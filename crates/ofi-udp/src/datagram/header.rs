//! The header of a datagram message with a tag or remote CQ data (`docs/protocol.md`, "Datagrams").

/// The first byte. No version of the session protocol has this value, which distinguishes the two protocols on one
/// socket.
pub const MAGIC: u8 = 0xd1;
/// Flags, in the second byte.
const TAGGED: u8 = 1;
const DATA: u8 = 2;

/// Maximum length of a header in bytes.
pub const MAX_HEADER_LEN: usize = 4 + 8 + 8;

/// The properties of a message besides its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// Its tag.
    pub tag: Option<u64>,
    /// Its remote CQ data.
    pub data: Option<u64>,
}

impl Envelope {
    /// Writes the header to the start of `to`, which has at least [`MAX_HEADER_LEN`] bytes. Returns its length.
    pub fn write(&self, to: &mut [u8]) -> usize {
        let tagged = if self.tag.is_some() { TAGGED } else { 0 };
        let flags = tagged | if self.data.is_some() { DATA } else { 0 };
        to[..4].copy_from_slice(&[MAGIC, flags, 0, 0]);
        let mut at = 4;
        for word in [self.tag, self.data].into_iter().flatten() {
            to[at..at + 8].copy_from_slice(&word.to_be_bytes());
            at += 8;
        }
        at
    }

    /// The header of a datagram, and what follows it. `None` for bytes without a valid header.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let ([magic, flags, 0, 0], mut rest) = bytes.split_first_chunk::<4>()? else { return None };
        if *magic != MAGIC || flags & !(TAGGED | DATA) != 0 {
            return None;
        }
        let mut word = |there: u8| {
            if flags & there == 0 {
                return Some(None);
            }
            let (word, after) = rest.split_first_chunk::<8>()?;
            rest = after;
            Some(Some(u64::from_be_bytes(*word)))
        };
        let (tag, data) = (word(TAGGED)?, word(DATA)?);
        Some((Self { tag, data }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_inverts_write(tag: Option<u64>, data: Option<u64>, body: Vec<u8>) {
            let envelope = Envelope { tag, data };
            let mut bytes = [0u8; MAX_HEADER_LEN];
            let len = envelope.write(&mut bytes);
            let datagram = [&bytes[..len], &body].concat();
            prop_assert_eq!(Envelope::parse(&datagram), Some((envelope, &body[..])));
        }

        #[test]
        fn what_parses_is_written_the_same_way(mut bytes: Vec<u8>, plausible: bool) {
            if plausible && bytes.len() >= 4 {
                (bytes[0], bytes[1], bytes[2], bytes[3]) = (MAGIC, bytes[1] & 3, 0, 0);
            }
            if let Some((envelope, rest)) = Envelope::parse(&bytes) {
                let mut again = [0u8; MAX_HEADER_LEN];
                let len = envelope.write(&mut again);
                prop_assert_eq!(&[&again[..len], rest].concat(), &bytes);
            }
        }
    }
}
