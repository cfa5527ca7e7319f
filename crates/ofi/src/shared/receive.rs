//! Receive contexts that nodes share: the public type.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use ofi_api::{FiAddr, OpFlags, Result, TagMatch};
use ofi_core::lock::Lock;

use super::Shared;
use crate::any_buffer::AnyBuffer;
use crate::buffer::BufferMut;
use crate::domain::Domain;
use crate::multi_recv::MultiRecvBuffer;
use crate::op::{Claim, Op};
use crate::operations::Operations;
use crate::request::{PostError, RecvMsg};
use crate::threading::{Level, Safe};

impl<L: Level> Domain<L> {
    /// Opens a receive context for nodes to share: see [`SharedReceive`].
    ///
    /// # Errors
    /// `FI_ENOSYS` if the transport has no shared receive contexts.
    pub fn shared_receive(&self) -> Result<SharedReceive<L>> {
        SharedReceive::open(self)
    }
}

/// A receive context that several nodes of a domain share (`fi_srx_context`): a receive takes a message to any of the
/// nodes. Many nodes then need only one pool of buffers.
///
/// Receives are posted here. Each completes in the queue of the node that received its message: in [`Node::poll`],
/// [`Node::wait`], or as an [event](crate::AsyncNode::event) of an [`AsyncNode`]. Completions that concern no node,
/// such as cancelled receives and unsuccessful peeks, go to the queue of the node that was opened first.
///
/// Its nodes share one address vector, which the first of them configures. The context stays open while it or one of
/// its nodes exists. A node that closes discards the messages that it has received and not returned. Any thread may use
/// the context, whatever the level of the domain.
///
/// ```
/// use std::time::Duration;
/// use ofi::{Domain, Hints, Node};
///
/// let hints = Hints::new().provider("shm");
/// let receives = Domain::open(&hints)?.shared_receive()?;
/// let red = Node::builder().shared_receive(&receives).open()?;
/// let blue = Node::builder().shared_receive(&receives).open()?;
/// for _ in 0..2 {
///     receives.recv(vec![0; 64])?;
/// }
/// let sender = Node::open(&hints)?;
/// let to_blue = sender.insert(&blue.name()?)?;
/// sender.inject(b"hello, blue", to_blue)?;
/// let message = blue.wait(Duration::from_secs(5))?.expect("within five seconds").into_result()?;
/// assert_eq!(message.bytes(), b"hello, blue");
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// [`Node::poll`]: crate::Node::poll
/// [`Node::wait`]: crate::Node::wait
/// [`AsyncNode`]: crate::AsyncNode
pub struct SharedReceive<L: Level = Safe> {
    shared: Arc<Shared>,
    domain: Domain<L>,
}

