//! Lost writes: their rail has reported an error of the path, but they may still arrive.
//!
//! Under leased keys such a chunk waits until the peer has closed its key, as for a mute path (`fence.rs`): a late
//! first copy is then refused, and a notification that it would complete early is held. The wait is short: if the peer
//! has not answered [`Core::patience`] after the error, the chunk moves anyway, unless this end has severed the path
//! itself (`sever.rs`). Chunks lost meanwhile share the next request.
//!
//! Invariant: a lost chunk is counted in its transfer's `lost`, and is in its session's `lost` or in the `lost` of its
//! session's request.

use std::collections::BTreeMap;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::fence::Fence;
use super::transfer::{Chunk, Outcome};
use super::{Command, Core, Time, Timer};
use crate::wire::message::LeasedKey;

/// Maximum expired requests that a session remembers.
const EXPIRED: usize = 64;

/// A chunk that a path has lost.
#[derive(Debug)]
pub(super) struct Lost {
    transfer: SlotId,
    chunk: Chunk,
    path: usize,
    key: LeasedKey,
    /// The chunk moves by this time, or its transfer fails.
    until: Time,
    /// The chunk moves only after the peer has fenced its first copy: this end has severed the path (`sever.rs`).
    is_strict: bool,
}

/// A request that was not answered in time. The peer may still execute it later, and would hold its notifications for
/// ever.
#[derive(Debug)]
pub(super) struct Expired {
    serial: u64,
    notices: BTreeMap<u64, SlotId>,
}

impl<G> Core<G> {
    /// Handles the loss of a write under a leased key. Returns whether the chunk waits; otherwise it moves at once.
    pub(super) fn lose(
        &mut self,
        id: SlotId,
        chunk: Chunk,
        (path, key): (usize, u64),
        (errno, is_strict): (Errno, bool),
        now: Time,
    ) -> bool {
        let until = now + if is_strict { self.config.stall_timeout / 2 } else { self.patience() };
        let is_wanted = self.may_arrive(id);
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        let Some(region) = transfer.region_of(&chunk).filter(|_| is_wanted) else { return false };
        let session_id = transfer.session;
        let Some(session) = self.sessions.get_mut(session_id).filter(|session| session.is_up()) else {
            return false;
        };
        transfer.error = errno;
        transfer.in_flight -= 1;
        transfer.lost += 1;
        let key = LeasedKey { region, rail: session.paths[path].remote as u8, key };
        self.queue_lost(session_id, Lost { transfer: id, chunk, path, key, until, is_strict });
        true
    }

    /// Queues a lost chunk for the next request.
    fn queue_lost(&mut self, id: SlotId, lost: Lost) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let until = lost.until;
        let next = session.lost.iter().map(|lost| lost.until).min();
        session.lost.push_back(lost);
        if next.is_none() {
            // Runs after all errors that were reported together.
            self.commands.push_back(Command::Fence { session: id });
        }
        if next.is_none_or(|next| until < next) {
            self.remind(until, Timer::Lost(id));
        }
    }

    /// Asks the peer to fence the lost chunks, unless another request is unanswered.
    pub(super) fn fence_lost(&mut self, id: SlotId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.fence.is_some() {
            return;
        }
        let mut fence = Fence::default();
        let mut moved = Vec::new();
        while let Some(lost) = session.lost.pop_front() {
            match self.transfers.get_mut(lost.transfer) {
                Some(transfer) if transfer.outcome.is_none() && !transfer.is_in_place => {
                    if !fence.add(lost.key, lost.transfer, transfer) {
                        session.lost.push_front(lost);
                        break;
                    }
                    fence.lost.push(lost);
                }
                _ => moved.push(lost),
            }
        }
        if let Some(until) = session.lost.iter().map(|lost| lost.until).min() {
            self.remind(until, Timer::Lost(id));
        }
        if let Some(until) = fence.lost.iter().map(|lost| lost.until).min() {
            self.ask_to_fence(id, fence, until.min(now + self.patience()).max(now));
        }
        self.move_lost(moved);
    }

    /// Posts lost chunks on other paths, if they are still needed.
    pub(super) fn move_lost(&mut self, lost: impl IntoIterator<Item = Lost>) {
        for Lost { transfer: id, chunk, path, .. } in lost {
            let Some(transfer) = self.transfers.get_mut(id) else { continue };
            transfer.lost -= 1;
            let session = transfer.session;
            if self.repost(id, chunk, path) {
                self.counts.moved += 1;
            }
            self.wake(session);
            self.after_progress(id);
        }
    }

    /// Lost chunks have waited for a request before theirs.
    pub(super) fn lost_timer(&mut self, id: SlotId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let (due, rest): (Vec<_>, _) = session.lost.drain(..).partition(|lost| lost.until <= now);
        session.lost = rest.into();
        if let Some(until) = session.lost.iter().map(|lost| lost.until).min() {
            self.remind(until, Timer::Lost(id));
        }
        self.give_up_lost(due);
    }

    /// Handles chunks without an answer: they move, or their transfers fail.
    fn give_up_lost(&mut self, lost: Vec<Lost>) {
        let (strict, others): (Vec<_>, Vec<_>) = lost.into_iter().partition(|lost| lost.is_strict);
        for Lost { transfer: id, .. } in strict {
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.lost -= 1;
                self.finish(id, Outcome::Failed(Errno::ETIMEDOUT));
                self.after_progress(id);
            }
        }
        self.move_lost(others);
    }

    /// Handles the expiry of a request: chunks that must be fenced go into another request until their own deadline;
    /// the others move without a fence.
    pub(super) fn lost_fence_expired(&mut self, id: SlotId, fence: Fence, now: Time) {
        for transfer in fence.notices.values() {
            if let Some(transfer) = self.transfers.get_mut(*transfer) {
                transfer.is_held = true; // the answer may have been lost
            }
        }
        if let Some(session) = self.sessions.get_mut(id) {
            if session.expired.len() == EXPIRED {
                session.expired.remove(0);
            }
            session.expired.push(Expired { serial: fence.serial, notices: fence.notices });
        }
        let (again, over): (Vec<_>, _) =
            fence.lost.into_iter().partition(|lost| lost.is_strict && lost.until > now);
        self.give_up_lost(over);
        for lost in again {
            self.queue_lost(id, lost);
        }
    }

    /// Handles a late answer to a request: the held notifications are released when all writes have ended.
    pub(super) fn fenced_late(&mut self, id: SlotId, serial: u64, out: &[u64]) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(at) = session.expired.iter().position(|expired| expired.serial == serial) else { return };
        for (notice, id) in session.expired.remove(at).notices {
            let Some(transfer) = self.transfers.get_mut(id) else { continue };
            match out.contains(&notice) {
                true => transfer.arrived(),
                false => transfer.is_held = true,
            }
            self.after_progress(id);
        }
    }
}
