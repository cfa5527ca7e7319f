//! Recovery of the work on a mute path: a path on which no operation completes or fails while another path works.
//!
//! Accesses posted on a mute path may still be executed. A chunk may be posted on another path only when its first copy
//! can no longer touch the memory:
//!
//! - A *read* writes our memory. The rail releases the memory ([`Sink::abandon`]) and drops late answers.
//! - A *write* writes the peer's memory. Writes of sessions with several paths use keys that the peer has *leased* to
//!   this session alone. We ask the peer to close them on the peer's rail of the path ([`Body::Fence`], over another
//!   path). After its answer, late writes under these keys are refused; other sessions are not affected. Then our rail
//!   releases the memory, and the chunks are posted on other paths, under the regions' own keys or a new lease.
//!
//! A late arrival must do no other harm either. A receiver counts the writes of a notified transfer, so a write that
//! arrived before the fence may complete the count before its second copy has arrived, and the program could change the
//! memory in between. Therefore the peer holds the notification from the fence on, until we release it when all writes
//! have ended. If the notification was delivered before the fence, all writes had arrived, and none is posted again.
//!
//! Rails with one connection per peer end the connection instead (`sever.rs`).
//!
//! If the peer does not answer, for example because its version lacks these messages, or the rail does not release the
//! memory, the transfers on the path fail with `FI_ETIMEDOUT`, at the latest half of `stall_timeout` after the request.
//!
//! Invariants:
//! - A row moves only after the peer has confirmed that the key of its writes is closed. An access under a closed key
//!   is refused, and so has certainly ended: it is posted again under the region's own key.
//! - An abandoned access stays in [`Core::abandoned`] until the rail reports its end, and its path rests until then.
//! - A session has at most one unanswered request, so the peer recognises a repeated one by its number.
//!
//! Writes that a path has reported as failed are fenced likewise before they move (`lost.rs`).

use std::collections::BTreeMap;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::lost::Lost;
use super::session::{FENCED, Outgoing, Session};
use super::transfer::{Chunk, Outcome, Transfer, Unfinished, Way};
use super::{Command, Core, OpId, PathId, PostedRun, Sink, Time, Timer};
use crate::wire::RegionKey;
use crate::wire::message::{Body, FENCED_KEYS, FENCED_NOTICES, LeasedKey};

/// Refusals of a chunk under leased keys after which it uses the region's own key. The first refused key may have been
/// closed because of another path, so a new key is requested. If the peer has ended the session, it leases no more
/// keys, but the region's own key is still valid; if it is not, the transfer gets its error.
const REFUSALS: u8 = 2;

/// Interval at which a rail is asked again to abandon an access.
pub(super) const ASK_AGAIN: Time = Time::from_millis(20);

/// A region's lease, on the writing side.
#[derive(Debug)]
pub(super) enum Lease {
    /// Requested; writes wait for the keys until this time.
    Asked(Time),
    /// The keys, by rail of the peer.
    Held(Vec<RegionKey>),
}

/// The keys for a write.
pub(super) enum Keys<'a> {
    /// These keys; on other rails the region's own.
    Leased(&'a [RegionKey]),
    /// Requested, not received: wait for the answer, at most until this time.
    Awaited(Time),
    /// Not requested yet.
    Unasked,
}

/// An unanswered request to fence.
#[derive(Debug, Default)]
pub(super) struct Fence {
    pub(super) serial: u64,
    /// The mute path; `None` for a request for lost chunks (`lost.rs`).
    path: Option<usize>,
    rows: Vec<SlotId>,
    /// The lost chunks.
    pub(super) lost: Vec<Lost>,
    keys: Vec<LeasedKey>,
    /// Notifications that the peer must hold, and their transfers.
    pub(super) notices: BTreeMap<u64, SlotId>,
    /// The regions whose keys are closed.
    regions: Vec<u64>,
}

impl Fence {
    /// Adds the key of a write of this transfer, and the transfer's notification. Returns whether there was room.
    pub(super) fn add<G>(&mut self, key: LeasedKey, id: SlotId, transfer: &mut Transfer<G>) -> bool {
        let is_known = self.keys.contains(&key);
        if !is_known && self.keys.len() == FENCED_KEYS {
            return false;
        }
        match transfer.notice {
            Unfinished::Sent(notice) => {
                if self.notices.len() == FENCED_NOTICES && !self.notices.contains_key(&notice) {
                    return false;
                }
                self.notices.insert(notice, id);
            }
            Unfinished::Unsent(_) | Unfinished::Nothing => transfer.follows = true, // after all writes have ended
        }
        if !is_known {
            self.keys.push(key);
        }
        true
    }
}

