//! Posting: the calls of the data path, from the application to the transport.

use ofi_api::{
    Call, CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, Errno, Error, FiAddr, OpFlags, Piece,
    ReceiveOp, Result, RmaOp, SendOp, TagMatch,
};

use super::receive::{self, Filling, Held, MultiBuffer, Special, SpecialKind};
use super::transmit::{bad_flags, many_len, not_opened_for, null_piece, send_flags, success};
use super::{EpCore, State};
use crate::cntr::Kind;
use crate::copy;
use crate::cq::Credit;
use crate::matching::{self, Source as From, Unexpected, Want};
use crate::transport::Posted as Outcome;
use crate::transport::{Lanes, OutMessage, OutRma, Peer, Route, Ticket, Transport};

/// What a receive may be flagged with.
const RECEIVE_FLAGS: OpFlags = OpFlags::COMPLETION.union(OpFlags::MORE).union(OpFlags::MULTI_RECV);
/// What a tagged receive may be flagged with besides.
const SEARCH_FLAGS: OpFlags = OpFlags::PEEK.union(OpFlags::CLAIM).union(OpFlags::DISCARD);

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

impl<T: Transport> State<T> {
    /// The peer at `address`.
    #[inline]
    pub(super) fn peer(&mut self, address: FiAddr) -> Result<Peer> {
        match self.ends.peers.get(address) {
            Some(peer) => Ok(peer),
            None => self.meet(address),
        }
    }

    #[cold]
    fn meet(&mut self, address: FiAddr) -> Result<Peer> {
        if let Some(peer) = self.connected_peer() {
            return if self.lanes.is_some() { peer } else { Err(not_enabled()) };
        }
        let wanted = self.ends.peers.look_up(address)?;
        let (lanes, host) = self.split().ok_or_else(not_enabled)?;
        let peer = lanes.peer(host, &wanted)?;
        self.ends.peers.learn(address, peer);
        Ok(peer)
    }

    #[cold]
    pub(super) fn no_credit(&mut self) -> Error {
        self.ends.tx.counts.again += 1;
        // The man page has the application read its queues before it tries again; moving on here as well lets one
        // that only retries get through, where room is all that it waits for.
        self.drive();
        Error::AGAIN
    }

