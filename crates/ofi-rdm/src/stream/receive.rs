//! The receiving end of a stream: restores the order of bytes, cuts them into records, and grants credit.

use alloc::vec::Vec;

use super::Flow;
use super::late::Late;
use crate::wire::record::{self, Record};

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The peer violates the protocol.
    Violation,
    /// There are too many gaps before these bytes to store them. The peer has to send them again.
    Crowded,
}

/// The state of one stream's receiving end. All bytes below `next` have arrived. Bytes in `taken..next` are held,
/// because their record is incomplete or the driver has stopped the stream. Bytes above `next` are in `late`.
#[derive(Debug)]
pub struct ReceiveStream {
    next: u64,
    taken: u64,
    held: Vec<u8>,
    /// Bytes at the front of `held` that were already taken.
    skip: usize,
    late: Late,
    window: u64,
    limit: u64,
    stopped: bool,
}

impl ReceiveStream {
    pub fn new(window: u64) -> Self {
        Self {
            next: 0,
            taken: 0,
            held: Vec::new(),
            skip: 0,
            late: Late::default(),
            window,
            limit: window,
            stopped: false,
        }
    }

    /// Restores a stream that was at rest.
    pub fn at(next: u64, limit: u64, window: u64) -> Self {
        Self { next, taken: next, limit, ..Self::new(window) }
    }

    /// The next byte and the limit of the peer, if no bytes are held.
    pub fn position(&self) -> Option<(u64, u64)> {
        let empty = self.taken == self.next && self.late.is_empty() && !self.stopped;
        empty.then_some((self.next, self.limit))
    }

    /// Whether bytes from `offset` on leave no gap.
    pub fn continues_at(&self, offset: u64) -> bool {
        offset <= self.next
    }

    /// How far the peer may send ahead of the bytes taken.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Whether the driver stopped the stream.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The new limit, if the change is large enough to announce.
    pub fn new_limit(&self) -> Option<u64> {
        let limit = self.taken + self.window;
        (limit - self.limit >= self.window / 4).then_some(limit)
    }

    /// Returns the limit, which the caller then announces to the peer.
    pub fn tell_limit(&mut self) -> u64 {
        self.limit = self.taken + self.window;
        self.limit
    }