/// Accesses of a row that were abandoned and have not ended.
#[derive(Clone, Copy)]
pub(super) struct Abandoned {
    pub(super) session: SlotId,
    pub(super) path: usize,
    transfer: SlotId,
    /// A bit for each access.
    accesses: u64,
    /// The accesses whose local memory the rail still reads.
    lent: u64,
    /// The accesses that were given up because their transfer has ended (`giving_up.rs`).
    given_up: u64,
}

impl Abandoned {
    pub(super) fn new(session: SlotId, path: usize, transfer: SlotId) -> Self {
        Self { session, path, transfer, accesses: 0, lent: 0, given_up: 0 }
    }

    pub(super) fn count(self) -> usize {
        (self.accesses | self.given_up).count_ones() as usize
    }

    pub(super) fn give_up(&mut self, nth: u32) {
        self.given_up |= 1 << nth;
    }

    /// Ends a given up access. Returns whether it was one.
    pub(super) fn end_given_up(&mut self, nth: u32) -> bool {
        let bit = 1_u64 << nth;
        let was_given_up = self.given_up & bit != 0;
        self.given_up &= !bit;
        was_given_up
    }
}

impl Session {
    /// The keys for a write of this chunk.
    pub(super) fn keys_for<G>(&self, transfer: &Transfer<G>, chunk: &Chunk, now: Time) -> Keys<'_> {
        let is_able = self.is_able || now < self.able_until;
        let may_lease = is_able && self.paths.len() > 1 && transfer.plan.way == Way::Write;
        if !may_lease || chunk.refusals >= REFUSALS {
            return Keys::Leased(&[]);
        }
        let Some(region) = transfer.region_of(chunk) else { return Keys::Leased(&[]) };
        match self.leases.get(&region) {
            None => Keys::Unasked,
            Some(&Lease::Asked(until)) if now < until => Keys::Awaited(until),
            Some(Lease::Asked(_)) => Keys::Leased(&[]),
            Some(Lease::Held(keys)) => Keys::Leased(keys),
        }
    }

    /// Forgets a leased key that is about to be closed. Returns whether it was known.
    fn drop_key(&mut self, closed: &LeasedKey) -> bool {
        let Some(Lease::Held(keys)) = self.leases.get_mut(&closed.region) else { return false };
        let before = keys.len();
        keys.retain(|key| (key.rail, key.key) != (closed.rail, closed.key));
        keys.len() < before
    }
}

impl<G> Transfer<G> {
    /// The remote region of a chunk.
    pub(super) fn region_of(&self, chunk: &Chunk) -> Option<u64> {
        let piece = self.plan.pieces.get(chunk.piece as usize)?;
        self.plan.regions.get(piece.remote_region as usize).map(|region| region.id)
    }
}

impl<G> Core<G> {
    /// Time that work waits for an answer of the peer. It suffices for the request or its answer to be repeated on
    /// another path.
    pub(super) fn patience(&self) -> Time {
        2 * self.config.repeat_after
    }

    /// Requests keys of the region that this chunk writes. Returns the time until which writes wait for them.
    pub(super) fn ask_for_keys(
        &mut self,
        id: SlotId,
        transfer: SlotId,
        chunk: &Chunk,
        now: Time,
    ) -> Option<Time> {
        let region = self.transfers.get(transfer)?.region_of(chunk)?;
        let until = now + self.patience();
        let session = self.sessions.get_mut(id)?;
        // An older peer drops the request, and never sends `Able`.
        let until = if session.is_able { until } else { until.min(session.able_until) };
        session.leases.insert(region, Lease::Asked(until));
        session.outbox.push_back(Outgoing::new(Body::Lease(region), None));
        self.wake(id);
        Some(until)
    }

    /// Handles the peer's lease of keys of a region.
    pub(super) fn leased(&mut self, id: SlotId, region: u64, keys: Vec<RegionKey>) {
        // Only requested leases are kept, so the table is no larger than the peer's metadata.
        if let Some(lease) = self.sessions.get_mut(id).and_then(|session| session.leases.get_mut(&region)) {
            *lease = Lease::Held(keys);
        }
    }

