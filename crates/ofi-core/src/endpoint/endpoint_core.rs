//! The upcalls of a transport: they match an arriving message with a receive, and an ended operation with its
//! completion.

use std::sync::Arc;

use ofi_api::{
    Address, CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, Errno, FiAddr, MrAccess, RemotePiece,
    Result,
};

use super::collective::CollectiveSide;
use super::contexts::Contexts;
use super::multicast::MulticastSide;
use super::peers::Peers;
use super::queue::{Arrival, Filling, Incoming};
use super::receive::{self, RxSide};
use super::receiver::Receiver;
use super::shared_transmit::Loan;
use super::staging::CompletionStaging;
use super::transmit::{TxOp, TxSide, success};
use crate::cm::Connection;
use crate::cntr::Kind;
use crate::copy;
use crate::cq::Credit;
use crate::domain::Regions;
use crate::eq::EqCore;
use crate::hmem::{Devices, Staged};
use crate::log::Limit;
use crate::sleepers::Sleepers;
use crate::slots::SlotId;
use crate::transport::{
    Announced, Arrived, CompletionInfo, CounterTarget, Delivery, Fault, Origin, PeerId, Reaction, Receiving,
    RemoteData, RxName, Transport, Upcalls,
};
use crate::unattended::Unattended;

/// The parts of an endpoint that its transport may reach while it runs: where operations begin and end.
pub struct EndpointCore<T: Transport> {
    pub tx: TxSide<T>,
    pub rx: RxSide<T>,
    pub staging: CompletionStaging,
    pub peers: Peers,
    /// Of endpoints of `FI_EP_MSG`.
    pub connection: Option<Box<Connection>>,
    /// Of scalable endpoints, which transfer nothing themselves.
    pub contexts: Option<Box<Contexts<T>>>,
    /// Present if the endpoint has `FI_COLLECTIVE`.
    pub collectives: Option<Box<CollectiveSide>>,
    /// Present if the endpoint has `FI_MULTICAST`.
    pub multicast: Option<Box<MulticastSide>>,
    /// Threads that sleep until there is work for the endpoint.
    pub sleepers: Sleepers,
    /// What the transport has left to the next poll.
    pub unattended: Arc<Unattended>,
    /// The progress thread polls this endpoint, and rearms it for all.
    pub stands_in: bool,
    /// The domain's device memory, if the endpoint has `FI_HMEM`.
    pub devices: Option<Arc<Devices>>,
    /// Buffers of failed operations on device memory. The transport may write to them until it has settled, which
    /// happens in the next post
    /// ([`TransportEndpoint::settle_receives`](crate::transport::TransportEndpoint::settle_receives)).
    pub unsettled: Vec<Staged>,
}

impl<T: Transport> EndpointCore<T> {
    /// Binds an event queue to everything that reports to one: joins of groups, and the connection. Returns the result
    /// of each.
    #[cold]
    pub fn bind_queue(&mut self, eq: &Arc<EqCore>) -> [Option<Result<()>>; 3] {
        [
            self.collectives.as_mut().map(|side| side.bind(Arc::clone(eq))),
            self.multicast.as_mut().map(|side| side.bind(Arc::clone(eq))),
            self.connection.as_mut().map(|connection| connection.bind(Arc::clone(eq))),
        ]
    }

    /// Whether transmit context `at` may not post an operation, even after borrowing room from a shared context.
    #[inline]
    pub fn no_transmit_credit(&mut self, at: u16) -> bool {
        self.sender(at).1.credits[Credit::Transmit as usize] == 0 && !self.borrow(at)
    }

    #[cold]
    fn borrow(&mut self, at: u16) -> bool {
        let (tx, staging) = self.sender(at);
        let room = tx.loan.as_ref().map_or(0, Loan::borrow);
        staging.credits[Credit::Transmit as usize] += room;
        room > 0
    }

