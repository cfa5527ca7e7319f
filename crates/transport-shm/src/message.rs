//! Messages: short ones inside a command, long ones announced and then pulled by the receiver.

use ofi_api::{Errno, Error, OpFlags, Piece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Announced, Arrived, Delivery, Host, OutMessage, Peer, Posted, RxName};
use ofi_ring::crash_point;
use ofi_ring::doorbell::Wake;

use crate::Shm;
use crate::bulk::Stream;
use crate::command::{Words, Writer, flag, kind, rx_bits, rx_of};
use crate::grants::{self, Grant};
use crate::lane::{Broken, Common, Flow, Lane, Link, full};
use crate::layout::wish;
use crate::rma::Parked;
use crate::single::{Lend, Sink};

/// What this transport keeps of an operation that has not ended.
pub enum Op {
    /// A message that is in the ring: waits for word from the peer.
    Confirm,
    /// An announced message.
    Message {
        /// Its payload.
        payload: Payload,
        /// It ends only when the peer says so.
        confirm: bool,
        /// The peer may read it.
        lend: Option<Box<Lend>>,
    },
    /// A remote write that the peer serves, and may read.
    Write(Payload, Option<Box<Lend>>),
    /// A remote read that the peer serves.
    Read {
        /// Where it goes.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Bytes in all.
        len: usize,
        /// How they come.
        coming: Coming,
    },
    /// A remote access that waits for a grant.
    Parked,
}

/// How the bytes of a read come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// As the peer decides.
    Asked,
    /// This end decides, or has: not in parts.
    Offered,
    /// In parts, as this end decided; `true`: how long that takes is measured.
    Parts(bool),
}

impl Op {
    /// Whether it is a remote access that the peer serves.
    pub const fn is_commanded(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Read { .. })
    }
}

/// Bytes to be sent later.
pub enum Payload {
    /// In the application's memory, lent until the operation ends.
    Lent(Box<[Piece]>),
    /// A copy: the operation was injected.
    Owned(Box<[u8]>),
}

