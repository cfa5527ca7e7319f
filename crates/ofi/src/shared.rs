//! Contexts that nodes share: receives for whichever of them is sent to, and room for what all of them send.
//!
//! The receives of a shared context are operations of the context, not of a node: their buffers are in the context's table,
//! and a node looks up there what its queue says of receives.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{
    AddressVector, CompletionFlags, CompletionQueue, CqBuffer, CqErrorEntry, CqTaggedEntry, Endpoint, Errno,
    FiAddr, OpFlags, Result, Serialization, TagMatch,
};
use ofi_core::lock::PolicyLock;

use crate::any_buffer::AnyBuffer;
use crate::buffer::BufferMut;
use crate::completion::Completion;
use crate::domain::{Domain, Opened};
use crate::node::Desk;
use crate::operations::{Claim, Op, Operations};
use crate::request::{RecvMsg, Rejected};
use crate::threading::{Level, Safe};

/// An address vector, and how many bits of its numbers name contexts.
#[derive(Clone)]
pub(crate) struct Vector {
    pub raw: Arc<dyn AddressVector>,
    pub rx_ctx_bits: u32,
}

/// A receive context that nodes share.
pub(crate) struct Shared {
    // Fields drop in order. Closing the context ends what nodes do with the memory of its receives; nobody else has it.
    endpoint: Arc<dyn Endpoint>,
    opened: Arc<Opened>,
    /// All its nodes have one.
    vector: Mutex<Option<Vector>>,
    /// Nodes of several threads use it, at every level.
    operations: PolicyLock<Operations>,
}

impl Shared {
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// The vector of all nodes, which the first of them opens.
    pub fn vector(&self, open: impl FnOnce() -> Result<Vector>) -> Result<Vector> {
        let mut vector = self.vector.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vector) = &*vector {
            return Ok(vector.clone());
        }
        Ok(vector.insert(open()?).clone())
    }

    /// The part of a node that reads `cq`.
    pub fn member(self: &Arc<Self>, cq: &Arc<dyn CompletionQueue>) -> Membership {
        Membership { context: Arc::clone(self), cq: Arc::clone(cq) }
    }

    fn desk(&self) -> Desk<'_> {
        Desk { endpoint: &*self.endpoint, operations: &self.operations, opened: &self.opened }
    }
}

/// A node's part in a shared receive context.
pub(crate) struct Membership {
    context: Arc<Shared>,
    cq: Arc<dyn CompletionQueue>,
}

impl Membership {
    pub fn complete(&self, entry: &CqTaggedEntry, source: FiAddr) -> Option<Completion> {
        self.context.operations.lock().complete(entry, source).map(shared)
    }

    pub fn fail(&self, error: CqErrorEntry, text: impl FnOnce(i32) -> String) -> Option<Completion> {
        self.context.operations.lock().fail(error, text).map(shared)
    }
}

fn shared(completion: Completion) -> Completion {
    Completion { shared: true, ..completion }
}

/// Reads of a queue that is about to close, at most.
const LAST_READS: usize = 64;

