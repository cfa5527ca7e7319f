//! What connected endpoints need of a device: identifiers of rdma_cm, whose queue pairs have receives of their own or a
//! shared queue's, and requests of several pieces of memory.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CmEventKind, ConnParam, Post, Result, Segment, Work, WorkCompletion};

/// What a device can do for connected endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Requests, or receives, that a queue holds.
    pub queue: usize,
    /// Receives that a shared queue holds.
    pub shared: usize,
    /// Entries of a completion queue.
    pub completions: usize,
    /// Pieces of memory of a request.
    pub pieces: usize,
    /// Bytes of a message.
    pub longest: usize,
    /// How often it sends a packet again that nobody acknowledges, at most: a number of 3 bits.
    pub retries: u8,
    /// Whether it changes numbers in its peers' memory.
    pub atomics: bool,
}

/// How a queue pair is to be.
#[derive(Clone)]
pub struct PairAttr {
    /// Where ends of its requests and receives are reported.
    pub completions: Arc<dyn Completions>,
    /// Where its receives come from.
    pub receives: Receives,
    /// Requests that it holds.
    pub size: usize,
    /// Pieces of memory of a request.
    pub pieces: usize,
    /// Pieces of memory of a receive of its own.
    pub receive_pieces: usize,
    /// Bytes that a request carries itself, or fewer: as many as the device can.
    pub inline: usize,
}

/// Where receives come from.
#[derive(Clone)]
pub enum Receives {
    /// A queue that several queue pairs have.
    Shared(Arc<dyn SharedQueue>),
    /// So many of its own ([`Pair::receive`]).
    Own(usize),
}

/// A device, for connected endpoints.
pub trait Connects: Send + Sync {
    /// What it can do.
    ///
    /// # Errors
    /// What the device answers.
    fn abilities(&self) -> Result<Abilities>;

    /// Opens a channel.
    ///
    /// # Errors
    /// What the device answers.
    fn channel(&self) -> Result<Arc<dyn Channel>>;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// What the device answers.
    fn completions(&self, entries: usize) -> Result<Arc<dyn Completions>>;

    /// Makes a queue of receives of several queue pairs, which go before it.
    ///
    /// # Errors
    /// What the device answers.
    fn shared(&self, receives: usize, pieces: usize) -> Result<Arc<dyn SharedQueue>>;

    /// Gives an identifier a queue pair.
    ///
    /// # Errors
    /// What the device answers; `EXDEV` for an identifier, or queues, of another one.
    fn create_pair(&self, id: &mut dyn Identifier, attr: &PairAttr) -> Result<()>;
}

/// Where events of identifiers come.
pub trait Channel: Any + Send + Sync {
    /// A new identifier, at an address of this host. Port 0 is any.
    ///
    /// # Errors
    /// What the device answers.
    fn bind(self: Arc<Self>, at: SocketAddr) -> Result<Box<dyn Identifier>>;

    /// The next event, if there is one.
    ///
    /// # Errors
    /// What the device answers.
    fn next(self: Arc<Self>) -> Result<Option<IdEvent>>;

    /// Is readable while events wait.
    fn fd(&self) -> RawFd;

    /// The time by which waits for the peer are measured: a simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// What happened to an identifier.
pub struct IdEvent {
    /// What.
    pub kind: CmEventKind,
    /// To which ([`Identifier::number`]); of a request, the one that listens.
    pub id: usize,
    /// The identifier that came with a request.
    pub request: Option<Box<dyn Identifier>>,
    /// What the peer gave along.
    pub private_data: Vec<u8>,
}

/// What sockets are to TCP.
///
/// # Safety
/// When [`Identifier::destroy_pair`] returns, or this has been dropped, the device touches memory of its requests and
/// receives no more.
pub unsafe trait Identifier: Any + Send + Sync {
    /// Tells it from others while it is there.
    fn number(&self) -> usize;

    /// Has requests come to its channel.
    ///
    /// # Errors
    /// What the device answers.
    fn listen(&self, backlog: usize) -> Result<()>;

    /// Its own address.
    fn local_address(&self) -> Option<SocketAddr>;

    /// The address of the other end.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Has its events come to another channel, those that wait too.
    ///
    /// # Errors
    /// What the device answers.
    fn migrate(&mut self, channel: &Arc<dyn Channel>) -> Result<()>;

    /// Looks for the device that leads to an address: [`CmEventKind::AddressResolved`] follows, or why not.
    ///
    /// # Errors
    /// What the device answers.
    fn resolve_address(&self, to: SocketAddr, limit: Duration) -> Result<()>;

    /// Looks for a way: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// What the device answers.
    fn resolve_route(&self, limit: Duration) -> Result<()>;

    /// Asks for the connection: [`CmEventKind::Established`] follows, or why not.
    ///
    /// # Errors
    /// What the device answers.
    fn connect(&self, param: ConnParam<'_>) -> Result<()>;

    /// Grants it: [`CmEventKind::Established`] follows.
    ///
    /// # Errors
    /// What the device answers.
    fn accept(&self, param: ConnParam<'_>) -> Result<()>;

    /// Refuses it.
    ///
    /// # Errors
    /// What the device answers.
    fn reject(&self, private_data: &[u8]) -> Result<()>;

    /// Ends it: what is posted ends with [`super::Status::FLUSHED`].
    ///
    /// # Errors
    /// What the device answers.
    fn disconnect(&self) -> Result<()>;

    /// Its queue pair ([`Connects::create_pair`]).
    fn pair(&self) -> Option<&dyn Pair>;

    /// Takes the queue pair away.
    fn destroy_pair(&mut self);
}

/// A queue pair.
///
/// # Safety
/// Memory of a request or a receive is touched until its end was taken ([`Completions::poll`]) or the queue pair is
/// gone, at most. Only receives and what reads write to it.
pub unsafe trait Pair: Send + Sync {
    /// Bytes that a request carries itself.
    fn inline_size(&self) -> usize;

    /// How long a peer waits that finds no receive ([`ibv::QueuePair::set_rnr_timer`]).
    ///
    /// # Errors
    /// What the device answers.
    fn set_rnr_timer(&self, code: u8) -> Result<()>;

    /// Posts a request.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request ends or the queue pair is gone; what goes inline may be
    /// read during the call. The memory of what reads is written.
    unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()>;

    /// Posts a receive of its own.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and nobody else's until the receive ends or the queue pair is gone.
    unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()>;
}

/// A completion queue. Queue pairs go before it.
///
/// # Safety
/// An end is reported once, by the number with which its request or receive was posted; that of a successful receive
/// says how many bytes were written, from the first on, or by a write with data to memory elsewhere.
pub unsafe trait Completions: Any + Send + Sync {
    /// Takes some entries. How many there were.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> Result<usize>;

    /// Has the descriptor become readable with the next entry. What came before makes it not.
    ///
    /// # Errors
    /// What the device answers.
    fn arm(&self) -> Result<()>;

    /// Takes what made the descriptor readable.
    fn quiet(&self);

    /// Becomes readable as [`Completions::arm`] says.
    fn fd(&self) -> RawFd;
}

/// Receives of several queue pairs.
///
/// # Safety
/// As [`Pair`], for its receives.
pub unsafe trait SharedQueue: Any + Send + Sync {
    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The memory is registered, and nobody else's until the receive ends or the queue is gone.
    unsafe fn post(&self, id: u64, to: &[Segment]) -> Result<()>;
}
