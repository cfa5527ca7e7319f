//! Endpoints: the objects that applications post to, over any transport.
//!
//! A call enters here, is checked in `transmit.rs` or `receive.rs`, goes to the transport, and returns through
//! `endpoint_core.rs` into an outbox, from which a completion queue reads. One lock protects all of it.

mod atomic;
mod bind;
#[cfg(test)]
mod claims;
pub(crate) mod collective;
mod connection;
mod context;
mod contexts;
mod datagram;
mod device;
mod enable;
mod endpoint_core;
mod multicast;
mod options;
mod peers;
mod post;
mod post_receive;
mod queue;
mod receive;
mod receiver;
mod refused;
mod scalable;
mod search;
mod shared;
mod shared_receive;
mod shared_transmit;
mod srx;
mod staging;
#[cfg(test)]
mod still;
mod transmit;
mod trigger;

use std::sync::{Arc, Weak};

use ofi_api::{
    Address, AddressVector, AtomicKind, AtomicOp, AvSet, BindFlags, Caps, CollectiveOp, CompletionQueue,
    Context, Counter, CqBuffer, CqErrorEntry, Datatype, DeferredOp, Endpoint, EpOption, EpType, EventQueue,
    FiAddr, FiOp, Fid, Group, Info, Mode, Multicast, ReceiveOp, Result, RmaOp, RxAttr, SendOp,
    SharedTransmit, Statistic, TagMatch, Threshold, TxAttr, Watcher,
};

use self::atomic::AtomicSide;
pub use self::atomic::find as find_atomic;
use self::bind::{bad_state, foreign, of_another_domain, queue_of};
use self::collective::CollectiveSide;
use self::contexts::Contexts;
use self::endpoint_core::EndpointCore;
use self::multicast::MulticastSide;
use self::peers::Peers;
use self::receive::RxSide;
pub(crate) use self::scalable::Sep;
pub(crate) use self::shared_transmit::SharedTx;
pub(crate) use self::srx::Srx;
use self::staging::CompletionStaging;
use self::transmit::{PostLimits, TxSide};
use crate::auth;
use crate::av::InUse;
use crate::cm::Connection;
use crate::cq::Cq;
use crate::domain::DomainCore;
use crate::export::Counted;
use crate::fork::Born;
use crate::lock::Lock;
use crate::rearm::Rearm;
use crate::sleepers::Sleepers;
use crate::source::{Polled, Source};
use crate::spin_policy::SpinPolicy;
use crate::transport::{Arm, Transport, TransportEndpoint};
use crate::unattended::Unattended;
use crate::wake_fd::WakeFd;

/// The mutable state of an endpoint.
struct State<T: Transport> {
    ends: EndpointCore<T>,
    /// Present while the endpoint is enabled.
    transport: Option<T::Endpoint>,
    /// The queues of both directions, by slot.
    queues: [Option<Arc<Cq>>; 2],
    name: Option<Address>,
    /// The transport's part of an endpoint that was named before it is enabled, and that name.
    reserved: Option<(T::Endpoint, Address)>,
    /// The name was set by fi_setname.
    named: bool,
    /// `FI_OPT_SHARED_MEMORY_PERMITTED`.
    shared_memory: bool,
    /// `FI_OPT_FI_HMEM_P2P`.
    hmem_p2p: usize,
    /// Options specific to the transport that were set.
    own_options: Vec<(EpOption, usize)>,
    /// Keeps the authorization key in the address vector from being removed.
    key_in_use: Option<InUse>,
    spin: SpinPolicy,
}

impl<T: Transport> State<T> {
    /// The transport's part, and the core that it may call. `None` unless enabled.
    #[inline]
    fn split(&mut self) -> Option<(&mut T::Endpoint, &mut EndpointCore<T>)> {
        Some((self.transport.as_mut()?, &mut self.ends))
    }

    /// Prepares the threads behind `wake` for blocking until there is something to poll for.
    fn arm(&mut self, wake: Option<&WakeFd>) -> Arm {
        let arm = self.transport.as_mut().map_or(Arm::Armed, TransportEndpoint::arm);
        match arm {
            Arm::Armed => self.ends.sleepers.armed(wake),
            Arm::Stalled => {
                self.ends.sleepers.stalled(wake);
                // The waiting thread will be woken through its descriptor in time.
                return if wake.is_some() { Arm::Armed } else { arm };
            }
            // The caller has consumed the signal, which others may not have seen yet, and may not poll itself.
            Arm::Ready => self.ends.sleepers.disarmed(wake),
        }
        arm
    }

