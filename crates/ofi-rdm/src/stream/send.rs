//! The sending end of a stream.
//!
//! Bytes are numbered from 0. Those in `base..end` are kept as segments until the peer has acknowledged them; those in
//! `base..next` were sent at least once. A segment holds either bytes, or the token of a payload in the driver's
//! memory, whose bytes are fetched each time a packet is made.
//!
//! A payload is divided into parts (records of one packet each) when a packet is made. Each part lies within one
//! packet, so that its receiver can put it in place without reassembly.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::parts::{Fill, PART_HEAD, Parts, Train};
use crate::ranges::RangeSet;
use crate::wire::record::{self, HEAD};
use crate::wire::{Stream, frame};

/// Records up to this size share an allocation.
const CHUNK: usize = 4096;
/// The smallest part of a payload that is cut to fill up a packet.
const LEAST_PART: usize = 512;
/// The shortest part that goes first in a long packet, as the only part of its stream.
const LEAST_FIRST: u64 = 4096;
/// Bytes of a payload that are sent before the next payload's turn. A receiver can predict the packets of a turn.
const TURN: u64 = 1 << 20;
/// Segments at the end of a stream that are examined before the others are searched.
const NEAR: usize = 4;
/// The send limit before the peer has announced its own.
const FIRST_LIMIT: u64 = crate::wire::handshake::LEAST_WINDOW;

#[derive(Debug)]
enum What {
    Bytes(Vec<u8>),
    Parts(Parts),
}

#[derive(Debug)]
struct Segment {
    start: u64,
    len: u64,
    what: What,
}

#[derive(Debug)]
enum Pending {
    Record { bytes: Vec<u8>, mark: Option<u64> },
    Payload { kind: u8, flags: u8, id: u64, token: u64, at: u64, len: u64 },
}

/// The state of one stream's sending end.
#[derive(Debug)]
pub struct SendStream {
    stream: Stream,
    base: u64,
    next: u64,
    end: u64,
    limit: u64,
    segments: VecDeque<Segment>,
    acked: RangeSet,
    lost: RangeSet,
    /// Records and payloads that are not in the stream yet.
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// Bytes of records in the segments.
    kept: usize,
    /// Stream offsets whose arrival the driver wants to be notified of, with their marks.
    marks: VecDeque<(u64, u64)>,
    spare: Vec<u8>,
    /// Bytes of the first pending payload that were sent in its turn. 0: the turn is over, or has not begun.
    turn: u64,
    /// Bytes of the last part that filled a long packet.
    full: u64,
}

impl SendStream {
    /// The first byte and the first limit of a stream.
    pub(crate) const BEGIN: (u64, u64) = (0, FIRST_LIMIT);

    pub(crate) const fn new(stream: Stream) -> Self {
        Self::at(stream, Self::BEGIN)
    }

    /// A stream that continues at offset `base` with limit `limit`.
    pub(crate) const fn at(stream: Stream, (base, limit): (u64, u64)) -> Self {
        Self {
            stream,
            base,
            next: base,
            end: base,
            limit,
            segments: VecDeque::new(),
            acked: RangeSet::new(),
            lost: RangeSet::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            kept: 0,
            marks: VecDeque::new(),
            spare: Vec::new(),
            turn: 0,
            full: 0,
        }
    }

    /// Appends a record whose body is `fields` and `payload` more bytes, which the caller writes into the returned
    /// slice. [`crate::Driver::acked`] gets `mark` once the record has arrived at the peer.
    pub fn record(
        &mut self,
        kind: u8,
        flags: u8,
        fields: &[u8],
        payload: usize,
        mark: Option<u64>,
    ) -> &mut [u8] {
        let body = fields.len() + payload;
        let head = record::head(kind, flags, body);
        let total = HEAD + body;
        // The order of commands matters, whereas answers need not wait for payloads.
        let bytes = if self.pending.is_empty() || self.stream == Stream::Bulk {
            let start = self.end;
            self.end += total as u64;
            self.kept += total;
            if let Some(mark) = mark {
                self.marks.push_back((self.end, mark));
            }
            let shares = matches!(
                self.segments.back(),
                Some(Segment { what: What::Bytes(bytes), .. }) if bytes.capacity() - bytes.len() >= total
            );
            if !shares {
                let mut bytes = core::mem::take(&mut self.spare);
                bytes.clear();
                bytes.reserve(total.max(CHUNK));
                self.segments.push_back(Segment { start, len: 0, what: What::Bytes(bytes) });
            }
            match self.segments.back_mut() {
                Some(Segment { len, what: What::Bytes(bytes), .. }) => {
                    *len += total as u64;
                    bytes
                }
                _ => unreachable!("it was just looked at, or made"),
            }
        } else {
            self.pending_bytes += total;
            self.pending.push_back(Pending::Record { bytes: Vec::with_capacity(total), mark });
            match self.pending.back_mut() {
                Some(Pending::Record { bytes, .. }) => bytes,
                _ => unreachable!("it was just made"),
            }
        };
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(fields);
        let from = bytes.len();
        bytes.resize(from + payload, 0);
        &mut bytes[from..]
    }

