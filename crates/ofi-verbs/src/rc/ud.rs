//! What endpoints of unreliable datagrams need of a device: a queue pair (UD), its completion queue, and routes to
//! ports.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{Result, Segment, WorkCompletion};

/// A port, as datagrams see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdPort {
    /// What names it in route headers.
    pub gid: [u8; 16],
    /// What names it in its subnet (InfiniBand).
    pub lid: u16,
    /// Bytes of the longest datagram.
    pub mtu: usize,
    /// Sends, or receives, that a queue pair holds.
    pub queue: usize,
    /// Entries of a completion queue.
    pub completions: usize,
}

/// How a queue pair is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdSizes {
    /// Sends that it holds.
    pub sends: usize,
    /// Receives that it holds.
    pub receives: usize,
    /// What datagrams must name to be taken.
    pub qkey: u32,
}

/// A device, for unreliable datagrams.
pub trait Datagrams: Send + Sync {
    /// The port that has this address.
    ///
    /// # Errors
    /// What the device answers.
    fn port(&self, ip: IpAddr) -> Result<UdPort>;

    /// Opens a queue pair there.
    ///
    /// # Errors
    /// What the device answers.
    fn open(&self, ip: IpAddr, sizes: UdSizes) -> Result<Box<dyn UdQueues>>;
}

/// A way to a port ([`UdQueues::route`]): an address handle. It stays until the sends along it have ended.
pub type Route = Arc<dyn Any + Send + Sync>;

/// Where a datagram goes.
#[derive(Clone, Copy)]
pub struct UdTarget<'a> {
    /// The way to its port.
    pub route: &'a Route,
    /// The queue pair there.
    pub qp: u32,
    /// Its key.
    pub qkey: u32,
}

/// A queue pair for datagrams, and its completion queue.
///
/// # Safety
/// Memory of a send or a receive is touched until its end was taken ([`UdQueues::poll`]) or this is gone, at most; only
/// receives are written to. An end is reported once, by the number with which its send or receive was posted; that of a
/// successful receive says how many bytes were written, the first [`ibv::GRH`] of them a route header or nothing.
pub unsafe trait UdQueues: Send {
    /// The queue pair's number.
    fn number(&self) -> u32;

    /// The way to a port: by its GID if it has one, else by its LID.
    ///
    /// # Errors
    /// What the device answers; `ENOMEM` if it holds no more of them.
    fn route(&self, gid: Option<[u8; 16]>, lid: u16) -> Result<Route>;

    /// Posts a datagram, with `data` as immediate data if there is any.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and is not written to until the send has ended; the route stays as long.
    unsafe fn send(&self, id: u64, from: Segment, to: UdTarget<'_>, data: Option<u32>) -> Result<()>;

    /// Posts a receive, for a route header and a datagram.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; nothing was posted then.
    ///
    /// # Safety
    /// The segment is registered, and nobody else's until the receive has ended or this is gone.
    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()>;

    /// Takes some completions, and answers how many.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize>;

    /// Has the descriptor become readable with the next completion. What came before makes it not.
    ///
    /// # Errors
    /// What the device answers.
    fn arm(&self) -> Result<()>;

    /// Becomes readable as [`UdQueues::arm`] says.
    fn fd(&self) -> RawFd;
}
