//! Atomic operations, executed by the memory's owner, in one order with the remote accesses of `rma.rs`. A record is
//! taken once, so an operation is executed once, however often its packets are sent.

use ofi_api::{Caps, Error, OpFlags, Result};
use ofi_core::atomic::Executor;
use ofi_core::copy;
use ofi_core::transport::{Host, OutAtomic, Peer, Posted};
use rdm_proto::{Flow, Sender};

use crate::Udp;
use crate::command::{Broken, Fields, Words, kind};
use crate::lane::{Common, Lane};
use crate::message::{Op, STREAM_LIMIT};
use crate::rma::accessor;

/// Most bytes that one operation changes. Operands and comparands together travel inside a command.
pub const MOST: usize = 4096;

/// Operands, comparands or results of one operation, aligned for every type.
#[repr(align(16))]
struct Scratch([u8; MOST]);

impl Lane {
    /// Changes the peer's memory.
    pub fn atomic<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        out: &OutAtomic<'_>,
    ) -> Result<Posted> {
        if (out.flags.contains(OpFlags::FENCE) && self.outstanding > 0)
            || sender.commands.records() > STREAM_LIMIT
        {
            return Err(Error::AGAIN);
        }
        let executor = &out.executor;
        let operands = if executor.takes_operands() { out.len } else { 0 };
        let comparands = if executor.compares() { out.len } else { 0 };
        let op = if executor.fetches() {
            Op::Read { pieces: out.results.into(), got: 0, len: out.len }
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
    pub fn take_atomic<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: Peer,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, what) = (words.next()?, words.next()?);
        let executor = u16::try_from(what).ok().and_then(Executor::from_wire).ok_or(Broken)?;
        let remote = words.pieces()?;
        let len =
            match Self::check(common, accessor(common, host, peer), &remote, Caps::ATOMIC, executor.rights())
            {
                Ok(len) => len,
                Err(errno) => {
                    Self::done(sender, 0, op, Err(errno));
                    return Ok(Flow::Next);
                }
            };
        let arrays = usize::from(executor.takes_operands()) + usize::from(executor.compares());
        if len == 0 || len > MOST || words.0.len() != arrays * len {
            return Err(Broken);
        }
        let mut scratch = [const { Scratch([0; MOST]) }; 3];
        let [operands, comparands, results] = &mut scratch;
        let mut rest = words.0;
        for (array, there) in [(operands, executor.takes_operands()), (comparands, executor.compares())] {
            if there {
                let (head, tail) = rest.split_at(len);
                array.0[..len].copy_from_slice(head);
                rest = tail;
            }
        }
        let results = if executor.fetches() { results.0.as_mut_ptr() } else { std::ptr::null_mut() };
        let regions = &common.domain.regions;
        let (operands, comparands) = (scratch[0].0.as_ptr(), scratch[1].0.as_ptr());
        let who = accessor(common, host, peer);
        // SAFETY: operands and comparands were just filled, where the executor wants them, and the results have room.
        let executed = unsafe { executor.execute_at(regions, who, &remote, operands, comparands, results) };
        if executed.is_ok() {
            host.accessed(regions, executor.rights(), &remote);
        }
        if executed.is_err() || !executor.fetches() {
            Self::done(sender, 0, op, executed);
            return Ok(Flow::Next);
        }
        let mut fields = Fields::new();
        fields.word(op).word(0);
        let answer = sender.bulk.record(kind::READ_PART, 0, fields.bytes(), len, None);
        answer.copy_from_slice(&scratch[2].0[..len]);
        Ok(Flow::Next)
    }
}
