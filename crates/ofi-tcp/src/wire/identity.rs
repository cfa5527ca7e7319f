//! The payload of a connection message between endpoints of `FI_EP_RDM`: 8 bytes, numbers in network byte order.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version; an answer has bit 7 if it was negotiated |
//! | 1 | features |
//! | 2..4 | port of the requester's listener |
//! | 4..8 | process of the sender |

/// This end's version: tagged messages may be announced, and asked for ([`super::Packet::Rts`]).
const VERSION: u8 = 1;
/// The bit of an answer whose version both ends know.
const AGREED: u8 = 0x80;
/// The feature of a sender that cannot be connected to.
const FIREWALLED: u8 = 1;

/// The payload of a connection message between endpoints of `FI_EP_RDM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of the protocol.
    pub version: u8,
    /// What the sender says about itself.
    pub features: u8,
    /// The port of the requester's listener: with the address that the connection comes from, its name.
    pub port: u16,
    /// The sender's process, which tells a restarted endpoint from a second connection.
    pub process: u32,
}

impl Identity {
    /// Of an endpoint whose listener has `port`.
    pub const fn new(port: u16, process: u32) -> Self {
        Self { version: VERSION, features: 0, port, process }
    }

    /// The answer to a request.
    pub fn answer(&self, process: u32) -> Self {
        let version = if self.version == 0 { 0 } else { VERSION.min(self.version) | AGREED };
        Self { version, features: self.features & FIREWALLED, port: self.port, process }
    }

    /// Whether a sender of this request, or of this answer to a request of this end, takes announced messages.
    pub fn takes_announcements(&self, is_answer: bool) -> bool {
        if is_answer { self.version == VERSION | AGREED } else { self.version >= VERSION }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; 8] {
        let (port, process) = (self.port.to_be_bytes(), self.process.to_be_bytes());
        [self.version, self.features, port[0], port[1], process[0], process[1], process[2], process[3]]
    }

    /// From the front of a payload; `None` if it is too short. Later versions may have more.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (bytes, _) = payload.split_first_chunk::<8>()?;
        let [version, features, ref numbers @ ..] = *bytes;
        let [high, low, ref process @ ..] = *numbers;
        let port = u16::from_be_bytes([high, low]);
        Some(Self { version, features, port, process: u32::from_be_bytes(*process) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_c_s() {
        let captured = [0x01, 0x00, 0xaf, 0x45, 0x00, 0x00, 0x7f, 0xe5];
        let request = Identity::parse(&captured).unwrap();
        assert_eq!(request, Identity::new(0xaf45, 0x7fe5));
        assert_eq!(request.encode(), captured);
        assert_eq!(request.answer(0x7fb9).encode(), [0x81, 0x00, 0xaf, 0x45, 0x00, 0x00, 0x7f, 0xb9]);
        assert_eq!(Identity::parse(&captured[..7]), None);
        assert_eq!(Identity::parse(&[&captured[..], &[9]].concat()), Some(request));
    }

    #[test]
    fn only_both_ends_of_version_1_announce() {
        // 1.19 and older echo the request; 1.17 asks with version 0.
        let asked = |version| Identity { version, ..Identity::new(1, 2) };
        for (version, answer, request) in
            [(0, 0, false), (1, 0x81, true), (2, 0x81, true), (0x81, 0x81, true)]
        {
            assert_eq!(asked(version).answer(3).version, answer);
            assert_eq!(asked(version).takes_announcements(false), request);
        }
        for (answer, expected) in [(0, false), (1, false), (0x80, false), (0x81, true), (0x82, false)] {
            assert_eq!(asked(answer).takes_announcements(true), expected, "{answer}");
        }
    }
}
