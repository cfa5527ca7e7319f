//! Messages: a short one is sent inside a command, a long one is announced and then pulled by the receiver.

use ofi_api::{Error, OpFlags, Result};
use ofi_core::copy;
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Fields, Words, flag};
use ofi_core::transport::{Announced, Delivery, OutMessage, Payload, PeerId, Posted, Upcalls};
use ofi_rdm::{Flow, Sender};

use crate::command::{READY, STREAM_LIMIT, kind};
use crate::op::{Op, Token};
use crate::parts::Parts;
use crate::peer::common::Common;
use crate::peer::pull::Pull;
use crate::peer::{DETACHED, Peer};
use crate::socket::Gaps;
use crate::{Udp, ahead};

/// Sends the bytes of a payload from byte `skip` directly from its memory. Returns whether that is possible. The memory
/// is lent until the operation ends, which is after the call that makes the packet has sent it.
pub fn leave(payload: &Payload, skip: usize, to: &mut [u8], gaps: &mut Gaps) -> bool {
    payload.pieces().is_ok_and(|pieces| gaps.leave(pieces, skip, to))
}

/// Copies bytes of a payload from byte `skip` to `to`; missing ones become zero.
pub fn fill(payload: &Payload, skip: usize, to: &mut [u8]) {
    let got = payload.gather(skip, to);
    to[got..].fill(0);
}

