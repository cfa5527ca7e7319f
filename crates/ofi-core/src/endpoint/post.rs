//! Posting: the calls of the data path, from the application to the transport.

use std::sync::Arc;

use ofi_api::{
    Call, CompletionFlags, Context, Errno, Error, FiAddr, OpFlags, Piece, ReceiveOp, Result, RmaOp, SendOp,
    TagMatch,
};

use super::transmit::{TxOp, send_flags};
use super::{EpCore, State};
use crate::cntr::Kind;
use crate::cq::Credit;
use crate::lock::Guard;
use crate::transport::Posted as Outcome;
use crate::transport::{
    CompletionInfo, CounterTarget, GivenUp, OutAccess, OutMessage, OutPlain, OutRma, PeerId, RxName,
    Transport, TransportEndpoint, Upcalls,
};

#[cold]
pub(super) fn not_enabled() -> Error {
    Error::wanted(
        Errno::EOPBADSTATE,
        "a data transfer call",
        "an enabled endpoint",
        "one before fi_enable",
        "bind its queue and address vector, then enable it",
    )
}

/// No receive and no triggered operation has this context.
#[cold]
pub(super) fn nothing_to_cancel(context: Context) -> Error {
    Error::wanted(
        Errno::ENOENT,
        "fi_cancel",
        "the context of a receive or a triggered operation that waits",
        format!("{:#x}, which no waiting request has", context.0),
        "no action needed: the receive has completed, or was never posted",
    )
}

impl<T: Transport> State<T> {
    /// The peer at `address`.
    #[inline]
    pub(super) fn peer(&mut self, address: FiAddr) -> Result<PeerId> {
        match self.ends.peers.get(address) {
            Some(peer) => Ok(peer),
            None => self.meet(address),
        }
    }

    /// The peer at `address`, and the receive context that the address names.
    #[inline]
    pub(super) fn dest(&mut self, address: FiAddr) -> Result<(PeerId, RxName)> {
        if self.ends.tx.names {
            return self.named(address);
        }
        Ok((self.peer(address)?, RxName::ANY))
    }

    /// As `dest`, if numbers of the address vector name receive contexts.
    #[cold]
    pub(super) fn named(&mut self, address: FiAddr) -> Result<(PeerId, RxName)> {
        let (address, rx) = self.ends.peers.split(address)?;
        Ok((self.peer(address)?, rx))
    }

    #[cold]
    fn meet(&mut self, address: FiAddr) -> Result<PeerId> {
        if let Some(peer) = self.connected_peer() {
            return if self.transport.is_some() { peer } else { Err(not_enabled()) };
        }
        let wanted = self.ends.peers.look_up(address)?;
        let (transport, host) = self.split().ok_or_else(not_enabled)?;
        let peer = transport.peer(host, &wanted)?;
        transport.named(host, peer);
        self.ends.peers.learn(address, peer);
        Ok(peer)
    }

    #[cold]
    pub(super) fn no_credit(&mut self) -> Error {
        self.ends.tx.counts.again += 1;
        // The man page tells applications to read their queues before they try again. Driving progress here too helps
        // an application that only retries, if it merely waits for room.
        self.drive();
        Error::AGAIN
    }

