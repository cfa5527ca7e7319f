//! Shared receive contexts (`fi_srx_context`): one queue of receives for the messages of several endpoints. Each
//! endpoint reports the messages that came through it on its own completion queue.
//!
//! A message is matched under its endpoint's lock and, inside it, the context's. If a posted receive finds its message
//! waiting, the endpoint that the message came through completes it after the context's lock is released, because an
//! endpoint's lock is never taken while holding a context's. Until then the context keeps a payload that is still at
//! its sender, so that it is found there if the sender is lost meanwhile.
//!
//! The context has its own numbers for senders, by address, so that a directed receive takes a message of its peer
//! through any of the endpoints.

mod claimed;
mod counted;
mod member;
mod search;
mod senders;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ofi_api::{
    Call, Caps, Context, CqErrorEntry, Errno, Error, FiAddr, Fid, Lent, OpFlags, ReceiveOp, Result, RxAttr,
    TagMatch, Watcher,
};

pub use self::member::SharedPart;
use self::senders::Senders;
use super::EpCore;
use super::post_receive::{RECEIVE_FLAGS, check_pieces, searches};
use super::queue::{
    CompactReceive, Filling, Kept, RxQueue, SIGNALLED, SILENT, Special, SpecialKind, UnexpectedPayload,
};
use super::receive;
use super::staging::CompletionStaging;
use super::transmit::{bad_flags, not_opened_for};
use crate::av::Av;
use crate::cq::Credit;
use crate::domain::DomainCore;
use crate::fork::Born;
use crate::lock::Lock;
use crate::matching::{self, MatcherConfig, SourceFilter, Want};
use crate::slots::{SlotId, Slots};
use crate::transport::{CounterTarget, SharedReceives, Transport, TransportEndpoint};

/// A shared receive context.
pub struct SharedRx<T: Transport> {
    pub(super) domain: Arc<DomainCore<T>>,
    pub(super) fid: Fid,
    pub(super) born: Born,
    pub(super) attr: RxAttr,
    /// The device's shared receive queue, if a device fills the receives; it gets them when they are posted.
    pub(super) device: Option<Arc<dyn SharedReceives>>,
    state: Lock<State<T>>,
    /// The number of calls that may have matched a message and not yet passed it to its endpoint.
    settling: AtomicUsize,
}

/// Counts a call in [`SharedRx::settling`].
struct Settling<'a>(&'a AtomicUsize);

impl<'a> Settling<'a> {
    /// Call this before taking the context's lock, because the count is read under that lock.
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct State<T: Transport> {
    queue: RxQueue<T>,
    /// Matched messages whose payload is at the sender, and whose endpoint has not been notified yet.
    matched: Slots<Kept<T>>,
    /// Receives that the device has.
    claimed: Slots<Filling>,
    /// Receives that may still be posted.
    credits: usize,
    /// Receives may be directed.
    directed: bool,
    /// The numbers of senders, by address.
    senders: Senders,
    /// The vector of all connectionless endpoints.
    av: Option<Arc<Av>>,
    members: Vec<Option<Member<T>>>,
}

/// An endpoint that is bound.
struct Member<T: Transport> {
    core: Weak<EpCore<T>>,
    /// Receives matched with this endpoint's messages whose room has not been returned.
    taken: usize,
}

impl<T: Transport> State<T> {
    fn sender(&mut self, address: &[u8]) -> u32 {
        let (matcher, directed) = (&mut self.queue.matcher, self.directed);
        self.senders.number(address, |number| {
            let peer = matching::SourceId(number);
            matcher.envelopes_of(peer) > 0 || directed && matcher.has_directed_at(peer)
        })
    }

    /// A receive now belongs to a member.
    fn give(&mut self, member: u32) {
        if let Some(Some(member)) = self.members.get_mut(member as usize) {
            member.taken += 1;
        }
    }

    /// The data for the endpoint of a matched message.
    fn hand_over(&mut self, kept: Kept<T>) -> Content<T> {
        match kept.held {
            UnexpectedPayload::AtSender(_) => Content::Matched(self.matched.insert(kept)),
            held => Content::Here(held),
        }
    }

