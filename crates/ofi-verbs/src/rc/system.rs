//! RDMA devices of this host, through rdma-core.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ibv::{
    AsyncEvent, AsyncEvents, CmId, CompletionChannel, CompletionQueue, EventChannel, Gid, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairAttr, Receives, SharedReceiveQueue,
};
use ofi_api::Dmabuf;

use super::msg::Connects;
use super::ud::Datagrams;
use super::{
    Access, ConnParam, Connection, Device, DeviceLimits, Error, Event, Events, Post, Queues, Region, Remote,
    Result, Segment, Sizes, WorkCompletion,
};

/// A port of a device.
#[derive(Clone, Copy)]
pub struct Port {
    /// Its number, from 1 on.
    pub number: u8,
    /// The GID of an address of the port.
    pub gid: Gid,
    /// Its index in the port's table.
    pub gid_index: u8,
}

/// A device, for one domain.
pub struct System {
    pd: Arc<ProtectionDomain>,
    ip: IpAddr,
    port: Port,
}

impl System {
    /// A device for a domain, with endpoints at `ip`, an address of the port.
    pub fn new(pd: Arc<ProtectionDomain>, ip: IpAddr, port: Port) -> Self {
        Self { pd, ip, port }
    }

    pub(super) fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    pub(super) fn port(&self) -> Port {
        self.port
    }
}

// SAFETY: it is the device itself, whose library's interface promises this.
unsafe impl Device for System {
    fn name(&self) -> String {
        self.pd.context().name()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        vec![self.ip]
    }

    fn limits(&self) -> Result<DeviceLimits> {
        let info = self.pd.context().query()?;
        Ok(DeviceLimits {
            connections: info.max_queue_pairs,
            requests: info.max_queue,
            receives: info.max_shared,
            completions: info.max_completions,
        })
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>> {
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { MemoryRegion::new(&self.pd, addr, len, access) }?))
    }

    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn Region>> {
        let region = MemoryRegion::of_dmabuf(&self.pd, (dmabuf.fd, dmabuf.offset), len, iova, access)?;
        Ok(Box::new(region))
    }

    fn open(&self, sizes: Sizes) -> Result<Box<dyn Queues>> {
        let events = EventChannel::new()?;
        let completions = CompletionChannel::new(self.pd.context())?;
        let cq = CompletionQueue::new(&completions, sizes.completions)?;
        let srq = SharedReceiveQueue::new(&self.pd, sizes.receives, 1)?;
        let attr = QueuePairAttr {
            pd: Arc::clone(&self.pd),
            cq,
            receives: Receives::Shared(Arc::clone(&srq)),
            size: u32::try_from(sizes.requests).unwrap_or(u32::MAX),
            pieces: 1,
            receive_pieces: 1,
            inline: u32::try_from(sizes.inline).unwrap_or(u32::MAX),
        };
        Ok(Box::new(Opened { events, completions, srq, attr: Arc::new(attr), listener: None }))
    }

    fn events(&self) -> Result<Box<dyn Events>> {
        let events = AsyncEvents::new(self.pd.context())?;
        Ok(Box::new(OfPort { events, port: self.port.number }))
    }

    fn connects(&self) -> Option<&dyn Connects> {
        Some(self)
    }

    fn datagrams(&self) -> Option<&dyn Datagrams> {
        Some(self)
    }
}

/// The events of a device, without those of its other ports.
struct OfPort {
    events: AsyncEvents,
    port: u8,
}

impl Events for OfPort {
    fn next(&self) -> Result<Option<AsyncEvent>> {
        loop {
            match self.events.next()? {
                Some(event) if event.port().is_some_and(|port| port != self.port) => {}
                next => return Ok(next),
            }
        }
    }

    fn fds(&self) -> Vec<RawFd> {
        self.events.fds().to_vec()
    }

    fn follow(&self, qp: u32, follow: bool) {
        self.events.follow(qp, follow);
    }

    fn lost(&self) -> u64 {
        self.events.lost()
    }
}

// SAFETY: on drop the memory is deregistered, and the device no longer knows its keys.
unsafe impl Region for MemoryRegion {
    fn lkey(&self) -> u32 {
        self.lkey()
    }

