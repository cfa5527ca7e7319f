//! Accesses that the peer's device refused, as its owner has taken the registration away: the owner is asked for them
//! over the next connection.
//!
//! A refusal ends the connection. The device executes requests in order, so nothing that was posted behind the refused
//! one was executed: those accesses too go to the owner, each once, in the order in which they were posted. One whose
//! requests were all executed and that waits for the peer's word is not among them: it ends with the connection, as
//! messages do.

use ofi_api::{Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, OutRma, Payload, Peer, RemoteData};

use crate::Verbs;
use crate::fetch::{End, Transfer};
use crate::lane::{Common, Lane};
use crate::message::Op;
use crate::rma::Asked;
use crate::wire::PAYLOAD;

/// What is kept of an access that the device does: all that its owner would be told.
pub struct Native {
    /// Memory of this end.
    pieces: Box<[Piece]>,
    remote: Box<[RemotePiece]>,
    write: bool,
    data: Option<RemoteData>,
    len: usize,
    /// Which of the lane's accesses it was.
    number: u64,
    /// It goes to the owner, and does not end with the connection.
    pub spared: bool,
}

impl Native {
    /// Of access `number` of a lane.
    pub fn new(out: &OutRma<'_>, number: u64) -> Self {
        Self {
            pieces: out.pieces.into(),
            remote: out.remote.into(),
            write: out.write,
            data: out.remote_data(),
            len: out.len,
            number,
            spared: false,
        }
    }

    /// The memory of this end is the application's again, and what is read goes nowhere. `false`: the device uses that
    /// memory itself.
    pub fn forget(&mut self) -> bool {
        let is_short = self.len <= PAYLOAD;
        if is_short {
            self.pieces = Box::default();
        }
        is_short
    }

    /// Of a read, where it goes, and its length.
    pub fn read_into(&self) -> Option<(&[Piece], usize)> {
        (!self.write).then_some((&self.pieces, self.len))
    }
}

/// An access whose requests were not all executed, and the slot that it goes through, if it is short.
pub struct Refused {
    op: SlotId,
    slot: Option<u32>,
}

impl Refused {
    /// What is left of a transfer, if it is an access.
    pub fn of(end: &End, slot: Option<u32>) -> Option<Self> {
        match *end {
            End::Access(op) | End::Told(op, _) => Some(Self { op, slot }),
            End::Receive { .. } => None,
        }
    }
}

impl Lane {
    /// The accesses of a lane whose connection a refusal has ended, which they do not end with, in their order.
    pub fn spare<H: Host<Verbs>>(
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        mut refused: Vec<Refused>,
        transfers: &mut Vec<Transfer>,
    ) -> Vec<Refused> {
        for transfer in transfers {
            if let Some(one) = Refused::of(&transfer.end, transfer.slot) {
                transfer.slot = None;
                refused.push(one);
            }
        }
        let mut numbered = Vec::new();
        for one in refused {
            if let Some(Op::Native(native)) = host.op(peer, one.op) {
                native.spared = true;
                numbered.push((native.number, one));
            } else if let Some(slot) = one.slot {
                common.adapter.give_slot(slot); // its operation has ended otherwise
            }
        }
        numbered.sort_unstable_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, one)| one).collect()
    }

    /// Has the owner asked for them.
    pub fn ask_again<H: Host<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        spared: Vec<Refused>,
    ) {
        for Refused { op: id, slot } in spared {
            if let Some(op) = host.op(peer, id)
                && let Op::Native(native) = std::mem::replace(op, Op::Access)
            {
                let Native { pieces, remote, write, data, len, .. } = native;
                let asked = Asked { write, remote: &remote, data, len };
                match (write, asked.is_short()) {
                    (true, true) => {}
                    // SAFETY: the pieces are lent until the operation ends, as injected ones are short.
                    (true, false) => *op = Op::Write(unsafe { Payload::lent(pieces) }),
                    (false, _) => *op = Op::Read { pieces, got: 0, len },
                }
                let from = slot.map(|slot| common.adapter.outgoing(slot));
                self.ask(common, peer, id, &asked, |body, len| {
                    if let Some(from) = from {
                        // SAFETY: the slot has the bytes of a short write since it was posted, and belongs to this
                        // access.
                        unsafe { copy::bytes(from, body, len) };
                    }
                });
                common.counts.asked_again += 1;
            }
            if let Some(slot) = slot {
                common.adapter.give_slot(slot);
            }
        }
    }
}

/// How operations of a lane end that are not spared.
pub fn is_lost(op: &Op) -> bool {
    !matches!(op, Op::Native(native) if native.spared)
}
