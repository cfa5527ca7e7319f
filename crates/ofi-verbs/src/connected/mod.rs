//! Endpoints of `FI_EP_MSG`: one reliable connected queue pair with the wire protocol of C libfabric's verbs provider.
//! A message is a plain send into the oldest receive that the peer has posted, remote CQ data is 4 bytes of immediate
//! data, and the device executes remote accesses under its own keys.
//!
//! So every receive is posted to the device at once ([`Upcalls::claim`]), and cannot be cancelled afterwards. A sender
//! waits while its peer has no receive posted (RNR). A message that is longer than its receive ends the connection, as
//! does an access that the peer's device refuses. A write with remote CQ data consumes a receive of the peer
//! (`FI_RX_CQ_DATA`).
//!
//! Short payloads are copied to registered slots. Others are sent from the application's memory; the registration is
//! cached if the application has registered that memory (`ibv::cache`).
//!
//! The device reports the success of a request only if this end waits for it: see `requests.rs`.

pub mod atomic;
mod closing;
mod config;
mod link;
mod memory;
mod port;
mod private;
mod requests;
mod shared;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use ofi_api::{Address, Caps, Errno, Error, Info, OpFlags, Piece, Result, SHARED_CONTEXT, Statistic};
use ofi_core::copy;
use ofi_core::domain::DomainPart;
use ofi_core::hmem::Dmabufs;
use ofi_core::log::Limit;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::{
    Arm, Arrived, CompletionInfo, Fault, OutAtomic, OutMessage, OutRma, PeerId, Posted, RxName, Upcalls,
};

pub use self::config::Config;
use self::memory::{registered, remote, sent, unregistered};
use self::requests::{Request, Requests};
use crate::adapter::{RECEIVE, Slab};
use crate::completions::{Look, MAX_COMPLETIONS_PER_POLL, Member};
use crate::cq_data::immediate;
use crate::domain::Local;
use crate::errors::failed;
use crate::events::{Failed, Watch};
use crate::few::Few;
use crate::op::Op;
use crate::rc::msg::{Abilities, Channel, PairAttr, Receives};
use crate::rc::{Opcode, Post, Status, Work, WorkCompletion};
use crate::timers::Timers;
use crate::waiter::Waiter;
use crate::{Verbs, address, settings};

pub use link::Link;
pub use port::MsgPort;
pub use private::MAX_CM_DATA_LEN;
pub use shared::SharedReceives;

/// Maximum length in bytes of a payload that is copied to a slot, and of an injected one.
pub const INJECT: usize = 1024;
/// Maximum number of receives that a shared context posts to the device. One connection may consume all, so its
/// completion queue has room for as many.
pub const SHARED: usize = 1024;
/// Maximum length of a message in bytes, unless the device's limit is lower. C's provider has the same limit.
pub const MAX_MESSAGE_LEN: usize = 1 << 30;
/// Maximum number of copied payloads in flight.
const SLOTS: usize = 128;
/// The operations that the device executes on dma-bufs of this end.
const ALONE: &str =
    "one that the device executes alone: a send, a receive, a write or a read that is not injected";
/// The only peer.
const PEER: PeerId = 0;
/// Number of polls per check for connection events, if none is expected.
const POLLS_PER_EVENT_CHECK: u32 = 64;

/// The statistics.
#[derive(Default)]
struct ConnectedCounts {
    sent: u64,
    received: u64,
    writes: u64,
    reads: u64,
    atomics: u64,
    quiet: u64,
    written: u64,
    full: u64,
    connections: u64,
    malformed: u64,
}

/// A receive that is posted to the device.
struct Claimed {
    into: SlotId,
    /// The registrations of its memory.
    _regions: Few<Local>,
}