    /// Drives the endpoint outside a read of its queues.
    fn drive(&mut self) {
        self.ends.staging.begin_unread();
        if let Some((transport, host)) = self.split() {
            transport.poll(host);
        }
        if self.ends.collectives.is_some() {
            self.move_collectives();
        }
    }
}

/// The part of an endpoint that queues and the progress thread share.
pub(crate) struct EpCore<T: Transport> {
    domain: Arc<DomainCore<T>>,
    info: Info,
    fid: Fid,
    state: Lock<State<T>>,
    /// Calls of other processes are refused.
    born: Born,
}

/// The application's handle. Dropping it closes the endpoint.
pub struct Ep<T: Transport> {
    core: Arc<EpCore<T>>,
}

/// Ends the process if a poll unwinds, because a dangling pointer to the queue's buffer would remain.
struct NoUnwind;

impl Drop for NoUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<T: Transport> Source for EpCore<T> {
    #[inline]
    fn poll(&self, slot: usize, buffer: &mut CqBuffer<'_>, filled: usize) -> Polled {
        let mut guard = self.state.lock();
        self.domain.progress.polled();
        let state = &mut *guard;
        let (outbox, credits) = state.ends.staging.slot(slot);
        let mut filled = filled;
        if !outbox.is_empty() {
            let all;
            (filled, all) = outbox.drain(credits, buffer, filled);
            if all {
                let error = outbox.error_is_next();
                return Polled::new(filled, error, state.spin.polled(true));
            }
        }
        state.ends.staging.begin(slot, buffer, filled);
        let no_unwind = NoUnwind;
        if let Some((transport, host)) = state.split() {
            transport.poll(host);
        }
        if state.ends.collectives.is_some() {
            state.move_collectives();
        }
        let filled = state.ends.staging.end(slot);
        std::mem::forget(no_unwind);
        let (outbox, _) = state.ends.staging.slot(slot);
        let left = !outbox.is_empty();
        let error = left && outbox.error_is_next();
        let polled = Polled::new(filled, error, state.spin.polled(filled > 0 || left));
        drop(guard);
        self.domain.works.run_if_due();
        polled
    }

    fn is_empty(&self, slot: usize) -> bool {
        self.state.lock().ends.staging.is_empty(slot)
    }

    fn drive(&self) {
        self.state.lock().drive();
        self.domain.works.run_if_due();
    }

    fn stand_in(&self) -> Arm {
        {
            let mut guard = self.state.lock();
            guard.ends.stands_in = true;
            guard.drive();
            guard.ends.stands_in = false;
        }
        self.domain.works.run_if_due();
        self.prepare_to_block(None)
    }

    fn attend(&self) {
        {
            let mut guard = self.state.lock();
            self.domain.progress.polled();
            guard.drive();
        }
        self.domain.works.run_if_due();
    }

    fn give_back(&self) {
        if let Some(transport) = self.state.lock().transport.as_mut() {
            transport.give_back();
        }
    }

    fn take_error(&self, slot: usize) -> Option<CqErrorEntry> {
        let mut guard = self.state.lock();
        let (outbox, credits) = guard.ends.staging.slot(slot);
        outbox.take_error(credits)
    }

    fn arm(&self, slot: usize) -> Arm {
        let mut guard = self.state.lock();
        if self.domain.works.is_due() || !guard.ends.staging.is_empty(slot) {
            return Arm::Ready;
        }
        let wake = guard.ends.staging.slot(slot).0.wake().cloned();
        guard.arm(wake.as_ref())
    }

    fn prepare_to_block(&self, wake: Option<&WakeFd>) -> Arm {
        if self.domain.works.is_due() {
            return Arm::Ready;
        }
        self.state.lock().arm(wake)
    }

    fn wait_fd(&self) -> Option<std::os::fd::RawFd> {
        self.state.lock().transport.as_ref().and_then(TransportEndpoint::wait_fd)
    }
}

impl<T: Transport> Rearm for EpCore<T> {
    fn rearm(&self) {
        let mut guard = self.state.lock();
        if self.born.is_here()
            && guard.ends.sleepers.are_due()
            && let Some((transport, ends)) = guard.split()
        {
            ends.sleepers.settle(transport.arm());
        }
    }
}

