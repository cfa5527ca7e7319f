//! Frames, the elements of a data packet.

use core::ops::Range;

use super::{Malformed, Reader, Stream, Writer};
use crate::ranges::RangeSet;

/// Kinds of frames.
mod kind {
    pub const PADDING: u8 = 0;
    pub const PING: u8 = 1;
    pub const ACK: u8 = 2;
    pub const STREAM: u8 = 3;
    pub const CREDIT: u8 = 4;
    pub const CLOSE: u8 = 5;
    pub const MARKS: u8 = 6;
}

/// Bytes of a stream frame before its data.
pub const STREAM_LEN: usize = 12;
/// Bytes of a credit frame.
pub const CREDIT_LEN: usize = 10;
/// Bytes of a frame that ends a session.
pub const CLOSE_LEN: usize = 3;
/// The maximum number of runs in one acknowledgement.
pub const ACK_RUNS: usize = 32;
/// The maximum number of bytes of an acknowledgement.
pub const ACK_LEN: usize = 14 + 8 * ACK_RUNS;

/// Received packets: the highest runs of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The highest number.
    pub largest: u64,
    /// Microseconds from its arrival to this frame.
    pub delay_us: u32,
    /// Pairs of `u32`: numbers in a run, and numbers missing before the next lower one.
    runs: &'a [u8],
}

impl Ack<'_> {
    /// The runs, highest first.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let mut end = self.largest + 1;
        self.runs.as_chunks::<8>().0.iter().map_while(move |&[a, b, c, d, e, f, g, h]| {
            let (count, gap) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
            let start = end.checked_sub(u64::from(count))?;
            let run = start..end;
            end = start.saturating_sub(u64::from(gap));
            (!run.is_empty()).then_some(run)
        })
    }
}

/// A frame. A packet carries as many as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Asks for an acknowledgement.
    Ping,
    /// Acknowledges packets.
    Ack(Ack<'a>),
    /// Bytes of a stream.
    Data {
        /// The stream.
        stream: Stream,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes themselves.
        bytes: &'a [u8],
    },
    /// The sender may send the bytes of a stream up to here.
    Credit {
        /// The stream.
        stream: Stream,
        /// The first byte that may not be sent.
        limit: u64,
    },
    /// The number of packets of this session that arrived with a congestion mark.
    Marks {
        /// The count since the session began.
        count: u64,
    },
    /// The session is over.
    Close {
        /// An errno, or 0.
        reason: u16,
    },
}

impl<'a> Frame<'a> {
    /// Whether the frame asks for an acknowledgement.
    pub fn asks(&self) -> bool {
        !matches!(self, Self::Ack(_) | Self::Marks { .. } | Self::Close { .. })
    }

    /// Parses one frame off the front of `input`. `None` if only padding is left.
    ///
    /// # Errors
    /// The frame is malformed.
    pub fn parse(input: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, Malformed> {
        let mut reader = Reader(input);
        let Ok(kind) = reader.u8() else { return Ok(None) };
        let frame = match kind {
            kind::PADDING if input.iter().all(|&byte| byte == 0) => return Ok(None),
            kind::PADDING => return Err(Malformed::Field("padding")),
            kind::PING => Self::Ping,
            kind::ACK => {
                let count = usize::from(reader.u8()?);
                let (largest, delay_us) = (reader.u64()?, reader.u32()?);
                if count == 0 || count > ACK_RUNS || largest >= u64::MAX / 2 {
                    return Err(Malformed::Field("ack"));
                }
                Self::Ack(Ack { largest, delay_us, runs: reader.bytes(count * 8)? })
            }
            kind::STREAM => {
                let stream = Stream::parse(reader.u8()?)?;
                let (len, offset) = (reader.u16()?, reader.u64()?);
                if offset >= u64::MAX / 2 || len == 0 {
                    return Err(Malformed::Field("stream"));
                }
                Self::Data { stream, offset, bytes: reader.bytes(usize::from(len))? }
            }
            kind::CREDIT => Self::Credit { stream: Stream::parse(reader.u8()?)?, limit: reader.u64()? },
            kind::CLOSE => Self::Close { reason: reader.u16()? },
            kind::MARKS => Self::Marks { count: reader.u64()? },
            other => return Err(Malformed::Kind(other)),
        };
        Ok(Some((frame, reader.0)))
    }

    /// The range of the stream bytes, if `input` is a single frame of stream bytes and nothing else.
    #[inline]
    pub fn only_data(input: &'a [u8]) -> Option<(Stream, u64, &'a [u8])> {
        let (&[kind::STREAM, stream, a, b, ref offset @ ..], bytes) =
            input.split_first_chunk::<STREAM_LEN>()?
        else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([a, b]));
        let stream = Stream::parse(stream).ok()?;
        (len == bytes.len() && len > 0).then(|| (stream, u64::from_be_bytes(*offset), bytes))
    }

