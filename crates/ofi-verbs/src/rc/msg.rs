//! The interface to a device for connected endpoints: identifiers of rdma_cm, whose queue pairs have their own receives
//! or those of a shared queue, and requests of several pieces of memory.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CmEventKind, ConnParam, Post, Result, Segment, Work, WorkCompletion};

/// The limits of a device for connected endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Maximum number of requests, or receives, in a queue.
    pub queue: usize,
    /// Maximum number of receives in a shared queue.
    pub shared: usize,
    /// Maximum number of entries of a completion queue.
    pub completions: usize,
    /// Most pieces of memory in a request.
    pub pieces: usize,
    /// Longest message in bytes.
    pub longest: usize,
    /// Maximum number of resends of an unacknowledged packet, which has 3 bits.
    pub retries: u8,
    /// Whether it executes atomics on its peers' memory.
    pub atomics: bool,
}

/// The attributes of a queue pair.
#[derive(Clone)]
pub struct PairAttr {
    /// The completion queue of its requests and receives.
    pub completions: Arc<dyn Completions>,
    /// The source of its receives.
    pub receives: Receives,
    /// Number of requests.
    pub size: usize,
    /// Most pieces of memory in a request.
    pub pieces: usize,
    /// Maximum number of memory pieces in a receive of its own.
    pub receive_pieces: usize,
    /// Inline bytes of a request. The device may allow fewer.
    pub inline: usize,
}

/// The source of receives.
#[derive(Clone)]
pub enum Receives {
    /// A queue that several queue pairs share.
    Shared(Arc<dyn SharedQueue>),
    /// A queue of its own, of this size ([`Pair::receive`]).
    Own(usize),
}

/// A device, for connected endpoints.
pub trait Connects: Send + Sync {
    /// Its limits.
    ///
    /// # Errors
    /// The device's error.
    fn abilities(&self) -> Result<Abilities>;

    /// Opens a channel.
    ///
    /// # Errors
    /// The device's error.
    fn channel(&self) -> Result<Arc<dyn Channel>>;

    /// Creates a completion queue.
    ///
    /// # Errors
    /// The device's error.
    fn completions(&self, entries: usize) -> Result<Arc<dyn Completions>>;

    /// Creates a receive queue for several queue pairs, which must be dropped before it.
    ///
    /// # Errors
    /// The device's error.
    fn shared(&self, receives: usize, pieces: usize) -> Result<Arc<dyn SharedQueue>>;

    /// Creates an identifier's queue pair.
    ///
    /// # Errors
    /// The device's error; `EXDEV` if the identifier or a queue belongs to another device.
    fn create_pair(&self, id: &mut dyn Identifier, attr: &PairAttr) -> Result<()>;
}

/// The channel on which events of identifiers arrive.
pub trait Channel: Any + Send + Sync {
    /// Creates an identifier at an address of this host. Port 0 is any.
    ///
    /// # Errors
    /// The device's error.
    fn bind(self: Arc<Self>, at: SocketAddr) -> Result<Box<dyn Identifier>>;

    /// The next event, if there is one.
    ///
    /// # Errors
    /// The device's error.
    fn next(self: Arc<Self>) -> Result<Option<IdEvent>>;

    /// The descriptor that is readable while events are queued.
    fn fd(&self) -> RawFd;

    /// The clock for timeouts of the peer. A simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// An event of an identifier.
pub struct IdEvent {
    /// The kind of the event.
    pub kind: CmEventKind,
    /// The number of the identifier ([`Identifier::number`]); for a request, that of the listener.
    pub id: usize,
    /// The identifier of a request.
    pub request: Option<Box<dyn Identifier>>,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// An identifier of rdma_cm: the counterpart of a TCP socket.
///
/// # Safety
/// When [`Identifier::destroy_pair`] returns, or this has been dropped, the device no longer accesses the memory of its
/// requests and receives.
pub unsafe trait Identifier: Any + Send + Sync {
    /// Distinguishes the identifier from others while it exists.
    fn number(&self) -> usize;

    /// Listens: requests arrive on its channel.
    ///
    /// # Errors
    /// The device's error.
    fn listen(&self, backlog: usize) -> Result<()>;

    /// Its own address.
    fn local_address(&self) -> Option<SocketAddr>;