/// The state of one connected endpoint.
pub struct Connected {
    // The connection is dropped first, because its queue pair uses the fields below.
    link: Link,
    /// Its part of the completion queue. Dropped after the queue pair, whose last completions it removes.
    completions: Member,
    channel: Arc<dyn Channel>,
    attr: PairAttr,
    /// How often the device resends a packet, unless a setting says otherwise.
    retries: u8,
    timers: Timers,
    receives: usize,
    /// Receives that both the core and the device hold.
    claimed: Slots<Claimed>,
    /// The shared receives of all endpoints of a shared context.
    shared: Option<Arc<SharedReceives>>,
    requests: Requests,
    /// Completion queue entries that were read early.
    ready: VecDeque<WorkCompletion>,
    waiter: Waiter,
    domain: Arc<DomainPart<Verbs>>,
    name: Address,
    /// Whether the peer may access memory of this end, and so consume receives.
    is_target: bool,
    /// The device's events. Its descriptors are also those for events of the connection.
    watch: Watch,
    /// Set when the device is lost.
    gone: Option<Errno>,
    /// Whether the completion queue is lost: it reports no completions any more.
    is_deaf: bool,
    /// Whether the connection must be ended.
    broken: bool,
    /// Set when the peer has disconnected: the time until which its acknowledgements may arrive.
    going: Option<Instant>,
    /// Whether connection events are pending.
    look: bool,
    polls: u32,
    counts: ConnectedCounts,
}

/// Maximum number of operations in one direction that a device accepts from an endpoint: each may need an entry in its
/// completion queue.
pub fn most(device: &Abilities) -> usize {
    device.queue.min(device.completions / 2)
}

impl Connected {
    /// Opens an endpoint, under `name`, or under the source address of its info. It shares a completion queue of the
    /// device with the endpoints that have the same `queues` of the application.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`; `FI_EINVAL` for remote accesses in a domain that was opened for endpoints
    /// of another type, because its keys differ.
    pub fn new(
        domain: &Arc<DomainPart<Verbs>>,
        info: &Info,
        name: Option<&Address>,
        queues: [Option<usize>; 2],
    ) -> Result<Self> {
        let is_target = info.caps.intersects(Caps::RMA | Caps::ATOMIC);
        if is_target && !domain.transport.keyed {
            return Err(Error::wanted(
                Errno::EINVAL,
                "an endpoint of FI_EP_MSG with FI_RMA or FI_ATOMIC",
                "a domain that was opened with an info of FI_EP_MSG, whose keys are the device's",
                "one of another type",
                "open the domain with the endpoint's info",
            ));
        }
        let failed = |error: ibv::Error| failed(&error);
        let device = domain.transport.connects()?;
        let limits = device.abilities().map_err(failed)?;
        let usual = Config::read().map_err(settings::unusable)?;
        let most = most(&limits);
        let (sends, receives) = (info.tx_attr.size.clamp(1, most), info.rx_attr.size.clamp(1, most));
        let channel = device.channel().map_err(failed)?;
        // All messages to a shared context may arrive over this connection.
        let most_received =
            if info.ep_attr.rx_ctx_cnt == SHARED_CONTEXT { most.min(SHARED) } else { receives };
        let pool = &domain.transport.completions;
        let create = |entries| device.completions(entries);
        let completions = pool.join(queues, sends + most_received, limits.completions, create)?;
        let watch = Watch::new(&*domain.transport.device, &[channel.fd()])?;
        let waiter = Waiter::new(&[&completions.fds()[..], watch.fds()].concat())?;
        let attr = PairAttr {
            completions: Arc::clone(completions.device()),
            receives: Receives::Own(receives),
            size: sends,
            pieces: info.tx_attr.iov_limit.clamp(1, limits.pieces),
            receive_pieces: info.rx_attr.iov_limit.clamp(1, limits.pieces),
            inline: usual.inline,
        };
        tracing::info!(
            target: "ofi::verbs::ep_ctrl",
            sends, receives, pieces = attr.pieces, inline = attr.inline,
            "opens a connected endpoint on the device"
        );
        let wanted = domain.transport.source(name.or(info.src_addr.as_ref()), info.addr_format)?;
        let (link, name) = match info.handle {
            Some(_) => (Link::Idle(None), wanted), // it will use the identifier that came with the request
            None => {
                let id = Arc::clone(&channel).bind(wanted).map_err(failed)?;
                let name = id.local_address().unwrap_or(wanted);
                (Link::Idle(Some(id)), name)
            }
        };
        Ok(Self {
            link,
            completions,
            channel,
            attr,
            retries: limits.retries,
            timers: usual.timers,
            receives,
            claimed: Slots::default(),
            shared: None,
            requests: Requests::new(Slab::new(&domain.transport, SLOTS, INJECT)?, sends),
            ready: VecDeque::new(),
            waiter,
            domain: Arc::clone(domain),
            name: address::canonical(name).into(),
            is_target,
            watch,
            gone: None,
            is_deaf: false,
            broken: false,
            going: None,
            look: false,
            polls: 0,
            counts: ConnectedCounts::default(),
        })
    }