    /// Handles the refusal of a chunk under a leased key: the next write requests new keys, unless that has been done.
    pub(super) fn lease_refused(
        &mut self,
        id: SlotId,
        transfer: SlotId,
        chunk: &Chunk,
        path: usize,
        key: u64,
    ) {
        let region = self.transfers.get(transfer).and_then(|transfer| transfer.region_of(chunk));
        if let (Some(region), Some(session)) = (region, self.sessions.get_mut(id)) {
            let rail = session.paths[path].remote as u8;
            if session.drop_key(&LeasedKey { region, rail, key }) {
                session.leases.remove(&region);
            }
        }
    }

    /// Abandons a path on which no operation ends.
    pub(super) fn fence(&mut self, id: SlotId, index: usize, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.paths[index].fence(now);
        self.counts.fenced += 1;
        tracing::warn!(target: "multirail", rail = session.paths[index].rail, "no operation completes on a rail: its path to a peer is fenced");
        if self.rails.get(session.paths[index].rail).is_some_and(|rail| rail.severs) {
            self.commands.push_back(Command::Sever { session: id, path: index });
            return self.check_paths(id, Errno::ETIMEDOUT, now);
        }
        let remote = session.paths[index].remote as u8;
        let (mut lost, mut freed) = (Vec::new(), Vec::new());
        let mut fence = Fence { path: Some(index), ..Fence::default() };
        for row_id in self.rows_on(id, index) {
            let Some(row) = self.rows.get(row_id) else { continue };
            let Some(transfer) = self.transfers.get_mut(row.transfer) else { continue };
            if transfer.outcome.is_some() || transfer.plan.way == Way::Read || transfer.is_in_place {
                freed.push(row_id);
                continue;
            }
            let key = row.lease.zip(transfer.region_of(row.first()));
            let key = key.map(|(key, region)| LeasedKey { region, rail: remote, key });
            if key.is_some_and(|key| fence.add(key, row.transfer, transfer)) {
                fence.rows.push(row_id);
            } else {
                lost.push(row.transfer);
                freed.push(row_id);
            }
        }
        for transfer in lost {
            self.finish(transfer, Outcome::Failed(Errno::ETIMEDOUT));
        }
        let until = now + self.config.stall_timeout / 2;
        self.commands.extend(freed.into_iter().map(|row| Command::Abandon { row, until }));
        if !fence.rows.is_empty() {
            self.ask_to_fence(id, fence, now + self.config.stall_timeout / 2);
        }
        self.check_paths(id, Errno::ETIMEDOUT, now);
    }

    /// The rows of a session that are in flight on a path.
    pub(super) fn rows_on(&self, id: SlotId, index: usize) -> Vec<SlotId> {
        let is_its = |transfer| self.transfers.get(transfer).is_some_and(|found| found.session == id);
        self.rows.ids(|row| row.path as usize == index && is_its(row.transfer))
    }

    /// Sends a request to fence, and sets its deadline.
    pub(super) fn ask_to_fence(&mut self, id: SlotId, mut fence: Fence, until: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.fences += 1;
        fence.serial = session.fences;
        let keys = std::mem::take(&mut fence.keys);
        for key in &keys {
            session.drop_key(key);
            if !fence.regions.contains(&key.region) {
                fence.regions.push(key.region);
            }
        }
        if let Some(path) = fence.path {
            session.paths[path].is_fencing = true;
        }
        let (serial, notices) = (fence.serial, fence.notices.keys().copied().collect());
        let body = Body::Fence { serial, keys, notices };
        session.outbox.push_back(Outgoing { last: fence.path, ..Outgoing::new(body, None) });
        session.fence = Some(Box::new(fence));
        self.remind(until, Timer::Fence(id, serial));
        self.wake(id);
    }

    /// Takes the request with this number, if it is the unanswered one, and requests new keys.
    fn take_fence(&mut self, id: SlotId, serial: u64) -> Option<Box<Fence>> {
        let session = self.sessions.get_mut(id)?;
        let fence = session.fence.take_if(|fence| fence.serial == serial)?;
        if let Some(path) = fence.path {
            session.paths[path].is_fencing = false;
        }
        for &region in &fence.regions {
            session.outbox.push_back(Outgoing::new(Body::Lease(region), None));
        }
        if !session.lost.is_empty() {
            self.commands.push_back(Command::Fence { session: id });
        }
        self.wake(id);
        Some(fence)
    }

