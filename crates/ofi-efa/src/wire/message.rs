//! Message requests (RTM; sections 3.2, 4.1, 4.2, 4.5).

use super::cursor::Reader;
use super::request::Options;
use super::{Header, Iovs, Malformed, Origin, Own, VERSION, flag, kind};

/// How a message's payload arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form<'a> {
    /// The payload is in this packet.
    Eager {
        /// The whole payload.
        payload: &'a [u8],
    },
    /// The payload is in several packets of this kind, which arrive in any order.
    Medium {
        /// Total bytes.
        len: usize,
        /// The offset of this packet's bytes in the payload.
        offset: usize,
        /// This packet's bytes.
        payload: &'a [u8],
    },
    /// The sender sends the payload as the receiver clears it.
    LongCts {
        /// Total bytes.
        len: usize,
        /// Number of data packets for which the sender requests initial credit.
        credits: u32,
        /// The first bytes.
        payload: &'a [u8],
        /// Whether this follows a READ_NACK of the receiver.
        nacked: bool,
    },
    /// The receiver reads the payload.
    LongRead {
        /// Total bytes.
        len: usize,
        /// The payload's memory at the sender.
        from: Iovs,
    },
    /// The first bytes arrive in packets of this kind; the receiver reads the rest.
    RuntRead {
        /// Total bytes.
        len: usize,
        /// The offset of this packet's bytes in the payload.
        offset: usize,
        /// Number of bytes that arrive in packets.
        runt: usize,
        /// The payload's memory at the sender.
        from: Iovs,
        /// This packet's bytes.
        payload: &'a [u8],
    },
}

impl<'a> Form<'a> {
    /// The bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        match *self {
            Self::Eager { payload }
            | Self::Medium { payload, .. }
            | Self::LongCts { payload, .. }
            | Self::RuntRead { payload, .. } => payload,
            Self::LongRead { .. } => &[],
        }
    }
}

/// The header of the most common eager message: to a peer that knows this end, with no data and no receipt. It equals
/// that of [`Message::encode`], but takes fewer instructions.
#[derive(Clone, Copy)]
pub struct Short {
    bytes: [u8; 20],
    len: usize,
}

impl Short {
    /// No header, for messages over `efa-direct`.
    pub const NONE: Self = Self { bytes: [0; 20], len: 0 };

    /// The header of a message from an endpoint with this connection id.
    #[inline]
    pub fn of(msg_id: u32, tag: Option<u64>, connid: u32) -> Self {
        let mut bytes = [0; 20];
        let (kind, flags) = match tag {
            Some(_) => (kind::EAGER_RTM + 1, flag::MSG | flag::TAGGED | flag::CONNID),
            None => (kind::EAGER_RTM, flag::MSG | flag::CONNID),
        };
        bytes[..2].copy_from_slice(&[kind, VERSION]);
        bytes[2..4].copy_from_slice(&flags.to_le_bytes());
        bytes[4..8].copy_from_slice(&msg_id.to_le_bytes());
        let Some(tag) = tag else {
            bytes[8..12].copy_from_slice(&connid.to_le_bytes());
            return Self { bytes, len: 12 };
        };
        bytes[8..16].copy_from_slice(&tag.to_le_bytes());
        bytes[16..].copy_from_slice(&connid.to_le_bytes());
        Self { bytes, len: 20 }
    }

    /// The encoded header.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its id among all messages to its receiver.
    pub msg_id: u32,
    /// Its tag.
    pub tag: Option<u64>,
    /// CQ data.
    pub data: Option<u64>,
    /// Whether the sender wants a receipt.
    pub confirm: bool,
    /// The sender's number of the message; 0 if the packet has no such field.
    pub send_id: u32,
    /// The part between endpoints of this library.
    pub own: Own,
    /// How its payload arrives.
    pub form: Form<'a>,
}

