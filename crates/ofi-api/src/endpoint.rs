//! Endpoints: an application posts operations to them.

use std::sync::Arc;

use crate::{
    Address, AddressVector, AtomicKind, AtomicOp, AvSet, BindFlags, CollectiveOp, CompletionQueue, Context,
    Counter, Datatype, DeferredOp, Errno, Error, EventQueue, FiAddr, FiOp, Fid, Group, Multicast, ReceiveOp,
    Result, RmaOp, RxAttr, SendOp, TagMatch, Threshold, TxAttr,
};

/// Endpoint options (`FI_OPT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum EpOption {
    /// A multi-receive buffer is released when fewer bytes than this are free.
    MinMultiRecv = 0,
    /// The maximum length of the data of connect, accept and reject, in bytes. Read-only.
    CmDataSize = 1,
    /// The threshold of buffered receives, which API 2 removed. Refused.
    BufferedMin = 2,
    /// The limit of buffered receives, which API 2 removed. Refused.
    BufferedLimit = 3,
    /// The size of a socket's send buffer, for providers whose endpoints are sockets. Refused.
    SendBufSize = 4,
    /// A socket's receive buffer. Refused.
    RecvBufSize = 5,
    /// The maximum number of outstanding operations. Read-only: `fi_tx_attr.size`.
    TxSize = 6,
    /// The maximum number of posted receives. Read-only: `fi_rx_attr.size`.
    RxSize = 7,
    /// How device memory is transferred, an `int` (`FI_HMEM_P2P_*`). With `FI_HMEM`, any value but
    /// `FI_HMEM_P2P_REQUIRED` (1), because this endpoint's operations stage device memory in host memory; otherwise
    /// only `FI_HMEM_P2P_DISABLED` (3).
    HmemP2p = 8,
    /// Operations triggered by a device. Refused.
    XpuTrigger = 9,
    /// Whether the library may call CUDA. Endpoints with `FI_HMEM` need it and accept only true; others refuse the
    /// option.
    CudaApiPermitted = 10,
    /// Whether shared memory may be used with peers of the same host: 1 or 0. Set before enable.
    SharedMemoryPermitted = 11,
    /// Largest message of untagged sends.
    MaxMsgSize = 12,
    /// Largest message of tagged sends.
    MaxTaggedSize = 13,
    /// Largest RMA.
    MaxRmaSize = 14,
    /// The largest atomic: bytes that one call changes.
    MaxAtomicSize = 15,
    /// Largest injected message.
    InjectMsgSize = 16,
    /// Largest injected tagged message.
    InjectTaggedSize = 17,
    /// Largest injected RMA write.
    InjectRmaSize = 18,
    /// Largest injected atomic.
    InjectAtomicSize = 19,
    /// Whether the endpoint is behind a firewall, for providers that connect. Refused.
    FirewallAddr = 20,
    /// Provider `efa`: how often the device retries when the receiver is not ready; 7 means forever. This and all
    /// options below are set before enable.
    EfaRnrRetry = EFA,
    /// Whether the owner's processor, not the device, executes reads. Read-only.
    EfaEmulatedRead = EFA + 1,
    /// Whether the owner's processor, not the device, executes writes. Read-only.
    EfaEmulatedWrite = EFA + 2,
    /// Whether the owner's processor, not the device, executes atomics. Read-only.
    EfaEmulatedAtomics = EFA + 3,
    /// Whether the device accesses peers' memory directly.
    EfaUseDeviceRdma = EFA + 4,
    /// Whether the bytes of a message arrive in order within each aligned 128 bytes. Not supported.
    EfaSendrecvInOrder = EFA + 5,
    /// Whether the bytes of a write arrive in order within each aligned 128 bytes. Not supported.
    EfaWriteInOrder = EFA + 6,
    /// The application promises that all peers run the same software.
    EfaHomogeneousPeers = EFA + 7,
    /// Whether a write with CQ data does not consume a receive of the peer.
    EfaUseUnsolicitedWriteRecv = EFA + 8,
}

/// The first of provider `efa`.
const EFA: i32 = -0x0EFA_0000;

