//! Messages in one packet, in a few packets, and under the receiver's credit. Also the core's notes, which are ordered
//! with messages.

use ofi_api::{Errno, Error, OpFlags, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Announced, Arrived, Delivery, OutMessage, OutNote, Payload, PeerId, Posted, RxName, Upcalls,
};

use crate::adapter::{self, Mark};
use crate::common::Common;
use crate::moving::{Incoming, Target, Token};
use crate::op::{Lent, Op, Work};
use crate::peer::{Broken, NextStep, PacketStream, Peer};
use crate::window::PartialMessage;
use crate::wire::{Control, Form, Header, Message, Own, Packet, Short, parse};
use crate::{Efa, atomic};

/// Protocols of long messages, in the log; with their numbers in [`Peer::told`].
const MEDIUM: (u8, &str) = (0, "medium: eager, in several packets");
const LONG_CTS: (u8, &str) = (1, "rendezvous (longcts): the peer's clear to send for each window");
const LONG_READ: (u8, &str) = (2, "rendezvous (longread): the peer's device reads it");
const RUNT_READ: (u8, &str) =
    (3, "rendezvous (runting read): the peer's device reads what follows the first packets");
const MATCHED: (u8, &str) = (4, "rendezvous: it completes when it is matched (FI_MATCH_COMPLETE)");

impl Peer {
    /// The part of a header that only endpoints of this library understand.
    ///
    /// # Errors
    /// `FI_EAGAIN` while the peer's library is unknown; `FI_EOPNOTSUPP` if it is another library.
    fn own(&mut self, common: &mut Common, peer: PeerId, rx: RxName) -> Result<Own> {
        let own = Own { rx: rx.to_wire() };
        match self.is_own() {
            Some(true) => Ok(own),
            Some(false) if rx.is_of_one() => Ok(Own::default()),
            None if rx == RxName::ANY => Ok(Own::default()),
            None if self.dead.is_some() => Err(Error::new(self.dead.unwrap_or(Errno::ECONNRESET))),
            None => {
                self.ask(common, peer);
                Err(Error::AGAIN)
            }
            Some(false) => Err(Error::with(
                Errno::EOPNOTSUPP,
                "C libfabric's efa has no scalable endpoints: send to the peer itself, not to one of its receive contexts",
            )),
        }
    }

    /// Sends an injected message at once, if possible.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes during the call.
    pub unsafe fn inject_now<const TAGGED: bool>(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        // A send to a peer that may not exist, or that may be given up, must be able to fail. A paused peer, or one in
        // back-off, receives nothing.
        let known = self.features.is_some() || common.direct;
        if !known
            || common.gives_up
            || self.bare.is_some()
            || self.paused & 1 != 0
            || !self.may_send_now()
            || (TAGGED && common.direct)
        {
            return false;
        }
        let header = match common.direct {
            true => Short::NONE,
            false => Short::of(self.next_msg, TAGGED.then_some(tag), common.adapter.address.connid),
        };
        let head = header.bytes();
        if len > common.adapter.mtu - head.len() {
            return false;
        }
        let Some(slot) = self.take_slot(common) else { return false };
        let to = common.adapter.outgoing(slot);
        // SAFETY: a slot has room for a packet.
        unsafe { copy::bytes(head.as_ptr(), to, head.len()) };
        // SAFETY: as above; the caller's promise.
        unsafe { copy::bytes(from, to.wrapping_add(head.len()), len) };
        if !common.direct {
            self.next_msg = self.next_msg.wrapping_add(1);
        }
        self.detached += 1;
        common.counts.eager += 1;
        let (len, mark) = (head.len() + len, Mark::Detached);
        self.post(common, adapter::Packet::new(peer, slot, len, mark));
        true
    }