/// The transmit side of an endpoint, or of a context, with these capabilities and attributes.
fn tx_side<T: Transport>(info: &Info, caps: Caps, attr: &TxAttr) -> TxSide<T> {
    let (messages, accesses) = (caps & Caps::MSG_DIRECTIONS, caps & Caps::RMA_DIRECTIONS);
    let message = |kind| caps.contains(kind) && (messages.is_empty() || messages.contains(Caps::SEND));
    let access = |way| caps.contains(Caps::RMA) && (accesses.is_empty() || accesses.contains(way));
    let mut tx = TxSide::new();
    tx.op_flags = attr.op_flags;
    tx.devices = info.caps.contains(Caps::HMEM);
    tx.multicast = caps.contains(Caps::MULTICAST);
    tx.matches = T::MATCHES && info.ep_attr.ep_type != EpType::Dgram;
    tx.may_send = [message(Caps::MSG), message(Caps::TAGGED)];
    (tx.may_read, tx.may_write) = (access(Caps::READ), access(Caps::WRITE));
    tx.limits = PostLimits {
        message: info.ep_attr.max_msg_size,
        tagged: info.ep_attr.max_msg_size,
        rma: info.ep_attr.max_msg_size,
        inject_message: attr.inject_size,
        inject_tagged: attr.inject_size,
        inject_rma: attr.inject_size,
        iov: attr.iov_limit,
        rma_iov: attr.rma_iov_limit,
        prefix: T::prefix(info),
    };
    tx.atomics = AtomicSide::new::<T>(caps, info.ep_attr.ep_type, attr.inject_size);
    tx
}

/// The receive side of an endpoint, or of a context, with these capabilities and attributes.
fn rx_side<T: Transport>(info: &Info, caps: Caps, attr: &RxAttr) -> RxSide<T> {
    let messages = caps & Caps::MSG_DIRECTIONS;
    let message = |kind| caps.contains(kind) && (messages.is_empty() || messages.contains(Caps::RECV));
    let mut rx = RxSide::new(&datagram::budget(info));
    rx.lossy = datagram::is_lossy(info);
    rx.op_flags = attr.op_flags;
    // Where accesses with CQ data consume receives, endpoints without messages post them too.
    let is_consumed = attr.mode.contains(Mode::RX_CQ_DATA);
    rx.may_receive = [message(Caps::MSG) || is_consumed, message(Caps::TAGGED)];
    rx.report_source = caps.contains(Caps::SOURCE);
    rx.source_errors = caps.contains(Caps::SOURCE_ERR);
    rx.directed = caps.contains(Caps::DIRECTED_RECV);
    rx.tagged_directed = caps.intersects(Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV);
    rx.iov_limit = attr.iov_limit;
    rx.devices = info.caps.contains(Caps::HMEM);
    rx
}

impl<T: Transport> Ep<T> {
    /// Opens an endpoint of `domain` according to `info`.
    ///
    /// # Errors
    /// `FI_EINVAL` for an info of another kind of endpoint.
    pub(crate) fn open(domain: &Arc<DomainCore<T>>, info: &Info) -> Result<Arc<Self>> {
        Self::build(domain, info, None)
    }

    /// Opens the endpoint inside a scalable one, with the contexts that `info` specifies.
    ///
    /// # Errors
    /// As [`Ep::open`].
    pub(crate) fn open_hub(domain: &Arc<DomainCore<T>>, info: &Info) -> Result<Arc<Self>> {
        Self::build(domain, info, Some(Box::new(Contexts::new(info))))
    }

