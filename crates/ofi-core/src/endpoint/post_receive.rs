//! Posting a receive, and completing it if its message has already arrived.

use ofi_api::{Call, Errno, Error, FiAddr, OpFlags, ReceiveOp, Result, TagMatch};

use super::State;
use super::post::not_enabled;
use super::queue::{Filling, Special, SpecialKind, UnexpectedPayload};
use super::receive;
use super::receiver::Receiver;
use super::search::SEARCH_FLAGS;
use super::transmit::{bad_flags, many_len, not_opened_for, null_piece};
use crate::copy;
use crate::cq::Credit;
use crate::matching::{self, SourceFilter, Want};
use crate::transport::{CounterTarget, Fault, Transport, TransportEndpoint};

/// The flags of a receive.
pub(super) const RECEIVE_FLAGS: OpFlags = OpFlags::COMPLETION.union(OpFlags::MORE).union(OpFlags::MULTI_RECV);

/// Whether the flags, beyond those of a receive, request a search.
pub(super) fn searches(flags: OpFlags) -> bool {
    flags.intersects(SEARCH_FLAGS) && (RECEIVE_FLAGS | SEARCH_FLAGS).contains(flags)
}

/// Checks the memory of a receive.
///
/// # Errors
/// For more than `limit` pieces, or a null one.
#[inline]
pub(super) fn check_pieces(op: &ReceiveOp<'_>, limit: usize) -> Result<()> {
    match op.buf.pieces() {
        [one] if one.addr.is_null() && one.len > 0 => Err(null_piece(one.len)),
        [_] => Ok(()),
        _ => many_len(&op.buf, limit).map(drop),
    }
}

/// A multi-receive buffer of several pieces, or none.
#[cold]
pub(super) fn scattered_multi(pieces: usize) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "a receive with FI_MULTI_RECV",
        "one contiguous buffer",
        format!("{pieces} pieces"),
        "post one piece",
    )
}

impl<T: Transport> State<T> {
    /// The common case of a receive: plain, of one piece, from anyone, with no waiting message that it might match.
    /// `false` means that nothing happened; [`State::receive`] then handles the general case, and finds out why an
    /// error occurs.
    #[inline(always)]
    pub(super) fn receive_now<const TAGGED: bool>(&mut self, op: &ReceiveOp<'_>, tag: TagMatch) -> bool {
        let rx = &mut self.ends.rx;
        let [piece] = op.buf.pieces() else { return false };
        let any = op.source == FiAddr::UNSPEC || !rx.tagged_directed;
        if !rx.quick[usize::from(TAGGED)] || !any || op.call != Call::Plain || !op.flags.is_empty() {
            return false;
        }
        let credit = &mut self.ends.staging.credits[Credit::Receive as usize];
        if piece.addr.is_null() || *credit == 0 || (TAGGED && tag.ignore != 0) {
            return false;
        }
        let posted = rx.plain(op.context, *piece);
        let queued = rx.queue.matcher.queue::<TAGGED>(tag.tag, posted);
        *credit -= usize::from(queued);
        queued
    }