impl EpOption {
    /// All of them.
    pub const ALL: [Self; 30] = [
        Self::MinMultiRecv,
        Self::CmDataSize,
        Self::BufferedMin,
        Self::BufferedLimit,
        Self::SendBufSize,
        Self::RecvBufSize,
        Self::TxSize,
        Self::RxSize,
        Self::HmemP2p,
        Self::XpuTrigger,
        Self::CudaApiPermitted,
        Self::SharedMemoryPermitted,
        Self::MaxMsgSize,
        Self::MaxTaggedSize,
        Self::MaxRmaSize,
        Self::MaxAtomicSize,
        Self::InjectMsgSize,
        Self::InjectTaggedSize,
        Self::InjectRmaSize,
        Self::InjectAtomicSize,
        Self::FirewallAddr,
        Self::EfaRnrRetry,
        Self::EfaEmulatedRead,
        Self::EfaEmulatedWrite,
        Self::EfaEmulatedAtomics,
        Self::EfaUseDeviceRdma,
        Self::EfaSendrecvInOrder,
        Self::EfaWriteInOrder,
        Self::EfaHomogeneousPeers,
        Self::EfaUseUnsolicitedWriteRecv,
    ];

    /// Whether its value is a `bool` in C: 1 or 0.
    pub fn is_bool(self) -> bool {
        let number = self as i32;
        matches!(self, Self::SharedMemoryPermitted | Self::CudaApiPermitted | Self::FirewallAddr)
            || (number < 0 && self != Self::EfaRnrRetry)
    }

    /// Bytes of its value in the C interface.
    pub fn size(self) -> usize {
        match self {
            Self::HmemP2p => size_of::<std::ffi::c_int>(),
            option if option.is_bool() => size_of::<bool>(),
            _ => size_of::<usize>(),
        }
    }

    /// The option with C's number. Negative numbers are provider-specific (`rdma/fi_ext.h`).
    pub fn from_c(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|option| *option as i32 == number)
    }
}

/// An event of a message that arrived before a matching receive was posted (fi_profile(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnexpectedEvent {
    /// No receive matched it, so the library stores it (`FI_EVENT_UNEXP_MSG_RECVD`).
    Received,
    /// A receive took it, or a peek claimed or discarded it (`FI_EVENT_UNEXP_MSG_MATCHED`).
    Matched,
}

/// The callback of [`Endpoint::watch_unexpected`].
pub type Watcher = std::sync::Arc<dyn Fn(UnexpectedEvent) + Send + Sync>;

/// One named counter of an endpoint or a domain, for monitoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// A stable name such as `rx_unexpected`.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// A description of the counter.
    pub help: &'static str,
}

impl Statistic {
    /// Sums counters of the same name, in the order of first appearance.
    pub fn add_up(all: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut sums: Vec<Self> = Vec::new();
        for one in all {
            match sums.iter_mut().find(|sum| sum.name == one.name) {
                Some(sum) => sum.value = sum.value.wrapping_add(one.value),
                None => sums.push(one),
            }
        }
        sums
    }
}

/// A transmit context that several endpoints share (`fid_stx`). It stays open while an endpoint is bound to it.
pub trait SharedTransmit: Send + Sync + std::any::Any {
    /// Its identity.
    fn fid(&self) -> Fid;
}

/// An endpoint (`fid_ep`). Dropping the last handle closes it: outstanding operations end without a completion. Once
/// the drop has returned, the endpoint no longer uses any memory that was lent to it.
pub trait Endpoint: Send + Sync + std::any::Any {
    /// Binds a completion queue to the directions in `flags`.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBADFLAGS` for flags without a direction; `FI_EBUSY` if that direction
    /// already has a queue; `FI_EINVAL` for a queue of another library.
    fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()>;

    /// Binds a counter to the kinds of operation in `flags`: sends, receives, reads and writes that start here, and
    /// reads and writes by peers (those need `FI_RMA_EVENT`). No flags means every kind that the endpoint has. The
    /// counter counts each operation that ends, with or without a completion entry. A direction with a counter needs no
    /// queue; without one, failures are only counted.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBADFLAGS` for other flags; `FI_EBUSY` if a kind already has a counter;
    /// `FI_EOPNOTSUPP` for peers' operations without `FI_RMA_EVENT`; `FI_EINVAL` for a counter of another library,
    /// `FI_EDOMAIN` for one of another domain.
    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()>;