    /// The record in `bytes` at `offset`, if they are one whole record that can be taken in place after the `before`
    /// bytes of others: no bytes are held, and none have arrived out of order.
    #[inline]
    pub fn whole<'a>(&self, before: u64, offset: u64, bytes: &'a [u8]) -> Option<Record<'a>> {
        let plain = self.held.len() == self.skip && self.late.is_empty() && !self.stopped;
        let end = offset.checked_add(bytes.len() as u64)?;
        if !plain || offset != self.next + before || end > self.limit {
            return None;
        }
        let (record, len) = record::parse(bytes, self.longest()).ok()??;
        (len == bytes.len()).then_some(record)
    }

    /// Accounts for `len` bytes of such records.
    pub fn took(&mut self, len: u64) {
        (self.next, self.taken) = (self.next + len, self.taken + len);
    }

    /// The maximum length of a record's body, in bytes.
    fn longest(&self) -> usize {
        (self.window / 2) as usize
    }

    /// Accepts bytes from `offset` on.
    ///
    /// # Errors
    /// [`Refused::Violation`] for bytes beyond the credit, and for invalid records. [`Refused::Crowded`] for bytes
    /// after too many gaps.
    pub fn receive(
        &mut self,
        offset: u64,
        bytes: &[u8],
        take: &mut dyn FnMut(Record<'_>) -> Flow,
    ) -> Result<(), Refused> {
        let end = offset.checked_add(bytes.len() as u64).filter(|&end| end <= self.limit);
        let end = end.ok_or(Refused::Violation)?;
        if end <= self.next {
            return Ok(());
        }
        if offset > self.next {
            return if self.late.keep(offset, bytes) { Ok(()) } else { Err(Refused::Crowded) };
        }
        self.advance(&bytes[(self.next - offset) as usize..], take)?;
        while let Some(piece) = self.late.take(self.next) {
            let taken = self.advance(piece.bytes(), take);
            self.late.give_back(piece);
            taken?;
        }
        Ok(())
    }

    /// Takes the next bytes in order.
    fn advance(&mut self, mut bytes: &[u8], take: &mut dyn FnMut(Record<'_>) -> Flow) -> Result<(), Refused> {
        self.next += bytes.len() as u64;
        // If the beginning of a record is held, append the rest of it. What follows the record is taken in place.
        while self.held.len() > self.skip && !self.stopped {
            let held = &self.held[self.skip..];
            let missing = record::whole_len(held).saturating_sub(held.len());
            if missing == 0 {
                break;
            }
            let (front, rest) = bytes.split_at(missing.min(bytes.len()));
            self.hold(front);
            bytes = rest;
            if front.len() < missing {
                return Ok(());
            }
            self.resume_held(take)?;
        }
        if self.held.len() == self.skip {
            // The usual case: whole records in a packet, without a copy.
            let done = self.records(bytes, take)?;
            (self.skip, self.taken) = (0, self.taken + done as u64);
            self.held.clear();
            self.held.extend_from_slice(&bytes[done..]);
            return Ok(());
        }
        self.hold(bytes);
        self.resume_held(take)
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.skip > self.held.len() / 2 {
            self.held.drain(..self.skip);
            self.skip = 0;
        }
        self.held.extend_from_slice(bytes);
    }

    /// Offers the held records.
    fn resume_held(&mut self, take: &mut dyn FnMut(Record<'_>) -> Flow) -> Result<(), Refused> {
        let held = core::mem::take(&mut self.held);
        let done = self.records(&held[self.skip..], take);
        self.held = held;
        let done = done?;
        (self.skip, self.taken) = (self.skip + done, self.taken + done as u64);
        if self.skip == self.held.len() {
            self.skip = 0;
            if self.held.capacity() > 1 << 16 {
                self.held = Vec::new();
            } else {
                self.held.clear();
            }
        }
        Ok(())
    }

    /// Resumes the stream after a stop.
    ///
    /// # Errors
    /// As [`ReceiveStream::receive`].
    pub fn resume(&mut self, take: &mut dyn FnMut(Record<'_>) -> Flow) -> Result<(), Refused> {
        self.stopped = false;
        self.resume_held(take)
    }

    /// Offers the whole records at the front of `bytes`. Returns the number of bytes taken.
    fn records(&mut self, bytes: &[u8], take: &mut dyn FnMut(Record<'_>) -> Flow) -> Result<usize, Refused> {
        let (mut done, longest) = (0, self.longest());
        while !self.stopped {
            let Some((record, len)) =
                record::parse(&bytes[done..], longest).map_err(|_| Refused::Violation)?
            else {
                break;
            };
            match take(record) {
                Flow::Next => done += len,
                Flow::Stop => self.stopped = true,
                Flow::Broken => return Err(Refused::Violation),
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::RangeSet;
    use crate::stream::late::RUNS;
    use std::vec;

    fn stream_of(records: u8) -> Vec<u8> {
        (0..records).flat_map(|n| [&record::head(n, 0, n.into())[..], &vec![n; n.into()]].concat()).collect()
    }

    #[test]
    fn records_come_once_and_in_order_however_bytes_arrive() {
        let bytes = stream_of(40);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..200 {
            let mut stream = ReceiveStream::new(65_536);
            let mut seen = vec![];
            let mut stops = 0;
            let mut take = |record: Record<'_>, stop: bool| {
                if stop {
                    stops += 1;
                    return Flow::Stop;
                }
                assert!(record.body.iter().all(|&byte| byte == record.kind));
                seen.push((record.kind, record.body.len()));
                Flow::Next
            };
            let mut missing = RangeSet::default();
            missing.insert(0..bytes.len() as u64);
            while !missing.is_empty() {
                let (start, len) = (random(bytes.len()), 1 + random(90));
                let end = bytes.len().min(start + len);
                let stop = random(3) == 0;
                stream.receive(start as u64, &bytes[start..end], &mut |record| take(record, stop)).unwrap();
                missing.remove(start as u64..end as u64);
                if stream.is_stopped() && random(2) == 0 {
                    stream.resume(&mut |record| take(record, false)).unwrap();
                }
            }
            stream.resume(&mut |record| take(record, false)).unwrap();
            assert_eq!(seen, (0..40).map(|n| (n, usize::from(n))).collect::<Vec<_>>());
            assert!(stream.late.is_empty() && stream.held.is_empty());
            assert!(stops > 0 || stream.taken == bytes.len() as u64);
        }
    }

    #[test]
    fn credit_is_kept_to_and_grows_with_what_is_taken() {
        let mut stream = ReceiveStream::new(65_536);
        let mut take = |_: Record<'_>| Flow::Next;
        assert_eq!(stream.receive(65_530, &[0; 7], &mut take), Err(Refused::Violation));
        assert_eq!(stream.new_limit(), None);
        let mut bytes = record::head(1, 0, 20_000).to_vec();
        bytes.resize(20_008, 0);
        stream.receive(0, &bytes, &mut take).unwrap();
        assert_eq!(stream.new_limit(), Some(85_544));
        assert_eq!(stream.tell_limit(), 85_544);
        let huge = record::head(1, 0, 40_000);
        assert_eq!(stream.receive(20_008, &huge, &mut take), Err(Refused::Violation));
    }

    /// Receives every second byte of a window, last bytes first: whatever order a peer chooses, the memory is bounded,
    /// and refused bytes may be sent again.
    #[test]
    fn a_stream_in_shreds_takes_no_more_than_its_window_and_few_runs() {
        let bytes = stream_of(200);
        let mut stream = ReceiveStream::new(65_536);
        let mut seen = 0;
        let mut take = |_: Record<'_>| {
            seen += 1;
            Flow::Next
        };
        let places = (1..bytes.len()).rev().step_by(2);
        let outcomes: Vec<_> =
            places.map(|at| stream.receive(at as u64, &bytes[at..=at], &mut take)).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), RUNS);
        assert!(outcomes[RUNS..].iter().all(|outcome| *outcome == Err(Refused::Crowded)));
        let (front, back) = bytes.split_at(bytes.len() / 3);
        stream.receive(front.len() as u64, back, &mut take).unwrap();
        stream.receive(0, front, &mut take).unwrap();
        assert_eq!((seen, stream.next), (200, bytes.len() as u64));
        assert!(stream.late.is_empty() && stream.held.is_empty());
    }
}