    fn core(&self, member: u32) -> Option<Arc<EpCore<T>>> {
        self.members.get(member as usize)?.as_ref()?.core.upgrade()
    }

    fn cores(&self) -> Vec<(u32, Arc<EpCore<T>>)> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(at, member)| Some((at as u32, member.as_ref()?.core.upgrade()?))).collect()
    }

    /// The condition of a receive.
    fn want(&mut self, attr: &RxAttr, source: FiAddr, tag: Option<TagMatch>) -> Result<Want> {
        let caps = Caps::DIRECTED_RECV
            | if tag.is_some() { Caps::TAGGED_DIRECTED_RECV } else { Caps::DIRECTED_RECV };
        let source = if source == FiAddr::UNSPEC || !attr.caps.intersects(caps) {
            SourceFilter::Any
        } else {
            let av = self.av.as_ref().ok_or_else(|| {
                Error::wanted(
                    Errno::ENOAV,
                    "a directed receive of a shared context",
                    "the address vector of an endpoint that is bound to it and enabled",
                    "none",
                    "bind and enable an endpoint first",
                )
            })?;
            let address = av.address(av.split(source)?.0)?;
            SourceFilter::From(matching::SourceId(self.sender(address.bytes())))
        };
        Ok(tag.map_or(Want::untagged(source), |tag| Want::tagged(source, tag.tag, tag.ignore)))
    }
}

/// The stored content of a matched message.
enum Content<T: Transport> {
    Here(UnexpectedPayload<T>),
    /// It is in [`State::matched`].
    Matched(SlotId),
}

/// A receive that found its message waiting, and the endpoint that must complete it.
struct Settled<T: Transport> {
    core: Arc<EpCore<T>>,
    filling: Filling,
    content: Content<T>,
}

impl<T: Transport> Settled<T> {
    /// Completes it, or returns it if the endpoint has closed.
    fn settle(self) -> Option<Filling> {
        let Self { core, mut filling, content } = self;
        let mut guard = core.state.lock();
        let Some(held) = guard.take_matched(content) else { return Some(filling) };
        filling.signal = guard.ends.rx.reports_shared(filling.signal);
        guard.settle(filling, held);
        None
    }
}

impl<T: Transport> super::State<T> {
    /// Takes the stored content of a matched message of this endpoint; `None` if the endpoint has closed.
    fn take_matched(&self, content: Content<T>) -> Option<UnexpectedPayload<T>> {
        let part = self.ends.rx.shared.as_ref()?;
        match content {
            Content::Here(held) => Some(held),
            Content::Matched(id) => Some(part.context.state.lock().matched.remove(id)?.held),
        }
    }
}

/// Posting.
impl<T: Transport> SharedRx<T> {
    /// Opens a context of `domain`.
    ///
    /// # Errors
    /// Errors of the device that takes its receives.
    pub(super) fn new(domain: &Arc<DomainCore<T>>, attr: &RxAttr) -> Result<Self> {
        let mut attr = attr.clone();
        if attr.caps.is_empty() {
            attr.caps = domain.info.caps;
        }
        let config = MatcherConfig {
            bytes: crate::settings::unexpected_bytes(),
            envelopes: crate::settings::unexpected_messages(),
            hash_seed: None,
        };
        let state = State {
            queue: RxQueue::new(&config),
            matched: Slots::default(),
            claimed: Slots::default(),
            credits: attr.size,
            directed: attr.caps.intersects(Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV),
            senders: Senders::default(),
            av: None,
            members: Vec::new(),
        };
        Ok(Self {
            device: T::shared_receives(&domain.part, &attr)?,
            domain: Arc::clone(domain),
            fid: Fid::next(),
            born: Born::here(),
            state: Lock::new(state),
            settling: AtomicUsize::new(0),
            attr,
        })
    }