    /// Turns a receive from all peers of an authorization key (`FI_AUTH_KEY`) into one from any peer, because an
    /// endpoint has only one key, and all its peers have the same.
    ///
    /// # Errors
    /// `FI_EINVAL` unless the source is a key of the address vector.
    #[cold]
    fn of_key<'a>(&self, op: &ReceiveOp<'a>, flags: OpFlags) -> Result<ReceiveOp<'a>> {
        let Some(av) = self.ends.peers.av() else { return Err(bad_flags(OpFlags::AUTH_KEY)) };
        av.check_key(op.source)?;
        Ok(ReceiveOp { source: FiAddr::UNSPEC, flags: flags - OpFlags::AUTH_KEY, call: Call::Msg, ..*op })
    }

    /// Posts a receive of receive context `at`, or searches.
    #[inline(never)]
    pub(super) fn receive<const TAGGED: bool>(
        &mut self,
        at: u16,
        op: &ReceiveOp<'_>,
        tag: TagMatch,
    ) -> Result<()> {
        if self.transport.is_none() {
            return Err(not_enabled());
        }
        let rx = self.ends.receiver(at).rx;
        if !rx.may_receive[usize::from(TAGGED)] && !self.may_receive_late::<TAGGED>(op, tag)? {
            let caps = if TAGGED { "FI_TAGGED and FI_RECV" } else { "FI_MSG and FI_RECV" };
            return Err(not_opened_for(if TAGGED { "fi_trecv" } else { "fi_recv" }, caps));
        }
        let rx = self.ends.receiver(at).rx;
        let flags = if op.call == Call::Msg { op.flags } else { rx.op_flags | op.flags };
        let directed = if TAGGED { rx.tagged_directed } else { rx.directed };
        if flags.intersects(SEARCH_FLAGS) {
            // A search finds messages that have arrived, so poll first. This must come before looking up peers, because
            // a poll may retire their numbers.
            self.drive();
        }
        let source = if directed && op.source != FiAddr::UNSPEC {
            if flags.contains(OpFlags::AUTH_KEY) {
                let stripped = self.of_key(op, flags)?;
                return self.receive::<TAGGED>(at, &stripped, tag);
            }
            SourceFilter::From(matching::SourceId(self.dest(op.source)?.0))
        } else {
            SourceFilter::Any
        };
        let want = if TAGGED { Want::tagged(source, tag.tag, tag.ignore) } else { Want::untagged(source) };
        if !RECEIVE_FLAGS.contains(flags) {
            if !TAGGED || !searches(flags) {
                return Err(bad_flags(flags - RECEIVE_FLAGS));
            }
            return self.search(at, op, &want, flags);
        }
        let device = match self.device_parts(op.buf.pieces()) {
            None => None,
            Some(memory) => self.receive_device(at, op, flags, memory)?,
        };
        let Receiver { rx, staging, .. } = self.ends.receiver(at);
        check_pieces(op, rx.iov_limit)?;
        if rx.claimed && flags.contains(OpFlags::MULTI_RECV) {
            return Err(bad_flags(OpFlags::MULTI_RECV)); // a device fills a receive with one message
        }
        let credit = &mut staging.credits[Credit::Receive as usize];
        if *credit == 0 {
            return Err(self.no_credit());
        }
        *credit -= 1;
        let signal = rx.reports(flags);
        if flags.contains(OpFlags::MULTI_RECV) {
            return self.post_multi(at, op, want, signal);
        }
        let posted = match device {
            None => rx.posted(op.context, &op.buf, signal),
            Some(special) => rx.queue.posted_special(op.context, special),
        };
        match rx.queue.matcher.post(want, posted) {
            matching::PostOutcome::Queued(_) if rx.claimed => self.claimable(),
            matching::PostOutcome::Queued(_) => {}
            matching::PostOutcome::Matched { recv, message } => {
                let arrived = receive::arrived(&message.envelope, message.content.peer);
                let filling = Filling { at, ..rx.queue.fill(recv, &arrived) };
                self.settle(filling, message.content.held);
            }
        }
        Ok(())
    }
}

impl<T: Transport> State<T> {
    /// Announces a new receive to a transport that claims receives.
    #[cold]
    fn claimable(&mut self) {
        if let Some((transport, host)) = self.split() {
            transport.receive_posted(host);
        }
    }

    /// Finishes a receive whose message arrived before it.
    #[cold]
    pub(super) fn settle(&mut self, filling: Filling, content: UnexpectedPayload<T>) {
        match content {
            UnexpectedPayload::Bytes(bytes) => {
                // SAFETY: the pieces were lent for writing until the completion that is created below is read.
                unsafe { copy::scatter(bytes.as_ptr(), filling.placed(), filling.buffer.pieces(), 0) };
                self.ends.receiver(filling.at).complete(filling);
            }
            UnexpectedPayload::AtSender(token) => {
                let peer = filling.arrived.peer;
                let into = self.ends.rx.filling.insert(filling);
                if let Some((transport, host)) = self.split() {
                    transport.pull(host, peer, token, into);
                }
            }
            UnexpectedPayload::Lost(errno) => {
                self.ends.receiver(filling.at).fail(&filling, Fault { errno, number: 0 })
            }
        }
    }

    /// Posts a multi-receive buffer, after the messages that already wait for it.
    #[cold]
    fn post_multi(&mut self, at: u16, op: &ReceiveOp<'_>, want: Want, signal: bool) -> Result<()> {
        let [piece] = op.buf.pieces() else {
            self.ends.receiver(at).staging.credits[Credit::Receive as usize] += 1;
            return Err(scattered_multi(op.buf.pieces().len()));
        };
        let id = self.ends.receiver(at).rx.queue.multi(piece);
        loop {
            let special = Special { signal, route: CounterTarget::ENDPOINT, kind: SpecialKind::Multi(id) };
            let queue = &mut self.ends.receiver(at).rx.queue;
            let posted = queue.posted_special(op.context, special);
            let message = match queue.matcher.post(want, posted) {
                matching::PostOutcome::Queued(_) => return Ok(()),
                matching::PostOutcome::Matched { message, recv } => {
                    queue.forget(&recv);
                    message
                }
            };
            let arrived = receive::arrived(&message.envelope, message.content.peer);
            let Some((filling, exhausted)) = queue.fill_multi(op.context, signal, id, &arrived) else {
                return Ok(());
            };
            self.settle(Filling { at, ..filling }, message.content.held);
            if exhausted {
                return Ok(());
            }
        }
    }
}
