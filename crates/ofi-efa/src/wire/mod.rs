//! Amazon's RDM protocol, version 4, as libfabric publishes it in `prov/efa/docs/efa_rdm_protocol_v4.md`: parses and
//! encodes packets. All numbers are little-endian, as on every host that has the device.
//!
//! A packet is one message of an SRD queue pair: a base header (type, version, flags), the fields of its type, optional
//! headers, and a payload. No field of a packet is trusted: [`parse`] returns only bytes inside the packet, and
//! [`Malformed`] if the packet is invalid.
//!
//! Other types are refused by number ([`Malformed::Type`]): 1 and 2 (retired), 6 (never sent), 131 and 142 to 144,
//! which C libfabric's endpoints neither send nor take.

#![forbid(unsafe_code)]

mod address;
mod atomic;
mod control;
mod cursor;
mod handshake;
mod message;
mod request;
mod rma;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

pub use address::RawAddress;
pub use atomic::{Answer, Atomic};
pub use control::{Abandoned, Control};
pub use cursor::Header;
pub use handshake::{Features, Handshake};
pub use message::{Form, Message, Short};
pub use request::{Origin, Own};
pub use rma::{Iov, Iovs, Read, Write, WriteForm};

use cursor::Reader;

/// The version in every base header.
pub const VERSION: u8 = 4;

/// Packet types (table 1.2 of the protocol).
pub mod kind {
    /// Clear to send.
    pub const CTS: u8 = 3;
    /// Data that was cleared.
    pub const CTSDATA: u8 = 4;
    /// The first data of an emulated read.
    pub const READRSP: u8 = 5;
    /// End of read.
    pub const EOR: u8 = 7;
    /// The old values of an atomic operation.
    pub const ATOMRSP: u8 = 8;
    /// An endpoint's features.
    pub const HANDSHAKE: u8 = 9;
    /// An operation was delivered.
    pub const RECEIPT: u8 = 10;
    /// The receiver cannot read a payload and asks the sender to send it.
    pub const READ_NACK: u8 = 11;
    /// An operation was given up.
    pub const PEER_ERROR: u8 = 12;
    /// The first request type.
    pub const REQUESTS: u8 = 64;
    /// A message in one packet. Here and below, the tagged type is one more.
    pub const EAGER_RTM: u8 = 64;
    /// A message in a few packets.
    pub const MEDIUM_RTM: u8 = 66;
    /// A message whose data the receiver clears.
    pub const LONGCTS_RTM: u8 = 68;
    /// A write in one packet.
    pub const EAGER_RTW: u8 = 70;
    /// A write whose data the responder clears.
    pub const LONGCTS_RTW: u8 = 71;
    /// A read that one packet answers.
    pub const SHORT_RTR: u8 = 72;
    /// A read that many packets answer.
    pub const LONGCTS_RTR: u8 = 73;
    /// An atomic operation without an answer.
    pub const WRITE_RTA: u8 = 74;
    /// An atomic operation that returns the old values.
    pub const FETCH_RTA: u8 = 75;
    /// An atomic operation that compares.
    pub const COMPARE_RTA: u8 = 76;
    /// A message that the receiver reads.
    pub const LONGREAD_RTM: u8 = 128;
    /// A write that the responder reads.
    pub const LONGREAD_RTW: u8 = 130;
    /// As [`EAGER_RTM`], with a receipt; likewise below.
    pub const DC_EAGER_RTM: u8 = 133;
    /// As [`MEDIUM_RTM`].
    pub const DC_MEDIUM_RTM: u8 = 135;
    /// As [`LONGCTS_RTM`].
    pub const DC_LONGCTS_RTM: u8 = 137;
    /// As [`EAGER_RTW`].
    pub const DC_EAGER_RTW: u8 = 139;
    /// As [`LONGCTS_RTW`].
    pub const DC_LONGCTS_RTW: u8 = 140;
    /// As [`WRITE_RTA`].
    pub const DC_WRITE_RTA: u8 = 141;
    /// A message whose first bytes are sent, and whose rest the receiver reads.
    pub const RUNTREAD_RTM: u8 = 145;
    /// Between endpoints of this library alone ([`super::Features::OWN`]): a note of the core, in order with messages.
    pub const NOTE: u8 = 240;
    /// Between endpoints of this library alone: whether the sender should pause its messages.
    pub const PAUSE: u8 = 241;
    /// Between endpoints of this library alone: the sender closes, and everything it sent before has arrived.
    pub const BYE: u8 = 242;
    /// Between endpoints of this library alone ([`super::Features::REPEATS`]): the sender has given up everything with
    /// the receiver, and begins anew.
    pub const RESTART: u8 = 243;
}

/// Flags of the base header.
mod flag {
    /// A request contains its sender's whole address.
    pub const RAW_ADDRESS: u16 = 1;
    /// A request has CQ data.
    pub const CQ_DATA: u16 = 2;
    /// A request is a message.
    pub const MSG: u16 = 4;
    /// A request has a tag.
    pub const TAGGED: u16 = 8;
    /// A request is a remote access.
    pub const RMA: u16 = 0x10;
    /// A request is an atomic operation.
    pub const ATOMIC: u16 = 0x20;
    /// A CTS answers a read (`EFA_RDM_CTS_READ_REQ`).
    pub const CTS_READ: u16 = 0x80;
    /// A request is repeated after a READ_NACK.
    pub const NACKED: u16 = 0x2000;
    /// Between endpoints of this library alone: a request has eight more bytes after its optional headers
    /// ([`super::Own`]), or a CTS after its fields.
    pub const OWN: u16 = 0x4000;
    /// The packet contains the sender's connection id.
    pub const CONNID: u16 = 0x8000;
}

