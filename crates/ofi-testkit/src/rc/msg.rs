//! The simulated fabric as seen by connected endpoints. A channel, a completion queue and a shared receive queue are
//! each an endpoint of the fabric, only one part of which is used.

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ofi_core::sys;
use ofi_verbs::rc::msg::{
    Abilities, Channel, Completions, Connects, IdEvent, Identifier, Pair, PairAttr, Receives, SharedQueue,
};
use ofi_verbs::rc::{CmEventKind, ConnParam, Connection, Post, Result, Segment, Sizes, Work, WorkCompletion};

use super::SimulatedDevice;
use super::device::{End, Handle, error};
use super::fabric::{self, Bytes, Endpoint, What};
use super::meeting::{CmMessage, Stage};

/// The maximum number of segments of a request.
const PIECES: usize = 4;
/// The maximum length of a message, in bytes.
const MAX_MESSAGE_LEN: usize = 1 << 30;

/// An endpoint of the fabric, which exists as long as this value.
struct MsgEndpoint {
    device: Arc<SimulatedDevice>,
    number: u64,
    /// Readable when there are completions, and when there are events.
    fds: [RawFd; 2],
}

impl MsgEndpoint {
    fn new(device: &Arc<SimulatedDevice>, sizes: Sizes) -> Result<Self> {
        let eventfd = || sys::eventfd().map_err(|_| error("eventfd", libc::EMFILE));
        let (done, told) = (eventfd()?, eventfd()?);
        let fds = [done.as_raw_fd(), told.as_raw_fd()];
        let mut fabric = device.lock();
        if fabric.removed {
            return Err(error("ibv_create_cq", libc::ENODEV));
        }
        fabric.last.endpoint += 1;
        let number = fabric.last.endpoint;
        fabric.endpoints.insert(number, Endpoint::new(sizes, done, told));
        Ok(Self { device: Arc::clone(device), number, fds })
    }
}

impl Drop for MsgEndpoint {
    fn drop(&mut self) {
        self.device.lock().close(self.number);
    }
}

const NONE: Sizes = Sizes { requests: 0, receives: 0, completions: 0, inline: 0 };

impl Connects for Handle {
    fn abilities(&self) -> Result<Abilities> {
        let plan = self.0.lock().plan;
        Ok(Abilities {
            queue: plan.requests,
            shared: plan.receives,
            completions: plan.completions,
            pieces: PIECES,
            longest: MAX_MESSAGE_LEN,
            retries: 7,
            atomics: true,
        })
    }

    fn channel(&self) -> Result<Arc<dyn Channel>> {
        Ok(Arc::new(Events(MsgEndpoint::new(&self.0, NONE)?)))
    }

    fn completions(&self, entries: usize) -> Result<Arc<dyn Completions>> {
        if entries > self.abilities()?.completions {
            return Err(error("ibv_create_cq", libc::EINVAL));
        }
        Ok(Arc::new(Ends(MsgEndpoint::new(&self.0, Sizes { completions: entries, ..NONE })?)))
    }

    fn shared(&self, receives: usize, pieces: usize) -> Result<Arc<dyn SharedQueue>> {
        if receives > self.abilities()?.shared || pieces > PIECES {
            return Err(error("ibv_create_srq", libc::EINVAL));
        }
        Ok(Arc::new(Queue(MsgEndpoint::new(&self.0, Sizes { receives, ..NONE })?)))
    }

    fn create_pair(&self, id: &mut dyn Identifier, attr: &PairAttr) -> Result<()> {
        let failed = |errno| error("rdma_create_qp", errno);
        let id: &mut dyn Any = id;
        let id = id.downcast_mut::<Named>().ok_or_else(|| failed(libc::EXDEV))?;
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(&attr.completions) as _;
        let ends: Arc<Ends> = any.downcast().map_err(|_| failed(libc::EXDEV))?;
        let limits = self.abilities()?;
        let (receives, shared) = match &attr.receives {
            Receives::Own(count) if *count > limits.queue => return Err(failed(libc::EINVAL)),
            Receives::Own(count) => (fabric::Receives::Own(VecDeque::new(), *count), None),
            Receives::Shared(queue) => {
                let any: Arc<dyn Any + Send + Sync> = Arc::clone(queue) as _;
                let queue: Arc<Queue> = any.downcast().map_err(|_| failed(libc::EXDEV))?;
                (fabric::Receives::Of(queue.0.number), Some(queue))
            }
        };
        let mut fabric = self.0.lock();
        if fabric.removed {
            return Err(failed(libc::ENODEV));
        }
        let pieces = [attr.pieces, attr.receive_pieces];
        if id.pair.is_some() || attr.size > limits.queue || pieces.iter().any(|&pieces| pieces > PIECES) {
            return Err(failed(libc::EINVAL));
        }
        let pair = fabric::Pair::new(ends.0.number, receives, attr.size);
        let qp = fabric.add_pair(id.end.id, pair).ok_or_else(|| failed(libc::EINVAL))?;
        let inline = attr.inline.min(fabric.plan.inline);
        id.pair =
            Some(Posting { device: Arc::clone(&self.0), qp, inline, pieces, _ends: ends, _shared: shared });
        Ok(())
    }
}