    /// Accounts for what the transport said of a posted operation.
    #[inline]
    pub(super) fn posted(&mut self, outcome: Result<Outcome>, ticket: &Ticket) -> Result<()> {
        match outcome {
            Ok(Outcome::Done) => {
                self.ends.boxes.ended(Kind::of(ticket.flags), ticket.len, ticket.route);
                if ticket.signal {
                    self.ends.boxes.credits[Credit::Transmit as usize] -= 1;
                    self.ends.boxes.transmitted(success(ticket));
                }
                Ok(())
            }
            Ok(Outcome::Pending) => Ok(()),
            Err(error) => {
                if error.is_again() {
                    return if self.ends.drop_outgoing(ticket) { Ok(()) } else { Err(self.no_credit()) };
                }
                Err(error)
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// A send as most are: plain, of one piece, to a peer that can take it at once. `false` says that nothing
    /// happened, and that [`State::send`] knows why or does what else it takes.
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
        let Some(lanes) = &mut self.lanes else { return false };
        if self.ends.boxes.credits[Credit::Transmit as usize] == 0 {
            return false;
        }
        // SAFETY: the piece is lent for reading.
        if !unsafe { lanes.send_now::<TAGGED>(peer, tag, piece.addr, piece.len) } {
            return false;
        }
        let counts = &mut self.ends.tx.counts;
        counts.messages += 1;
        counts.bytes += piece.len as u64;
        if signal {
            self.ends.boxes.sent(op.context, send_flags(TAGGED));
        }
        true
    }

    /// Checks what can be checked of a send before its peer is known: its flags, whether its success is reported, and its
    /// length.
    #[inline]
    pub(super) fn check_send<const TAGGED: bool>(&self, op: &SendOp<'_>) -> Result<(OpFlags, bool, usize)> {
        if !self.ends.tx.may_send[usize::from(TAGGED)] {
            let caps = if TAGGED { "FI_TAGGED and FI_SEND" } else { "FI_MSG and FI_SEND" };
            return Err(not_opened_for(if TAGGED { "fi_tsend" } else { "fi_send" }, caps));
        }
        let (flags, signal) = self.ends.tx.flags(op.call, op.flags)?;
        let len = self.ends.tx.message_len(op, flags, TAGGED)?;
        Ok((flags, signal, len))
    }

    #[inline(never)]
    pub(super) fn send<const TAGGED: bool>(&mut self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        let (flags, signal, len) = self.check_send::<TAGGED>(op)?;
        let peer = self.peer(op.dest)?;
        if self.ends.boxes.credits[Credit::Transmit as usize] == 0 {
            return Err(self.no_credit());
        }
        let ticket =
            Ticket { context: op.context, flags: send_flags(TAGGED), signal, len, route: self.ends.tx.route };
        let out = OutMessage {
            pieces: op.buf.pieces(),
            len,
            peer,
            tagged: TAGGED,
            tag,
            data: op.data,
            flags,
            ticket,
        };
        let (lanes, host) = self.split().ok_or_else(not_enabled)?;
        let outcome = lanes.send(host, &out);
        if outcome.is_ok() {
            self.ends.tx.counts.messages += 1;
            self.ends.tx.counts.bytes += len as u64;
        }
        self.posted(outcome, &ticket)
    }
}

impl<T: Transport> State<T> {
    /// Checks what can be checked of a remote access before its peer is known: its flags, whether its success is reported,
    /// and its length.
    #[inline]
    pub(super) fn check_rma(&self, op: &RmaOp<'_>, write: bool) -> Result<(OpFlags, bool, usize)> {
        if !(if write { self.ends.tx.may_write } else { self.ends.tx.may_read }) {
            let caps = if write { "FI_RMA and FI_WRITE" } else { "FI_RMA and FI_READ" };
            return Err(not_opened_for(if write { "fi_write" } else { "fi_read" }, caps));
        }
        let (mut flags, signal) = self.ends.tx.flags(op.call, op.flags)?;
        if !write && op.call == Call::Plain {
            flags -= self.ends.tx.op_flags & OpFlags::INJECT; // a default that means nothing for a read
        }
        if !write && flags.intersects(OpFlags::INJECT | OpFlags::REMOTE_CQ_DATA) {
            return Err(bad_flags(flags & (OpFlags::INJECT | OpFlags::REMOTE_CQ_DATA)));
        }
        let len = self.ends.tx.rma_len(op, flags)?;
        Ok((flags, signal, len))
    }

    pub(super) fn rma(&mut self, op: &RmaOp<'_>, write: bool) -> Result<()> {
        let (flags, signal, len) = self.check_rma(op, write)?;
        let peer = self.peer(op.peer)?;
        if self.ends.boxes.credits[Credit::Transmit as usize] == 0 {
            return Err(self.no_credit());
        }
        let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
        let ticket = Ticket {
            context: op.context,
            flags: CompletionFlags::RMA | kind,
            signal,
            len,
            route: self.ends.tx.route,
        };
        let out = OutRma {
            write,
            pieces: op.buf.pieces(),
            remote: op.remote,
            len,
            peer,
            data: op.data,
            flags,
            ticket,
        };
        let (lanes, host) = self.split().ok_or_else(not_enabled)?;
        let outcome = lanes.rma(host, &out);
        if outcome.is_ok() {
            let count = if write { &mut self.ends.tx.counts.writes } else { &mut self.ends.tx.counts.reads };
            *count += 1;
        }
        self.posted(outcome, &ticket)
    }
}

impl<T: Transport> EpCore<T> {
    #[inline]
    pub(super) fn send<const TAGGED: bool>(&self, op: &SendOp<'_>, tag: u64) -> Result<()> {
        let mut guard = self.state.lock();
        if guard.send_now::<TAGGED>(op, tag) {
            return Ok(());
        }
        let outcome = guard.send::<TAGGED>(op, tag);
        drop(guard);
        self.domain.works.run_if_due();
        outcome
    }

    pub(super) fn rma(&self, op: &RmaOp<'_>, write: bool) -> Result<()> {
        let outcome = self.state.lock().rma(op, write);
        self.domain.works.run_if_due();
        outcome
    }

    #[inline]
    pub(super) fn receive<const TAGGED: bool>(&self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        let mut guard = self.state.lock();
        if guard.receive_now::<TAGGED>(op, tag) {
            return Ok(());
        }
        let outcome = guard.receive::<TAGGED>(op, tag);
        drop(guard);
        self.domain.works.run_if_due();
        outcome
    }

    /// `fi_cancel`.
    pub(super) fn cancel(&self, context: Context) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(posted) = state.ends.rx.matcher.cancel_by_context(context.0) else {
            drop(guard);
            if self.domain.works.cancel_triggered(std::ptr::from_ref(self).cast(), context) {
                return Ok(());
            }
            return Err(Error::wanted(
                Errno::ENOENT,
                "fi_cancel",
                "the context of a receive or a triggered operation that waits",
                format!("{:#x}, which none has", context.0),
                "nothing: the receive has its message, or was never posted",
            ));
        };
        state.ends.give_back(&posted, Errno::ECANCELED);
        drop(guard);
        self.domain.works.run_if_due();
        Ok(())
    }
}

impl<T: Transport> State<T> {
    /// A receive as most are: plain, of one piece, from anyone, with nothing there that it might match. `false` says that
    /// nothing happened, and that [`State::receive`] knows why or does what else it takes.
    #[inline(always)]
    fn receive_now<const TAGGED: bool>(&mut self, op: &ReceiveOp<'_>, tag: TagMatch) -> bool {
        let rx = &mut self.ends.rx;
        let [piece] = op.buf.pieces() else { return false };
        let any = op.source == FiAddr::UNSPEC || !rx.tagged_directed;
        if !rx.quick[usize::from(TAGGED)] || !any || op.call != Call::Plain || !op.flags.is_empty() {
            return false;
        }
        let credit = &mut self.ends.boxes.credits[Credit::Receive as usize];
        if piece.addr.is_null() || *credit == 0 || (TAGGED && tag.ignore != 0) {
            return false;
        }
        let posted = rx.of_one(op.context, *piece, rx.reports(OpFlags::empty()));
        let queued = rx.matcher.queue::<TAGGED>(tag.tag, posted);
        *credit -= usize::from(queued);
        queued
    }