    fn rkey(&self) -> u32 {
        self.rkey()
    }
}

/// An endpoint's queues.
struct Opened {
    listener: Option<CmId>,
    events: Arc<EventChannel>,
    completions: Arc<CompletionChannel>,
    srq: Arc<SharedReceiveQueue>,
    attr: Arc<QueuePairAttr>,
}

impl Opened {
    fn connection(&self, id: CmId) -> Box<dyn Connection> {
        Box::new(Identified { id, attr: Arc::clone(&self.attr) })
    }
}

// SAFETY: these are the device's own queues: each end is reported once, and nothing is written for a destroyed queue.
unsafe impl Queues for Opened {
    fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr> {
        let listener = CmId::new(&self.events)?;
        if at.port() != 0 {
            listener.reuse_address()?;
        }
        listener.bind(at)?;
        listener.listen(ibv::MAX_BACKLOG)?;
        let address = listener.local_address().unwrap_or(at);
        self.listener = Some(listener);
        Ok(address)
    }

    fn call(&self, from: SocketAddr, to: SocketAddr, limit: Duration) -> Result<Box<dyn Connection>> {
        let id = CmId::new(&self.events)?;
        id.resolve_address(Some(from), to, limit)?;
        Ok(self.connection(id))
    }

    fn event(&self) -> Result<Option<Event>> {
        let Some(event) = self.events.next()? else { return Ok(None) };
        let request = event.request.map(|id| self.connection(id));
        let (kind, id, status, private_data) = (event.kind, event.id, event.status, event.private_data);
        Ok(Some(Event { kind, id, request, status, private_data }))
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.srq.post(id, &[into]) }
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        self.attr.cq.poll(|entry| into.push_back(entry))
    }

    fn arm(&self) -> Result<()> {
        self.attr.cq.arm()
    }

    fn quiet(&self) {
        self.attr.cq.quiet();
    }

    fn fd(&self) -> RawFd {
        self.completions.fd()
    }

    fn event_fd(&self) -> RawFd {
        self.events.fd()
    }

    fn has_queue(&self, number: usize) -> bool {
        number == self.attr.cq.number() || number == self.srq.number()
    }
}

/// A connection: an identifier of rdma_cm, and the attributes of its queue pair.
struct Identified {
    id: CmId,
    attr: Arc<QueuePairAttr>,
}

impl Identified {
    #[inline]
    fn made(&self) -> Result<&QueuePair> {
        self.id.qp().ok_or_else(|| Error {
            call: "ibv_post_send",
            errno: libc::ENOTCONN,
            advice: "the connection has no queue pair yet".into(),
        })
    }
}

// SAFETY: on drop its queue pair is destroyed, which ends the device's work on its requests.
unsafe impl Connection for Identified {
    fn number(&self) -> usize {
        self.id.number()
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.id.peer_address()
    }

    fn resolve_route(&self, limit: Duration) -> Result<()> {
        self.id.resolve_route(limit)
    }

    fn create_qp(&mut self) -> Result<()> {
        self.id.create_qp(&self.attr)
    }

    fn set_ack_timeout(&self, code: u8) -> Result<()> {
        self.id.set_ack_timeout(code)
    }

    fn set_rnr_timer(&self, code: u8) -> Result<()> {
        self.made()?.set_rnr_timer(code)
    }

    fn qp(&self) -> Option<(u32, usize)> {
        self.id.qp().map(|qp| (qp.number(), qp.inline_size()))
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        self.id.connect(param)
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        self.id.accept(param)
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }

    fn disconnect(&self) -> Result<()> {
        self.id.disconnect()
    }

    unsafe fn send(&self, id: u64, from: Segment, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.made()?.send(id, &[from], how) }
    }

    unsafe fn write(&self, id: u64, from: Segment, to: Remote, how: Post) -> Result<()> {
        // Some devices interpret a piece of no bytes as a very long one.
        let pieces = if from.len == 0 { &[][..] } else { &[from] };
        // SAFETY: the caller's promise.
        unsafe { self.made()?.write(id, pieces, to, how) }
    }

    unsafe fn read(&self, id: u64, into: Segment, from: Remote) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.made()?.read(id, &[into], from) }
    }
}
