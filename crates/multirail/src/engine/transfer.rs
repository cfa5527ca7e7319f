//! Transfers: from posting a plan until the transfer has ended and none of its operations is in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::held::Turn;
use super::operations::nanos;
use super::receipts::is_order;
use super::session::Outgoing;
use super::uses::PlanUses;
use super::{Core, Time};
use crate::wire::RegionInfo;
use crate::wire::message::{Body, FRAGMENT, Fragment};

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the peer's memory to ours.
    Read,
    /// From our memory to the peer's.
    Write,
}

/// One descriptor of a plan: equally long ranges of a local and a remote region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The local region, for the driver.
    pub region: u32,
    /// First local byte, for the driver.
    pub local: u64,
    /// Index in [`Plan::regions`].
    pub remote_region: u32,
    /// First byte in the remote region.
    pub remote: u64,
    /// Length in bytes; not zero.
    pub len: u64,
}

/// The work of a transfer: prepared once, posted any number of times.
#[derive(Debug)]
pub struct Plan<G> {
    /// The direction.
    pub way: Way,
    /// The descriptors.
    pub pieces: Vec<Piece>,
    /// The remote regions of the descriptors. The driver has checked that the descriptors lie in them.
    pub regions: Vec<Arc<RegionInfo>>,
    /// The rails near the memory of each local region, a bit each. Empty, or too short: all rails are.
    pub near: Vec<u64>,
    /// Incarnation of the peer that owns the regions.
    pub incarnation: u64,
    /// Sum of the lengths.
    pub total: u64,
    /// Keeps the local memory.
    pub guard: G,
    /// Counts the transfers that are not quiet.
    pub uses: PlanUses,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes have arrived, and so has the notification if there is one: the peer's program has taken it, or its
    /// agent keeps it for the program.
    Done,
    /// It failed with this error. Some bytes may have arrived.
    Failed(Errno),
    /// The program cancelled it. Some bytes may have arrived.
    Cancelled,
}

/// What a transfer that has not ended waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// A session with the peer, or the ends of its accesses.
    Data,
    /// Room for its notification: the peer's program has not taken earlier ones.
    Room,
    /// All data is in place: the answer to its notification.
    Answer,
}

impl std::fmt::Display for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data => "there was no session with the peer, or not all of its data was moved",
            Self::Room => {
                "all data is in place, but its notification was not sent: the peer's program has not taken earlier \
                 ones of this agent, which are as many as may wait there (512, or 8 MiB)"
            }
            Self::Answer => {
                "all data is in place, but its notification was not answered: the peer's program does not poll, or \
                 does not take it"
            }
        })
    }
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How it ended; `None` while it is in flight.
    pub outcome: Option<Outcome>,
    /// Bytes that are in place.
    pub moved: u64,
    /// Total bytes.
    pub total: u64,
    /// No operation of it is in flight: the program may use its local memory again.
    pub is_quiet: bool,
}

/// A part of a piece that one access moves. It is never cut again, so its number means the same bytes on every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The index of the piece.
    pub piece: u32,
    /// The offset in the piece.
    pub offset: u64,
    /// Length.
    pub len: u64,
    /// The number of the chunk in the transfer.
    pub number: u32,
    /// Paths that have failed with it, a bit for each.
    pub tried: u64,
    /// Times that the peer has refused it under a leased key.
    pub refusals: u8,
}

/// The cause of a failed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The path: another path may carry the chunk.
    Path,
    /// The path; the chunk moves when the peer has fenced its first copy.
    Shut,
    /// The leased key.
    Lease,
    /// The access itself.
    Access,
}

/// The state of a transfer's notification.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// There is no notification, or the peer has it.
    Nothing,
    /// The notification is sent when the data permits.
    Unsent(Vec<u8>),
    /// The notification was sent, or is in the outbox, under this id; the peer has not answered.
    Sent(u64),
}