    fn build(
        domain: &Arc<DomainCore<T>>,
        info: &Info,
        contexts: Option<Box<Contexts<T>>>,
    ) -> Result<Arc<Self>> {
        let info = &auth::resolve(info, &domain.info.domain_attr, T::AUTH_KEY_SIZE)?;
        let caps = if contexts.is_some() { Caps::empty() } else { info.caps };
        let (tx, rx) = (tx_side(info, caps, &info.tx_attr), rx_side(info, caps, &info.rx_attr));
        let fid = Fid::next();
        let connected = info.ep_attr.ep_type == EpType::Msg;
        let connection = connected.then(|| Connection::new(fid, info.handle.as_ref()));
        let accepts = connection.as_ref().is_some_and(Connection::accepts);
        let devices = domain.devices.clone().filter(|_| info.caps.contains(Caps::HMEM));
        let core = Arc::new_cyclic(|core: &Weak<EpCore<T>>| {
            let state = State {
                ends: EndpointCore {
                    tx,
                    rx,
                    staging: CompletionStaging::new(info.tx_attr.size, info.rx_attr.size),
                    peers: Peers::default(),
                    connection: connection.map(Box::new),
                    contexts,
                    collectives: CollectiveSide::new::<T>(caps),
                    multicast: MulticastSide::new(caps),
                    sleepers: Sleepers::of(Weak::clone(core) as _),
                    unattended: Unattended::of(Weak::clone(core) as _),
                    stands_in: false,
                    devices: devices.clone(),
                    unsettled: Vec::new(),
                },
                transport: None,
                queues: [None, None],
                // The source address of a connection request belongs to the passive endpoint.
                name: if accepts { None } else { info.src_addr.clone() },
                reserved: None,
                named: false,
                shared_memory: true,
                hmem_p2p: if devices.is_some() { options::P2P_ENABLED } else { options::P2P_DISABLED },
                own_options: Vec::new(),
                key_in_use: None,
                spin: SpinPolicy::default(),
            };
            EpCore {
                domain: Arc::clone(domain),
                info: info.clone(),
                fid,
                state: Lock::new(state),
                born: Born::here(),
            }
        });
        tracing::info!(
            target: "ofi::core::ep_ctrl",
            prov = info.fabric_attr.prov_name,
            kind = %info.ep_attr.ep_type,
            caps = %info.caps,
            tx_size = info.tx_attr.size,
            rx_size = info.rx_attr.size,
            inject = info.tx_attr.inject_size,
            longest = info.ep_attr.max_msg_size,
            order = %info.tx_attr.msg_order,
            "opened an endpoint"
        );
        let counted: Arc<dyn Counted> = Arc::clone(&core) as _;
        domain.registry.count(&counted);
        Ok(Arc::new(Self { core }))
    }
}

impl<T: Transport> Ep<T> {
    /// Whether it was opened in `domain`.
    pub(crate) fn is_of(&self, domain: &DomainCore<T>) -> bool {
        self.core.domain.id() == domain.id()
    }

    /// The address of the transport's part of an enabled endpoint, which receives peers' packets. It is the endpoint's
    /// name, unless the endpoint accepted a connection: then the name is the passive endpoint's.
    pub fn transport_address(&self) -> Option<Address> {
        self.core.state.lock().name.clone()
    }
}

