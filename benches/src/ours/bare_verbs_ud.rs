//! The stand-in of [`super::bare_verbs`] for unreliable datagrams.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ofi_verbs::rc::ud::{Datagrams, GroupAddress, Membership, UdPort, UdQueues, UdRoute, UdSizes, UdTarget};
use ofi_verbs::rc::{Opcode, Result, Segment, WorkCompletion};

use super::bare_verbs::{Bare, completion, error, silent};

/// Bytes in front of a datagram, which are left as they are.
const HEADER: usize = 40;
/// The address of the port in route headers.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 9, 9, 9];

/// A queue pair.
#[derive(Default)]
struct Queue {
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<WorkCompletion>,
}

thread_local! {
    /// The queue pairs by their numbers, from 1 on. A path has one thread.
    static QUEUES: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
}

impl Datagrams for Bare {
    fn port(&self, _ip: IpAddr) -> Result<UdPort> {
        Ok(UdPort {
            gid: GID,
            lid: 0,
            is_ethernet: true,
            mtu: 4096,
            queue: 1024,
            completions: 1 << 16,
            groups: 0,
        })
    }

    fn open(&self, _ip: IpAddr, _sizes: UdSizes) -> Result<Box<dyn UdQueues>> {
        let number = QUEUES.with_borrow_mut(|queues| {
            queues.push(Queue::default());
            queues.len()
        });
        Ok(Box::new(Opened { number, silent: silent()? }))
    }
}

struct Opened {
    number: usize,
    /// Never become readable.
    silent: [OwnedFd; 2],
}

impl Opened {
    fn with<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        QUEUES.with_borrow_mut(|queues| act(&mut queues[self.number - 1]))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.with(std::mem::take); // the memory of its receives goes next
    }
}

// SAFETY: a send is done when it is posted; a receive is written when a send to it is posted, and its completion is
// reported once, with what was written.
unsafe impl UdQueues for Opened {
    fn number(&self) -> u32 {
        self.number as u32
    }

    fn route(&self, _gid: Option<[u8; 16]>, _lid: u16) -> Result<UdRoute> {
        Ok(Arc::new(()))
    }

    fn join(&self, _group: IpAddr) -> Result<Box<dyn Membership>> {
        Err(error("rdma_join_multicast", libc::EOPNOTSUPP))
    }

    fn attach(&mut self, _group: GroupAddress) -> Result<()> {
        Err(error("ibv_attach_mcast", libc::EOPNOTSUPP))
    }

    fn detach(&mut self, _group: GroupAddress) {}

    unsafe fn send(&self, id: u64, from: Segment, to: UdTarget<'_>, data: Option<u32>) -> Result<()> {
        QUEUES.with_borrow_mut(|queues| {
            let len = from.len as usize;
            // Without a receive, a datagram is lost.
            let peer = queues.get_mut((to.qp as usize).wrapping_sub(1));
            if let Some(peer) = peer
                && let Some((receive, into)) = peer.receives.pop_front()
            {
                // SAFETY: both are lent to this send and that receive, which has room for the longest datagram.
                unsafe { from.addr.copy_to_nonoverlapping(into.addr.wrapping_add(HEADER), len) };
                let done = completion(receive, Opcode::Receive, to.qp, HEADER + len);
                peer.done.push_back(WorkCompletion { data, source_qp: self.number as u32, ..done });
            }
            let own = &mut queues[self.number - 1];
            own.done.push_back(completion(id, Opcode::Request, self.number as u32, 0));
            Ok(())
        })
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        self.with(|queue| queue.receives.push_back((id, into)));
        Ok(())
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        self.with(|queue| {
            let count = queue.done.len();
            into.extend(queue.done.drain(..));
            Ok(count)
        })
    }

    fn arm(&self) -> Result<()> {
        Ok(())
    }

    fn quiet(&self) {}

    fn fd(&self) -> RawFd {
        self.silent[0].as_raw_fd()
    }

    fn has_queue(&self, _number: usize) -> bool {
        false
    }
}
