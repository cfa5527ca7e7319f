//! Accesses that the peer's device refused because the owner has withdrawn the registration: this end sends them to the
//! owner over the next connection.
//!
//! A refusal ends the connection. The device executes requests in order, so no request after the refused one was
//! executed: those accesses are sent to the owner too, each once, in the order in which they were posted. An access
//! whose requests were all executed and that waits for the peer's report ends with the connection, as messages do.

use ofi_api::{Errno, Piece};
use ofi_core::copy;
use ofi_core::transport::{Payload, PeerId, Upcalls};

use crate::Verbs;
use crate::few::Few;
use crate::op::{Native, Op};
use crate::peer::{Common, Peer};
use crate::rma::OwnerAccess;
use crate::transfer::{Refused, Transfer};

impl Peer {
    /// Handles the completion of an access's request. A refusal by the peer's device is the first failure of the
    /// connection: requests posted after it were not executed.
    #[inline]
    pub fn note_refusal(&mut self, result: Result<(), Errno>) {
        if result == Err(Errno::EKEYREJECTED) && self.ending.is_none() {
            self.refused = Some(Vec::new());
        }
    }

    /// The accesses of a peer that survive a connection ended by a refusal, in order.
    pub fn spare<H: Upcalls<Verbs>>(
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
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

    /// Sends these accesses to the owner.
    pub fn ask_again<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        spared: Vec<Refused>,
    ) {
        for Refused { op: id, slot } in spared {
            if let Some(op) = host.op(peer, id)
                && let Op::Native(native) = std::mem::replace(op, Op::Access)
            {
                let Native { pieces, remote, kept, write, data, len, .. } = native;
                let asked = OwnerAccess { write, remote: &remote, data, len };
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
