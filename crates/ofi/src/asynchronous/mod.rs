//! Nodes whose operations are futures.
//!
//! The path of an operation: a call in `calls.rs` posts through the [`Node`] inside and enters the operation into the
//! table (`table.rs`). A poll of an [`Operation`] (`operation.rs`), and every driver (`driver.rs`), reads the queue;
//! the table passes each completion to its future and wakes it.

mod auto;
mod calls;
mod connection;
mod driver;
mod event;
mod hub;
mod multi;
mod open;
mod operation;
mod table;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tokio")]
mod tokio_hub;
mod watch;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use ofi_api::{Address, EpOption, FiAddr, Hints, Info, Result, Statistic};

pub use connection::{AsyncConnection, Connecting, ConnectionEnd, NextRequest};
pub use driver::{Driver, DriverThread, Turn};
pub use event::Event;
pub use hub::NextHubEvent;
pub use multi::{MultiRecv, NextMessage};
pub use operation::{Done, Failed, Operation, Transferred};

use self::table::Table;
use crate::any_buffer::AnyBuffer;
use crate::domain::Domain;
use crate::node::{Node, NodeBuilder};
use crate::threading::{Exclusive, Level, Safe};

/// A [`Node`] whose operations are futures, on any executor.
///
/// The calls are those of `Node`. Each returns an [`Operation`], which starts at once and resolves to the buffer and
/// the result. There is no `poll`: the node's futures and drivers read the queue.
///
/// ```
/// use ofi::{AsyncNode, Hints};
///
/// let hints = Hints::new().provider("shm");
/// let (alice, bob) = (AsyncNode::open(&hints)?, AsyncNode::open(&hints)?);
/// let to_bob = alice.insert(&bob.name()?)?;
/// alice.block_on(async {
///     let message = bob.recv(vec![0; 64]); // posted by the call
///     let sent = alice.send(b"hello, Bob".to_vec(), to_bob).await?;
///     assert_eq!(sent.buffer, b"hello, Bob"); // the buffer is Alice's again
///     assert_eq!(message.await?.bytes(), b"hello, Bob");
///     Ok::<(), ofi::Error>(())
/// })?;
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// Something has to drive progress. By default a thread of the library drives all nodes of the process. It sleeps on
/// the queues of nodes whose futures wait, wakes these futures, and ends when none waits. A node without a future makes
/// no progress (`FI_PROGRESS_MANUAL`), so peers that access its memory may have to wait. The alternatives to that
/// thread:
///
/// - [`AsyncNode::block_on`] runs a future on the calling thread, which sleeps on the queue.
/// - [`AsyncNode::drive_on_thread`] starts a thread for this node alone. It drives progress without futures, too.
/// - With the feature `tokio`, a task of the runtime drives the node: see the module `ofi::rt::tokio`.
/// - An adapter for another reactor is a loop around [`Driver::turn`] and [`AsyncNode::wait_fd`].
/// - With [`WaitObj::Yield`](crate::WaitObj::Yield) at [`NodeBuilder::wait_obj`], pending futures wake themselves at
///   once (they busy-poll): the lowest latency, but the executor's thread never sleeps. Futures of an
///   [exclusive](AsyncNode::open_exclusive) node do so in any case, because no second thread may drive it.
///
/// Tasks share a node by reference or in an `Arc`; threads can share it too if its level is [`Safe`]. Dropping it, once
/// none of its futures is left, closes the endpoint and then frees the buffers in flight.
pub struct AsyncNode<L: Level = Safe> {
    inner: Arc<Inner<L>>,
    /// The node's registration with the library's thread, created when the thread first drives the node.
    seat: OnceLock<Arc<auto::Seat>>,
    /// Pending futures wake themselves instead.
    spins: bool,
}

// SAFETY: an `Arc` may be sent together with its value if no other thread has a clone. Only `auto::drive` and `close`
// clone it. The first accepts only nodes of level `Safe`, which are `Sync`; the second takes the node by value.
unsafe impl<L: Level> Send for AsyncNode<L> where Node<L>: Send {}

/// What operations and drivers share.
struct Inner<L: Level> {
    // Drops first: closing the endpoint ends the operations. Only then may the table, and the buffers that were never
    // posted, be dropped.
    node: Node<L>,
    table: Mutex<Table<L>>,
}

impl<L: Level> Inner<L> {
    fn table(&self) -> MutexGuard<'_, Table<L>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncNode<Safe> {
    /// Opens the first endpoint that getinfo offers for `hints`, as [`Node::open`] does.
    ///
    /// # Errors
    /// Those of [`Node::open`].
    pub fn open(hints: &Hints) -> Result<Self> {
        Node::builder().hints(hints.clone()).open_async()
    }

