//! The interface to a device for unreliable datagrams: a queue pair (UD), its completion queue, and routes to ports.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

pub use ibv::{Gid, GroupAddress};

use super::{Result, Segment, WorkCompletion};

/// A port's attributes for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdPort {
    /// Its address in route headers.
    pub gid: [u8; 16],
    /// Its address in its subnet (InfiniBand).
    pub lid: u16,
    /// Whether it is Ethernet (RoCE), whose datagrams carry no such addresses: some devices report anything there.
    pub is_ethernet: bool,
    /// Longest datagram in bytes.
    pub mtu: usize,
    /// Maximum number of sends, or receives, on a queue pair.
    pub queue: usize,
    /// Maximum number of entries of a completion queue.
    pub completions: usize,
    /// Maximum number of multicast groups; 0 if the device has none.
    pub groups: usize,
}

/// The queue pair to which datagrams for a multicast group are sent.
pub const MULTICAST: u32 = 0xFF_FFFF;

/// A membership of a multicast group, or the request for one. Dropping it leaves the group, and does not wait.
pub trait Membership: Send {
    /// The network's answer; `None` until it has arrived.
    ///
    /// # Errors
    /// The error with which the membership is refused.
    fn grant(&mut self) -> Result<Option<GroupAddress>>;

    /// The descriptor that is readable while an answer is queued.
    fn fd(&self) -> RawFd;
}

/// The attributes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdSizes {
    /// Number of sends.
    pub sends: usize,
    /// Number of receives.
    pub receives: usize,
    /// The Q-Key that datagrams must carry to be received.
    pub qkey: u32,
}

/// A device, for unreliable datagrams.
pub trait Datagrams: Send + Sync {
    /// The port with this address.
    ///
    /// # Errors
    /// The device's error.
    fn port(&self, ip: IpAddr) -> Result<UdPort>;

    /// Opens a queue pair on that port.
    ///
    /// # Errors
    /// The device's error.
    fn open(&self, ip: IpAddr, sizes: UdSizes) -> Result<Box<dyn UdQueues>>;
}

/// A route to a port ([`UdQueues::route`]): an address handle. It must exist until the sends along it have ended.
pub type UdRoute = Arc<dyn Any + Send + Sync>;

/// The destination of a datagram.
#[derive(Clone, Copy)]
pub struct UdTarget<'a> {
    /// The route to its port.
    pub route: &'a UdRoute,
    /// The queue pair at that port.
    pub qp: u32,
    /// The queue pair's Q-Key.
    pub qkey: u32,
}

/// A queue pair for datagrams, and its completion queue.
///
/// # Safety
/// The memory of a send or a receive is accessed only until its completion was taken ([`UdQueues::poll`]) or this is
/// dropped; only receives are written to. A completion is reported once, under the id of its send or receive. The
/// completion of a successful receive has the number of bytes that were written, of which the first [`ibv::GRH`] are a
/// route header or unused.
pub unsafe trait UdQueues: Send {
    /// The queue pair's number.
    fn number(&self) -> u32;

    /// A route to a port: by its GID if it has one, else by its LID.
    ///
    /// # Errors
    /// The device's error; `ENOMEM` if the device holds no more routes.
    fn route(&self, gid: Option<[u8; 16]>, lid: u16) -> Result<UdRoute>;

    /// Starts to join a multicast group. The network answers later ([`Membership::grant`]).
    ///
    /// # Errors
    /// The device's error.
    fn join(&self, group: IpAddr) -> Result<Box<dyn Membership>>;

    /// Receives what is sent to a group, from now on.
    ///
    /// # Errors
    /// The device's error.
    fn attach(&mut self, group: GroupAddress) -> Result<()>;

    /// Stops receiving what is sent to a group. Datagrams that have arrived are still reported.
    fn detach(&mut self, group: GroupAddress);

    /// Posts a datagram, with `data` as immediate data if there is any.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not written to until the send has ended; the route exists as long.
    unsafe fn send(&self, id: u64, from: Segment, to: UdTarget<'_>, data: Option<u32>) -> Result<()>;

    /// Posts a receive, for a route header and a datagram.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and no other code uses it until the receive has ended or this is dropped.
    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()>;

    /// Reads some completions, and returns their number.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize>;

    /// Makes the descriptor readable at the next completion. Earlier completions do not make it readable.
    ///
    /// # Errors
    /// The device's error.
    fn arm(&self) -> Result<()>;

    /// Consumes the notification that made the descriptor readable.
    fn quiet(&self);

    /// The descriptor that [`UdQueues::arm`] arms.
    fn fd(&self) -> RawFd;

    /// Whether events name its completion queue by this number ([`super::AsyncEvent::QueueError`]).
    fn has_queue(&self, number: usize) -> bool;
}