    /// See [`Upcalls::deliver`].
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn deliver_slow(
        &mut self,
        from: Origin,
        words: (u64, u64),
        (len, body): (usize, *const u8),
    ) -> Delivery {
        let arrived = &Arrived::of_parts(from, words, len);
        let Some(at) = self.steer(arrived.peer, arrived.rx, arrived.tagged) else {
            self.rx.counts.dropped += 1;
            return Delivery::Taken;
        };
        // SAFETY: the caller's promise.
        unsafe { self.receiver(at).deliver(arrived, body) }
    }

    /// Whether an operation's context has closed
    /// ([`TransportEndpoint::abandon`](crate::transport::TransportEndpoint::abandon)): an endpoint with contexts has no
    /// operations of its own.
    fn is_abandoned(&self, op: &TxOp<T::Op>) -> bool {
        self.contexts.is_some() && op.ticket.at == 0
    }

    /// Logs that a peer is lost: as a warning if operations fail with it that were not cancelled.
    #[cold]
    fn log_loss(&self, peer: PeerId, error: Errno, operations: usize) {
        let Some(peer) = self.peers.address(peer) else { return };
        let error = error.name();
        if operations > 0 && error != Errno::ECANCELED.name() {
            static LIMIT: Limit = Limit::new();
            if let Some(more) = LIMIT.pass() {
                tracing::warn!(
                    target: "ofi::core::ep_ctrl",
                    %peer, error, operations, more_peers = more,
                    "operations fail: their peer is lost"
                );
                return;
            }
        }
        tracing::info!(target: "ofi::core::ep_ctrl", %peer, error, operations, "the session with a peer has ended");
    }

    /// Ends an operation that has succeeded, and that not only the endpoint counts.
    #[cold]
    fn finish_routed(&mut self, mut op: TxOp<T::Op>) -> T::Op {
        if let Err(errno) = self.unstage(&mut op.ticket) {
            self.fail_op(&op, Fault { errno, number: errno.get() });
            return op.op;
        }
        let staging = self.sender(op.ticket.at).1;
        staging.ended(Kind::of(op.ticket.flags), op.ticket.len, op.ticket.route);
        match op.ticket.signal {
            true => staging.transmitted(success(&op.ticket)),
            false => staging.credits[Credit::Transmit as usize] += 1,
        }
        op.op
    }

    #[cold]
    fn fail_op(&mut self, op: &TxOp<T::Op>, Fault { errno, number }: Fault) {
        if self.is_abandoned(op) || self.forgive(op, errno) {
            return;
        }
        let peer = self.peers.address(op.peer).cloned();
        let route = self.keep_buffer(&op.ticket);
        let (tx, staging) = self.sender(op.ticket.at);
        tx.counts.failed += 1;
        let mut error = CqErrorEntry::new(op.ticket.context, op.ticket.flags, errno);
        error.prov_errno = number;
        error.peer = peer.map(Box::new);
        staging.transmit_failed(error, route);
    }
}

impl<T: Transport> Upcalls<T> for EndpointCore<T> {
    #[cold]
    fn disarmed(&mut self) {
        if self.stands_in {
            return;
        }
        let sides = self.contexts.iter().flat_map(|contexts| contexts.all().map(|(_, side)| &side.staging));
        let reader = std::iter::once(&self.staging).chain(sides).find_map(|staging| staging.reader());
        self.sleepers.disarmed(reader);
    }

    fn attend_later(&mut self) -> bool {
        self.unattended.begin()
    }

    fn attended(&mut self) {
        self.unattended.end();
    }

    fn introduce(&mut self, peer: PeerId, address: &Address) {
        self.peers.introduce(peer, address);
    }

    fn insertions(&self) -> u32 {
        self.peers.av().map_or(0, |av| av.counts().insertions())
    }

    fn insertion(&self, peer: PeerId) -> Option<u64> {
        self.peers.av()?.insertion(self.peers.address(peer)?)
    }

