//! The common parts of requests: the sender's identity, CQ data, and the part between endpoints of this library.

use super::cursor::Reader;
use super::{Header, Malformed, Packet, RawAddress, flag, kind};

/// The sender's identity in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The whole address, in requests to a peer that may not know the sender.
    Address(RawAddress),
    /// Its connection id.
    Connid(u32),
    /// None, from an endpoint older than connection ids.
    Unsaid,
}

/// The part of a request that only endpoints of this library exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// The receive context that the request addresses (`fi_rx_addr`): its index plus one; 0 for any.
    pub rx: u16,
}

/// The optional headers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub data: Option<u64>,
    pub own: Own,
    /// The number of a remote access among those to its receiver, from 1, by which the receiver recognizes a repeated
    /// packet; 0 if it has none. It has 48 bits.
    pub number: u64,
}

/// Length of the optional raw address as C libfabric writes it: the address, padded so that its header has a multiple
/// of 8 bytes.
const PADDED: usize = 36;

impl Options {
    fn own_word(&self) -> u64 {
        self.number << 16 | u64::from(self.own.rx)
    }

    /// The flags of the optional headers that are present.
    pub fn flags(&self, origin: Origin) -> u16 {
        let origin = match origin {
            Origin::Address(_) => flag::RAW_ADDRESS,
            Origin::Connid(_) => flag::CONNID,
            Origin::Unsaid => 0,
        };
        let data = if self.data.is_some() { flag::CQ_DATA } else { 0 };
        let own = if self.own_word() == 0 { 0 } else { flag::OWN };
        origin | data | own
    }

    /// Appends the optional headers, in the order of their flags.
    pub fn encode(&self, origin: Origin, header: &mut Header) {
        if let Origin::Address(address) = origin {
            header.u32(PADDED as u32).put(&address.to_bytes()).u32(0);
        }
        if let Some(data) = self.data {
            header.u64(data);
        }
        if let Origin::Connid(connid) = origin {
            header.u32(connid);
        }
        if self.own_word() != 0 {
            header.u64(self.own_word());
        }
    }

    /// Parses the optional headers.
    pub fn parse(flags: u16, reader: &mut Reader<'_>) -> Result<(Origin, Self), Malformed> {
        let mut origin = Origin::Unsaid;
        if flags & flag::RAW_ADDRESS != 0 {
            let len = reader.u32()? as usize;
            let bytes = reader.take(len)?;
            let address = RawAddress::from_bytes(bytes).ok_or(Malformed::Field("raw address"))?;
            origin = Origin::Address(address);
        }
        let data = if flags & flag::CQ_DATA != 0 { Some(reader.u64()?) } else { None };
        if flags & flag::CONNID != 0 {
            let connid = reader.u32()?;
            if origin == Origin::Unsaid {
                origin = Origin::Connid(connid);
            }
        }
        let mut word = 0;
        if flags & flag::OWN != 0 {
            word = reader.u64()?;
        }
        Ok((origin, Self { data, own: Own { rx: word as u16 }, number: word >> 16 }))
    }
}

/// A note: message id, words, origin, payload.
pub(super) fn parse_note(flags: u16, mut reader: Reader<'_>) -> Result<(Origin, Packet<'_>), Malformed> {
    let msg_id = reader.u32()?;
    let words = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
    let (origin, _) = Options::parse(flags, &mut reader)?;
    Ok((origin, Packet::Note { msg_id, words, payload: reader.0 }))
}

impl Header {
    /// The header of a note.
    pub fn of_note(origin: Origin, msg_id: u32, words: [u64; 4]) -> Self {
        let options = Options::default();
        let mut header = Self::new(kind::NOTE, options.flags(origin));
        header.u32(msg_id);
        for word in words {
            header.u64(word);
        }
        options.encode(origin, &mut header);
        header
    }

    /// A whole PAUSE packet.
    pub fn of_pause(connid: u32, number: u32) -> Self {
        let mut header = Self::new(kind::PAUSE, flag::CONNID);
        header.u32(number).u32(connid);
        header
    }

    /// A whole BYE packet.
    pub fn of_bye(connid: u32) -> Self {
        let mut header = Self::new(kind::BYE, flag::CONNID);
        header.u32(connid);
        header
    }

    /// A whole RESTART packet.
    pub fn of_restart(connid: u32, round: u32, answer: bool) -> Self {
        let mut header = Self::new(kind::RESTART, flag::CONNID);
        header.u32(round).u32(answer.into()).u32(connid);
        header
    }
}
