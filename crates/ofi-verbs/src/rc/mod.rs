//! The interface to a device: reliable datagrams here, connected endpoints in [`msg`], unreliable datagrams in [`ud`].
//! An endpoint has queue pairs that rdma_cm connects, receives and completions that its queue pairs share, and
//! registrations.
//!
//! Devices are behind traits, so that the transport also runs over a simulated fabric (`ofi_testkit::rc`). Requests and
//! completions are those of the verbs interface.

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
    Access, AsyncEvent, CmEventKind, ConnParam, Error, Opcode, Post, Remote, Result, Segment, Status, Timers,
    Work, WorkCompletion, refusal,
};
use ofi_api::Dmabuf;

pub(crate) use system::{Port, System};

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Maximum number of queue pairs, and so of connections.
    pub connections: usize,
    /// Maximum number of requests on one queue pair.
    pub requests: usize,
    /// Maximum number of receives in a shared queue.
    pub receives: usize,
    /// Maximum number of entries of a completion queue.
    pub completions: usize,
}

/// The queue sizes that an endpoint requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests on each of its queue pairs.
    pub requests: usize,
    /// Receives of all of them together.
    pub receives: usize,
    /// Entries of the completion queue.
    pub completions: usize,
    /// Inline bytes of a request, if the device allows them.
    pub inline: usize,
}

/// Memory that a device may access, until this is dropped.
///
/// # Safety
/// The keys name exactly the memory that was registered. After the drop, no device accesses the memory by them.
pub unsafe trait Region: Send + Sync {
    /// Its key in requests of this end.
    fn lkey(&self) -> u32;
    /// Its key in requests of peers.
    fn rkey(&self) -> u32;
}

/// A device.
///
/// # Safety
/// It accesses only registered memory ([`Device::register`]), while it is registered and as `access` allows, and inline
/// data during the call.
pub unsafe trait Device: Send + Sync {
    /// Its name, such as `mlx5_0`.
    fn name(&self) -> String;

    /// The addresses of its endpoints.
    fn addresses(&self) -> Vec<IpAddr>;

    /// Its limits.
    ///
    /// # Errors
    /// The device's error.
    fn limits(&self) -> Result<DeviceLimits>;

    /// Registers memory for requests of its own queue pairs, and for the accesses of peers that `access` allows.
    ///
    /// # Errors
    /// The device's error.
    ///
    /// # Safety
    /// The memory stays allocated, and is only accessed by raw pointers, until the region is dropped.
    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>>;

    /// Registers memory behind a descriptor, which accesses address from `iova` on.
    ///
    /// # Errors
    /// The device's error; by default that it cannot.
    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        let _ = (dmabuf, len, iova, access);
        let advice = "this device registers no dma-buf".into();
        Err(Error { call: "ibv_reg_dmabuf_mr", errno: libc::EOPNOTSUPP, advice })
    }

    /// Opens an endpoint's queues.
    ///
    /// # Errors
    /// The device's error.
    fn open(&self, sizes: Sizes) -> Result<Box<dyn Queues>>;

    /// Its asynchronous events from now on. An earlier loss of the device is reported, too.
    ///
    /// # Errors
    /// The device's error.
    fn events(&self) -> Result<Box<dyn Events>>;

    /// The interface for connected endpoints, if the device has them.
    fn connects(&self) -> Option<&dyn msg::Connects> {
        None
    }

    /// The interface for unreliable datagrams, if the device has them.
    fn datagrams(&self) -> Option<&dyn ud::Datagrams> {
        None
    }
}

/// The asynchronous events of a device. Of the events of ports, only those of the domain's port.
pub trait Events: Send + Sync {
    /// The next event, if there is one.
    ///
    /// # Errors
    /// The device's error.
    fn next(&self) -> Result<Option<AsyncEvent>>;

    /// The descriptors, of which at least one is readable while an event is queued. They may stay readable after
    /// [`AsyncEvent::DeviceFatal`].
    fn fds(&self) -> Vec<RawFd>;

    /// Reports the next [`AsyncEvent::LastReceive`] of a new queue pair, which is not reported otherwise. What is
    /// queued about its number is dropped, as it is about an earlier one: call this before the queue pair is connected.
    /// With `false`, no longer.
    fn follow(&self, qp: u32, follow: bool) {
        let _ = (qp, follow);
    }

    /// Number of events that were dropped because too many were queued.
    fn lost(&self) -> u64 {
        0
    }
}

/// An endpoint's queues on a device: a completion queue, a shared receive queue, and events of its connections.
/// Connections are dropped before it.
///
/// # Safety
/// A receive's memory is written only from [`Queues::receive`] until its completion was read ([`Queues::poll`]) or this
/// is dropped. A completion is reported once, under the id of its request or receive. The completion of a successful
/// receive has the number of bytes that were written from its start.
pub unsafe trait Queues: Send {
    /// Listens for connections at an address, as long as this exists. Port 0 is any. Returns the actual address.
    ///
    /// # Errors
    /// The device's error.
    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr>;

