//! The simulated fabric as seen by the provider.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi::raw::Dmabuf;
use ofi_core::sys;
use ofi_verbs::rc::{
    Access, CmEventKind, ConnParam, Connection, Device, DeviceLimits, Error, Event, Events, Post, Queues,
    Region, Remote, Result, Segment, Sizes, WorkCompletion, msg, ud,
};

use super::SimulatedDevice;
use super::events::Watching;
use super::fabric::{Bytes, Endpoint, Fabric, What};
use super::meeting::{CmMessage, Stage};
use crate::mapped::Mapped;

pub fn error(call: &'static str, errno: i32) -> Error {
    Error { call, errno, advice: "this device is simulated".into() }
}

/// The most private data of a connection request, an acceptance and a refusal.
const ROOM: [usize; 3] = [56, 196, 148];

/// A registration.
struct RegisteredMemory {
    device: Arc<SimulatedDevice>,
    key: u32,
}

// SAFETY: the fabric looks keys up before it touches memory, and forgets this one when it is dropped.
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
        self.device.lock().deregister(self.key);
    }
}

/// A [`SimulatedDevice`] as seen by the provider.
pub struct Handle(pub Arc<SimulatedDevice>);

// SAFETY: the fabric touches only memory whose registration it has just looked up.
unsafe impl Device for Handle {
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.0.addresses().to_vec()
    }

    fn limits(&self) -> Result<DeviceLimits> {
        let plan = self.0.lock().plan;
        Ok(DeviceLimits {
            connections: plan.connections,
            requests: plan.requests,
            receives: plan.receives,
            completions: plan.completions,
        })
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>> {
        let mut fabric = self.0.lock();
        if fabric.removed {
            return Err(error("ibv_reg_mr", libc::ENODEV));
        }
        let key = fabric.register(addr.expose_provenance() as u64, len, access);
        let key = key.ok_or_else(|| error("ibv_reg_mr", libc::ENOMEM))?;
        Ok(Box::new(RegisteredMemory { device: Arc::clone(&self.0), key }))
    }

    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let mapped = Mapped::new(dmabuf.fd, dmabuf.offset, len, iova);
        let mapped = mapped.map_err(|failed| error(CALL, failed.errno().get()))?;
        let mut fabric = self.0.lock();
        if fabric.removed {
            return Err(error(CALL, libc::ENODEV));
        }
        let key = fabric.register_mapped(mapped, iova, len, access);
        let key = key.ok_or_else(|| error(CALL, libc::ENOMEM))?;
        Ok(Box::new(RegisteredMemory { device: Arc::clone(&self.0), key }))
    }

    fn open(&self, sizes: Sizes) -> Result<Box<dyn Queues>> {
        let limits = self.limits()?;
        let fits = sizes.receives <= limits.receives
            && sizes.requests <= limits.requests
            && sizes.completions <= limits.completions;
        if !fits {
            return Err(error("ibv_create_cq", libc::EINVAL));
        }
        let eventfd = || sys::eventfd().map_err(|_| error("eventfd", libc::EMFILE));
        let (done, told) = (eventfd()?, eventfd()?);
        let fds = [done.as_raw_fd(), told.as_raw_fd()];
        let mut fabric = self.0.lock();
        if fabric.removed {
            return Err(error("ibv_create_cq", libc::ENODEV));
        }
        let inline = sizes.inline.min(fabric.plan.inline);
        fabric.last.endpoint += 1;
        let number = fabric.last.endpoint;
        fabric.endpoints.insert(number, Endpoint::new(sizes, done, told));
        Ok(Box::new(Opened { device: Arc::clone(&self.0), number, inline, fds }))
    }

    fn events(&self) -> Result<Box<dyn Events>> {
        Ok(Box::new(Watching::new(&self.0)?))
    }

    fn connects(&self) -> Option<&dyn msg::Connects> {
        Some(self)
    }

    fn datagrams(&self) -> Option<&dyn ud::Datagrams> {
        Some(self)
    }
}

/// An endpoint's queues.
struct Opened {
    device: Arc<SimulatedDevice>,
    number: u64,
    inline: usize,
    fds: [RawFd; 2],
}

impl Opened {
    fn connection(&self, id: usize, peer: SocketAddr) -> Box<dyn Connection> {
        Box::new(End { device: Arc::clone(&self.device), id, peer, inline: self.inline, qp: None })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.device.lock().close(self.number);
    }
}

