//! Write and read requests (RTW, RTR; sections 3.3, 4.1, 4.2).

use super::cursor::Reader;
use super::request::Options;
use super::{Header, Malformed, Origin, Own, flag, kind};

/// A piece of memory of the packet's receiver, or of its sender if the receiver is to read it (`efa_rma_iov`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iov {
    /// Its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key of its registration.
    pub key: u64,
}

/// Up to [`Iovs::MAX_PIECES`] pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iovs {
    all: [Iov; Iovs::MAX_PIECES],
    count: usize,
}

impl Iovs {
    /// Maximum number of pieces, as in C libfabric (`EFA_RDM_IOV_LIMIT`).
    pub const MAX_PIECES: usize = 4;

    /// Collects pieces; `None` if there are too many.
    pub fn new(iovs: impl IntoIterator<Item = Iov>) -> Option<Self> {
        let mut these = Self::default();
        for iov in iovs {
            *these.all.get_mut(these.count)? = iov;
            these.count += 1;
        }
        Some(these)
    }

    pub(super) fn encode(&self, header: &mut Header) {
        for iov in &**self {
            header.u64(iov.addr).u64(iov.len).u64(iov.key);
        }
    }

    pub(super) fn parse(count: u32, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut these = Self::default();
        for _ in 0..count {
            let here = these.all.get_mut(these.count).ok_or(Malformed::Field("iov_count"))?;
            *here = Iov { addr: reader.u64()?, len: reader.len("iov.len")? as u64, key: reader.u64()? };
            these.count += 1;
        }
        Ok(these)
    }

    /// Fails unless the pieces have `len` bytes in total.
    pub(super) fn cover(&self, len: usize) -> Result<(), Malformed> {
        let total = self.iter().try_fold(0u64, |sum, iov| sum.checked_add(iov.len));
        if total == Some(len as u64) { Ok(()) } else { Err(Malformed::Field("iov.len")) }
    }
}

impl std::ops::Deref for Iovs {
    type Target = [Iov];

    fn deref(&self) -> &[Iov] {
        &self.all[..self.count]
    }
}

/// How a write's payload arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteForm<'a> {
    /// The payload is in this packet.
    Eager(&'a [u8]),
    /// The requester sends the payload as the responder clears it.
    LongCts {
        /// Total bytes.
        len: usize,
        /// Number of data packets for which the requester requests initial credit.
        credits: u32,
        /// The first bytes.
        payload: &'a [u8],
    },
    /// The responder reads the payload.
    LongRead {
        /// Total bytes.
        len: usize,
        /// The payload's memory at the requester.
        from: Iovs,
    },
}

impl<'a> WriteForm<'a> {
    /// The bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Self::Eager(payload) | Self::LongCts { payload, .. } => payload,
            Self::LongRead { .. } => &[],
        }
    }
}

/// A remote write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The target memory.
    pub remote: Iovs,
    /// CQ data.
    pub data: Option<u64>,
    /// Whether the requester wants a receipt.
    pub confirm: bool,
    /// The requester's number of the write; 0 if the packet has no such field.
    pub send_id: u32,
    /// The part between endpoints of this library.
    pub own: Own,
    /// Its number among the accesses to its receiver, between endpoints of this library; else 0.
    pub number: u64,
    /// How its payload arrives.
    pub form: WriteForm<'a>,
}

