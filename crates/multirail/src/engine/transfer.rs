//! Transfers: a plan that was posted, until it has ended and nothing of it is under way.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::operations::nanos;
use super::session::Outgoing;
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
    /// Which local region, for the driver.
    pub region: u32,
    /// First local byte, for the driver.
    pub local: u64,
    /// Which of [`Plan::regions`].
    pub remote_region: u32,
    /// First byte in the remote region.
    pub remote: u64,
    /// Length in bytes; not zero.
    pub len: u64,
}

/// What to move: made once, posted as often as one likes.
#[derive(Debug)]
pub struct Plan<G> {
    /// Which way.
    pub way: Way,
    /// The descriptors.
    pub pieces: Vec<Piece>,
    /// Remote regions that they lie in. The driver has checked that they do.
    pub regions: Vec<Arc<RegionInfo>>,
    /// Incarnation of the peer that the regions are of.
    pub incarnation: u64,
    /// Sum of the lengths.
    pub total: u64,
    /// Keeps the local memory.
    pub guard: G,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes have arrived, and the peer has acknowledged the notification if there is one.
    Done,
    /// It failed with this error. Some bytes may have arrived.
    Failed(Errno),
    /// The program cancelled it. Some bytes may have arrived.
    Cancelled,
}

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How it ended; `None` while it is in flight.
    pub outcome: Option<Outcome>,
    /// Bytes that are at their place.
    pub moved: u64,
    /// Bytes of the whole.
    pub total: u64,
    /// No operation of it is in flight: the program may use its local memory again.
    pub is_quiet: bool,
}

/// A part of a piece that is moved by one access. It is never cut again, so that its number means the same bytes on
/// every path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Which piece.
    pub piece: u32,
    /// Where in it.
    pub offset: u64,
    /// Length.
    pub len: u64,
    /// Which chunk of the transfer.
    pub number: u32,
    /// Paths that have failed with it, a bit for each.
    pub tried: u64,
}

/// How far the notification of a transfer is.
#[derive(Debug)]
pub(super) enum Unfinished {
    /// Nothing is to be told, or everything has been.
    Nothing,
    /// It is to be sent when its time has come.
    Unsent(Vec<u8>),
    /// It was sent, or is in the outbox, under this id; the peer has not acknowledged it.
    Sent(u64),
}

pub(super) struct Transfer<G> {
    pub(super) plan: Arc<Plan<G>>,
    pub(super) session: SlotId,
    pub(super) outcome: Option<Outcome>,
    pub(super) released: bool,
    /// It is in its session's list.
    pub(super) queued: bool,
    /// The first piece that is not wholly cut, and how much of it is.
    pub(super) cursor: (u32, u64),
    /// Chunks that a path gave back.
    pub(super) retry: VecDeque<Chunk>,
    /// Chunks that were cut.
    pub(super) chunks: u32,
    pub(super) in_flight: u32,
    moved: u64,
    pub(super) notice: Unfinished,
    /// The peer counts the writes under this number.
    pub(super) number: Option<u64>,
    /// The path of the last chunk, and how many short ones it may still get.
    pub(super) last: (usize, u32),
    /// The last error of a path.
    pub(super) error: Errno,
    /// Its deadline, among the engine's timers.
    pub(super) timer: Option<(Time, u64)>,
    posted: Time,
}

