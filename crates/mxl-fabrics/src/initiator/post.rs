//! Posting: what waits for a target becomes writes and messages, as far as there is room.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use mxl::{Geometry, Wait};
use ofi::FiAddr;

use super::peer::{Job, Payload, Sent, What};
use super::{Initiator, PATIENCE, PeerState, Source};
use crate::link::Memory;
use crate::message::{Commit, Message};
use crate::shape::{self, PIECES, Rings, Span};

/// How often a slot is asked for again.
const ASK_EVERY: Duration = Duration::from_millis(50);

impl Initiator {
    /// Posts what waits for a target, as far as there is room.
    pub(super) fn pump(&mut self, at: usize) {
        while self.peers[at].state == PeerState::Connected {
            match self.step(at) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a target cannot be written");
                    self.peers[at].stats.failed += 1;
                    return self.part(at);
                }
            }
        }
    }

    /// Posts one thing. Whether there may be more.
    fn step(&mut self, at: usize) -> Result<bool, ofi::Error> {
        let peer = &mut self.peers[at];
        let Some(addr) = peer.addr else { return Ok(false) };
        if let Some(&(number, is_whole)) = peer.verdicts.front() {
            let message = Message::Verdict { token: peer.token, number, whole: is_whole.into() };
            let Some(op) = self.link.send(addr, &message)? else { return Ok(false) };
            peer.verdicts.pop_front();
            peer.flights.insert(op, None);
            return Ok(true);
        }
        let Some(&job) = peer.jobs.front() else { return Ok(false) };
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
            // The source's writer was faster.
            self.peers[at].jobs.pop_front();
            self.lose(at, index);
            return Ok(true);
        };
        let source = Memory { addr: grain.as_ptr().cast_mut(), len: grain.len() };
        let peer = &mut self.peers[at];
        let Some(&remote) = peer.grants.get(&index) else {
            // What is under way is of lower indices, or of this one.
            let floor = peer.sent.values().map(|sent| sent.index).min();
            return self.ask(at, addr, index, floor.unwrap_or(index).min(index));
        };
        let spans = shape::slices(&self.geometry, start, end);
        let bytes: u64 = spans.iter().map(|span| span.len).sum();
        let number = peer.number;
        let is_judged = payload != Payload::Left;
        let posted = if !is_judged {
            self.link.send(addr, &Message::Invalid { token: peer.token, number, index })?
        } else {
            let commit = Commit::Grain { number: number as u8, index: index as u16, end };
            // SAFETY: the slot is mapped as long as the reader, which outlives the link; its writer may change it, which `holds` tells.
            unsafe { self.link.write(addr, source, remote, &spans, commit.encode())? }
        };
        let Some(op) = posted else { return Ok(false) };
        peer.number += 1;
        peer.jobs.pop_front();
        peer.flights.insert(op, Some(number));
        let is_flagged = payload == Payload::Flagged;
        let sent = Sent {
            index,
            count: 0,
            bytes,
            left: 1,
            is_posted: true,
            is_judged,
            is_flagged,
            since: job.since,
        };
        peer.sent.insert(number, sent);
        let Geometry::Grains { slices, .. } = self.geometry else { return Ok(true) };
        if end >= slices || !is_judged {
            // The target closes the slot when it is complete. Lower ones are given up.
            peer.grants.retain(|granted, _| *granted > index);
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
            // A batch of which a part was posted must be ended: with what is there, and told as torn.
            if job.posted == 0 {
                self.peers[at].jobs.pop_front();
                self.lose(at, index);
                return Ok(true);
            }
            self.part(at);
            return Ok(false);
        }
        let stride = reader.stride();
        let base = reader.base();
        let source = Memory { addr: base.cast_mut(), len: stride * reader.channels() as usize };
        let rings = Rings { length: stride as u64 / reader.word(), word: reader.word() };
        let (channels, start) = (reader.channels(), index.saturating_sub(count));
        let peer = &mut self.peers[at];
        let (remote, length) = peer.rings;
        if length / 2 < count {
            self.peers[at].jobs.pop_front();
            self.lose(at, index);
            return Ok(true);
        }
        if peer.position != Some(start) || index > peer.until {
            if !peer.sent.is_empty() {
                return Ok(false); // room comes with what is under way, and a new position is taken after it
            }
            if peer.position != Some(start) {
                (peer.position, peer.until) = (Some(start), 0);
            }
            return self.ask(at, addr, start, start);
        }
        let spans = shape::samples(channels, index, count, rings, Rings { length, word: rings.word });
        let parts: Vec<&[Span]> = spans.chunks(PIECES).collect();
        let Some(part) = parts.get(job.posted) else { return Ok(false) };
        let number = job.number.unwrap_or(peer.number);
        let commit = Commit::Samples {
            number: number as u8,
            parts: (parts.len() - 1) as u8,
            index: index as u32,
            count: count as u16,
        };
        // SAFETY: the rings are mapped as long as the reader, which outlives the link; their writer may change them, which `holds` tells.
        let Some(op) = (unsafe { self.link.write(addr, source, remote, part, commit.encode())? }) else {
            return Ok(false);
        };
        let is_last = job.posted + 1 == parts.len();
        let sent = Sent {
            index,
            count,
            bytes: 0,
            left: 0,
            is_posted: false,
            is_judged: true,
            is_flagged: false,
            since: job.since,
        };
        let sent = peer.sent.entry(number).or_insert(sent);
        sent.bytes += part.iter().map(|span| span.len).sum::<u64>();
        (sent.left, sent.is_posted) = (sent.left + 1, is_last);
        peer.flights.insert(op, Some(number));
        if job.posted == 0 {
            peer.number += 1;
        }
        if is_last {
            peer.jobs.pop_front();
            peer.position = Some(index);
        } else if let Some(job) = peer.jobs.front_mut() {
            (job.posted, job.number) = (job.posted + 1, Some(number));
        }
        Ok(true)
    }

    /// Asks a target for room. A target that does not answer is lost.
    fn ask(&mut self, at: usize, addr: FiAddr, index: u64, floor: u64) -> Result<bool, ofi::Error> {
        let now = Instant::now();
        let peer = &mut self.peers[at];
        let is_quiet = peer.sent.is_empty();
        match peer.asked {
            Some((since, _)) if is_quiet && now - since > PATIENCE => {
                self.part(at);
                return Ok(false);
            }
            Some((_, last)) if now - last < ASK_EVERY => return Ok(false),
            _ => {}
        }
        if let Some(op) = self.link.send(addr, &Message::Open { token: peer.token, index, floor })? {
            peer.asked = Some((peer.asked.map_or(now, |(since, _)| since), now));
            peer.flights.insert(op, None);
        }
        Ok(false)
    }
}
