//! Messages: a short one is sent in a record; a long one is announced, and the receiver reads it.

use ibv::transfer::Source;
use ofi_api::{Error, OpFlags, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Fields, RMA_IOV_LIMIT, Words, flag};
use ofi_core::transport::{Announced, Delivery, OutMessage, PeerId, Posted, Upcalls};

use crate::Verbs;
use crate::op::{Exposed, Op, Token};
use crate::peer::{Common, DETACHED, NextStep, Peer};
use crate::wire::{PAYLOAD, kind};

impl Peer {
    /// Sends a message.
    pub fn send<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        // A message with `FI_MATCH_COMPLETE` is announced even if it is short: the peer requests it when a receive
        // matches.
        if out.len > PAYLOAD || self.peer_wishes || out.flags.contains(OpFlags::MATCH_COMPLETE) {
            return self.announce(common, host, out);
        }
        const ENDS_LATER: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::TRANSMIT_COMPLETE);
        let confirm = out.flags.contains(OpFlags::DELIVERY_COMPLETE);
        let detached = out.flags.intersects(OpFlags::INJECT | OpFlags::INJECT_COMPLETE)
            && !out.flags.intersects(ENDS_LATER);
        let open = self.is_open();
        let mut fields = Fields::new();
        let mut flags = 0;
        let mark = if detached && !open {
            // The peer is identified when it answers. Until then the message may fail, and a failure must be reported.
            self.outstanding += 1;
            Some(host.open(out.peer, out.ticket, Op::Injected).to_wire())
        } else if detached {
            self.detached += 1;
            Some(DETACHED)
        } else {
            self.outstanding += 1;
            let id = host.open(out.peer, out.ticket, if confirm { Op::Confirm } else { Op::Sent });
            if confirm {
                flags |= flag::CONFIRM;
                fields.word(id.to_wire());
            }
            (!confirm).then(|| id.to_wire())
        };
        flags |= fields.envelope(out);
        self.record(common, out.peer, (kind::MESSAGE, flags), fields.bytes(), out.len, mark, |body| {
            // SAFETY: the pieces are lent, and `body` has as many bytes as all of them.
            unsafe { copy::gather(out.pieces, 0, body, out.len) };
        });
        common.counts.eager += 1;
        Ok(if detached && open { Posted::Done } else { Posted::Pending })
    }

    /// Announces a message, whose payload the peer will read.
    #[cold]
    fn announce<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        let confirm = out.flags.intersects(OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE);
        // A short message is announced because the peer has no room. It counts as sent, and the library holds a copy.
        let keep = out.len <= PAYLOAD && !confirm && self.is_open();
        if keep && common.kept + out.len > common.kept_limit {
            return Err(Error::AGAIN);
        }
        let exposed = Exposed::new(
            &common.domain.transport,
            out.pieces,
            out.len,
            keep || out.flags.contains(OpFlags::INJECT),
        )?;
        common.counts.regions += exposed.regions() as u64;
        let sources = exposed.sources.clone();
        let (id, mut flags) = if keep {
            common.kept += out.len;
            (self.kept.insert((exposed, out.len)), flag::KEPT)
        } else {
            self.outstanding += 1;
            (host.open(out.peer, out.ticket, Op::Message(exposed)), 0)
        };
        let mut fields = Fields::new();
        fields.word(id.to_wire()).word(out.len as u64).word(sources.len() as u64);
        for source in &sources {
            fields.word(source.addr).word(source.len as u64).word(source.rkey.into());
        }
        flags |= fields.envelope(out);
        self.record(common, out.peer, (kind::ANNOUNCE, flags), fields.bytes(), 0, None, |_| {});
        common.counts.announced += 1;
        self.tell(out);
        Ok(if keep { Posted::Done } else { Posted::Pending })
    }

    /// Logs the protocol of an announced message, once for each peer and reason.
    fn tell(&mut self, out: &OutMessage<'_>) {
        let (nth, why) = match out.len {
            len if len > PAYLOAD => {
                (0, "it is longer than a record; the peer reads it from this end's memory")
            }
            _ if self.peer_wishes => (1, "the peer has no room for messages that it has no receive for"),
            _ => (2, "it completes when it is matched (FI_MATCH_COMPLETE)"),
        };
        if self.told.is_first(nth) {
            tracing::debug!(
                target: "ofi::verbs::ep_data",
                peer = %self.address, protocol = "rendezvous", why, len = out.len, eager_up_to = PAYLOAD,
                "chose the protocol of a message to a peer"
            );
        }
    }

    /// Called when the context of an operation closes: see [`ofi_core::transport::TransportEndpoint::abandon`].
    pub fn abandon(&mut self, common: &mut Common, peer: PeerId, id: SlotId, op: &mut Op) -> bool {
        match op {
            Op::Sent | Op::Injected | Op::Confirm | Op::Access => {}
            Op::Write(payload) => payload.keep(),
            Op::Read { pieces, .. } => *pieces = Box::default(),
            Op::Native(native) => return native.forget(),
            Op::Request => return false,
            Op::Message(exposed) => match exposed.moved(&common.domain.transport) {
                Ok(None) => {}
                Ok(Some(moved)) => {
                    let mut fields = Fields::new();
                    for source in &moved.sources {
                        fields.word(id.to_wire()).word(source.addr).word(source.rkey.into());
                    }
                    common.counts.regions += moved.regions() as u64;
                    *exposed = moved;
                    self.record(common, peer, (kind::MOVED, 0), fields.bytes(), 0, None, |_| {});
                }
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::ep_data", %error, "a message was dropped with its context");
                    return false;
                }
            },
        }
        true
    }

    /// Processes a message.
    pub fn take_message<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
        is_answered: bool,
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let confirm = words.word_if(flags & flag::CONFIRM != 0)?;
        let mut arrived = words.arrived(peer, flags)?;
        arrived.len = words.0.len();
        // SAFETY: the payload is readable for its length during the call.
        let delivery = unsafe { host.deliver(&arrived, words.0.as_ptr()) };
        match delivery {
            Delivery::Taken => {}
            Delivery::Stopped => return Ok(NextStep::Stop),
            Delivery::Kept => {
                if !self.wished && !host.may_hold(peer, PAYLOAD) {
                    self.wished = true;
                    common.wishing.push(peer);
                    self.wish(common, peer, true);
                }
            }
        }
        if let Some(op) = confirm.filter(|_| is_answered) {
            self.done(common, peer, 0, op, Ok(()));
        }
        Ok(NextStep::Next)
    }

    /// Processes an announcement.
    pub fn take_announcement<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, len, count) = (words.word()?, words.word()?, words.word()?);
        if count > RMA_IOV_LIMIT as u64 {
            return Err(Broken);
        }
        let len = usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or(Broken)?;
        let mut sources = Vec::new();
        let mut there = 0usize;
        for _ in 0..count {
            let (addr, len, rkey) = (words.word()?, words.word()?, words.word()?);
            let len = usize::try_from(len).map_err(|_| Broken)?;
            addr.checked_add(len as u64).ok_or(Broken)?;
            there = there.checked_add(len).ok_or(Broken)?;
            sources.push(Source { addr, len, rkey: u32::try_from(rkey).map_err(|_| Broken)? });
        }
        if there != len {
            return Err(Broken);
        }
        let mut arrived = words.arrived(peer, flags)?;
        arrived.len = len;
        if flags & flag::KEPT == 0 {
            self.announced.insert(op, (len, None));
        }
        let token = Token { op, flags, sources: sources.into() };
        match host.announce(&arrived, token.clone()) {
            Announced::Pull(into) => self.pull_later(common, host, peer, token, into),
            Announced::Kept => {}
            Announced::Stopped(_) => return Ok(NextStep::Stop),
            Announced::Unwanted(token) => self.discard(common, peer, &token),
        }
        Ok(NextStep::Next)
    }

    /// Handles the move of an announced payload. Reads in flight fail at the old address if that memory is gone.
    pub fn take_moved(&mut self, body: &[u8]) -> Result<(), Broken> {
        let mut words = Words(body);
        let (op, addr, rkey) = (words.word()?, words.word()?, words.word()?);
        let rkey = u32::try_from(rkey).map_err(|_| Broken)?;
        if !words.0.is_empty() {
            return Err(Broken);
        }
        let Some((len, moved)) = self.announced.get_mut(&op) else { return Ok(()) }; // the message has ended meanwhile
        addr.checked_add(*len as u64).ok_or(Broken)?;
        let to = Source { addr, len: *len, rkey };
        *moved = Some(to);
        self.move_transfers(op, &to);
        Ok(())
    }

    /// The new address of a token's payload, if it was moved.
    pub fn moved(&self, token: &Token) -> Option<Source> {
        let moved = self.announced.get(&token.op).filter(|_| token.flags & flag::KEPT == 0);
        moved.and_then(|(_, moved)| *moved)
    }

    /// Tells the sender that this end does not, or no longer, need its payload.
    pub fn discard(&mut self, common: &mut Common, peer: PeerId, token: &Token) {
        if token.flags & flag::KEPT == 0 {
            self.announced.remove(&token.op);
        }
        self.done(common, peer, token.flags & flag::KEPT, token.op, Ok(()));
    }

    /// Tells the peer whether to hold its payloads. Without a connection, the record is sent when the next one opens.
    pub fn wish(&mut self, common: &mut Common, peer: PeerId, keep: bool) {
        if self.link.open().is_none() {
            return;
        }
        let mut fields = Fields::new();
        fields.word(keep.into());
        self.record(common, peer, (kind::KEEP, 0), fields.bytes(), 0, None, |_| {});
    }

    /// Processes the peer's report that an operation of this end has ended.
    pub fn take_done<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<(), Broken> {
        let mut words = Words(body);
        let (op, errno) = (words.word()?, words.word()?);
        let id = SlotId::from_wire(op);
        if flags & flag::KEPT != 0 {
            if let Some((_, len)) = self.kept.remove(id) {
                common.kept -= len;
            }
            return Ok(());
        }
        let result = match i32::try_from(errno) {
            Ok(0) => Ok(()),
            Ok(errno @ 1..=4096) => Err(ofi_api::Errno::from_raw(errno)),
            _ => return Err(Broken),
        };
        // For an access with data, the peer's report may arrive before the device's.
        if let Some(Op::Native(native)) = host.op(peer, id) {
            if !native.is_told() {
                return Err(Broken); // the device still has its memory
            }
            if self.is_with_device(id, result)? {
                return Ok(());
            }
        }
        self.finish(host, peer, id, result);
        Ok(())
    }
}
