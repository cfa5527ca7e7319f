//! Receives of a node, or of a context shared by several nodes.

use ofi_api::{Call, Errno, Error, FiAddr, Lent, OpFlags, ReceiveOp, Result, TagMatch};

use super::Desk;
use crate::buffer::BufferMut;
use crate::multi_recv::MultiRecvBuffer;
use crate::op::{Claim, Op};
use crate::request::{PostError, RecvMsg};

impl Desk<'_> {
    pub fn recv_message<B: BufferMut>(self, message: RecvMsg<B>) -> Result<Op, PostError<B>> {
        let RecvMsg { buffer, source, tag, part } = message;
        if let Err(error) = self.check_source(source, tag.is_some()) {
            return Err(PostError { error, buffer });
        }
        // SAFETY: one receive into the memory of a `BufferMut`. The flags given here replace `rx_attr.op_flags`, so it
        // is not a multi-receive, and ends with one completion.
        unsafe {
            self.transfer(buffer, part, |endpoint, buf, context| {
                let op = ReceiveOp { buf, source, context, flags: OpFlags::COMPLETION, call: Call::Msg };
                match tag {
                    Some(tag) => endpoint.receive_tagged(&op, tag),
                    None => endpoint.receive(&op),
                }
            })
        }
    }

    pub fn recv_multi(
        self,
        buffer: MultiRecvBuffer,
        tag: Option<TagMatch>,
    ) -> Result<Op, PostError<MultiRecvBuffer>> {
        let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
        // SAFETY: one multi-receive into the memory of a `BufferMut`.
        unsafe {
            self.transfer_multi(buffer, |endpoint, buf, context| {
                let op = ReceiveOp { buf, source: FiAddr::UNSPEC, context, flags, call: Call::Msg };
                match tag {
                    Some(tag) => endpoint.receive_tagged(&op, tag),
                    None => endpoint.receive(&op),
                }
            })
        }
    }

    pub fn look(self, claim: bool, source: FiAddr, tag: TagMatch, flags: OpFlags) -> Result<Op> {
        self.check_source(source, true)?;
        self.search(claim, |endpoint, context| {
            let op = ReceiveOp { buf: Lent::EMPTY, source, context, flags, call: Call::Msg };
            endpoint.receive_tagged(&op, tag)
        })
    }

    pub fn claim<B: BufferMut>(self, claim: Claim, buffer: B) -> Result<Op, PostError<(Claim, B)>> {
        let flags = OpFlags::CLAIM | OpFlags::COMPLETION;
        // SAFETY: one receive into the memory of a `BufferMut`, with one completion.
        unsafe {
            self.transfer_claimed(claim, buffer, |endpoint, buf, context| {
                let op = ReceiveOp { buf, source: FiAddr::UNSPEC, context, flags, call: Call::Msg };
                endpoint.receive_tagged(&op, TagMatch::default())
            })
        }
    }

    pub fn discard_claimed(self, claim: Claim) -> Result<Op, PostError<Claim>> {
        let flags = OpFlags::CLAIM | OpFlags::DISCARD;
        self.search_claimed(claim, |endpoint, context| {
            let op = ReceiveOp { buf: Lent::EMPTY, source: FiAddr::UNSPEC, context, flags, call: Call::Msg };
            endpoint.receive_tagged(&op, TagMatch::default())
        })
    }

    /// Cancels a receive of this table.
    pub fn cancel(self, op: Op) -> Result<()> {
        if !self.operations.lock().contains(op) {
            return Err(Error::wanted(
                Errno::ENOENT,
                "the operation to cancel",
                "one of this node, or of this shared context, that is in flight",
                format!("{op:?}, which is not"),
                "no action needed: its completion has been read",
            ));
        }
        self.endpoint.cancel(op.context())
    }
}
