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
    /// Free bytes below which a multi-receive buffer is released.
    MinMultiRecv = 0,
    /// The maximum data of connect, accept and reject, in bytes. Read-only.
    CmDataSize = 1,
    /// The threshold for buffered receives, which API 2 does not have. Refused.
    BufferedMin = 2,
    /// The limit of buffered receives, which API 2 does not have. Refused.
    BufferedLimit = 3,
    /// A socket's send buffer, for providers whose endpoints are sockets. Refused.
    SendBufSize = 4,
    /// A socket's receive buffer. Refused.
    RecvBufSize = 5,
    /// Operations that may be outstanding. Read-only: `fi_tx_attr.size`.
    TxSize = 6,
    /// Receives that may be posted. Read-only: `fi_rx_attr.size`.
    RxSize = 7,
    /// How transfers of device memory run between devices, an `int`: with `FI_HMEM` any value but 1,
    /// `FI_HMEM_P2P_REQUIRED`, as own operations go through memory of the host; otherwise only 3,
    /// `FI_HMEM_P2P_DISABLED`.
    HmemP2p = 8,
    /// Operations that a device triggers. Refused.
    XpuTrigger = 9,
    /// Whether CUDA may be called. With `FI_HMEM` it must be, and the option can only be set to true; others refuse it.
    CudaApiPermitted = 10,
    /// Whether shared memory may be used with peers of the same host: 1 or 0. Set before enable.
    SharedMemoryPermitted = 11,
    /// Largest message of untagged sends.
    MaxMsgSize = 12,
    /// Largest message of tagged sends.
    MaxTaggedSize = 13,
    /// Largest RMA.
    MaxRmaSize = 14,
    /// Largest atomic: bytes of the elements that one call changes.
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
    /// Provider `efa`: how often the device retries a receiver that is not ready; 7 means forever. Set before enable,
    /// as all options that follow.
    EfaRnrRetry = EFA,
    /// Whether reads are executed by the memory's owner. Read-only.
    EfaEmulatedRead = EFA + 1,
    /// Whether writes are executed by the memory's owner. Read-only.
    EfaEmulatedWrite = EFA + 2,
    /// Whether atomics are executed by the memory's owner. Read-only.
    EfaEmulatedAtomics = EFA + 3,
    /// Whether the device reads and writes peers' memory.
    EfaUseDeviceRdma = EFA + 4,
    /// Whether messages arrive in order within each 128 bytes: they do not.
    EfaSendrecvInOrder = EFA + 5,
    /// Whether writes arrive in order within each 128 bytes: they do not.
    EfaWriteInOrder = EFA + 6,
    /// A promise that all peers run the same software.
    EfaHomogeneousPeers = EFA + 7,
    /// Whether writes with data take no receive of the peer.
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

    /// Whether it is 1 or 0, a `bool` in C.
    pub fn is_bool(self) -> bool {
        let number = self as i32;
        matches!(self, Self::SharedMemoryPermitted | Self::CudaApiPermitted | Self::FirewallAddr)
            || (number < 0 && self != Self::EfaRnrRetry)
    }

    /// Bytes of its value in C.
    pub fn size(self) -> usize {
        match self {
            Self::HmemP2p => size_of::<std::ffi::c_int>(),
            option if option.is_bool() => size_of::<bool>(),
            _ => size_of::<usize>(),
        }
    }

    /// The option with C's number. Numbers below zero are of single providers (`rdma/fi_ext.h`).
    pub fn from_c(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|option| *option as i32 == number)
    }
}

/// An event of a message that arrived before its receive (fi_profile(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnexpectedEvent {
    /// No receive matched it, so the library stores it (`FI_EVENT_UNEXP_MSG_RECVD`).
    Received,
    /// A receive, or a search that takes or drops it, has found it (`FI_EVENT_UNEXP_MSG_MATCHED`).
    Matched,
}

/// The callback of [`Endpoint::watch_unexpected`].
pub type Watcher = std::sync::Arc<dyn Fn(UnexpectedEvent) + Send + Sync>;

