//! What the transport needs of a device: SRD queue pairs, address handles, registrations. Messages of a queue pair
//! arrive once or are reported as failed, in any order.
//!
//! Devices are behind traits, so that the code that decides runs over a simulated fabric (`ofi_testkit::srd`) too.

mod system;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub use ibv::{Access, Remote};
use ofi_api::{Errno, Nic, Result};

/// A device's address on its fabric.
pub type Gid = [u8; 16];

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the longest message.
    pub mtu: usize,
    /// Work requests that may be under way on one queue pair.
    pub sends: usize,
    /// Receives that may be posted to one.
    pub receives: usize,
    /// Bytes that a send may carry in the request itself.
    pub inline: usize,
    /// Bytes of one read or write of a peer's memory; 0 if there are none.
    pub rdma: usize,
    /// Whether peers' memory can be read.
    pub read: bool,
    /// Whether peers' memory can be written.
    pub write: bool,
    /// Whether writes with data take no receive. Both ends do so, or neither.
    pub unsolicited: bool,
}

/// Registered memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its first byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: usize,
    /// Its registration.
    pub lkey: u32,
}

// SAFETY: an address, of memory that requests use under the promises of [`QueuePair::post`], whichever thread has the
// queue pair.
unsafe impl Send for Segment {}

/// The destination of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    /// The device, as [`QueuePair::attach`] answered.
    pub handle: u16,
    /// Its queue pair.
    pub qpn: u16,
    /// That queue pair's key.
    pub qkey: u32,
}

/// What a request does.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Sends a message, with data or without.
    Send {
        /// The message.
        from: Segment,
        /// Its bytes are copied into the request: the device does not look at the segment.
        inline: bool,
        /// What the receiver is told besides.
        data: Option<u32>,
    },
    /// Reads a peer's memory.
    Read {
        /// Where the bytes go.
        into: Segment,
        /// Where they are.
        at: Remote,
    },
    /// Writes to a peer's memory: the bytes are there when it has ended.
    Write {
        /// The bytes.
        from: Segment,
        /// Where they go.
        at: Remote,
        /// With data, the peer has a [`Completion::Written`].
        data: Option<u32>,
    },
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// Its number: it ends as a [`Completion::Sent`] of that.
    pub id: u64,
    /// The destination.
    pub to: To,
    /// What it does.
    pub action: Action,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is at its receiver.
    Done,
    /// The receiver has no receive posted. It may be sent again.
    NotReady,
    /// There is no such queue pair, or it has another key.
    NoDestination,
    /// The receiver's device does not answer.
    Unresponsive,
    /// The peer's memory is not registered under that key, not so far, or not for that.
    BadAddress,
    /// The queue pair is in error, and its requests come back.
    Flushed,
    /// The queue pair did not take it.
    Refused(Errno),
    /// Anything else, by the device's number for it.
    Failed(u32),
}

/// The sender of a message, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    /// The sender's device, if it was attached to.
    pub handle: Option<u16>,
    /// Its address, if the device says it.
    pub gid: Option<Gid>,
    /// Its queue pair.
    pub qpn: u16,
}

/// What came out of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A send, a read or a write has ended.
    Sent {
        /// As it was posted.
        id: u64,
        /// How.
        status: Status,
    },
    /// A message has come.
    Received {
        /// As the receive was posted.
        id: u64,
        /// Its length in bytes.
        len: usize,
        /// What the sender told with it.
        data: Option<u32>,
        /// The sender.
        from: From,
    },
    /// A peer has written to memory here, with data.
    Written {
        /// The receive that it took, as that was posted.
        id: Option<u64>,
        /// Bytes.
        len: usize,
        /// The data.
        data: u32,
        /// The initiator.
        from: From,
    },
    /// A receive came back without a message: the queue pair is in error.
    Returned {
        /// As it was posted.
        id: u64,
    },
}

