//! Nodes: an endpoint with its completion queue and address vector, as one value.
//!
//! The path of an operation: a call in `message.rs`, `tagged.rs` or `rma.rs` moves its buffer into a slot of the table
//! of operations (`crate::post`) and calls the raw endpoint. `queue.rs` reads the raw queue and returns the buffer.

mod atomic;
mod builder;
mod collective;
mod message;
mod queue;
mod rma;
mod senders;
mod tagged;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ofi_api::{
    Address, AddressVector, CompletionQueue, Endpoint, EpOption, Errno, Error, FiAddr, Info, Result,
    Statistic,
};
use ofi_core::lock::Lock;

pub use builder::NodeBuilder;
pub(crate) use builder::Seat;
pub use collective::Group;
use senders::Senders;

use crate::any_buffer::AnyBuffer;
use crate::domain::Domain;
use crate::op::Op;
use crate::operations::Table;
use crate::post::Desk;
use crate::shared::Membership;
use crate::threading::{Level, Safe};

/// A reliable-datagram endpoint (`FI_EP_RDM`) with its completion queue and address vector.
///
/// Buffers move into operations and come back with their completions, so memory in flight cannot be freed or accessed.
/// Dropping a node closes its endpoint, which ends all operations, and only then frees their buffers. Forgetting a node
/// frees nothing.
///
/// ```
/// use std::time::Duration;
/// use ofi::{Hints, Node};
///
/// let hints = Hints::new().provider("shm");
/// let (alice, bob) = (Node::open(&hints)?, Node::open(&hints)?);
/// let to_bob = alice.insert(&bob.name()?)?;
/// bob.recv(vec![0; 64])?;
/// alice.send(b"hello, Bob".to_vec(), to_bob)?;
/// let message = bob.wait(Duration::from_secs(5))?.expect("within five seconds").into_result()?;
/// assert_eq!(message.bytes(), b"hello, Bob");
/// let sent = alice.wait(Duration::from_secs(5))?.expect("within five seconds").into_result()?;
/// assert_eq!(sent.bytes(), b"hello, Bob"); // the buffer is Alice's again
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// Many threads may use a `Node` (of level [`Safe`], `FI_THREAD_SAFE`) at once. A `Node<Exclusive>`
/// (`FI_THREAD_COMPLETION`) has no locks; it may move from thread to thread, but the compiler ensures that only one
/// uses it at a time:
///
/// ```compile_fail,E0277
/// use ofi::{Node, threading};
/// fn share<T: Sync>() {}
/// share::<Node<threading::Exclusive>>();
/// ```
///
/// ```
/// use ofi::{Node, threading};
/// fn share<T: Sync>() {}
/// fn give<T: Send>() {}
/// share::<Node<threading::Safe>>();
/// give::<Node<threading::Exclusive>>();
/// ```
///
/// A buffer that was given to an operation cannot be used before its completion:
///
/// ```compile_fail,E0382
/// # fn f(node: &ofi::Node, peer: ofi::FiAddr) -> ofi::Result<()> {
/// let buffer = vec![1, 2, 3];
/// node.send(buffer, peer)?;
/// println!("{buffer:?}");
/// # Ok(())
/// # }
/// ```
///
/// Nor may an operation borrow memory that may be freed, or write memory that is shared:
///
/// ```compile_fail,E0597
/// # fn f(node: &ofi::Node, peer: ofi::FiAddr) -> ofi::Result<()> {
/// let local = [1, 2, 3];
/// node.send(&local[..], peer)?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # fn f(node: &ofi::Node) -> ofi::Result<()> {
/// let constant: &'static [u8] = b"read-only";
/// node.recv(constant)?;
/// # Ok(())
/// # }
/// ```
pub struct Node<L: Level = Safe> {
    // Fields drop in order. The endpoint is first: closing it ends all accesses by transports and peers to the memory
    // of operations in flight. This is the only handle to it and never leaves the node; the same holds for `receiver`.
    // `operations`, which owns that memory, is last. A shared context owns the memory of its receives and frees it when
    // it closes.
    /// The shared receive context, if the node uses one.
    shared: Option<Membership>,
    endpoint: Arc<dyn Endpoint>,
    /// The object that receives are posted to, if not the endpoint: a receive context of a scalable endpoint.
    receiver: Option<Arc<dyn Endpoint>>,
    cq: Arc<dyn CompletionQueue>,
    av: Arc<dyn AddressVector>,
    /// If set, the node inserts unknown senders when a message from them arrives.
    senders: Option<Senders>,
    /// The bits of a peer's number that select one of its receive contexts.
    rx_ctx_bits: u32,
    /// Present with `FI_COLLECTIVE`.
    joins: Option<collective::Joins>,
    domain: Domain<L>,
    /// Held while the queue is read and its entries are looked up, so that completions of one operation are processed
    /// in order.
    reading: Lock<()>,
    operations: Table,
    /// The wait object is `FI_WAIT_YIELD`: waits poll, and `signaled` ends them.
    yields: bool,
    signaled: AtomicBool,
    /// `Exclusive` makes the node `!Sync`.
    _level: PhantomData<L>,
}

