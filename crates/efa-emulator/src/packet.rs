//! The protocol between emulated devices: datagrams of Unix sockets, one packet each. It is not EFA's wire protocol,
//! which is not public.

use crate::formats::{Gid, Operation};

/// Length of the header in bytes.
pub const HEADER: usize = 80;
/// Maximum payload bytes of a read or a write in one packet. A send is one packet.
pub const CHUNK: usize = 32 << 10;
/// Maximum length of a packet in bytes: a send of the largest MTU.
pub const MAX_PACKET_LEN: usize = HEADER + (64 << 10);

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// A send, a part of a write, or a read request.
    SendRequest(Operation),
    /// A datagram, which is not answered.
    Datagram,
    /// A part of a read's data.
    Data,
    /// The status of a request at the peer.
    Answer(u8),
    /// A probe without content: sending it shows whether the peer's socket exists.
    Probe,
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    pub kind: PacketKind,
    pub source: Gid,
    pub source_qp: u16,
    pub qp: u16,
    pub qkey: u32,
    /// The number of the request at its device.
    pub token: u64,
    pub immediate: Option<u32>,
    /// The offset of the payload in the request's data, and the total length of the data.
    pub offset: u64,
    pub total: u64,
    /// The peer's memory.
    pub addr: u64,
    pub key: u32,
    /// Whether the sender's queue pair accepts writes without a receive.
    pub unsolicited: bool,
    /// How often the request found no receive before; no more than 255 are counted.
    pub repeats: u8,
}

impl Packet {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let (kind, detail) = match self.kind {
            PacketKind::SendRequest(Operation::Send) => (1, 0),
            PacketKind::SendRequest(Operation::Read) => (2, 0),
            PacketKind::SendRequest(Operation::Write) => (3, 0),
            PacketKind::Data => (4, 0),
            PacketKind::Answer(status) => (5, status),
            PacketKind::Probe => (6, 0),
            PacketKind::Datagram => (7, 0),
        };
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        (bytes[4], bytes[5]) = (kind, detail);
        bytes[6] = u8::from(self.immediate.is_some()) | u8::from(self.unsolicited) << 1;
        bytes[7] = self.repeats;
        bytes[8..24].copy_from_slice(&self.source);
        bytes[24..26].copy_from_slice(&self.source_qp.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.qp.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.qkey.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.token.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.total.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.addr.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.key.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// Parses a packet and its payload; `None` if the bytes are invalid, or the payload exceeds the request's data.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = bytes.split_first_chunk::<HEADER>()?;
        let two = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        if header[..4] != MAGIC {
            return None;
        }
        let kind = match header[4] {
            1 => PacketKind::SendRequest(Operation::Send),
            2 => PacketKind::SendRequest(Operation::Read),
            3 => PacketKind::SendRequest(Operation::Write),
            4 => PacketKind::Data,
            5 => PacketKind::Answer(header[5]),
            6 => PacketKind::Probe,
            7 => PacketKind::Datagram,
            _ => return None,
        };
        let packet = Self {
            kind,
            source: std::array::from_fn(|byte| header[8 + byte]),
            source_qp: two(24),
            qp: two(26),
            qkey: four(28),
            token: eight(32),
            immediate: (header[6] & 1 != 0).then(|| four(68)),
            offset: eight(40),
            total: eight(48),
            addr: eight(56),
            key: four(64),
            unsolicited: header[6] & 2 != 0,
            repeats: header[7],
        };
        let end = packet.offset.checked_add(payload.len() as u64)?;
        (end <= packet.total).then_some((packet, payload))
    }
}

const MAGIC: [u8; 4] = *b"EFAe";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_as_they_were() {
        for kind in [
            PacketKind::SendRequest(Operation::Send),
            PacketKind::SendRequest(Operation::Read),
            PacketKind::SendRequest(Operation::Write),
            PacketKind::Data,
            PacketKind::Answer(10),
            PacketKind::Probe,
            PacketKind::Datagram,
        ] {
            let packet = Packet {
                kind,
                source: [7; 16],
                source_qp: 1,
                qp: 2,
                qkey: 3,
                token: 4,
                immediate: Some(5),
                offset: 6,
                total: 9,
                addr: 10,
                key: 11,
                unsolicited: true,
                repeats: 12,
            };
            let mut bytes = packet.encode().to_vec();
            bytes.extend([1, 2, 3]);
            assert_eq!(Packet::parse(&bytes), Some((packet, &[1, 2, 3][..])));
            bytes.push(4);
            assert_eq!(Packet::parse(&bytes), None, "more than the request moves");
            assert_eq!(Packet::parse(&bytes[..HEADER - 1]), None);
        }
    }
}
