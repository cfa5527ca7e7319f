//! Captures as tcpdump writes them (pcap-savefile(5)): UDP datagrams over IPv4 and IPv6. Other packets are skipped.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// A datagram of a capture.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// Seconds since 1970.
    pub time: f64,
    /// The source.
    pub from: SocketAddr,
    /// The destination.
    pub to: SocketAddr,
    /// The captured part of the datagram.
    pub body: &'a [u8],
    /// Whether the captured part is incomplete.
    pub is_cut: bool,
}

/// A capture; iterates over its datagrams.
pub struct Capture<'a> {
    rest: &'a [u8],
    big: bool,
    /// Units per second in the second field of a time.
    parts: f64,
    link: u32,
}

fn word(bytes: &[u8], at: usize, big: bool) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

impl<'a> Capture<'a> {
    /// Parses the file header. `None` if the file is not a capture.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let magic = word(bytes, 0, true)?;
        let (big, parts) = match magic {
            0xa1b2_c3d4 => (true, 1e6),
            0xd4c3_b2a1 => (false, 1e6),
            0xa1b2_3c4d => (true, 1e9),
            0x4d3c_b2a1 => (false, 1e9),
            _ => return None,
        };
        // The upper bits give the number of checksum bytes after a frame; these frames have none.
        let link = word(bytes, 20, big)? & 0xffff;
        Some(Self { rest: bytes.get(24..)?, big, parts, link })
    }
}

impl<'a> Iterator for Capture<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        loop {
            let field = |at| word(self.rest, at, self.big);
            let (seconds, part, len) = (field(0)?, field(4)?, field(8)? as usize);
            let frame = self.rest.get(16..)?.get(..len)?;
            self.rest = &self.rest[16 + len..];
            let time = f64::from(seconds) + f64::from(part) / self.parts;
            let datagram = network(frame, self.link).and_then(|packet| datagram(packet, time));
            if datagram.is_some() {
                return datagram;
            }
        }
    }
}

/// The IP packet in a frame. For the numbers of link types see pcap-linktype(7).
fn network(frame: &[u8], link: u32) -> Option<&[u8]> {
    let mut at = match link {
        0 | 108 => 4,       // BSD loopback
        1 => 14,            // Ethernet
        12 | 14 | 101 => 0, // IP
        113 => 16,          // Linux cooked
        276 => 20,          // Linux cooked, version 2
        _ => return None,
    };
    if link == 1 {
        while short(frame, at - 2)? == 0x8100 {
            at += 4; // a VLAN
        }
    }
    frame.get(at..)
}

/// The UDP datagram in an unfragmented IP packet.
fn datagram(packet: &[u8], time: f64) -> Option<Datagram<'_>> {
    let (from, to, udp): (std::net::IpAddr, std::net::IpAddr, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let is_part = short(packet, 6)? & 0x3fff != 0;
            if is_part || packet.get(9) != Some(&17) {
                return None;
            }
            let ip = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
            let head = usize::from(packet[0] & 15) * 4;
            (ip(12)?.into(), ip(16)?.into(), packet.get(head.max(20)..)?)
        }
        6 => {
            if packet.get(6) != Some(&17) {
                return None;
            }
            let ip = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?));
            (ip(8)?.into(), ip(24)?.into(), packet.get(40..)?)
        }
        _ => return None,
    };
    let (from_port, to_port, len) = (short(udp, 0)?, short(udp, 2)?, usize::from(short(udp, 4)?));
    let body = udp.get(8..)?;
    // A length of 0 is left for the device to fill in (segmentation offload).
    let whole = if len == 0 { body.len() } else { len.checked_sub(8)? };
    Some(Datagram {
        time,
        from: SocketAddr::new(from, from_port),
        to: SocketAddr::new(to, to_port),
        body: &body[..whole.min(body.len())],
        is_cut: whole > body.len(),
    })
}