    /// Writes the frame. Returns its length, or `None` if it does not fit.
    pub fn write(&self, to: &mut [u8]) -> Option<usize> {
        let mut writer = Writer::new(to);
        match *self {
            Self::Ping => writer.u8(kind::PING),
            Self::Ack(ack) => writer
                .u8(kind::ACK)
                .u8((ack.runs.len() / 8) as u8)
                .u64(ack.largest)
                .u32(ack.delay_us)
                .put(ack.runs),
            Self::Data { stream, offset, bytes } => {
                stream_head(&mut writer, stream, offset, bytes.len()).put(bytes)
            }
            Self::Credit { stream, limit } => writer.u8(kind::CREDIT).u8(stream as u8).u64(limit),
            Self::Close { reason } => writer.u8(kind::CLOSE).u16(reason),
            Self::Marks { count } => writer.u8(kind::MARKS).u64(count),
        }
        .done()
    }
}

fn stream_head<'a, 'b>(
    to: &'a mut Writer<'b>,
    stream: Stream,
    offset: u64,
    len: usize,
) -> &'a mut Writer<'b> {
    to.u8(kind::STREAM).u8(stream as u8).u16(len as u16).u64(offset)
}

/// Writes the head of a stream frame. The caller appends the `len` bytes.
pub fn write_stream_head(to: &mut [u8], stream: Stream, offset: u64, len: usize) {
    stream_head(&mut Writer::new(to), stream, offset, len);
}

/// Writes an acknowledgement of the highest runs of `received`. Returns its length, or `None` if there is nothing to
/// acknowledge or no room.
pub fn write_ack(to: &mut [u8], received: &RangeSet, delay_us: u32) -> Option<usize> {
    let largest = received.iter().next_back()?.end - 1;
    let count = received.len().min(ACK_RUNS).min(to.len().checked_sub(14)? / 8);
    if count == 0 {
        return None;
    }
    let mut writer = Writer::new(to);
    writer.u8(kind::ACK).u8(count as u8).u64(largest).u32(delay_us);
    let mut runs = received.iter().rev().peekable();
    for _ in 0..count {
        let run = runs.next()?;
        let below = runs.peek().map_or(run.start, |next| next.end);
        // Numbers of one session never differ so much that this truncates.
        let cut = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        writer.u32(cut(run.end - run.start)).u32(cut(run.start - below));
    }
    writer.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn an_acknowledgement_names_the_highest_runs() {
        let mut received = RangeSet::default();
        [0..3, 5..6, 9..20].into_iter().for_each(|run| received.insert(run));
        let mut bytes = [0u8; ACK_LEN];
        let len = write_ack(&mut bytes, &received, 17).unwrap();
        let Ok(Some((Frame::Ack(ack), rest))) = Frame::parse(&bytes[..len]) else { panic!() };
        assert!(rest.is_empty());
        assert_eq!((ack.largest, ack.delay_us), (19, 17));
        assert_eq!(ack.runs().collect::<Vec<_>>(), [9..20, 5..6, 0..3]);
        let two = write_ack(&mut bytes[..14 + 16], &received, 17).unwrap();
        let Ok(Some((Frame::Ack(ack), _))) = Frame::parse(&bytes[..two]) else { panic!() };
        assert_eq!(ack.runs().collect::<Vec<_>>(), [9..20, 5..6]);
        for many in 0..100u64 {
            received.insert(100 + 2 * many..101 + 2 * many);
        }
        assert_eq!(write_ack(&mut bytes, &received, 0), Some(ACK_LEN));
    }

    #[test]
    fn runs_that_lead_below_zero_end_the_list() {
        let mut bytes = [0u8; 30];
        Writer::new(&mut bytes).u8(2).u8(2).u64(5).u32(0).u32(4).u32(9).u32(7).u32(0);
        let Ok(Some((Frame::Ack(ack), _))) = Frame::parse(&bytes) else { panic!() };
        assert!(ack.runs().eq(core::iter::once(2..6)));
    }

    #[test]
    fn frames_come_back_and_truncated_ones_are_refused() {
        let frames = [
            Frame::Ping,
            Frame::Data { stream: Stream::Bulk, offset: 77, bytes: b"bytes" },
            Frame::Credit { stream: Stream::Commands, limit: 1 << 33 },
            Frame::Close { reason: 104 },
            Frame::Marks { count: 1 << 40 },
        ];
        for frame in frames {
            let mut bytes = [0u8; 40];
            let len = frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::parse(&bytes[..len]), Ok(Some((frame, &[][..]))));
            let only = match frame {
                Frame::Data { stream, offset, bytes } => Some((stream, offset, bytes)),
                _ => None,
            };
            assert_eq!(Frame::only_data(&bytes[..len]), only);
            assert_eq!(Frame::only_data(&bytes[..len + 1]), None, "there is more");
            assert!((0..len).all(|cut| Frame::only_data(&bytes[..cut]).is_none()));
            assert_eq!(frame.write(&mut bytes[..len - 1]), None);
            assert!((1..len).all(|cut| Frame::parse(&bytes[..cut]) == Err(Malformed::Truncated)));
        }
        assert_eq!(Frame::parse(&[0; 9]), Ok(None));
        assert_eq!(Frame::parse(&[0, 1]), Err(Malformed::Field("padding")));
        assert_eq!(Frame::parse(&[9]), Err(Malformed::Kind(9)));
    }
}