impl<'a> Message<'a> {
    /// Encodes all but the payload.
    pub fn encode(&self, origin: Origin) -> Header {
        let base = match (&self.form, self.confirm) {
            (Form::Eager { .. }, false) => kind::EAGER_RTM,
            (Form::Eager { .. }, true) => kind::DC_EAGER_RTM,
            (Form::Medium { .. }, false) => kind::MEDIUM_RTM,
            (Form::Medium { .. }, true) => kind::DC_MEDIUM_RTM,
            (Form::LongCts { .. }, false) => kind::LONGCTS_RTM,
            (Form::LongCts { .. }, true) => kind::DC_LONGCTS_RTM,
            (Form::LongRead { .. }, _) => kind::LONGREAD_RTM,
            (Form::RuntRead { .. }, _) => kind::RUNTREAD_RTM,
        };
        let options = Options { data: self.data, own: self.own, number: 0 };
        let mut flags = options.flags(origin) | flag::MSG;
        flags |= if self.tag.is_some() { flag::TAGGED } else { 0 };
        flags |= if matches!(self.form, Form::LongCts { nacked: true, .. }) { flag::NACKED } else { 0 };
        let mut header = Header::new(base + u8::from(self.tag.is_some()), flags);
        header.u32(self.msg_id);
        let mut from = Iovs::default();
        match self.form {
            Form::Eager { .. } if self.confirm => {
                header.u32(self.send_id).u32(0);
            }
            Form::Eager { .. } => {}
            Form::Medium { len, offset, .. } => {
                if self.confirm {
                    header.u32(self.send_id).u32(0);
                }
                header.len_of(len).len_of(offset);
            }
            Form::LongCts { len, credits, .. } => {
                header.len_of(len).u32(self.send_id).u32(credits);
            }
            Form::LongRead { len, from: iovs } => {
                header.len_of(len).u32(self.send_id).u32(iovs.len() as u32);
                from = iovs;
            }
            Form::RuntRead { len, offset, runt, from: iovs, .. } => {
                header.len_of(len).u32(self.send_id).u32(iovs.len() as u32).len_of(offset).len_of(runt);
                from = iovs;
            }
        }
        if let Some(tag) = self.tag {
            header.u64(tag);
        }
        options.encode(origin, &mut header);
        from.encode(&mut header);
        header
    }

    pub(super) fn parse(what: u8, flags: u16, mut reader: Reader<'a>) -> Result<(Origin, Self), Malformed> {
        let msg_id = reader.u32()?;
        let r = &mut reader;
        let ((base, tagged), confirm) = match what {
            64..=69 => ((what & !1, what & 1 != 0), false),
            128 | 129 => ((kind::LONGREAD_RTM, what == 129), false),
            133..=138 => ((((what - 1) & !1) - 68, what & 1 == 0), true),
            145 | 146 => ((kind::RUNTREAD_RTM, what == 146), false),
            other => return Err(Malformed::Type(other)),
        };
        let mut send_id = 0;
        // The form's fields before the tag. Payloads and memory to read from follow the optional headers.
        let (mut len, mut credits, mut pieces, mut offset, mut runt) = (0, 0, 0, 0, 0);
        if confirm && base != kind::LONGCTS_RTM {
            send_id = r.u32()?;
            r.u32()?;
        }
        match base {
            kind::MEDIUM_RTM => (len, offset) = (r.len("msg_length")?, r.len("seg_offset")?),
            kind::LONGCTS_RTM => (len, send_id, credits) = (r.len("msg_length")?, r.u32()?, r.u32()?),
            kind::LONGREAD_RTM => (len, send_id, pieces) = (r.len("msg_length")?, r.u32()?, r.u32()?),
            kind::RUNTREAD_RTM => {
                (len, send_id, pieces) = (r.len("msg_length")?, r.u32()?, r.u32()?);
                (offset, runt) = (r.len("seg_offset")?, r.len("runt_length")?);
            }
            _ => {}
        }
        let tag = if tagged { Some(r.u64()?) } else { None };
        let (origin, options) = Options::parse(flags, r)?;
        if options.number != 0 {
            return Err(Malformed::Field("own header"));
        }
        let from = Iovs::parse(pieces, r)?;
        let payload = reader.0;
        let inside = |most: usize| match payload.len().checked_add(offset) {
            Some(end) if end <= most && most <= len => Ok(()),
            _ => Err(Malformed::Field("seg_offset")),
        };
        let form = match base {
            kind::EAGER_RTM => Form::Eager { payload },
            kind::MEDIUM_RTM => {
                inside(len)?;
                Form::Medium { len, offset, payload }
            }
            kind::LONGCTS_RTM => {
                inside(len)?;
                Form::LongCts { len, credits, payload, nacked: flags & flag::NACKED != 0 }
            }
            kind::LONGREAD_RTM => {
                from.cover(len)?;
                Form::LongRead { len, from }
            }
            _ => {
                inside(runt)?;
                from.cover(len)?;
                Form::RuntRead { len, offset, runt, from, payload }
            }
        };
        Ok((origin, Self { msg_id, tag, data: options.data, confirm, send_id, own: options.own, form }))
    }
}