/// The reason why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is too short.
    Short,
    /// It has another protocol version.
    Version(u8),
    /// Its type is unknown here.
    Type(u8),
    /// The named field has an invalid value.
    Field(&'static str),
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A control packet about an operation under way.
    Control(Control<'a>),
    /// The peer's features.
    Handshake(Handshake),
    /// A message, or a part of one.
    Message(Message<'a>),
    /// A remote write.
    Write(Write<'a>),
    /// A remote read.
    Read(Read),
    /// An atomic operation.
    Atomic(Atomic<'a>),
    /// A note of a peer's core.
    Note {
        /// Its id among the peer's messages.
        msg_id: u32,
        /// Its words.
        words: [u64; 4],
        /// Its payload.
        payload: &'a [u8],
    },
    /// Whether the peer accepts messages now. These packets are numbered from 1, because they may overtake one another;
    /// an odd number asks this end to pause.
    Pause(u32),
    /// The peer closes.
    Bye,
    /// The peer has given up everything with this end, and begins anew.
    Restart {
        /// The number of times that the two ends have begun anew.
        round: u32,
        /// Whether this is the answer: the sender has given up everything too.
        answer: bool,
    },
}

impl Packet<'_> {
    /// The id that gives the packet its place in the order of the peer's messages.
    pub fn msg_id(&self) -> Option<u32> {
        match *self {
            // A message that could not be read, sent after its turn.
            Self::Message(Message { form: Form::LongCts { nacked: true, .. }, .. }) => None,
            Self::Message(Message { msg_id, .. })
            | Self::Atomic(Atomic { msg_id, .. })
            | Self::Note { msg_id, .. } => Some(msg_id),
            Self::Control(Control::PeerError {
                what: Abandoned::Message(id) | Abandoned::Skipped(id),
                ..
            }) => Some(id),
            _ => None,
        }
    }

    /// Encodes the whole packet.
    pub fn to_vec(&self, origin: Origin) -> Vec<u8> {
        let connid = match origin {
            Origin::Connid(connid) => connid,
            Origin::Address(address) => address.connid,
            Origin::Unsaid => 0,
        };
        let (header, payload): (Header, &[u8]) = match self {
            Self::Control(control) => (control.encode(connid), control.payload()),
            Self::Handshake(shake) => (shake.encode(connid), &[]),
            Self::Message(message) => (message.encode(origin), message.form.payload()),
            Self::Write(write) => (write.encode(origin), write.form.payload()),
            Self::Read(read) => (read.encode(origin), &[]),
            Self::Atomic(atomic) => (atomic.encode(origin), atomic.payload),
            Self::Note { msg_id, words, payload } => (Header::of_note(origin, *msg_id, *words), payload),
            Self::Pause(number) => (Header::of_pause(connid, *number), &[]),
            Self::Bye => (Header::of_bye(connid), &[]),
            Self::Restart { round, answer } => (Header::of_restart(connid, *round, *answer), &[]),
        };
        [header.bytes(), payload].concat()
    }
}

/// Parses a packet: its sender's identity, and its content.
///
/// # Errors
/// The first error that was found in the packet.
pub fn parse(bytes: &[u8]) -> Result<(Origin, Packet<'_>), Malformed> {
    let mut reader = Reader(bytes);
    let (what, version, flags) = (reader.u8()?, reader.u8()?, reader.u16()?);
    if version != VERSION {
        return Err(Malformed::Version(version));
    }
    match what {
        kind::HANDSHAKE => {
            handshake::parse(flags, reader).map(|(origin, it)| (origin, Packet::Handshake(it)))
        }
        kind::NOTE => request::parse_note(flags, reader),
        kind::PAUSE => {
            let (number, connid) = (reader.u32()?, reader.u32()?);
            Ok((Origin::Connid(connid), Packet::Pause(number)))
        }
        kind::BYE => Ok((Origin::Connid(reader.u32()?), Packet::Bye)),
        kind::RESTART => {
            let (round, answer, connid) = (reader.u32()?, reader.u32()?, reader.u32()?);
            Ok((Origin::Connid(connid), Packet::Restart { round, answer: answer != 0 }))
        }
        kind::EAGER_RTW
        | kind::LONGCTS_RTW
        | kind::DC_EAGER_RTW
        | kind::DC_LONGCTS_RTW
        | kind::LONGREAD_RTW => {
            Write::parse(what, flags, reader).map(|(origin, it)| (origin, Packet::Write(it)))
        }
        kind::SHORT_RTR | kind::LONGCTS_RTR => {
            Read::parse(what, flags, reader).map(|(origin, it)| (origin, Packet::Read(it)))
        }
        kind::WRITE_RTA | kind::FETCH_RTA | kind::COMPARE_RTA | kind::DC_WRITE_RTA => {
            Atomic::parse(what, flags, reader).map(|(origin, it)| (origin, Packet::Atomic(it)))
        }
        kind::REQUESTS.. => {
            Message::parse(what, flags, reader).map(|(origin, it)| (origin, Packet::Message(it)))
        }
        _ => Control::parse(what, flags, reader).map(|(origin, it)| (origin, Packet::Control(it))),
    }
}
