//! A transmit or receive context of a scalable endpoint as applications hold it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ofi_api::{
    Address, AddressVector, AtomicKind, AtomicOp, BindFlags, CompletionQueue, Context, Counter, CqBuffer,
    CqErrorEntry, Datatype, Endpoint, EpOption, Errno, Error, EventQueue, FiOp, Fid, ReceiveOp, Result,
    RmaOp, SendOp, Statistic, TagMatch, Watcher,
};

use super::contexts::{Contexts, EndpointContext};
use super::post::not_enabled;
use super::queue::{Kept, UnexpectedPayload};
use super::refused::{refuse, refuse_others, refused};
use super::staging::RECEIVE;
use super::{Ep, EpCore, NoUnwind, State, bad_state, queue_of};
use crate::cntr::{Cntr, Kind};
use crate::lock::Guard;
use crate::source::{Polled, Source};
use crate::spin_policy::YieldHint;
use crate::transport::{Arm, CompletionInfo, CounterTarget, Transport, TransportEndpoint};
use crate::wake_fd::WakeFd;

/// The maximum time that closing a transmit context waits for its posted operations.
const LINGER: Duration = Duration::from_secs(1);

/// The maximum number of bytes in flight that are copied when a transmit context closes, so that their operations can
/// continue.
const COPIED: usize = 256 << 20;

impl<T: Transport> State<T> {
    /// The contexts of a scalable endpoint.
    pub(super) fn contexts(&mut self) -> Result<&mut Contexts<T>> {
        self.ends
            .contexts
            .as_deref_mut()
            .ok_or_else(|| refused("a call of contexts", "an endpoint that has none"))
    }

    /// Closes transmit context `at`. Operations in flight continue without the application's memory and without a
    /// report, so that the peer and the transport can finish them. If an operation cannot continue, a peer that
    /// nevertheless continues it breaks the protocol.
    fn abandon(&mut self, at: u16) {
        let mut room = COPIED;
        for id in self.ends.tx.ops.ids(|op| op.ticket.at == at) {
            let goes_on = match (&mut self.transport, self.ends.tx.ops.get_mut(id)) {
                (Some(transport), Some(op)) if op.ticket.len <= room => {
                    room -= op.ticket.len;
                    op.ticket =
                        CompletionInfo { at: 0, signal: false, route: CounterTarget::ENDPOINT, ..op.ticket };
                    transport.abandon(op.peer, id, &mut op.op)
                }
                _ => false,
            };
            if !goes_on
                && let Some(op) = self.ends.tx.ops.remove(id)
                && let Some(transport) = &mut self.transport
            {
                transport.removed(op.peer, id, op.op);
            }
        }
    }

    /// An existing context.
    fn side(&mut self, at: u16) -> Option<&mut EndpointContext<T>> {
        self.ends.contexts.as_deref_mut().map(|contexts| contexts.side(at))
    }
}

/// The source that the queue and the counters of a context poll.
struct Port<T: Transport> {
    core: Arc<EpCore<T>>,
    at: u16,
    /// A duplicate of the descriptor of the endpoint's transport, because a queue may have several contexts of one
    /// endpoint, and lose one of them.
    fd: OnceLock<Option<OwnedFd>>,
}

impl<T: Transport> Source for Port<T> {
    fn poll(&self, _slot: usize, buffer: &mut CqBuffer<'_>, filled: usize) -> Polled {
        let mut guard = self.core.state.lock();
        self.core.domain.progress.polled();
        let state = &mut *guard;
        let mut filled = filled;
        let Some(side) = state.side(self.at) else { return Polled::new(filled, false, YieldHint::Busy) };
        let (outbox, credits) = side.staging.slot(RECEIVE);
        if !outbox.is_empty() {
            let all;
            (filled, all) = outbox.drain(credits, buffer, filled);
            if all {
                let error = outbox.error_is_next();
                return Polled::new(filled, error, state.spin.polled(true));
            }
        }
        side.staging.begin(RECEIVE, buffer, filled);
        state.ends.staging.begin_unread();
        let no_unwind = NoUnwind;
        if let Some((transport, host)) = state.split() {
            transport.poll(host);
        }
        if let Some(side) = state.side(self.at) {
            filled = side.staging.end(RECEIVE);
        }
        std::mem::forget(no_unwind);
        let (mut error, mut left) = (false, false);
        if let Some(side) = state.side(self.at) {
            let (outbox, _) = side.staging.slot(RECEIVE);
            (error, left) = (outbox.error_is_next(), !outbox.is_empty());
        }
        let hint = state.spin.polled(filled > 0 || left);
        drop(guard);
        self.core.domain.works.run_if_due();
        Polled::new(filled, error, hint)
    }

