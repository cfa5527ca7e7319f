//! One connection of a hub: posts operations, whose completions the hub returns.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ofi_api::{Address, Endpoint, Errno, Error, FiAddr, Result, Statistic};

use super::{Center, lock};
use crate::buffer::{Buffer, BufferMut};
use crate::multi_recv::MultiRecvBuffer;
use crate::node::Node;
use crate::op::Op;
use crate::operations::SOLE_OWNER;
use crate::remote::RemoteWindow;
use crate::request::PostError;
use crate::threading::Safe;

/// The peer of a connected endpoint.
const PEER: FiAddr = FiAddr(0);

/// A connection that a [`Hub`](super::Hub) accepted. Clones are the same connection. Completions of its operations come
/// from [`Hub::wait`](super::Hub::wait).
///
/// It closes when the hub has reported its end and the last clone is dropped, or when the hub and all clones are
/// dropped. Operations in flight then end without completions, and their buffers are dropped.
#[derive(Clone)]
pub struct HubConnection(Arc<Member>);

struct Member {
    /// Taken when the connection closes.
    node: Option<Node<Safe>>,
    id: u32,
    established: AtomicBool,
    center: Arc<Center>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Exclude readers that have read an entry but not yet looked up its operation: the operation is dropped with
        // the node.
        let _reading = lock(&self.center.reading);
        drop(self.node.take());
        lock(&self.center.members.all).remove(&self.id);
    }
}

/// The hub's connections by number. It does not keep them alive.
#[derive(Default)]
pub(super) struct Members {
    all: Mutex<HashMap<u32, Weak<Member>>>,
    last: AtomicU32,
}

impl Members {
    /// Opens a connection with `open` and enters it under the number passed to `open`.
    pub fn enter(
        &self,
        center: &Arc<Center>,
        open: impl FnOnce(u32) -> Result<Node<Safe>>,
    ) -> Result<HubConnection> {
        let id = self.free_number()?;
        let member = Arc::new(Member {
            node: Some(open(id)?),
            id,
            established: AtomicBool::new(false),
            center: Arc::clone(center),
        });
        lock(&self.all).insert(id, Arc::downgrade(&member));
        Ok(HubConnection(member))
    }

    /// An unused number. Numbers are reused after 2^32 connections.
    fn free_number(&self) -> Result<u32> {
        let all = lock(&self.all);
        let mut tries = (0..=all.len()).map(|_| self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        let free = tries.find(|id| *id != SOLE_OWNER && !all.contains_key(id));
        free.ok_or_else(|| {
            Error::with(Errno::EAGAIN, "no free number for this connection at the moment; accept again")
        })
    }

    /// The connection with this number, if a clone of it exists.
    pub fn find(&self, id: u32) -> Option<HubConnection> {
        let member = lock(&self.all).get(&id)?.upgrade()?;
        Some(HubConnection(member))
    }
}

impl HubConnection {
    fn node(&self) -> &Node<Safe> {
        self.0.node.as_ref().expect("it is taken only when the last clone is gone")
    }

    pub(super) fn raw_endpoint(&self) -> &dyn Endpoint {
        self.node().raw_endpoint()
    }

    pub(super) fn is_established(&self) -> bool {
        self.0.established.load(Ordering::Relaxed)
    }

    /// Marks the connection as established. Returns whether it was not established before.
    pub(super) fn establish(&self) -> bool {
        !self.is_established() && !self.0.established.swap(true, Ordering::Relaxed)
    }

    /// A number that no other connection of the hub has at the same time: a key for tables of connections.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// The peer's address.
    ///
    /// # Errors
    /// `FI_ENOTCONN` before the connection is established.
    #[doc(alias = "fi_getpeer")]
    pub fn peer_name(&self) -> Result<Address> {
        self.raw_endpoint().peer_name()
    }