/// One named counter of an endpoint or of a domain, for people and monitoring.
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
    /// Merges counters of the same name into one with their sum, in the order of first appearance.
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

/// A transmit context that several endpoints share (`fid_stx`). The endpoints that are bound to it keep it open.
pub trait SharedTransmit: Send + Sync + std::any::Any {
    /// Its identity.
    fn fid(&self) -> Fid;
}

/// An endpoint (`fid_ep`). Dropping the last handle closes it: outstanding operations end silently. When the drop
/// returns, the endpoint no longer uses any memory that was lent to it.
pub trait Endpoint: Send + Sync + std::any::Any {
    /// Binds a completion queue to the directions in `flags`.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBADFLAGS` for flags without a direction; `FI_EBUSY` if that direction has
    /// one; `FI_EINVAL` for a queue of another library's making.
    fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()>;

    /// Binds a counter to the kinds of operation in `flags`: sends, receives, reads and writes that start here, and
    /// reads and writes of peers (those need `FI_RMA_EVENT`). No flag at all means every kind that the endpoint has.
    /// It counts each operation that ends, with or without an entry in a queue. A direction that counts its
    /// operations needs no queue; then failures are only counted.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBADFLAGS` for other flags; `FI_EBUSY` if a kind has a counter;
    /// `FI_EOPNOTSUPP` for peers' operations without `FI_RMA_EVENT`; `FI_EINVAL` for a counter of another library's
    /// making, `FI_EDOMAIN` for one of another domain.
    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()>;

    /// Binds the address vector.
    ///
    /// # Errors
    /// As `bind_cq`.
    fn bind_av(&self, av: &Arc<dyn AddressVector>) -> Result<()>;

    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the queue that its connection's events, or the ends of its joins, are reported to.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBUSY` if it has one; `FI_EINVAL` for a queue of another library's making.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// Asks the passive endpoint at `address` for a connection (`FI_EP_MSG`), and gives `data` along, cut to
    /// [`EpOption::CmDataSize`]. Enables the endpoint. The result is an event: `FI_CONNECTED`, or an error, such as
    /// `FI_ECONNREFUSED` with the data that the peer attached to its rejection, or `FI_ETIMEDOUT`.
    ///
    /// # Errors
    /// The errors of [`Endpoint::enable`]; `FI_EALREADY`, `FI_EISCONN` or `FI_EOPBADSTATE` if it was called before;
    /// `FI_EOPNOTSUPP` on endpoints that are not of `FI_EP_MSG`, or that were opened to accept.
    fn connect(&self, address: &Address, data: &[u8]) -> Result<()>;

    /// Accepts the request that the endpoint was opened with ([`crate::Info::handle`]), and gives `data` along. Enables
    /// the endpoint. `FI_CONNECTED` follows as an event.
    ///
    /// # Errors
    /// The errors of [`Endpoint::enable`]; `FI_EALREADY` if the request was answered before; `FI_EOPNOTSUPP` without a
    /// request.
    fn accept(&self, data: &[u8]) -> Result<()>;

    /// Ends the connection: outstanding operations fail with `FI_ECANCELED`, and the peer gets `FI_SHUTDOWN` after all
    /// messages that were sent before. This end gets the event at once. Calling it again has no effect.
    ///
    /// # Errors
    /// `FI_ENOTCONN` without a connection.
    fn shutdown(&self) -> Result<()>;

    /// The address of the endpoint at the other end of the connection.
    ///
    /// # Errors
    /// `FI_ENOTCONN` before the connection is established.
    fn peer_name(&self) -> Result<Address>;