    fn addresses(&self) -> Vec<Address> {
        let Some(av) = self.peers.av() else { return Vec::new() };
        av.numbers().into_iter().filter_map(|number| av.address(number).ok()).collect()
    }

    #[inline]
    fn address(&self, peer: PeerId) -> Option<&Address> {
        self.peers.address(peer)
    }

    #[cold]
    fn retire(&mut self, peer: PeerId) -> bool {
        let mut used = self.connection.is_some()
            || self.peers.is_used(peer)
            || self.collectives.as_ref().is_some_and(|side| side.knows(peer))
            || !self.tx.ops.ids(|op| op.peer == peer).is_empty()
            || !self.rx.filling.ids(|filling| filling.arrived.peer == peer).is_empty();
        self.each_receiver(|rx| used = used || rx.knows(peer));
        if !used {
            self.each_receiver(|rx| rx.forget(peer));
        }
        !used
    }

    #[inline(always)] // so that a transport's loop over messages knows what kind they are
    unsafe fn deliver(&mut self, arrived: &Arrived, body: *const u8) -> Delivery {
        // The common case is handled separately: a receive of one piece that is long enough and must be reported.
        let envelope = receive::envelope(arrived);
        let len = arrived.len;
        if arrived.rx.is_of_one()
            && let Some((context, to)) = self.rx.queue.matcher.accept(&envelope, |posted| posted.simple(len))
        {
            // SAFETY: the piece was lent for writing until its completion is read, which is created below; `body` is
            // readable by the caller's promise, and no lent piece overlaps a transport's memory.
            unsafe { copy::bytes(body, to, len) };
            self.rx.report(&mut self.staging, &mut self.peers, context, arrived);
            return Delivery::Taken;
        }
        let (from, words, len) = arrived.parts();
        // SAFETY: the caller's promise.
        unsafe { self.deliver_slow(from, words, (len, body)) }
    }

    fn announce(&mut self, arrived: &Arrived, token: T::Token) -> Announced<T> {
        let Some(at) = self.steer(arrived.peer, arrived.rx, arrived.tagged) else {
            self.rx.counts.dropped += 1;
            return Announced::Unwanted(token);
        };
        // SAFETY: there is no body.
        match unsafe { self.receiver(at).arrive(arrived, Incoming::Token(token)) } {
            Arrival::Receive(filling, _) => Announced::Pull(self.rx.filling.insert(filling)),
            Arrival::Kept { .. } => Announced::Kept,
            Arrival::Refused(Incoming::Token(token)) => Announced::Stopped(token),
            Arrival::Refused(Incoming::Body(_)) => unreachable!("the queue hands back what it was given"),
        }
    }

