//! Packets about operations that are under way (chapters 3 and 4: CTS, CTSDATA, READRSP, EOR, ATOMRSP, RECEIPT,
//! READ_NACK, PEER_ERROR).

use super::cursor::Reader;
use super::{Answer, Header, Malformed, Origin, flag, kind};

/// What the number in a PEER_ERROR is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// An operation of the receiver.
    Operation(u32),
    /// A message of the sender, whose first parts may have arrived.
    Message(u32),
    /// A message of the sender, of which nothing will arrive.
    Skipped(u32),
}

/// Word about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// The sender of `send_id` may send so many more bytes.
    Cts {
        /// Names the operation to the receiver of this.
        send_id: u32,
        /// Names it to the sender of this: to be put in the data.
        recv_id: u32,
        /// Bytes.
        len: u64,
        /// It is for what answers a read.
        read: bool,
    },
    /// Bytes that were cleared.
    Data {
        /// As the CTS had it, or the read.
        recv_id: u32,
        /// Where they belong.
        offset: u64,
        /// The bytes.
        payload: &'a [u8],
    },
    /// The first bytes that answer a read.
    ReadResponse {
        /// As the read had it.
        recv_id: u32,
        /// For a CTS.
        send_id: u32,
        /// The bytes.
        payload: &'a [u8],
    },
    /// A payload has been read.
    EndOfRead {
        /// Names it to its sender.
        send_id: u32,
        /// Names it to its receiver.
        recv_id: u32,
    },
    /// A payload cannot be read.
    ReadNack {
        /// Names it to its sender.
        send_id: u32,
        /// Names it to its receiver.
        recv_id: u32,
    },
    /// What an atomic operation answers.
    AtomicResponse(Answer<'a>),
    /// An operation was delivered.
    Receipt {
        /// Names it to the receiver of this.
        send_id: u32,
        /// The message.
        msg_id: u32,
    },
    /// An operation was given up.
    PeerError {
        /// Which.
        what: Abandoned,
        /// Why, as the sender's provider numbers its errors.
        errno: u32,
    },
}

impl<'a> Control<'a> {
    /// The bytes behind the header.
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Self::Data { payload, .. } | Self::ReadResponse { payload, .. } => payload,
            Self::AtomicResponse(answer) => answer.payload,
            _ => &[],
        }
    }

    /// Everything but the payload.
    pub fn encode(&self, connid: u32) -> Header {
        let new = |what, flags| Header::new(what, flag::CONNID | flags);
        match *self {
            Self::Cts { send_id, recv_id, len, read } => {
                let mut header = new(kind::CTS, if read { flag::CTS_READ } else { 0 });
                header.u32(connid).u32(send_id).u32(recv_id).u64(len);
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
                (origin, Self::Cts { send_id, recv_id, len, read: flags & flag::CTS_READ != 0 })
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
