//! The state of an operation in flight.

use ofi_api::Piece;
use ofi_core::transport::Payload;

use crate::exposed_buffer::ExposedBuffer;

/// This transport's state of an operation in flight.
pub enum Op {
    /// A message in the ring that waits for the peer's answer.
    Confirm,
    /// An announced message.
    Message {
        /// Its payload.
        payload: Payload,
        /// It completes only when the peer confirms it.
        confirm: bool,
        /// The peer may read it.
        lend: Option<Box<ExposedBuffer>>,
    },
    /// A remote write that the peer executes, and whose source it may read.
    Write(Payload, Option<Box<ExposedBuffer>>),
    /// A remote read that the peer executes.
    Read {
        /// Its destination.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Bytes in all.
        len: usize,
        /// Their path.
        coming: ReadPath,
    },
    /// A remote access that waits for a grant.
    Parked,
}

/// The path of a read's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPath {
    /// The peer decides.
    Asked,
    /// This end chooses the path, or has decided against parts.
    Offered,
    /// In parts, as this end has chosen; `true` if the duration is measured.
    Parts(bool),
    /// The peer chooses the path, but its offers are declined, because the bytes are no longer needed.
    Unwanted,
}

impl Op {
    /// Whether it is a remote access that the peer executes.
    pub const fn is_commanded(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Read { .. })
    }
}