    /// Binds the address vector.
    ///
    /// # Errors
    /// As `bind_cq`.
    fn bind_av(&self, av: &Arc<dyn AddressVector>) -> Result<()>;

    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the event queue that reports connections and completed joins.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBUSY` if a queue is already bound; `FI_EINVAL` for a queue of another
    /// library.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// Requests a connection from the passive endpoint at `address` (`FI_EP_MSG`), and enables this endpoint. The
    /// request carries `data`, truncated to [`EpOption::CmDataSize`]. The result is an event: `FI_CONNECTED`, or an
    /// error such as `FI_ETIMEDOUT`, or `FI_ECONNREFUSED` with the data that the peer attached to its rejection.
    ///
    /// # Errors
    /// Those of [`Endpoint::enable`]; `FI_EALREADY`, `FI_EISCONN` or `FI_EOPBADSTATE` if it was called before;
    /// `FI_EOPNOTSUPP` on endpoints that are not of type `FI_EP_MSG`, or that were opened to accept a request.
    fn connect(&self, address: &Address, data: &[u8]) -> Result<()>;

    /// Accepts the request that the endpoint was opened with ([`crate::Info::handle`]), and enables the endpoint. The
    /// answer carries `data`. `FI_CONNECTED` follows as an event.
    ///
    /// # Errors
    /// Those of [`Endpoint::enable`]; `FI_EALREADY` if the request was already answered; `FI_EOPNOTSUPP` without a
    /// request.
    fn accept(&self, data: &[u8]) -> Result<()>;

    /// Ends the connection: outstanding operations fail with `FI_ECANCELED`. The peer gets `FI_SHUTDOWN` after all
    /// messages sent before; this endpoint gets it at once. A second call has no effect.
    ///
    /// # Errors
    /// `FI_ENOTCONN` without a connection.
    fn shutdown(&self) -> Result<()>;

    /// The address of the connected peer.
    ///
    /// # Errors
    /// `FI_ENOTCONN` before the connection is established.
    fn peer_name(&self) -> Result<Address>;

    /// Binds a shared transmit context; an endpoint whose info has `FI_SHARED_CONTEXT` needs one.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBUSY` if a context is already bound, or if
    /// [`crate::DomainAttr::max_ep_stx_ctx`] endpoints already share this one; `FI_EINVAL` for an endpoint that was
    /// opened without `FI_SHARED_CONTEXT`, or whose attributes exceed the context's.
    fn bind_shared_transmit(&self, context: &Arc<dyn SharedTransmit>) -> Result<()> {
        let _ = context;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Binds a shared receive context ([`crate::Domain::open_shared_receive`]). An endpoint whose info has
    /// `FI_SHARED_CONTEXT` needs one, and cannot post receives itself. All connectionless endpoints of a context must
    /// be bound to the same address vector.
    ///
    /// # Errors
    /// As [`Endpoint::bind_shared_transmit`].
    fn bind_shared_receive(&self, context: &Arc<dyn Endpoint>) -> Result<()> {
        let _ = context;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a transmit context of a scalable endpoint (`fi_tx_context`) and returns its attributes. The context is an
    /// endpoint that sends, reads and writes under the address of the scalable endpoint, has a completion queue of its
    /// own, and is enabled separately. `attr` may ask for less than the scalable endpoint has. After it is closed, the
    /// context may be opened again.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index of [`crate::EpAttr::tx_ctx_cnt`] or more, or for attributes beyond the scalable
    /// endpoint's; `FI_EBUSY` if the context is open; `FI_EOPNOTSUPP` on other endpoints.
    fn transmit_context(&self, index: usize, attr: Option<&TxAttr>) -> Result<(Arc<dyn Endpoint>, TxAttr)> {
        let _ = (index, attr);
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Opens a receive context of a scalable endpoint (`fi_rx_context`) and returns its attributes. The context
    /// receives the messages that name it ([`FiAddr::with_rx_index`]) or that the scalable endpoint assigns to it.
    /// Otherwise as [`Endpoint::transmit_context`].
    ///
    /// # Errors
    /// Those of [`Endpoint::transmit_context`].
    fn receive_context(&self, index: usize, attr: Option<&RxAttr>) -> Result<(Arc<dyn Endpoint>, RxAttr)> {
        let _ = (index, attr);
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Makes the endpoint ready for operations, and assigns its address.
    ///
    /// # Errors
    /// `FI_ENOCQ`, `FI_ENOAV`, `FI_ENOEQ` for missing bindings; `FI_EADDRINUSE` if the address is taken.
    fn enable(&self) -> Result<()>;

    /// Its address.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` before enable, if the address is not known yet.
    fn name(&self) -> Result<Address>;

    /// Sets its address; before enable.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EINVAL` for an address of the wrong format.
    fn set_name(&self, address: &Address) -> Result<()>;

    /// Sends an untagged message.
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: read the completion queues, then try again. `FI_EMSGSIZE` beyond a limit,
    /// `FI_EINVAL` for an unknown peer or bad arguments, `FI_EOPBADSTATE` before enable. On `FI_EP_MSG` endpoints also
    /// `FI_ENOTCONN` before the connection is established, `FI_ESHUTDOWN` after its end.
    fn send(&self, op: &SendOp<'_>) -> Result<()>;

    /// Sends a tagged message.
    ///
    /// # Errors
    /// As `send`.
    fn send_tagged(&self, op: &SendOp<'_>, tag: u64) -> Result<()>;

    /// Posts a receive for an untagged message.
    ///
    /// # Errors
    /// As `send`.
    fn receive(&self, op: &ReceiveOp<'_>) -> Result<()>;

    /// Posts a receive for a tagged message, or peeks, claims or discards one.
    ///
    /// # Errors
    /// As `send`.
    fn receive_tagged(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()>;

    /// Writes to the peer's memory.
    ///
    /// # Errors
    /// As `send`.
    fn write(&self, op: &RmaOp<'_>) -> Result<()>;

    /// Reads from the peer's memory.
    ///
    /// # Errors
    /// As `send`.
    fn read(&self, op: &RmaOp<'_>) -> Result<()>;

    /// Changes the peer's memory atomically, element by element.
    ///
    /// # Errors
    /// As `send`; `FI_EOPNOTSUPP` for a combination that [`Endpoint::atomic_valid`] rejects, `FI_EMSGSIZE` for more
    /// elements than it permits.
    fn atomic(&self, op: &AtomicOp<'_>) -> Result<()>;

    /// The maximum number of elements of one call (`fi_atomicvalid`, `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`).
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an unsupported combination, with the reason.
    fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize>;

    /// Joins a collective group. Its members and their ranks are those of `set`, which includes this endpoint. All
    /// members must call this with the same members in the same order; then each gets `FI_JOIN_COMPLETE`, or an error.
    /// `coll_addr` is the address of the set ([`AvSet::addr`]) or of a group; with [`FiAddr::NOTAVAIL`] the join
    /// completes here at once, without contacting the others.
    ///
    /// # Errors
    /// `FI_ENOEQ` without an event queue; `FI_EINVAL` for a set of another address vector, or without this endpoint;
    /// `FI_EOPNOTSUPP` without `FI_COLLECTIVE`.
    fn join_collective(&self, coll_addr: FiAddr, set: &dyn AvSet, context: Context) -> Result<Group>;

    /// Joins a multicast group (`fi_join`): messages to the group arrive here, and sends to [`MulticastGroup::addr`] go
    /// to all members. `flags` is `FI_SEND`, `FI_RECV`, or both; none means both. A group address without a port uses
    /// the endpoint's port.
    ///
    /// The call does not wait for the network. `FI_JOIN_COMPLETE` follows, or an error entry with the group's fid and
    /// `context`; until then sends to the group may be refused with `FI_EAGAIN`. No event follows if the group is
    /// dropped first.
    ///
    /// [`MulticastGroup::addr`]: crate::MulticastGroup::addr
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without `FI_MULTICAST`; `FI_ENOEQ` without an event queue; `FI_EINVAL` for an address that is
    /// not a group in the endpoint's address format; `FI_EALREADY` if the endpoint is a member; the system's errors.
    fn join_multicast(&self, group: &Address, flags: BindFlags, context: Context) -> Result<Multicast>;

    /// Starts a collective in a joined group.
    ///
    /// # Errors
    /// As `send`; `FI_EOPNOTSUPP` for a combination that `Domain::query_collective` rejects; `FI_EINVAL` for memory of
    /// the wrong length, or a root that is not a member; in a failed group, the error that it failed with.
    fn collective(&self, op: &CollectiveOp<'_>) -> Result<()>;

    /// Posts `op` when a counter reaches a threshold (`FI_TRIGGER`, fi_trigger(3)), or at once if it already has. From
    /// then on it is an ordinary operation; an error at its start is reported on the queue. Until it starts, the memory
    /// of an injected operation remains the caller's, while all other memory is lent from the call on.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without `FI_TRIGGER`; `FI_EAGAIN` if too many operations wait for the counter; `FI_EINVAL` for a
    /// counter of another library, `FI_EDOMAIN` for one of another domain; those errors of the operation that can be
    /// detected now.
    fn trigger(&self, when: &Threshold<'_>, op: &DeferredOp<'_>) -> Result<()>;

    /// Cancels the oldest receive posted with `context`, or the first triggered operation that has not started. It ends
    /// with its message or with `FI_ECANCELED`.
    ///
    /// # Errors
    /// `FI_ENOENT` if no such receive is pending.
    fn cancel(&self, context: Context) -> Result<()>;

    /// Abandons a read or write in flight that was posted with `context`. After a successful return its memory is no
    /// longer lent: nothing writes it, and a write that continues uses a copy. The operation still ends with one
    /// completion, successful or not; a read that succeeds has discarded its bytes. Parts of a write that were already
    /// sent may still reach the peer's memory. libfabric has no such call.
    ///
    /// # Errors
    /// `FI_ENOENT` if no such operation is in flight: it has ended, and its completion was or will be read.
    /// `FI_EAGAIN` while a device uses the memory and this operation cannot be stopped alone: abandon the other reads
    /// and writes that use the same local registration, then call again. `FI_EOPNOTSUPP` for a transport whose device
    /// cannot abandon an operation.
    fn abandon(&self, _context: Context) -> Result<()> {
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Ends the connection to a peer, if there is one. Operations in flight to the peer end with an error. After the
    /// return their memory is no longer lent, and no read or write that the peer posted earlier touches memory of this
    /// process: the device executes no requests of a closed connection. Later operations, in either direction, use a
    /// new connection. libfabric has no such call.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a transport without a connection for each peer, and for a peer on this host that is reached
    /// over shared memory; those of `send` for an address that is not in the vector.
    fn sever(&self, _peer: FiAddr) -> Result<()> {
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Whether each peer has a connection of its own, which [`Endpoint::sever`] can end.
    fn severs(&self) -> bool {
        false
    }

    /// Whether the endpoint has lost its device, or the device's queues have failed for good: all its operations end
    /// with an error from now on. If the device comes back, it is used by a new domain and endpoint. Call it at
    /// intervals, from the thread that drives the endpoint: it takes the endpoint's lock.
    fn is_lost(&self) -> bool {
        false
    }

    /// Reads an option.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an option that the transport does not have.
    fn option(&self, option: EpOption) -> Result<usize>;

    /// Sets an option.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for an option that the transport does not have or that is read-only; `FI_EINVAL` out of range.
    fn set_option(&self, option: EpOption, value: usize) -> Result<()>;

    /// Its counters, at this moment.
    fn statistics(&self) -> Vec<Statistic>;

    /// Installs `watcher`, replacing any previous one; `None` removes it. It is called for every message that arrives
    /// before its receive, and again when such a message is matched. The calls are made later, in order, by a thread
    /// that drives progress in the domain and holds no lock: `watcher` may read statistics, but should not post or
    /// wait. Messages in a shared receive context belong to that context, not to the endpoint.
    ///
    /// # Errors
    /// `FI_ENOSYS` for an endpoint that does not receive.
    fn watch_unexpected(&self, watcher: Option<Watcher>) -> Result<()> {
        drop(watcher);
        Err(Error::new(Errno::ENOSYS))
    }

    /// Statistics of the path to one peer: round-trip time, losses, windows. Empty if the transport keeps
    /// none. A connected endpoint has one peer and ignores `peer`.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that is not in the vector; `FI_ENOTCONN`, `FI_ESHUTDOWN` without a connection;
    /// `FI_EOPBADSTATE` before `fi_enable`.
    fn peer_statistics(&self, peer: FiAddr) -> Result<Vec<Statistic>> {
        let _ = peer;
        Ok(Vec::new())
    }
}
