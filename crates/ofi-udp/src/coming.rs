//! How the current packets arrived, and what would continue the payload in them.

use ofi_core::transport::Peer;
use ofi_rdm::Stream;

use crate::parts::Parts;

/// The part of a payload that would continue the last one.
#[derive(Clone, Copy)]
pub struct Next {
    pub peer: Peer,
    pub stream: Stream,
    pub kind: u8,
    /// The name of the payload.
    pub id: u64,
    /// Where in the payload it begins.
    pub at: u64,
    /// How the previous part arrived.
    pub came: Coming,
}

/// Packets of one message from the kernel that are being processed.
#[derive(Clone, Copy, Default)]
pub struct Coming {
    /// Bytes of each but the last.
    pub packet: usize,
    /// Number of datagrams in the message.
    pub of: usize,
    /// Their payloads are in place.
    pub placed: bool,
}

impl Coming {
    /// The continuation of these parts, which arrived in this way.
    pub fn next(self, peer: Peer, stream: Stream, kind: u8, parts: &Parts<'_>) -> Next {
        Next { peer, stream, kind, id: parts.id, at: parts.at + parts.len as u64, came: self }
    }
}
