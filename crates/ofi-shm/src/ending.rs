//! The end of a peer and of its operations, because it has closed, died, or violated the protocol.

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

/// The number of helper rounds that contain at least one whole round: the first may already be under way, and the last
/// is counted before it reads.
const WHOLE_ROUND: u64 = 3;

impl Peer {
    /// Handles the end of the peer: fails all operations that await it. What the peer sent before is still delivered.
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
            // Its unfinished write is abandoned and blocks nothing after it.
            self.served.writes = Slots::default();
            self.served.serving = 0;
        }
    }

    /// Whether the peer's memory says that it has closed.
    pub fn is_closed(&self) -> bool {
        self.up().is_some_and(|up| up.wish() == wish::CLOSED)
    }

    /// Whether the end that the peer's memory shows may be reported. That memory is faster than the helper, which may
    /// not have attached other peers of the process that sent something earlier. Therefore the end of a connection,
    /// like a close notice, waits until the helper has read all sockets once.
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

    /// Whether everything that an ended peer sent has been taken.
    pub fn is_drained(&mut self) -> bool {
        !self.has_commands() && !self.bulk.input.as_mut().is_some_and(BulkIn::has_input)
    }

    /// Whether commands wait that were sent before the peer closed.
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
                *lend = None; // the peer stops reading it and is sent the copy
            }
            Op::Read { pieces, coming, .. } => {
                *pieces = Box::default();
                if let ReadPath::Asked | ReadPath::Offered = coming {
                    *coming = ReadPath::Unwanted;
                }
            }
            // It has not started and never will.
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

    /// Ends everything with a peer that is gone or excluded.
    pub fn lose<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        // Do this before anything completes: the peer may be writing into a receive or reading a send.
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