pub(super) struct Transfer<G> {
    pub(super) plan: Arc<Plan<G>>,
    pub(super) session: SlotId,
    /// The transfers of the session before and after this one that have not ended either.
    next_to: [Option<SlotId>; 2],
    pub(super) outcome: Option<Outcome>,
    pub(super) released: bool,
    /// Its plan counts it: it is not quiet.
    is_counted: bool,
    /// The transfer is in its session's list.
    pub(super) queued: bool,
    /// The first piece that is not wholly cut into chunks, and the number of its bytes that are.
    pub(super) cursor: (u32, u64),
    /// Chunks that a path gave back.
    pub(super) retry: VecDeque<Chunk>,
    /// Chunks that were cut.
    pub(super) chunks: u32,
    pub(super) in_flight: u32,
    /// Lost chunks, which move when the peer has fenced their first copies.
    pub(super) lost: u32,
    /// Abandoned accesses whose local memory a rail still reads.
    pub(super) lent: u32,
    moved: u64,
    pub(super) notice: Unfinished,
    /// The number under which its notification waits for room. 0: it does not.
    held: Turn,
    /// The number under which the peer counts the writes.
    pub(super) number: Option<u64>,
    /// The path of the last chunk, and how many further short ones may follow it there.
    pub(super) last: (usize, u32),
    /// The notification is sent when all writes have ended: a copy of a write may have been counted already.
    pub(super) follows: bool,
    /// The peer holds the notification until we release it.
    pub(super) is_held: bool,
    /// The peer has counted all writes. They are not posted again, because its program may change the memory.
    pub(super) is_in_place: bool,
    /// What it waited for when its time was over, if that has ended it.
    late: Option<Awaited>,
    /// The last error of a path.
    pub(super) error: Errno,
    /// The timer of its deadline.
    pub(super) timer: Option<(Time, u64)>,
    posted: Time,
    /// When it ended.
    pub(super) ended: Time,
}

impl<G> Transfer<G> {
    pub(super) fn new(plan: Arc<Plan<G>>, session: SlotId, notice: Option<Vec<u8>>, now: Time) -> Self {
        plan.uses.begin();
        Self {
            plan,
            session,
            next_to: [None; 2],
            outcome: None,
            released: false,
            is_counted: true,
            queued: true,
            cursor: (0, 0),
            retry: VecDeque::new(),
            chunks: 0,
            in_flight: 0,
            lost: 0,
            lent: 0,
            moved: 0,
            notice: notice.map_or(Unfinished::Nothing, Unfinished::Unsent),
            held: 0,
            number: None,
            last: (0, 0),
            follows: false,
            is_held: false,
            is_in_place: false,
            late: None,
            error: Errno::EIO,
            timer: None,
            posted: now,
            ended: Time::ZERO,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let is_quiet = self.outcome.is_some() && self.in_flight == 0 && self.lent == 0;
        Progress { outcome: self.outcome, moved: self.moved, total: self.plan.total, is_quiet }
    }

    /// Takes a transfer that is quiet out of its plan's count. Returns whether it is quiet.
    fn is_quiet_now(&mut self) -> bool {
        let is_quiet = self.progress().is_quiet;
        if is_quiet && std::mem::take(&mut self.is_counted) {
            self.plan.uses.end();
        }
        is_quiet
    }

    /// What it waits for, or waited for when its time was over.
    pub(super) fn awaited(&self) -> Option<Awaited> {
        let is_moved = self.is_posted() && self.in_flight == 0;
        match self.notice {
            _ if self.outcome.is_some() => self.late,
            Unfinished::Sent(_) if is_moved => Some(Awaited::Answer),
            Unfinished::Unsent(_) if is_moved && !self.queued => Some(Awaited::Room),
            _ => Some(Awaited::Data),
        }
    }

    /// The piece that the next chunk is cut from.
    pub(super) fn next_piece(&self) -> Option<&Piece> {
        self.plan.pieces.get(self.cursor.0 as usize)
    }

    /// The next chunk: one that was given back, or one of at most `longest` bytes. [`Transfer::took`] records that it
    /// was posted.
    pub(super) fn next_chunk(&self, longest: u64) -> Option<Chunk> {
        if let Some(&chunk) = self.retry.front() {
            return Some(chunk);
        }
        let (piece, offset) = self.cursor;
        let left = self.next_piece()?.len - offset;
        Some(Chunk { piece, offset, len: left.min(longest), number: self.chunks, tried: 0, refusals: 0 })
    }

    pub(super) fn took(&mut self, chunk: &Chunk) {
        self.in_flight += 1;
        if self.retry.front().is_some_and(|front| front.number == chunk.number) {
            self.retry.pop_front();
            return;
        }
        self.chunks += 1;
        self.cursor.1 += chunk.len;
        if self.next_piece().is_some_and(|piece| piece.len == self.cursor.1) {
            self.cursor = (self.cursor.0 + 1, 0);
        }
    }

    /// Records that `count` accesses of `bytes` together have ended successfully.
    pub(super) fn landed(&mut self, bytes: u64, count: u32) {
        self.in_flight -= count;
        self.moved += bytes;
    }

    /// Records that the peer has counted all writes, so chunks that were to be posted again are in place too.
    pub(super) fn arrived(&mut self) {
        self.is_in_place = true;
        self.moved += self.retry.drain(..).map(|chunk| chunk.len).sum::<u64>();
    }

    /// Whether every chunk is in flight or has ended.
    pub(super) fn is_posted(&self) -> bool {
        self.retry.is_empty() && self.lost == 0 && self.next_piece().is_none()
    }
}

impl<G> Core<G> {
    /// Adds a transfer to those of its session that have not ended. They are linked, so that the end of a session looks
    /// at no transfer of another.
    pub(super) fn link(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get(id) else { return };
        let Some(session) = self.sessions.get_mut(transfer.session) else { return };
        let last = session.ends.map(|(_, last)| last);
        session.ends = Some((session.ends.map_or(id, |(first, _)| first), id));
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.next_to = [last, None];
        }
        if let Some(last) = last.and_then(|last| self.transfers.get_mut(last)) {
            last.next_to[1] = Some(id);
        }
    }

