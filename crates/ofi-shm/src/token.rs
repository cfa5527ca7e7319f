//! Names of payloads at the sender and at the receiver.

use ofi_core::slots::SlotId;

/// Names a payload at its sender (`Transport::Token`).
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The sender's operation.
    pub op: u64,
    /// Flags of the announcement.
    pub high: u32,
    /// The key of the library memory that holds the payload, 0 for none, and where it lies. With `LENT` in the flags,
    /// the ticket and the address of application memory that may be read (`single/`).
    pub key: u64,
    pub offset: u64,
}

/// The destination of a payload.
#[derive(Clone, Copy)]
pub enum Sink {
    /// A receive.
    Receive(SlotId),
    /// A write of the peer that this end executes.
    Write(SlotId),
    /// A read of this end.
    Read(SlotId),
}

impl Sink {
    /// Whether it is a remote access, not a message.
    pub const fn is_access(self) -> bool {
        !matches!(self, Self::Receive(_))
    }
}
