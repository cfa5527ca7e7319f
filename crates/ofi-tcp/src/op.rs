//! The state of an operation in flight, and names of payloads that are not with the core yet.

use ofi_api::Piece;
use ofi_core::slots::SlotId;
use ofi_core::transport::Payload;

/// This transport's state of an operation in flight.
pub enum TcpOp {
    /// A message or a write whose bytes are copied, and which ends with the peer's acknowledgement.
    Confirm,
    /// A message or a write that is sent from application memory.
    Send {
        /// Its bytes.
        payload: Payload,
        /// It ends with the peer's acknowledgement, otherwise when the kernel has all of it.
        confirm: bool,
        /// Parts of its bytes that the kernel does not have all of: one, or its stripes.
        stripes: u8,
    },
    /// A remote read.
    Read {
        /// Its destination.
        pieces: Box<[Piece]>,
        /// Bytes in all.
        len: usize,
    },
}

/// Names a payload (`Transport::Token`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A payload that arrives, or has arrived, before its receive: the peer's number for it.
    Spool(SlotId),
    /// The peer has announced it, on this connection and by this number.
    Announced(SlotId, u8),
}