    /// Appends a payload that stays in the driver's memory. It is sent as records of this kind, each with `id`, an
    /// offset and bytes as its body. The driver is asked for the bytes of `token`, and notified when all have arrived.
    pub fn payload(&mut self, kind: u8, flags: u8, id: u64, token: u64, len: u64) {
        self.part_of_payload(kind, flags, id, token, 0..len);
    }

    /// As [`Sender::payload`], for the bytes in `range` of a longer payload. Parts of one payload may overtake each
    /// other.
    pub fn part_of_payload(&mut self, kind: u8, flags: u8, id: u64, token: u64, range: Range<u64>) {
        let Range { start: at, end: len } = range;
        if at < len {
            self.pending.push_back(Pending::Payload { kind, flags, id, token, at, len });
        }
    }

    /// `most` bytes, rounded down to whole packets of a payload's parts, but at least one packet; `most` itself if the
    /// length of parts is unknown.
    pub fn whole_parts(&self, most: usize) -> usize {
        let full = self.full as usize;
        most.checked_div(full).map_or(most, |packets| packets.max(1) * full)
    }

    /// Whether all unacknowledged data is kept here, or belongs to payloads whose tokens are `lasting`. If so, it can
    /// be sent without the driver's other payloads.
    pub fn is_plain(&self, lasting: &dyn Fn(u64) -> bool) -> bool {
        let held = |segment: &Segment| match &segment.what {
            What::Bytes(_) => true,
            What::Parts(parts) => segment.start + segment.len <= self.base || lasting(parts.token),
        };
        self.segments.iter().all(held)
            && self.pending.iter().all(|pending| match pending {
                Pending::Record { .. } => true,
                Pending::Payload { token, .. } => lasting(*token),
            })
    }

