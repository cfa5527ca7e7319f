//! Asynchronous events of the simulated device, which tests cause.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ofi_core::sys;
use ofi_verbs::rc::{AsyncEvent, CmEventKind, Events, Result};

use super::SimulatedDevice;
use super::device::error;
use super::fabric::Fabric;

/// The events that wait for one [`Watching`].
pub struct Watcher {
    waiting: VecDeque<AsyncEvent>,
    /// Readable while there are any.
    fd: OwnedFd,
    /// Queue pairs whose last receive is told.
    followed: BTreeSet<u32>,
}

impl Watcher {
    fn put(&mut self, event: AsyncEvent) {
        if let AsyncEvent::LastReceive(qp) = event
            && !self.followed.remove(&qp)
        {
            return;
        }
        self.waiting.push_back(event);
        sys::signal_eventfd(&self.fd);
    }
}

impl Fabric {
    /// Tells an event to everyone.
    pub fn raise(&mut self, event: AsyncEvent) {
        self.watchers.values_mut().for_each(|watcher| watcher.put(event));
    }
}

/// See [`Events`].
pub struct Watching {
    device: Arc<SimulatedDevice>,
    number: u64,
    fd: RawFd,
}

impl Watching {
    pub fn new(device: &Arc<SimulatedDevice>) -> Result<Self> {
        let fd = sys::eventfd().map_err(|_| error("eventfd", libc::EMFILE))?;
        let raw = fd.as_raw_fd();
        let mut fabric = device.lock();
        let mut watcher = Watcher { waiting: VecDeque::new(), fd, followed: BTreeSet::new() };
        if fabric.removed {
            watcher.put(AsyncEvent::DeviceFatal);
        }
        fabric.last.watcher += 1;
        let number = fabric.last.watcher;
        fabric.watchers.insert(number, watcher);
        Ok(Self { device: Arc::clone(device), number, fd: raw })
    }
}

impl Events for Watching {
    fn next(&self) -> Result<Option<AsyncEvent>> {
        let mut fabric = self.device.lock();
        let Some(watcher) = fabric.watchers.get_mut(&self.number) else { return Ok(None) };
        let event = watcher.waiting.pop_front();
        if watcher.waiting.is_empty() {
            sys::drain_eventfd(&watcher.fd);
        }
        Ok(event)
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.fd]
    }

    fn follow(&self, qp: u32, follow: bool) {
        if let Some(watcher) = self.device.lock().watchers.get_mut(&self.number) {
            if follow {
                watcher.waiting.retain(|event| event.pair() != Some(qp));
                watcher.followed.insert(qp);
            } else {
                watcher.followed.remove(&qp);
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.device.lock().watchers.remove(&self.number);
    }
}

impl SimulatedDevice {
    /// Raises an event, and does nothing else.
    pub fn raise(&self, event: AsyncEvent) {
        self.lock().raise(event);
    }

    /// Reports an event of its connection to the connected endpoint at `of`, with no other effect.
    pub fn tell(&self, of: SocketAddr, kind: CmEventKind) {
        self.lock().tell_at(of, kind);
    }

    /// Stops the device: no operation in flight ends, and calls are refused. Only the event reports this.
    pub fn die(&self) {
        self.lock().die();
    }

    /// Stops the queue pairs of the endpoint at `of`, or only those that are connected to `to`: no operation on them
    /// ends. Only an event reports this.
    pub fn break_pairs(&self, of: SocketAddr, to: Option<SocketAddr>) {
        self.lock().break_pairs(of, to);
    }

    /// Breaks the completion queue of the endpoint at `of`: it reports nothing any more. Only an event reports this.
    pub fn break_queue(&self, of: SocketAddr) {
        self.lock().break_queue(of);
    }

    /// Reports that the queue pair of a datagram endpoint has failed, with no other effect.
    pub fn break_datagrams(&self, qp: u32) {
        self.lock().raise(AsyncEvent::PairFatal(qp));
    }
}