    /// Takes an ended transfer out of those of its session.
    pub(super) fn unlink(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let ([before, after], session) = (std::mem::take(&mut transfer.next_to), transfer.session);
        if let Some(before) = before.and_then(|before| self.transfers.get_mut(before)) {
            before.next_to[1] = after;
        }
        if let Some(after) = after.and_then(|after| self.transfers.get_mut(after)) {
            after.next_to[0] = before;
        }
        let Some(session) = self.sessions.get_mut(session) else { return };
        let Some((first, last)) = session.ends else { return };
        let first = if first == id { after } else { Some(first) };
        let last = if last == id { before } else { Some(last) };
        session.ends = first.zip(last);
    }

    /// The transfers of a session that have not ended, in the order of their posts.
    pub(super) fn transfers_of(&self, session: SlotId) -> Vec<SlotId> {
        let first = self.sessions.get(session).and_then(|session| session.ends).map(|(first, _)| first);
        std::iter::successors(first, |&id| self.transfers.get(id)?.next_to[1]).collect()
    }

    /// Puts a transfer into its session's list, unless it is there.
    pub(super) fn queue(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if transfer.queued || transfer.outcome.is_some() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(transfer.session) {
            transfer.queued = true;
            session.transfers.push_back(id);
        }
        let session = transfer.session;
        self.wake(session);
    }

