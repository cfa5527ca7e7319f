//! Triggered operations and deferred work at the endpoint: the checks before they wait, and the post when they are due.

use std::any::Any;
use std::sync::{Arc, Weak};

use ofi_api::{
    AtomicOp, Call, Caps, CompletionFlags, Context, CqErrorEntry, DeferredOp, Endpoint, Errno, Error, Lent,
    OpFlags, ReceiveOp, Result, RmaOp, SendOp, TagMatch, Threshold,
};

use super::queue::{Special, SpecialKind};
use super::receive;
use super::staging::Route;
use super::transmit::{bad_flags, many_len, not_opened_for};
use super::{Ep, EpCore, State};
use crate::cntr::Cntr;
use crate::cntr::trigger::{Access, Deed, DeferredTarget, Owned};
use crate::cq::Credit;
use crate::domain::DomainCore;
use crate::matching::{self, SourceFilter, Want};
use crate::slots::SlotId;
use crate::transport::{CounterTarget, Transport};

/// The operation without the flag that made it wait. `call` replaces its call shape.
fn stripped<'a>(op: &DeferredOp<'a>, call: Option<Call>) -> DeferredOp<'a> {
    let flags = |flags: OpFlags| flags - OpFlags::TRIGGER;
    let send = |op: &SendOp<'a>| SendOp { flags: flags(op.flags), call: call.unwrap_or(op.call), ..*op };
    let receive =
        |op: &ReceiveOp<'a>| ReceiveOp { flags: flags(op.flags), call: call.unwrap_or(op.call), ..*op };
    let rma = |op: &RmaOp<'a>| RmaOp { flags: flags(op.flags), call: call.unwrap_or(op.call), ..*op };
    match op {
        DeferredOp::Send(op) => DeferredOp::Send(send(op)),
        DeferredOp::SendTagged(op, tag) => DeferredOp::SendTagged(send(op), *tag),
        DeferredOp::Receive(op) => DeferredOp::Receive(receive(op)),
        DeferredOp::ReceiveTagged(op, tag) => DeferredOp::ReceiveTagged(receive(op), *tag),
        DeferredOp::Write(op) => DeferredOp::Write(rma(op)),
        DeferredOp::Read(op) => DeferredOp::Read(rma(op)),
        DeferredOp::Atomic(op) => {
            DeferredOp::Atomic(AtomicOp { flags: flags(op.flags), call: call.unwrap_or(op.call), ..*op })
        }
    }
}

/// The memory of an operation that is injected by its call shape or flag, which [`Owned::new`] copies.
fn injected<'a>(op: &DeferredOp<'a>) -> Option<Lent<'a>> {
    let (buf, flags, call) = match op {
        DeferredOp::Send(op) | DeferredOp::SendTagged(op, _) => (op.buf, op.flags, op.call),
        DeferredOp::Receive(op) | DeferredOp::ReceiveTagged(op, _) => (op.buf, op.flags, op.call),
        DeferredOp::Write(op) | DeferredOp::Read(op) => (op.buf, op.flags, op.call),
        DeferredOp::Atomic(op) => (op.buf, op.flags, op.call),
    };
    (call == Call::Inject || flags.contains(OpFlags::INJECT)).then_some(buf)
}

fn op_flags(op: &DeferredOp<'_>) -> OpFlags {
    match op {
        DeferredOp::Send(op) | DeferredOp::SendTagged(op, _) => op.flags,
        DeferredOp::Receive(op) | DeferredOp::ReceiveTagged(op, _) => op.flags,
        DeferredOp::Write(op) | DeferredOp::Read(op) => op.flags,
        DeferredOp::Atomic(op) => op.flags,
    }
}

impl<T: Transport> Ep<T> {
    fn may_wait(&self) -> Result<()> {
        if self.core.info.caps.contains(Caps::TRIGGER) {
            return Ok(());
        }
        Err(not_opened_for("a triggered operation", "FI_TRIGGER"))
    }

