//! Packets about operations in flight (chapters 3 and 4: CTS, CTSDATA, READRSP, EOR, ATOMRSP, RECEIPT, READ_NACK,
//! PEER_ERROR).

use super::cursor::Reader;
use super::{Answer, Header, Malformed, Origin, flag, kind};

/// The meaning of the number in a PEER_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// An operation of the receiver.
    Operation(u32),
    /// A message of the sender, whose first parts may have arrived.
    Message(u32),
    /// A message of the sender, no part of which will arrive.
    Skipped(u32),
}

/// A control packet about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// The sender of `send_id` may send `len` more bytes.
    Cts {
        /// The number of the operation at the receiver of this packet.
        send_id: u32,
        /// The number at the sender of this packet, which the data must carry.
        recv_id: u32,
        /// Number of bytes.
        len: u64,
        /// Whether the credit is for the answer to a read.
        read: bool,
        /// Between endpoints of this library alone: the number of bytes that were cleared before, by which the sender
        /// recognizes a repeated packet.
        before: Option<u64>,
    },
    /// Cleared bytes.
    Data {
        /// The number from the CTS, or from the read.
        recv_id: u32,
        /// Their offset in the transfer.
        offset: u64,
        /// The bytes.
        payload: &'a [u8],
    },
    /// The first bytes of the answer to a read.
    ReadResponse {
        /// The number from the read.
        recv_id: u32,
        /// The number that a CTS must carry.
        send_id: u32,
        /// The bytes.
        payload: &'a [u8],
    },
    /// The receiver has read a payload.
    EndOfRead {
        /// The sender's number of the payload.
        send_id: u32,
        /// The receiver's number of the payload.
        recv_id: u32,
    },
    /// The receiver cannot read a payload.
    ReadNack {
        /// The sender's number of the payload.
        send_id: u32,
        /// The receiver's number of the payload.
        recv_id: u32,
    },
    /// The answer to an atomic operation.
    AtomicResponse(Answer<'a>),
    /// An operation was delivered.
    Receipt {
        /// The number of the operation at the receiver of this packet.
        send_id: u32,
        /// The message id.
        msg_id: u32,
    },
    /// An operation was given up.
    PeerError {
        /// The operation or message.
        what: Abandoned,
        /// The reason, as an error number of the sender's provider.
        errno: u32,
    },
}

impl<'a> Control<'a> {
    /// The bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Self::Data { payload, .. } | Self::ReadResponse { payload, .. } => payload,
            Self::AtomicResponse(answer) => answer.payload,
            _ => &[],
        }
    }

    /// Encodes all but the payload.
    pub fn encode(&self, connid: u32) -> Header {
        let new = |what, flags| Header::new(what, flag::CONNID | flags);
        match *self {
            Self::Cts { send_id, recv_id, len, read, before } => {
                let own = if before.is_some() { flag::OWN } else { 0 };
                let mut header = new(kind::CTS, own | if read { flag::CTS_READ } else { 0 });
                header.u32(connid).u32(send_id).u32(recv_id).u64(len);
                if let Some(before) = before {
                    header.u64(before);
                }
                header
            }
            Self::Data { recv_id, offset, payload } => {
                let mut header = new(kind::CTSDATA, 0);
                header.u32(recv_id).len_of(payload.len()).u64(offset).u32(connid).u32(0);
                header
            }
            Self::ReadResponse { recv_id, send_id, payload } => {
                let mut header = new(kind::READRSP, 0);
                header.u32(connid).u32(recv_id).u32(send_id).len_of(payload.len());
                header
            }
            Self::EndOfRead { send_id, recv_id } => {
                let mut header = new(kind::EOR, 0);
                header.u32(send_id).u32(recv_id).u32(connid);
                header
            }
            Self::ReadNack { send_id, recv_id } => {
                let mut header = new(kind::READ_NACK, 0);
                header.u32(send_id).u32(recv_id).u32(connid);
                header
            }
            Self::AtomicResponse(Answer { recv_id, payload }) => {
                let mut header = new(kind::ATOMRSP, 0);
                header.u32(connid).u32(0).u32(recv_id).len_of(payload.len());
                header
            }
            Self::Receipt { send_id, msg_id } => {
                let mut header = new(kind::RECEIPT, 0);
                header.u32(send_id).u32(msg_id).u32(connid);
                header
            }
            Self::PeerError { what, errno } => {
                let (what, id) = match what {
                    Abandoned::Operation(id) => (0, id),
                    Abandoned::Message(id) => (1, id),
                    Abandoned::Skipped(id) => (2, id),
                };
                let mut header = new(kind::PEER_ERROR, 0);
                header.u32(id).u32(what).u32(errno).u32(connid);
                header
            }
        }
    }

    pub(super) fn parse(what: u8, flags: u16, mut reader: Reader<'a>) -> Result<(Origin, Self), Malformed> {
        let said = |connid| match flags & flag::CONNID {
            0 => Origin::Unsaid,
            _ => Origin::Connid(connid),
        };
        Ok(match what {
            kind::CTS => {
                let origin = said(reader.u32()?);
                let (send_id, recv_id, len) = (reader.u32()?, reader.u32()?, reader.u64()?);
                let before = if flags & flag::OWN != 0 { Some(reader.u64()?) } else { None };
                (origin, Self::Cts { send_id, recv_id, len, read: flags & flag::CTS_READ != 0, before })
            }
            kind::CTSDATA => {
                let (recv_id, len, offset) = (reader.u32()?, reader.len("seg_length")?, reader.u64()?);
                let mut origin = Origin::Unsaid;
                if flags & flag::CONNID != 0 {
                    origin = Origin::Connid(reader.u32()?);
                    reader.u32()?;
                }
                (origin, Self::Data { recv_id, offset, payload: reader.take(len)? })
            }
            kind::READRSP => {
                let origin = said(reader.u32()?);
                let (recv_id, send_id, len) = (reader.u32()?, reader.u32()?, reader.len("seg_length")?);
                (origin, Self::ReadResponse { recv_id, send_id, payload: reader.take(len)? })
            }
            kind::ATOMRSP => {
                let origin = said(reader.u32()?);
                reader.u32()?;
                let (recv_id, len) = (reader.u32()?, reader.len("seg_length")?);
                (origin, Self::AtomicResponse(Answer { recv_id, payload: reader.take(len)? }))
            }
            kind::EOR | kind::READ_NACK => {
                let (send_id, recv_id) = (reader.u32()?, reader.u32()?);
                let origin = said(reader.u32()?);
                match what {
                    kind::EOR => (origin, Self::EndOfRead { send_id, recv_id }),
                    _ => (origin, Self::ReadNack { send_id, recv_id }),
                }
            }
            kind::RECEIPT => {
                let (send_id, msg_id) = (reader.u32()?, reader.u32()?);
                (said(reader.u32()?), Self::Receipt { send_id, msg_id })
            }
            kind::PEER_ERROR => {
                let (id, what, errno) = (reader.u32()?, reader.u32()?, reader.u32()?);
                let what = match what {
                    0 => Abandoned::Operation(id),
                    1 => Abandoned::Message(id),
                    2 => Abandoned::Skipped(id),
                    _ => return Err(Malformed::Field("ref_kind")),
                };
                (said(reader.u32()?), Self::PeerError { what, errno })
            }
            other => return Err(Malformed::Type(other)),
        })
    }
}
