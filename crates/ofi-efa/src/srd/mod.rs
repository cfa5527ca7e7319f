//! The interface to a device: SRD queue pairs, address handles, registrations. A message to a queue pair arrives once
//! or is reported as failed, and messages arrive in any order.
//!
//! Devices are behind traits, so that the transport also runs over a simulated fabric (`ofi_testkit::srd`).

mod attached;
mod handles;
mod system;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub use ibv::{Access, Remote};
use ofi_api::{Dmabuf, Errno, Error, Nic, Result};

/// A device's address on its fabric.
pub type Gid = [u8; 16];

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Longest message in bytes.
    pub mtu: usize,
    /// Maximum number of work requests in flight on one queue pair.
    pub sends: usize,
    /// Maximum number of receives posted to one queue pair.
    pub receives: usize,
    /// Maximum bytes that a send can carry inline, in a request of 64 bytes.
    pub inline: usize,
    /// The same in a request of 128 bytes, if the device has such requests; else `inline`.
    pub inline_long: usize,
    /// Maximum bytes of one read or write of a peer's memory; 0 if the device has no RDMA.
    pub rdma: usize,
    /// Whether the device can read peers' memory.
    pub read: bool,
    /// Whether the device can write peers' memory.
    pub write: bool,
    /// Whether writes with data consume no receive. The setting is the same at both ends of a write.
    pub unsolicited: bool,
}

impl DeviceLimits {
    /// Maximum number of work requests in flight on a queue pair whose sends carry this many bytes inline. All its
    /// requests have one size, and the device has a fixed amount of memory for them.
    pub fn sends_of(&self, inline: usize) -> usize {
        if inline > self.inline { self.sends / 2 } else { self.sends }
    }
}

/// The requested sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Maximum number of sends in flight.
    pub sends: usize,
    /// Maximum number of posted receives.
    pub receives: usize,
    /// Maximum bytes that a send carries inline.
    pub inline: usize,
    /// Whether writes with data consume no receives.
    pub unsolicited: bool,
}

/// Registered memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its first byte.
    pub addr: *mut u8,
    /// Its length in bytes.
    pub len: usize,
    /// The key of its registration.
    pub lkey: u32,
}

// SAFETY: a segment is the address of memory that requests use under the promises of [`QueuePair::post`], whichever
// thread owns the queue pair.
unsafe impl Send for Segment {}

/// The destination of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    /// The number of its device, from [`QueuePair::attach`].
    pub handle: u16,
    /// Its queue pair on that device.
    pub qpn: u16,
    /// The queue pair's Q-Key.
    pub qkey: u32,
}

/// The action of a request.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Sends a message, with data or without.
    Send {
        /// The message.
        from: Segment,
        /// Whether the bytes are copied into the request, so that the device does not read the segment.
        inline: bool,
        /// Immediate data for the receiver.
        data: Option<u32>,
    },
    /// Reads a peer's memory.
    Read {
        /// Destination of the bytes.
        into: Segment,
        /// The peer's memory.
        at: Remote,
    },
    /// Writes to a peer's memory. The bytes are there when the request has ended.
    Write {
        /// The bytes.
        from: Segment,
        /// The peer's memory.
        at: Remote,
        /// With immediate data, the peer gets a [`Completion::Written`].
        data: Option<u32>,
    },
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// The id of its [`Completion::Sent`].
    pub id: u64,
    /// The destination.
    pub to: To,
    /// Its action.
    pub action: Action,
}

/// The status of a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The receiver has the message.
    Done,
    /// The receiver has no receive posted. The request may be posted again.
    NotReady,
    /// The queue pair does not exist, or has another Q-Key.
    NoDestination,
    /// The receiver's device does not answer.
    Unresponsive,
    /// The peer's memory is not registered under that key, in that range, or for that access.
    BadAddress,
    /// The peer has no address handle of this end's device, so its device executes no access.
    UnknownPeer,
    /// The queue pair is in error and returns its requests.
    Flushed,
    /// The queue pair refused the request.
    Refused(Errno),
    /// Any other error, by the device's number.
    Failed(u32),
}

/// The sender of a message, as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    /// The number of the sender's device, if it is attached.
    pub handle: Option<u16>,
    /// The address of the sender's device, if the device reports it.
    pub gid: Option<Gid>,
    /// Its queue pair.
    pub qpn: u16,
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A send, a read or a write has ended.
    Sent {
        /// The id of the request.
        id: u64,
        /// Its status.
        status: Status,
    },
    /// A message has arrived.
    Received {
        /// The id of the receive.
        id: u64,
        /// Its length in bytes.
        len: usize,
        /// Immediate data from the sender.
        data: Option<u32>,
        /// The sender.
        from: From,
    },
    /// A peer has written to memory here, with data.
    Written {
        /// The id of the receive that the write consumed.
        id: Option<u64>,
        /// Number of bytes written.
        len: usize,
        /// The immediate data.
        data: u32,
        /// The initiator.
        from: From,
    },
    /// The queue pair is in error and returns a receive without a message.
    Returned {
        /// The id of the receive.
        id: u64,
    },
}

