//! Posting: jobs for a target become writes and messages, as far as there is room.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use mxl::{Geometry, Wait};
use ofi::{Errno, FiAddr};
use ofi_ring::crash_point;

use super::pace::{self, Pace};
use super::peer::{CommitInFlight, Job, Payload, RoomRequest, Way, What};
use super::{Initiator, PeerState, REPLY_TIMEOUT, Source};
use crate::link::{Memory, MessageKind};
use crate::message::{Commit, Message, Piece, Remote};
use crate::rest::WaitFor;
use crate::shape::{self, GRAIN_PARTS, PARTS, Rings, Span};

/// Interval of repeated requests for a slot.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The extent of a commit.
#[derive(Clone, Copy)]
struct Amount {
    is_grain: bool,
    /// Grain, or the index after the last sample.
    index: u64,
    /// Number of slices that are valid then, or of samples in the batch.
    amount: u32,
    /// Number of slices or samples that are sent.
    time: u64,
}

impl Amount {
    /// The commit as the CQ data of its writes carries it.
    fn commit(self, number: u64, parts: usize) -> Commit {
        let (number, parts, index) = (number as u8, parts - 1, self.index);
        if self.is_grain {
            Commit::Grain { number, index: index as u16, end: self.amount as u16, parts: parts as u16 }
        } else {
            Commit::Samples { number, parts: parts as u8, index: index as u32, count: self.amount as u16 }
        }
    }
}

impl Initiator {
    /// Greets the targets that are not connected, and posts the jobs of the others, as far as there is room. If the
    /// endpoint is full before all had their turn, the next call begins with those that had none.
    pub(super) fn pump_all(&mut self) {
        let count = self.peers.len();
        let (first, mut next) = (self.first, None);
        for at in (0..count).map(|nth| (first + nth) % count) {
            let is_short = self.peers[at].state != PeerState::Connected && self.link.is_full_of_greetings();
            if next.is_none() && (is_short || self.link.is_full()) {
                next = Some(at);
            }
            self.greet(at);
            match self.peers[at].is_silent(Instant::now) {
                true => self.part(at),
                false => self.pump(at),
            }
        }
        self.first = next.unwrap_or(0);
    }