impl Peer {
    /// Sends a message.
    pub fn send<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        if (out.flags.contains(OpFlags::FENCE) && self.outstanding > 0)
            || sender.commands.records() > STREAM_LIMIT
        {
            full(host, out.peer, sender);
            return Err(Error::AGAIN);
        }
        // Messages with `FI_MATCH_COMPLETE` are always announced: the peer requests them when a receive matches.
        if out.len > common.eager || self.keeps || out.flags.contains(OpFlags::MATCH_COMPLETE) {
            return self.announce(common, sender, host, out);
        }
        const ENDS_LATER: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::TRANSMIT_COMPLETE);
        let confirm = out.flags.contains(OpFlags::DELIVERY_COMPLETE);
        let detached = out.flags.intersects(OpFlags::INJECT | OpFlags::INJECT_COMPLETE)
            && !out.flags.intersects(ENDS_LATER);
        let mut fields = Fields::new();
        let mut flags = 0;
        let mark = if detached && common.greets {
            // The peer is identified when it answers. Until then this message may fail, and a failure must be reported.
            (self.detached, common.detached) = (self.detached + 1, common.detached + 1);
            self.begin(common, out.peer);
            Some(host.open(out.peer, out.ticket, Op::Injected).to_wire())
        } else if detached {
            (self.detached, common.detached) = (self.detached + 1, common.detached + 1);
            Some(DETACHED)
        } else {
            self.begin(common, out.peer);
            let id = host.open(out.peer, out.ticket, if confirm { Op::Confirm } else { Op::Sent });
            if confirm {
                flags |= flag::CONFIRM;
                fields.word(id.to_wire());
            }
            (!confirm).then(|| id.to_wire())
        };
        flags |= fields.envelope(out);
        let body = sender.commands.record(kind::MESSAGE, flags, fields.bytes(), out.len, mark);
        // SAFETY: the pieces are lent, and `body` has as many bytes as they together.
        unsafe { copy::gather(out.pieces, 0, body.as_mut_ptr(), out.len) };
        common.counts.eager += 1;
        Ok(if detached && !common.greets { Posted::Done } else { Posted::Pending })
    }

    /// Announces a message. Its payload is sent when the peer requests it.
    #[cold]
    fn announce<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        let confirm = out.flags.intersects(OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE);
        // A short payload is held because the peer has no room: the message counts as sent, and the library has a copy.
        let keep = out.len <= common.eager && !confirm;
        let is_ahead = out.len > common.eager && self.goes_ahead(out);
        if keep && common.kept + out.len > common.kept_limit {
            return Err(Error::AGAIN);
        }
        let (id, mut flags) = if keep {
            common.counts.kept += 1;
            common.kept += out.len;
            // SAFETY: the core lends the pieces of what it posts.
            (self.long().kept.insert(unsafe { copy::copied(out.pieces, out.len) }), flag::KEPT)
        } else {
            self.begin(common, out.peer);
            // SAFETY: the core lends the pieces of what it posts.
            let payload = unsafe { Payload::new(out.pieces, out.len, out.flags) };
            let flags = if confirm { flag::CONFIRM } else { 0 };
            (
                host.open(out.peer, out.ticket, Op::Message { payload, confirm, len: out.len, asked: false }),
                flags,
            )
        };
        let mut fields = Fields::new();
        fields.word(id.to_wire()).word(out.len as u64);
        flags |= fields.envelope(out);
        let kind = if is_ahead { kind::AHEAD } else { kind::ANNOUNCE };
        sender.commands.record(kind, flags, fields.bytes(), 0, None);
        self.tell(common, host, out, (keep, is_ahead));
        if is_ahead {
            let op = id.to_wire();
            sender.commands.payload(kind::PART_AHEAD, 0, op, ahead::token(op), out.len as u64);
            common.counts.ahead += 1;
            common.leaves_whole = true;
        } else {
            common.counts.announced += 1;
        }
        Ok(if keep { Posted::Done } else { Posted::Pending })
    }

    /// Logs the protocol of an announced message, once for each peer and protocol.
    fn tell<H: Upcalls<Udp>>(
        &mut self,
        common: &Common,
        host: &H,
        out: &OutMessage<'_>,
        (keep, is_ahead): (bool, bool),
    ) {
        let (nth, protocol, why) = match (keep, is_ahead) {
            (true, _) => (0, "rendezvous", "the peer has no room for messages that it has no receive for"),
            (_, true) => (
                1,
                "rendezvous, its payload ahead of the request",
                "the peer had a receive for the last long message",
            ),
            _ if out.len > common.eager => (2, "rendezvous", "it is longer than a packet's command"),
            _ if self.keeps => {
                (0, "rendezvous", "the peer has no room for messages that it has no receive for")
            }
            _ => (3, "rendezvous", "it completes when it is matched (FI_MATCH_COMPLETE)"),
        };
        if self.told.is_first(nth) {
            tracing::debug!(
                target: "ofi::udp::ep_data",
                peer = host.address(out.peer).map(tracing::field::display), protocol, why,
                len = out.len, eager_up_to = common.eager,
                "chose the protocol of a message to a peer"
            );
        }
    }

    /// Processes a message that arrived in a command.
    pub fn take_message<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let confirm = words.word_if(flags & flag::CONFIRM != 0)?;
        let mut arrived = words.arrived(peer, flags)?;
        arrived.len = words.0.len();
        // SAFETY: the payload is readable for its length during the call.
        let delivery = unsafe { host.deliver(&arrived, words.0.as_ptr()) };
        match delivery {
            Delivery::Taken => {}
            Delivery::Stopped => return Ok(Flow::Stop),
            Delivery::Kept => {
                if !self.peer_keeps && !host.may_hold(peer, common.eager) {
                    self.peer_keeps = true;
                    if !std::mem::replace(&mut self.in_keeping, true) {
                        common.keeping.push(peer);
                    }
                    ask_to_keep(sender, true);
                }
            }
        }
        if let Some(op) = confirm {
            Self::done(sender, 0, op, Ok(()));
        }
        Ok(Flow::Next)
    }

    /// Processes an announcement.
    pub fn take_announcement<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        (kind, flags): (u8, u8),
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, len) = (words.word()?, words.word()?);
        let mut arrived = words.arrived(peer, flags)?;
        arrived.len = usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or(Broken)?;
        let token = Token { op, flags };
        if kind == kind::AHEAD {
            return self.expect_ahead(common, sender, host, &arrived, token);
        }
        match host.announce(&arrived, token) {
            Announced::Pull(into) => self.request(common, sender, host, peer, (token, READY), into),
            Announced::Kept => {}
            Announced::Stopped(_) => return Ok(Flow::Stop),
            Announced::Unwanted(token) => Self::discard(sender, token),
        }
        Ok(Flow::Next)
    }

    /// Requests an announced payload for the newly posted receive `into`.
    pub fn pull<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        token: Token,
        into: SlotId,
    ) {
        self.request(common, sender, host, peer, (token, 0), into);
    }

    /// Requests an announced payload for the open receive `into`, with these flags.
    fn request<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        (token, flags): (Token, u8),
        into: SlotId,
    ) {
        let Some(len) = host.receiving(into).map(|receiving| receiving.len) else { return };
        let mut fields = Fields::new();
        fields.word(token.op).word(into.to_wire()).word(len as u64);
        sender.bulk.record(kind::SEND, flags | token.flags & flag::KEPT, fields.bytes(), 0, None);
        if len == 0 {
            host.received(into, Ok(()));
            if token.flags & flag::CONFIRM != 0 {
                Self::done(sender, 0, token.op, Ok(()));
            }
            return;
        }
        if !self.expects() {
            common.changed.push(peer);
        }
        let long = self.long();
        long.pulls.insert(into.to_wire(), Pull { token, got: 0, len });
        long.asked.push(kind::MESSAGE_PART, into.to_wire());
        common.expect(peer, kind::MESSAGE_PART, into.to_wire());
    }

    /// Tells the sender that its payload is not needed.
    pub fn discard(sender: &mut Sender, token: Token) {
        Self::done(sender, token.flags & flag::KEPT, token.op, Ok(()));
    }

    /// Processes the peer's request for a payload.
    pub fn start_payload<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<(), Broken> {
        let mut words = Words(body);
        let (op, into, wanted) = (words.word()?, words.word()?, words.word()?);
        let id = SlotId::from_wire(op);
        if flags & flag::KEPT != 0 {
            let Some(bytes) = self.long().kept.remove(id) else { return Ok(()) };
            common.kept -= bytes.len();
            let len = usize::try_from(wanted).map_or(bytes.len(), |wanted| wanted.min(bytes.len()));
            if len > 0 {
                let mut fields = Fields::new();
                fields.word(into).word(0);
                sender
                    .bulk
                    .record(kind::MESSAGE_PART, 0, fields.bytes(), len, None)
                    .copy_from_slice(&bytes[..len]);
            }
            return Ok(());
        }
        self.note_request(flags);
        match host.op(peer, id) {
            Some(Op::Message { confirm, len, asked, .. }) => {
                if wanted > *len as u64 || std::mem::replace(asked, true) {
                    return Err(Broken);
                }
                if wanted > 0 {
                    sender.bulk.payload(kind::MESSAGE_PART, 0, into, op, wanted);
                } else if !*confirm {
                    self.finish(common, host, peer, id, Ok(()));
                }
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    /// Processes parts of a pulled payload. Returns whether it is complete.
    pub fn take_message_parts<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        parts: &Parts<'_>,
    ) -> Result<bool, Broken> {
        let into = SlotId::from_wire(parts.id);
        let pull = self.long().pulls.get_mut(&parts.id).ok_or(Broken)?;
        if parts.at != pull.got as u64 || parts.len > pull.len - pull.got {
            return Err(Broken);
        }
        if let Some(receiving) = host.receiving(into) {
            // SAFETY: the pieces are lent for this receive, and have the bytes that it asked for.
            unsafe { parts.scatter(receiving.pieces, pull.len) };
        }
        pull.got += parts.len;
        let ended = pull.got == pull.len;
        if ended {
            let token = pull.token;
            let long = self.long();
            long.pulls.remove(&parts.id);
            long.asked.remove(kind::MESSAGE_PART, parts.id);
            if !self.expects() {
                common.changed.push(peer);
            }
            host.received(into, Ok(()));
            if token.flags & flag::CONFIRM != 0 {
                Self::done(sender, 0, token.op, Ok(()));
            }
        }
        Ok(ended)
    }
}

/// Logs that the queue to a peer is full, unless the operation only waits for a fence.
#[cold]
pub fn full<H: Upcalls<Udp>>(host: &H, peer: PeerId, sender: &Sender) {
    static LIMIT: Limit = Limit::new();
    let queued = sender.commands.records();
    if queued > STREAM_LIMIT
        && tracing::enabled!(target: "ofi::udp::ep_data", tracing::Level::DEBUG)
        && let Some(more) = LIMIT.pass()
    {
        tracing::debug!(
            target: "ofi::udp::ep_data",
            peer = host.address(peer).map(tracing::field::display), queued, more,
            "the queue to a peer is full: posts get FI_EAGAIN until it has taken some"
        );
    }
}

/// Tells the peer whether to hold its payloads.
pub fn ask_to_keep(sender: &mut Sender, keep: bool) {
    sender.bulk.record(kind::KEEP, 0, Fields::new().word(keep.into()).bytes(), 0, None);
}
