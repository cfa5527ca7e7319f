//! What is kept of an operation until it ends, and payloads by their names.

use ofi_api::Piece;
use ofi_core::transport::Payload;

/// What this transport keeps of an operation that has not ended.
pub enum Op {
    /// A short message that waits for its arrival.
    Sent,
    /// A message that was injected before there was a session with its peer.
    Injected,
    /// A short message or write that waits for word from the peer.
    Confirm,
    /// An announced message.
    Message {
        /// Its payload.
        payload: Payload,
        /// It ends only when the peer says so.
        confirm: bool,
        /// Bytes in all.
        len: usize,
        /// The peer has asked for it.
        asked: bool,
    },
    /// A long remote write.
    Write(Payload),
    /// A remote read.
    Read {
        /// Where it goes.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Bytes in all.
        len: usize,
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
