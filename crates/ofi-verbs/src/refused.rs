//! Accesses that the peer's device refused because its owner has withdrawn the registration: this end asks the owner
//! for them over the next connection.
//!
//! A refusal ends the connection. The device executes requests in order, so no request after the refused one was
//! executed: those accesses go to the owner too, each once, in the order in which they were posted. An access whose
//! requests were all executed, and that waits for the peer's report, is not among them: it ends with the connection, as
//! messages do.

use ofi_api::{Errno, Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, OutRma, Payload, Peer, RemoteData};

use crate::Verbs;
use crate::alone::One;
use crate::fetch::{End, Transfer};
use crate::few::Few;
use crate::lane::{Common, Lane};
use crate::message::Op;
use crate::rma::Asked;

/// Where the device finds, or puts, the bytes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the request, which is a write. The application's memory still has them.
    Request,
    /// In a slot.
    Slot,
    /// In the application's memory.
    Memory,
}

/// The state of an access by the device, which suffices to ask the memory's owner for it.
pub struct Native {
    /// Memory of this end.
    pieces: Few<Piece>,
    remote: Few<RemotePiece>,
    place: Place,
    /// The bytes that the application's memory had when it was given back, for [`Place::Request`].
    kept: Option<Box<[u8]>>,
    write: bool,
    data: Option<RemoteData>,
    len: usize,
    /// Its number among the lane's accesses.
    number: u64,
    /// Whether it goes to the owner instead of ending with the connection.
    pub spared: bool,
}

impl Native {
    /// The state of access `number` of a lane.
    pub fn new(out: &OutRma<'_>, number: u64, place: Place) -> Self {
        Self {
            pieces: out.pieces.into(),
            remote: out.remote.into(),
            place,
            kept: None,
            write: out.write,
            data: out.remote_data(),
            len: out.len,
            number,
            spared: false,
        }
    }

    /// The same for an access without a message for the peer.
    #[inline(always)]
    pub fn alone(one: &One, number: u64, place: Place) -> Self {
        Self {
            pieces: Few::One([one.piece]),
            remote: Few::One([one.remote]),
            place,
            kept: None,
            write: one.write,
            data: None,
            len: one.piece.len,
            number,
            spared: false,
        }
    }

    /// Whether the peer reports the end of the access, too.
    pub const fn is_told(&self) -> bool {
        self.data.is_some()
    }

    /// Gives this end's memory back to the application: the data of a read is discarded. `false`: the device uses that
    /// memory itself.
    pub fn forget(&mut self) -> bool {
        match self.place {
            Place::Memory => return false,
            // SAFETY: the pieces are lent until this call returns.
            Place::Request => self.kept = Some(unsafe { copy::copied(&self.pieces, self.len) }),
            Place::Slot => {}
        }
        self.pieces = Few::default();
        true
    }

    /// For a read, its destination and length.
    pub fn read_into(&self) -> Option<(&[Piece], usize)> {
        (!self.write).then_some((&self.pieces, self.len))
    }
}

/// An access whose requests were not all executed, and its slot, if it is short.
pub struct Refused {
    op: SlotId,
    slot: Option<u32>,
}

impl Refused {
    /// The remains of an access with this operation.
    pub const fn new(op: SlotId, slot: Option<u32>) -> Self {
        Self { op, slot }
    }

    /// The remains of a transfer, if it is an access.
    pub fn of(end: &End, slot: Option<u32>) -> Option<Self> {
        match *end {
            End::Access(op) | End::Told(op, _) => Some(Self { op, slot }),
            End::Receive { .. } => None,
        }
    }
}

impl Lane {
    /// A request of an access has ended. If the peer's device has refused it, that is the first failure of the
    /// connection: requests posted after it were not executed.
    #[inline]
    pub fn note_refusal(&mut self, result: Result<(), Errno>) {
        if result == Err(Errno::EKEYREJECTED) && self.ending.is_none() {
            self.refused = Some(Vec::new());
        }
    }

    /// The accesses of a lane that survive the connection which a refusal has ended, in their order.
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
                common.adapter.give_slot(slot); // the operation has ended for another reason
            }
        }
        numbered.sort_unstable_by_key(|(number, _)| *number);
        numbered.into_iter().map(|(_, one)| one).collect()
    }

    /// Asks the owner for them.
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
                let Native { pieces, remote, kept, write, data, len, .. } = native;
                let asked = Asked { write, remote: &remote, data, len };
                let from = slot.map(|slot| common.adapter.outgoing(slot).cast_const());
                let from = from.or(kept.as_ref().map(|kept| kept.as_ptr()));
                let whole = match from {
                    Some(from) => Few::One([Piece::new(from.cast_mut(), len)]),
                    None => Few::from(&*pieces),
                };
                match (write, asked.is_short()) {
                    (true, true) => {}
                    // SAFETY: the pieces are lent until the operation ends, because injected operations are short.
                    (true, false) => *op = Op::Write(unsafe { Payload::lent(pieces.into_boxed()) }),
                    (false, _) => *op = Op::Read { pieces: pieces.into_boxed(), got: 0, len },
                }
                self.ask(common, peer, id, &asked, |body, len| {
                    // SAFETY: the bytes of a short write: in a slot that belongs to this access, or kept, or in the
                    // application's memory, which is lent until the operation ends.
                    unsafe { copy::gather(&whole, 0, body, len) };
                });
                common.counts.asked_again += 1;
            }
            if let Some(slot) = slot {
                common.adapter.give_slot(slot);
            }
        }
    }
}

/// Whether an operation of a lane ends with the connection, because it was not spared.
pub fn is_lost(op: &Op) -> bool {
    !matches!(op, Op::Native(native) if native.spared)
}
