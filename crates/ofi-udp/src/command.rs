//! The records of a session (`docs/protocol.md`, "Commands"). All numbers are in network byte order.

/// Maximum bytes of queued records in the stream to a peer. A full stream accepts no more.
pub const STREAM_LIMIT: usize = 1 << 20;

/// A flag of [`kind::SEND`]: a receive was posted when the announcement arrived, so later messages may be sent ahead of
/// their request.
pub const READY: u8 = 32;

/// Kinds of records on the stream of commands.
pub mod kind {
    /// A short message: op if `CONFIRM`, tag, data, payload.
    pub const MESSAGE: u8 = 1;
    /// A long message, whose payload stays with the sender: op, length, tag, data.
    pub const ANNOUNCE: u8 = 2;
    /// A short remote write: op, pieces, data, payload.
    pub const WRITE: u8 = 3;
    /// A long remote write: op, pieces, data; its payload follows as `WRITE_PART`s.
    pub const WRITE_LONG: u8 = 4;
    /// A part of the last long write: op, offset, bytes.
    pub const WRITE_PART: u8 = 5;
    /// A remote read: op, pieces.
    pub const READ: u8 = 6;
    /// An atomic operation: op, executor, pieces, operands, comparands. Answered like a read, or by `DONE`.
    pub const ATOMIC: u8 = 7;
    /// A packet of connection management, of the core.
    pub const CONNECTION: u8 = 8;
    /// A note of the core: four words, payload.
    pub const NOTE: u8 = 9;
    /// As `ANNOUNCE`; the payload follows at once, as `PART_AHEAD`s.
    pub const AHEAD: u8 = 10;
    /// A part of the last such payload: op, offset, bytes.
    pub const PART_AHEAD: u8 = 11;

    // On the stream of answers and payloads:
    /// An operation of the receiver has ended: op, errno.
    pub const DONE: u8 = 16;
    /// Requests an announced payload: op, destination, bytes.
    pub const SEND: u8 = 17;
    /// A part of a requested payload: destination, offset, bytes.
    pub const MESSAGE_PART: u8 = 18;
    /// A part of a read's answer: op, offset, bytes.
    pub const READ_PART: u8 = 19;
    /// 1: the sender of this record wants payloads announced. 0: no longer.
    pub const KEEP: u8 = 20;
}