/// See [`Channel`].
struct Events(MsgEndpoint);

impl Channel for Events {
    fn bind(self: Arc<Self>, at: SocketAddr) -> Result<Box<dyn Identifier>> {
        let device = Arc::clone(&self.0.device);
        if !device.addresses().contains(&at.ip()) {
            return Err(error("rdma_bind_addr", libc::EADDRNOTAVAIL));
        }
        let mut fabric = device.lock();
        let port = if at.port() == 0 { fabric.new_port() } else { at.port() };
        let own = SocketAddr::new(at.ip(), port);
        let is_taken = fabric.ids.values().any(|id| id.bound && id.own == own);
        if is_taken || fabric.listening.contains_key(&own) {
            return Err(error("rdma_bind_addr", libc::EADDRINUSE));
        }
        let id = fabric.new_id(self.0.number, Stage::Bound, own, own);
        drop(fabric);
        Ok(Box::new(Named::new(self, id, own, own)))
    }

    fn next(self: Arc<Self>) -> Result<Option<IdEvent>> {
        let mut fabric = self.0.device.lock();
        fabric.step();
        let Some(it) = fabric.endpoints.get_mut(&self.0.number) else { return Ok(None) };
        let Some(told) = it.told.pop_front() else { return Ok(None) };
        if it.told.is_empty() {
            sys::drain_eventfd(&it.told_fd);
        }
        fabric.taken(&told);
        let asked = fabric.ids.get(&told.id).filter(|_| told.kind == CmEventKind::Request);
        let asked = asked.map(|end| (end.own, end.peer));
        drop(fabric);
        let new = |(own, peer)| Box::new(Named::new(Arc::clone(&self), told.id, own, peer)) as _;
        Ok(Some(IdEvent { kind: told.kind, id: told.id, request: asked.map(new), private_data: told.data }))
    }

    fn fd(&self) -> RawFd {
        self.0.fds[1]
    }

    fn now(&self) -> Instant {
        self.0.device.now()
    }
}

/// See [`Identifier`].
struct Named {
    pair: Option<Posting>,
    end: End,
    own: SocketAddr,
    listens: AtomicBool,
    channel: Arc<Events>,
}

impl Named {
    fn new(channel: Arc<Events>, id: usize, own: SocketAddr, peer: SocketAddr) -> Self {
        let end = End { device: Arc::clone(&channel.0.device), id, peer, inline: 0, qp: None };
        Self { pair: None, end, own, listens: AtomicBool::new(false), channel }
    }
}

// SAFETY: a queue pair that is destroyed, by itself or when its end is forgotten, leaves the fabric with all that was
// posted.
unsafe impl Identifier for Named {
    fn number(&self) -> usize {
        self.end.id
    }

    fn listen(&self, _backlog: usize) -> Result<()> {
        let mut fabric = self.end.device.lock();
        if fabric.listening.contains_key(&self.own) {
            return Err(error("rdma_listen", libc::EADDRINUSE));
        }
        fabric.listening.insert(self.own, self.channel.0.number);
        self.listens.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn local_address(&self) -> Option<SocketAddr> {
        Some(self.own)
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.end
            .device
            .lock()
            .ids
            .get(&self.end.id)
            .filter(|end| end.stage != Stage::Bound)
            .map(|end| end.peer)
    }

    fn migrate(&mut self, channel: &Arc<dyn Channel>) -> Result<()> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(channel) as _;
        let channel: Arc<Events> = any.downcast().map_err(|_| error("rdma_migrate_id", libc::EXDEV))?;
        self.end.device.lock().move_to(self.end.id, channel.0.number);
        self.channel = channel;
        Ok(())
    }

    fn resolve_address(&self, to: SocketAddr, _limit: Duration) -> Result<()> {
        let is_there = self.end.device.addresses().contains(&to.ip());
        self.end.go("rdma_resolve_addr", Stage::Bound, |fabric| {
            if let Some(end) = fabric.ids.get_mut(&self.end.id) {
                (end.peer, end.stage) = (to, Stage::Resolving);
            }
            let kind = if is_there { CmEventKind::AddressResolved } else { CmEventKind::Failed };
            fabric.say(CmMessage::Tell(self.end.id, kind));
        })
    }

    fn resolve_route(&self, limit: Duration) -> Result<()> {
        self.end.resolve_route(limit)
    }

    fn set_ack_timeout(&self, code: u8) -> Result<()> {
        self.end.set_ack_timeout(code)
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        self.end.connect(param)
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        self.end.accept(param)
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.end.reject(private_data)
    }

    fn disconnect(&self) -> Result<()> {
        self.end.disconnect()
    }

    fn pair(&self) -> Option<&dyn Pair> {
        self.pair.as_ref().map(|pair| pair as _)
    }

    fn destroy_pair(&mut self) {
        let Some(pair) = self.pair.take() else { return };
        let mut fabric = self.end.device.lock();
        fabric.destroy(pair.qp);
        if let Some(end) = fabric.ids.get_mut(&self.end.id) {
            end.qp = None;
        }
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if self.listens.load(Ordering::Relaxed) {
            self.end.device.lock().listening.remove(&self.own);
        }
        self.destroy_pair();
    }
}

