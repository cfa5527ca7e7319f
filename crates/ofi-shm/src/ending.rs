//! The end of a peer that has closed, died, or violated the protocol, and of the operations with it.

use ofi_api::Errno;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::Upcalls;

use crate::Shm;
use crate::command::flag;
use crate::common::Common;
use crate::layout::wish;
use crate::op::{Op, ReadPath};
use crate::peer::Peer;
use crate::peer::bulk::BulkIn;
use crate::peer::link::Link;

/// Counted helper rounds that include one whole round: the first may already be under way, and a round is counted
/// before it reads.
const WHOLE_ROUND: u64 = 3;

impl Peer {
    /// Fails all operations that await the peer, with `FI_ECONNRESET`. What it sent before is still delivered.
    pub fn end<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        self.end.gone = true;
        self.settle_reads();
        if self.initiated.outstanding > 0 {
            host.fail_outgoing(self.peer, Errno::ECONNRESET);
        }
        (self.initiated.outstanding, self.initiated.commanded, self.parked.accesses) = (0, 0, 0);
        self.initiated.unconfirmed.clear();
        self.served.serving -= self.served.reads.drain(..).count();
        self.bulk.streams.clear();
        self.parked.queue.clear();
        self.replies.backlog.clear();
        for id in self.back_pressure.kept.ids(|_| true) {
            common.kept -= self.back_pressure.kept.remove(id).map_or(0, |bytes| bytes.len());
        }
        if !self.bulk.input.as_mut().is_some_and(BulkIn::has_input) {
            // Abandon its unfinished writes, so that they do not block later ones.
            self.served.writes = Slots::default();
            self.served.serving = 0;
        }
    }

    /// Whether the peer's memory says that it has closed.
    pub fn is_closed(&self) -> bool {
        self.up().is_some_and(|up| up.wish() == wish::CLOSED)
    }

    /// Whether the close that the peer's memory shows may be reported. The memory may show it before the helper has
    /// attached other peers of that process, which sent something earlier. So the end of a connection waits, like a
    /// close notice, until the helper has read all sockets once.
    pub fn may_tell_of_end(&mut self, common: &Common) -> bool {
        if common.shared.connection.is_none() {
            return true;
        }
        let round = common.helper.rounds();
        let since = *self.end.closed_at.get_or_insert(round);
        if round.wrapping_sub(since) >= WHOLE_ROUND {
            return true;
        }
        common.helper.wake();
        false
    }

    /// Whether all commands and payloads of an ended peer have been taken.
    pub fn is_drained(&mut self) -> bool {
        !self.has_commands() && !self.bulk.input.as_mut().is_some_and(BulkIn::has_input)
    }

    /// Whether commands of the peer wait in its ring.
    pub fn has_commands(&mut self) -> bool {
        let Some(Link { up: Some(up), .. }) = &mut self.link else { return false };
        matches!(up.commands.peek(), Ok(Some(_)))
    }

    /// The peer has completed an operation of this end.
    pub fn ended<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        result: Result<(), Errno>,
    ) {
        let id = SlotId::from_wire(op);
        if high & flag::KEPT != 0 {
            if let Some(bytes) = self.back_pressure.kept.remove(id) {
                common.kept -= bytes.len();
            }
        } else if let Some(op) = host.finish(self.peer, id, result) {
            self.initiated.outstanding -= 1;
            self.initiated.commanded -= usize::from(op.is_commanded());
            if let Op::Read { coming: ReadPath::Parts(true), .. } = op {
                self.transfer_ended(common, host);
            }
        }
    }

    /// Completes an operation of this end.
    pub fn finish<H: Upcalls<Shm>>(&mut self, host: &mut H, id: SlotId, result: Result<(), Errno>) {
        if let Some(op) = host.finish(self.peer, id, result) {
            self.initiated.outstanding -= 1;
            self.initiated.commanded -= usize::from(op.is_commanded());
        }
    }

    /// Handles the closing of an operation's context: see [`ofi_core::transport::TransportEndpoint::abandon`].
    pub fn abandon(&mut self, id: SlotId, op: &mut Op) -> bool {
        match op {
            Op::Confirm => {}
            Op::Message { payload, lend, .. } | Op::Write(payload, lend) => {
                payload.keep();
                *lend = None; // the peer stops reading it, and gets the copy
            }
            Op::Read { pieces, coming, .. } => {
                *pieces = Box::default();
                if let ReadPath::Asked | ReadPath::Offered = coming {
                    *coming = ReadPath::Unwanted;
                }
            }
            // Not started yet, and removed from the queue.
            Op::Parked => {
                let before = self.parked.queue.len();
                self.parked.queue.retain(|parked| parked.access() != Some(id));
                self.parked.accesses -= before - self.parked.queue.len();
                self.initiated.outstanding -= 1;
                return false;
            }
        }
        true
    }

    /// Resets the state of a peer that is gone or excluded, and fails everything outstanding with it.
    pub fn lose<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        // Before anything completes: the peer may be writing into a receive or reading a send.
        self.close_copies(crate::single::deadline());
        common.counts.lost += 1;
        for id in self.back_pressure.kept.ids(|_| true) {
            if let Some(bytes) = self.back_pressure.kept.remove(id) {
                common.kept -= bytes.len();
            }
        }
        let is_spare = self.schedule.is_spare;
        *self = Self::new(self.peer, std::mem::take(&mut self.socket));
        self.schedule.is_spare = is_spare;
        host.fail_peer(self.peer, errno);
    }
}
