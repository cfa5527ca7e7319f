//! Giving up the accesses of transfers that have failed or were cancelled.
//!
//! Nobody needs their bytes, and the program waits for its memory, which an access to a peer that does not poll would
//! keep for as long as that peer lives. So the rails abandon them ([`Sink::abandon`]): afterwards the transfer is
//! quiet, although the accesses keep their places on their rails until they end. Unlike those of a mute path
//! (`fence.rs`) they say nothing about the path, which goes on.
//!
//! A rail of a device that serves all peers ends the local registration instead, beside the accesses of others. So the
//! accesses have some time to end by themselves there: a device reads and writes the peer's memory without its program.
//! A rail that cannot give up accesses keeps the memory until they end.

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::fence::{ASK_AGAIN, Abandoned};
use super::{Command, Core, OpId, PathId, Sink, Time, Timer};

impl<G> Core<G> {
    /// Queues the accesses of an ended transfer to be given up.
    pub(super) fn plan_to_give_up(&mut self, id: SlotId) {
        if self.ending.is_empty() {
            self.commands.push_back(Command::GiveUp);
        }
        self.ending.push(id);
    }

    /// Carries out [`Command::GiveUp`].
    pub(super) fn give_up(&mut self, now: Time, sink: &mut impl Sink<G>) {
        self.account();
        let mut ending = std::mem::take(&mut self.ending);
        if ending.is_empty() {
            return;
        }
        ending.sort_unstable_by_key(|id| id.to_wire());
        ending.dedup();
        let place = |id: SlotId| ending.binary_search_by_key(&id.to_wire(), |id| id.to_wire());
        let mut again: Vec<Option<Time>> = vec![None; ending.len()];
        for row in self.rows.ids(|row| row.under_way() > 0 && place(row.transfer).is_ok()) {
            let Some(at) = self.rows.get(row).and_then(|row| place(row.transfer).ok()) else { continue };
            let next = self.give_up_row(row, now, sink);
            again[at] = again[at].into_iter().chain(next).min();
        }
        for (id, again) in ending.into_iter().zip(again) {
            if let Some(again) = again {
                self.remind(again, Timer::GiveUp(id));
            }
            self.forget_if_quiet(id);
        }
    }

    /// Gives up the accesses of a row. Returns when the rail is to be asked again, if that may help.
    fn give_up_row(&mut self, row_id: SlotId, now: Time, sink: &mut impl Sink<G>) -> Option<Time> {
        let row = self.rows.get(row_id).copied()?;
        let transfer = self.transfers.get(row.transfer)?;
        let (session_id, index) = (transfer.session, row.path as usize);
        let due = transfer.ended + self.config.repeat_after;
        let rail = self.sessions.get(session_id)?.paths[index].rail;
        let mut again = None;
        for nth in row.in_flight() {
            let op = OpId::access(row_id).nth(nth);
            if self.take_stalled(PathId { session: session_id, path: index }, op) {
                self.given_up(row_id, nth, session_id);
                self.given_up_ended(row_id, nth, Err(Errno::ECANCELED), now); // the rail never had it
                continue;
            }
            if now < due && !sink.abandons_alone(rail) {
                again = Some(due);
                continue;
            }
            match sink.abandon(rail, op) {
                Ok(()) => self.given_up(row_id, nth, session_id),
                Err(Errno::EAGAIN) => again = Some(now + ASK_AGAIN.min(self.config.stall_timeout / 8)),
                // It has ended, and the end is about to be read; or the rail cannot.
                Err(errno) => tracing::trace!(target: "multirail", %errno, rail, "an access is not given up"),
            }
        }
        again
    }

    /// Handles a given up access, whose memory is no longer in use.
    fn given_up(&mut self, row_id: SlotId, nth: u32, session: SlotId) {
        let Some(row) = self.rows.get_mut(row_id) else { return };
        let (path, transfer) = (row.path as usize, row.transfer);
        if row.end(nth).is_none() {
            return;
        }
        let row = *row;
        let fresh = Abandoned::new(session, path, transfer);
        self.abandoned.entry(row_id).or_insert(fresh).give_up(nth);
        let Some(transfer) = self.transfers.get_mut(transfer) else { return };
        transfer.in_flight -= 1;
        let len = row.chunk(nth, &transfer.plan.pieces).len;
        if let Some(session) = self.sessions.get_mut(session) {
            session.paths[path].given_up(len);
        }
    }

    /// Handles the end of an access that was given up. Returns whether it was one.
    pub(super) fn given_up_ended(
        &mut self,
        row: SlotId,
        nth: u32,
        result: Result<(), Errno>,
        now: Time,
    ) -> bool {
        let Some(abandoned) = self.abandoned.get_mut(&row) else { return false };
        if !abandoned.end_given_up(nth) {
            return false;
        }
        let (id, path) = (abandoned.session, abandoned.path);
        if abandoned.count() == 0 {
            self.forget_row(row);
        }
        let Some(session) = self.sessions.get_mut(id) else { return true };
        session.operations -= 1;
        session.paths[path].given_up_ended(result, now);
        self.operations_left(id, path, Kind::Access, 1);
        if let Err(errno) = result
            && errno != Errno::ECANCELED
        {
            self.check_paths(id, errno, now);
        }
        self.wake(id);
        self.settle(id);
        true
    }
}