    /// Binds a shared transmit context; an endpoint whose info has `FI_SHARED_CONTEXT` needs one.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EBUSY` if it has one, or if [`crate::DomainAttr::max_ep_stx_ctx`] endpoints
    /// already use this one; `FI_EINVAL` for an endpoint with a context of its own, or with attributes beyond the
    /// context's.
    fn bind_shared_transmit(&self, context: &Arc<dyn SharedTransmit>) -> Result<()> {
        let _ = context;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Binds a shared receive context ([`crate::Domain::open_shared_receive`]); an endpoint whose info has
    /// `FI_SHARED_CONTEXT` needs one, and posts no receives of its own. All connectionless endpoints of a context
    /// have one address vector.
    ///
    /// # Errors
    /// As [`Endpoint::bind_shared_transmit`].
    fn bind_shared_receive(&self, context: &Arc<dyn Endpoint>) -> Result<()> {
        let _ = context;
        Err(Error::new(Errno::ENOSYS))
    }

    /// A transmit context of a scalable endpoint (`fi_tx_context`), and its attributes: an endpoint that sends, reads
    /// and writes under the address of the scalable endpoint, completes in a queue of its own, and is enabled
    /// separately. `attr` may ask for less than the scalable endpoint has. A closed context may be opened again.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index beyond [`crate::EpAttr::tx_ctx_cnt`], or for more than the scalable endpoint has;
    /// `FI_EBUSY` for a context that is open; `FI_EOPNOTSUPP` on other endpoints.
    fn transmit_context(&self, index: usize, attr: Option<&TxAttr>) -> Result<(Arc<dyn Endpoint>, TxAttr)> {
        let _ = (index, attr);
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// A receive context of a scalable endpoint (`fi_rx_context`), and its attributes: an endpoint that receives
    /// messages that name it ([`FiAddr::with_rx_index`]), or that the scalable endpoint assigns to it. Otherwise as
    /// [`Endpoint::transmit_context`].
    ///
    /// # Errors
    /// The errors of [`Endpoint::transmit_context`].
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
    /// `FI_EOPBADSTATE` before enable where the address is not known yet.
    fn name(&self) -> Result<Address>;

    /// Chooses its address, before enable.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` after enable; `FI_EINVAL` for an address of the wrong format.
    fn set_name(&self, address: &Address) -> Result<()>;

    /// Sends an untagged message.
    ///
    /// # Errors
    /// `FI_EAGAIN` when resources are short: read the completion queues, then try again. `FI_EMSGSIZE` over a limit,
    /// `FI_EINVAL` for an unknown peer or bad arguments, `FI_EOPBADSTATE` before enable. On endpoints of `FI_EP_MSG`
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

    /// Posts a receive for a tagged message, or peeks, claims, discards.
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
    /// As `send`; `FI_EOPNOTSUPP` for an operation and type that [`Endpoint::atomic_valid`] does not support,
    /// `FI_EMSGSIZE` for more elements than it permits.
    fn atomic(&self, op: &AtomicOp<'_>) -> Result<()>;

    /// The maximum number of elements of one call (`fi_atomicvalid`, `fi_fetch_atomicvalid`, `fi_compare_atomicvalid`).
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a combination that the endpoint does not have, with the reason.
    fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize>;

    /// Joins a group whose members, by rank, are those of `set`, including the endpoint itself. All members call this,
    /// with the same members in the same order; then each gets `FI_JOIN_COMPLETE`, or an error. `coll_addr` is the
    /// set's ([`AvSet::addr`]) or a group's; with [`FiAddr::NOTAVAIL`] the join ends here, without hearing of the
    /// others.
    ///
    /// # Errors
    /// `FI_ENOEQ` without an event queue; `FI_EINVAL` for a set of another vector, or without the endpoint;
    /// `FI_EOPNOTSUPP` without `FI_COLLECTIVE`.
    fn join_collective(&self, coll_addr: FiAddr, set: &dyn AvSet, context: Context) -> Result<Group>;

    /// Joins a multicast group (`fi_join`): messages to the group arrive here, and sends to [`MulticastGroup::addr`] go
    /// to all members. `flags` has `FI_SEND`, `FI_RECV`, or nothing for both. A group without a port uses the
    /// endpoint's.
    ///
    /// The call does not wait for the network. `FI_JOIN_COMPLETE` follows, or an error entry with the group's fid and
    /// `context`; until then sends to the group may be refused with `FI_EAGAIN`. No event follows if the group is
    /// dropped first.
    ///
    /// [`MulticastGroup::addr`]: crate::MulticastGroup::addr
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without `FI_MULTICAST`; `FI_ENOEQ` without an event queue; `FI_EINVAL` for an address that is
    /// not a group in the endpoint's address format; `FI_EALREADY`; an error of the system.
    fn join_multicast(&self, group: &Address, flags: BindFlags, context: Context) -> Result<Multicast>;

    /// Starts a collective in a group that was joined.
    ///
    /// # Errors
    /// As `send`; `FI_EOPNOTSUPP` for a combination that `Domain::query_collective` does not support; `FI_EINVAL` for
    /// memory of the wrong length, or a root that is not a member; for a failed group, the error that it failed with.
    fn collective(&self, op: &CollectiveOp<'_>) -> Result<()>;

    /// Posts `op` when a counter reaches a threshold (`FI_TRIGGER`, fi_trigger(3)), or at once if it already has. From
    /// then on it is an ordinary operation; errors when it starts are reported on the queue. Until then the memory of
    /// an injected operation remains the caller's, and all other memory is lent.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without `FI_TRIGGER`; `FI_EAGAIN` if too many operations wait for the counter; `FI_EINVAL`,
    /// `FI_EDOMAIN` for a foreign counter; those errors of the operation that can be detected now.
    fn trigger(&self, when: &Threshold<'_>, op: &DeferredOp<'_>) -> Result<()>;

    /// Cancels the oldest receive, or the first triggered operation that still waits, posted with `context`. It ends
    /// with either its message or `FI_ECANCELED`.
    ///
    /// # Errors
    /// `FI_ENOENT` if no such receive is pending.
    fn cancel(&self, context: Context) -> Result<()>;

    /// Abandons a read or write in flight that was posted with `context`. After a successful return its memory is not
    /// lent any more: nothing writes it, and a write that continues uses a copy. The operation still ends with one
    /// completion, of any result; a read that succeeds has dropped its bytes. Parts of a write that were sent may still
    /// reach the peer's memory. libfabric has no such call.
    ///
    /// # Errors
    /// `FI_ENOENT` if no such operation is in flight: it has ended, and its completion was or will be read.
    /// `FI_EAGAIN` while a device uses the memory and cannot be stopped alone: call again later. Before that, give up
    /// the other reads and writes that use the same registration of local memory. `FI_EOPNOTSUPP` for a transport whose
    /// device cannot give up an operation.
    fn abandon(&self, _context: Context) -> Result<()> {
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Ends the connection to a peer, if there is one. Operations in flight to the peer end with an error, and their
    /// memory is no longer lent after this returns. Nor does any read or write that the peer has posted so far touch
    /// memory of this end: the device executes no request of a connection that is gone. Later operations, of either
    /// end, use a new connection. libfabric has no such call.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a transport without a connection for each peer, and for a peer of this host that is reached
    /// through shared memory; the errors of `send` for an address that is not in the vector.
    fn sever(&self, _peer: FiAddr) -> Result<()> {
        Err(Error::new(Errno::EOPNOTSUPP))
    }

    /// Whether peers are reached by connections of their own, which [`Endpoint::sever`] ends.
    fn severs(&self) -> bool {
        false
    }

    /// Reads an option.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for one that the transport does not have.
    fn option(&self, option: EpOption) -> Result<usize>;

    /// Sets an option.
    ///
    /// # Errors
    /// `FI_ENOPROTOOPT` for one that the transport does not have, or that is read-only; `FI_EINVAL` out of range.
    fn set_option(&self, option: EpOption, value: usize) -> Result<()>;

    /// Its counters, at this moment.
    fn statistics(&self) -> Vec<Statistic>;

    /// Installs `watcher`, replacing any previous one; `None` removes it. It is called for every message that arrives
    /// before its receive, and when such a message is found. The calls come afterwards, in order, from a thread that
    /// has made progress in the domain and holds no lock: `watcher` may read statistics, and should not post or wait.
    /// Messages in a shared receive context belong to that context, not to the endpoint.
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
