//! Untagged messages, and code that tagged messages share.

use ofi_api::{Call, Context, FiAddr, Lent, OpFlags, Piece, Result, SendOp};

use super::Node;
use crate::buffer::{Buffer, BufferMut};
use crate::multi_recv::MultiRecvBuffer;
use crate::op::Op;
use crate::request::{Part, PostError, RecvMsg, SendMsg};
use crate::threading::Level;

/// The arguments of a send, except its memory.
#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    pub dest: FiAddr,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub flags: OpFlags,
    pub call: Call,
}

impl Outgoing {
    fn post(self, endpoint: &dyn ofi_api::Endpoint, buf: Lent<'_>, context: Context) -> Result<()> {
        let Self { dest, tag, data, mut flags, call } = self;
        flags |= data.map_or(OpFlags::empty(), |_| OpFlags::REMOTE_CQ_DATA);
        let op = SendOp { buf, dest, context, data: data.unwrap_or(0), flags, call };
        match tag {
            Some(tag) => endpoint.send_tagged(&op, tag),
            None => endpoint.send(&op),
        }
    }
}

impl<L: Level> Node<L> {
    pub(super) fn post_send<B: Buffer>(
        &self,
        buffer: B,
        part: Part,
        out: Outgoing,
    ) -> Result<Op, PostError<B>> {
        // SAFETY: one send, which only reads the memory. It is not an inject, so it ends with one completion.
        unsafe {
            self.desk().transfer(buffer, part, |endpoint, lent, context| out.post(endpoint, lent, context))
        }
    }

    pub(super) fn post_inject(&self, bytes: &[u8], out: Outgoing) -> Result<()> {
        let pieces = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
        // SAFETY: an injected send only reads the memory, and only until it returns.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        Outgoing { call: Call::Inject, ..out }.post(&*self.endpoint, lent, Context::NULL)
    }

    /// Sends a message (`fi_send`). `tx_attr.op_flags`, fixed when the node opens, decides what its completion
    /// guarantees.
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: poll, then try again. `FI_EMSGSIZE`, `FI_EINVAL` for an unknown peer.
    #[doc(alias = "fi_send")]
    pub fn send<B: Buffer>(&self, buffer: B, dest: FiAddr) -> Result<Op, PostError<B>> {
        self.post_send(buffer, Part::ALL, Outgoing::plain(dest, None, None))
    }

    /// Sends a message with remote CQ data (`fi_senddata`).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_senddata")]
    pub fn send_with_data<B: Buffer>(&self, buffer: B, data: u64, dest: FiAddr) -> Result<Op, PostError<B>> {
        self.post_send(buffer, Part::ALL, Outgoing::plain(dest, None, Some(data)))
    }

    /// Sends a message, tagged or not, with all options (`fi_sendmsg`, `fi_tsendmsg`).
    ///
    /// # Errors
    /// As [`Node::send`]; `FI_EINVAL` for a range beyond the buffer, `FI_EBADFLAGS`.
    #[doc(alias = "fi_sendmsg")]
    pub fn send_message<B: Buffer>(&self, message: SendMsg<B>) -> Result<Op, PostError<B>> {
        let SendMsg { buffer, dest, tag, data, part, flags } = message;
        let out = Outgoing { dest, tag, data, flags: flags | OpFlags::COMPLETION, call: Call::Msg };
        self.post_send(buffer, part, out)
    }

    /// Sends a short message without a completion (`fi_inject`): up to `tx_attr.inject_size` bytes, which are copied,
    /// so the caller keeps its buffer. A later failure is reported as a completion without
    /// [`op`](crate::Completion::op).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_inject")]
    pub fn inject(&self, bytes: &[u8], dest: FiAddr) -> Result<()> {
        self.post_inject(bytes, Outgoing::plain(dest, None, None))
    }

    /// [`Node::inject`] with remote CQ data (`fi_injectdata`).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_injectdata")]
    pub fn inject_with_data(&self, bytes: &[u8], data: u64, dest: FiAddr) -> Result<()> {
        self.post_inject(bytes, Outgoing::plain(dest, None, Some(data)))
    }

    /// Posts a receive for an untagged message from any sender (`fi_recv`). A longer message fails with `FI_ETRUNC`.
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: poll, then try again.
    #[doc(alias = "fi_recv")]
    pub fn recv<B: BufferMut>(&self, buffer: B) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer))
    }

    /// Posts a receive for an untagged message from `source` (`FI_DIRECTED_RECV`).
    ///
    /// # Errors
    /// As [`Node::recv`]; `FI_EOPNOTSUPP` without the capability, `FI_EINVAL` for an unknown peer.
    pub fn recv_from<B: BufferMut>(&self, buffer: B, source: FiAddr) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).source(source))
    }

    /// Posts a receive, tagged or not, with all options (`fi_recvmsg`, `fi_trecvmsg`).
    ///
    /// # Errors
    /// As [`Node::recv_from`]; `FI_EINVAL` for a range beyond the buffer.
    #[doc(alias = "fi_recvmsg")]
    pub fn recv_message<B: BufferMut>(&self, message: RecvMsg<B>) -> Result<Op, PostError<B>> {
        self.receiving().recv_message(message)
    }

    /// Posts a buffer that takes successive untagged messages (`FI_MULTI_RECV`), until fewer than
    /// [`EpOption::MinMultiRecv`](crate::EpOption) bytes of it are free. Each message has a completion with its
    /// [`range`](crate::Completion::range); the last one also returns the buffer, in
    /// [`released`](crate::Completion::released).
    ///
    /// # Errors
    /// As [`Node::recv`]; `FI_EBUSY` while ranges of the buffer exist.
    pub fn recv_multi(&self, buffer: MultiRecvBuffer) -> Result<Op, PostError<MultiRecvBuffer>> {
        self.receiving().recv_multi(buffer, None)
    }
}

impl Outgoing {
    /// The arguments of a call without flags.
    pub(super) const fn plain(dest: FiAddr, tag: Option<u64>, data: Option<u64>) -> Self {
        Self { dest, tag, data, flags: OpFlags::empty(), call: Call::Plain }
    }
}