    /// See [`ofi_api::Endpoint::trigger`].
    pub(super) fn trigger_op(&self, when: &Threshold<'_>, op: &DeferredOp<'_>) -> Result<()> {
        self.may_wait()?;
        let without;
        let op = if op_flags(op).contains(OpFlags::TRIGGER) {
            without = stripped(op, None);
            &without
        } else {
            op
        };
        let checked = self.core.state.lock().check(op)?;
        let domain = &self.core.domain;
        let Some(counter) = domain.works.waits(when, domain.id())? else { return self.core.post(op) };
        let target: Arc<dyn DeferredTarget> = Arc::clone(&self.core) as _;
        let access = checked.and_then(|(flags, signal, _)| Access::of(op, flags, signal));
        let deed = match access {
            Some(access) => Deed::Access(target, access),
            None => {
                if let Some(payload) = injected(op) {
                    let pieces = [payload.pieces()];
                    self.core.state.lock().ends.only_host("a triggered operation with FI_INJECT", &pieces)?;
                }
                Deed::Triggered(target, Box::new(Owned::new(op, true)))
            }
        };
        domain.works.wait_for(when, counter, deed)
    }

    /// The core of an application's endpoint, which deferred work refers to.
    pub(crate) fn target_of(
        domain: &DomainCore<T>,
        endpoint: &Arc<dyn Endpoint>,
        op: &DeferredOp<'_>,
    ) -> Result<Weak<dyn DeferredTarget>> {
        let any: &dyn Any = &**endpoint;
        let own = any.downcast_ref::<Self>().filter(|own| own.is_of(domain)).ok_or_else(|| {
            Error::wanted(
                Errno::EDOMAIN,
                "the endpoint of deferred work",
                "one of the domain that the work is queued to",
                "another",
                "queue the work to the endpoint's domain",
            )
        })?;
        own.may_wait()?;
        let none = OpFlags::MULTI_RECV | OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD;
        let flags = op_flags(op);
        if flags.intersects(none) {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "the flags of deferred work",
                "those of one transfer",
                format!("{}", flags & none),
                "post it without FI_QUEUE_WORK",
            ));
        }
        own.core.state.lock().check(&stripped(op, Some(Call::Msg)))?;
        Ok(Arc::downgrade(&own.core) as _)
    }
}

impl<T: Transport> State<T> {
    /// Checks everything about an operation that does not depend on when it starts. For outgoing ones, returns the
    /// flags, whether a completion is reported, and the length.
    #[inline(always)]
    fn check(&self, op: &DeferredOp<'_>) -> Result<Option<(OpFlags, bool, usize)>> {
        let tx = &self.ends.tx;
        match op {
            DeferredOp::Send(op) => tx.check_send::<false>(op).map(Some),
            DeferredOp::SendTagged(op, _) => tx.check_send::<true>(op).map(Some),
            DeferredOp::Write(op) => tx.check_rma(op, true).map(Some),
            DeferredOp::Read(op) => tx.check_rma(op, false).map(Some),
            DeferredOp::Receive(op) => self.check_receive(op, 0).map(|_| None),
            DeferredOp::ReceiveTagged(op, _) => self.check_receive(op, 1).map(|_| None),
            DeferredOp::Atomic(op) => tx.check_atomic(op).map(|_| None),
        }
    }

    fn check_receive(&self, op: &ReceiveOp<'_>, tagged: usize) -> Result<()> {
        let rx = &self.ends.rx;
        if !rx.may_receive[tagged] {
            return Err(not_opened_for("a receive", ["FI_MSG and FI_RECV", "FI_TAGGED and FI_RECV"][tagged]));
        }
        let search = OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD;
        if op.flags.intersects(search) {
            return Err(bad_flags(op.flags & search));
        }
        many_len(&op.buf, rx.iov_limit).map(drop)
    }