    fn receiving(&self, id: SlotId) -> Option<Receiving<'_>> {
        let filling = self.rx.filling.get(id)?;
        Some(Receiving { pieces: filling.buffer.pieces(), len: filling.placed() })
    }

    fn received(&mut self, id: SlotId, result: Result<(), Errno>) {
        let Some(filling) = self.take_filling(id) else { return };
        match result {
            Ok(()) => self.receiver(filling.at).complete(filling),
            Err(errno) => self.fail_filling(filling, Fault { errno, number: 0 }),
        }
    }

    fn receive_failed(&mut self, id: SlotId, fault: Fault) {
        let Some(filling) = self.take_filling(id) else { return };
        self.fail_filling(filling, fault);
    }

    fn claim(&mut self, peer: PeerId) -> Option<SlotId> {
        // The message is unknown: all that matters is that it will be an untagged one from this peer.
        let none = Arrived { peer, rx: RxName::ANY, tagged: false, has_data: false, tag: 0, data: 0, len: 0 };
        let filling = self.rx.queue.claim(&receive::envelope(&none), &none)?;
        Some(self.rx.filling.insert(filling))
    }

    fn landed(&mut self, id: SlotId, arrived: &Arrived) {
        let Some(filling) = self.take_filling(id) else { return };
        let filling = Filling { arrived: *arrived, ..filling };
        self.receiver(filling.at).complete(filling);
    }

    fn spent(&mut self, id: SlotId, data: u64, len: usize) {
        let Some(filling) = self.take_filling(id) else { return };
        let Receiver { staging, .. } = self.receiver(filling.at);
        if !filling.signal {
            staging.credits[Credit::Receive as usize] += 1;
            return;
        }
        let flags = CompletionFlags::REMOTE_WRITE | CompletionFlags::RMA | CompletionFlags::REMOTE_CQ_DATA;
        let body = CqTaggedEntry { op_context: filling.context, flags, len, data, ..CqTaggedEntry::EMPTY };
        staging.received(body, FiAddr::NOTAVAIL, Credit::Receive);
    }

    fn remote_write(&mut self, peer: PeerId, data: RemoteData, len: usize) -> bool {
        let Some(at) = self.steer_data(peer, data.rx) else {
            self.rx.counts.dropped += 1;
            return true;
        };
        let Receiver { rx, staging, peers, .. } = self.receiver(at);
        if !staging.has_room() {
            rx.counts.stopped += 1;
            return false;
        }
        if rx.bound {
            let flags =
                CompletionFlags::REMOTE_WRITE | CompletionFlags::RMA | CompletionFlags::REMOTE_CQ_DATA;
            if let Some(address) = rx.strange(peers, peer) {
                let mut error = CqErrorEntry::new(Context::NULL, flags, Errno::EADDRNOTAVAIL);
                (error.len, error.data, error.err_data) = (len, data.value, address);
                staging.not_found(error, Credit::None); // the write itself succeeded, and counts as a success
                return true;
            }
            let source = if rx.report_source { peers.source(peer) } else { FiAddr::NOTAVAIL };
            let body = CqTaggedEntry { flags, len, data: data.value, ..CqTaggedEntry::EMPTY };
            staging.received(body, source, Credit::None);
        }
        true
    }

    fn accessed(&mut self, regions: &Regions, access: MrAccess, remote: &[RemotePiece]) {
        // A fetching atomic counts as a read at the endpoint; at the region, it counts by its effect on the memory.
        let kind = if access.contains(MrAccess::REMOTE_READ) { Kind::RemoteRead } else { Kind::RemoteWrite };
        let done = if access.contains(MrAccess::REMOTE_WRITE) { Kind::RemoteWrite } else { Kind::RemoteRead };
        if self.staging.counters.has(kind) {
            self.staging.counters.count(kind, remote.iter().map(|piece| piece.len).sum());
        }
        regions.count(done, remote);
    }

    fn counts_reads(&self, regions: &Regions) -> bool {
        self.staging.counters.has(Kind::RemoteRead) || regions.counts()
    }

    unsafe fn noted(
        &mut self,
        peer: PeerId,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        match &mut self.collectives {
            // SAFETY: the caller's promise.
            Some(side) => unsafe { side.noted(peer, words, body, len) },
            // A member of a group that this end cannot be in: its join ends only when it leaves the group.
            None => Ok(()),
        }
    }

    #[inline]
    fn open(&mut self, peer: PeerId, ticket: CompletionInfo, op: T::Op) -> SlotId {
        self.open_with(peer, ticket, || op)
    }

    #[inline(always)]
    fn open_with(&mut self, peer: PeerId, ticket: CompletionInfo, make: impl FnOnce() -> T::Op) -> SlotId {
        self.sender(ticket.at).1.credits[Credit::Transmit as usize] -= 1;
        self.tx.ops.insert_with(|| TxOp { peer, ticket, op: make() })
    }

    #[inline]
    fn awaits(&mut self, ticket: &CompletionInfo) -> bool {
        // Others may use the room of a shared context as soon as the operation has ended.
        let is_lent = self.tx.loan.is_some();
        let mut is_counted = || self.sender(ticket.at).1.counters.has(Kind::of(ticket.flags));
        ticket.signal || ticket.route != CounterTarget::ENDPOINT || is_lent || is_counted()
    }

    fn abandon(&mut self, id: SlotId) {
        if let Some(op) = self.tx.ops.remove(id) {
            self.sender(op.ticket.at).1.credits[Credit::Transmit as usize] += 1;
        }
    }

    fn op(&mut self, peer: PeerId, id: SlotId) -> Option<&mut T::Op> {
        self.tx.ops.get_mut(id).filter(|op| op.peer == peer).map(|op| &mut op.op)
    }

    #[inline]
    fn own_op(&mut self, id: SlotId) -> Option<&mut T::Op> {
        self.tx.ops.get_mut(id).map(|op| &mut op.op)
    }

    fn finish(&mut self, peer: PeerId, id: SlotId, result: Result<(), Errno>) -> Option<T::Op> {
        if let Err(errno) = result {
            return self.finish_failed(peer, id, Fault { errno, number: errno.get() });
        }
        if self.tx.ops.get(id)?.peer != peer {
            return None;
        }
        let op = self.tx.ops.remove(id)?;
        if op.ticket.route != CounterTarget::ENDPOINT {
            return Some(self.finish_routed(op));
        }
        let staging = self.sender(op.ticket.at).1;
        staging.counters.count(Kind::of(op.ticket.flags), op.ticket.len);
        match op.ticket.signal {
            true => staging.transmitted(success(&op.ticket)),
            false => staging.credits[Credit::Transmit as usize] += 1,
        }
        Some(op.op)
    }

    #[cold]
    fn finish_failed(&mut self, peer: PeerId, id: SlotId, fault: Fault) -> Option<T::Op> {
        if self.tx.ops.get(id)?.peer != peer {
            return None;
        }
        let op = self.tx.ops.remove(id)?;
        self.fail_op(&op, fault);
        Some(op.op)
    }

    fn fail_ops(&mut self, peer: PeerId, error: Errno, which: impl Fn(&T::Op) -> bool) {
        let failed = self.tx.ops.ids(|op| op.peer == peer && which(&op.op));
        self.log_loss(peer, error, failed.len());
        for id in failed {
            self.finish(peer, id, Err(error));
        }
    }

    fn fail_peer_where(
        &mut self,
        peer: PeerId,
        error: Errno,
        ops: impl Fn(&T::Op) -> bool,
        tokens: impl Fn(&T::Token) -> bool,
    ) {
        self.fail_ops(peer, error, ops);
        if let Some(side) = &mut self.collectives {
            side.peer_gone(peer, error);
        }
        for id in self.rx.filling.ids(|filling| filling.arrived.peer == peer) {
            self.received(id, Err(error));
        }
        self.each_receiver(|rx| rx.lose(peer, error, &tokens));
        self.connection_gone(error);
    }

    fn notes_gone(&mut self, peer: PeerId, error: Errno) {
        if let Some(side) = &mut self.collectives {
            side.peer_gone(peer, error);
        }
    }

    fn packet(&mut self, from: &Address, packet: &[u8]) -> Reaction {
        self.connection_packet(from, packet)
    }

    #[cold]
    fn joined_group(&mut self, group: &Address, receives: bool, result: Result<(), Errno>) {
        if let Some(side) = &mut self.multicast {
            side.ended(group, receives, result);
        }
    }

    fn packet_lost(&mut self, to: &Address, errno: Errno) {
        self.connection_packet_lost(to, errno);
    }

    #[inline]
    fn hungry(&self) -> bool {
        self.staging.hungry()
    }

    fn may_hold(&self, peer: PeerId, len: usize) -> bool {
        self.all_may_hold(peer, len)
    }

    fn held(&self, peer: PeerId) -> (usize, usize) {
        self.all_held(peer)
    }
}
