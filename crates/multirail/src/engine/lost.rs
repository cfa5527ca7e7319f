//! Writes that a path has lost: their rail has reported an error of the path, and what it sent may still arrive.
//!
//! Under leased keys such a chunk waits until the peer has closed its key, as for a mute path (`fence.rs`): a late
//! first copy is then refused, and a notification that it would complete early is held. The wait is short: if the peer
//! has not answered [`Core::patience`] after the error, the chunk moves all the same. Chunks that are lost meanwhile
//! share the next request.
//!
//! Invariant: a lost chunk is counted in its transfer's `lost`, and is in its session's `lost` or in the `lost` of its
//! session's request.

use std::collections::BTreeMap;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::fence::Fence;
use super::transfer::{Chunk, Way};
use super::{Command, Core, Time, Timer};
use crate::wire::message::LeasedKey;

/// Most unanswered requests of a session that are remembered.
const EXPIRED: usize = 64;

/// A chunk that a path has lost.
#[derive(Debug)]
pub(super) struct Lost {
    transfer: SlotId,
    chunk: Chunk,
    path: usize,
    key: LeasedKey,
    /// The chunk moves by this time.
    until: Time,
}

/// A request that was not answered in time. The peer may carry it out later, and would hold its notifications for ever.
#[derive(Debug)]
pub(super) struct Expired {
    serial: u64,
    notices: BTreeMap<u64, SlotId>,
}

impl<G> Core<G> {
    /// How long lost chunks wait for the peer: long enough for the request or its answer to be repeated on another
    /// path.
    fn patience(&self) -> Time {
        2 * self.config.repeat_after
    }

    /// A path has lost a write under a leased key. Returns whether the chunk waits; otherwise it moves at once.
    pub(super) fn lose(
        &mut self,
        id: SlotId,
        chunk: Chunk,
        (path, key): (usize, u64),
        errno: Errno,
        now: Time,
    ) -> bool {
        let until = now + self.patience();
        let Some(transfer) = self.transfers.get_mut(id) else { return false };
        let is_wanted =
            transfer.outcome.is_none() && !transfer.is_in_place && transfer.plan.way == Way::Write;
        let Some(region) = transfer.region_of(&chunk).filter(|_| is_wanted) else { return false };
        let session_id = transfer.session;
        let Some(session) = self.sessions.get_mut(session_id).filter(|session| session.is_up()) else {
            return false;
        };
        transfer.error = errno;
        transfer.in_flight -= 1;
        transfer.lost += 1;
        let key = LeasedKey { region, rail: session.paths[path].remote as u8, key };
        session.lost.push_back(Lost { transfer: id, chunk, path, key, until });
        if session.lost.len() == 1 {
            // Carried out when all errors that were reported together are here.
            self.commands.push_back(Command::Fence { session: session_id });
            self.remind(until, Timer::Lost(session_id));
        }
        true
    }

    /// Asks the peer to shut out the lost chunks, unless another request is unanswered.
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
        if let Some(until) = session.lost.front().map(|lost| lost.until) {
            self.remind(until, Timer::Lost(id));
        }
        if let Some(until) = fence.lost.first().map(|lost| lost.until) {
            self.ask_to_fence(id, fence, until.max(now));
        }
        self.move_lost(moved);
    }

    /// Lost chunks are posted on other paths, if they must be.
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
        let due = session.lost.iter().take_while(|lost| lost.until <= now).count();
        let due: Vec<_> = session.lost.drain(..due).collect();
        if let Some(until) = session.lost.front().map(|lost| lost.until) {
            self.remind(until, Timer::Lost(id));
        }
        self.move_lost(due);
    }

    /// The peer has not shut the chunks of a request out in time: they move without that.
    pub(super) fn lost_fence_expired(&mut self, id: SlotId, fence: Fence) {
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
        self.move_lost(fence.lost);
    }

    /// The peer has carried out a request after its time. What it holds is released when all writes have ended.
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