    #[inline(never)]
    fn receive<const TAGGED: bool>(&mut self, op: &ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        if self.lanes.is_none() {
            return Err(not_enabled());
        }
        if !self.ends.rx.may_receive[usize::from(TAGGED)] {
            if let Some(late) = self.late_receive::<TAGGED>(op, tag) {
                return late;
            }
            let caps = if TAGGED { "FI_TAGGED and FI_RECV" } else { "FI_MSG and FI_RECV" };
            return Err(not_opened_for(if TAGGED { "fi_trecv" } else { "fi_recv" }, caps));
        }
        let flags = if op.call == Call::Msg { op.flags } else { self.ends.rx.op_flags | op.flags };
        let directed = if TAGGED { self.ends.rx.tagged_directed } else { self.ends.rx.directed };
        let source = if directed && op.source != FiAddr::UNSPEC {
            From::From(matching::Peer(self.peer(op.source)?))
        } else {
            From::Any
        };
        let want = if TAGGED { Want::tagged(source, tag.tag, tag.ignore) } else { Want::untagged(source) };
        if !RECEIVE_FLAGS.contains(flags) {
            let search = flags & SEARCH_FLAGS;
            if !TAGGED || search.is_empty() || !(RECEIVE_FLAGS | SEARCH_FLAGS).contains(flags) {
                return Err(bad_flags(flags - RECEIVE_FLAGS));
            }
            return self.search(op, &want, flags);
        }
        match op.buf.pieces() {
            [one] if one.addr.is_null() && one.len > 0 => return Err(null_piece(one.len)),
            [_] => {}
            _ => drop(many_len(&op.buf, self.ends.rx.iov_limit)?),
        }
        let credit = &mut self.ends.boxes.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        let signal = self.ends.rx.reports(flags);
        if flags.contains(OpFlags::MULTI_RECV) {
            return self.post_multi(op, want, signal);
        }
        let posted = self.ends.rx.posted(op.context, &op.buf, signal);
        match self.ends.rx.matcher.post(want, posted) {
            matching::Posted::Queued(_) => {}
            matching::Posted::Matched { recv, message } => {
                let arrived = receive::arrived(&message.envelope);
                let filling = self.ends.rx.fill(recv, &arrived);
                self.settle(filling, message.content);
            }
        }
        Ok(())
    }
}

impl<T: Transport> State<T> {
    /// Finishes a receive whose message was there before it.
    #[cold]
    pub(super) fn settle(&mut self, filling: Filling, content: Held<T>) {
        match content {
            Held::Bytes(bytes) => {
                // SAFETY: the pieces were lent for writing until the completion that is made below is read.
                unsafe { copy::scatter(bytes.as_ptr(), filling.placed(), filling.buffer.pieces(), 0) };
                self.ends.rx.complete(&mut self.ends.boxes, &mut self.ends.peers, &filling);
            }
            Held::AtSender(token) => {
                let peer = filling.arrived.peer;
                let into = self.ends.rx.filling.insert(filling);
                if let Some((lanes, host)) = self.split() {
                    lanes.pull(host, peer, token, into);
                }
            }
            Held::Lost(errno) => {
                self.ends.rx.fail(&mut self.ends.boxes, &mut self.ends.peers, &filling, errno, 0)
            }
        }
    }

