//! What endpoints need of a device, reliable datagrams here, connected ones in [`msg`], unreliable datagrams in [`ud`]:
//! queue pairs that rdma_cm connects, receives and completions that all of an endpoint's share, registrations.
//!
//! Devices are behind traits, so that the code that decides runs over a simulated fabric (`ofi_testkit::rc`) too. What
//! is posted and what comes out of completion queues is as the interface of verbs has it.

pub mod msg;
pub(crate) mod msg_system;
mod system;
pub mod ud;
pub(crate) mod ud_system;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use ibv::{
    Access, CmEventKind, ConnParam, Error, Opcode, Post, Remote, Result, Segment, Status, Work,
    WorkCompletion,
};

pub(crate) use system::{Port, System};

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs, and so connections.
    pub connections: usize,
    /// Requests that one queue pair holds.
    pub requests: usize,
    /// Receives that a shared queue holds.
    pub receives: usize,
    /// Entries of a completion queue.
    pub completions: usize,
}

/// How much an endpoint wants of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests of each of its queue pairs.
    pub requests: usize,
    /// Receives of all of them.
    pub receives: usize,
    /// Ends of requests and receives that were not looked at.
    pub completions: usize,
    /// Bytes that a request carries itself, if the device can.
    pub inline: usize,
}

/// Memory that a device may touch, until this is dropped.
///
/// # Safety
/// The keys name the memory that was registered, and nothing else. When this has been dropped, no device touches the
/// memory by them.
pub unsafe trait Region: Send + Sync {
    /// What names it in requests of this end.
    fn lkey(&self) -> u32;
    /// What names it in requests of peers.
    fn rkey(&self) -> u32;
}

/// A device.
///
/// # Safety
/// It touches only memory that was registered ([`Device::register`]), as long as it is and as `access` allows, and what
/// goes inline during the call.
pub unsafe trait Device: Send + Sync {
    /// Its name, such as `mlx5_0`.
    fn name(&self) -> String;

    /// The addresses by which its endpoints are met.
    fn addresses(&self) -> Vec<IpAddr>;

    /// What it can do.
    ///
    /// # Errors
    /// What the device answers.
    fn limits(&self) -> Result<Limits>;

    /// Registers memory for requests of its own queue pairs, and for what peers may do besides.
    ///
    /// # Errors
    /// What the device answers.
    ///
    /// # Safety
    /// The memory stays, and is only touched by raw pointers, until the region is dropped.
    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>>;

    /// Opens what an endpoint has of it.
    ///
    /// # Errors
    /// What the device answers.
    fn open(&self, sizes: Sizes) -> Result<Box<dyn Queues>>;

    /// What connected endpoints have of it, if it has them.
    fn connects(&self) -> Option<&dyn msg::Connects> {
        None
    }

    /// What endpoints of unreliable datagrams have of it, if it has them.
    fn datagrams(&self) -> Option<&dyn ud::Datagrams> {
        None
    }
}

/// What an endpoint has of a device: a completion queue, a shared receive queue, and events of its connections.
/// Connections go before it.
///
/// # Safety
/// A receive's memory is written from [`Queues::receive`] until its end was taken ([`Queues::poll`]) at most, and no
/// more once this is dropped. An end is reported once, by the number with which its request or receive was posted; that
/// of a successful receive says how many bytes were written, from the first on.
pub unsafe trait Queues: Send {
    /// Has connections asked for at an address, as long as this is there. Port 0 is any; the answer says which.
    ///
    /// # Errors
    /// What the device answers.
    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr>;

    /// Begins to connect: [`CmEventKind::AddressResolved`] follows, or why not.
    ///
    /// # Errors
    /// What the device answers.
    fn call(&self, from: SocketAddr, to: SocketAddr, limit: Duration) -> Result<Box<dyn Connection>>;

    /// The next event of a connection, if there is one.
    ///
    /// # Errors
    /// What the device answers.
    fn event(&self) -> Result<Option<Event>>;

    /// Posts a receive, for whatever comes over any of the connections.
    ///
    /// # Errors
    /// What the device answers; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and nobody else's until the receive has ended or this is gone.
    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()>;

    /// Takes some completions, and answers how many.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize>;

    /// Has the first descriptor become readable with the next completion. What came before makes it not.
    ///
    /// # Errors
    /// What the device answers.
    fn arm(&self) -> Result<()>;

    /// Becomes readable with completions, as [`Queues::arm`] says.
    fn fd(&self) -> RawFd;

    /// Is readable while events of connections wait.
    fn event_fd(&self) -> RawFd;

    /// The time by which waits for peers are measured: a simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// What happened to a connection.
pub struct Event {
    /// What.
    pub kind: CmEventKind,
    /// To which ([`Connection::number`]).
    pub id: usize,
    /// The connection that a peer asks for.
    pub request: Option<Box<dyn Connection>>,
    /// What the peer gave along.
    pub private_data: Vec<u8>,
}

/// A connection, or what is to become one.
///
/// # Safety
/// Once it is dropped, the device touches memory of its requests no more. While it is there, memory of a request is
/// touched until its end was taken ([`Queues::poll`]), or that of a later one if it is quiet, at most; and only reads
/// write to it, all of it where they succeed.
pub unsafe trait Connection: Send {
    /// Tells it from others while it is there.
    fn number(&self) -> usize;

    /// The address of the other end.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Looks for a way: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// What the device answers.
    fn resolve_route(&self, limit: Duration) -> Result<()>;

    /// Gives it a queue pair.
    ///
    /// # Errors
    /// What the device answers.
    fn create_qp(&mut self) -> Result<()>;

    /// The queue pair's number, and the bytes that its requests carry themselves.
    fn qp(&self) -> Option<(u32, usize)>;

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

    /// Ends it: what is posted ends with [`Status::FLUSHED`].
    ///
    /// # Errors
    /// What the device answers.
    fn disconnect(&self) -> Result<()>;

    /// Posts a send, into a receive of the peer.
    ///
    /// # Errors
    /// What the device answers; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not written to until the send has ended; what goes inline may be read during
    /// the call.
    unsafe fn send(&self, id: u64, from: Segment, how: Post) -> Result<()>;

    /// Posts a write to the peer's memory. One of no bytes touches none, whatever the key.
    ///
    /// # Errors
    /// What the device answers; nothing was posted then.
    ///
    /// # Safety
    /// As [`Connection::send`].
    unsafe fn write(&self, id: u64, from: Segment, to: Remote, how: Post) -> Result<()>;

    /// Posts a read of the peer's memory.
    ///
    /// # Errors
    /// What the device answers; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not touched until the read has ended.
    unsafe fn read(&self, id: u64, into: Segment, from: Remote) -> Result<()>;
}

/// Devices that are not the system's.
static ADDED: Mutex<Vec<Arc<dyn Device>>> = Mutex::new(Vec::new());

/// Adds a device that the provider offers from now on, for reliable datagrams, and for connected endpoints and
/// unreliable datagrams if it has them ([`Device::connects`], [`Device::datagrams`]): one that is simulated, for tests.
pub fn add(device: Arc<dyn Device>) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// Those that were added.
pub(crate) fn added() -> Vec<Arc<dyn Device>> {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