    /// Starts to connect: [`CmEventKind::AddressResolved`] follows, or an event of the failure.
    ///
    /// # Errors
    /// The device's error.
    fn call(&self, from: SocketAddr, to: SocketAddr, limit: Duration) -> Result<Box<dyn Connection>>;

    /// The next event of a connection, if there is one.
    ///
    /// # Errors
    /// The device's error.
    fn event(&self) -> Result<Option<Event>>;

    /// Posts a receive, for the next message on any of the connections.
    ///
    /// # Errors
    /// The device's error. Nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and no other code uses it until the receive has ended or this is dropped.
    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()>;

    /// Reads some completions, and returns their number.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize>;

    /// Makes the completion descriptor readable at the next completion. Earlier completions do not make it readable.
    ///
    /// # Errors
    /// The device's error.
    fn arm(&self) -> Result<()>;

    /// Consumes the notification that made the descriptor readable.
    fn quiet(&self);

    /// The descriptor that [`Queues::arm`] arms.
    fn fd(&self) -> RawFd;

    /// The descriptor that is readable while events of connections are queued.
    fn event_fd(&self) -> RawFd;

    /// Whether events name one of its queues by this number ([`AsyncEvent::failed_queue`]).
    fn has_queue(&self, number: usize) -> bool;

    /// The clock for timeouts of peers. A simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// An event of a connection.
pub struct Event {
    /// The kind of the event.
    pub kind: CmEventKind,
    /// The number of the connection ([`Connection::number`]).
    pub id: usize,
    /// The connection of a peer's request.
    pub request: Option<Box<dyn Connection>>,
    /// The reason of a rejection ([`ibv::refusal`]), or an error number.
    pub status: i32,
    /// The peer's private data.
    pub private_data: Vec<u8>,
}

/// A connection, established or not.
///
/// # Safety
/// Once it is dropped, the device no longer accesses the memory of its requests. While it exists, the memory of a
/// request is accessed only until the request's completion was read ([`Queues::poll`]), or for a quiet request that of
/// a later one. Only reads write to their memory, and successful reads to all of it.
pub unsafe trait Connection: Send {
    /// Distinguishes the connection from others while it exists.
    fn number(&self) -> usize;

    /// The address of the other end.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Resolves the route: [`CmEventKind::RouteResolved`] follows.
    ///
    /// # Errors
    /// The device's error.
    fn resolve_route(&self, limit: Duration) -> Result<()>;

    /// Creates the queue pair.
    ///
    /// # Errors
    /// The device's error.
    fn create_qp(&mut self) -> Result<()>;

    /// Sets how long the queue pair waits for an acknowledgement ([`ibv::CmId::set_ack_timeout`]): before
    /// [`Connection::connect`] and [`Connection::accept`] only.
    ///
    /// # Errors
    /// The device's error; `ENOSYS` if its kernel has no such option.
    fn set_ack_timeout(&self, code: u8) -> Result<()>;

    /// Sets how long a peer waits if it finds no receive ([`ibv::QueuePair::set_rnr_timer`]).
    ///
    /// # Errors
    /// The device's error.
    fn set_rnr_timer(&self, code: u8) -> Result<()>;

    /// The queue pair's number, and the maximum inline bytes of its requests.
    fn qp(&self) -> Option<(u32, usize)>;

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

    /// Disconnects: posted requests end with [`Status::FLUSHED`].
    ///
    /// # Errors
    /// The device's error.
    fn disconnect(&self) -> Result<()>;

    /// Posts a send, into a receive of the peer.
    ///
    /// # Errors
    /// The device's error. Nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not written to until the send has ended; inline data is readable during the
    /// call.
    unsafe fn send(&self, id: u64, from: Segment, how: Post) -> Result<()>;

    /// Posts a write to the peer's memory. A write of no bytes accesses none, whatever the key.
    ///
    /// # Errors
    /// The device's error. Nothing was posted then.
    ///
    /// # Safety
    /// As [`Connection::send`].
    unsafe fn write(&self, id: u64, from: Segment, to: Remote, how: Post) -> Result<()>;

    /// Posts a read of the peer's memory.
    ///
    /// # Errors
    /// The device's error. Nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not accessed until the read has ended.
    unsafe fn read(&self, id: u64, into: Segment, from: Remote) -> Result<()>;
}

/// Added devices, besides the system's.
static ADDED: Mutex<Vec<Arc<dyn Device>>> = Mutex::new(Vec::new());

/// Adds a simulated device, for tests, which the provider offers from now on. It serves reliable datagrams, and
/// connected endpoints and unreliable datagrams if it has them ([`Device::connects`], [`Device::datagrams`]).
pub fn add(device: Arc<dyn Device>) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// The added devices.
pub(crate) fn added() -> Vec<Arc<dyn Device>> {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