impl<L: Level> SharedReceive<L> {
    fn open(domain: &Domain<L>) -> Result<Self> {
        let opened = domain.opened();
        let shared = Shared {
            endpoint: opened.raw.open_shared_receive(&opened.info.rx_attr)?,
            opened: Arc::clone(opened),
            vector: Mutex::new(None),
            operations: Lock::new(Operations::of_several_queues()),
            members: Mutex::default(),
            released: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), domain: domain.clone() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The domain of its nodes.
    pub fn domain(&self) -> &Domain<L> {
        &self.domain
    }

    /// Posts a receive for an untagged message to any of the nodes, as [`Node::recv`](crate::Node::recv).
    ///
    /// # Errors
    /// Those of [`Node::recv`](crate::Node::recv).
    pub fn recv<B: BufferMut>(&self, buffer: B) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer))
    }

    /// Posts a receive for a tagged message to any of the nodes, as [`Node::recv_tagged`](crate::Node::recv_tagged).
    ///
    /// # Errors
    /// Those of [`Node::recv_tagged`](crate::Node::recv_tagged).
    #[doc(alias = "fi_trecv")]
    pub fn recv_tagged<B: BufferMut>(&self, buffer: B, tag: u64, ignore: u64) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).tag(tag, ignore))
    }

    /// Posts a receive with all options, as [`Node::recv_message`](crate::Node::recv_message). A source is a number of
    /// the nodes' address vector.
    ///
    /// # Errors
    /// Those of [`Node::recv_message`](crate::Node::recv_message); `FI_ENOAV` for a source before the first node is
    /// opened.
    #[doc(alias = "fi_recvmsg")]
    pub fn recv_message<B: BufferMut>(&self, message: RecvMsg<B>) -> Result<Op, PostError<B>> {
        self.shared.desk().recv_message(message)
    }

    /// Posts a receive for an untagged message from `source`, a number of the nodes' address vector, as
    /// [`Node::recv_from`](crate::Node::recv_from).
    ///
    /// # Errors
    /// As [`SharedReceive::recv_message`].
    pub fn recv_from<B: BufferMut>(&self, buffer: B, source: FiAddr) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).source(source))
    }

    /// Posts a receive for a tagged message from `source`, as
    /// [`Node::recv_tagged_from`](crate::Node::recv_tagged_from).
    ///
    /// # Errors
    /// As [`SharedReceive::recv_message`].
    pub fn recv_tagged_from<B: BufferMut>(
        &self,
        buffer: B,
        source: FiAddr,
        tag: u64,
        ignore: u64,
    ) -> Result<Op, PostError<B>> {
        self.recv_message(RecvMsg::new(buffer).source(source).tag(tag, ignore))
    }

    /// Posts a buffer that takes successive untagged messages to any of the nodes, as
    /// [`Node::recv_multi`](crate::Node::recv_multi). Each message is a completion of its node. The completion that is
    /// [`released`](crate::Completion::released) returns the buffer, but other nodes may have unread messages in it: it
    /// can be posted again once it [is unused](MultiRecvBuffer::is_unused), which requires polling each node until its
    /// queue is empty.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ofi::{Domain, Hints, MultiRecvBuffer, Node};
    ///
    /// let hints = Hints::new().provider("shm");
    /// let receives = Domain::open(&hints)?.shared_receive()?;
    /// let red = Node::builder().shared_receive(&receives).open()?;
    /// let blue = Node::builder().shared_receive(&receives).open()?;
    /// receives.recv_multi(MultiRecvBuffer::new(vec![0; 64 * 1024]))?;
    /// let sender = Node::open(&hints)?;
    /// for (node, text) in [(&red, "for red"), (&blue, "for blue"), (&red, "red again")] {
    ///     sender.inject(text.as_bytes(), sender.insert(&node.name()?)?)?;
    ///     let message = node.wait(Duration::from_secs(5))?.expect("within five seconds").into_result()?;
    ///     assert_eq!(message.bytes(), text.as_bytes());
    /// }
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::recv_multi`](crate::Node::recv_multi).
    pub fn recv_multi(&self, buffer: MultiRecvBuffer) -> Result<Op, PostError<MultiRecvBuffer>> {
        self.shared.desk().recv_multi(buffer, None)
    }

    /// Posts a buffer that takes successive tagged messages: see [`SharedReceive::recv_multi`].
    ///
    /// # Errors
    /// Those of [`SharedReceive::recv_multi`].
    pub fn recv_multi_tagged(
        &self,
        buffer: MultiRecvBuffer,
        tag: u64,
        ignore: u64,
    ) -> Result<Op, PostError<MultiRecvBuffer>> {
        self.shared.desk().recv_multi(buffer, Some(TagMatch { tag, ignore }))
    }

    /// Looks for a tagged message to any of the nodes, as [`Node::peek`](crate::Node::peek).
    ///
    /// # Errors
    /// Those of [`Node::peek`](crate::Node::peek); `FI_EOPBADSTATE` before the first node is opened.
    pub fn peek(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, FiAddr::UNSPEC, tag, ignore, OpFlags::PEEK)
    }

    /// As [`SharedReceive::peek`], for messages from `source`, a number of the nodes' address vector.
    ///
    /// # Errors
    /// Those of [`SharedReceive::peek`], and as [`SharedReceive::recv_message`] about the source.
    pub fn peek_from(&self, source: FiAddr, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, source, tag, ignore, OpFlags::PEEK)
    }

    /// As [`SharedReceive::peek`], and claims the message, as [`Node::peek_claim`](crate::Node::peek_claim).
    ///
    /// # Errors
    /// Those of [`Node::peek_claim`](crate::Node::peek_claim).
    pub fn peek_claim(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(true, FiAddr::UNSPEC, tag, ignore, OpFlags::PEEK | OpFlags::CLAIM)
    }

    /// As [`SharedReceive::peek_claim`], for messages from `source`.
    ///
    /// # Errors
    /// As [`SharedReceive::peek_from`].
    pub fn peek_claim_from(&self, source: FiAddr, tag: u64, ignore: u64) -> Result<Op> {
        self.look(true, source, tag, ignore, OpFlags::PEEK | OpFlags::CLAIM)
    }

    /// As [`SharedReceive::peek`], and drops the message, as [`Node::discard`](crate::Node::discard).
    ///
    /// # Errors
    /// Those of [`Node::discard`](crate::Node::discard).
    pub fn discard(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, FiAddr::UNSPEC, tag, ignore, OpFlags::PEEK | OpFlags::DISCARD)
    }

    /// As [`SharedReceive::discard`], for messages from `source`.
    ///
    /// # Errors
    /// As [`SharedReceive::peek_from`].
    pub fn discard_from(&self, source: FiAddr, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, source, tag, ignore, OpFlags::PEEK | OpFlags::DISCARD)
    }

    fn look(&self, claim: bool, source: FiAddr, tag: u64, ignore: u64, flags: OpFlags) -> Result<Op> {
        self.shared.desk().look(claim, source, TagMatch { tag, ignore }, flags)
    }

    /// Receives a claimed message, as [`Node::claim`](crate::Node::claim).
    ///
    /// # Errors
    /// Those of [`Node::claim`](crate::Node::claim); `FI_EINVAL` if its node has closed, which discarded the message.
    pub fn claim<B: BufferMut>(&self, claim: Claim, buffer: B) -> Result<Op, PostError<(Claim, B)>> {
        self.shared.desk().claim(claim, buffer)
    }

    /// Drops a claimed message, as [`Node::discard_claimed`](crate::Node::discard_claimed).
    ///
    /// # Errors
    /// Those of [`Node::discard_claimed`](crate::Node::discard_claimed).
    pub fn discard_claimed(&self, claim: Claim) -> Result<Op, PostError<Claim>> {
        self.shared.desk().discard_claimed(claim)
    }

    /// Cancels a receive, as [`Node::cancel`](crate::Node::cancel).
    ///
    /// # Errors
    /// Those of [`Node::cancel`](crate::Node::cancel).
    pub fn cancel(&self, op: Op) -> Result<()> {
        self.shared.desk().cancel(op)
    }

    /// Number of its operations in flight, including claimed messages.
    pub fn in_flight(&self) -> usize {
        let released = self.shared.members().released.len();
        self.shared.operations.lock().len() - released
    }

    /// Closes the context, if it has no nodes left, and returns the buffers of pending receives.
    ///
    /// # Errors
    /// Returns the value itself while nodes of it are open.
    pub fn close(self) -> Result<Vec<AnyBuffer>, Self> {
        let Self { shared, domain } = self;
        match Arc::try_unwrap(shared) {
            Ok(Shared { endpoint, operations, .. }) => {
                drop(endpoint);
                Ok(operations.lock().drain())
            }
            Err(shared) => Err(Self { shared, domain }),
        }
    }
}

impl<L: Level> fmt::Debug for SharedReceive<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SharedReceive");
        debug.field("domain", &self.domain).field("in_flight", &self.in_flight()).finish()
    }
}