    /// Posts the jobs for a target, as far as there is room.
    fn pump(&mut self, at: usize) {
        self.peers[at].rest = WaitFor::Announced;
        while self.peers[at].state == PeerState::Connected {
            match self.step(at) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a transfer to a target failed");
                    self.peers[at].stats.failed += 1;
                    return self.part(at);
                }
            }
        }
    }

    /// Posts one part. Returns whether there may be more.
    fn step(&mut self, at: usize) -> Result<bool, ofi::Error> {
        let peer = &mut self.peers[at];
        let Some(addr) = peer.addr else { return Ok(false) };
        if let Some(&(number, whole)) = peer.verdicts.front() {
            let message = Message::Verdict { token: peer.token, number, whole };
            let Some(op) = self.link.send(addr, &message)? else {
                peer.rest = self.link.wait_for_room(addr, MessageKind::Connected);
                return Ok(false);
            };
            crash_point!("initiator.verdict");
            peer.verdicts.pop_front();
            peer.flights.insert(op, None);
            return Ok(true);
        }
        let Some(&job) = peer.jobs.front() else { return Ok(false) };
        if job.number.is_none() && !peer.may_begin() {
            if !peer.flights.is_empty() {
                peer.full = None;
            } else if peer.full.get_or_insert_with(Instant::now).elapsed() > REPLY_TIMEOUT {
                // All of it has arrived, and a target that has given this initiator up publishes nothing.
                self.part(at);
            }
            return Ok(false);
        }
        match job.what {
            What::Grain { start, end, payload } => self.step_grain(at, addr, job, (start, end, payload)),
            What::Samples { count, published } => self.step_samples(at, addr, job, (count, published)),
        }
    }

    fn step_grain(
        &mut self,
        at: usize,
        addr: FiAddr,
        job: Job,
        (start, end, payload): (u16, u16, Payload),
    ) -> Result<bool, ofi::Error> {
        let index = job.index;
        let Source::Grains(reader) = &self.source else { return Ok(false) };
        let Ok(grain) = reader.read_slices(index, 0, Wait::Not) else {
            // The source's writer has overwritten the grain.
            return Ok(self.drop_job(at, job));
        };
        let source = Memory { addr: grain.as_ptr().cast_mut(), len: grain.len() };
        let peer = &mut self.peers[at];
        let Some(&remote) = peer.grants.get(&index) else {
            // Writes in flight have lower indices, or this one.
            let floor = peer.sent.values().map(|sent| sent.index).min();
            return self.ask(at, addr, index, floor.unwrap_or(index).min(index));
        };
        let is_judged = payload != Payload::Left;
        let is_flagged = payload == Payload::Flagged;
        let begun = CommitInFlight { is_judged, is_flagged, ..CommitInFlight::new(index, 0, job.since) };
        let is_last = if is_judged {
            let spans = shape::slices(&self.geometry, start, end);
            let amount =
                Amount { is_grain: true, index, amount: end.into(), time: end.saturating_sub(start).into() };
            let posted = self.post_part(at, (addr, remote, source), (job, begun, amount), &spans)?;
            let Some(is_last) = posted else { return Ok(false) };
            is_last
        } else {
            let number = peer.number;
            let message = Message::Invalid { token: peer.token, number, index };
            let Some(op) = self.link.send(addr, &message)? else {
                peer.rest = self.link.wait_for_room(addr, MessageKind::Connected);
                return Ok(false);
            };
            peer.number += 1;
            peer.jobs.pop_front();
            peer.flights.insert(op, Some(number));
            peer.sent.insert(number, CommitInFlight { left: 1, is_posted: true, ..begun });
            true
        };
        let Geometry::Grains { slices, .. } = self.geometry else { return Ok(true) };
        if is_last && (end >= slices || !is_judged) {
            // The target closes the slot when the grain is complete. Lower ones are abandoned.
            self.peers[at].grants.retain(|granted, _| *granted > index);
        }
        Ok(true)
    }

    fn step_samples(
        &mut self,
        at: usize,
        addr: FiAddr,
        job: Job,
        (count, published): (u64, bool),
    ) -> Result<bool, ofi::Error> {
        let Source::Samples(reader) = &self.source else { return Ok(false) };
        let index = job.index;
        if published && reader.read(index, count, Wait::Not).is_err() {
            return Ok(self.drop_job(at, job));
        }
        let stride = reader.stride();
        let (base, head) = (reader.base(), reader.head());
        let source = Memory { addr: base.cast_mut(), len: stride * reader.channels() as usize };
        let rings = Rings { length: stride as u64 / reader.word(), word: reader.word() };
        let (channels, start) = (reader.channels(), index.saturating_sub(count));
        let peer = &mut self.peers[at];
        let (remote, length) = peer.rings;
        if length / 2 < count {
            return Ok(self.drop_job(at, job));
        }
        if job.posted == 0 && (peer.position != Some(start) || index > peer.until) {
            if !peer.sent.is_empty() {
                return Ok(false); // ending transfers free room; a new position is taken after them
            }
            if peer.position != Some(start) {
                (peer.position, peer.until) = (Some(start), 0);
            }
            return self.ask(at, addr, start, start);
        }
        let spans = shape::samples(channels, index, count, rings, Rings { length, word: rings.word });
        let committed = if published { index } else { start.min(head) };
        let begun =
            CommitInFlight { is_judged: true, committed, ..CommitInFlight::new(index, count, job.since) };
        let amount = Amount { is_grain: false, index, amount: count as u32, time: count };
        match self.post_part(at, (addr, remote, source), (job, begun, amount), &spans)? {
            Some(true) => self.peers[at].position = Some(index),
            Some(false) => {}
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Drops a job whose data the source does not have, or no longer has. The commit of a sent part is abandoned.
    fn drop_job(&mut self, at: usize, job: Job) -> bool {
        let peer = &mut self.peers[at];
        peer.jobs.pop_front();
        peer.parts.clear();
        let sent = job.number.and_then(|number| Some((number, peer.sent.get_mut(&number)?)));
        let Some((number, sent)) = sent else {
            self.lose(at, job.index);
            return true;
        };
        (sent.is_posted, sent.is_given_up) = (true, true);
        if sent.count > 0 {
            // The target publishes the batch as silence, and continues after it.
            peer.position = Some(job.index);
        } else {
            peer.grants.retain(|granted, _| *granted > job.index);
        }
        self.judge(at, number);
        true
    }

    /// Posts the next part of a job, whose payload is `spans`. Returns whether it was the last; `None` if there was no
    /// room, or the part is not due.
    fn post_part(
        &mut self,
        at: usize,
        (addr, remote, source): (FiAddr, Remote, Memory),
        (job, begun, amount): (Job, CommitInFlight, Amount),
        spans: &[Span],
    ) -> Result<Option<bool>, ofi::Error> {
        let peer = &mut self.peers[at];
        if peer.parts.is_empty() {
            let limits = if self.pace.is_some() && amount.is_grain {
                Pace::limits(spans.iter().map(|span| span.len).sum(), peer.limits)
            } else {
                peer.limits
            };
            peer.parts = shape::parts(spans, limits).into();
        }
        let count = job.posted + peer.parts.len();
        if let Some(pace) = self.pace {
            let time = pace::period(&self.geometry, amount.time);
            let due = pace.due(job.since, time, job.posted, count);
            if Instant::now() < due {
                peer.rest = WaitFor::Until(due);
                return Ok(None);
            }
        }
        let most = if amount.is_grain { GRAIN_PARTS } else { PARTS };
        let Some(part) = peer.parts.front().filter(|_| peer.way == Way::Messages || count <= most) else {
            return Err(ofi::Error::new(Errno::EMSGSIZE)); // such transfers are refused at submission
        };
        let number = job.number.unwrap_or(peer.number);
        let bytes: u64 = part.iter().map(|span| span.len).sum();
        let posted = match peer.way {
            Way::Writes => {
                let commit = amount.commit(number, count);
                // SAFETY: the slot or the rings are mapped as long as the reader, which outlives the link; their writer
                // may change them, which `holds` detects.
                unsafe { self.link.write(addr, source, remote, part, commit.encode())? }
            }
            Way::Messages => {
                let (index, amount) = (amount.index, amount.amount);
                let parts = u32::try_from(count).map_err(|_| ofi::Error::new(Errno::EMSGSIZE))?;
                let piece = Piece { token: peer.token, number, index, amount, parts, spans: part.clone() };
                // SAFETY: as above.
                unsafe { self.link.send_piece(addr, source, &piece)? }
            }
        };
        let Some(op) = posted else {
            peer.rest = self.link.wait_for_room(addr, MessageKind::Connected);
            return Ok(None);
        };
        crash_point!("initiator.part");
        peer.parts.pop_front();
        let is_last = peer.parts.is_empty();
        let sent = peer.sent.entry(number).or_insert(begun);
        (sent.bytes, sent.left, sent.is_posted) = (sent.bytes + bytes, sent.left + 1, is_last);
        peer.flights.insert(op, Some(number));
        if job.posted == 0 {
            peer.number += 1;
        }
        if is_last {
            peer.jobs.pop_front();
        } else if let Some(job) = peer.jobs.front_mut() {
            (job.posted, job.number) = (job.posted + 1, Some(number));
        }
        Ok(Some(is_last))
    }

    /// Requests room from a target. If the target does not answer a delivered request, it is disconnected.
    fn ask(&mut self, at: usize, addr: FiAddr, index: u64, floor: u64) -> Result<bool, ofi::Error> {
        let now = Instant::now();
        let peer = &mut self.peers[at];
        let is_quiet = peer.sent.is_empty();
        if let Some(RoomRequest { last, arrived, .. }) = peer.asked {
            if is_quiet && arrived.is_some_and(|arrived| now - arrived > REPLY_TIMEOUT) {
                self.part(at);
                return Ok(false);
            }
            // The target may have had no room.
            if arrived.is_none() || now - last < ASK_EVERY {
                return Ok(false);
            }
        }
        if let Some(op) = self.link.send(addr, &Message::Open { token: peer.token, index, floor })? {
            crash_point!("initiator.asked");
            let first = peer.asked.unwrap_or(RoomRequest { op, last: now, arrived: None });
            peer.asked = Some(RoomRequest { last: now, ..first });
            peer.flights.insert(op, None);
        } else {
            peer.rest = self.link.wait_for_room(addr, MessageKind::Connected);
        }
        Ok(false)
    }
}
