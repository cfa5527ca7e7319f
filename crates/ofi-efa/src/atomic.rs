//! Atomic operations. The memory's owner executes them in order with the peer's messages. Each message id is processed
//! once, so an operation is executed once, even if its packet is repeated.

use ofi_api::{AtomicKind, Datatype, Errno, FiOp, Result};
use ofi_core::atomic::{Executor, Sent};
use ofi_core::copy;
use ofi_core::transport::served::total_len;
use ofi_core::transport::{OutAtomic, PeerId, Posted, Upcalls};

use crate::Efa;
use crate::adapter::Mark;
use crate::common::Common;
use crate::moving::{iovs, pieces};
use crate::op::{Op, Work};
use crate::peer::{Broken, NextStep, Peer};
use crate::ranges::Ranges;
use crate::wire::{Answer, Atomic, Control, kind};

/// Whether C's endpoints lack this type: they support none of 16 bytes or more, and crash on such an operation
/// (libfabric's main branch after 2.6).
fn is_ours_alone(datatype: Datatype) -> bool {
    datatype.size() > 8
}

#[cold]
fn beyond_c(size: usize) -> ofi_api::Error {
    ofi_api::Error::wanted(
        Errno::EOPNOTSUPP,
        "the type of an atomic operation",
        "one that the peer's library executes",
        format!("a type of {size} bytes, and a peer of another library"),
        "use types of up to 8 bytes with such peers",
    )
}

impl Peer {
    /// Posts an atomic operation on the peer's memory.
    pub fn atomic<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutAtomic<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        if common.direct {
            return Err(crate::direct::refused("an atomic operation"));
        }
        let executor = &out.executor;
        let remote = iovs(out.remote).ok_or_else(|| ofi_api::Error::new(Errno::EINVAL))?;
        let (len, name) = (out.len, u32::from(executor.to_wire()));
        if Datatype::from_c(name >> 5 & 0x1F).is_none_or(is_ours_alone) {
            match self.is_own() {
                Some(true) => {}
                Some(false) => return Err(beyond_c(executor.size())),
                None if self.dead.is_some() => {
                    return Err(ofi_api::Error::new(self.dead.unwrap_or(ofi_api::Errno::ECONNRESET)));
                }
                // The answer shows whether the peer is an endpoint of this library.
                None => {
                    self.ask(common, out.peer);
                    return Err(ofi_api::Error::AGAIN);
                }
            }
        }
        let operands = if executor.takes_operands() { len } else { 0 };
        let comparands = if executor.compares() { len } else { 0 };
        let op = match executor.fetches() {
            true => {
                let pieces = out.results.into();
                let arrived = Ranges::default();
                let work = Work::In { pieces, len, got: 0, arrived, cleared: len, peer_id: None };
                Op { work, ..Op::packed(true) }
            }
            false => Op::packed(true),
        };
        let (slot, id) = self.open(common, host, out.peer, out.ticket, op)?;
        let request = Atomic {
            kind: match executor.kind() {
                AtomicKind::Base => kind::DC_WRITE_RTA,
                AtomicKind::Fetch => kind::FETCH_RTA,
                AtomicKind::Compare => kind::COMPARE_RTA,
            },
            msg_id: self.next_msg,
            remote,
            datatype: name >> 5 & 0x1F,
            op: name & 0x1F,
            id,
            payload: &[],
        };
        self.next_msg = self.next_msg.wrapping_add(1);
        let header = request.encode(self.origin(common));
        self.packet(common, out.peer, &header, operands + comparands, Mark::Op(slot), |body| {
            // SAFETY: the pieces are lent, and `body` has room for both arrays.
            unsafe { copy::gather(out.operands, 0, body, operands) };
            // SAFETY: as above, behind the operands.
            unsafe { copy::gather(out.comparands, 0, body.wrapping_add(operands), comparands) };
        });
        Ok(Posted::Pending)
    }
}

/// Executes an operation of the peer.
pub fn take<H: Upcalls<Efa>>(
    state: &mut Peer,
    common: &mut Common,
    host: &mut H,
    peer: PeerId,
    request: &Atomic<'_>,
) -> Result<NextStep, Broken> {
    let remote = pieces(&request.remote);
    let answered = match execute(common, host, peer, request, &remote) {
        Ok(results) => results,
        Err(errno) => {
            state.refuse(common, peer, request.id, errno);
            return Ok(NextStep::Next);
        }
    };
    match (request.kind, &answered) {
        (kind::WRITE_RTA, _) => {}
        (kind::DC_WRITE_RTA, _) => {
            state.control(common, peer, Control::Receipt { send_id: request.id, msg_id: request.msg_id });
        }
        (_, results) => {
            let answer = Answer { recv_id: request.id, payload: results };
            state.control(common, peer, Control::AtomicResponse(answer));
        }
    }
    Ok(NextStep::Next)
}

/// Executes the operation, and returns the old values if the request fetches them.
fn execute<H: Upcalls<Efa>>(
    common: &Common,
    host: &mut H,
    peer: PeerId,
    request: &Atomic<'_>,
    remote: &[ofi_api::RemotePiece],
) -> Result<Vec<u8>, Errno> {
    let kind = match request.kind {
        kind::FETCH_RTA => AtomicKind::Fetch,
        kind::COMPARE_RTA => AtomicKind::Compare,
        _ => AtomicKind::Base,
    };
    let named = FiOp::from_c(request.op).zip(Datatype::from_c(request.datatype)).ok_or(Errno::EINVAL)?;
    let executor = Executor::find(kind, named.0, named.1).map_err(|_| Errno::EOPNOTSUPP)?;
    let len = total_len(remote).map_err(|_| Errno::EINVAL)?;
    let taken = executor.sent_len(len);
    // C's endpoints send operands with an atomic read, too. They are ignored.
    let fits = request.payload.len() == taken || (taken == 0 && request.payload.len() == len);
    if !executor.divides(len) || !fits {
        return Err(Errno::EINVAL);
    }
    let (mut sent, operands) = (Sent::default(), &request.payload[..taken]);
    let old = common.owner().atomic(host, peer, &executor, (remote, operands), &mut sent)?;
    Ok(old.to_vec())
}