    /// Handles the peer's answer that the keys of a request are closed: the work moves.
    pub(super) fn fenced(&mut self, id: SlotId, serial: u64, out: &[u64], now: Time) {
        let Some(fence) = self.take_fence(id, serial) else { return self.fenced_late(id, serial, out) };
        let until = now + self.patience();
        if let Some(session) = self.sessions.get_mut(id) {
            // Moved writes must not use the region's own key, which cannot be closed.
            let lease = |&region: &u64| (region, Lease::Asked(until));
            session.leases.extend(fence.regions.iter().map(lease));
        }
        for (&notice, &transfer_id) in &fence.notices {
            let Some(transfer) = self.transfers.get_mut(transfer_id) else { continue };
            match out.contains(&notice) {
                true => transfer.arrived(),
                false => transfer.is_held = true,
            }
            self.after_progress(transfer_id);
        }
        let until = now + self.config.stall_timeout / 2;
        self.commands.extend(fence.rows.iter().map(|&row| Command::Abandon { row, until }));
        self.move_lost(fence.lost);
    }

    /// Handles a request that the peer has not answered in time.
    pub(super) fn fence_timer(&mut self, id: SlotId, serial: u64, now: Time) {
        let Some(fence) = self.take_fence(id, serial) else { return };
        if fence.path.is_none() {
            return self.lost_fence_expired(id, *fence, now);
        }
        for row in fence.rows {
            if let Some(transfer) = self.rows.get(row).map(|row| row.transfer) {
                self.finish(transfer, Outcome::Failed(Errno::ETIMEDOUT));
                self.commands.push_back(Command::Abandon { row, until: now });
            }
        }
        self.check_paths(id, Errno::ETIMEDOUT, now);
    }