    /// Accounts for the transport's answer to a posted operation.
    #[inline]
    pub(super) fn posted(&mut self, outcome: Result<Outcome>, ticket: &CompletionInfo) -> Result<()> {
        match outcome {
            Ok(Outcome::Done) => {
                if ticket.route != CounterTarget::ENDPOINT {
                    self.ends.done_routed(*ticket);
                    return Ok(());
                }
                let staging = self.ends.sender(ticket.at).1;
                staging.counters.count(Kind::of(ticket.flags), ticket.len);
                if ticket.signal {
                    staging.sent(ticket.context, ticket.flags);
                }
                Ok(())
            }
            Ok(Outcome::Pending) => Ok(()),
            Err(error) => {
                if error.is_again() {
                    // An error with a detail is not due to lack of room.
                    if error.detail().is_none() && self.ends.drop_outgoing(ticket) {
                        return Ok(());
                    }
                    self.no_credit();
                }
                Err(error)
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// The common case of a send: plain, of one piece, to a peer that can take it at once. `false` means that nothing
    /// happened; [`State::send`] then handles the general case, and finds out why an error occurs.
    #[inline(always)]
    fn send_now<const TAGGED: bool>(&mut self, op: &SendOp<'_>, tag: u64) -> bool {
        let quick = &self.ends.tx.quick[usize::from(TAGGED)];
        let (below, signal) = match op.call {
            Call::Plain => (quick.plain, quick.signal),
            Call::Inject => (quick.inject, false),
            Call::Msg => return false,
        };
        let [piece] = op.buf.pieces() else { return false };
        if piece.len >= below || !op.flags.is_empty() || piece.addr.is_null() {
            return false;
        }
        let Some(peer) = self.ends.peers.get(op.dest) else { return false };
        let Some(transport) = &mut self.transport else { return false };
        if self.ends.staging.credits[Credit::Transmit as usize] == 0 {
            return false;
        }
        let injected = op.call == Call::Inject;
        // SAFETY: the piece is lent for reading.
        let sent = unsafe { transport.send_now::<TAGGED>(peer, tag, piece.addr, piece.len, injected) };
        if !sent {
            return !injected && self.begin_now::<TAGGED>((op, piece), peer, tag, signal);
        }
        let counts = &mut self.ends.tx.counts;
        counts.messages += 1;
        counts.bytes += piece.len as u64;
        if signal {
            self.ends.staging.sent(op.context, send_flags(TAGGED));
        }
        true
    }

    /// As `send_now`, for a message that completes later.
    #[inline(always)]
    fn begin_now<const TAGGED: bool>(
        &mut self,
        (op, piece): (&SendOp<'_>, &Piece),
        peer: PeerId,
        tag: u64,
        signal: bool,
    ) -> bool {
        let (len, route, flags) = (piece.len, CounterTarget::ENDPOINT, send_flags(TAGGED));
        let ticket = CompletionInfo { context: op.context, flags, signal, len, route, at: 0 };
        let out = OutPlain { piece: *piece, peer, tag: TAGGED.then_some(tag), ticket };
        let Some((transport, host)) = self.split() else { return false };
        if !transport.begin_now(host, &out) {
            return false;
        }
        let counts = &mut self.ends.tx.counts;
        counts.messages += 1;
        counts.bytes += len as u64;
        true
    }

    /// Posts a send of transmit context `at`.
    #[inline(never)]
    pub(super) fn send<const TAGGED: bool>(&mut self, at: u16, op: &SendOp<'_>, tag: u64) -> Result<()> {
        if let Some(memory) = self.device_parts(op.buf.pieces()) {
            return self.send_device::<TAGGED>(at, op, tag, memory);
        }
        let tx = self.ends.sender(at).0;
        let checked = tx.check_send::<TAGGED>(op)?;
        let route = tx.route;
        self.checked_send::<TAGGED>(at, op, op.buf.pieces(), tag, checked, route)
    }

    /// Sends `pieces`, given the results of [`TxSide::check_send`](super::transmit::TxSide::check_send).
    #[inline(always)]
    pub(super) fn checked_send<const TAGGED: bool>(
        &mut self,
        at: u16,
        op: &SendOp<'_>,
        pieces: &[Piece],
        tag: u64,
        (flags, signal, len): (OpFlags, bool, usize),
        route: CounterTarget,
    ) -> Result<()> {
        let (peer, rx) = self.dest(op.dest)?;
        if self.ends.no_transmit_credit(at) {
            return Err(self.no_credit());
        }
        let ticket =
            CompletionInfo { context: op.context, flags: send_flags(TAGGED), signal, len, route, at };
        let out = OutMessage { pieces, len, peer, rx, tagged: TAGGED, tag, data: op.data, flags, ticket };
        let (transport, host) = self.split().ok_or_else(not_enabled)?;
        let outcome = transport.send(host, &out);
        if outcome.is_ok() {
            let counts = &mut self.ends.sender(at).0.counts;
            counts.messages += 1;
            counts.bytes += len as u64;
        }
        self.posted(outcome, &ticket)
    }
}

impl<T: Transport> State<T> {
    /// The common case of a read or a write, as [`State::send_now`] is for sends: plain, of one piece at either end, to
    /// a known peer.
    #[inline(always)]
    fn access_now<const WRITE: bool>(&mut self, op: &RmaOp<'_>) -> bool {
        let write = WRITE;
        let quick = self.ends.tx.quick_access[usize::from(write)];
        let ([piece], [remote]) = (op.buf.pieces(), op.remote) else { return false };
        let len = piece.len;
        if op.call != Call::Plain || !op.flags.is_empty() || len == 0 || len >= quick.below {
            return false;
        }
        if remote.len != len || piece.addr.is_null() {
            return false;
        }
        let Some(peer) = self.ends.peers.get(op.peer) else { return false };
        if self.ends.staging.credits[Credit::Transmit as usize] == 0 {
            return false;
        }
        let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
        let (flags, route) = (CompletionFlags::RMA | kind, CounterTarget::ENDPOINT);
        let ticket = CompletionInfo { context: op.context, flags, signal: quick.signal, len, route, at: 0 };
        let out = OutAccess { write, piece: *piece, remote: *remote, peer, ticket };
        let Some((transport, host)) = self.split() else { return false };
        if !transport.access_now(host, &out) {
            return false;
        }
        let counts = &mut self.ends.tx.counts;
        *(if write { &mut counts.writes } else { &mut counts.reads }) += 1;
        true
    }

    /// Posts a remote access of transmit context `at`.
    #[inline(never)]
    pub(super) fn rma(&mut self, at: u16, op: &RmaOp<'_>, write: bool) -> Result<()> {
        let checked = self.ends.sender(at).0.check_rma(op, write)?;
        self.checked_rma(at, op, write, checked)
    }

    /// The same, with the results of [`TxSide::check_rma`](super::transmit::TxSide::check_rma).
    #[inline(always)]
    pub(super) fn checked_rma(
        &mut self,
        at: u16,
        op: &RmaOp<'_>,
        write: bool,
        checked: (OpFlags, bool, usize),
    ) -> Result<()> {
        if let Some(memory) = self.device_parts(op.buf.pieces()) {
            return self.rma_device(at, op, write, checked, memory);
        }
        let route = self.ends.sender(at).0.route;
        self.routed_rma(at, op, op.buf.pieces(), write, checked, route)
    }

    /// As `rma`, for `pieces` of memory; `route` counts its completion.
    #[inline(always)]
    pub(super) fn routed_rma(
        &mut self,
        at: u16,
        op: &RmaOp<'_>,
        pieces: &[Piece],
        write: bool,
        (flags, signal, len): (OpFlags, bool, usize),
        route: CounterTarget,
    ) -> Result<()> {
        let (peer, rx) = self.dest(op.peer)?;
        if self.ends.no_transmit_credit(at) {
            return Err(self.no_credit());
        }
        let out = Self::out_rma(at, op, pieces, write, (flags, signal, len), (peer, rx, route));
        let (transport, host) = self.split().ok_or_else(not_enabled)?;
        let outcome = transport.rma(host, &out);
        self.posted_rma(outcome, &out)
    }

    /// As `routed_rma`, of a device's memory, by copies of its driver to or from memory of the peer that is mapped
    /// here. `None`: nothing has happened.
    pub(super) fn mapped_rma(
        &mut self,
        at: u16,
        op: &RmaOp<'_>,
        write: bool,
        checked: (OpFlags, bool, usize),
    ) -> Option<Result<()>> {
        let (peer, rx) = self.dest(op.peer).ok()?;
        let route = self.ends.sender(at).0.route;
        if self.ends.no_transmit_credit(at) {
            return None;
        }
        let out = Self::out_rma(at, op, op.buf.pieces(), write, checked, (peer, rx, route));
        let outcome = self.transport.as_mut()?.rma_mapped(&out)?;
        Some(self.posted_rma(outcome, &out))
    }

    #[inline(always)]
    fn posted_rma(&mut self, outcome: Result<Outcome>, out: &OutRma<'_>) -> Result<()> {
        if outcome.is_ok() {
            let counts = &mut self.ends.sender(out.ticket.at).0.counts;
            *(if out.write { &mut counts.writes } else { &mut counts.reads }) += 1;
        }
        self.posted(outcome, &out.ticket)
    }

    #[inline(always)]
    fn out_rma<'a>(
        at: u16,
        op: &RmaOp<'a>,
        pieces: &'a [Piece],
        write: bool,
        (flags, signal, len): (OpFlags, bool, usize),
        (peer, rx, route): (PeerId, RxName, CounterTarget),
    ) -> OutRma<'a> {
        let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
        let ticket = CompletionInfo {
            context: op.context,
            flags: CompletionFlags::RMA | kind,
            signal,
            len,
            route,
            at,
        };
        OutRma { write, pieces, remote: op.remote, len, peer, data: op.data, rx, flags, ticket }
    }
}

impl<T: Transport> EpCore<T> {
    #[inline]
    pub(super) fn send<const TAGGED: bool>(&self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        let mut guard = self.state.lock();
        if guard.send_now::<TAGGED>(op, tag) {
            return Ok(());
        }
        let outcome = guard.send::<TAGGED>(0, op, tag);
        self.posted(guard, outcome)
    }

    #[inline(always)] // so that each of the two calls knows what it is
    pub(super) fn rma<const WRITE: bool>(&self, op: &RmaOp<'_>) -> Result<()> {
        let mut guard = self.state.lock();
        if guard.access_now::<WRITE>(op) {
            drop(guard);
            self.domain.works.run_if_due();
            return Ok(());
        }
        let outcome = guard.rma(0, op, WRITE);
        self.posted(guard, outcome)
    }

    /// The work after a post. Releases the lock.
    #[inline]
    pub(super) fn posted(&self, guard: Guard<'_, State<T>>, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            return self.not_posted(guard, outcome);
        }
        drop(guard);
        self.domain.works.run_if_due();
        outcome
    }

    #[cold]
    fn not_posted(&self, guard: Guard<'_, State<T>>, outcome: Result<()>) -> Result<()> {
        let again = outcome.as_ref().is_err_and(Error::is_again);
        let context = guard.ends.tx.loan.as_ref().filter(|_| again).map(|loan| Arc::clone(&loan.context));
        drop(guard);
        if let Some(context) = context {
            context.collect();
        }
        self.domain.works.run_if_due();
        outcome
    }

    #[inline]
    pub(super) fn receive<const TAGGED: bool>(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        let mut guard = self.state.lock();
        if guard.receive_now::<TAGGED>(op, tag) {
            return Ok(());
        }
        let outcome = guard.receive::<TAGGED>(0, op, tag);
        drop(guard);
        self.domain.works.run_if_due();
        outcome
    }

    /// See [`ofi_api::Endpoint::abandon`].
    pub(super) fn abandon(&self, context: Context) -> Result<()> {
        if !T::ABANDONS {
            return Err(Error::new(Errno::EOPNOTSUPP));
        }
        let mut guard = self.state.lock();
        let State { ends, transport, .. } = &mut *guard;
        let is_it =
            |op: &TxOp<T::Op>| op.ticket.context == context && op.ticket.flags.contains(CompletionFlags::RMA);
        let (Some(&id), Some(transport)) = (ends.tx.ops.ids(is_it).first(), transport) else {
            return Err(Error::new(Errno::ENOENT));
        };
        let given_up = match ends.tx.ops.get_mut(id) {
            Some(op) => transport.give_up(op.peer, id, &mut op.op),
            None => GivenUp::Over,
        };
        if given_up == GivenUp::Busy {
            return Err(Error::AGAIN);
        }
        if let Some(ticket) = ends.tx.ops.get(id).map(|op| op.ticket) {
            ends.give_up_memory(&ticket);
        }
        if given_up == GivenUp::Over
            && let Some(peer) = ends.tx.ops.get(id).map(|op| op.peer)
            && let Some(op) = ends.finish(peer, id, Err(Errno::ECANCELED))
        {
            transport.removed(peer, id, op);
        }
        transport.settle_receives(ends);
        drop(guard);
        self.domain.works.run_if_due();
        Ok(())
    }

    /// See [`ofi_api::Endpoint::sever`].
    pub(super) fn sever(&self, addr: FiAddr) -> Result<()> {
        if !T::SEVERS {
            return Err(Error::new(Errno::EOPNOTSUPP));
        }
        let mut guard = self.state.lock();
        let (peer, _) = guard.dest(addr)?;
        let (transport, host) = guard.split().ok_or_else(not_enabled)?;
        let is_severed = transport.sever(host, peer);
        drop(guard);
        self.domain.works.run_if_due();
        if is_severed { Ok(()) } else { Err(Error::new(Errno::EOPNOTSUPP)) }
    }

    /// `fi_cancel`.
    pub(super) fn cancel(&self, context: Context) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some((space, posted)) = state.ends.rx.queue.matcher.cancel_by_context(context.0) else {
            drop(guard);
            if self.domain.works.cancel_triggered(std::ptr::from_ref(self).cast(), context) {
                return Ok(());
            }
            return Err(nothing_to_cancel(context));
        };
        state.ends.give_back(space, &posted, Errno::ECANCELED);
        drop(guard);
        self.domain.works.run_if_due();
        Ok(())
    }
}