// SAFETY: a receive is taken off the queue when its message is written, and its end reported once; the queue goes when
// this is dropped.
unsafe impl Queues for Opened {
    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr> {
        let mut fabric = self.device.lock();
        if !self.device.addresses().contains(&at.ip()) {
            return Err(error("rdma_bind_addr", libc::EADDRNOTAVAIL));
        }
        let port = if at.port() == 0 { fabric.new_port() } else { at.port() };
        let address = SocketAddr::new(at.ip(), port);
        if fabric.listening.contains_key(&address) {
            return Err(error("rdma_bind_addr", libc::EADDRINUSE));
        }
        fabric.listening.insert(address, self.number);
        if let Some(it) = fabric.endpoints.get_mut(&self.number) {
            it.address = Some(address);
        }
        Ok(address)
    }

    fn call(&self, from: SocketAddr, to: SocketAddr, _limit: Duration) -> Result<Box<dyn Connection>> {
        let mut fabric = self.device.lock();
        if fabric.removed {
            return Err(error("rdma_resolve_addr", libc::ENODEV));
        }
        let own = SocketAddr::new(from.ip(), fabric.new_port());
        let id = fabric.new_id(self.number, Stage::Resolving, own, to);
        let kind = match self.device.addresses().contains(&to.ip()) {
            true => CmEventKind::AddressResolved,
            false => CmEventKind::Failed,
        };
        fabric.say(CmMessage::Tell(id, kind));
        drop(fabric);
        self.device.work.notify_one();
        Ok(self.connection(id, to))
    }

    fn event(&self) -> Result<Option<Event>> {
        let mut fabric = self.device.lock();
        fabric.step();
        let Some(it) = fabric.endpoints.get_mut(&self.number) else { return Ok(None) };
        let Some(told) = it.told.pop_front() else { return Ok(None) };
        if it.told.is_empty() {
            sys::drain_eventfd(&it.told_fd);
        }
        fabric.taken(&told);
        let peer = fabric.ids.get(&told.id).filter(|_| told.kind == CmEventKind::Request).map(|end| end.peer);
        drop(fabric);
        let request = peer.map(|peer| self.connection(told.id, peer));
        let (kind, id, status) = (told.kind, told.id, told.status);
        Ok(Some(Event { kind, id, request, status, private_data: told.data }))
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        let fits = self.device.lock().receive(self.number, id, vec![into]);
        if fits { Ok(()) } else { Err(error("ibv_post_srq_recv", libc::ENOMEM)) }
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        Ok(self.device.lock().poll(self.number, into))
    }

    fn arm(&self) -> Result<()> {
        if let Some(it) = self.device.lock().endpoints.get_mut(&self.number) {
            it.arm();
        }
        Ok(())
    }

    fn quiet(&self) {
        if let Some(it) = self.device.lock().endpoints.get(&self.number) {
            it.quiet();
        }
    }

    fn fd(&self) -> RawFd {
        self.fds[0]
    }

    fn event_fd(&self) -> RawFd {
        self.fds[1]
    }

    fn has_queue(&self, number: usize) -> bool {
        number as u64 == self.number
    }

    fn now(&self) -> Instant {
        self.device.now()
    }
}

/// One end of a connection.
pub struct End {
    pub device: Arc<SimulatedDevice>,
    pub id: usize,
    pub peer: SocketAddr,
    pub inline: usize,
    pub qp: Option<u32>,
}

impl End {
    /// Private data as it arrives: a device may append zeros.
    fn padded(call: &'static str, data: &[u8], room: usize) -> Result<Vec<u8>> {
        if data.len() > room {
            return Err(error(call, libc::EINVAL));
        }
        let mut data = data.to_vec();
        data.resize(room, 0);
        Ok(data)
    }

    /// Acts in a stage, unless the connection is not there yet or no longer there.
    pub fn go(&self, call: &'static str, from: Stage, act: impl FnOnce(&mut Fabric)) -> Result<()> {
        let mut fabric = self.device.lock();
        if fabric.removed {
            return Err(error(call, libc::ENODEV));
        }
        if fabric.ids.get(&self.id).is_none_or(|end| end.stage != from) {
            return Err(error(call, libc::EINVAL));
        }
        act(&mut fabric);
        drop(fabric);
        self.device.work.notify_one();
        Ok(())
    }