    /// Posts a multi-receive buffer, after the messages that already wait for it.
    #[cold]
    fn post_multi(&mut self, op: &ReceiveOp<'_>, want: Want, signal: bool) -> Result<()> {
        let [piece] = op.buf.pieces() else {
            self.ends.boxes.credits[Credit::Receive as usize] += 1;
            return Err(Error::wanted(
                Errno::EINVAL,
                "a receive with FI_MULTI_RECV",
                "one contiguous buffer",
                format!("{} pieces", op.buf.pieces().len()),
                "post one piece",
            ));
        };
        let multi =
            MultiBuffer { buffer: Piece::new(piece.addr, piece.len), used: 0, filling: 0, exhausted: false };
        let id = self.ends.rx.multis.insert(multi);
        loop {
            let special = Special { signal, route: Route::ENDPOINT, kind: SpecialKind::Multi(id) };
            let posted = self.ends.rx.posted_special(op.context, special);
            let message = match self.ends.rx.matcher.post(want, posted) {
                matching::Posted::Queued(_) => return Ok(()),
                matching::Posted::Matched { message, recv } => {
                    self.ends.rx.forget(&recv);
                    message
                }
            };
            let arrived = receive::arrived(&message.envelope);
            let Some((filling, exhausted)) = self.ends.rx.fill_multi(op.context, signal, id, &arrived) else {
                return Ok(());
            };
            self.settle(filling, message.content);
            if exhausted {
                return Ok(());
            }
        }
    }

    /// Peek, claim, discard, and receiving what was claimed.
    #[cold]
    fn search(&mut self, op: &ReceiveOp<'_>, want: &Want, flags: OpFlags) -> Result<()> {
        let credit = &mut self.ends.boxes.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        self.drive();
        let has = |flag| flags.contains(flag);
        let context = op.context.0;
        match (has(OpFlags::PEEK), has(OpFlags::CLAIM), has(OpFlags::DISCARD)) {
            (true, true, false) => {
                let found = self.ends.rx.matcher.claim(want, context).map(|message| message.envelope);
                self.found(op, want, found);
            }
            (true, false, false) => {
                let found = self.ends.rx.matcher.peek(want).map(|message| message.envelope);
                self.found(op, want, found);
            }
            (true, false, true) => {
                let message = self.ends.rx.matcher.discard(want);
                self.discarded(op, want, message);
            }
            (false, true, true) => {
                let message = self.ends.rx.matcher.take_claimed(context);
                self.discarded(op, want, message);
            }
            (false, true, false) => match self.ends.rx.matcher.take_claimed(context) {
                Some(message) => {
                    let signal = self.ends.rx.reports(flags);
                    let posted = self.ends.rx.posted(op.context, &op.buf, signal);
                    let arrived = receive::arrived(&message.envelope);
                    let filling = self.ends.rx.fill(posted, &arrived);
                    self.settle(filling, message.content);
                }
                None => {
                    self.ends.boxes.credits[Credit::Receive as usize] += 1;
                    return Err(Error::wanted(
                        Errno::EINVAL,
                        "fi_trecvmsg with FI_CLAIM",
                        "the context of an earlier FI_PEEK | FI_CLAIM that found a message",
                        format!("{context:#x}, for which none is claimed"),
                        "claim first, with the same context",
                    ));
                }
            },
            _ => {
                self.ends.boxes.credits[Credit::Receive as usize] += 1;
                return Err(bad_flags(flags & SEARCH_FLAGS));
            }
        }
        Ok(())
    }

    fn discarded(&mut self, op: &ReceiveOp<'_>, want: &Want, message: Option<Unexpected<Held<T>>>) {
        let found = message.as_ref().map(|message| message.envelope);
        if let Some(Unexpected { envelope, content: Held::AtSender(token), .. }) = message
            && let Some((lanes, _)) = self.split()
        {
            lanes.discard(envelope.peer.0, token);
        }
        self.found(op, want, found);
    }

    /// Reports what a search found.
    fn found(&mut self, op: &ReceiveOp<'_>, want: &Want, found: Option<matching::Envelope>) {
        let Some(envelope) = found else {
            let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
            let mut error = CqErrorEntry::new(op.context, flags, Errno::ENOMSG);
            error.tag = want.tag;
            return self.ends.boxes.not_found(error, Credit::Receive);
        };
        if !self.ends.rx.bound {
            self.ends.boxes.credits[Credit::Receive as usize] += 1;
            return;
        }
        let arrived = receive::arrived(&envelope);
        let source =
            if self.ends.rx.report_source { self.ends.peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        let body = CqTaggedEntry {
            op_context: op.context,
            flags: receive::arrived_flags(&arrived),
            len: arrived.len,
            buf: std::ptr::null_mut(),
            data: arrived.data,
            tag: arrived.tag,
        };
        self.ends.boxes.received(body, source, Credit::Receive);
    }
}