/// See [`Pair`]. The queues of its completions and receives live as long.
struct Posting {
    device: Arc<SimulatedDevice>,
    qp: u32,
    inline: usize,
    /// Segments of a request, and of a receive.
    pieces: [usize; 2],
    _ends: Arc<Ends>,
    _shared: Option<Arc<Queue>>,
}

/// Checks the number of segments.
fn pieces(call: &'static str, segments: &[Segment], most: usize) -> Result<Vec<Segment>> {
    if segments.len() > most { Err(error(call, libc::EINVAL)) } else { Ok(segments.to_vec()) }
}

// SAFETY: memory of a request is touched before its end is reported, and only what reads, and receives, are written to.
unsafe impl Pair for Posting {
    fn number(&self) -> u32 {
        self.qp
    }

    fn inline_size(&self) -> usize {
        self.inline
    }

    fn set_rnr_timer(&self, code: u8) -> Result<()> {
        let mut fabric = self.device.lock();
        match fabric.ids.values_mut().find(|end| end.qp == Some(self.qp)) {
            Some(end) => end.timers.rnr_timer = code,
            None => return Err(error("ibv_modify_qp", libc::EINVAL)),
        }
        Ok(())
    }

    unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()> {
        const CALL: &str = "ibv_post_send";
        let at = pieces(CALL, local, self.pieces[0])?;
        let len: usize = at.iter().map(|segment| segment.len as usize).sum();
        let bytes = || match how.inline {
            false => Ok(Bytes::At(at.clone())),
            true if len > self.inline => Err(error(CALL, libc::EINVAL)),
            true => {
                let there = at.iter().filter(|segment| segment.len > 0);
                // SAFETY: the caller's promise, during the call.
                let bytes = |segment: &Segment| unsafe {
                    std::slice::from_raw_parts(segment.addr, segment.len as usize)
                };
                Ok(Bytes::Inline(there.flat_map(bytes).copied().collect()))
            }
        };
        let what = match work {
            Work::Send(data) => What::Send(bytes()?, data),
            Work::Write(to, data) => What::Write(bytes()?, to, data),
            Work::Read(from) => What::Read(at, from),
            Work::FetchAdd(..) | Work::CompareSwap { .. } if at.len() == 1 && len == 8 => {
                What::Change(at, work)
            }
            Work::FetchAdd(..) | Work::CompareSwap { .. } => return Err(error(CALL, libc::EINVAL)),
        };
        let fits = self.device.lock().post(self.qp, id, what, how);
        self.device.work.notify_one();
        if fits { Ok(()) } else { Err(error(CALL, libc::ENOMEM)) }
    }

    unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        const CALL: &str = "ibv_post_recv";
        let to = pieces(CALL, to, self.pieces[1])?;
        let fits = self.device.lock().receive_of(self.qp, id, to);
        self.device.work.notify_one();
        if fits { Ok(()) } else { Err(error(CALL, libc::ENOMEM)) }
    }
}

/// See [`Completions`].
struct Ends(MsgEndpoint);

// SAFETY: the fabric reports each end once.
unsafe impl Completions for Ends {
    fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> Result<usize> {
        let mut entries = VecDeque::new();
        let count = self.0.device.lock().poll(self.0.number, &mut entries);
        entries.into_iter().for_each(take);
        Ok(count)
    }

    fn resize(&self, entries: usize) -> Result<()> {
        let mut fabric = self.0.device.lock();
        if fabric.plan.unresizable || entries > fabric.plan.completions {
            return Err(error("ibv_resize_cq", libc::EINVAL));
        }
        if let Some(it) = fabric.endpoints.get_mut(&self.0.number) {
            it.sizes.completions = entries;
        }
        Ok(())
    }

    fn arm(&self) -> Result<()> {
        if let Some(it) = self.0.device.lock().endpoints.get_mut(&self.0.number) {
            it.arm();
        }
        Ok(())
    }

    fn quiet(&self) {
        if let Some(it) = self.0.device.lock().endpoints.get(&self.0.number) {
            it.quiet();
        }
    }

    fn fd(&self) -> RawFd {
        self.0.fds[0]
    }

    fn number(&self) -> usize {
        self.0.number as usize
    }
}

/// See [`SharedQueue`].
struct Queue(MsgEndpoint);

// SAFETY: a receive is taken off the queue when its message is written, and its end reported once.
unsafe impl SharedQueue for Queue {
    fn number(&self) -> usize {
        self.0.number as usize
    }

    unsafe fn post(&self, id: u64, to: &[Segment]) -> Result<()> {
        const CALL: &str = "ibv_post_srq_recv";
        let to = pieces(CALL, to, PIECES)?;
        let fits = self.0.device.lock().receive(self.0.number, id, to);
        self.0.device.work.notify_one();
        if fits { Ok(()) } else { Err(error(CALL, libc::ENOMEM)) }
    }
}