    /// The next byte and the limit.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.end, self.limit)
    }

    /// Bytes that are kept here. The driver should limit them.
    pub fn buffered(&self) -> usize {
        (self.end - self.base) as usize + self.pending_bytes
    }

    /// Bytes of records that are kept here until they are acknowledged. Payloads stay with the driver and do not count.
    pub fn records(&self) -> usize {
        self.kept + self.pending_bytes
    }

    /// Bytes of the stream that have not been sent, without payloads.
    pub fn unsent(&self) -> usize {
        (self.end - self.next) as usize + self.pending_bytes
    }

    /// Whether sent bytes are unacknowledged.
    pub fn is_under_way(&self) -> bool {
        self.base != self.next
    }

    /// Whether everything was acknowledged.
    pub fn is_drained(&self) -> bool {
        self.base == self.end && self.pending.is_empty()
    }

    /// Whether everything was sent, and the last of it was a payload whose owner waits for its arrival.
    pub(crate) fn ends_with_payload(&self) -> bool {
        self.next == self.end
            && self.pending.is_empty()
            && matches!(self.segments.back(), Some(Segment { what: What::Parts(_), .. }))
    }

    /// Whether there is data to send and credit for it.
    pub(crate) fn has_output(&self) -> bool {
        !self.lost.is_empty()
            || (self.next < self.end.min(self.limit))
            || (!self.pending.is_empty() && self.end + (PART_HEAD as u64) < self.limit)
    }

    /// Whether data waits for credit.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.has_output() && (self.next < self.end || !self.pending.is_empty())
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Moves pending records and payloads into the stream, as many as a packet with `room` more bytes holds.
    fn expand(&mut self, mut room: usize) {
        while let Some(pending) = self.pending.front_mut() {
            let credit = usize::try_from(self.limit.saturating_sub(self.end)).unwrap_or(usize::MAX);
            match pending {
                Pending::Record { bytes, mark } => {
                    if room == 0 {
                        return;
                    }
                    let (bytes, mark) = (core::mem::take(bytes), *mark);
                    self.pending.pop_front();
                    self.pending_bytes -= bytes.len();
                    room = room.saturating_sub(bytes.len());
                    let (start, len) = (self.end, bytes.len() as u64);
                    self.end += len;
                    self.kept += bytes.len();
                    if let Some(mark) = mark {
                        self.marks.push_back((self.end, mark));
                    }
                    self.segments.push_back(Segment { start, len, what: What::Bytes(bytes) });
                }
                Pending::Payload { at, len, .. } => {
                    let left = *len - *at;
                    let fits = room.min(credit).saturating_sub(PART_HEAD) as u64;
                    if fits < left.min(LEAST_PART as u64) {
                        return;
                    }
                    room -= self.cut(fits.min(left)) as usize;
                }
            }
        }
    }

    /// Moves the next `part` bytes of the first pending payload into the stream. Returns how many bytes they take
    /// there.
    fn cut(&mut self, part: u64) -> u64 {
        let Some(Pending::Payload { kind, flags, id, token, at, len }) = self.pending.front_mut() else {
            return 0;
        };
        let parts = Parts::new((*kind, *flags, *id), *token, *at, part);
        let (start, taken) = (self.end, parts.stride());
        match self.segments.back_mut() {
            Some(Segment { len, what: What::Parts(before), .. }) if before.go_on_with(*len, &parts) => {
                *len += taken;
            }
            _ => self.segments.push_back(Segment { start, len: taken, what: What::Parts(parts) }),
        }
        self.end += taken;
        *at += part;
        if *at == *len {
            self.marks.push_back((self.end, *token));
            self.pending.pop_front();
            self.turn = 0;
        } else {
            self.count_turn(part);
        }
        taken
    }

    /// Counts bytes sent of the first pending payload, and starts the next payload's turn if it is due.
    fn count_turn(&mut self, bytes: u64) {
        self.turn += bytes;
        // Commands keep their order.
        if self.stream == Stream::Bulk && self.turn >= TURN {
            self.pending.rotate_left(1);
            self.turn = 0;
        }
    }

    /// Writes a frame with one long part of a payload, if that comes next and everything before it was sent. The part
    /// fills `to`, or is the payload's last. Returns the bytes' range and the frame's length.
    pub(crate) fn write_part(&mut self, to: &mut [u8], fill: &mut Fill<'_>) -> Option<(Range<u64>, usize)> {
        const HEADS: usize = frame::STREAM_LEN + PART_HEAD;
        if !self.lost.is_empty() || self.next != self.end {
            return None;
        }
        let Some(Pending::Payload { at, len, .. }) = self.pending.front() else { return None };
        let room = to.len().checked_sub(HEADS)?.min(usize::from(u16::MAX) - PART_HEAD) as u64;
        let part = room.min(*len - *at);
        if part < LEAST_FIRST || part + PART_HEAD as u64 > self.limit.saturating_sub(self.end) {
            return None;
        }
        if part == room {
            self.full = part;
        }
        self.cut(part);
        let bytes = core::mem::replace(&mut self.next, self.end)..self.end;
        let len = (bytes.end - bytes.start) as usize;
        frame::write_stream_head(to, self.stream, bytes.start, len);
        self.copy(bytes.clone(), &mut to[frame::STREAM_LEN..][..len], fill);
        Some((bytes, frame::STREAM_LEN + len))
    }

    /// Writes one stream frame to `to`, lost bytes first. Returns the bytes' range and the frame's length.
    pub(crate) fn write(&mut self, to: &mut [u8], fill: &mut Fill<'_>) -> Option<(Range<u64>, usize)> {
        let room = to.len().checked_sub(frame::STREAM_LEN + 1)? + 1;
        let room = room.min(usize::from(u16::MAX));
        let bytes = match self.lost.pop(room as u64) {
            Some(lost) => lost,
            None => {
                let ready = (self.end - self.next) as usize;
                if ready < room {
                    self.expand(room - ready);
                }
                let end = self.end.min(self.limit).min(self.next + room as u64);
                if end <= self.next {
                    return None;
                }
                let fresh = self.next..end;
                self.next = end;
                fresh
            }
        };
        let len = (bytes.end - bytes.start) as usize;
        frame::write_stream_head(to, self.stream, bytes.start, len);
        self.copy(bytes.clone(), &mut to[frame::STREAM_LEN..frame::STREAM_LEN + len], fill);
        Some((bytes, frame::STREAM_LEN + len))
    }

    /// Adds more parts of the payload of the packet just written, which must carry no bytes of the stream except
    /// `bytes`. Adds at most `most` parts, and never the payload's last one. They count as sent.
    pub(crate) fn train(&mut self, bytes: &Range<u64>, most: u64) -> Option<Train> {
        let Segment { start, len, what: What::Parts(parts) } = self.segments.back_mut()? else { return None };
        let stride = parts.stride();
        let is_last = bytes.end == self.end && self.next == self.end && bytes.end - bytes.start == stride;
        if !is_last || !self.lost.is_empty() {
            return None;
        }
        // If that was the end of its payload's turn, the payload is now the last one.
        let over = self.stream == Stream::Bulk && self.turn == 0;
        let turn = if over { self.pending.back_mut() } else { self.pending.front_mut() };
        let Some(Pending::Payload { kind, flags, id, token, at, len: total }) = turn else { return None };
        let next = Parts::new((*kind, *flags, *id), *token, *at, parts.part);
        if !parts.go_on_with(*len, &next) {
            return None;
        }
        let wanted = (*total - *at - 1) / parts.part;
        let count = most.min(wanted).min(self.limit.saturating_sub(self.end) / stride);
        if count == 0 {
            return None;
        }
        *at += count * parts.part;
        *len += count * stride;
        let from = core::mem::replace(&mut self.end, *start + *len);
        self.next = self.end;
        if !over {
            self.count_turn(count * next.part);
        }
        Some(Train { parts: next, start: from, count })
    }

    fn copy(&self, bytes: Range<u64>, mut to: &mut [u8], fill: &mut Fill<'_>) {
        let first = self.find(bytes.start);
        let mut at = bytes.start;
        for segment in self.segments.iter().skip(first) {
            if to.is_empty() {
                return;
            }
            let skip = (at - segment.start) as usize;
            let run = (segment.len as usize - skip).min(to.len());
            let (here, rest) = to.split_at_mut(run);
            match &segment.what {
                What::Bytes(bytes) => here.copy_from_slice(&bytes[skip..skip + run]),
                What::Parts(parts) => parts.copy(skip, here, fill),
            }
            at += run as u64;
            to = rest;
        }
    }

    /// The index of the segment with byte `at`, or the number of segments. Unsent bytes are in the last segments, which
    /// are examined first, because each step of the binary search costs a cache miss.
    fn find(&self, at: u64) -> usize {
        let holds = |&index: &usize| {
            let segment = &self.segments[index];
            segment.start <= at && at < segment.start + segment.len
        };
        let count = self.segments.len();
        (count.saturating_sub(NEAR)..count)
            .rev()
            .find(holds)
            .unwrap_or_else(|| self.segments.partition_point(|segment| segment.start + segment.len <= at))
    }

    /// The peer acknowledged these bytes.
    pub(crate) fn ack(&mut self, bytes: Range<u64>) {
        if bytes.is_empty() || bytes.end <= self.base {
            return;
        }
        self.lost.remove(bytes.clone());
        if bytes.start > self.base {
            self.acked.insert(bytes);
            return;
        }
        self.base = bytes.end;
        if !self.acked.is_empty() {
            self.acked.remove(0..self.base);
            if self.acked.first().is_some_and(|run| run.start == self.base)
                && let Some(run) = self.acked.forget_first()
            {
                self.base = run.end;
            }
        }
        while self.segments.front().is_some_and(|segment| segment.start + segment.len <= self.base) {
            // There may still be room for more in the last segment.
            if self.segments.len() == 1
                && matches!(&self.segments[0].what, What::Bytes(bytes) if bytes.capacity() - bytes.len() >= 256)
            {
                break;
            }
            if let Some(Segment { what: What::Bytes(bytes), .. }) = self.segments.pop_front() {
                self.kept -= bytes.len();
                if bytes.capacity() == CHUNK {
                    self.spare = bytes;
                }
            }
        }
    }

    /// The mark of the oldest record or payload that has arrived.
    pub(crate) fn pop_acked(&mut self) -> Option<u64> {
        let &(end, mark) = self.marks.front()?;
        if end > self.base {
            return None;
        }
        self.marks.pop_front();
        Some(mark)
    }

    /// Queues these bytes for retransmission, except those that have arrived.
    pub(crate) fn lose(&mut self, bytes: Range<u64>) {
        let bytes = bytes.start.max(self.base)..bytes.end;
        if bytes.is_empty() {
            return;
        }
        self.lost.insert(bytes.clone());
        for run in self.acked.within(&bytes) {
            self.lost.remove(run.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn fill(token: u64, at: u64, to: &mut [u8]) {
        for (n, byte) in to.iter_mut().enumerate() {
            *byte = (token + at + n as u64) as u8;
        }
    }

    #[test]
    fn what_is_lost_is_sent_again_and_what_arrived_is_not() {
        let mut stream = SendStream::new(Stream::Commands);
        stream.record(1, 0, &[7; 10], 22, Some(5)).fill(9);
        let mut packet = [0u8; 30];
        let (first, len) = stream.write(&mut packet, &mut fill).unwrap();
        assert_eq!((first.clone(), len), (0..18, 30));
        let (second, _) = stream.write(&mut packet, &mut fill).unwrap();
        let (third, _) = stream.write(&mut packet, &mut fill).unwrap();
        assert_eq!((second.clone(), third.clone()), (18..36, 36..40));
        assert!(!stream.has_output());
        stream.ack(second);
        assert_eq!((stream.pop_acked(), stream.buffered(), stream.records()), (None, 40, 40));
        stream.lose(0..40);
        assert_eq!(stream.write(&mut packet, &mut fill).unwrap().0, 0..18);
        assert_eq!(stream.write(&mut packet, &mut fill).unwrap().0, 36..40);
        assert_eq!(stream.write(&mut packet, &mut fill), None);
        stream.ack(third);
        stream.ack(first);
        assert_eq!((stream.pop_acked(), stream.pop_acked()), (Some(5), None));
        assert!(stream.is_drained());
    }

    #[test]
    fn every_byte_is_found_among_few_segments_and_many() {
        let mut stream = SendStream::new(Stream::Bulk);
        assert_eq!(stream.find(0), 0);
        stream.set_limit(1 << 20);
        // Each payload's last part is shorter, so it has segments of its own.
        (0..10).for_each(|n| stream.payload(2, 0, 77 + n, 3 + n, 2_500));
        let mut packet = [0u8; 1000];
        while stream.write(&mut packet, &mut fill).is_some() {
            let plain = |at| {
                stream
                    .segments
                    .iter()
                    .position(|segment| at < segment.start + segment.len)
                    .unwrap_or(stream.segments.len())
            };
            assert!((0..=stream.end).all(|at| stream.find(at) == plain(at)));
        }
        assert!(stream.segments.len() > 2 * NEAR, "{}", stream.segments.len());
    }

    #[test]
    fn a_payload_becomes_parts_of_one_packet_and_commands_wait_behind_it() {
        let mut stream = SendStream::new(Stream::Commands);
        stream.payload(2, 0, 77, 3, 2000);
        stream.record(1, 0, b"after", 0, None);
        let (mut sent, mut packet) = (vec![], [0u8; 1000]);
        while let Some((_, len)) = stream.write(&mut packet, &mut fill) {
            let mut rest = &packet[frame::STREAM_LEN..len];
            while let Ok(Some((record, len))) = record::parse(rest, 2000) {
                sent.push((record.kind, record.body.to_vec()));
                rest = &rest[len..];
            }
            assert!(rest.is_empty(), "no record crosses packets");
        }
        let (last, parts) = sent.split_last().unwrap();
        assert_eq!(last, &(1, b"after".to_vec()));
        let mut at = 0u64;
        for (kind, body) in parts {
            assert_eq!(
                (*kind, &body[..8], &body[8..16]),
                (2, &77u64.to_be_bytes()[..], &at.to_be_bytes()[..])
            );
            for &byte in &body[16..] {
                assert_eq!(byte, (3 + at) as u8);
                at += 1;
            }
        }
        assert_eq!(at, 2000);
    }

    /// The names of the payloads whose parts are in the stream frames that `write` makes, with the parts' lengths.
    fn parts_of(packet: &[u8]) -> (u64, usize) {
        let (record, _) = record::parse(&packet[frame::STREAM_LEN..], 1 << 20).unwrap().unwrap();
        let (id, _) = record.body.split_first_chunk::<8>().unwrap();
        (u64::from_be_bytes(*id), record.body.len() - 16)
    }

    #[test]
    fn a_payload_goes_on_for_a_turn_and_short_ones_are_sent_whole() {
        let mut stream = SendStream::new(Stream::Bulk);
        stream.set_limit(16 << 20);
        let lengths = [3 << 20, 700_000, 2 << 20];
        lengths.iter().zip(0..).for_each(|(&len, id)| stream.payload(2, 0, id, id, len));
        let (mut packet, mut turns) = (vec![0u8; 60_000], Vec::<(u64, u64)>::new());
        while let Some((range, len)) =
            stream.write_part(&mut packet, &mut fill).or_else(|| stream.write(&mut packet, &mut fill))
        {
            assert_eq!((range.end - range.start) as usize, len - frame::STREAM_LEN);
            let (id, len) = parts_of(&packet[..len]);
            match turns.last_mut() {
                Some((last, sum)) if *last == id => *sum += len as u64,
                _ => turns.push((id, len as u64)),
            }
        }
        let order: Vec<_> = turns.iter().map(|&(id, _)| id).collect();
        assert_eq!(order, [0, 1, 2, 0, 2, 0]);
        assert!(turns[..1].iter().all(|&(_, sum)| (TURN..TURN + 60_000).contains(&sum)), "{turns:?}");
        for (id, &len) in (0..).zip(&lengths) {
            assert_eq!(turns.iter().filter(|turn| turn.0 == id).map(|turn| turn.1).sum::<u64>(), len);
        }
    }

    #[test]
    fn a_long_part_has_its_packet_alone_and_comes_in_its_order() {
        let mut stream = SendStream::new(Stream::Commands);
        stream.set_limit(1 << 20);
        stream.record(1, 0, b"before", 0, None);
        stream.payload(2, 0, 7, 7, 50_000);
        stream.payload(2, 0, 8, 8, 3_000);
        let mut packet = vec![0u8; 20_000];
        assert_eq!(stream.write_part(&mut packet, &mut fill), None, "a record is before it");
        assert_eq!(stream.whole_parts(100), 100);
        let (first, len) = stream.write(&mut packet[..26], &mut fill).unwrap();
        assert_eq!((first.clone(), len), (0..14, 26));
        let full = 20_000 - frame::STREAM_LEN - PART_HEAD;
        let mut sent = Vec::new();
        while let Some((_, len)) = stream.write_part(&mut packet, &mut fill) {
            sent.push(parts_of(&packet[..len]));
            assert!(
                packet[frame::STREAM_LEN + PART_HEAD..len]
                    .iter()
                    .zip(7..)
                    .all(|(&byte, n)| { byte == (n as usize + (sent.len() - 1) * full) as u8 })
            );
        }
        assert_eq!(sent, [(7, full), (7, full), (7, 50_000 - 2 * full)]);
        assert_eq!((stream.whole_parts(3 * full + 1), stream.whole_parts(9)), (3 * full, full));
        let (range, len) = stream.write(&mut packet, &mut fill).unwrap();
        assert_eq!(parts_of(&packet[..len]), (8, 3_000));
        stream.lose(first);
        stream.payload(2, 0, 9, 9, 50_000);
        assert_eq!(stream.write_part(&mut packet, &mut fill), None, "lost bytes are before it");
        assert_eq!(stream.write(&mut packet[..26], &mut fill).unwrap().0, 0..14);
        stream.set_limit(range.end + 10_000);
        let mut short = SendStream::new(Stream::Bulk);
        short.payload(2, 0, 9, 9, 100_000);
        (short.next, short.end, short.limit) = (0, 0, 10_000);
        assert_eq!(short.write_part(&mut packet, &mut fill), None, "there is no credit for it");
    }

    #[test]
    fn nothing_is_sent_beyond_the_credit() {
        let mut stream = SendStream::new(Stream::Bulk);
        stream.payload(2, 0, 0, 0, 1 << 20);
        let (mut sent, mut packet) = (0, vec![0u8; 9000]);
        while let Some((range, _)) = stream.write(&mut packet, &mut fill) {
            sent = range.end;
        }
        assert!(sent <= FIRST_LIMIT && sent > FIRST_LIMIT - 9000 && stream.is_blocked());
        stream.set_limit(FIRST_LIMIT + 100_000);
        assert!(stream.has_output());
    }
}
