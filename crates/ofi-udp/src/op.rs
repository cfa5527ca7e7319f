//! The state of an operation in flight, and the tokens of payloads.

use ofi_api::Piece;
use ofi_core::transport::Payload;

/// This transport's state of an operation in flight.
pub enum Op {
    /// A short message that is not acknowledged yet.
    Sent,
    /// A message that was injected before there was a session with its peer.
    Injected,
    /// A short message or write that waits for the peer's answer.
    Confirm,
    /// An announced message.
    Message {
        /// Its payload.
        payload: Payload,
        /// It completes only when the peer confirms it.
        confirm: bool,
        /// Bytes in all.
        len: usize,
        /// The peer has requested it.
        asked: bool,
    },
    /// A long remote write.
    Write(Payload),
    /// A remote read.
    Read {
        /// Its destination.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Bytes in all.
        len: usize,
        /// The bytes arrived in order, so none beyond `got` is there.
        in_order: bool,
    },
}

/// Names a payload at its sender (`Transport::Token`).
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The sender's operation.
    pub op: u64,
    /// Flags of the announcement.
    pub flags: u8,
}
