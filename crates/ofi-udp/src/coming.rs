//! How packets came that are being taken, and what would go on with the payload in them.

use ofi_core::transport::Peer;
use ofi_rdm::Stream;

use crate::parts::Parts;

/// The part of a payload that would go on with what came last.
#[derive(Clone, Copy)]
pub struct Next {
    pub peer: Peer,
    pub stream: Stream,
    pub kind: u8,
    /// Whose payload it is.
    pub id: u64,
    /// Where in the payload it begins.
    pub at: u64,
    /// How the part before it came.
    pub came: Coming,
}

/// Packets that came in one message of the kernel's, and are being taken.
#[derive(Clone, Copy, Default)]
pub struct Coming {
    /// Bytes of each but the last.
    pub packet: usize,
    /// How many came in the message.
    pub of: usize,
    /// Their payloads are where they belong.
    pub placed: bool,
}

impl Coming {
    /// What goes on with these parts, which came so.
    pub fn next(self, peer: Peer, stream: Stream, kind: u8, parts: &Parts<'_>) -> Next {
        Next { peer, stream, kind, id: parts.id, at: parts.at + parts.len as u64, came: self }
    }
}
