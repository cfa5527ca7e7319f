//! Reads and writes that the application gives up while they are in flight
//! ([`ofi_core::transport::TransportEndpoint::give_up`]).
//!
//! Packets and slots hold copies, so such an operation continues without the application's memory. Where the device
//! itself accesses that memory, only deregistration stops it: after `ibv_dereg_mr` the device does not access the
//! memory. A registration serves many operations. It is deregistered once all operations that use it were given up and
//! one of them is a read. For writes alone it stays: the device only reads the memory, which is harmless.
//!
//! New operations on the same memory register it again. A request whose registration is gone completes with a local
//! error when the peer's device answers. This was observed only on simulated and emulated devices; EFA hardware may
//! behave differently.

use ofi_api::Piece;
use ofi_core::slots::SlotId;
use ofi_core::transport::GivenUp;

use crate::common::Common;
use crate::moving::End;
use crate::op::{HeldMemory, Op, SingleKind, SingleWr, Work};
use crate::peer::Peer;

impl Peer {
    /// Gives up a read or write in flight, so that it no longer uses the application's memory.
    pub fn give_up(&mut self, common: &mut Common, id: SlotId, op: &mut Op) -> GivenUp {
        match &mut op.work {
            Work::Packed => GivenUp::GoesOn,
            Work::Out { payload, .. } => {
                payload.keep();
                GivenUp::GoesOn
            }
            Work::In { pieces, .. } => {
                *pieces = Box::default();
                GivenUp::GoesOn
            }
            Work::Lent(_) => GivenUp::Busy,
            Work::Native(native) => {
                let is_its = |end: &End| matches!(*end, End::Access(access) if access == id);
                let found = common.transfers.ids(|transfer| is_its(&transfer.end) && transfer.slot.is_some());
                if found.is_empty() {
                    return GivenUp::Busy;
                }
                native.pieces = Box::default();
                GivenUp::GoesOn
            }
            Work::SingleWr(alone) => {
                if self.singles.iter().any(|&(queued, _)| queued == id) {
                    // The request was never posted to the device.
                    self.singles.retain(|&(queued, _)| queued != id);
                    self.transfers -= 1;
                    self.let_go(common, std::mem::replace(&mut alone.memory, HeldMemory::Nothing));
                    op.work = Work::Packed;
                    return GivenUp::Over;
                }
                alone.give_up(common)
            }
        }
    }
}

impl SingleWr {
    fn give_up(&mut self, common: &mut Common) -> GivenUp {
        let was_given_up = std::mem::replace(&mut self.given_up, true);
        let region = match &self.memory {
            HeldMemory::Nothing => return GivenUp::GoesOn,
            HeldMemory::Slot(_) => {
                if self.kind == SingleKind::Read {
                    self.piece = Piece::new(self.piece.addr, 0); // nothing is copied out of the slot
                }
                return GivenUp::GoesOn;
            }
            HeldMemory::Region(region) => region,
        };
        if !was_given_up {
            common.regions.leaves(region, self.kind == SingleKind::Read);
        }
        match common.regions.revoke(region, &common.domain.transport) {
            true => GivenUp::GoesOn,
            false => GivenUp::Busy,
        }
    }
}