    fn take_error(&self, _slot: usize) -> Option<CqErrorEntry> {
        let mut guard = self.core.state.lock();
        let (outbox, credits) = guard.side(self.at)?.staging.slot(RECEIVE);
        outbox.take_error(credits)
    }

    fn is_empty(&self, _slot: usize) -> bool {
        self.core.state.lock().side(self.at).is_none_or(|side| side.staging.is_empty(RECEIVE))
    }

    fn drive(&self) {
        Source::drive(&*self.core);
    }

    fn stand_in(&self) -> Arm {
        self.core.stand_in()
    }

    fn attend(&self) {
        self.core.attend();
    }

    fn give_back(&self) {
        self.core.give_back();
    }

    fn arm(&self, slot: usize) -> Arm {
        if self.core.domain.works.is_due() || !self.is_empty(slot) {
            return Arm::Ready;
        }
        let wake = self
            .core
            .state
            .lock()
            .side(self.at)
            .and_then(|side| side.staging.slot(RECEIVE).0.wake().cloned());
        self.core.prepare_to_block(wake.as_ref())
    }

    fn prepare_to_block(&self, wake: Option<&WakeFd>) -> Arm {
        self.core.prepare_to_block(wake)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        let known = self.fd.get_or_init(|| {
            let fd = Source::wait_fd(&*self.core)?;
            // SAFETY: the transport's part keeps its descriptor open while it exists, which is as long as the
            // endpoint's core holds it; here the descriptor is only duplicated.
            unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()
        });
        known.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// The application's handle of one transmit or receive context. It keeps the scalable endpoint open, and closes the
/// context when dropped.
pub(super) struct ContextEp<T: Transport> {
    hub: Arc<Ep<T>>,
    port: Arc<Port<T>>,
    fid: Fid,
    transmits: bool,
}

impl<T: Transport> ContextEp<T> {
    /// Opens the context `at` of `hub`, with `side` as its state.
    ///
    /// # Errors
    /// `FI_EBUSY` if it is open.
    pub(super) fn open(
        hub: &Arc<Ep<T>>,
        at: u16,
        mut side: EndpointContext<T>,
        transmits: bool,
    ) -> Result<Arc<dyn Endpoint>> {
        let mut guard = hub.core.state.lock();
        let own = guard.contexts()?.side(at);
        if own.open {
            return Err(Error::wanted(
                Errno::EBUSY,
                "opening a context of a scalable endpoint",
                "one that is not open",
                "one that is",
                "close it first, or use it",
            ));
        }
        side.open = true;
        // Messages that arrived for it before stay.
        std::mem::swap(&mut side.rx.queue, &mut own.rx.queue);
        *own = side;
        drop(guard);
        let port = Arc::new(Port { core: Arc::clone(&hub.core), at, fd: OnceLock::new() });
        Ok(Arc::new(Self { hub: Arc::clone(hub), port, fid: Fid::next(), transmits }))
    }

    fn core(&self) -> Result<&Arc<EpCore<T>>> {
        self.hub.core.born.check()?;
        Ok(&self.hub.core)
    }

    /// The endpoint's state, if the context may be posted to.
    fn enabled(&self) -> Result<Guard<'_, State<T>>> {
        let mut guard = self.core()?.state.lock();
        let enabled = guard.transport.is_some();
        match guard.side(self.port.at) {
            Some(side) if side.enabled && enabled => Ok(guard),
            _ => Err(not_enabled()),
        }
    }

    /// The state of a context that is not enabled.
    fn disabled(&self) -> Result<Guard<'_, State<T>>> {
        let mut guard = self.core()?.state.lock();
        if guard.side(self.port.at).is_some_and(|side| side.enabled) {
            return Err(bad_state(
                "fi_ep_bind",
                "a context before fi_enable",
                "an enabled one",
                "bind first",
            ));
        }
        Ok(guard)
    }