    /// Posts a receive whose completion `route` counts.
    fn receive_work(
        &mut self,
        op: &ReceiveOp<'_>,
        tag: Option<TagMatch>,
        signal: bool,
        route: CounterTarget,
    ) -> Result<()> {
        let rx = &self.ends.rx;
        let directed = if tag.is_some() { rx.tagged_directed } else { rx.directed };
        let source = if directed && op.source != ofi_api::FiAddr::UNSPEC {
            SourceFilter::From(matching::SourceId(self.dest(op.source)?.0))
        } else {
            SourceFilter::Any
        };
        let want = match tag {
            Some(tag) => Want::tagged(source, tag.tag, tag.ignore),
            None => Want::untagged(source),
        };
        let kind = match self.device_parts(op.buf.pieces()) {
            None => SpecialKind::Pieces(op.buf.pieces().into()),
            Some(memory) => SpecialKind::Device(memory.copied()?),
        };
        let credit = &mut self.ends.staging.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        let special = Special { signal, route, kind };
        let posted = self.ends.rx.queue.posted_special(op.context, special);
        if let matching::PostOutcome::Matched { recv, message } =
            self.ends.rx.queue.matcher.post(want, posted)
        {
            let arrived = receive::arrived(&message.envelope, message.content.peer);
            let filling = self.ends.rx.queue.fill(recv, &arrived);
            self.settle(filling, message.content.held);
        }
        Ok(())
    }
}

impl<T: Transport> DeferredTarget for EpCore<T> {
    fn post(&self, op: &DeferredOp<'_>) -> Result<()> {
        match op {
            DeferredOp::Send(op) => self.send::<false>(op, 0),
            DeferredOp::SendTagged(op, tag) => self.send::<true>(op, *tag),
            DeferredOp::Receive(op) => self.receive::<false>(op, TagMatch::default()),
            DeferredOp::ReceiveTagged(op, tag) => self.receive::<true>(op, *tag),
            DeferredOp::Write(op) => self.rma::<true>(op),
            DeferredOp::Read(op) => self.rma::<false>(op),
            DeferredOp::Atomic(op) => self.atomic(op),
        }
    }

    fn access(&self, access: &Access) -> Result<()> {
        let mut guard = self.state.lock();
        let outcome = access.with(|op, write, checked| guard.checked_rma(0, op, write, checked));
        self.posted(guard, outcome)
    }

    fn post_work(&self, op: &DeferredOp<'_>, completion: Option<Arc<Cntr>>) -> Result<()> {
        let op = stripped(op, Some(Call::Msg));
        let told = op_flags(&op).contains(OpFlags::COMPLETION);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.transport.is_none() {
            return Err(Error::new(Errno::ECANCELED)); // it was closed
        }
        let id = state.ends.staging.routes.insert(Route::Work(completion, told));
        let route = CounterTarget(id.to_wire());
        state.ends.tx.route = route;
        let signal = told && state.ends.rx.bound;
        let outcome = match &op {
            DeferredOp::Send(op) => state.send::<false>(0, op, 0),
            DeferredOp::SendTagged(op, tag) => state.send::<true>(0, op, *tag),
            DeferredOp::Receive(op) => state.receive_work(op, None, signal, route),
            DeferredOp::ReceiveTagged(op, tag) => state.receive_work(op, Some(*tag), signal, route),
            DeferredOp::Write(op) => state.rma(0, op, true),
            DeferredOp::Read(op) => state.rma(0, op, false),
            DeferredOp::Atomic(op) => state.atomic(0, op),
        };
        state.ends.tx.route = CounterTarget::ENDPOINT;
        if outcome.is_err() {
            state.ends.staging.routes.remove(SlotId::from_wire(route.0));
        }
        outcome
    }

    fn lost(&self, context: Context, flags: CompletionFlags, error: Errno) {
        let mut guard = self.state.lock();
        let mut entry = CqErrorEntry::new(context, flags, error);
        entry.prov_errno = error.get();
        guard.ends.staging.lost(entry);
    }
}