impl<'a> Write<'a> {
    /// Encodes all but the payload.
    pub fn encode(&self, origin: Origin) -> Header {
        let what = match (&self.form, self.confirm) {
            (WriteForm::Eager(_), false) => kind::EAGER_RTW,
            (WriteForm::Eager(_), true) => kind::DC_EAGER_RTW,
            (WriteForm::LongCts { .. }, false) => kind::LONGCTS_RTW,
            (WriteForm::LongCts { .. }, true) => kind::DC_LONGCTS_RTW,
            (WriteForm::LongRead { .. }, _) => kind::LONGREAD_RTW,
        };
        let options = Options { data: self.data, own: self.own, number: self.number };
        let mut header = Header::new(what, options.flags(origin) | flag::RMA);
        header.u32(self.remote.len() as u32);
        let mut from = Iovs::default();
        match self.form {
            WriteForm::Eager(_) if self.confirm => {
                header.u32(self.send_id).u32(0);
            }
            WriteForm::Eager(_) => {}
            WriteForm::LongCts { len, credits, .. } => {
                header.len_of(len).u32(self.send_id).u32(credits);
            }
            WriteForm::LongRead { len, from: iovs } => {
                header.len_of(len).u32(self.send_id).u32(iovs.len() as u32);
                from = iovs;
            }
        }
        self.remote.encode(&mut header);
        options.encode(origin, &mut header);
        from.encode(&mut header);
        header
    }

    pub(super) fn parse(what: u8, flags: u16, mut reader: Reader<'a>) -> Result<(Origin, Self), Malformed> {
        let r = &mut reader;
        let count = r.u32()?;
        let confirm = matches!(what, kind::DC_EAGER_RTW | kind::DC_LONGCTS_RTW);
        let (mut len, mut send_id, mut count_or_credits) = (0, 0, 0);
        match what {
            kind::EAGER_RTW => {}
            kind::DC_EAGER_RTW => (send_id, _) = (r.u32()?, r.u32()?),
            _ => (len, send_id, count_or_credits) = (r.len("msg_length")?, r.u32()?, r.u32()?),
        }
        let remote = Iovs::parse(count, r)?;
        let (origin, options) = Options::parse(flags, r)?;
        let form = match what {
            kind::EAGER_RTW | kind::DC_EAGER_RTW => {
                // A write without pieces only requests a handshake.
                remote.cover(r.0.len())?;
                WriteForm::Eager(reader.0)
            }
            kind::LONGREAD_RTW => {
                let from = Iovs::parse(count_or_credits, r)?;
                from.cover(len)?;
                remote.cover(len)?;
                WriteForm::LongRead { len, from }
            }
            _ => {
                remote.cover(len)?;
                if r.0.len() > len {
                    return Err(Malformed::Field("msg_length"));
                }
                WriteForm::LongCts { len, credits: count_or_credits, payload: reader.0 }
            }
        };
        let Options { data, own, number } = options;
        Ok((origin, Self { remote, data, confirm, send_id, own, number, form }))
    }
}

/// A remote read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The source memory.
    pub remote: Iovs,
    /// Total bytes.
    pub len: usize,
    /// The requester's number of the read.
    pub recv_id: u32,
    /// Bytes that the responder may send at once; `None` if one packet holds all.
    pub cleared: Option<u32>,
    /// Its number among the accesses to its receiver, between endpoints of this library; else 0.
    pub number: u64,
}

impl Read {
    /// Encodes the whole packet.
    pub fn encode(&self, origin: Origin) -> Header {
        let options = Options { number: self.number, ..Options::default() };
        let what = if self.cleared.is_some() { kind::LONGCTS_RTR } else { kind::SHORT_RTR };
        let mut header = Header::new(what, options.flags(origin) | flag::RMA);
        header.u32(self.remote.len() as u32).len_of(self.len);
        header.u32(self.recv_id).u32(self.cleared.unwrap_or(0));
        self.remote.encode(&mut header);
        options.encode(origin, &mut header);
        header
    }

    pub(super) fn parse(what: u8, flags: u16, mut reader: Reader<'_>) -> Result<(Origin, Self), Malformed> {
        let r = &mut reader;
        let (count, len, recv_id, cleared) = (r.u32()?, r.len("msg_length")?, r.u32()?, r.u32()?);
        let remote = Iovs::parse(count, r)?;
        remote.cover(len)?;
        let (origin, options) = Options::parse(flags, r)?;
        let cleared = (what == kind::LONGCTS_RTR).then_some(cleared);
        Ok((origin, Self { remote, len, recv_id, cleared, number: options.number }))
    }
}
