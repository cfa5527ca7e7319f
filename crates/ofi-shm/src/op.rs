//! What is kept of an operation until it ends.

use ofi_api::Piece;
use ofi_core::transport::Payload;

use crate::lend::Lend;

/// What this transport keeps of an operation that has not ended.
pub enum Op {
    /// A message that is in the ring: waits for word from the peer.
    Confirm,
    /// An announced message.
    Message {
        /// Its payload.
        payload: Payload,
        /// It ends only when the peer says so.
        confirm: bool,
        /// The peer may read it.
        lend: Option<Box<Lend>>,
    },
    /// A remote write that the peer serves, and may read.
    Write(Payload, Option<Box<Lend>>),
    /// A remote read that the peer serves.
    Read {
        /// Where it goes.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Bytes in all.
        len: usize,
        /// How they come.
        coming: Coming,
    },
    /// A remote access that waits for a grant.
    Parked,
}

/// How the bytes of a read come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// As the peer decides.
    Asked,
    /// This end decides, or has: not in parts.
    Offered,
    /// In parts, as this end decided; `true`: how long that takes is measured.
    Parts(bool),
    /// As the peer decides, but for an offer: nobody wants them any more.
    Unwanted,
}

impl Op {
    /// Whether it is a remote access that the peer serves.
    pub const fn is_commanded(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Read { .. })
    }
}