    /// Handles the peer's request to close keys that were leased to it.
    pub(super) fn asked_to_fence(&mut self, id: SlotId, serial: u64, keys: Vec<LeasedKey>, notices: &[u64]) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let waiting = session.outbox.iter().filter(|it| matches!(it.body, Body::Fenced { .. })).count();
        if serial <= session.their_fence || waiting >= FENCED {
            return; // repeated, or the peer does not read the answers
        }
        session.their_fence = serial;
        // Before the keys are closed, so that no write arriving in between completes a notification.
        let out = notices.iter().copied().filter(|&notice| session.inbox.hold(notice)).collect();
        self.commands.push_back(Command::Close { session: id, serial, keys, out });
    }

    /// Carries out [`Command::Close`]. Without an answer the peer's request expires.
    pub(super) fn close_keys(
        &mut self,
        id: SlotId,
        serial: u64,
        keys: &[LeasedKey],
        out: Vec<u64>,
        sink: &mut impl Sink<G>,
    ) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        let peer: Vec<_> = session.paths.iter().filter_map(|path| Some((path.rail, path.addr?))).collect();
        if !sink.close_leased(session.tag, keys, &peer) {
            // Closing waits for running accesses. A peer does not make this agent wait again.
            session.their_fence = u64::MAX;
            return;
        }
        session.outbox.push_back(Outgoing::new(Body::Fenced { serial, out }, None));
        self.wake(id);
    }

    /// Carries out [`Command::Lease`].
    pub(super) fn lease(&mut self, id: SlotId, region: u64, sink: &mut impl Sink<G>) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        session.has_leased = true;
        let keys = sink.lease(session.tag, region);
        session.outbox.push_back(Outgoing::new(Body::Leased { region, keys }, None));
        self.wake(id);
    }

    /// Carries out [`Command::Abandon`]: abandons a row's accesses on a mute path, and posts them on other paths.
    ///
    /// A rail whose device still reads the local memory of a write keeps that memory: the peer refuses the write by
    /// now, and the transfer is not quiet. A device that still writes the memory of a read is asked again until
    /// `until`.
    pub(super) fn abandon(&mut self, row_id: SlotId, until: Time, now: Time, sink: &mut impl Sink<G>) {
        self.account();
        let Some(row) = self.rows.get(row_id).copied() else { return };
        let Some(session_id) = self.transfers.get(row.transfer).map(|transfer| transfer.session) else {
            return;
        };
        let index = row.path as usize;
        let Some(rail) = self.sessions.get(session_id).map(|session| session.paths[index].rail) else {
            return;
        };
        let Some(way) = self.transfers.get(row.transfer).map(|transfer| transfer.plan.way) else { return };
        let (mut refused, mut waits) = (None, false);
        for nth in row.in_flight() {
            let op = OpId::access(row_id).nth(nth);
            if self.take_stalled(PathId { session: session_id, path: index }, op) {
                self.ended(op, Err(Errno::ETIMEDOUT), now);
                continue;
            }
            match sink.abandon(rail, op) {
                Ok(()) => self.abandoned_access(row_id, nth, &row, session_id, false),
                Err(Errno::ENOENT) => {} // it has ended, and the end is about to be read
                Err(Errno::EAGAIN) if way == Way::Write => {
                    self.abandoned_access(row_id, nth, &row, session_id, true);
                }
                Err(Errno::EAGAIN) if now < until => waits = true,
                Err(errno) => refused = Some(errno),
            }
        }
        if let Some(errno) = refused {
            tracing::debug!(target: "multirail", %errno, rail, "a rail does not give up accesses");
            self.finish(row.transfer, Outcome::Failed(Errno::ETIMEDOUT));
        } else if waits {
            self.remind(now + ASK_AGAIN.min(self.config.stall_timeout / 8), Timer::Abandon(row_id, until));
        }
        self.after_progress(row.transfer);
        self.wake(session_id);
    }

    /// Handles an abandoned access, whose memory is no longer in use.
    fn abandoned_access(
        &mut self,
        row_id: SlotId,
        nth: u32,
        row: &PostedRun,
        session_id: SlotId,
        is_lent: bool,
    ) {
        let index = row.path as usize;
        // The row keeps its number until the access has ended.
        if let Some(row) = self.rows.get_mut(row_id) {
            row.end(nth);
        }
        let fresh = Abandoned::new(session_id, index, row.transfer);
        let abandoned = self.abandoned.entry(row_id).or_insert(fresh);
        abandoned.accesses |= 1 << nth;
        abandoned.lent |= u64::from(is_lent) << nth;
        let Some(transfer) = self.transfers.get_mut(row.transfer) else { return };
        transfer.lent += u32::from(is_lent);
        let chunk = row.chunk(nth, &transfer.plan.pieces);
        if let Some(session) = self.sessions.get_mut(session_id) {
            session.paths[index].abandoned(chunk.len);
        }
        transfer.error = Errno::ETIMEDOUT;
        if self.move_chunk(row.transfer, chunk, index) {
            self.counts.moved += 1;
        }
    }

    /// All abandoned accesses of a row have ended: its number may be used again if no other one is in flight. Until
    /// then it is not, however often the others are: numbers come back after two billion rows.
    pub(super) fn forget_row(&mut self, id: SlotId) {
        self.abandoned.remove(&id);
        if self.rows.get(id).is_some_and(|row| row.under_way() == 0) {
            self.rows.remove(id);
        }
    }

    /// Handles the completion of an abandoned access, or of an unknown one.
    #[cold]
    pub(super) fn ended_late(&mut self, row: SlotId, nth: u32, result: Result<(), Errno>, now: Time) {
        if self.given_up_ended(row, nth, result, now) {
            return;
        }
        let bit = 1_u64 << nth;
        let Some(abandoned) = self.abandoned.get_mut(&row).filter(|it| it.accesses & bit != 0) else {
            self.counts.stale += 1;
            return;
        };
        let was_lent = abandoned.lent & bit != 0;
        abandoned.accesses &= !bit;
        abandoned.lent &= !bit;
        let Abandoned { session: id, path, transfer, .. } = *abandoned;
        if abandoned.count() == 0 {
            self.forget_row(row);
        }
        if was_lent && let Some(found) = self.transfers.get_mut(transfer) {
            found.lent -= 1;
            self.forget_if_quiet(transfer);
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.operations -= 1;
        session.paths[path].abandoned_ended(result.err(), now);
        self.operations_left(id, path, Kind::Access, 1);
        self.wake(id);
        self.settle(id);
    }
}
