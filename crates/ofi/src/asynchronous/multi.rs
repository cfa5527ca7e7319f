//! Multi-receives as streams of messages, and messages claimed by a peek.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ofi_api::Result;
use ofi_core::slots::SlotId;

use super::AsyncNode;
use super::operation::{Failed, Operation, Transferred, completed, poll_table, transferred};
use super::table::{Ended, Given, WaitingLine};
use crate::buffer::BufferMut;
use crate::completion::Completion;
use crate::multi_recv::MultiRecvBuffer;
use crate::node::Node;
use crate::op::Claim;
use crate::threading::{Level, Safe};

/// A stream of the messages that fill one buffer. The last message, whose completion is
/// [`released`](Completion::released), returns the buffer, and the stream ends after it. Messages are kept until they
/// are fetched.
///
/// ```
/// use ofi::{AsyncNode, Hints, MultiRecvBuffer};
///
/// let hints = Hints::new().provider("shm");
/// let (alice, bob) = (AsyncNode::open(&hints)?, AsyncNode::open(&hints)?);
/// let to_bob = alice.insert(&bob.name()?)?;
/// alice.block_on(async {
///     let mut messages = bob.recv_multi(MultiRecvBuffer::new(vec![0; 100_000]));
///     for text in [&b"one"[..], b"two"] {
///         alice.send(text, to_bob).await?;
///         let message = messages.next_message().await.expect("there is room for more")?;
///         assert_eq!(message.bytes(), text); // where it lies in the buffer
///     }
///     Ok::<(), ofi::Error>(())
/// })?;
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// Dropping it cancels the receive. Messages that have arrived but were not fetched are discarded and
/// [counted](AsyncNode::lost).
#[must_use = "dropping it cancels the receive"]
pub struct MultiRecv<'a, L: Level = Safe> {
    node: &'a AsyncNode<L>,
    id: SlotId,
    over: bool,
}

/// An item of a multi-receive: a message, or the error that ended the receive. A message that failed, for example
/// because it did not fit, is a completion with that result.
type Item = Result<Completion, Failed<MultiRecvBuffer>>;

impl<'a, L: Level> MultiRecv<'a, L> {
    /// The next message; `None` after the last. Dropping the future loses nothing.
    pub fn next_message(&mut self) -> NextMessage<'_, 'a, L> {
        NextMessage(self)
    }

    /// As the future of [`MultiRecv::next_message`], for streams of other crates.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let Poll::Ready(ended) = poll_table(self.node, self.id, context) else { return Poll::Pending };
        let failed = |error, buffer| Err(Failed { error, buffer, len: 0 });
        let item = match ended {
            Ended::Done(done) => {
                self.over = done.released.is_some();
                Ok(done)
            }
            Ended::Refused(error, given) => {
                self.over = true;
                failed(error, if let Given::Multi(buffer) = given { Some(buffer) } else { None })
            }
            Ended::Lost(error) => {
                self.over = true;
                failed(error, None)
            }
        };
        Poll::Ready(Some(item))
    }

    /// Cancels the receive (`fi_cancel`). The stream still yields the messages that arrived before, then the buffer
    /// with `FI_ECANCELED`. If a message is partly received, it is completed first, and the last such message returns
    /// the buffer.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self) {
        super::operation::cancel(self.node, self.id);
    }
}

#[cfg(feature = "futures")]
impl<L: Level> futures_core::Stream for MultiRecv<'_, L> {
    type Item = Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Item>> {
        self.get_mut().poll_next(context)
    }
}

impl<L: Level> Drop for MultiRecv<'_, L> {
    fn drop(&mut self) {
        if !self.over {
            super::operation::forget(self.node, self.id);
        }
    }
}

impl<L: Level> fmt::Debug for MultiRecv<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiRecv").field("over", &self.over).finish_non_exhaustive()
    }
}

/// The next message of a [`MultiRecv`].
#[must_use = "it does nothing unless it is awaited"]
pub struct NextMessage<'m, 'a, L: Level = Safe>(&'m mut MultiRecv<'a, L>);

impl<L: Level> Future for NextMessage<'_, '_, L> {
    type Output = Option<Item>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_next(context)
    }
}

impl<L: Level> fmt::Debug for NextMessage<'_, '_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NextMessage").field(&self.0).finish()
    }
}

impl<L: Level> AsyncNode<L> {
    /// Receives successive untagged messages into one buffer, as [`Node::recv_multi`].
    pub fn recv_multi(&self, buffer: MultiRecvBuffer) -> MultiRecv<'_, L> {
        let id = self.begin(WaitingLine::Receive, buffer, |node: &Node<L>, buffer| node.recv_multi(buffer));
        MultiRecv { node: self, id, over: false }
    }

    /// Receives successive tagged messages into one buffer, as [`Node::recv_multi_tagged`].
    pub fn recv_multi_tagged(&self, buffer: MultiRecvBuffer, tag: u64, ignore: u64) -> MultiRecv<'_, L> {
        let post = move |node: &Node<L>, buffer| node.recv_multi_tagged(buffer, tag, ignore);
        MultiRecv { node: self, id: self.begin(WaitingLine::Receive, buffer, post), over: false }
    }

    /// Looks for a tagged message and claims it, as [`Node::peek_claim`]: the result has a [`Claim`]. If the future is
    /// dropped after it has claimed a message, the message is discarded and [counted](AsyncNode::lost).
    pub fn peek_claim(&self, tag: u64, ignore: u64) -> Operation<'_, Result<Completion>, L> {
        self.bare(WaitingLine::Receive, move |node| node.peek_claim(tag, ignore), completed)
    }

    /// Receives a claimed message, as [`Node::claim`]. If the future is cancelled or dropped while it waits for room,
    /// the message stays claimed until the node is closed.
    pub fn claim<B: BufferMut>(&self, claim: Claim, buffer: B) -> Operation<'_, Transferred<B>, L> {
        let post = |node: &Node<L>, (claim, buffer)| node.claim(claim, buffer);
        self.start(WaitingLine::Receive, (claim, buffer), post, transferred)
    }

    /// Drops a claimed message, as [`Node::discard_claimed`].
    pub fn discard_claimed(&self, claim: Claim) -> Operation<'_, Result<Completion>, L> {
        self.start(
            WaitingLine::Receive,
            claim,
            |node: &Node<L>, claim| node.discard_claimed(claim),
            completed,
        )
    }

    /// Drops a tagged message that has arrived, as [`Node::discard`]. Fails with `FI_ENOMSG` if there is none.
    pub fn discard(&self, tag: u64, ignore: u64) -> Operation<'_, Result<Completion>, L> {
        self.bare(WaitingLine::Receive, move |node| node.discard(tag, ignore), completed)
    }
}