    /// Sends a message to the peer. See [`Node::send`].
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: take events, then try again. `FI_EMSGSIZE`; `FI_ENOTCONN` before the
    /// connection is established and after it ended.
    pub fn send<B: Buffer>(&self, buffer: B) -> Result<Op, PostError<B>> {
        self.node().send(buffer, PEER)
    }

    /// Sends a message with remote CQ data. See [`Node::send_with_data`].
    ///
    /// # Errors
    /// As [`HubConnection::send`].
    pub fn send_with_data<B: Buffer>(&self, buffer: B, data: u64) -> Result<Op, PostError<B>> {
        self.node().send_with_data(buffer, data, PEER)
    }

    /// Sends a short message without a completion; the call copies it. See [`Node::inject`].
    ///
    /// # Errors
    /// As [`HubConnection::send`].
    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        self.node().inject(bytes, PEER)
    }

    /// Sends a tagged message to the peer. See [`Node::send_tagged`].
    ///
    /// # Errors
    /// As [`HubConnection::send`].
    pub fn send_tagged<B: Buffer>(&self, buffer: B, tag: u64) -> Result<Op, PostError<B>> {
        self.node().send_tagged(buffer, PEER, tag)
    }

    /// Posts a receive for the peer's next message. See [`Node::recv`].
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: take events, then try again.
    pub fn recv<B: BufferMut>(&self, buffer: B) -> Result<Op, PostError<B>> {
        self.node().recv(buffer)
    }

    /// Posts a receive for a tagged message from the peer. Bits set in `ignore` are not compared with `tag`. See
    /// [`Node::recv_tagged`].
    ///
    /// # Errors
    /// As [`HubConnection::recv`].
    pub fn recv_tagged<B: BufferMut>(&self, buffer: B, tag: u64, ignore: u64) -> Result<Op, PostError<B>> {
        self.node().recv_tagged(buffer, tag, ignore)
    }

    /// Posts a buffer that takes successive messages. See [`Node::recv_multi`].
    ///
    /// # Errors
    /// As [`HubConnection::recv`]; `FI_EBUSY` while ranges of the buffer exist.
    pub fn recv_multi(&self, buffer: MultiRecvBuffer) -> Result<Op, PostError<MultiRecvBuffer>> {
        self.node().recv_multi(buffer)
    }

    /// Reads the peer's memory. See [`Node::read`].
    ///
    /// # Errors
    /// As [`HubConnection::send`]; `FI_EINVAL` if the lengths differ. If the peer refuses the access, the operation
    /// fails.
    pub fn read<B: BufferMut>(&self, buffer: B, remote: RemoteWindow) -> Result<Op, PostError<B>> {
        self.node().read(buffer, PEER, remote)
    }

    /// Writes to the peer's memory. See [`Node::write`].
    ///
    /// # Errors
    /// As [`HubConnection::read`].
    pub fn write<B: Buffer>(&self, buffer: B, remote: RemoteWindow) -> Result<Op, PostError<B>> {
        self.node().write(buffer, PEER, remote)
    }

    /// Cancels a receive of this connection. Its completion follows in any case: with its message, or with
    /// `FI_ECANCELED`.
    ///
    /// # Errors
    /// `FI_ENOENT` for an operation that is not a waiting receive of this connection.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self, op: Op) -> Result<()> {
        self.node().cancel(op)
    }

    /// Ends the connection: [`HubEvent::Closed`](super::HubEvent::Closed) follows. The peer still receives everything
    /// sent before.
    ///
    /// # Errors
    /// `FI_ENOTCONN` if it is not established.
    #[doc(alias = "fi_shutdown")]
    pub fn shutdown(&self) -> Result<()> {
        self.raw_endpoint().shutdown()
    }

    /// The endpoint's counters, at this moment.
    pub fn statistics(&self) -> Vec<Statistic> {
        self.node().statistics()
    }
}

impl PartialEq for HubConnection {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for HubConnection {}

impl fmt::Debug for HubConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConnection").field("id", &self.0.id).finish_non_exhaustive()
    }
}