impl Drop for Membership {
    /// What the node has received and not read goes with the node, and not only with the context.
    fn drop(&mut self) {
        for _ in 0..LAST_READS {
            let mut entries = [CqTaggedEntry::EMPTY; 64];
            let received = |entry: &&CqTaggedEntry| entry.flags.contains(CompletionFlags::RECV);
            match self.cq.read(&mut CqBuffer::new(&mut entries)) {
                Ok(count) => {
                    entries[..count].iter().filter(received).for_each(|entry| {
                        drop(self.complete(entry, FiAddr::NOTAVAIL));
                    });
                }
                Err(error) if error == Errno::EAVAIL => match self.cq.read_error() {
                    Ok(error) if error.flags.contains(CompletionFlags::RECV) => {
                        drop(self.fail(error, |_| String::new()));
                    }
                    Ok(_) => {}
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    }
}

/// A receive context that several nodes of a domain share (`fi_srx_context`): its receives take the messages of whichever node
/// is sent to. One pool of buffers serves many nodes, instead of one for each.
///
/// Receives are posted here; each ends in the queue of the node that its message came through: by [`Node::poll`],
/// [`Node::wait`], or as an [event](crate::AsyncNode::event) of an [`AsyncNode`]. What comes through no node, cancelled
/// receives and searches that found nothing, ends in the queue of the node that was opened first.
///
/// Its nodes have one address vector, with what the first of them chose. The context is open as long as it or a node
/// of it is; a node that closes takes along the messages that it has received and not given out. It may be used from any
/// thread, whatever the level of the domain.
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
/// let message = blue.wait(Duration::from_secs(5))?.expect("within five seconds").ok()?;
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
    pub(crate) fn open(domain: &Domain<L>) -> Result<Self> {
        let opened = domain.opened();
        let shared = Shared {
            endpoint: opened.raw.open_shared_receive(&opened.info.rx_attr)?,
            opened: Arc::clone(opened),
            vector: Mutex::new(None),
            operations: PolicyLock::new(Serialization::LIBRARY, Operations::new()),
        };
        Ok(Self { shared: Arc::new(shared), domain: domain.clone() })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The domain that its nodes are in.
    pub fn domain(&self) -> &Domain<L> {
        &self.domain
    }

    /// Posts a receive for an untagged message to any of the nodes, as [`Node::recv`](crate::Node::recv).
    ///
    /// # Errors
    /// As there.
    pub fn recv<B: BufferMut>(&self, buffer: B) -> Result<Op, Rejected<B>> {
        self.recvmsg(RecvMsg::new(buffer))
    }

    /// Posts a receive for a tagged message to any of the nodes, as [`Node::trecv`](crate::Node::trecv).
    ///
    /// # Errors
    /// As there.
    pub fn trecv<B: BufferMut>(&self, buffer: B, tag: u64, ignore: u64) -> Result<Op, Rejected<B>> {
        self.recvmsg(RecvMsg::new(buffer).tag(tag, ignore))
    }

    /// Posts a receive with all choices, as [`Node::recvmsg`](crate::Node::recvmsg). A source is one of the nodes' address
    /// vector.
    ///
    /// # Errors
    /// As there; `FI_ENOAV` for a source while there is no node.
    pub fn recvmsg<B: BufferMut>(&self, message: RecvMsg<B>) -> Result<Op, Rejected<B>> {
        self.shared.desk().recvmsg(message)
    }

    /// Looks for a tagged message to any of the nodes, as [`Node::peek`](crate::Node::peek).
    ///
    /// # Errors
    /// As there; `FI_EOPBADSTATE` while there is no node.
    pub fn peek(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, tag, ignore, OpFlags::PEEK)
    }

    /// As [`SharedReceive::peek`], and takes the message aside, as [`Node::peek_claim`](crate::Node::peek_claim).
    ///
    /// # Errors
    /// As there.
    pub fn peek_claim(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(true, tag, ignore, OpFlags::PEEK | OpFlags::CLAIM)
    }

    /// As [`SharedReceive::peek`], and drops the message, as [`Node::discard`](crate::Node::discard).
    ///
    /// # Errors
    /// As there.
    pub fn discard(&self, tag: u64, ignore: u64) -> Result<Op> {
        self.look(false, tag, ignore, OpFlags::PEEK | OpFlags::DISCARD)
    }

    fn look(&self, claim: bool, tag: u64, ignore: u64, flags: OpFlags) -> Result<Op> {
        self.shared.desk().look(claim, FiAddr::UNSPEC, TagMatch { tag, ignore }, flags)
    }

    /// Receives a claimed message, as [`Node::claim`](crate::Node::claim).
    ///
    /// # Errors
    /// As there; `FI_EINVAL` if its node has closed, which took the message along.
    pub fn claim<B: BufferMut>(&self, claim: Claim, buffer: B) -> Result<Op, Rejected<(Claim, B)>> {
        self.shared.desk().claim(claim, buffer)
    }

    /// Drops a claimed message, as [`Node::discard_claimed`](crate::Node::discard_claimed).
    ///
    /// # Errors
    /// As there.
    pub fn discard_claimed(&self, claim: Claim) -> Result<Op, Rejected<Claim>> {
        self.shared.desk().discard_claimed(claim)
    }

    /// Cancels a receive, as [`Node::cancel`](crate::Node::cancel).
    ///
    /// # Errors
    /// As there.
    pub fn cancel(&self, op: Op) -> Result<()> {
        self.shared.desk().cancel(op)
    }

    /// How many of its operations are in flight, claimed messages included.
    pub fn in_flight(&self) -> usize {
        self.shared.operations.lock().len()
    }

    /// Closes the context, if it has no nodes any more, and gives back the buffers of receives that wait.
    ///
    /// # Errors
    /// Itself, while nodes of it are open.
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

/// A transmit context that several nodes of a domain share (`fi_stx_context`): its room for operations is used by whichever
/// node sends, instead of so much for each. Posting answers `FI_EAGAIN` when all of it is in use.
///
/// ```
/// use ofi::{Domain, Hints, Node};
///
/// let room = Domain::open(&Hints::new().provider("shm"))?.shared_transmit()?;
/// let red = Node::builder().shared_transmit(&room).open()?;
/// let blue = Node::builder().shared_transmit(&room).open()?;
/// # Ok::<(), ofi::Error>(())
/// ```
pub struct SharedTransmit<L: Level = Safe> {
    raw: Arc<dyn ofi_api::SharedTransmit>,
    domain: Domain<L>,
}

impl<L: Level> SharedTransmit<L> {
    pub(crate) fn open(domain: &Domain<L>) -> Result<Self> {
        let opened = domain.opened();
        let raw = opened.raw.open_shared_transmit(&opened.info.tx_attr)?;
        Ok(Self { raw, domain: domain.clone() })
    }

    pub(crate) fn raw(&self) -> &Arc<dyn ofi_api::SharedTransmit> {
        &self.raw
    }

    /// The domain that its nodes are in.
    pub fn domain(&self) -> &Domain<L> {
        &self.domain
    }
}

impl<L: Level> fmt::Debug for SharedTransmit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTransmit").field("domain", &self.domain).finish()
    }
}
