//! Atomic operations. The memory's owner executes them in order with the remote accesses of `rma.rs`. The device
//! delivers a record once, so an operation is executed once.

use ofi_api::Result;
use ofi_core::atomic::{Executor, MAX_PACKET_ATOMIC_LEN, Sent};
use ofi_core::copy;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::served::total_len;
use ofi_core::transport::{OutAtomic, PeerId, Posted, Upcalls};

use crate::Verbs;
use crate::op::Op;
use crate::peer::{Common, NextStep, Peer};
use crate::wire::kind;

impl Peer {
    /// Posts an atomic operation on the peer's memory.
    pub fn atomic<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutAtomic<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        let executor = &out.executor;
        let operands = if executor.takes_operands() { out.len } else { 0 };
        let comparands = if executor.compares() { out.len } else { 0 };
        let op = if executor.fetches() {
            Op::Read { pieces: out.results.into(), got: 0, len: out.len }
        } else {
            Op::Access
        };
        self.outstanding += 1;
        self.executed += 1;
        let id = host.open(out.peer, out.ticket, op);
        let mut fields = Fields::new();
        fields.word(id.to_wire()).word(executor.to_wire().into()).pieces(out.remote);
        let len = operands + comparands;
        self.record(common, out.peer, (kind::ATOMIC, 0), fields.bytes(), len, None, |body| {
            // SAFETY: the pieces are lent, and `body` has room for both arrays.
            unsafe { copy::gather(out.operands, 0, body, operands) };
            // SAFETY: as above, behind the operands.
            unsafe { copy::gather(out.comparands, 0, body.wrapping_add(operands), comparands) };
        });
        Ok(Posted::Pending)
    }

    /// Executes an operation of the peer.
    pub fn take_atomic<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, what) = (words.word()?, words.word()?);
        let executor = u16::try_from(what).ok().and_then(Executor::from_wire).ok_or(Broken)?;
        let remote = words.pieces()?;
        let len = total_len(&remote)?;
        if len == 0 || len > MAX_PACKET_ATOMIC_LEN || words.0.len() != executor.sent_len(len) {
            return Err(Broken);
        }
        let mut sent = Sent::default();
        let old = match common.owner().atomic(host, peer, &executor, (&remote, words.0), &mut sent) {
            Ok(old) if executor.fetches() => old,
            executed => {
                self.done(common, peer, 0, op, executed.map(drop));
                return Ok(NextStep::Next);
            }
        };
        let mut fields = Fields::new();
        fields.word(op);
        self.record(common, peer, (kind::READ_PART, 0), fields.bytes(), len, None, |body| {
            // SAFETY: both have `len` bytes.
            unsafe { copy::bytes(old.as_ptr(), body, len) };
        });
        Ok(NextStep::Next)
    }
}
