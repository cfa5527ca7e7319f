//! The operations of `Node`, as futures.

use ofi_api::{AtomicKind, Errno, Error, FiAddr, FiOp, Result};
use ofi_core::slots::SlotId;

use super::AsyncNode;
use super::operation::{Operation, Transferred, completed, fetched, transferred};
use super::table::{Attempt, Chores, Ended, Given, WaitingLine};
use crate::buffer::{Buffer, BufferMut};
use crate::completion::Completion;
use crate::element::Element;
use crate::multi_recv::MultiRecvBuffer;
use crate::node::Node;
use crate::op::{Claim, Op};
use crate::remote::RemoteWindow;
use crate::request::{PostError, RecvMsg, RmaMsg, SendMsg};
use crate::threading::Level;

/// The buffer of an operation, which is returned if posting fails.
pub(super) trait Load: Send + 'static {
    fn into_given(self) -> Given;
}

impl<B: Buffer> Load for B {
    fn into_given(self) -> Given {
        Given::Buffer(self.into())
    }
}

impl Load for () {
    fn into_given(self) -> Given {
        Given::Nothing
    }
}

impl Load for MultiRecvBuffer {
    fn into_given(self) -> Given {
        Given::Multi(self)
    }
}

impl Load for Claim {
    fn into_given(self) -> Given {
        Given::Nothing
    }
}

impl<B: Buffer> Load for (Claim, B) {
    fn into_given(self) -> Given {
        Given::Buffer(self.1.into())
    }
}