    /// Handles a failed access.
    pub(super) fn chunk_failed(&mut self, id: SlotId, chunk: Chunk, path: usize, errno: Errno, fate: Fate) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        match fate {
            Fate::Path => {
                transfer.error = errno;
                if self.move_chunk(id, chunk, path) {
                    self.counts.moved += 1;
                }
            }
            Fate::Shut => {}
            Fate::Lease => {
                transfer.in_flight -= 1;
                if transfer.is_in_place {
                    transfer.landed(chunk.len, 0);
                } else if transfer.outcome.is_none() {
                    transfer.retry.push_back(Chunk { refusals: chunk.refusals.saturating_add(1), ..chunk });
                    self.queue(id);
                }
            }
            Fate::Access => {
                transfer.in_flight -= 1;
                self.finish(id, Outcome::Failed(errno));
            }
        }
        self.after_progress(id);
    }

    /// Posts a chunk that is no longer in flight on its path on other paths, if it is still needed. Returns whether it
    /// is.
    pub(super) fn move_chunk(&mut self, id: SlotId, chunk: Chunk, path: usize) -> bool {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.in_flight -= 1;
        }
        self.repost(id, chunk, path)
    }

    /// Posts a chunk on other paths than this one, if it is still needed. Returns whether it is.
    pub(super) fn repost(&mut self, id: SlotId, chunk: Chunk, path: usize) -> bool {
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        if transfer.is_in_place {
            transfer.landed(chunk.len, 0);
            return false;
        }
        let moves = transfer.outcome.is_none();
        if moves {
            let tried = chunk.tried | 1_u64.checked_shl(path as u32).unwrap_or(0);
            transfer.retry.push_back(Chunk { tried, ..chunk });
            self.queue(id);
        }
        moves
    }

    /// The peer has a transfer's notification.
    pub(super) fn told(&mut self, id: SlotId) {
        if let Some(transfer) = self.transfers.get_mut(id)
            && matches!(transfer.notice, Unfinished::Sent(_))
        {
            transfer.notice = Unfinished::Nothing;
            transfer.arrived();
            self.after_progress(id);
        }
    }

    pub(super) fn after_progress(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if transfer.is_held
            && transfer.in_flight == 0
            && transfer.is_posted()
            && let Unfinished::Sent(notification) = transfer.notice
            && let Some(session) = self.sessions.get_mut(transfer.session)
        {
            transfer.is_held = false;
            session.outbox.push_back(Outgoing::new(Body::Release(notification), Some(id)));
        }
        // Only its notification may be left.
        if matches!(transfer.notice, Unfinished::Unsent(_)) && transfer.in_flight == 0 && transfer.is_posted()
        {
            self.queue(id);
        }
        self.finish_if_done(id);
        self.forget_if_quiet(id);
    }

    pub(super) fn finish_if_done(&mut self, id: SlotId) {
        let is_done = self.transfers.get(id).is_some_and(|transfer| {
            transfer.is_posted() && transfer.in_flight == 0 && matches!(transfer.notice, Unfinished::Nothing)
        });
        if is_done {
            self.finish(id, Outcome::Done);
        }
    }

    /// Ends a transfer whose deadline has passed.
    pub(super) fn overdue(&mut self, id: SlotId) {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.late = transfer.awaited();
        }
        self.finish(id, Outcome::Failed(Errno::ETIMEDOUT));
        self.forget_if_quiet(id);
    }

    /// Ends a transfer, if it has not ended.
    pub(super) fn finish(&mut self, id: SlotId, outcome: Outcome) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if transfer.outcome.is_some() {
            return;
        }
        transfer.outcome = Some(outcome);
        transfer.ended = self.now;
        transfer.retry.clear();
        transfer.is_quiet_now();
        let is_in_use = outcome != Outcome::Done && transfer.in_flight > 0;
        if outcome == Outcome::Done {
            let took = self.now.saturating_sub(transfer.posted);
            self.transfer_latencies.add(transfer.plan.total, 1, nanos(took));
        }
        if let Some(timer) = transfer.timer.take() {
            self.timers.remove(&timer);
        }
        let notice = std::mem::replace(&mut transfer.notice, Unfinished::Nothing);
        let (session, number) = (transfer.session, transfer.number);
        let held = std::mem::take(&mut transfer.held);
        let is_alone = transfer.next_to == [None; 2];
        if !is_alone {
            self.unlink(id);
        }
        if is_in_use {
            self.plan_to_give_up(id);
        }
        let Some(found) = self.sessions.get_mut(session) else { return };
        if is_alone {
            found.ends = None;
        }
        match (outcome, notice) {
            (Outcome::Done, _) => {}
            // The peer must not wait for the remaining writes.
            (_, Unfinished::Sent(notification)) => {
                found.outbox.retain(|outgoing| outgoing.transfer != Some(id));
                found.outbox.push_back(Outgoing::new(Body::Void(notification), None));
            }
            (_, Unfinished::Unsent(_)) => {
                if let Some(number) = number {
                    found.numbers.remove(&number);
                }
            }
            (_, Unfinished::Nothing) => {}
        }
        if held != 0 {
            found.unhold(held);
            self.send_held(session); // those behind it may have room
        }
        self.wake(session);
    }

    pub(super) fn forget_if_quiet(&mut self, id: SlotId) {
        let is_over =
            self.transfers.get_mut(id).is_some_and(|transfer| transfer.is_quiet_now() && transfer.released);
        if is_over {
            self.transfers.remove(id);
        }
    }

    /// Puts a transfer's notification into its session's outbox, if it is due and the peer has room for it. Returns
    /// true if it had waited for room and is no longer due: those behind it may have room.
    pub(super) fn send_notice(&mut self, id: SlotId) -> bool {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        let is_counted = transfer.number.is_some() && !transfer.follows;
        let is_time = transfer.is_posted() && (is_counted || transfer.in_flight == 0);
        let Unfinished::Unsent(bytes) = &mut transfer.notice else { return false };
        let Some(session) = self.sessions.get_mut(transfer.session) else { return false };
        let is_order = is_order(bytes);
        if !is_time {
            // It was, until a path gave back a part of its data.
            let held = std::mem::take(&mut transfer.held);
            session.unhold(held);
            return held != 0;
        }
        let has_turn = session.first_held(is_order).is_none_or(|first| first == id);
        let taken = if has_turn { session.take_notification(bytes, transfer.number, id) } else { None };
        let Some(notification) = taken else {
            if transfer.held == 0 {
                transfer.held = session.hold(id, is_order);
            }
            return false;
        };
        session.unhold(std::mem::take(&mut transfer.held));
        let bytes = std::mem::take(bytes);
        let expected = if is_counted { transfer.chunks } else { 0 };
        let count = bytes.len().div_ceil(FRAGMENT).max(1);
        for nth in 0..count {
            let range = nth * FRAGMENT..bytes.len().min((nth + 1) * FRAGMENT);
            let fragment = Fragment {
                id: notification,
                expected,
                transfer: transfer.number.unwrap_or(0) as u16,
                total: bytes.len() as u32,
                offset: range.start as u32,
                bytes: bytes[range].to_vec(),
            };
            session.outbox.push_back(Outgoing::new(Body::Notify(fragment), Some(id)));
        }
        transfer.notice = Unfinished::Sent(notification);
        false
    }
}
