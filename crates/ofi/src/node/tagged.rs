//! Tagged messages, and peeking at them before receiving.

use ofi_api::{FiAddr, OpFlags, Result, TagMatch};

use super::Node;
use super::message::Outgoing;
use crate::buffer::{Buffer, BufferMut};
use crate::multi_recv::MultiRecvBuffer;
use crate::op::{Claim, Op};
use crate::request::{Part, PostError, RecvMsg};
use crate::threading::Level;

impl<L: Level> Node<L> {
    /// Sends a tagged message (`fi_tsend`).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_tsend")]
    pub fn send_tagged<B: Buffer>(&self, buffer: B, dest: FiAddr, tag: u64) -> Result<Op, PostError<B>> {
        self.post_send(buffer, Part::ALL, Outgoing::plain(dest, Some(tag), None))
    }

    /// Sends a tagged message with remote CQ data (`fi_tsenddata`).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_tsenddata")]
    pub fn send_tagged_with_data<B: Buffer>(
        &self,
        buffer: B,
        data: u64,
        dest: FiAddr,
        tag: u64,
    ) -> Result<Op, PostError<B>> {
        self.post_send(buffer, Part::ALL, Outgoing::plain(dest, Some(tag), Some(data)))
    }

    /// Sends a short tagged message without a completion (`fi_tinject`): see [`Node::inject`].
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_tinject")]
    pub fn inject_tagged(&self, bytes: &[u8], dest: FiAddr, tag: u64) -> Result<()> {
        self.post_inject(bytes, Outgoing::plain(dest, Some(tag), None))
    }

    /// [`Node::inject_tagged`] with remote CQ data (`fi_tinjectdata`).
    ///
    /// # Errors
    /// As [`Node::send`].
    #[doc(alias = "fi_tinjectdata")]
    pub fn inject_tagged_with_data(&self, bytes: &[u8], data: u64, dest: FiAddr, tag: u64) -> Result<()> {
        self.post_inject(bytes, Outgoing::plain(dest, Some(tag), Some(data)))
    }

    /// Posts a receive for a tagged message from any sender (`fi_trecv`). Bits set in `ignore` are not compared with
    /// `tag`.
    ///
    /// # Errors
    /// As [`Node::recv`].
    #[doc(alias = "fi_trecv")]
    pub fn recv_tagged<B: BufferMut>(&self, buffer: B, tag: u64, ignore: u64) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).tag(tag, ignore))
    }

    /// Posts a receive for a tagged message from `source`.
    ///
    /// # Errors
    /// As [`Node::recv_from`].
    pub fn recv_tagged_from<B: BufferMut>(
        &self,
        buffer: B,
        source: FiAddr,
        tag: u64,
        ignore: u64,
    ) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).source(source).tag(tag, ignore))
    }

    /// Posts a buffer that takes successive tagged messages: see [`Node::recv_multi`].
    ///
    /// # Errors
    /// As [`Node::recv_multi`].
    pub fn recv_multi_tagged(
        &self,
        buffer: MultiRecvBuffer,
        tag: u64,
        ignore: u64,
    ) -> Result<Op, PostError<MultiRecvBuffer>> {
        self.receiving().recv_multi(buffer, Some(TagMatch { tag, ignore }))
    }

    /// Looks for a tagged message that has arrived and that no receive has matched (`FI_PEEK`). The completion has its
    /// tag, length, source and data, or fails with `FI_ENOMSG`.
    ///
    /// # Errors
    /// As [`Node::recv`].
    pub fn peek(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.receiving().look(false, FiAddr::UNSPEC, TagMatch { tag, ignore }, OpFlags::PEEK)
    }

    /// As [`Node::peek`], for messages from `source`.
    ///
    /// # Errors
    /// As [`Node::recv_from`].
    pub fn peek_from(&self, source: FiAddr, tag: u64, ignore: u64) -> Result<Op> {
        self.receiving().look(false, source, TagMatch { tag, ignore }, OpFlags::PEEK)
    }

    /// As [`Node::peek`], and claims the message (`FI_PEEK | FI_CLAIM`): the completion has a
    /// [`claim`](crate::Completion::claim) to it.
    ///
    /// # Errors
    /// As [`Node::recv`].
    pub fn peek_claim(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.receiving().look(true, FiAddr::UNSPEC, TagMatch { tag, ignore }, OpFlags::PEEK | OpFlags::CLAIM)
    }

    /// As [`Node::peek`], and drops the message (`FI_PEEK | FI_DISCARD`).
    ///
    /// # Errors
    /// As [`Node::recv`].
    pub fn discard(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.receiving().look(
            false,
            FiAddr::UNSPEC,
            TagMatch { tag, ignore },
            OpFlags::PEEK | OpFlags::DISCARD,
        )
    }

    /// Receives a claimed message (`FI_CLAIM`).
    ///
    /// # Errors
    /// As [`Node::recv`], with the claim and the buffer; `FI_EINVAL` for another node's claim.
    pub fn claim<B: BufferMut>(&self, claim: Claim, buffer: B) -> Result<Op, PostError<(Claim, B)>> {
        self.receiving().claim(claim, buffer)
    }

    /// Drops a claimed message (`FI_CLAIM | FI_DISCARD`).
    ///
    /// # Errors
    /// As [`Node::claim`].
    pub fn discard_claimed(&self, claim: Claim) -> Result<Op, PostError<Claim>> {
        self.receiving().discard_claimed(claim)
    }
}
