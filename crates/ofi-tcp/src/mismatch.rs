//! Ends that do not agree on encryption: each sees it by the other's first bytes, says so by an alert of TLS, and ends
//! the connection. An end of C libfabric takes the alert for a connection message of another version, and closes.

use std::fmt;
use std::os::fd::BorrowedFd;

use ofi_api::Errno;

use crate::sys;

/// The record types of TLS that begin a conversation.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// A fatal alert, `access_denied`, as one record in the clear.
const DENIED: [u8; 7] = [ALERT, 3, 3, 0, 2, 2, 49];

/// Why two ends do not come together.
#[cfg_attr(not(feature = "encryption"), allow(dead_code))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The peer encrypts, and this end has neither an authorization key nor certificates.
    Encrypted,
    /// This end encrypts, and the peer does not speak TLS.
    Clear,
    /// The peer has another authorization key, or a certificate that does not count, or refuses this end's.
    Key(String),
    /// The peer sees other addresses than this end.
    Address,
    /// The peer breaks TLS, or somebody changes the bytes.
    Broken(String),
}

impl Mismatch {
    /// The error of operations with the peer.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Encrypted | Self::Clear | Self::Key(_) => Errno::EKEYREJECTED,
            Self::Address => Errno::EADDRNOTAVAIL,
            Self::Broken(_) => Errno::ECONNRESET,
        }
    }

    /// Whether the peer is excluded, by a key or an address, and another attempt would change nothing.
    pub fn is_final(errno: Errno) -> bool {
        errno == Errno::EKEYREJECTED || errno == Errno::EADDRNOTAVAIL
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Encrypted => f.write_str(
                "the peer encrypts, and this endpoint has no authorization key and no FI_TCP_TLS_CERT",
            ),
            Self::Clear => f.write_str(
                "this endpoint encrypts, and the peer does not: it has no authorization key and no FI_TCP_TLS_CERT, or \
                 is of C libfabric",
            ),
            Self::Key(why) => write!(f, "the peer has another authorization key or certificate: {why}"),
            Self::Address => f.write_str(
                "the peer sees other addresses than this endpoint (NAT): if that is intended, set \
                 FI_TCP_ADDRESS_TRANSLATION=1 at both ends",
            ),
            Self::Broken(why) => write!(f, "the peer broke TLS: {why}"),
        }
    }
}

/// Whether `bytes`, the first of a peer, begin a record of TLS.
pub fn begins_tls(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(ALERT | HANDSHAKE)))
}

/// Tells a peer that it is refused: the end that encrypts to one that does not, and the other way round. What the peer
/// has sent is discarded, because the kernel resets a connection that is closed with unread bytes.
pub fn deny(socket: BorrowedFd<'_>) {
    sys::drain(socket);
    let _ = sys::send(socket, &DENIED); // it may be gone
    sys::end_sending(socket);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cm::{CmKind, CmMessage};

    #[test]
    fn connection_messages_and_records_are_told_apart_by_their_first_byte() {
        for kind in [CmKind::Request, CmKind::Response, CmKind::Refusal] {
            let message = CmMessage::new(kind, b"").encode();
            assert!(!begins_tls(&message));
        }
        assert!(begins_tls(&DENIED) && begins_tls(&[HANDSHAKE]));
        assert!(CmMessage::parse(&DENIED).is_err(), "an end of C, too, refuses it at once");
    }
}
