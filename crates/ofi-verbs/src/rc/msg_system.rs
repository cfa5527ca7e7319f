//! Connected endpoints on RDMA devices of this host, through rdma-core.

use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ibv::{
    CmId, CompletionChannel, CompletionQueue, EventChannel, QueuePair, QueuePairAttr, SharedReceiveQueue,
};

use super::msg::{
    Abilities, Channel, Completions, Connects, IdEvent, Identifier, Pair, PairAttr, Receives, SharedQueue,
};
use super::system::System;
use super::{ConnParam, Error, Post, Result, Segment, Work, WorkCompletion};

/// The vendor of soft-RoCE (`RXE_VENDOR_ID`), which retries without limit if the limit is 7.
const SOFT_ROCE: u32 = 0xFF_FFFF;

/// A channel for connections of any device of this host.
///
/// # Errors
/// The errors of rdma_create_event_channel(3).
pub fn channel() -> Result<Arc<dyn Channel>> {
    Ok(EventChannel::new()?)
}

/// A device's limits for connected endpoints.
///
/// # Errors
/// The errors of ibv_query_device(3) and ibv_query_port(3).
pub fn abilities(context: ibv::Context, port: u8) -> Result<Abilities> {
    let (info, port) = (context.query()?, context.port(port)?);
    Ok(Abilities {
        queue: info.max_queue,
        shared: info.max_shared,
        completions: info.max_completions,
        pieces: info.max_pieces,
        longest: port.max_message,
        // C's provider requests 7 from every device.
        retries: if info.vendor == SOFT_ROCE { crate::settings::RETRIES } else { 7 },
        atomics: info.atomics,
    })
}

/// The error for an object of another device.
fn foreign(call: &'static str) -> Error {
    Error { call, errno: libc::EXDEV, advice: "the object belongs to another device".into() }
}

/// Converts an object to the system's type, if it has that type.
fn ours<T: Any + Send + Sync>(call: &'static str, any: Arc<dyn Any + Send + Sync>) -> Result<Arc<T>> {
    any.downcast().map_err(|_| foreign(call))
}

impl Connects for System {
    fn abilities(&self) -> Result<Abilities> {
        abilities(self.pd().context(), self.port().number)
    }

    fn channel(&self) -> Result<Arc<dyn Channel>> {
        channel()
    }

    fn completions(&self, entries: usize) -> Result<Arc<dyn Completions>> {
        let channel = CompletionChannel::new(self.pd().context())?;
        let queue = CompletionQueue::new(&channel, entries)?;
        Ok(Arc::new(Queue { queue, channel }))
    }

    fn shared(&self, receives: usize, pieces: usize) -> Result<Arc<dyn SharedQueue>> {
        Ok(SharedReceiveQueue::new(self.pd(), receives, narrow(pieces))?)
    }

    fn create_pair(&self, id: &mut dyn Identifier, attr: &PairAttr) -> Result<()> {
        const CALL: &str = "rdma_create_qp";
        let id: &mut dyn Any = id;
        let id = id.downcast_mut::<CmId>().ok_or_else(|| foreign(CALL))?;
        let completions: Arc<Queue> = ours(CALL, Arc::clone(&attr.completions) as _)?;
        let receives = match &attr.receives {
            Receives::Own(count) => ibv::Receives::Own(narrow(*count)),
            Receives::Shared(queue) => ibv::Receives::Shared(ours(CALL, Arc::clone(queue) as _)?),
        };
        id.create_qp(&QueuePairAttr {
            pd: Arc::clone(self.pd()),
            cq: Arc::clone(&completions.queue),
            receives,
            size: narrow(attr.size),
            pieces: narrow(attr.pieces),
            receive_pieces: narrow(attr.receive_pieces),
            inline: narrow(attr.inline),
        })
    }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Channel for EventChannel {
    fn bind(self: Arc<Self>, at: SocketAddr) -> Result<Box<dyn Identifier>> {
        let id = CmId::new(&self)?;
        id.bind(at)?;
        Ok(Box::new(id))
    }

    fn next(self: Arc<Self>) -> Result<Option<IdEvent>> {
        let Some(event) = Self::next(&self)? else { return Ok(None) };
        let request = event.request.map(|id| Box::new(id) as _);
        Ok(Some(IdEvent { kind: event.kind, id: event.id, request, private_data: event.private_data }))
    }

    fn fd(&self) -> RawFd {
        self.fd()
    }
}

// SAFETY: destroying a queue pair, alone or with its identifier, ends all that was posted on it.
unsafe impl Identifier for CmId {
    fn number(&self) -> usize {
        self.number()
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        self.listen(backlog)
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.local_address()
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address()
    }

    fn migrate(&mut self, channel: &Arc<dyn Channel>) -> Result<()> {
        let channel: Arc<EventChannel> = ours("rdma_migrate_id", Arc::clone(channel) as _)?;
        self.migrate(&channel)
    }

    fn resolve_address(&self, to: SocketAddr, limit: Duration) -> Result<()> {
        self.resolve_address(None, to, limit)
    }

    fn resolve_route(&self, limit: Duration) -> Result<()> {
        self.resolve_route(limit)
    }

    fn set_ack_timeout(&self, code: u8) -> Result<()> {
        self.set_ack_timeout(code)
    }

    fn connect(&self, param: ConnParam<'_>) -> Result<()> {
        self.connect(param)
    }

    fn accept(&self, param: ConnParam<'_>) -> Result<()> {
        self.accept(param)
    }

    fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject(private_data)
    }

    fn disconnect(&self) -> Result<()> {
        self.disconnect()
    }

    fn pair(&self) -> Option<&dyn Pair> {
        self.qp().map(|qp| qp as _)
    }

    fn destroy_pair(&mut self) {
        self.destroy_qp();
    }
}

// SAFETY: the verbs interface promises this of requests and receives.
unsafe impl Pair for QueuePair {
    fn number(&self) -> u32 {
        self.number()
    }

    fn inline_size(&self) -> usize {
        self.inline_size()
    }

    fn set_rnr_timer(&self, code: u8) -> Result<()> {
        self.set_rnr_timer(code)
    }

    unsafe fn work(&self, id: u64, local: &[Segment], work: Work, how: Post) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.work(id, local, work, how) }
    }

    unsafe fn receive(&self, id: u64, to: &[Segment]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.receive(id, to) }
    }
}

/// A completion queue and its notification channel.
struct Queue {
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
}

// SAFETY: it is the device's own queue.
unsafe impl Completions for Queue {
    fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> Result<usize> {
        self.queue.poll(take)
    }

    fn resize(&self, entries: usize) -> Result<()> {
        self.queue.resize(entries)
    }

    fn arm(&self) -> Result<()> {
        self.queue.arm()
    }

    fn quiet(&self) {
        self.queue.quiet();
    }

    fn fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn number(&self) -> usize {
        self.queue.number()
    }
}

// SAFETY: the verbs interface promises this of receives.
unsafe impl SharedQueue for SharedReceiveQueue {
    fn number(&self) -> usize {
        self.number()
    }

    unsafe fn post(&self, id: u64, to: &[Segment]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.post(id, to) }
    }
}