impl<T: Transport> Endpoint for Ep<T> {
    fn bind_cq(&self, cq: &Arc<dyn CompletionQueue>, flags: BindFlags) -> Result<()> {
        self.core.born.check()?;
        self.core.bind_cq(cq, flags)
    }

    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
        self.core.born.check()?;
        self.core.bind_counter(counter, flags)
    }

    fn bind_av(&self, av: &Arc<dyn AddressVector>) -> Result<()> {
        self.core.born.check()?;
        self.core.bind_av(av)
    }

    fn bind_shared_transmit(&self, context: &Arc<dyn SharedTransmit>) -> Result<()> {
        self.core.born.check()?;
        self.core.share_transmit(context)
    }

    fn bind_shared_receive(&self, context: &Arc<dyn Endpoint>) -> Result<()> {
        self.core.born.check()?;
        self.core.share_receive(context)
    }

    fn enable(&self) -> Result<()> {
        self.core.born.check()?;
        self.core.enable()
    }

    fn fid(&self) -> Fid {
        self.core.fid
    }

    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()> {
        self.core.born.check()?;
        self.core.bind_eq(eq)
    }

    fn connect(&self, address: &Address, data: &[u8]) -> Result<()> {
        self.core.born.check()?;
        self.enable()?;
        self.core.connect(address, data)
    }

    fn accept(&self, data: &[u8]) -> Result<()> {
        self.core.born.check()?;
        self.enable()?;
        self.core.accept(data)
    }

    fn shutdown(&self) -> Result<()> {
        self.core.born.check()?;
        self.core.shutdown()
    }

    fn peer_name(&self) -> Result<Address> {
        self.core.born.check()?;
        self.core.peer_name()
    }

    fn name(&self) -> Result<Address> {
        self.core.born.check()?;
        self.core.name()
    }

    fn set_name(&self, address: &Address) -> Result<()> {
        self.core.born.check()?;
        let mut guard = self.core.state.lock();
        if guard.transport.is_some() {
            return Err(bad_state(
                "fi_setname",
                "an endpoint before fi_enable",
                "an enabled one",
                "name it first",
            ));
        }
        let name = T::normalize(address)?;
        (guard.name, guard.named) = (Some(name), true);
        (guard.reserved, guard.key_in_use) = (None, None);
        Ok(())
    }

    #[inline]
    fn send(&self, op: &SendOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.send::<false>(op, 0)
    }

    #[inline]
    fn send_tagged(&self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        self.core.born.check()?;
        self.core.send::<true>(op, tag)
    }

    #[inline]
    fn receive(&self, op: &ReceiveOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.receive::<false>(op, TagMatch::default())
    }

    #[inline]
    fn receive_tagged(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        self.core.born.check()?;
        self.core.receive::<true>(op, tag)
    }

    fn write(&self, op: &RmaOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.rma::<true>(op)
    }

    fn read(&self, op: &RmaOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.rma::<false>(op)
    }

    fn atomic(&self, op: &AtomicOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.atomic(op)
    }

    fn atomic_valid(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<usize> {
        self.core.born.check()?;
        self.core.atomic_valid(kind, op, datatype)
    }

    fn join_collective(&self, coll_addr: FiAddr, set: &dyn AvSet, context: Context) -> Result<Group> {
        self.core.born.check()?;
        self.core.join(coll_addr, set, context)
    }

    fn join_multicast(&self, group: &Address, flags: BindFlags, context: Context) -> Result<Multicast> {
        self.core.born.check()?;
        self.core.join_multicast(group, flags, context)
    }

    fn collective(&self, op: &CollectiveOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.core.collective(op)
    }

    fn trigger(&self, when: &Threshold<'_>, op: &DeferredOp<'_>) -> Result<()> {
        self.core.born.check()?;
        self.trigger_op(when, op)
    }

    fn cancel(&self, context: ofi_api::Context) -> Result<()> {
        self.core.born.check()?;
        self.core.cancel(context)
    }

    fn abandon(&self, context: ofi_api::Context) -> Result<()> {
        self.core.born.check()?;
        self.core.abandon(context)
    }

    fn sever(&self, peer: FiAddr) -> Result<()> {
        self.core.born.check()?;
        self.core.sever(peer)
    }

    fn severs(&self) -> bool {
        T::SEVERS
    }

    fn is_lost(&self) -> bool {
        let is_lost = || self.core.state.lock().split().is_some_and(|(transport, _)| transport.is_lost());
        self.core.born.check().is_ok() && is_lost()
    }

    fn option(&self, option: EpOption) -> Result<usize> {
        self.core.option(option)
    }

    fn set_option(&self, option: EpOption, value: usize) -> Result<()> {
        self.core.set_option(option, value)
    }

    fn statistics(&self) -> Vec<Statistic> {
        self.core.statistics()
    }

    fn watch_unexpected(&self, watcher: Option<Watcher>) -> Result<()> {
        self.core.born.check()?;
        let watcher = watcher.map(|watcher| self.core.domain.works.telling(watcher));
        let before = self.core.state.lock().ends.rx.queue.matcher.watch(watcher);
        drop(before);
        Ok(())
    }

    fn peer_statistics(&self, peer: FiAddr) -> Result<Vec<Statistic>> {
        self.core.born.check()?;
        self.core.peer_statistics(peer)
    }
}

impl<T: Transport> Drop for Ep<T> {
    fn drop(&mut self) {
        if !self.core.born.is_here() {
            // Everything belongs to the parent, and memory that is not mapped here cannot be unmapped.
            return std::mem::forget(Arc::clone(&self.core));
        }
        self.core.log_close();
        let source: Arc<dyn Source> = Arc::clone(&self.core) as _;
        self.core.domain.progress.remove(&source);
        self.core.forget_connection();
        self.core.forget_joins();
        let (queues, counters) = {
            let guard = self.core.state.lock();
            (guard.queues.clone(), guard.ends.staging.counters.each())
        };
        for counter in counters {
            counter.remove_source(&source);
        }
        self.core.domain.registry.leave(&source);
        for queue in queues.iter().flatten() {
            queue.remove(&source);
        }
        let mut guard = self.core.state.lock();
        let state = &mut *guard;
        // Outstanding operations end without completions (fi_endpoint(3)); peers notice that the endpoint is gone.
        let parts = (state.transport.take(), state.reserved.take());
        let gone = (parts, std::mem::take(&mut state.queues), state.ends.rx.queue.matcher.drain());
        state.key_in_use = None;
        let shared = state.leave_shared();
        drop(guard);
        drop(gone);
        shared.end();
        self.core.domain.works.forget(Arc::as_ptr(&self.core).cast());
    }
}
