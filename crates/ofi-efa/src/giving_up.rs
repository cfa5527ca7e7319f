//! Reads and writes that the application gives up while they are in flight ([`ofi_core::transport::Lanes::give_up`]).
//!
//! Bytes in packets and slots are copies, so such an operation goes on without the application's memory. Where the
//! device itself reads or writes that memory, only the end of its registration stops the device: after `ibv_dereg_mr`
//! it does not touch the memory. A registration serves many operations. It is ended when all that use it were given up,
//! and one of them is a read. Writes alone leave it: a device that reads memory harms nobody.
//!
//! New operations on the same memory register it again. A request without its registration is completed with an error
//! of this end when the peer's device answers it. What else an EFA device does then is not known: it was seen on
//! simulated and emulated devices only.

use ofi_api::Piece;
use ofi_core::slots::SlotId;
use ofi_core::transport::GivenUp;

use crate::common::Common;
use crate::lane::Lane;
use crate::moving::End;
use crate::op::{Alone, Kind, Memory, Op, Work};

impl Lane {
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
            Work::Alone(alone) => {
                if self.singles.iter().any(|&(queued, _)| queued == id) {
                    // The device has never had it.
                    self.singles.retain(|&(queued, _)| queued != id);
                    self.transfers -= 1;
                    common.let_go(std::mem::replace(&mut alone.memory, Memory::Nothing));
                    op.work = Work::Packed;
                    return GivenUp::Over;
                }
                alone.give_up(common)
            }
        }
    }
}

impl Alone {
    fn give_up(&mut self, common: &mut Common) -> GivenUp {
        let was_given_up = std::mem::replace(&mut self.given_up, true);
        let region = match &self.memory {
            Memory::Nothing => return GivenUp::GoesOn,
            Memory::Slot(_) => {
                if self.kind == Kind::Read {
                    self.piece = Piece::new(self.piece.addr, 0); // nothing is copied out of the slot
                }
                return GivenUp::GoesOn;
            }
            Memory::Region(region) => region,
        };
        if !was_given_up {
            common.regions.leaves(region, self.kind == Kind::Read);
        }
        match common.regions.revoke(region, &common.domain.transport) {
            true => GivenUp::GoesOn,
            false => GivenUp::Busy,
        }
    }
}
