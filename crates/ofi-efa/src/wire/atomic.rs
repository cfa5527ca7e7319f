//! Atomic requests (RTA; sections 3.3 and 4.2), and their answers.

use super::cursor::Reader;
use super::request::Options;
use super::{Header, Iovs, Malformed, Origin, flag, kind};

/// The old values of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The number from the request.
    pub recv_id: u32,
    /// The values.
    pub payload: &'a [u8],
}

/// An atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Atomic<'a> {
    /// [`kind::WRITE_RTA`], [`kind::FETCH_RTA`], [`kind::COMPARE_RTA`] or [`kind::DC_WRITE_RTA`].
    pub kind: u8,
    /// Its id among all messages to its receiver.
    pub msg_id: u32,
    /// The target memory.
    pub remote: Iovs,
    /// `enum fi_datatype`.
    pub datatype: u32,
    /// `enum fi_op`.
    pub op: u32,
    /// The requester's number of the operation; 0 for [`kind::WRITE_RTA`].
    pub id: u32,
    /// The operands, followed by the comparands.
    pub payload: &'a [u8],
}

impl<'a> Atomic<'a> {
    /// Everything but the payload.
    pub fn encode(&self, origin: Origin) -> Header {
        let options = Options::default();
        let mut header = Header::new(self.kind, options.flags(origin) | flag::ATOMIC);
        header.u32(self.msg_id).u32(self.remote.len() as u32).u32(self.datatype).u32(self.op).u32(self.id);
        self.remote.encode(&mut header);
        options.encode(origin, &mut header);
        header
    }

    pub(super) fn parse(kind: u8, flags: u16, mut reader: Reader<'a>) -> Result<(Origin, Self), Malformed> {
        let r = &mut reader;
        let (msg_id, count, datatype, op, id) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let remote = Iovs::parse(count, r)?;
        let (origin, _) = Options::parse(flags, r)?;
        let id = if kind == kind::WRITE_RTA { 0 } else { id };
        Ok((origin, Self { kind, msg_id, remote, datatype, op, id, payload: reader.0 }))
    }
}
