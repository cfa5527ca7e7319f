//! The simulated fabric as seen by the provider.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ofi::raw::{Dmabuf, Errno, Error, Nic, Result};
use ofi_core::sys;
use ofi_efa::srd::{
    Access, Action, Completion, Device, DeviceLimits, Gid, QueuePair, Region, Segment, Sizes, To, WorkRequest,
};

use super::{Flight, Queue, SimulatedDevice, What};
use crate::mapped::Mapped;

/// The maximum number of bytes of inline data in a request of 64 bytes and in one of 128 bytes, as on a device.
const INLINE: usize = 32;
const INLINE_LONG: usize = 80;

/// A registration.
struct RegisteredMemory {
    device: Arc<SimulatedDevice>,
    key: u32,
}

// SAFETY: requests check the key, which is removed when this is dropped.
unsafe impl Region for RegisteredMemory {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let mut inner = self.device.lock();
        inner.registered.remove(&self.key);
        inner.mapped.remove(&self.key);
    }
}

struct Simulated {
    device: Arc<SimulatedDevice>,
    qpn: u16,
    qkey: u32,
    event: RawFd,
}

/// A [`SimulatedDevice`] as seen by the provider.
pub struct Handle(pub Arc<SimulatedDevice>);

// SAFETY: the memory stays allocated as promised; a queue pair takes no message longer than the plan's.
unsafe impl Device for Handle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn gid(&self) -> Gid {
        self.0.gid()
    }

    fn limits(&self) -> DeviceLimits {
        let plan = self.0.lock().plan;
        let (read, rdma) = (plan.rdma, if plan.rdma { 1 << 30 } else { 0 });
        let (mtu, receives, unsolicited) = (plan.mtu, plan.receives, read && plan.unsolicited);
        let (sends, inline, inline_long) = (512, INLINE, INLINE_LONG);
        DeviceLimits { mtu, sends, receives, inline, inline_long, rdma, read, write: read, unsolicited }
    }

    fn nic(&self) -> Nic {
        Nic::default()
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>> {
        if matches!(access, Access::Local | Access::LocalWrite) && self.0.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(Errno::ENOMEM));
        }
        let key = self.0.lock().register(addr.expose_provenance() as u64, len, access);
        Ok(Box::new(RegisteredMemory { device: Arc::clone(&self.0), key }))
    }

    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        if matches!(access, Access::Local | Access::LocalWrite) && self.0.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(Errno::ENOMEM));
        }
        let mapped = Mapped::new(dmabuf.fd, dmabuf.offset, len, iova)?;
        let mut inner = self.0.lock();
        let key = inner.register(iova, len, access);
        inner.mapped.insert(key, mapped);
        drop(inner);
        Ok(Box::new(RegisteredMemory { device: Arc::clone(&self.0), key }))
    }

    fn asks_again(&self) -> bool {
        true
    }

    fn open(&self, sizes: Sizes, rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>> {
        let Sizes { sends, inline, unsolicited, .. } = sizes;
        if sends > self.limits().sends_of(inline)
            || inline > INLINE_LONG
            || unsolicited && !self.limits().unsolicited
        {
            return Err(Error::new(Errno::EINVAL));
        }
        if self.0.dead.load(Ordering::Relaxed) {
            return Err(Error::with(Errno::EIO, "the device is lost"));
        }
        let event = sys::eventfd()?;
        let fd = event.as_raw_fd();
        let mut inner = self.0.lock();
        inner.rnr_retry = rnr_retry;
        let qkey = inner.draw() as u32 & 0x7FFF_FFFF;
        // Numbers are reused late, as on a device.
        let wanted = inner.next_qpn.take().filter(|qpn| !inner.queues.contains_key(qpn));
        let mut qpn = wanted.map_or(inner.last_qpn, |wanted| wanted.wrapping_sub(1));
        loop {
            qpn = qpn.wrapping_add(1).max(1);
            if !inner.queues.contains_key(&qpn) {
                break;
            }
        }
        if wanted.is_none() {
            inner.last_qpn = qpn;
        }
        inner.lives += 1;
        let queue = Queue {
            qkey,
            life: inner.lives,
            sends,
            inline,
            unsolicited,
            posted: 0,
            receives: VecDeque::new(),
            done: VecDeque::new(),
            handles: Vec::new(),
            armed: false,
            event,
            stopped: false,
        };
        inner.queues.insert(qpn, queue);
        Ok(Box::new(Simulated { device: Arc::clone(&self.0), qpn, qkey, event: fd }))
    }
}

impl Simulated {
    fn with<R>(&self, act: impl FnOnce(&mut Queue) -> R) -> Result<R> {
        let mut inner = self.device.lock();
        inner.queues.get_mut(&self.qpn).map(act).ok_or_else(|| Error::new(Errno::EIO))
    }