impl Payload {
    /// Borrows or copies, as `flags` allow.
    ///
    /// # Safety
    /// The pieces are lent: during this call with `FI_INJECT`, and without until the operation ends.
    pub unsafe fn new(pieces: &[Piece], len: usize, flags: OpFlags) -> Self {
        if flags.contains(OpFlags::INJECT) {
            // SAFETY: the caller's promise.
            Self::Owned(unsafe { copied(pieces, len) })
        } else {
            Self::Lent(pieces.into())
        }
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        match self {
            Self::Lent(pieces) => pieces.iter().map(|piece| piece.len).sum(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    /// Where it lies: in lent pieces, or in bytes of the operation's.
    pub fn pieces(&self) -> Result<&[Piece], &[u8]> {
        match self {
            Self::Lent(pieces) => Ok(pieces),
            Self::Owned(bytes) => Err(bytes),
        }
    }

    /// Copies `len` bytes from byte `skip` on to `to`; answers how many there were.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and lent pieces are still lent.
    pub unsafe fn gather(&self, skip: usize, to: *mut u8, len: usize) -> usize {
        match self {
            // SAFETY: the caller's promise.
            Self::Lent(pieces) => unsafe { copy::gather(pieces, skip, to, len) },
            Self::Owned(bytes) => {
                let part = bytes.get(skip..).unwrap_or_default();
                let len = len.min(part.len());
                // SAFETY: `part` has `len` bytes, and `to` is writable.
                unsafe { copy::bytes(part.as_ptr(), to, len) };
                len
            }
        }
    }
}

/// A copy of lent memory.
///
/// # Safety
/// The pieces are lent during the call.
pub unsafe fn copied(pieces: &[Piece], len: usize) -> Box<[u8]> {
    let mut bytes = vec![0u8; len];
    // SAFETY: the caller's promise, and the vector has `len` bytes.
    unsafe { copy::gather(pieces, 0, bytes.as_mut_ptr(), len) };
    bytes.into()
}

/// Names a payload at its sender (`Transport::Token`).
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The sender's operation.
    pub op: u64,
    /// Flags of the announcement.
    pub high: u32,
    /// The key of the library memory that holds the payload, 0 for none, and where it lies. With `LENT` in the flags, the
    /// ticket and the address of application memory that may be read (`single/`).
    pub key: u64,
    pub offset: u64,
}

/// A payload that is being pulled.
pub struct Pull {
    token: Token,
    got: usize,
    len: usize,
    /// How long it takes is measured, and others wait for it (`single/`).
    measured: bool,
}

/// Takes a message of `peer` that has a tag, or not, and nothing else before its payload.
#[inline(always)]
pub fn deliver<const TAGGED: bool, H: Host<Shm>>(
    peer: Peer,
    host: &mut H,
    mut words: Words,
) -> Result<Delivery, Broken> {
    let tag = if TAGGED { words.next().ok_or(Broken)? } else { 0 };
    let (body, len) = words.rest();
    let arrived = Arrived { peer, rx: RxName::ANY, tagged: TAGGED, has_data: false, tag, data: 0, len };
    // SAFETY: the payload is readable for `len` bytes until the record is advanced past.
    Ok(unsafe { host.deliver(&arrived, body) })
}

impl Lane {
    /// See [`ofi_core::transport::Lanes::send_now`].
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline(always)]
    pub unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        common: &mut Common,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        let Some(Link { commands, up: Some(up), .. }) = &mut self.link else { return false };
        if len > common.eager || self.parked_accesses > 0 || self.gone || up.wish() != wish::NONE {
            return false;
        }
        let Ok(mut slot) = commands.reserve(if TAGGED { 8 + len } else { len }) else { return false };
        // SAFETY: a word for the tag, if there is one, and the payload were reserved.
        let mut body = unsafe { Writer::new(slot.body()) };
        if TAGGED {
            body.word(tag);
        }
        // SAFETY: the caller's promise, and as much was reserved.
        unsafe { copy::bytes(from, body.rest(), len) };
        slot.publish(if TAGGED { kind::TAGGED_MESSAGE } else { kind::MESSAGE });
        common.counts.eager += 1;
        if up.bell.ring() == Wake::Needed {
            self.ring(common);
        }
        true
    }