    /// `fi_recv` and `fi_trecv`, by whether there is a tag.
    pub(super) fn receive(&self, op: &ReceiveOp<'_>, tag: Option<TagMatch>) -> Result<()> {
        let kind = if tag.is_some() { Caps::TAGGED } else { Caps::MSG };
        let ways = self.attr.caps & Caps::MSG_DIRECTIONS;
        if !self.attr.caps.contains(kind) || !(ways.is_empty() || ways.contains(Caps::RECV)) {
            let caps = if tag.is_some() { "FI_TAGGED and FI_RECV" } else { "FI_MSG and FI_RECV" };
            return Err(not_opened_for("a receive of a shared context", caps));
        }
        let flags = if op.call == Call::Msg { op.flags } else { self.attr.op_flags | op.flags };
        if !RECEIVE_FLAGS.contains(flags) {
            self.only_host(op)?;
            return match tag {
                Some(tag) if searches(flags) => self.search(op, tag, flags),
                _ => Err(bad_flags(flags - RECEIVE_FLAGS)),
            };
        }
        check_pieces(op, self.attr.iov_limit)?;
        self.only_host(op)?;
        let multi = flags.contains(OpFlags::MULTI_RECV);
        if multi && op.buf.pieces().len() != 1 {
            return Err(super::post_receive::scattered_multi(op.buf.pieces().len()));
        }
        let asked = flags.contains(OpFlags::COMPLETION);
        if let Some(device) = &self.device {
            // Its endpoints have neither capability, but a context may be opened with any.
            if tag.is_some() {
                return Err(not_opened_for("a tagged receive of a shared context", "FI_TAGGED"));
            }
            if multi {
                return Err(bad_flags(OpFlags::MULTI_RECV));
            }
            return self.hand_to(device.as_ref(), op, asked);
        }
        // The endpoint that holds a message may close before the message is taken. The receive then looks for another
        // one.
        let _settling = Settling::begin(&self.settling);
        loop {
            let settled = {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                let want = state.want(&self.attr, op.source, tag)?;
                if state.credits == 0 {
                    drop(guard);
                    if self.collect() == 0 {
                        return Err(Error::AGAIN);
                    }
                    continue;
                }
                match multi {
                    true => state.post_multi(op.context, &op.buf, want, asked),
                    false => state.post(op.context, &op.buf, want, asked),
                }
            };
            let mut lost = settled.into_iter().filter_map(Settled::settle).peekable();
            if multi || lost.peek().is_none() {
                for part in lost.filter_map(|filling| filling.multi) {
                    self.state.lock().queue.release(part);
                }
                break;
            }
        }
        self.domain.works.run_if_due();
        Ok(())
    }

    /// Checks that no memory of a receive is a device's.
    fn only_host(&self, op: &ReceiveOp<'_>) -> Result<()> {
        let Some(devices) = &self.domain.devices else { return Ok(()) };
        let is_host = op.buf.pieces().iter().all(|piece| devices.find(piece.addr.addr()).is_none());
        if is_host { Ok(()) } else { Err(super::device::not_of_device("a receive of a shared context")) }
    }

    /// Takes back room that completions of endpoints have freed, and returns how much. Drives these endpoints, which
    /// helps a program that only retries.
    fn collect(&self) -> usize {
        let cores = self.state.lock().cores();
        let mut collected = 0;
        for (at, core) in cores {
            let back = core.spare_receives();
            let mut guard = self.state.lock();
            let state = &mut *guard;
            let member = state.members.get_mut(at as usize).and_then(Option::as_mut);
            // It may have left meanwhile; then its room has been returned.
            if let Some(member) = member.filter(|member| member.core.as_ptr() == Arc::as_ptr(&core)) {
                let back = back.min(member.taken);
                member.taken -= back;
                state.credits += back;
                collected += back;
            }
        }
        self.domain.works.run_if_due();
        collected
    }

