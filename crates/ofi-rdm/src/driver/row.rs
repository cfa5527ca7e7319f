//! A row of packets that differ in numbers alone, and where each has room for its part of a payload.

use crate::stream::{PART_HEAD, Train};
use crate::wire::header::{self, Header};
use crate::wire::{Stream, frame};

/// Packets of one length, one behind the other, and where each has room for its part of a payload.
#[derive(Debug)]
pub struct Row<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) heads: Heads,
    /// Bytes of payload in each packet.
    pub part: usize,
}

impl<'a> Row<'a> {
    /// The room in each, all of which is to be asked for: a packet's heads are written along with it, while its lines
    /// are here.
    pub fn parts(self) -> impl Iterator<Item = &'a mut [u8]> {
        let Self { bytes, len, mut heads, part } = self;
        bytes.chunks_exact_mut(len).map(move |packet| &mut heads.put(packet)[..part])
    }
}

/// Bytes of such a packet before its payload.
pub(crate) const HEADS: usize = header::LEN + frame::STREAM_LEN + PART_HEAD;
/// Where in them the lower flags are.
const FLAGS: usize = 3;
/// Where in them the numbers are that differ: the packet's, the place in the stream, the place in the payload.
const NUMBER: usize = header::LEN - 8;
const OFFSET: usize = header::LEN + frame::STREAM_LEN - 8;
const AT: usize = HEADS - 8;

/// What comes before the payload in the packets of a row, one after the other.
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

    /// Puts the next packet's before its payload, and answers the room for that and for what follows.
    pub fn put<'a>(&mut self, packet: &'a mut [u8]) -> &'a mut [u8] {
        let Some((to, room)) = packet.split_first_chunk_mut() else { return &mut [] };
        self.write();
        *to = self.bytes;
        self.advance();
        room
    }

    /// Whether `packet` begins with the next packet's, whatever it says of urgency. Then the one after it is next.
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