impl<L: Level> AsyncNode<L> {
    /// Starts an operation: `post` posts it, and is called again until there is room.
    pub(super) fn start<T, B: Load>(
        &self,
        line: WaitingLine,
        buffer: B,
        post: impl FnMut(&Node<L>, B) -> Result<Op, PostError<B>> + Send + 'static,
        finish: fn(Ended) -> T,
    ) -> Operation<'_, T, L> {
        Operation::new(self, self.begin(line, buffer, post), finish)
    }

    /// As [`AsyncNode::start`]. Returns the operation's slot in the table.
    pub(super) fn begin<B: Load>(
        &self,
        line: WaitingLine,
        buffer: B,
        mut post: impl FnMut(&Node<L>, B) -> Result<Op, PostError<B>> + Send + 'static,
    ) -> SlotId {
        let mut held = Some(buffer);
        let retry = move |node: Option<&Node<L>>| {
            let given = |buffer: Option<B>| buffer.map_or(Given::Nothing, Load::into_given);
            let refused = |error, buffer: Option<B>| Attempt::Refused(error, given(buffer));
            let (node, buffer) = match (node, held.take()) {
                (Some(node), Some(buffer)) => (node, buffer),
                (_, buffer) => return refused(Error::new(Errno::ECANCELED), buffer),
            };
            match post(node, buffer) {
                Ok(op) => Attempt::Posted(op),
                Err(rejected) if rejected.is_again() => {
                    held = Some(rejected.buffer);
                    Attempt::Again
                }
                Err(PostError { error, buffer }) => refused(error, Some(buffer)),
            }
        };
        let mut chores = Chores::default();
        let id = self.table().start(&self.inner.node, line, retry, &mut chores);
        chores.run();
        id
    }

    /// Sends a message, as [`Node::send`].
    pub fn send<B: Buffer>(&self, buffer: B, dest: FiAddr) -> Operation<'_, Transferred<B>, L> {
        self.start(WaitingLine::To(dest), buffer, move |node, buffer| node.send(buffer, dest), transferred)
    }

    /// Sends a message with remote CQ data, as [`Node::send_with_data`].
    #[doc(alias = "fi_senddata")]
    pub fn send_with_data<B: Buffer>(
        &self,
        buffer: B,
        data: u64,
        dest: FiAddr,
    ) -> Operation<'_, Transferred<B>, L> {
        self.start(
            WaitingLine::To(dest),
            buffer,
            move |node, buffer| node.send_with_data(buffer, data, dest),
            transferred,
        )
    }

    /// Sends a tagged message, as [`Node::send_tagged`].
    #[doc(alias = "fi_tsend")]
    pub fn send_tagged<B: Buffer>(
        &self,
        buffer: B,
        dest: FiAddr,
        tag: u64,
    ) -> Operation<'_, Transferred<B>, L> {
        self.start(
            WaitingLine::To(dest),
            buffer,
            move |node, buffer| node.send_tagged(buffer, dest, tag),
            transferred,
        )
    }

    /// Sends a tagged message with remote CQ data, as [`Node::send_tagged_with_data`].
    #[doc(alias = "fi_tsenddata")]
    pub fn send_tagged_with_data<B: Buffer>(
        &self,
        buffer: B,
        data: u64,
        dest: FiAddr,
        tag: u64,
    ) -> Operation<'_, Transferred<B>, L> {
        let post = move |node: &Node<L>, buffer| node.send_tagged_with_data(buffer, data, dest, tag);
        self.start(WaitingLine::To(dest), buffer, post, transferred)
    }

    /// Sends a message, tagged or not, with all options, as [`Node::send_message`].
    #[doc(alias = "fi_sendmsg")]
    pub fn send_message<B: Buffer>(&self, message: SendMsg<B>) -> Operation<'_, Transferred<B>, L> {
        let SendMsg { buffer, dest, tag, data, part, flags } = message;
        let post =
            move |node: &Node<L>, buffer| node.send_message(SendMsg { buffer, dest, tag, data, part, flags });
        self.start(WaitingLine::To(dest), buffer, post, transferred)
    }

    /// Receives an untagged message from any sender, as [`Node::recv`].
    pub fn recv<B: BufferMut>(&self, buffer: B) -> Operation<'_, Transferred<B>, L> {
        self.recv_message(RecvMsg::new(buffer))
    }

    /// Receives an untagged message from `source`, as [`Node::recv_from`].
    pub fn recv_from<B: BufferMut>(&self, buffer: B, source: FiAddr) -> Operation<'_, Transferred<B>, L> {
        self.recv_message(RecvMsg::new(buffer).source(source))
    }

    /// Receives a tagged message from any sender, as [`Node::recv_tagged`].
    #[doc(alias = "fi_trecv")]
    pub fn recv_tagged<B: BufferMut>(
        &self,
        buffer: B,
        tag: u64,
        ignore: u64,
    ) -> Operation<'_, Transferred<B>, L> {
        self.recv_message(RecvMsg::new(buffer).tag(tag, ignore))
    }

    /// Receives a tagged message from `source`, as [`Node::recv_tagged_from`].
    pub fn recv_tagged_from<B: BufferMut>(
        &self,
        buffer: B,
        source: FiAddr,
        tag: u64,
        ignore: u64,
    ) -> Operation<'_, Transferred<B>, L> {
        self.recv_message(RecvMsg::new(buffer).source(source).tag(tag, ignore))
    }

    /// Receives a message, tagged or not, with all options, as [`Node::recv_message`].
    #[doc(alias = "fi_recvmsg")]
    pub fn recv_message<B: BufferMut>(&self, message: RecvMsg<B>) -> Operation<'_, Transferred<B>, L> {
        let RecvMsg { buffer, source, tag, part } = message;
        let post = move |node: &Node<L>, buffer| node.recv_message(RecvMsg { buffer, source, tag, part });
        self.start(WaitingLine::Receive, buffer, post, transferred)
    }

    /// Looks for a tagged message that has arrived and that no receive has matched, as [`Node::peek`]. Fails with
    /// `FI_ENOMSG` if there is none.
    pub fn peek(&self, tag: u64, ignore: u64) -> Operation<'_, Result<Completion>, L> {
        self.bare(WaitingLine::Receive, move |node| node.peek(tag, ignore), completed)
    }

    /// Reads a peer's memory into the buffer, as [`Node::read`].
    pub fn read<B: BufferMut>(
        &self,
        buffer: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Transferred<B>, L> {
        let post = move |node: &Node<L>, buffer| node.read(buffer, peer, remote);
        self.start(WaitingLine::To(peer), buffer, post, transferred)
    }

    /// Reads with all choices, as [`Node::read_message`].
    #[doc(alias = "fi_readmsg")]
    pub fn read_message<B: BufferMut>(&self, message: RmaMsg<B>) -> Operation<'_, Transferred<B>, L> {
        let RmaMsg { buffer, peer, remote, data, part, flags } = message;
        let post = move |node: &Node<L>, buffer| {
            node.read_message(RmaMsg { buffer, peer, remote, data, part, flags })
        };
        self.start(WaitingLine::To(peer), buffer, post, transferred)
    }

    /// Writes the buffer to a peer's memory, as [`Node::write`].
    pub fn write<B: Buffer>(
        &self,
        buffer: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Transferred<B>, L> {
        let post = move |node: &Node<L>, buffer| node.write(buffer, peer, remote);
        self.start(WaitingLine::To(peer), buffer, post, transferred)
    }

    /// Writes, and gives the peer an [event](AsyncNode::event) with `data`, as [`Node::write_with_data`].
    #[doc(alias = "fi_writedata")]
    pub fn write_with_data<B: Buffer>(
        &self,
        buffer: B,
        data: u64,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Transferred<B>, L> {
        let post = move |node: &Node<L>, buffer| node.write_with_data(buffer, data, peer, remote);
        self.start(WaitingLine::To(peer), buffer, post, transferred)
    }

    /// Writes with all choices, as [`Node::write_message`].
    #[doc(alias = "fi_writemsg")]
    pub fn write_message<B: Buffer>(&self, message: RmaMsg<B>) -> Operation<'_, Transferred<B>, L> {
        let RmaMsg { buffer, peer, remote, data, part, flags } = message;
        let post = move |node: &Node<L>, buffer| {
            node.write_message(RmaMsg { buffer, peer, remote, data, part, flags })
        };
        self.start(WaitingLine::To(peer), buffer, post, transferred)
    }

    /// Starts an operation without a buffer.
    pub(super) fn bare<T>(
        &self,
        line: WaitingLine,
        mut post: impl FnMut(&Node<L>) -> Result<Op> + Send + 'static,
        finish: fn(Ended) -> T,
    ) -> Operation<'_, T, L> {
        self.start(
            line,
            (),
            move |node, ()| post(node).map_err(|error| PostError { error, buffer: () }),
            finish,
        )
    }

    /// The maximum number of elements of type `T` that one call changes, as [`Node::atomic_valid`].
    ///
    /// # Errors
    /// Those of [`Node::atomic_valid`].
    pub fn atomic_valid<T: Element>(&self, kind: AtomicKind, op: FiOp) -> Result<usize> {
        self.inner.node.atomic_valid::<T>(kind, op)
    }

    /// Changes numbers in a peer's memory, as [`Node::atomic`].
    pub fn atomic<T: Element>(
        &self,
        op: FiOp,
        operands: &[T],
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Result<Completion>, L> {
        let operands = operands.to_vec();
        self.bare(WaitingLine::To(peer), move |node| node.atomic(op, &operands, peer, remote), completed)
    }

    /// Adds to a number in a peer's memory and returns the old value, as [`Node::fetch_add`].
    pub fn fetch_add<T: Element>(
        &self,
        value: T,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Result<T>, L> {
        self.bare(WaitingLine::To(peer), move |node| node.fetch_add(value, peer, remote), fetched)
    }

    /// Replaces a number in a peer's memory if it equals `expected`, and returns the old value, as
    /// [`Node::compare_swap`].
    pub fn compare_swap<T: Element>(
        &self,
        expected: T,
        new: T,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Result<T>, L> {
        self.bare(WaitingLine::To(peer), move |node| node.compare_swap(expected, new, peer, remote), fetched)
    }

    /// Changes numbers and fetches the old values into `result`, as [`Node::fetch_atomic`].
    pub fn fetch_atomic<T: Element, B: BufferMut>(
        &self,
        op: FiOp,
        operands: &[T],
        result: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Transferred<B>, L> {
        let operands = operands.to_vec();
        let post = move |node: &Node<L>, result| node.fetch_atomic(op, &operands, result, peer, remote);
        self.start(WaitingLine::To(peer), result, post, transferred)
    }

    /// Changes the numbers for which a comparison holds, and fetches the old values, as [`Node::compare_atomic`].
    pub fn compare_atomic<T: Element, B: BufferMut>(
        &self,
        op: FiOp,
        operands: &[T],
        compare: &[T],
        result: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Operation<'_, Transferred<B>, L> {
        let (operands, compare) = (operands.to_vec(), compare.to_vec());
        let post =
            move |node: &Node<L>, result| node.compare_atomic(op, &operands, &compare, result, peer, remote);
        self.start(WaitingLine::To(peer), result, post, transferred)
    }
}