/// The raw objects of a [`Node`]: see [`Node::raw`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawNode<'a> {
    /// Its domain.
    pub domain: &'a dyn ofi_api::Domain,
    /// Its endpoint.
    pub endpoint: &'a dyn Endpoint,
    /// The endpoint's completion queue.
    pub cq: &'a dyn CompletionQueue,
    /// Its address vector.
    pub av: &'a dyn AddressVector,
}

impl<L: Level> Node<L> {
    /// The domain of the node, which allocates and registers memory.
    pub fn domain(&self) -> &Domain<L> {
        &self.domain
    }

    /// The negotiated attributes.
    pub fn info(&self) -> &Info {
        self.domain.info()
    }

    /// The node's address, for peers (`fi_getname`).
    ///
    /// # Errors
    /// An error of the transport.
    #[doc(alias = "fi_getname")]
    pub fn name(&self) -> Result<Address> {
        self.endpoint.name()
    }

    /// Inserts a peer's address (`fi_av_insert`). Operations identify the peer by the returned number.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address of another transport or format.
    #[doc(alias = "fi_av_insert")]
    pub fn insert(&self, address: &Address) -> Result<FiAddr> {
        let mut inserted = self.av.insert(std::slice::from_ref(address));
        inserted.pop().unwrap_or_else(|| Err(Error::new(Errno::EINVAL)))
    }

    /// Inserts the address of `node` and `service` (`fi_av_insertsvc`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a name that does not resolve.
    #[doc(alias = "fi_av_insertsvc")]
    pub fn insert_service(&self, node: &str, service: &str) -> Result<FiAddr> {
        self.av.insert_service(node, service)
    }

    /// Removes an address (`fi_av_remove`). It must be removed as often as it was inserted.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address.
    #[doc(alias = "fi_av_remove")]
    pub fn remove(&self, address: FiAddr) -> Result<()> {
        self.av.remove(&[address])?;
        if let Some(senders) = &self.senders {
            senders.removed(address);
        }
        Ok(())
    }

    /// The address of a number (`fi_av_lookup`).
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address.
    #[doc(alias = "fi_av_lookup")]
    pub fn lookup(&self, address: FiAddr) -> Result<Address> {
        self.av.lookup(address)
    }

    /// The number of an address, if it was inserted.
    pub fn reverse_lookup(&self, address: &Address) -> Option<FiAddr> {
        self.av.reverse_lookup(address)
    }

