//! Recovery of a mute path whose rail has one connection per peer (`verbs`).
//!
//! Such a rail leases no keys; the connection is closed instead. Both ends close it, this one first:
//!
//! 1. Our rail ends its connection to the peer ([`Sink::sever`]). Its device executes no request any more, so all
//!    accesses end with an error, and their local memory is free. Reads move at once: no answer can arrive.
//! 2. A write may have left our device. Its chunk is *lost* (`lost.rs`): the peer is asked over another path to close
//!    its key. A rail of connections gives out the region's own key as the lease, and closes it by ending its
//!    connection to us. After its answer no late write is executed there, and the chunk moves.
//!
//! Accesses posted between the two steps use a new connection. The peer may end that one too; they then fail, and move
//! by the same rule.
//!
//! A rail that has reported an error itself is not mute. Its lost chunks move without an answer after a while. Lost
//! chunks of a path that this end has severed do not: the peer's device may still execute them. Their transfers fail
//! with `FI_ETIMEDOUT` after half of `stall_timeout`.

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::transfer::{Outcome, Way};
use super::{Core, OpId, PathId, Sink, Time};

impl<G> Core<G> {
    /// Ends the connection of a mute path. The accesses on it end with errors of the path.
    pub(super) fn sever(&mut self, id: SlotId, index: usize, now: Time, sink: &mut impl Sink<G>) {
        self.account();
        let Some(path) = self.sessions.get(id).and_then(|session| session.paths.get(index)) else { return };
        let (rail, addr) = (path.rail, path.addr);
        // Accesses that wait for room have never left this end.
        for row_id in self.rows_on(id, index) {
            let Some(row) = self.rows.get(row_id).copied() else { continue };
            for op in row.in_flight().map(|nth| OpId::access(row_id).nth(nth)) {
                if self.take_stalled(PathId { session: id, path: index }, op) {
                    self.ended(op, Err(Errno::ETIMEDOUT), now);
                }
            }
        }
        let Some(path) = self.sessions.get_mut(id).and_then(|session| session.paths.get_mut(index)) else {
            return;
        };
        path.severed = Some(now);
        let severed = addr.ok_or(Errno::EADDRNOTAVAIL).and_then(|addr| sink.sever(rail, addr));
        if let Err(errno) = severed {
            tracing::debug!(target: "multirail", %errno, rail, "a rail does not end its connection to a peer");
            for row in self.rows_on(id, index) {
                if let Some(transfer) = self.rows.get(row).map(|row| row.transfer) {
                    self.finish(transfer, Outcome::Failed(Errno::ETIMEDOUT));
                    self.after_progress(transfer);
                }
            }
        }
        self.wake(id);
    }

    /// Whether a failed access is a write that is still needed and that the peer may still execute.
    pub(super) fn may_arrive(&self, transfer: SlotId) -> bool {
        self.transfers.get(transfer).is_some_and(|transfer| {
            transfer.plan.way == Way::Write && transfer.outcome.is_none() && !transfer.is_in_place
        })
    }
}