impl<G> Transfer<G> {
    pub(super) fn new(plan: Arc<Plan<G>>, session: SlotId, notice: Option<Vec<u8>>, now: Time) -> Self {
        Self {
            plan,
            session,
            outcome: None,
            released: false,
            queued: true,
            cursor: (0, 0),
            retry: VecDeque::new(),
            chunks: 0,
            in_flight: 0,
            moved: 0,
            notice: notice.map_or(Unfinished::Nothing, Unfinished::Unsent),
            number: None,
            last: (0, 0),
            error: Errno::EIO,
            timer: None,
            posted: now,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        let is_quiet = self.outcome.is_some() && self.in_flight == 0;
        Progress { outcome: self.outcome, moved: self.moved, total: self.plan.total, is_quiet }
    }

    /// The piece that the next chunk is cut from.
    pub(super) fn next_piece(&self) -> Option<&Piece> {
        self.plan.pieces.get(self.cursor.0 as usize)
    }

    /// The next chunk: one that was given back, or one of at most `longest` bytes. [`Transfer::took`] says that it was
    /// posted.
    pub(super) fn next_chunk(&self, longest: u64) -> Option<Chunk> {
        if let Some(&chunk) = self.retry.front() {
            return Some(chunk);
        }
        let (piece, offset) = self.cursor;
        let left = self.next_piece()?.len - offset;
        Some(Chunk { piece, offset, len: left.min(longest), number: self.chunks, tried: 0 })
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

    /// So many accesses of `bytes` together have ended well.
    pub(super) fn landed(&mut self, bytes: u64, count: u32) {
        self.in_flight -= count;
        self.moved += bytes;
    }

    /// Whether every chunk is under way or has ended.
    pub(super) fn is_posted(&self) -> bool {
        self.retry.is_empty() && self.next_piece().is_none()
    }
}

impl<G> Core<G> {
    /// Puts a transfer into its session's list, if it is not there.
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

    /// An access has failed; `is_path` says whether that was the path's fault.
    pub(super) fn chunk_failed(
        &mut self,
        id: SlotId,
        chunk: Chunk,
        path: usize,
        errno: Errno,
        is_path: bool,
    ) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.in_flight -= 1;
        if transfer.outcome.is_none() && is_path {
            transfer.error = errno;
            let tried = chunk.tried | 1_u64.checked_shl(path as u32).unwrap_or(0);
            transfer.retry.push_back(Chunk { tried, ..chunk });
            self.counts.moved += 1;
            self.queue(id);
        } else if transfer.outcome.is_none() {
            self.finish(id, Outcome::Failed(errno));
        }
        self.after_progress(id);
    }

    /// The peer has a transfer's notification.
    pub(super) fn told(&mut self, id: SlotId) {
        if let Some(transfer) = self.transfers.get_mut(id)
            && matches!(transfer.notice, Unfinished::Sent(_))
        {
            transfer.notice = Unfinished::Nothing;
            self.after_progress(id);
        }
    }

    pub(super) fn after_progress(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get(id) else { return };
        // Its notification may be what is left.
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

    /// The time of a transfer is up.
    pub(super) fn overdue(&mut self, id: SlotId) {
        self.finish(id, Outcome::Failed(Errno::ETIMEDOUT));
        self.forget_if_quiet(id);
    }

    /// Gives a transfer its end, if it has none.
    pub(super) fn finish(&mut self, id: SlotId, outcome: Outcome) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        if transfer.outcome.is_some() {
            return;
        }
        transfer.outcome = Some(outcome);
        transfer.retry.clear();
        if outcome == Outcome::Done {
            let took = self.now.saturating_sub(transfer.posted);
            self.transfer_latencies.add(transfer.plan.total, 1, nanos(took));
        }
        if let Some(timer) = transfer.timer.take() {
            self.timers.remove(&timer);
        }
        let notice = std::mem::replace(&mut transfer.notice, Unfinished::Nothing);
        let (session, number) = (transfer.session, transfer.number);
        let Some(found) = self.sessions.get_mut(session) else { return };
        match (outcome, notice) {
            (Outcome::Done, _) => {}
            // The peer must not wait for the rest of it.
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
        self.wake(session);
    }

    pub(super) fn forget_if_quiet(&mut self, id: SlotId) {
        let is_over =
            self.transfers.get(id).is_some_and(|transfer| transfer.released && transfer.progress().is_quiet);
        if is_over {
            self.transfers.remove(id);
        }
    }

    /// Puts a transfer's notification into its session's outbox, if its time has come. Whether the transfer may leave
    /// the list.
    pub(super) fn send_notice(&mut self, id: SlotId) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let is_counted = transfer.number.is_some();
        let is_time = transfer.is_posted() && (is_counted || transfer.in_flight == 0);
        let Unfinished::Unsent(bytes) = &mut transfer.notice else { return };
        if !is_time {
            return;
        }
        let Some(session) = self.sessions.get_mut(transfer.session) else { return };
        let Some(notification) = session.take_notification(bytes.len(), transfer.number, id) else {
            session.held.push(id);
            return;
        };
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
    }
}