    /// The number that names a receive context of a scalable endpoint (`fi_rx_addr`), as the destination of messages.
    ///
    /// ```
    /// # use ofi::{Caps, Hints, Node};
    /// let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::NAMED_RX_CTX);
    /// let workers = Node::builder().hints(hints.clone()).open_contexts(3)?;
    /// let client = Node::builder().hints(hints).rx_ctx_bits(2).open()?; // numbers have room for 4 contexts
    /// let service = client.insert(&workers[0].name()?)?;
    /// client.inject(b"for the last of them", client.rx_addr(service, 2)?)?;
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// `FI_EINVAL` for an index that [`NodeBuilder::rx_ctx_bits`] has no room for.
    #[doc(alias = "fi_rx_addr")]
    pub fn rx_addr(&self, peer: FiAddr, index: usize) -> Result<FiAddr> {
        let count = 1_u64 << self.rx_ctx_bits;
        if index as u64 >= count {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the index of a peer's receive context",
                format!("one below {count}, as the node was opened with {} rx_ctx_bits", self.rx_ctx_bits),
                index.to_string(),
                "open the node with more NodeBuilder::rx_ctx_bits",
            ));
        }
        Ok(peer.with_rx_index(index as u32, self.rx_ctx_bits))
    }

    /// Reads an option of the endpoint (`fi_getopt`).
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an option that the transport does not have.
    #[doc(alias = "fi_getopt")]
    pub fn option(&self, option: EpOption) -> Result<usize> {
        self.endpoint.option(option)
    }

    /// Sets an option of the endpoint (`fi_setopt`).
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an option that the transport does not have, `FI_EINVAL` for a value out of range.
    #[doc(alias = "fi_setopt")]
    pub fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        self.endpoint.set_option(option, value)
    }

    /// The endpoint's current counters.
    pub fn statistics(&self) -> Vec<Statistic> {
        self.endpoint.statistics()
    }

    /// Number of operations in flight, including claimed messages.
    pub fn in_flight(&self) -> usize {
        self.operations.lock().len()
    }

    /// Cancels a receive (`fi_cancel`). Its completion follows in any case: with its message, or with `FI_ECANCELED`.
    ///
    /// # Errors
    /// `FI_ENOENT` if it is not a pending receive of this node: it may have completed already.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, op: Op) -> Result<()> {
        self.receiving().cancel(op)
    }

    /// The node's raw objects, for calls of the raw layer that the node does not offer.
    ///
    /// ```
    /// # use ofi::{Hints, Node};
    /// let node = Node::open(&Hints::new().provider("shm"))?;
    /// // SAFETY: nothing is posted, and no entry is read.
    /// let raw = unsafe { node.raw() };
    /// assert!(raw.av.reverse_lookup(&node.name()?).is_none());
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Safety
    /// Completions that you read here are lost to the node. Operations that you post here must not complete on the
    /// node's queue (post them with `FI_INJECT`, or use a counter): the node takes each context for one of its own
    /// operations, and would return a buffer that is still in flight. If the node's level is not [`Safe`], only one
    /// thread at a time may use the objects, and all objects that its domain opens.
    pub unsafe fn raw(&self) -> RawNode<'_> {
        let domain = &*self.domain.opened().raw;
        RawNode { domain, endpoint: &*self.endpoint, cq: &*self.cq, av: &*self.av }
    }

    /// The endpoint, for calls that move no memory.
    pub(crate) fn raw_endpoint(&self) -> &dyn Endpoint {
        &*self.endpoint
    }

    /// Closes the endpoint. Operations in flight end without completions, and their buffers are returned, except those
    /// of multi-receives, which remain in existing ranges.
    pub fn close(self) -> Vec<AnyBuffer> {
        let Self { shared, endpoint, receiver, operations, .. } = self;
        drop(shared);
        drop((endpoint, receiver));
        operations.lock().drain()
    }
}

impl<L: Level> Node<L> {
    /// The place to post everything except receives.
    #[inline]
    pub(super) fn desk(&self) -> Desk<'_> {
        Desk {
            endpoint: &*self.endpoint,
            operations: &self.operations,
            opened: self.domain.opened(),
            owner: self.operations.owner,
        }
    }

    /// The place to post receives.
    #[inline]
    pub(super) fn receiving(&self) -> Desk<'_> {
        Desk { endpoint: self.receiver.as_deref().unwrap_or(&*self.endpoint), ..self.desk() }
    }
}

impl<L: Level> fmt::Debug for Node<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Node");
        if let Ok(name) = self.name() {
            debug.field("name", &name);
        }
        debug.field("domain", &self.domain).field("in_flight", &self.in_flight()).finish()
    }
}
