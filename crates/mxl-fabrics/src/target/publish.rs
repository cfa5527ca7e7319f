//! Counts arriving parts by their commit, and publishes each commit when it is complete, in the order of
//! commits.

use std::time::{Duration, Instant};

use mxl::{Geometry, GrainInfo};
use ofi_ring::crash_point;

use super::peer::InitiatorPeer;
use super::slots::{grant, silence};
use super::{Received, Ring, Target};
use crate::Result;
use crate::lateness;
use crate::link::Link;
use crate::message::{Commit, KEEPALIVE, Message, WINDOW, widen};

/// Commits after which the target reports its progress to the initiator at once.
const TOLD_EVERY: u64 = WINDOW / 4;
/// Interval of its reports otherwise: a report for each picture, and 200 in a second for the shortest batches of audio.
const TOLD_WITHIN: Duration = Duration::from_millis(5);

/// A commit of which a part has arrived.
pub(super) struct Pending {
    pub(super) index: u64,
    /// Valid slices, or samples.
    pub(super) amount: u64,
    pub(super) invalid: bool,
    pub(super) parts: u32,
    pub(super) arrived: u32,
    /// The initiator has sent its verdict.
    pub(super) is_judged: bool,
    /// The time when the target saw its first part.
    first: Option<Instant>,
}

impl Pending {
    pub(super) fn new(index: u64, amount: u64, parts: u32) -> Self {
        Self { index, amount, invalid: false, parts, arrived: 0, is_judged: false, first: None }
    }
}

impl InitiatorPeer {
    /// Reports what was published to the initiator, if that is due.
    pub(super) fn report(&mut self, link: &Link) {
        if self.report_due(link).is_some_and(|due| Instant::now() >= due) {
            (self.told, self.told_at) = (self.next, Instant::now());
            self.outbox.push_back(Message::Published { token: self.token, number: self.next });
        }
    }

    /// The time of the next report. There is none while a message to the initiator is under way and nothing is new.
    pub(super) fn report_due(&self, link: &Link) -> Option<Instant> {
        let wait = match self.next - self.told {
            0 if !self.outbox.is_empty() || link.operations(self.addr) > 0 => {
                return None;
            }
            0 => KEEPALIVE,
            1..TOLD_EVERY => TOLD_WITHIN,
            _ => Duration::ZERO,
        };
        Some(self.told_at + wait)
    }

    /// The commit to which a part belongs, if it is valid: the commit is near, and its parts agree with each other and
    /// do not exceed their declared number.
    pub(super) fn admit(&mut self, number: u64, part: Pending) -> Option<&mut Pending> {
        if number.checked_sub(self.next)? >= WINDOW {
            return None;
        }
        let (index, amount, parts) = (part.index, part.amount, part.parts);
        let begin = || Pending { first: Some(Instant::now()), ..part };
        let there = self.pending.entry(number).or_insert_with(begin);
        let is_one = (there.index, there.amount, there.parts) == (index, amount, parts);
        (is_one && there.arrived < parts).then_some(there)
    }
}