    fn post_one(&self, id: u64, to: To, from: Option<Segment>, what: What) -> Result<()> {
        let mut inner = self.device.lock();
        let queue = inner.queues.get_mut(&self.qpn).ok_or_else(|| Error::new(Errno::EIO))?;
        queue.posted += 1;
        let life = queue.life;
        if let Some(segment) = from {
            self.device.check(&inner, segment);
        }
        let number = inner.sent;
        inner.sent += 1;
        let flight = Flight { from: self.qpn, life, id, to, what, number };
        match inner.delays.iter().position(|delay| *delay == (self.qpn, to.qpn)) {
            Some(at) => {
                inner.delays.swap_remove(at);
                inner.delayed.push(flight);
            }
            None => inner.flying.push(flight),
        }
        drop(inner);
        self.device.work.notify_one();
        Ok(())
    }
}

// SAFETY: memory is touched where a request is posted or arrives, before its one completion; a queue that is gone has
// no receives, and its reads do not arrive.
unsafe impl QueuePair for Simulated {
    fn qpn(&self) -> u16 {
        self.qpn
    }

    fn qkey(&self) -> u32 {
        self.qkey
    }

    fn attach(&mut self, gid: &Gid) -> Result<u16> {
        self.with(|queue| {
            let known = queue.handles.iter().position(|known| known == gid);
            known.unwrap_or_else(|| {
                queue.handles.push(*gid);
                queue.handles.len() - 1
            }) as u16
        })
    }

    unsafe fn post(&mut self, requests: &[WorkRequest]) -> Result<()> {
        if self.device.full.load(Ordering::Relaxed) {
            return Err(Error::new(Errno::ENOMEM));
        }
        let mtu = self.device.lock().plan.mtu;
        let (most, unsolicited) = self.with(|queue| (queue.inline, queue.unsolicited))?;
        for request in requests {
            match request.action {
                Action::Send { from, .. } if from.len > mtu => return Err(Error::new(Errno::EMSGSIZE)),
                Action::Send { from, inline: true, .. } if from.len > most => {
                    return Err(Error::new(Errno::EINVAL));
                }
                _ => {}
            }
        }
        self.with(|queue| match queue.posted + requests.len() <= queue.sends {
            true => Ok(()),
            false => Err(Error::new(Errno::ENOMEM)),
        })??;
        let accesses =
            requests.iter().filter(|request| !matches!(request.action, Action::Send { .. })).count();
        if accesses > 0 {
            self.device.lock().accesses.push(accesses);
        }
        for &WorkRequest { id, to, action } in requests {
            let (Action::Send { from: used, .. }
            | Action::Read { into: used, .. }
            | Action::Write { from: used, .. }) = action;
            self.device.lock().last_used = used.addr.addr();
            let bytes = |from: Segment| {
                let inner = self.device.lock(); // keeps the mapping of a dma-buf
                // SAFETY: the caller lends it for reading.
                unsafe { std::slice::from_raw_parts(inner.local(from), from.len) }.to_vec()
            };
            match action {
                Action::Send { from, inline, data } => {
                    self.device.lock().last_inline = inline;
                    self.post_one(id, to, (!inline).then_some(from), What::Send(bytes(from), data))?;
                }
                Action::Read { into, at } => self.post_one(id, to, None, What::Read { into, at })?,
                Action::Write { from, at, data } => {
                    let what = What::Write { bytes: bytes(from), at, data, unsolicited };
                    self.post_one(id, to, Some(from), what)?;
                }
            }
        }
        Ok(())
    }

    fn is_lost(&mut self) -> bool {
        self.device.dead.load(Ordering::Relaxed)
    }

    fn stop(&mut self) {
        if !self.is_lost() {
            let _ = self.with(Queue::stop);
        }
    }

    unsafe fn receive(&mut self, receives: &[(u64, Segment)]) -> Result<()> {
        let most = self.device.lock().plan.receives;
        self.with(|queue| {
            if queue.stopped {
                return Err(Error::new(Errno::EIO));
            }
            if queue.receives.len() + receives.len() > most {
                return Err(Error::AGAIN);
            }
            queue.receives.extend(receives);
            Ok(())
        })?
    }

    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize> {
        let mut inner = self.device.lock();
        self.device.step(&mut inner);
        drop(inner);
        self.with(|queue| {
            let count = queue.done.len();
            let ended = |completion: &&Completion| matches!(completion, Completion::Sent { .. });
            queue.posted -= queue.done.iter().filter(ended).count();
            into.append(&mut queue.done);
            count
        })
    }

    fn arm(&mut self) -> Result<()> {
        self.with(|queue| queue.armed = true)
    }

    fn quiet(&mut self) {
        // A removed queue pair has no notifications left.
        let _ = self.with(|queue| sys::drain_eventfd(&queue.event));
    }

    fn now(&self) -> Instant {
        self.device.now()
    }

    fn fd(&self) -> Option<RawFd> {
        let is_silent = self.device.silent.load(Ordering::Relaxed);
        (!is_silent).then_some(self.event)
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.device.lock().queues.remove(&self.qpn);
    }
}