    /// Sends a message.
    pub fn send<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        const SLOW: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::MATCH_COMPLETE).union(OpFlags::FENCE);
        if out.len > common.eager
            || out.flags.intersects(SLOW)
            || self.parked_accesses > 0
            || self.gone
            || self.up().is_none_or(|up| up.wish() != wish::NONE)
        {
            return self.send_slow(common, host, out);
        }
        self.send_eager(common, out, 0, None)?;
        Ok(Posted::Done)
    }

    /// Puts a message into the ring.
    #[inline]
    fn send_eager(
        &mut self,
        common: &mut Common,
        out: &OutMessage<'_>,
        mut high: u32,
        op: Option<SlotId>,
    ) -> Result<()> {
        let Some(link) = &mut self.link else { return Err(Error::AGAIN) };
        let has_data = out.flags.contains(OpFlags::REMOTE_CQ_DATA);
        let words = usize::from(op.is_some()) + usize::from(out.tagged) + usize::from(has_data);
        let mut slot = match link.commands.reserve(words * 8 + out.len) {
            Ok(slot) => slot,
            Err(error) => {
                self.starve(words * 8 + out.len);
                return Err(full(common, error));
            }
        };
        // SAFETY: `words` words and the payload were reserved.
        let mut body = unsafe { Writer::new(slot.body()) };
        high = rx_bits(high | kind::MESSAGE, out.rx);
        if let Some(op) = op {
            body.word(op.to_wire());
        }
        if out.tagged {
            body.word(out.tag);
            high |= flag::TAGGED;
        }
        if has_data {
            body.word(out.data);
            high |= flag::DATA;
        }
        match out.pieces {
            // SAFETY: the piece is lent, `len` is its length, and as much was reserved.
            [one] => unsafe { copy::bytes(one.addr, body.rest(), out.len) },
            // SAFETY: as above, for their sum.
            many => drop(unsafe { copy::gather(many, 0, body.rest(), out.len) }),
        }
        slot.publish(high);
        crash_point!("message.sent");
        common.counts.eager += 1;
        self.ring(common);
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn send_slow<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
        if out.flags.contains(OpFlags::FENCE) && self.outstanding > 0 {
            return Err(Error::AGAIN);
        }
        if self.parked_accesses > 0 || self.gone {
            // It must not overtake an access that waits for a grant. And a peer that has ended makes way for its
            // successor when all that it sent has been taken.
            return Err(Error::AGAIN);
        }
        self.connect(common)?;
        let (up, peer_wish) = self.up().map_or((false, wish::NONE), |up| (true, up.wish()));
        // What is to be matched is announced, however short: the peer asks for it when it has a receive.
        let matched = out.flags.contains(OpFlags::MATCH_COMPLETE);
        let confirm = matched || out.flags.contains(OpFlags::DELIVERY_COMPLETE);
        if peer_wish == wish::CLOSED {
            self.busy = true;
            return Err(Error::AGAIN); // the next poll gives the lane up, and the try after it a new peer a chance
        }
        if out.len <= common.eager && peer_wish == wish::NONE && !matched {
            if up && !confirm {
                self.send_eager(common, out, 0, None)?;
                return Ok(Posted::Done);
            }
            // A slot first, as the command names it; it is taken back if there is no room.
            let id = host.open(self.peer, out.ticket, Op::Confirm);
            let (high, op) = if confirm { (flag::CONFIRM, Some(id)) } else { (0, None) };
            if let Err(error) = self.send_eager(common, out, high, op) {
                host.abandon(id);
                return Err(error);
            }
            (self.outstanding, self.busy) = (self.outstanding + 1, true);
            if !confirm {
                self.unconfirmed.push(id);
            }
            return Ok(Posted::Pending);
        }
        self.announce(common, host, out, confirm)
    }

    /// Tells the peer of a message whose payload stays here for now.
    fn announce<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutMessage<'_>,
        confirm: bool,
    ) -> Result<Posted> {
        // A short one was held back for the peer's want of room: it counts as sent, and the library keeps it.
        let keep = out.len <= common.eager && self.unconfirmed.is_empty() && self.up().is_some() && !confirm;
        if keep && common.kept + out.len > common.kept_limit {
            return Err(Error::AGAIN);
        }
        let (key, offset) = match out.pieces {
            [one] if !keep && !out.flags.contains(OpFlags::INJECT) => {
                grants::source(&common.shared, one.addr, one.len).unwrap_or((0, 0))
            }
            _ => (0, 0),
        };
        let mut high = rx_bits(kind::ANNOUNCE, out.rx);
        let (mut key, mut offset, mut lend) = (key, offset, None);
        if key == 0
            && !keep
            && !out.flags.contains(OpFlags::INJECT)
            && let Some((flags, words, payload)) = self.lend(common, out.pieces, out.len)
        {
            high |= flags;
            ([key, offset], lend) = (words, payload);
        }
        let id = if keep {
            high |= flag::KEPT;
            // SAFETY: the core lends the pieces of what it posts.
            self.kept.insert(unsafe { copied(out.pieces, out.len) })
        } else {
            // SAFETY: the core lends the pieces of what it posts.
            let payload = unsafe { Payload::new(out.pieces, out.len, out.flags) };
            host.open(self.peer, out.ticket, Op::Message { payload, confirm, lend })
        };
        let mut words = [id.to_wire(), out.len as u64, key, offset, 0, 0];
        let mut count = 4;
        if out.tagged {
            high |= flag::TAGGED;
            words[count] = out.tag;
            count += 1;
        }
        if out.flags.contains(OpFlags::REMOTE_CQ_DATA) {
            high |= flag::DATA;
            words[count] = out.data;
            count += 1;
        }
        if confirm {
            high |= flag::CONFIRM;
        }
        if let Err(error) = self.command(common, high, &words[..count]) {
            if keep {
                self.kept.remove(id);
            } else {
                host.abandon(id);
            }
            return Err(error);
        }
        crash_point!("announce.sent");
        common.counts.announced += 1;
        if keep {
            crash_point!("announce.kept");
            common.counts.kept += 1;
            common.kept += out.len;
            self.busy = true;
            return Ok(Posted::Done);
        }
        (self.outstanding, self.busy) = (self.outstanding + 1, true);
        Ok(Posted::Pending)
    }

    /// Takes a message.
    pub fn take_message<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<Flow, Broken> {
        let confirm = if high & flag::CONFIRM != 0 { Some(words.next().ok_or(Broken)?) } else { None };
        let mut arrived = self.arrived(high, &mut words)?;
        let (body, len) = words.rest();
        arrived.len = len;
        // SAFETY: the payload is readable for `len` bytes until the record is advanced past.
        let delivery = unsafe { host.deliver(&arrived, body) };
        crash_point!("message.taken");
        if delivery != Delivery::Taken {
            if delivery == Delivery::Stopped {
                return Ok(Flow::Stop);
            }
            self.after_delivery(common, host, delivery);
        }
        if let Some(op) = confirm {
            self.done(common, op, Ok(()));
        }
        Ok(Flow::Next)
    }

    /// The envelope of a message, its length aside.
    #[inline]
    fn arrived(&self, high: u32, words: &mut Words) -> Result<Arrived, Broken> {
        let (tagged, has_data) = (high & flag::TAGGED != 0, high & flag::DATA != 0);
        let tag = if tagged { words.next().ok_or(Broken)? } else { 0 };
        let data = if has_data { words.next().ok_or(Broken)? } else { 0 };
        Ok(Arrived { peer: self.peer, rx: rx_of(high), tagged, has_data, tag, data, len: 0 })
    }

    /// Takes an announcement.
    pub fn take_announcement<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<Flow, Broken> {
        let mut next = || words.next().ok_or(Broken);
        let (op, len, key, offset) = (next()?, next()?, next()?, next()?);
        let mut arrived = self.arrived(high, &mut words)?;
        arrived.len = usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or(Broken)?;
        crash_point!("announce.taken");
        match host.announce(&arrived, Token { op, high, key, offset }) {
            Announced::Pull(into) => self.pull(common, host, Token { op, high, key, offset }, into),
            Announced::Kept => {}
            Announced::Stopped(_) => return Ok(Flow::Stop),
            Announced::Unwanted(token) => self.discard(common, token),
        }
        Ok(Flow::Next)
    }

    /// Moves an announced payload into the open receive `into`.
    pub fn pull<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H, token: Token, into: SlotId) {
        let Some(len) = host.receiving(into).map(|receiving| receiving.len) else { return };
        if token.key != 0 && token.high & flag::LENT == 0 && len > 0 {
            match self.grant(common, token.key, false) {
                Grant::Asked => {
                    self.parked.push_back(Parked::Pull { token, into });
                    self.busy = true;
                    return;
                }
                Grant::Given(_) => {
                    if self.pull_directly(common, host, token, into, len) {
                        return;
                    }
                }
                Grant::Refused => {}
            }
        }
        self.come(common, host, token, Sink::Receive(into), len);
    }

    /// Asks for a payload, to come in parts.
    pub fn ask<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        token: Token,
        sink: Sink,
        len: usize,
        measured: bool,
    ) {
        crash_point!("pull.ask");
        let into = match sink {
            Sink::Receive(into) => into,
            Sink::Write(id) => {
                if let Some(write) = self.writes.get_mut(id) {
                    write.measured = measured;
                }
                return self.reply(common, kind::SEND, [token.op, id.to_wire(), len as u64]);
            }
            Sink::Read(id) => {
                if let Some(Op::Read { coming, .. }) = host.op(self.peer, id) {
                    *coming = Coming::Parts(measured);
                }
                return self.reply(common, kind::SEND | flag::SERVED, [token.op, 0, len as u64]);
            }
        };
        let high = kind::SEND | (token.high & flag::KEPT);
        self.reply(common, high, [token.op, into.to_wire(), len as u64]);
        if len == 0 {
            host.received(into, Ok(()));
            if token.high & flag::CONFIRM != 0 {
                self.done(common, token.op, Ok(()));
            }
        } else {
            self.pulls.insert(into.to_wire(), Pull { token, got: 0, len, measured });
            self.busy = true;
        }
    }

    /// Copies a payload out of the sender's library memory.
    fn pull_directly<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        token: Token,
        into: SlotId,
        len: usize,
    ) -> bool {
        let Some(receiving) = host.receiving(into) else { return true };
        let Some(Grant::Given(granted)) = self.grants.get(&token.key) else { return false };
        let Some(source) = granted.at(token.offset, len) else { return false };
        // SAFETY: `at` checked that the bytes lie in the granted mapping; the pieces are lent for this receive.
        unsafe { copy::scatter(source, len, receiving.pieces, 0) };
        common.counts.direct_bytes += len as u64;
        crash_point!("pull.copied");
        host.received(into, Ok(()));
        self.done(common, token.op, Ok(()));
        true
    }

    /// Tells the sender that its payload is not wanted.
    pub fn discard(&mut self, common: &mut Common, token: Token) {
        crash_point!("discard.send");
        self.reply(common, kind::DONE | (token.high & flag::KEPT), [token.op, 0, 0]);
    }

    /// The peer asks for a payload, or for the bytes of a write.
    pub fn start_stream<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        into: u64,
        len: u64,
    ) -> Result<(), Broken> {
        if high & flag::SERVED != 0 {
            return self.stream_offered(op, len);
        }
        let id = SlotId::from_wire(op);
        let len = usize::try_from(len).map_err(|_| Broken)?;
        if high & flag::KEPT != 0 {
            let Some(bytes) = self.kept.remove(id) else { return Ok(()) };
            common.kept -= bytes.len();
            let len = len.min(bytes.len());
            if len > 0 {
                // Nothing is pulled of an empty one: a part of it would be one that nobody asked for.
                self.streams.push_back(Stream::kept(bytes, into, len));
            }
            return Ok(());
        }
        match host.op(self.peer, id) {
            Some(Op::Message { confirm, .. }) => {
                if len == 0 {
                    if !*confirm {
                        self.finish(host, id, Ok(()));
                    }
                } else {
                    self.streams.push_back(Stream::message(id, into, len));
                }
            }
            Some(Op::Write(..)) => self.streams.push_back(Stream::write(id, into, len)),
            _ => return Err(Broken),
        }
        Ok(())
    }

    /// A part of a pulled payload has come.
    pub fn take_message_part<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (id, offset): (u64, u64),
        words: Words,
    ) -> Result<(), Broken> {
        let (body, part) = words.rest();
        let into = SlotId::from_wire(id);
        let pull = self.pulls.get_mut(&id).ok_or(Broken)?;
        if offset != pull.got as u64 || part > pull.len - pull.got {
            return Err(Broken);
        }
        if let Some(receiving) = host.receiving(into) {
            // SAFETY: the record holds `part` bytes, the pieces are lent for this receive, and `got + part` is within
            // the length that they were found to have.
            unsafe { copy::scatter(body, part, receiving.pieces, pull.got) };
        }
        pull.got += part;
        if pull.got == pull.len {
            crash_point!("pull.ended");
            let (token, len, measured) = (pull.token, pull.len, pull.measured);
            self.pulls.remove(&id);
            host.received(into, Ok(()));
            if token.high & flag::CONFIRM != 0 {
                self.done(common, token.op, Ok(()));
            }
            if measured {
                self.landed(common, host, Sink::Receive(into), len);
            }
        }
        Ok(())
    }

    /// The peer is there: what was put into its ring before counts as sent.
    pub fn confirm<H: Host<Shm>>(&mut self, host: &mut H) {
        for id in std::mem::take(&mut self.unconfirmed) {
            self.finish(host, id, Ok(()));
        }
    }

    /// Takes back what the ring cannot carry any more: nobody is there.
    pub fn refuse<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H, errno: Errno) {
        self.lose(common, host, errno);
    }
}