    /// Sends a message.
    pub fn send<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        if common.direct {
            return self.send_direct(common, host, out);
        }
        if self.paused & 1 != 0 {
            return Err(Error::AGAIN);
        }
        if let Some(sent) = self.send_bare(common, host, out) {
            return sent;
        }
        let own = self.own(common, out.peer, out.rx)?;
        let confirm = out.flags.intersects(OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE);
        let mut message = Message {
            msg_id: self.next_msg,
            tag: out.tagged.then_some(out.tag),
            data: out.flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(out.data),
            confirm,
            send_id: 0,
            own,
            form: Form::Eager { payload: &[] },
        };
        let is_short = !confirm && message.data.is_none() && own == Own::default() && self.features.is_some();
        let short = Short::of(self.next_msg, message.tag, common.adapter.address.connid);
        let head =
            if is_short { short.bytes().len() } else { message.encode(self.origin(common)).bytes().len() };
        let room = common.adapter.mtu - head;
        // A message with `FI_MATCH_COMPLETE` is sent when its receiver has a matching receive, even if it is short.
        // With C's endpoints, a receipt reports that.
        let matched = out.flags.contains(OpFlags::MATCH_COMPLETE) && self.is_own() != Some(false);
        if out.len > room || matched {
            return self.send_long(common, host, out, message);
        }
        const ENDS_LATER: OpFlags = OpFlags::TRANSMIT_COMPLETE.union(OpFlags::DELIVERY_COMPLETE);
        let detached = out.flags.intersects(OpFlags::INJECT | OpFlags::INJECT_COMPLETE)
            && !out.flags.intersects(ENDS_LATER.union(OpFlags::MATCH_COMPLETE));
        // The peer's answer shows that it exists. Until then a message may fail, and the failure must be reported.
        let mark = if detached && self.features.is_some() && self.dead.is_none() {
            self.detached += 1;
            Mark::Detached
        } else if confirm {
            let (id, number) = self.open(common, host, out.peer, out.ticket, Op::packed(true))?;
            message.send_id = number;
            Mark::Op(id)
        } else {
            self.outstanding += 1;
            Mark::Op(host.open(out.peer, out.ticket, Op::packed(false)))
        };
        self.next_msg = self.next_msg.wrapping_add(1);
        common.counts.eager += 1;
        // SAFETY: the pieces are lent, and `body` has as many bytes as all of them.
        let fill = |body| _ = unsafe { copy::gather(out.pieces, 0, body, out.len) };
        if is_short {
            self.packet_of(common, out.peer, short.bytes(), out.len, mark, fill);
        } else {
            let header = message.encode(self.origin(common));
            self.packet_of(common, out.peer, header.bytes(), out.len, mark, fill);
        }
        Ok(if mark == Mark::Detached { Posted::Done } else { Posted::Pending })
    }

    fn send_long<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
        mut message: Message<'static>,
    ) -> Result<Posted> {
        let (peer, len) = (out.peer, out.len);
        let lent = self.lend(common, out, out.flags.contains(OpFlags::INJECT));
        // SAFETY: the core lends the pieces of the messages that it posts.
        let payload = unsafe { Payload::new(out.pieces, len, out.flags) };
        let matched = out.flags.contains(OpFlags::MATCH_COMPLETE) && self.is_own() != Some(false);
        if let Some((from, regions)) = lent {
            let op = Op { awaits: true, ..Op::packed(true) };
            let (id, number) = self.open(common, host, peer, out.ticket, op)?;
            self.next_msg = self.next_msg.wrapping_add(1);
            common.counts.lent += 1;
            message.send_id = number;
            let runt = self.runt(common, len, message.confirm);
            self.tell(if runt > 0 { RUNT_READ } else { LONG_READ }, len);
            Self::keep_lent(host, peer, id, Lent { payload, len, runt, message, regions });
            if runt > 0 {
                common.counts.runts += 1;
                self.runts += runt;
                let form = Form::RuntRead { len, offset: 0, runt, from, payload: &[] };
                let message = Message { form, ..message };
                self.streams.push_back(PacketStream::Medium { op: id, message, done: 0, len: runt });
                common.hold(&mut self.is_dirty, peer);
                return Ok(Posted::Pending);
            }
            let announced = Message { form: Form::LongRead { len, from }, ..message };
            let header = announced.encode(self.origin(common));
            self.packet(common, peer, &header, 0, Mark::Op(id), |_| {});
            return Ok(Posted::Pending);
        }
        let work = Work::Out { payload, len, done: 0 };
        let op = Op { work, unacked: 0, making: true, awaits: message.confirm, id: 0 };
        let (id, number) = self.open(common, host, peer, out.ticket, op)?;
        self.next_msg = self.next_msg.wrapping_add(1);
        if len <= common.settings.max_medium && !matched {
            self.tell(MEDIUM, len);
            common.counts.medium += 1;
            message.send_id = if message.confirm { number } else { 0 };
            self.streams.push_back(PacketStream::Medium { op: id, message, done: 0, len });
        } else {
            self.tell(if matched { MATCHED } else { LONG_CTS }, len);
            common.counts.long += 1;
            message.send_id = number;
            let credits = common.settings.min_credits as u32;
            message.form = Form::LongCts { len, credits, payload: &[], nacked: false };
            let header = message.encode(self.origin(common));
            let first = if matched { 0 } else { common.adapter.mtu - header.bytes().len() };
            if let Some(op) = host.op(peer, id)
                && let Work::Out { done, .. } = &mut op.work
            {
                (op.unacked, *done, op.making) = (1, first, first < len);
            }
            self.packet(common, peer, &header, first, Mark::Op(id), |body| {
                // SAFETY: the pieces are lent, and are longer than a packet.
                unsafe { copy::gather(out.pieces, 0, body, first) };
            });
        }
        common.hold(&mut self.is_dirty, peer);
        Ok(Posted::Pending)
    }

    /// Sends a note.
    pub fn note(&mut self, common: &mut Common, out: &OutNote<'_>) -> Result<()> {
        self.may_post(OpFlags::empty())?;
        match self.is_own() {
            _ if common.direct => {
                return Err(crate::direct::refused("a collective operation"));
            }
            Some(true) => {}
            None if self.dead.is_some() => {
                return Err(Error::new(self.dead.unwrap_or(Errno::ECONNRESET)));
            }
            None => {
                self.ask(common, out.peer);
                return Err(Error::AGAIN);
            }
            Some(false) => {
                return Err(Error::with(
                    Errno::EOPNOTSUPP,
                    "C libfabric's efa has no collectives: all members of a group must use this library",
                ));
            }
        }
        let header = Header::of_note(self.origin(common), self.next_msg, out.words);
        self.next_msg = self.next_msg.wrapping_add(1);
        self.packet(common, out.peer, &header, out.len, Mark::Nothing, |body| {
            // SAFETY: the pieces are lent during the call, and `body` has `len` bytes.
            unsafe { copy::gather(out.pieces, out.skip, body, out.len) };
        });
        Ok(())
    }

    /// Processes a packet with a message id in its turn, or holds it until then.
    pub fn take_ordered<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        msg_id: u32,
        packet: &Packet<'_>,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        if let Packet::Message(message @ Message { form: Form::LongCts { len, nacked: true, .. }, .. }) =
            packet
        {
            if !self.take_nacked(common, message, *len)? {
                common.counts.stale += 1;
            }
            return Ok(());
        }
        if !self.window.admits(msg_id) {
            common.counts.stale += 1;
            return Ok(());
        }
        let part = match *packet {
            Packet::Message(Message { form: Form::Medium { len, offset, payload }, .. }) => {
                Some((len, offset, payload))
            }
            Packet::Message(Message { form: Form::RuntRead { runt, offset, payload, .. }, .. }) => {
                Some((runt, offset, payload))
            }
            _ => None,
        };
        if let Some((len, offset, payload)) = part {
            if !self.window.has_room(len) {
                return Err(Broken);
            }
            let head = &bytes[..bytes.len() - payload.len()];
            self.window.hold_part(msg_id, head, (len, offset), payload).map_err(|_| Broken)?;
            return self.advance(common, host, peer);
        }
        if self.window.is_next(msg_id) && !self.is_stalled && host.hungry() {
            match self.take_one(common, host, peer, packet)? {
                NextStep::Next => {
                    self.window.step();
                    return self.advance(common, host, peer);
                }
                NextStep::Stop => self.stall(common, peer),
            }
        } else {
            common.counts.early += 1;
        }
        if !self.window.has_room(bytes.len()) {
            return Err(Broken);
        }
        self.window.hold(msg_id, PartialMessage::Packet(bytes.into()));
        if self.window.is_next(msg_id) || !host.hungry() {
            self.stall(common, peer);
        }
        if self.window.is_full(common.settings.recvwin_size) {
            self.pause(common, peer, true);
        }
        Ok(())
    }

    fn stall(&mut self, common: &mut Common, peer: PeerId) {
        common.counts.stalls += 1;
        self.pause(common, peer, true);
        if !std::mem::replace(&mut self.is_stalled, true) {
            common.stalled.push(peer);
        }
    }

    /// Asks a peer of this library to pause its messages, or to resume.
    fn pause(&mut self, common: &mut Common, peer: PeerId, on: bool) {
        if self.is_own() == Some(true) && (self.pausing & 1 != 0) != on {
            self.pausing = self.pausing.wrapping_add(1);
            let header = Header::of_pause(common.adapter.address.connid, self.pausing);
            self.packet(common, peer, &header, 0, Mark::Nothing, |_| {});
        }
    }

    /// Processes held packets whose turn has come.
    pub fn advance<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
    ) -> Result<(), Broken> {
        if self.is_stalled {
            return Ok(());
        }
        while let Some(held) = self.window.take() {
            let flow =
                if host.hungry() { self.take_held(common, host, peer, &held)? } else { NextStep::Stop };
            if flow == NextStep::Stop {
                self.window.put_back(held);
                self.stall(common, peer);
                return Ok(());
            }
            self.window.step();
        }
        if !self.window.is_full(common.settings.recvwin_size) {
            self.pause(common, peer, false);
        }
        Ok(())
    }

    fn take_held<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        held: &PartialMessage,
    ) -> Result<NextStep, Broken> {
        match held {
            PartialMessage::Packet(bytes) => {
                let (_, packet) = parse(bytes).map_err(|_| Broken)?;
                self.take_one(common, host, peer, &packet)
            }
            PartialMessage::Parts { head, bytes, .. } => match parse(head) {
                Ok((_, Packet::Message(message))) => {
                    let form = match message.form {
                        Form::RuntRead { len, runt, from, .. } => {
                            Form::RuntRead { len, offset: 0, runt, from, payload: bytes }
                        }
                        _ => Form::Eager { payload: bytes },
                    };
                    let message = Message { form, ..message };
                    self.take_message(common, host, peer, &message)
                }
                _ => Err(Broken),
            },
            PartialMessage::Skipped => Ok(NextStep::Next),
        }
    }

    fn take_one<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        packet: &Packet<'_>,
    ) -> Result<NextStep, Broken> {
        match packet {
            Packet::Message(message) => self.take_message(common, host, peer, message),
            Packet::Atomic(request) => atomic::take(self, common, host, peer, request),
            Packet::Note { words, payload, .. } => {
                // SAFETY: the payload is readable for its length during the call.
                let taken = unsafe { host.noted(peer, *words, payload.as_ptr(), payload.len()) };
                taken.map(|()| NextStep::Next).map_err(|_| Broken)
            }
            _ => Err(Broken),
        }
    }

    /// Processes the message whose turn it is.
    fn take_message<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        message: &Message<'_>,
    ) -> Result<NextStep, Broken> {
        let mut arrived = Arrived {
            peer,
            rx: RxName::from_wire(message.own.rx),
            tagged: message.tag.is_some(),
            has_data: message.data.is_some(),
            tag: message.tag.unwrap_or(0),
            data: message.data.unwrap_or(0),
            len: 0,
        };
        let (send_id, msg_id) = (message.send_id, message.msg_id);
        arrived.len = match message.form {
            Form::LongCts { len, .. } => len,
            Form::Eager { payload } => payload.len(),
            Form::LongRead { len, .. } | Form::RuntRead { len, .. } => len,
            // Segments are reassembled earlier.
            Form::Medium { .. } => return Err(Broken),
        };
        let payload = message.form.payload();
        let at_once = matches!(message.form, Form::Eager { .. });
        // For an endpoint of this library a receipt means that the message has arrived; for C's, that it has matched a
        // receive.
        if at_once && (!message.confirm || self.is_own() == Some(true)) {
            // SAFETY: the payload is readable for its length during the call.
            return Ok(match unsafe { host.deliver(&arrived, payload.as_ptr()) } {
                Delivery::Stopped => NextStep::Stop,
                Delivery::Taken | Delivery::Kept => {
                    if message.confirm {
                        self.control(common, peer, Control::Receipt { send_id, msg_id });
                    }
                    NextStep::Next
                }
            });
        }
        let token = || match at_once {
            true => Token::Here { bytes: payload.into(), receipt: Some((send_id, msg_id)) },
            false => {
                let source = match message.form {
                    Form::LongRead { from, .. } | Form::RuntRead { from, .. } => Some(Box::new(from)),
                    _ => None,
                };
                let receipt = message.confirm.then_some(msg_id);
                let rest = Incoming { receipt, msg_id, source, ..Incoming::new(peer, arrived.len, send_id) };
                Token::There { first: payload.into(), rest }
            }
        };
        match host.announce(&arrived, token()) {
            Announced::Pull(into) => self.pull(common, host, peer, token(), into),
            Announced::Kept if at_once && self.is_own().is_none() => self.doubtful.push((send_id, msg_id)),
            Announced::Kept => {}
            Announced::Stopped(_) => return Ok(NextStep::Stop),
            Announced::Unwanted(token) => self.discard(common, peer, token),
        }
        Ok(NextStep::Next)
    }

    /// Copies a payload into a receive.
    pub fn pull<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        token: Token,
        into: SlotId,
    ) {
        match token {
            Token::Here { bytes, receipt } => {
                if let Some(receiving) = host.receiving(into) {
                    let len = receiving.len.min(bytes.len());
                    // SAFETY: the pieces are lent until the receive ends.
                    unsafe { copy::scatter(bytes.as_ptr(), len, receiving.pieces, 0) };
                    host.received(into, Ok(()));
                }
                if let Some((send_id, msg_id)) = receipt {
                    self.control(common, peer, Control::Receipt { send_id, msg_id });
                }
            }
            Token::There { first, mut rest } => {
                rest.target = Target::Receive(into);
                self.begin(common, host, rest, &first);
            }
        }
    }

    /// Discards an unwanted payload. Its sender still completes the message.
    pub fn discard(&mut self, common: &mut Common, peer: PeerId, token: Token) {
        match token {
            Token::Here { receipt: Some((send_id, msg_id)), .. } => {
                self.control(common, peer, Control::Receipt { send_id, msg_id });
            }
            Token::Here { receipt: None, .. } => {}
            Token::There { rest: Incoming { source: Some(_), send_id, .. }, .. } => {
                self.control(common, peer, Control::EndOfRead { send_id, recv_id: 0 });
            }
            Token::There { first, mut rest } => {
                rest.got = first.len();
                self.clear_new(common, rest);
            }
        }
    }
}