/// Memory that a device may touch, until this is dropped.
///
/// # Safety
/// When it has been dropped, no request of a peer touches the memory any more.
pub unsafe trait Region: Send + Sync {
    /// What names it in requests of this end.
    fn lkey(&self) -> u32;
    /// What names it in requests of peers.
    fn rkey(&self) -> u32;
}

/// A device.
///
/// # Safety
/// [`Device::register`] hands out regions of just the memory that it is given, and [`Device::limits`] says no more than
/// the device keeps to: none of its messages is longer than its `mtu`.
pub unsafe trait Device: Send + Sync {
    /// Its name, such as `rdmap0s6`.
    fn name(&self) -> &str;
    /// Its address.
    fn gid(&self) -> Gid;
    /// What it can do.
    fn limits(&self) -> Limits;
    /// What is known of it.
    fn nic(&self) -> Nic;

    /// Registers memory for requests of its own queue pairs, and for what peers may do besides.
    ///
    /// # Errors
    /// What the device answers.
    ///
    /// # Safety
    /// The memory stays, and is only touched by raw pointers, until the region is dropped.
    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>>;

    /// Whether it can be told how often it asks a receiver again that is not ready.
    fn asks_again(&self) -> bool {
        false
    }

    /// Opens a queue pair for so many sends and receives at a time, which is ready for both. It asks receivers again
    /// `rnr_retry` times, or as often as it thinks best.
    ///
    /// # Errors
    /// What the device answers.
    fn open(&self, sends: usize, receives: usize, rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>>;
}

/// A queue pair with its completion queue.
///
/// # Safety
/// Memory of a request or a receive is touched from when it is posted until it has ended, and only as it asks for: a
/// completion says so of each once, under its number, with as many bytes as were written. A request that is refused,
/// and all of them once this is dropped, touch nothing more.
pub unsafe trait QueuePair: Send {
    /// Its number on the device.
    fn qpn(&self) -> u16;
    /// Its key: random, so that it tells endpoints apart that had the same number.
    fn qkey(&self) -> u32;

    /// The number of a device; the same for the same address.
    ///
    /// # Errors
    /// What the device answers.
    fn attach(&mut self, gid: &Gid) -> Result<u16>;

    /// Posts requests, and tells the device of all of them at once.
    ///
    /// # Errors
    /// What the device answers; none was posted then.
    ///
    /// # Safety
    /// Until a request has ended, its segment is registered, and is not written to; what a read fills is not touched.
    /// Bytes that go inline are readable during the call.
    unsafe fn post(&mut self, requests: &[WorkRequest]) -> Result<()>;

    /// Ends it: what is under way and what is posted comes back soon, and nothing more is taken.
    fn stop(&mut self);

    /// Posts receives, each under its number, and tells the device of all of them at once.
    ///
    /// # Errors
    /// What the device answers; some may have been posted.
    ///
    /// # Safety
    /// The segments are registered, and are not touched until their receives have ended.
    unsafe fn receive(&mut self, receives: &[(u64, Segment)]) -> Result<()>;

    /// Takes completions, and answers how many.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize>;

    /// Has the descriptor become readable with the next completion. What came before makes it not.
    ///
    /// # Errors
    /// What the device answers.
    fn arm(&mut self) -> Result<()>;

    /// The time by which waits for peers are measured: a simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The descriptor.
    fn fd(&self) -> RawFd;
}

/// Devices that are not the system's.
static ADDED: Mutex<Vec<Arc<dyn Device>>> = Mutex::new(Vec::new());

/// Adds a device that the provider offers from now on: one that is simulated, for tests.
pub fn add(device: Arc<dyn Device>) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// All devices: the system's, and those that were added.
///
/// # Errors
/// If there is none, what is missing.
pub fn devices() -> Result<Vec<Arc<dyn Device>>, String> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match system::all() {
        Ok(all) => Ok([all, &added].concat()),
        Err(why) if added.is_empty() => Err(why),
        Err(_) => Ok(added),
    }
}