    fn post(&self, id: u64, what: What, how: Post) -> Result<()> {
        let qp = self.qp.ok_or_else(|| error("ibv_post_send", libc::ENOTCONN))?;
        let fits = self.device.lock().post(qp, id, what, how);
        self.device.work.notify_one();
        if fits { Ok(()) } else { Err(error("ibv_post_send", libc::ENOMEM)) }
    }

    /// The data of a request: carried by it, or read later.
    ///
    /// # Safety
    /// The segment is readable during the call.
    unsafe fn bytes(&self, from: Segment, how: Post) -> Result<Bytes> {
        let len = from.len as usize;
        match how.inline {
            false => Ok(Bytes::At(vec![from])),
            true if len > self.inline => Err(error("ibv_post_send", libc::EINVAL)),
            // SAFETY: the caller's promise.
            true => Ok(Bytes::Inline(unsafe { std::slice::from_raw_parts(from.addr, len) }.to_vec())),
        }
    }
}

// SAFETY: dropped, its queue pair leaves the fabric with all that was posted. Memory is touched before the end is
// reported, and written to by reads alone.
unsafe impl Connection for End {
    fn number(&self) -> usize {
        self.id
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.peer)
    }

    fn resolve_route(&self, _limit: Duration) -> Result<()> {
        self.go("rdma_resolve_route", Stage::Resolving, |fabric| {
            fabric.say(CmMessage::Tell(self.id, CmEventKind::RouteResolved));
        })
    }

    fn create_qp(&mut self) -> Result<()> {
        let mut fabric = self.device.lock();
        if fabric.removed {
            return Err(error("rdma_create_qp", libc::ENODEV));
        }
        if self.qp.is_some() {
            return Err(error("rdma_create_qp", libc::EINVAL));
        }
        self.qp = fabric.new_pair(self.id);
        Ok(())
    }

    fn set_ack_timeout(&self, code: u8) -> Result<()> {
        let mut fabric = self.device.lock();
        if fabric.plan.untimed {
            return Err(error("rdma_set_option", libc::ENOSYS));
        }
        // As in the kernel, the value is read when the queue pair becomes ready, so it must be set before.
        match fabric.ids.get_mut(&self.id) {
            Some(end) if matches!(end.stage, Stage::Resolving | Stage::Asked) => {
                end.timers.ack_timeout = code
            }
            _ => return Err(error("rdma_set_option", libc::EINVAL)),
        }
        Ok(())
    }

    fn set_rnr_timer(&self, code: u8) -> Result<()> {
        match self.device.lock().ids.get_mut(&self.id) {
            Some(end) => end.timers.rnr_timer = code,
            None => return Err(error("ibv_modify_qp", libc::EINVAL)),
        }
        Ok(())
    }

    fn qp(&self) -> Option<(u32, usize)> {
        self.qp.map(|qp| (qp, self.inline))
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        let data = Self::padded("rdma_connect", param.private_data, ROOM[0])?;
        self.go("rdma_connect", Stage::Resolving, |fabric| {
            fabric.set_retries(self.id, &param);
            fabric.set(self.id, Stage::Asking);
            fabric.say(CmMessage::Ask(self.id, data));
        })
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        let data = Self::padded("rdma_accept", param.private_data, ROOM[1])?;
        self.go("rdma_accept", Stage::Asked, |fabric| {
            fabric.set_retries(self.id, &param);
            fabric.grant(self.id, data);
        })
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        let data = Self::padded("rdma_reject", private_data, ROOM[2])?;
        self.go("rdma_reject", Stage::Asked, |fabric| fabric.refuse(self.id, data))
    }

    fn disconnect(&self) -> Result<()> {
        let mut fabric = self.device.lock();
        fabric.pass();
        fabric.disconnect(self.id);
        drop(fabric);
        self.device.work.notify_one();
        Ok(())
    }

    unsafe fn send(&self, id: u64, from: Segment, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        self.post(id, What::Send(unsafe { self.bytes(from, how) }?, None), how)
    }

    unsafe fn write(&self, id: u64, from: Segment, to: Remote, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        self.post(id, What::Write(unsafe { self.bytes(from, how) }?, to, None), how)
    }

    unsafe fn read(&self, id: u64, into: Segment, from: Remote) -> Result<()> {
        self.post(id, What::Read(vec![into], from), Post::default())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut fabric = self.device.lock();
        fabric.pass();
        fabric.forget(self.id);
        drop(fabric);
        self.device.work.notify_one();
    }
}