    /// The address of the other end.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Moves its events, including queued ones, to another channel.
    ///
    /// # Errors
    /// The device's error.
    fn migrate(&mut self, channel: &Arc<dyn Channel>) -> Result<()>;

    /// Resolves an address to a device: [`CmEventKind::AddressResolved`] follows, or an event of the failure.
    ///
    /// # Errors
    /// The device's error.
    fn resolve_address(&self, to: SocketAddr, limit: Duration) -> Result<()>;

    /// Resolves the route: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// The device's error.
    fn resolve_route(&self, limit: Duration) -> Result<()>;

    /// Sets how long its queue pair waits for an acknowledgement ([`ibv::CmId::set_ack_timeout`]): before
    /// [`Identifier::connect`] and [`Identifier::accept`] only.
    ///
    /// # Errors
    /// The device's error; `ENOSYS` if its kernel has no such option.
    fn set_ack_timeout(&self, code: u8) -> Result<()>;

    /// Sends the request to connect: [`CmEventKind::Established`] follows, or an event of the failure.
    ///
    /// # Errors
    /// The device's error.
    fn connect(&self, param: ConnParam<'_>) -> Result<()>;

    /// Accepts the request: [`CmEventKind::Established`] follows.
    ///
    /// # Errors
    /// The device's error.
    fn accept(&self, param: ConnParam<'_>) -> Result<()>;

    /// Rejects the request.
    ///
    /// # Errors
    /// The device's error.
    fn reject(&self, private_data: &[u8]) -> Result<()>;

    /// Disconnects: posted requests end with [`super::Status::FLUSHED`].
    ///
    /// # Errors
    /// The device's error.
    fn disconnect(&self) -> Result<()>;

    /// Its queue pair ([`Connects::create_pair`]).
    fn pair(&self) -> Option<&dyn Pair>;

    /// Destroys the queue pair.
    fn destroy_pair(&mut self);
}

/// A queue pair.
///
/// # Safety
/// The memory of a request or a receive is accessed only until its completion was read ([`Completions::poll`]) or the
/// queue pair is gone. Only receives and read requests write to it.
pub unsafe trait Pair: Send + Sync {
    /// Its number on its device.
    fn number(&self) -> u32;

    /// Maximum inline bytes of a request.
    fn inline_size(&self) -> usize;

    /// Sets how long a peer waits if it finds no receive ([`ibv::QueuePair::set_rnr_timer`]).
    ///
    /// # Errors
    /// The device's error.
    fn set_rnr_timer(&self, code: u8) -> Result<()>;

    /// Posts a request.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request ends or the queue pair is gone; inline data is readable
    /// during the call. A request that reads writes to the memory.
    unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()>;

    /// Posts a receive of its own.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and no other code uses it until the receive ends or the queue pair is gone.
    unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()>;
}

/// A completion queue. Queue pairs are dropped before it.
///
/// # Safety
/// A completion is reported once, under the id of its request or receive. The completion of a successful receive has
/// the number of bytes that were written from its start, or that a write with data has written to other memory.
pub unsafe trait Completions: Any + Send + Sync {
    /// Reads some entries, and returns their number.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> Result<usize>;

    /// Gives it room for at least `entries` entries. Those in it stay.
    ///
    /// # Errors
    /// The device's error; `ENOSYS` or `EOPNOTSUPP` if it cannot resize queues.
    fn resize(&self, entries: usize) -> Result<()>;

    /// Makes the descriptor readable at the next entry. Earlier entries do not make it readable.
    ///
    /// # Errors
    /// The device's error.
    fn arm(&self) -> Result<()>;

    /// Consumes the notification that made the descriptor readable.
    fn quiet(&self);

    /// The descriptor that [`Completions::arm`] arms.
    fn fd(&self) -> RawFd;

    /// The number by which events name it ([`super::AsyncEvent::QueueError`]).
    fn number(&self) -> usize;
}

/// A receive queue of several queue pairs.
///
/// # Safety
/// As [`Pair`], for its receives.
pub unsafe trait SharedQueue: Any + Send + Sync {
    /// The number by which events name it ([`super::AsyncEvent::SharedError`]).
    fn number(&self) -> usize;

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and no other code uses it until the receive ends or the queue is gone.
    unsafe fn post(&self, id: u64, to: &[Segment]) -> Result<()>;
}
