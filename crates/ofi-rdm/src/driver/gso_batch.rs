//! A batch of consecutive packets of equal length, each with room for one part of a payload. Their headers differ only
//! in packet number and offsets.

use crate::stream::{PART_HEAD, Train};
use crate::wire::header::{self, Header};
use crate::wire::{Stream, frame};

/// Consecutive packets of equal length, and the offset of the payload in them.
#[derive(Debug)]
pub struct GsoBatch<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) heads: Heads,
    /// Bytes of payload in each packet.
    pub part: usize,
}

impl<'a> GsoBatch<'a> {
    /// The room for payload in each packet. Exhaust the iterator: it writes a packet's headers when it yields the
    /// packet's room, while the cache lines are hot.
    pub fn parts(self) -> impl Iterator<Item = &'a mut [u8]> {
        let Self { bytes, len, mut heads, part } = self;
        bytes.chunks_exact_mut(len).map(move |packet| &mut heads.put(packet)[..part])
    }
}

/// Bytes of headers before the payload of a packet.
pub(crate) const HEADS: usize = header::LEN + frame::STREAM_LEN + PART_HEAD;
/// Offset of the low byte of the flags.
const FLAGS: usize = 3;
/// Offsets of the fields that differ: packet number, stream offset, payload offset.
const NUMBER: usize = header::LEN - 8;
const OFFSET: usize = header::LEN + frame::STREAM_LEN - 8;
const AT: usize = HEADS - 8;

/// Generates the headers of a batch, packet by packet.
#[derive(Debug)]
pub struct Heads {
    bytes: [u8; HEADS],
    number: u64,
    offset: u64,
    stride: u64,
    at: u64,
    part: u64,
}

impl Heads {
    pub fn new(header: &Header, stream: Stream, train: &Train) -> Self {
        let mut bytes = [0; HEADS];
        header.write(&mut bytes[..header::LEN]);
        frame::write_stream_head(&mut bytes[header::LEN..], stream, train.start, train.stride() as usize);
        bytes[HEADS - PART_HEAD..].copy_from_slice(&train.head(0));
        let (_, at, part) = train.payload();
        let (number, offset, stride) = (header.number, train.start, train.stride());
        Self { bytes, number, offset, stride, at, part: part as u64 }
    }

    /// Writes the next packet's headers and returns the room after them.
    pub fn put<'a>(&mut self, packet: &'a mut [u8]) -> &'a mut [u8] {
        let Some((to, room)) = packet.split_first_chunk_mut() else { return &mut [] };
        self.write();
        *to = self.bytes;
        self.advance();
        room
    }

    /// Whether `packet` begins with the next packet's headers, disregarding the urgent flag. If so, advances.
    pub fn meets(&mut self, packet: &[u8]) -> bool {
        let Some(mut head) = packet.first_chunk::<HEADS>().copied() else { return false };
        head[FLAGS] &= !(header::flag::URGENT as u8);
        self.write();
        let meets = head == self.bytes;
        if meets {
            self.advance();
        }
        meets
    }

    fn write(&mut self) {
        for (place, value) in [(NUMBER, self.number), (OFFSET, self.offset), (AT, self.at)] {
            self.bytes[place..place + 8].copy_from_slice(&value.to_be_bytes());
        }
    }

    fn advance(&mut self) {
        (self.number, self.offset, self.at) =
            (self.number + 1, self.offset + self.stride, self.at + self.part);
    }
}