    /// `fi_cancel`: reported by the endpoint that was bound first, because the context has no queue.
    pub(super) fn cancel(&self, context: Context) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some((space, posted)) = state.queue.matcher.cancel_by_context(context.0) else {
            return Err(Error::wanted(
                Errno::ENOENT,
                "fi_cancel",
                "the context of a receive that waits",
                format!("{:#x}, which no waiting request has", context.0),
                "no action needed: the receive has completed, or was never posted",
            ));
        };
        let (flags, credit, route) = state.queue.end(&posted);
        let first = state.cores().into_iter().next();
        match (&first, credit) {
            (Some((member, _)), Credit::Receive) => state.give(*member),
            (None, Credit::Receive) => state.credits += 1,
            _ => {}
        }
        drop(guard);
        if let Some((_, core)) = first {
            let mut error =
                CqErrorEntry::new(posted.context, receive::kind_of(space) | flags, Errno::ECANCELED);
            error.src_addr = FiAddr::NOTAVAIL;
            core.state.lock().ends.staging.receive_failed(error, credit, route);
            self.domain.works.run_if_due();
        }
        Ok(())
    }

    /// Free bytes below which a multi-receive buffer is released.
    pub(super) fn min_multi_recv(&self) -> usize {
        self.state.lock().queue.min_multi_recv
    }

    /// Sets it.
    pub(super) fn set_min_multi_recv(&self, bytes: usize) {
        self.state.lock().queue.min_multi_recv = bytes;
    }

    /// Reports unexpected messages to `watcher`.
    pub(super) fn watch(&self, watcher: Option<Watcher>) {
        let watcher = watcher.map(|watcher| self.domain.works.telling(watcher));
        let before = self.state.lock().queue.matcher.watch(watcher);
        drop(before);
    }

    /// Closes it for the application: the memory of its receives is no longer used afterwards.
    pub(super) fn close(&self) {
        if let Some(device) = &self.device {
            device.close();
        }
        let mut guard = self.state.lock();
        let posted = guard.queue.matcher.extract_posted(|_, _| true);
        let claimed = std::mem::take(&mut guard.claimed);
        let cores = guard.cores();
        drop(guard);
        drop((posted, claimed));
        for (_, core) in cores {
            let mut guard = core.state.lock();
            let state = &mut *guard;
            let filling = &mut state.ends.rx.filling;
            for id in filling.ids(|_| true) {
                filling.remove(id);
            }
            if let Some(transport) = &mut state.transport {
                transport.settle_receives(&mut state.ends);
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// Posts a receive. Returns the receives to settle, if messages were already waiting.
    fn post(&mut self, context: Context, lent: &Lent<'_>, want: Want, asked: bool) -> Vec<Settled<T>> {
        self.credits -= 1;
        loop {
            let posted = self.queue.posted(context, lent, asked, if asked { SIGNALLED } else { SILENT });
            let (recv, message) = match self.queue.matcher.post(want, posted) {
                matching::PostOutcome::Queued(_) => return Vec::new(),
                matching::PostOutcome::Matched { recv, message } => (recv, message),
            };
            let Kept { member, peer, .. } = message.content;
            let Some(core) = self.core(member) else {
                self.queue.forget(&recv);
                continue;
            };
            let filling = self.queue.fill(recv, &receive::arrived(&message.envelope, peer));
            self.give(member);
            return vec![Settled { core, filling, content: self.hand_over(message.content) }];
        }
    }

    /// Posts a multi-receive buffer, after the messages that already wait for it.
    fn post_multi(&mut self, context: Context, lent: &Lent<'_>, want: Want, asked: bool) -> Vec<Settled<T>> {
        let mut settled = Vec::new();
        let [piece] = lent.pieces() else { return settled };
        self.credits -= 1;
        let id = self.queue.multi(piece);
        loop {
            let special =
                Special { signal: asked, route: CounterTarget::ENDPOINT, kind: SpecialKind::Multi(id) };
            let posted: CompactReceive = self.queue.posted_special(context, special);
            let message = match self.queue.matcher.post(want, posted) {
                matching::PostOutcome::Queued(_) => return settled,
                matching::PostOutcome::Matched { message, recv } => {
                    self.queue.forget(&recv);
                    message
                }
            };
            let Kept { member, peer, .. } = message.content;
            let Some(core) = self.core(member) else { continue };
            let arrived = receive::arrived(&message.envelope, peer);
            let Some((filling, exhausted)) = self.queue.fill_multi(context, asked, id, &arrived) else {
                return settled;
            };
            settled.push(Settled { core, filling, content: self.hand_over(message.content) });
            if exhausted {
                return settled;
            }
        }
    }
}

impl<T: Transport> EpCore<T> {
    /// Drives the endpoint, and takes the room that its completions have freed.
    fn spare_receives(&self) -> usize {
        let mut guard = self.state.lock();
        guard.drive();
        let CompletionStaging { credits, .. } = &mut guard.ends.staging;
        std::mem::take(&mut credits[Credit::Receive as usize])
    }
}
