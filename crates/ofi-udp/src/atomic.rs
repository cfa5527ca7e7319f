//! Atomic operations. The memory's owner executes them, in order with the remote accesses of `rma.rs`. A record is
//! processed once, so an operation is executed once even if its packets are resent.

use ofi_api::{Error, OpFlags, Result};
use ofi_core::atomic::{Executor, MAX_PACKET_ATOMIC_LEN, Sent};
use ofi_core::copy;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::served::total_len;
use ofi_core::transport::{OutAtomic, PeerId, Posted, Upcalls};
use ofi_rdm::{Flow, Sender};

use crate::Udp;
use crate::command::{STREAM_LIMIT, kind};
use crate::message::full;
use crate::op::Op;
use crate::peer::Peer;
use crate::peer::common::Common;

impl Peer {
    /// Changes the peer's memory.
    pub fn atomic<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        out: &OutAtomic<'_>,
    ) -> Result<Posted> {
        if (out.flags.contains(OpFlags::FENCE) && self.outstanding > 0)
            || sender.commands.records() > STREAM_LIMIT
        {
            full(host, out.peer, sender);
            return Err(Error::AGAIN);
        }
        let executor = &out.executor;
        let operands = if executor.takes_operands() { out.len } else { 0 };
        let comparands = if executor.compares() { out.len } else { 0 };
        let op = if executor.fetches() {
            Op::Read { pieces: out.results.into(), got: 0, len: out.len, in_order: true }
        } else {
            Op::Confirm
        };
        self.begin(common, out.peer);
        let id = host.open(out.peer, out.ticket, op);
        let mut fields = Fields::new();
        fields.word(id.to_wire()).word(executor.to_wire().into()).pieces(out.remote);
        let body = sender.commands.record(kind::ATOMIC, 0, fields.bytes(), operands + comparands, None);
        // SAFETY: the pieces are lent, and `body` has room for both arrays.
        unsafe { copy::gather(out.operands, 0, body.as_mut_ptr(), operands) };
        // SAFETY: as above, behind the operands.
        unsafe { copy::gather(out.comparands, 0, body.as_mut_ptr().wrapping_add(operands), comparands) };
        Ok(Posted::Pending)
    }

    /// Executes an operation of the peer.
    pub fn take_atomic<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<Flow, Broken> {
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
                Self::done(sender, 0, op, executed.map(drop));
                return Ok(Flow::Next);
            }
        };
        let mut fields = Fields::new();
        fields.word(op).word(0);
        let answer = sender.bulk.record(kind::READ_PART, 0, fields.bytes(), len, None);
        answer.copy_from_slice(old);
        Ok(Flow::Next)
    }
}