    fn source(&self) -> Arc<dyn Source> {
        Arc::clone(&self.port) as _
    }

    fn kind(&self) -> &'static str {
        if self.transmits { "a transmit context" } else { "a receive context" }
    }

    /// Refuses a call that this kind of context does not have.
    fn only(&self, transmit: bool, call: &str) -> Result<()> {
        if self.transmits == transmit { Ok(()) } else { Err(refused(call, self.kind())) }
    }
}

impl<T: Transport> EpCore<T> {
    /// Makes the queue and the counters of an enabled context poll the endpoint, which must be enabled too.
    fn attach(&self, at: u16, source: &Arc<dyn Source>) -> Result<()> {
        let (queue, counters) = {
            let mut guard = self.state.lock();
            let Some(side) = guard.side(at).filter(|side| side.enabled) else { return Ok(()) };
            if let Some(wake) = side.queue.as_ref().and_then(|queue| queue.wake()) {
                side.staging.slot(RECEIVE).0.set_wake(wake);
            }
            (side.queue.clone(), side.staging.counters.each())
        };
        if let Some(queue) = queue {
            queue.add(Arc::clone(source), RECEIVE)?;
        }
        counters.iter().try_for_each(|counter| counter.add_source(source))
    }
}

impl<T: Transport> Endpoint for ContextEp<T> {
    refuse_others!("a context of a scalable endpoint");
    refuse! { "a context of a scalable endpoint":
        bind_av(&Arc<dyn AddressVector>) -> ();
        bind_eq(&Arc<dyn EventQueue>) -> ();
        set_name(&Address) -> ();
    }

    fn fid(&self) -> Fid {
        self.fid
    }

    /// The name of the scalable endpoint.
    fn name(&self) -> Result<Address> {
        self.hub.name()
    }

    fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()> {
        let mut guard = self.disabled()?;
        let queue = queue_of(cq, &self.hub.core.domain)?;
        // C programs give the kinds of operation rather than the direction.
        let kinds = match self.transmits {
            true => BindFlags::TRANSMIT | BindFlags::SEND | BindFlags::READ | BindFlags::WRITE,
            false => BindFlags::RECV,
        };
        if !flags.intersects(kinds) || !(kinds | BindFlags::SELECTIVE_COMPLETION).contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                format!("the flags of fi_ep_bind with a completion queue, of {}", self.kind()),
                format!("{kinds:?}, and optionally FI_SELECTIVE_COMPLETION"),
                format!("{flags:?}"),
                "bind each context to its queue",
            ));
        }
        let Some(side) = guard.side(self.port.at) else { return Ok(()) };
        if side.queue.is_some() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_ep_bind",
                "one completion queue for each context",
                "a second one",
                "bind only one",
            ));
        }
        let selective = flags.contains(BindFlags::SELECTIVE_COMPLETION);
        if self.transmits {
            (side.tx.bound, side.tx.selective) = (true, selective);
        } else {
            (side.rx.bound, side.rx.selective) = (true, selective);
        }
        side.queue = Some(queue);
        Ok(())
    }

    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
        let mut guard = self.disabled()?;
        let counter = Cntr::of(counter, self.hub.core.domain.id())?;
        let kinds = match self.transmits {
            true => BindFlags::SEND | BindFlags::READ | BindFlags::WRITE,
            false => BindFlags::RECV,
        };
        if !kinds.contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                format!("the flags of fi_ep_bind with a counter, of {}", self.kind()),
                format!("{kinds:?}, or none for all"),
                format!("{flags:?}"),
                "count what peers do at the region (fi_mr_bind)",
            ));
        }
        let Some(side) = guard.side(self.port.at) else { return Ok(()) };
        side.staging.counters.bind(&counter, if flags.is_empty() { kinds } else { flags })
    }

    fn enable(&self) -> Result<()> {
        let mut guard = self.core()?.state.lock();
        let Some(side) = guard.side(self.port.at) else { return Ok(()) };
        if side.enabled {
            return Ok(());
        }
        let counters = &side.staging.counters;
        let counted = match self.transmits {
            true => [Kind::Send, Kind::Read, Kind::Write].into_iter().any(|kind| counters.has(kind)),
            false => counters.has(Kind::Receive),
        };
        if side.queue.is_none() && !counted {
            return Err(Error::wanted(
                Errno::ENOCQ,
                "fi_enable",
                format!("a completion queue or a counter for {}", self.kind()),
                "none",
                "bind one",
            ));
        }
        let bound = side.queue.is_some();
        side.staging.read = [bound; 2];
        side.rx.decide(counters.has(Kind::Receive));
        side.enabled = true;
        let source = self.source();
        if guard.transport.is_none() {
            guard.contexts()?.late.push((self.port.at, Arc::downgrade(&source)));
            return Ok(());
        }
        drop(guard);
        self.hub.core.attach(self.port.at, &source)
    }

    fn send(&self, op: &SendOp<'_>) -> Result<()> {
        self.only(true, "fi_send")?;
        let mut guard = self.enabled()?;
        let outcome = guard.send::<false>(self.port.at, op, 0);
        self.hub.core.posted(guard, outcome)
    }

    fn send_tagged(&self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        self.only(true, "fi_tsend")?;
        let mut guard = self.enabled()?;
        let outcome = guard.send::<true>(self.port.at, op, tag);
        self.hub.core.posted(guard, outcome)
    }

    fn receive(&self, op: &ReceiveOp<'_>) -> Result<()> {
        self.only(false, "fi_recv")?;
        let mut guard = self.enabled()?;
        let outcome = guard.receive::<false>(self.port.at, op, TagMatch::default());
        self.hub.core.posted(guard, outcome)
    }

    fn receive_tagged(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        self.only(false, "fi_trecv")?;
        let mut guard = self.enabled()?;
        let outcome = guard.receive::<true>(self.port.at, op, tag);
        self.hub.core.posted(guard, outcome)
    }

    fn write(&self, op: &RmaOp<'_>) -> Result<()> {
        self.only(true, "fi_write")?;
        let mut guard = self.enabled()?;
        let outcome = guard.rma(self.port.at, op, true);
        self.hub.core.posted(guard, outcome)
    }

    fn read(&self, op: &RmaOp<'_>) -> Result<()> {
        self.only(true, "fi_read")?;
        let mut guard = self.enabled()?;
        let outcome = guard.rma(self.port.at, op, false);
        self.hub.core.posted(guard, outcome)
    }

    fn atomic(&self, op: &AtomicOp<'_>) -> Result<()> {
        self.only(true, "fi_atomic")?;
        let mut guard = self.enabled()?;
        let outcome = guard.atomic(self.port.at, op);
        self.hub.core.posted(guard, outcome)
    }

    fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize> {
        self.only(true, "fi_atomicvalid")?;
        let mut guard = self.core()?.state.lock();
        guard.ends.sender(self.port.at).0.atomics.valid::<T>(kind, op, datatype)
    }

    fn cancel(&self, context: Context) -> Result<()> {
        self.only(false, "fi_cancel")?;
        let mut guard = self.core()?.state.lock();
        let receiver = guard.ends.receiver(self.port.at);
        let Some((space, posted)) = receiver.rx.queue.matcher.cancel_by_context(context.0) else {
            return Err(super::post::nothing_to_cancel(context));
        };
        let (flags, credit, route) = receiver.rx.queue.end(&posted);
        let error =
            CqErrorEntry::new(posted.context, super::receive::kind_of(space) | flags, Errno::ECANCELED);
        receiver.staging.receive_failed(error, credit, route);
        drop(guard);
        self.hub.core.domain.works.run_if_due();
        Ok(())
    }

    fn option(&self, option: EpOption) -> Result<usize> {
        let mut guard = self.core()?.state.lock();
        match (option, guard.side(self.port.at)) {
            (EpOption::MinMultiRecv, Some(side)) if !self.transmits => Ok(side.rx.queue.min_multi_recv),
            _ => Err(Error::new(Errno::ENOPROTOOPT)),
        }
    }

    fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        let mut guard = self.core()?.state.lock();
        match (option, guard.side(self.port.at)) {
            (EpOption::MinMultiRecv, Some(side)) if !self.transmits => {
                side.rx.queue.min_multi_recv = value;
                Ok(())
            }
            _ => Err(Error::new(Errno::ENOPROTOOPT)),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        let Ok(core) = self.core() else { return Vec::new() };
        let mut guard = core.state.lock();
        let Some(side) = guard.side(self.port.at) else { return Vec::new() };
        if self.transmits { side.tx.statistics() } else { side.rx.statistics() }
    }

    fn watch_unexpected(&self, watcher: Option<Watcher>) -> Result<()> {
        let core = self.core()?;
        let watcher = watcher.map(|watcher| core.domain.works.telling(watcher));
        let before = match core.state.lock().side(self.port.at) {
            Some(side) if !self.transmits => side.rx.queue.matcher.watch(watcher),
            _ => return Err(Error::new(Errno::ENOSYS)),
        };
        drop(before);
        Ok(())
    }
}