/// Memory that a device may access, until this is dropped.
///
/// # Safety
/// After the drop, no request of a peer accesses the memory any more.
pub unsafe trait Region: Send + Sync {
    /// Its key in requests of this end.
    fn lkey(&self) -> u32;
    /// Its key in requests of peers.
    fn rkey(&self) -> u32;
}

/// A device.
///
/// # Safety
/// [`Device::register`] returns regions of exactly the memory that it is given. The device keeps to [`Device::limits`]:
/// none of its messages is longer than its `mtu`.
pub unsafe trait Device: Send + Sync {
    /// Its name, such as `rdmap0s6`.
    fn name(&self) -> &str;
    /// Its address.
    fn gid(&self) -> Gid;
    /// Its limits.
    fn limits(&self) -> DeviceLimits;
    /// Its description.
    fn nic(&self) -> Nic;

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
    /// The device's error; by default `FI_ENOSYS`.
    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        let _ = (dmabuf, len, iova, access);
        Err(Error::with(Errno::ENOSYS, "this device registers no dma-buf"))
    }

    /// Whether the number of its retries to a receiver that is not ready can be set.
    fn asks_again(&self) -> bool {
        false
    }

    /// Opens a queue pair that is ready. It retries a receiver that is not ready `rnr_retry` times, or as often as the
    /// device chooses.
    ///
    /// # Errors
    /// The device's error.
    fn open(&self, sizes: Sizes, rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>>;
}

/// A queue pair with its completion queue.
///
/// # Safety
/// The memory of a request or a receive is accessed only from its post to its completion, and only as the request says.
/// Each completes once, under its id, with the number of bytes that were written. A refused request accesses nothing,
/// and after the drop of the queue pair no request accesses memory.
pub unsafe trait QueuePair: Send {
    /// Its number on the device.
    fn qpn(&self) -> u16;
    /// Its Q-Key, which is random, so that it distinguishes endpoints that had the same number.
    fn qkey(&self) -> u32;

    /// The number of a device. It is the same for the same address.
    ///
    /// # Errors
    /// The device's error.
    fn attach(&mut self, gid: &Gid) -> Result<u16>;

    /// Posts requests, with one doorbell.
    ///
    /// # Errors
    /// The device's error. No request was posted then.
    ///
    /// # Safety
    /// Until a request has ended, its segment is registered and not written to, and the destination of a read is not
    /// accessed. Inline bytes are readable during the call.
    unsafe fn post(&mut self, requests: &[WorkRequest]) -> Result<()>;

    /// Whether the device is lost, or the queue pair has failed without a request: it completes nothing any more. Reads
    /// the device's events.
    fn is_lost(&mut self) -> bool {
        false
    }

    /// The descriptors that become readable when [`QueuePair::is_lost`] may have changed.
    fn event_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Stops the queue pair: it soon returns all requests and receives, and accepts no more.
    fn stop(&mut self);

    /// Posts receives, each under its number, with one doorbell.
    ///
    /// # Errors
    /// The device's error. Some may have been posted.
    ///
    /// # Safety
    /// The segments are registered, and are not accessed until their receives have ended.
    unsafe fn receive(&mut self, receives: &[(u64, Segment)]) -> Result<()>;

    /// Reads completions, and returns their number.
    ///
    /// # Errors
    /// The device is lost.
    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize>;

    /// Makes the descriptor readable at the next completion. Earlier completions do not make it readable.
    ///
    /// # Errors
    /// The device's error.
    fn arm(&mut self) -> Result<()>;

    /// Consumes the notification that made the descriptor readable.
    fn quiet(&mut self);

    /// The clock for timeouts of peers. A simulated fabric has its own.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// The descriptor that [`QueuePair::arm`] arms. `None` if the device has no notifications: threads that wait must
    /// poll.
    fn fd(&self) -> Option<RawFd>;
}

/// Devices that were added, besides the system's.
static ADDED: Mutex<Vec<Arc<dyn Device>>> = Mutex::new(Vec::new());

/// Adds a simulated device, for tests, which the provider offers from now on.
pub fn add(device: Arc<dyn Device>) {
    ADDED.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// All devices: the system's, and added ones.
///
/// # Errors
/// A text that says what is missing, if there are no devices.
pub fn devices() -> Result<Vec<Arc<dyn Device>>, String> {
    let added = ADDED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match system::all() {
        Ok(all) => Ok([all, added].concat()),
        Err(why) if added.is_empty() => Err(why),
        Err(_) => Ok(added),
    }
}