    /// Returns a builder with more choices; [`NodeBuilder::open_async`] opens the node.
    pub fn builder() -> NodeBuilder<Safe> {
        Node::builder()
    }
}

impl AsyncNode<Exclusive> {
    /// As [`AsyncNode::open`], without locks around the endpoint, for executors of one thread.
    ///
    /// # Errors
    /// Those of [`AsyncNode::open`].
    pub fn open_exclusive(hints: &Hints) -> Result<Self> {
        Node::builder_exclusive().hints(hints.clone()).open_async()
    }
}

impl<L: Level> AsyncNode<L> {
    /// `spins`: pending futures of a node without a driver wake themselves.
    pub(crate) fn new(node: Node<L>, spins: bool) -> Self {
        let inner = Arc::new(Inner { node, table: Mutex::new(Table::new()) });
        Self { inner, seat: OnceLock::new(), spins }
    }

    fn table(&self) -> MutexGuard<'_, Table<L>> {
        self.inner.table()
    }

    /// Ensures that a future that is left pending in a node without a driver is polled again.
    fn undriven(&self, waker: &Waker) {
        if self.spins || auto::drive(self).is_err() {
            waker.wake_by_ref();
        }
    }

    /// As [`Node::domain`].
    pub fn domain(&self) -> &Domain<L> {
        self.inner.node.domain()
    }

    /// As [`Node::info`].
    pub fn info(&self) -> &Info {
        self.inner.node.info()
    }

    /// As [`Node::name`].
    ///
    /// # Errors
    /// Those of [`Node::name`].
    pub fn name(&self) -> Result<Address> {
        self.inner.node.name()
    }

    /// As [`Node::insert`].
    ///
    /// # Errors
    /// Those of [`Node::insert`].
    pub fn insert(&self, address: &Address) -> Result<FiAddr> {
        self.inner.node.insert(address)
    }

    /// As [`Node::insert_service`].
    ///
    /// # Errors
    /// Those of [`Node::insert_service`].
    pub fn insert_service(&self, node: &str, service: &str) -> Result<FiAddr> {
        self.inner.node.insert_service(node, service)
    }

    /// As [`Node::remove`].
    ///
    /// # Errors
    /// Those of [`Node::remove`].
    pub fn remove(&self, address: FiAddr) -> Result<()> {
        self.inner.node.remove(address)
    }

    /// As [`Node::lookup`].
    ///
    /// # Errors
    /// Those of [`Node::lookup`].
    pub fn lookup(&self, address: FiAddr) -> Result<Address> {
        self.inner.node.lookup(address)
    }

    /// As [`Node::rx_addr`].
    ///
    /// # Errors
    /// Those of [`Node::rx_addr`].
    pub fn rx_addr(&self, peer: FiAddr, index: usize) -> Result<FiAddr> {
        self.inner.node.rx_addr(peer, index)
    }

    /// As [`Node::option`].
    ///
    /// # Errors
    /// Those of [`Node::option`].
    pub fn option(&self, option: EpOption) -> Result<usize> {
        self.inner.node.option(option)
    }

    /// As [`Node::set_option`].
    ///
    /// # Errors
    /// Those of [`Node::set_option`].
    pub fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        self.inner.node.set_option(option, value)
    }

    /// As [`Node::statistics`].
    pub fn statistics(&self) -> Vec<Statistic> {
        self.inner.node.statistics()
    }

    /// The number of operations in flight, including those of dropped futures.
    pub fn in_flight(&self) -> usize {
        self.inner.node.in_flight()
    }

    /// Messages that had arrived for a receive whose future was dropped, and events beyond the 65,536 that the node
    /// keeps.
    pub fn lost(&self) -> u64 {
        self.table().lost
    }

    /// The descriptor that a driver blocks on after [`Turn::Sleep`]. It is readable when there is something to do.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.node.wait_fd()
    }

    /// As [`Node::close`]. Drops the buffers of operations that wait for room, and of operations whose futures were
    /// dropped.
    pub fn close(self) -> Vec<AnyBuffer> {
        let inner = Arc::clone(&self.inner);
        drop(self); // the library's thread lets go of it
        Arc::into_inner(inner).map_or_else(Vec::new, |inner| inner.node.close())
    }
}

impl<L: Level> Drop for AsyncNode<L> {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.get() {
            seat.leave();
        }
    }
}

impl<L: Level> fmt::Debug for AsyncNode<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncNode").field(&self.inner.node).finish()
    }
}
