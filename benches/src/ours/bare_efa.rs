//! A stand-in for an EFA device, for counting the library's work above one. Its requests complete when they are posted,
//! in this thread, with few instructions. It says nothing about a device's speed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ofi::raw::{Errno, Error, Nic, Result};
use ofi_efa::srd::{
    Access, Action, Completion, Device, DeviceLimits, From, Gid, QueuePair, Region, Segment, Sizes, Status,
    To, WorkRequest,
};

/// The name of the device and of its domain.
const NAME: &str = "bare0";
pub const DOMAIN: &str = "bare0-rdm";
const GID: Gid = [7; 16];
/// The key of every queue pair.
const QKEY: u32 = 7;

#[derive(Default)]
struct Queue {
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<Completion>,
}

thread_local! {
    /// Indexed by their numbers. A path has one thread.
    static QUEUES: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
}

/// Adds the device to those that provider `efa` offers.
pub fn add() {
    ofi_efa::srd::add(Arc::new(Bare));
}

struct Bare;

/// A registration. All memory counts as registered.
struct Registered;

// SAFETY: requests are done while they are posted, and no peer's touches anything later.
unsafe impl Region for Registered {
    fn lkey(&self) -> u32 {
        1
    }

    fn rkey(&self) -> u32 {
        1
    }
}

// SAFETY: a path registers what it uses, and no message of one is longer than the MTU.
unsafe impl Device for Bare {
    fn name(&self) -> &str {
        NAME
    }

    fn gid(&self) -> Gid {
        GID
    }

    fn limits(&self) -> DeviceLimits {
        DeviceLimits {
            mtu: 8760,
            sends: 1024,
            receives: 1024,
            inline: 32,
            inline_long: 32,
            rdma: 1 << 30,
            read: true,
            write: true,
            unsolicited: true,
        }
    }

    fn nic(&self) -> Nic {
        Nic::default()
    }

    unsafe fn register(&self, _addr: *mut u8, _len: usize, _access: Access) -> Result<Box<dyn Region>> {
        Ok(Box::new(Registered))
    }

    fn open(&self, _sizes: Sizes, _rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>> {
        let qpn = QUEUES.with_borrow_mut(|queues| {
            // No queue pair has the first number, as on a device.
            queues.resize_with(queues.len().max(1) + 1, Queue::default);
            queues.len() - 1
        });
        let pipe = std::io::pipe().map_err(|_| Error::new(Errno::EMFILE))?;
        Ok(Box::new(Pair { qpn: qpn as u16, silent: [pipe.0.into(), pipe.1.into()] }))
    }
}

struct Pair {
    qpn: u16,
    /// Never becomes readable.
    silent: [OwnedFd; 2],
}

// SAFETY: a request is done, and its memory left alone, when `post` returns; a receive ends once, with what was
// written.
unsafe impl QueuePair for Pair {
    fn qpn(&self) -> u16 {
        self.qpn
    }

    fn qkey(&self) -> u32 {
        QKEY
    }

    fn attach(&mut self, _gid: &Gid) -> Result<u16> {
        Ok(0)
    }

    unsafe fn post(&mut self, requests: &[WorkRequest]) -> Result<()> {
        QUEUES.with_borrow_mut(|queues| {
            for &WorkRequest { id, to, action } in requests {
                let status = deliver(queues, self.qpn, to, action);
                queues[usize::from(self.qpn)].done.push_back(Completion::Sent { id, status });
            }
        });
        Ok(())
    }

    fn stop(&mut self) {}

    unsafe fn receive(&mut self, receives: &[(u64, Segment)]) -> Result<()> {
        QUEUES.with_borrow_mut(|queues| queues[usize::from(self.qpn)].receives.extend(receives));
        Ok(())
    }

    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize> {
        QUEUES.with_borrow_mut(|queues| {
            let done = &mut queues[usize::from(self.qpn)].done;
            let count = done.len();
            into.extend(done.drain(..));
            Ok(count)
        })
    }

    fn arm(&mut self) -> Result<()> {
        Ok(())
    }

    fn quiet(&mut self) {}

    fn fd(&self) -> Option<RawFd> {
        Some(self.silent[0].as_raw_fd())
    }
}

fn deliver(queues: &mut [Queue], from: u16, to: To, action: Action) -> Status {
    match action {
        Action::Send { from: bytes, data, .. } => {
            let Some(peer) = queues.get_mut(usize::from(to.qpn)) else { return Status::NoDestination };
            let Some((id, into)) = peer.receives.pop_front() else { return Status::NotReady };
            // SAFETY: both are lent to this request and that receive, and a packet fits.
            unsafe { bytes.addr.copy_to_nonoverlapping(into.addr, bytes.len) };
            let from = From { handle: Some(0), gid: None, qpn: from };
            peer.done.push_back(Completion::Received { id, len: bytes.len, data, from });
        }
        Action::Read { into, at } => {
            let at = std::ptr::with_exposed_provenance::<u8>(at.addr as usize);
            // SAFETY: the paths name memory that they have registered, of that length.
            unsafe { at.copy_to_nonoverlapping(into.addr, into.len) };
        }
        Action::Write { from: bytes, at, .. } => {
            let at = std::ptr::with_exposed_provenance_mut::<u8>(at.addr as usize);
            // SAFETY: as above.
            unsafe { bytes.addr.copy_to_nonoverlapping(at, bytes.len) };
        }
    }
    Status::Done
}