    /// Its address.
    pub fn address(&self) -> Address {
        self.name.clone()
    }

    /// See [`ofi_core::transport::TransportEndpoint::share`].
    pub fn share(&mut self, receives: Arc<SharedReceives>) {
        self.attr.receives = Receives::Shared(Arc::clone(receives.queue()));
        self.shared = Some(receives);
    }

    /// See [`ofi_core::transport::TransportEndpoint::settle_receives`]. After a context is closed, the application owns
    /// its memory again, and only the end of the connection stops the device from accessing it.
    pub fn settle_receives<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        if self.shared.take_if(|shared| shared.is_closed()).is_some() {
            self.lose(host);
            self.attr.receives = Receives::Own(1); // none is posted
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::reaches`].
    pub fn reaches(&self, pieces: &[Piece]) -> bool {
        self.domain.transport.dmabufs.touch(pieces)
    }

    /// Posts receives to the device while it has room.
    pub fn claim<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        let Some(pair) = self.link.pair() else { return };
        while self.claimed.len() < self.receives {
            let Some(into) = host.claim(PEER) else { return };
            let Some(receiving) = host.receiving(into) else { continue };
            let whole = receiving.pieces.iter().map(|piece| piece.len).sum();
            let local = registered(&self.domain, receiving.pieces, whole);
            let posted = local.and_then(|(segments, regions)| {
                let id = self.claimed.insert(Claimed { into, _regions: regions });
                // SAFETY: the memory was lent until the receive's completion, which is made when the request has ended
                // or the queue pair is gone; it is registered for as long.
                let posted = unsafe { pair.receive(RECEIVE | id.to_wire(), &segments) };
                posted.inspect_err(|_| drop(self.claimed.remove(id)))
            });
            if let Err(error) = posted {
                tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive cannot be posted");
                host.received(into, Err(Errno::from_raw(error.errno)));
            }
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::send`].
    pub fn send<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let work = Work::Send(immediate(out.flags, out.data)?);
        self.post(host, (out.pieces, out.len), out.flags, out.ticket, work)?;
        self.counts.sent += 1;
        Ok(Posted::Pending)
    }

    /// See [`ofi_core::transport::TransportEndpoint::rma`].
    pub fn rma<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let remote = remote(out.remote)?;
        let work = match out.write {
            true => Work::Write(remote, immediate(out.flags, out.data)?),
            false => Work::Read(remote),
        };
        self.post(host, (out.pieces, out.len), out.flags, out.ticket, work)?;
        *(if out.write { &mut self.counts.writes } else { &mut self.counts.reads }) += 1;
        Ok(Posted::Pending)
    }

    /// See [`ofi_core::transport::TransportEndpoint::atomic`].
    pub fn atomic<H: Upcalls<Verbs>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        for pieces in [out.operands, out.comparands, out.results] {
            self.domain.transport.dmabufs.refuse(pieces, ALONE)?;
        }
        let (pieces, work) = atomic::work(out, remote(out.remote)?)?;
        self.post(host, (pieces, out.len), out.flags, out.ticket, work)?;
        self.counts.atomics += 1;
        Ok(Posted::Pending)
    }

    /// Counts and logs a post that finds no room.
    #[cold]
    fn full(&mut self) {
        static LIMIT: Limit = Limit::new();
        self.counts.full += 1;
        if tracing::enabled!(target: "ofi::verbs::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::verbs::ep_data",
                refused = self.counts.full, more,
                "the connection's queue of requests is full (FI_VERBS_TX_SIZE): posts get FI_EAGAIN"
            );
        }
    }

    fn post<H: Upcalls<Verbs>>(
        &mut self,
        host: &mut H,
        (pieces, len): (&[Piece], usize),
        flags: OpFlags,
        ticket: CompletionInfo,
        work: Work,
    ) -> Result<()> {
        let Some(pair) = self.link.open() else {
            // The next poll reports the end.
            return Err(self.gone.map_or(Error::AGAIN, Error::new));
        };
        let injected = flags.contains(OpFlags::INJECT);
        let reads = !matches!(work, Work::Send(_) | Work::Write(..));
        let changes = matches!(work, Work::FetchAdd(..) | Work::CompareSwap { .. });
        // A queue pair executes in order, but the data of an earlier read may not be in place yet.
        if flags.contains(OpFlags::FENCE) && self.requests.is_reading() {
            return Err(Error::AGAIN);
        }
        let dmabuf = self.domain.transport.dmabufs.touch(pieces);
        if dmabuf && injected {
            return Err(Dmabufs::refusal(ALONE));
        }
        let inline = !reads && !dmabuf && len <= pair.inline_size();
        let may_copy = len > 0 && len <= INJECT && !inline && !dmabuf;
        let slot = if may_copy { self.requests.take_slot() } else { None };
        // The old value of a number arrives in one piece.
        let needs_slot = changes || (injected && !inline && len > 0);
        if !self.requests.has_room() || (needs_slot && slot.is_none()) {
            self.requests.give_slot(slot);
            self.full();
            return Err(Error::AGAIN);
        }
        let (segments, regions) = match slot {
            None if inline => (unregistered(pieces, len), Few::default()),
            Some(slot) => {
                if !reads {
                    // SAFETY: the pieces are lent during the call, and a slot has room for `len` bytes.
                    unsafe { copy::gather(pieces, 0, self.requests.slots.at(slot), len) };
                }
                (Few::One([self.requests.slots.segment(slot, len)]), Few::default())
            }
            None if reads => registered(&self.domain, pieces, len).map_err(|error| failed(&error))?,
            None => sent(&self.domain, pieces, len).map_err(|error| failed(&error))?,
        };
        let read = if reads && slot.is_some() { pieces.into() } else { Few::default() };
        // Only the request itself needs its completion.
        let is_own = !reads && (inline || slot.is_some()) && !host.awaits(&ticket);
        let quiet = is_own && self.requests.may_be_quiet(slot);
        let op = host.open(PEER, ticket, Op::Request);
        let request = Request { op: Some(op), slot, quiet, injected, reads, read, _regions: regions };
        let id = self.requests.insert(request);
        let how = Post { inline, quiet, ..Post::default() };
        // SAFETY: the memory is a slot, or lent and registered until the operation ends, which is when the request has
        // ended or the queue pair is gone; or it is lent during the call and goes inline.
        let posted = unsafe { pair.work(id.to_wire(), &segments, work, how) };
        if let Err(error) = posted {
            host.abandon(op);
            self.requests.withdraw(id);
            return Err(if error.errno == libc::ENOMEM { Error::AGAIN } else { failed(&error) });
        }
        self.requests.posted(id);
        self.counts.quiet += u64::from(quiet);
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::poll`].
    pub fn poll<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.polls = self.polls.wrapping_add(1);
        let mut taken = 0;
        while taken < MAX_COMPLETIONS_PER_POLL && host.hungry() && self.link.open().is_some() {
            let Some(entry) = self.next(Look::InTurn) else { break };
            taken += 1;
            self.take(host, &entry);
        }
        if taken > 0 {
            self.claim(host);
        }
        if self.broken
            || self.going.is_some_and(|until| self.requests.is_empty() || until <= self.channel.now())
        {
            self.lose(host);
        }
        if self.look || self.link.is_moving() || self.polls.is_multiple_of(POLLS_PER_EVENT_CHECK) {
            self.look = false;
            self.handle_events(host);
            self.domain.transport.cache.tidy();
        }
    }

    /// The next completion, if there is one.
    fn next(&mut self, look: Look) -> Option<WorkCompletion> {
        if self.ready.is_empty()
            && let Err(error) = self.completions.fetch(&mut self.ready, look)
            && !self.is_deaf
        {
            tracing::error!(target: "ofi::verbs::cq", %error, "the completion queue is lost");
            (self.is_deaf, self.broken) = (true, true);
        }
        self.ready.pop_front()
    }

    /// Processes all completions, even if the core wants no more. Returns their number.
    fn take_all<H: Upcalls<Verbs>>(&mut self, host: &mut H) -> usize {
        let mut taken = 0;
        while let Some(entry) = self.next(Look::Now) {
            taken += 1;
            self.take(host, &entry);
        }
        taken
    }

    fn take<H: Upcalls<Verbs>>(&mut self, host: &mut H, entry: &WorkCompletion) {
        let id = SlotId::from_wire(entry.id & !RECEIVE);
        let result = outcome(entry.status);
        let fault = |errno| Fault { errno, number: entry.status.raw() as i32 };
        if !matches!(entry.status, Status::SUCCESS | Status::FLUSHED) {
            tracing::debug!(target: "ofi::verbs::ep_data", status = ?entry.status, "a request failed, and with it the connection");
            self.broken = true;
        }
        if entry.id & RECEIVE != 0 {
            let into = match &self.shared {
                // The receive stays posted for a message of another connection.
                Some(shared) if entry.status == Status::FLUSHED => shared.put_back(id),
                Some(shared) => shared.take(id),
                None => self.claimed.remove(id).map(|claimed| claimed.into),
            };
            let Some(into) = into else { return };
            match (result, entry.opcode) {
                (Err(errno), _) => host.receive_failed(into, fault(errno)),
                (Ok(()), Opcode::WriteArrived) if !self.is_target => {
                    // A write with data that this end has not allowed. It has consumed a receive, so the next message
                    // would match the wrong one.
                    self.counts.malformed += 1;
                    self.broken = true;
                    host.received(into, Err(Errno::EIO));
                }
                (Ok(()), Opcode::WriteArrived) => {
                    self.counts.written += 1;
                    host.spent(into, entry.data.unwrap_or(0).into(), entry.len);
                }
                (Ok(()), _) => {
                    self.counts.received += 1;
                    host.landed(into, &message(entry));
                }
            }
            return;
        }
        while let Some(op) = self.requests.end_before(id) {
            host.finish(PEER, op, Ok(()));
        }
        let Some(request) = self.requests.remove(id) else { return };
        if let (Some(slot), Ok(())) = (request.slot, result) {
            let len = request.read.iter().map(|piece| piece.len).sum();
            // SAFETY: the pieces are lent until the operation ends, which is below; the slot has `len` bytes, and no
            // other request has it before the next is posted.
            unsafe { copy::scatter(self.requests.slots.at(slot), len, &request.read, 0) };
        }
        let Some(op) = request.op else { return };
        match result {
            Ok(()) => host.finish(PEER, op, Ok(())),
            Err(errno) => host.finish_failed(PEER, op, fault(errno)),
        };
    }

    /// Processes the device's events. A reported failure ends the connection.
    fn take_device_events<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        while let Some(failed) = self.watch.next() {
            let is_own = match failed {
                Failed::Device => {
                    (self.gone, self.is_deaf) = (Some(Errno::ENODEV), true);
                    self.completions.lose();
                    self.watch.mute(&self.waiter, self.attr.completions.fd());
                    true
                }
                Failed::Pair(qp) => self.link.pair().is_some_and(|pair| pair.number() == qp),
                Failed::Queue(queue) => {
                    let shared = self.shared.as_ref().map(|shared| shared.queue().number());
                    let is_own = self.attr.completions.number() == queue;
                    if is_own {
                        self.is_deaf = true;
                        self.completions.lose();
                    }
                    is_own || shared == Some(queue)
                }
            };
            if !is_own {
                continue; // another endpoint's
            }
            self.watch.failures += 1;
            tracing::error!(target: "ofi::verbs::ep_ctrl", ?failed, "the device reports a failure, which ends the connection");
            match &self.link {
                Link::Open(_) => self.lose(host),
                Link::Calling(call) | Link::Answering(call) => {
                    let (to, errno) = (call.to().clone(), self.gone.unwrap_or(Errno::EIO));
                    self.give_up(host, &to, errno);
                }
                Link::Idle(_) | Link::Failed(..) | Link::Parting(_) | Link::Over => {}
            }
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::arm`].
    pub fn arm(&mut self) -> Arm {
        if !self.ready.is_empty() || self.broken || matches!(self.link, Link::Failed(..)) {
            return Arm::Ready;
        }
        if let Some(until) = self.going {
            self.waiter.wake_after(Some(until.saturating_duration_since(self.channel.now())));
        }
        // Completions of a connection that is not established yet wait until it is.
        if !self.completions.arm() && self.link.open().is_some() {
            return Arm::Ready;
        }
        self.domain.transport.cache.tidy();
        if self.watch.is_ready() {
            self.look = true; // at the next poll
            return Arm::Ready;
        }
        Arm::Armed
    }

    /// The descriptor that becomes readable when a poll is due.
    pub fn wait_fd(&self) -> RawFd {
        self.waiter.fd()
    }

    /// See [`ofi_core::transport::TransportEndpoint::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.gone.is_some()
    }

    /// See [`ofi_core::transport::TransportEndpoint::statistics`].
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        self.watch.statistics(into);
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("verbs_sent", counts.sent, "messages posted");
        add("verbs_received", counts.received, "messages received");
        add("verbs_native_writes", counts.writes, "requests that write the peer's memory");
        add("verbs_native_reads", counts.reads, "requests that read the peer's memory");
        add("verbs_native_atomics", counts.atomics, "atomic requests on the peer's memory");
        add("verbs_quiet", counts.quiet, "unsignaled requests, whose success the device does not report");
        add("verbs_written", counts.written, "receives consumed by the peer's writes with remote CQ data");
        add("verbs_claimed", self.claimed.len() as u64, "receives posted to the device now");
        add("verbs_send_full", counts.full, "operations refused for lack of room");
        add("verbs_connections", counts.connections, "connections established");
        add(
            "verbs_malformed",
            counts.malformed,
            "private data of other programs, and writes that this end did not allow",
        );
    }
}

/// The error for a request's status, as in C's provider.
fn outcome(status: Status) -> Result<(), Errno> {
    match status {
        Status::SUCCESS => Ok(()),
        Status::FLUSHED => Err(Errno::ECANCELED),
        _ => Err(Errno::EIO),
    }
}

/// A message that has arrived.
fn message(entry: &WorkCompletion) -> Arrived {
    Arrived {
        peer: PEER,
        rx: RxName::ANY,
        tagged: false,
        has_data: entry.data.is_some(),
        tag: 0,
        data: entry.data.unwrap_or(0).into(),
        len: entry.len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_requests_are_what_c_s_provider_makes_of_them() {
        assert_eq!(outcome(Status::SUCCESS), Ok(()));
        assert_eq!(outcome(Status::FLUSHED), Err(Errno::ECANCELED));
        for status in [Status::TOO_LONG, Status::REMOTE_ACCESS, Status::RETRY_EXCEEDED, Status::from_raw(21)]
        {
            assert_eq!(outcome(status), Err(Errno::EIO));
        }
    }
}