impl Target {
    /// Handles a completed write of a peer.
    pub(super) fn arrived(&mut self, data: u64) -> Result<()> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let told = match &self.ring {
            Ring::Grains(_) => Commit::of_grain(data).and_then(|commit| match commit {
                Commit::Grain { number, index, end, parts } => {
                    let granted = peer.granted.iter().copied().find(|granted| *granted as u16 == index);
                    Some((number, Pending::new(granted?, end.into(), u32::from(parts) + 1)))
                }
                Commit::Samples { .. } => None,
            }),
            Ring::Samples(writer) => match Commit::of_samples(data) {
                Commit::Samples { number, parts, index, count } => {
                    let index = widen(self.expected.unwrap_or(0), index.into(), 32);
                    let is_inside =
                        index <= peer.until && u64::from(count) <= writer.max_write() && count > 0;
                    is_inside.then(|| (number, Pending::new(index, count.into(), u32::from(parts) + 1)))
                }
                Commit::Grain { .. } => None,
            },
        };
        let there = told.and_then(|(number, pending)| {
            let number = widen(peer.next, number.into(), 8);
            peer.admit(number, pending)
        });
        let Some(there) = there else {
            self.stats.nonsense += 1;
            return Ok(());
        };
        there.arrived += 1;
        crash_point!("target.arrived");
        self.publish()
    }

    pub(super) fn invalid(&mut self, number: u64, index: u64) -> Result<()> {
        let (Some(peer), Ring::Grains(_)) = (&mut self.peer, &self.ring) else { return Ok(()) };
        if !peer.granted.contains(&index) || number < peer.next || number - peer.next >= WINDOW {
            self.stats.nonsense += 1;
            return Ok(());
        }
        let Geometry::Grains { slices, .. } = self.geometry else { return Ok(()) };
        let none = Pending::new(index, slices.into(), 1);
        let pending = Pending { invalid: true, arrived: 1, is_judged: true, ..none };
        peer.pending.insert(number, pending);
        self.publish()
    }

    /// Publishes complete commits, in their order.
    pub(super) fn publish(&mut self) -> Result<()> {
        while let Some(peer) = &mut self.peer {
            if peer
                .pending
                .get(&peer.next)
                .is_none_or(|first| !first.is_judged || first.arrived < first.parts)
            {
                return Ok(());
            }
            let Some(Pending { index, amount, invalid, first: seen, .. }) = peer.pending.remove(&peer.next)
            else {
                return Ok(());
            };
            peer.next += 1;
            self.stats.published += 1;
            match &mut self.ring {
                Ring::Grains(writer) => {
                    let (info, _) = writer.begin(index)?;
                    let slices = (amount as u16).min(info.total_slices);
                    let is_whole = slices == info.total_slices;
                    let Geometry::Grains { payload, .. } = self.geometry else { return Ok(()) };
                    let flags = u32::from(invalid);
                    crash_point!("target.begun");
                    writer.publish(GrainInfo { flags, size: payload, valid_slices: slices, ..info })?;
                    crash_point!("target.published");
                    self.times.published(seen, &mut peer.published);
                    if is_whole {
                        peer.granted.retain(|granted| *granted != index);
                        let last = peer.granted.iter().max().copied().unwrap_or(index);
                        if let Some(next) = last.max(index).checked_add(1) {
                            grant(peer, writer, &self.link, &self.geometry, next)?;
                        }
                    }
                    self.told_grain(index, slices, info.total_slices, invalid);
                }
                Ring::Samples(writer) => {
                    if invalid {
                        silence(writer, index, amount)?;
                    }
                    writer.publish(index)?;
                    self.times.published(seen, &mut peer.published);
                    let (word, stride) = writer.strides();
                    let length = (stride / word) as u64;
                    let until = index.saturating_add(length / 2);
                    if until.saturating_sub(peer.until) >= length / 8 {
                        peer.until = until;
                        peer.outbox.push_back(Message::Room { token: peer.token, until });
                    }
                    let start = index.saturating_sub(amount);
                    if let Some(first) = self.expected.filter(|expected| *expected < start) {
                        self.lost(first, start - first);
                    }
                    self.expected = Some(index);
                    if invalid {
                        self.lost(start, amount);
                    } else {
                        self.told_samples(index, amount);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts slices of a grain that were published, and tells the program of them.
    pub(super) fn told_grain(&mut self, index: u64, slices: u16, total: u16, invalid: bool) {
        self.stats.invalid += u64::from(invalid);
        if let Some(first) = self.expected.filter(|expected| *expected < index) {
            self.lost(first, index - first);
        }
        let after = index.saturating_add(u64::from(slices == total));
        self.expected = Some(self.expected.map_or(after, |expected| expected.max(after)));
        if slices == total && lateness::is_late(&self.geometry, index) {
            self.stats.late += 1;
        }
        self.tell(Received::Grain { index, slices, invalid });
    }

    /// Counts samples that were published, and tells the program of them.
    pub(super) fn told_samples(&mut self, index: u64, count: u64) {
        if lateness::is_late(&self.geometry, index) {
            self.stats.late = self.stats.late.saturating_add(count);
        }
        self.tell(Received::Samples { index, count });
    }

    pub(super) fn lost(&mut self, first: u64, count: u64) {
        self.stats.lost = self.stats.lost.saturating_add(count);
        self.tell(Received::Lost { first, count });
    }
}