impl<T: Transport> Drop for ContextEp<T> {
    fn drop(&mut self) {
        let core = &self.hub.core;
        if !core.born.is_here() {
            return std::mem::forget(Arc::clone(&self.port));
        }
        let (at, source) = (self.port.at, self.source());
        let (queue, counters) = {
            let mut guard = core.state.lock();
            let Some(side) = guard.side(at) else { return };
            side.enabled = false;
            (side.queue.take(), side.staging.counters.each())
        };
        if let Some(queue) = queue {
            queue.remove(&source);
        }
        counters.iter().for_each(|counter| counter.remove_source(&source));
        core.linger(at);
        let mut guard = core.state.lock();
        let state = &mut *guard;
        state.abandon(at);
        let filling = &mut state.ends.rx.filling;
        let ids = filling.ids(|filling| filling.at == at);
        let ended: Vec<_> = ids.into_iter().filter_map(|id| filling.remove(id)).collect();
        if let Some(transport) = &mut state.transport {
            transport.settle_receives(&mut state.ends);
        }
        drop(ended); // with the buffers that stand in for a device's memory, which are not written any more
        let messages = state.side(at).map(|side| side.rx.queue.matcher.drain());
        let unwanted = messages.into_iter().flat_map(|(_, messages)| messages);
        for message in unwanted {
            if let Kept { held: UnexpectedPayload::AtSender(token), peer, .. } = message.content
                && let Some(transport) = &mut state.transport
            {
                transport.discard(peer, token);
            }
        }
        let info = &core.info;
        if let Some(side) = state.side(at) {
            *side = match self.transmits {
                true => EndpointContext::transmitting(info, &info.tx_attr),
                false => EndpointContext::receiving(info, &info.rx_attr),
            };
        }
    }
}

impl<T: Transport> EpCore<T> {
    /// Waits until the posted operations of a transmit context have ended, for a bounded time.
    fn linger(&self, at: u16) {
        let begin = Instant::now();
        loop {
            {
                let mut guard = self.state.lock();
                let under_way = guard.ends.tx.ops.ids(|op| op.ticket.at == at);
                if under_way.is_empty() || guard.transport.is_none() || begin.elapsed() >= LINGER {
                    return;
                }
                guard.drive();
            }
            // A peer that has not answered by then may not answer at all: the wait costs no core.
            match begin.elapsed() < LINGER / 50 {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    /// Attaches the contexts that were enabled before their endpoint.
    pub(super) fn attach_all(&self) -> Result<()> {
        let late = self.state.lock().contexts().map(|contexts| std::mem::take(&mut contexts.late))?;
        let mut ports = late.into_iter().filter_map(|(at, port)| Some((at, port.upgrade()?)));
        ports.try_for_each(|(at, port)| self.attach(at, &port))
    }
}
