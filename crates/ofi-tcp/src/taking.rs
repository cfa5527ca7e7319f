//! Processes arriving packets of a connection: checks which packet may come when, and delivers it.
//!
//! Short messages are delivered from the receive buffer. Longer payloads go from the socket directly to their
//! destination, which the header determines. A message without a receive is buffered within a budget. A violation of
//! the protocol ends this connection only.

use std::fmt;

use ofi_api::{Caps, Errno, MrAccess, RemotePiece};
use ofi_core::copy;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Announced, Arrived, Delivery, PeerId, RemoteData, RxName, Upcalls};

use crate::Tcp;
use crate::bulk::{Bulk, Role, Stripes, stripe};
use crate::common::Common;
use crate::conn::{AHEAD, AnnouncedMessage, Body, Conn, EAGER, Peer, Spool, Stall, To};
use crate::op::{TcpOp, Token};
use crate::outgoing::SHARE;
use crate::wire::{Malformed, Packet, Pieces, charge};

/// The maximum length of a read that is answered by a copy, in bytes.
const COPIED_ANSWER: usize = 64 << 10;
/// The maximum bytes of acknowledgements and copied answers, and number of longer answers, that may wait for a peer.
/// Beyond that its packets are not processed.
const ANSWERS: (usize, usize) = (16 << 20, 1 << 16);
/// Bytes of long messages without receives, of all peers of an endpoint. Beyond the first, each peer has its window;
/// beyond the second, none has: whoever dials anew, by another name each time, would have another window each time.
const SPOOLED: (usize, usize) = (64 << 20, 1 << 30);

/// Whether more bytes of long messages may wait for receives, beside `all` of all peers. `own`: the lengths of those of
/// this peer, and its window if it counts.
fn may_spool(all: usize, own: (usize, Option<u64>)) -> bool {
    let has_window = own.1.is_some_and(|window| own.0 as u64 <= window);
    all < SPOOLED.0 || (has_window && all < SPOOLED.1)
}

/// The reason to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A malformed packet.
    Malformed(Malformed),
    /// A packet that is not allowed in this state.
    Unexpected(&'static str),
    /// A forbidden access of a peer that takes no refusal: C's protocol has none.
    Access(Errno),
    /// What it sent was lost with another connection to it.
    Lost,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => write!(f, "it sent {malformed}"),
            Self::Unexpected(what) => write!(f, "it sent {what}"),
            Self::Lost => f.write_str("a stripe was lost with its bulk connection"),
            Self::Access(errno) => write!(f, "it may not access the memory that it named ({errno})"),
        }
    }
}

impl From<Malformed> for Broken {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// The context in which packets are processed.
pub struct At<'a, H> {
    pub common: &'a mut Common,
    pub entry: &'a mut Peer,
    pub host: &'a mut H,
    pub peer: PeerId,
    /// The connection.
    pub on: SlotId,
}

/// The result of processing a packet.
enum PacketStep {
    /// The packet was processed, with this many bytes of its payload.
    Took(usize),
    /// Its payload has not arrived yet.
    Wait,
    /// It cannot be processed yet.
    Stall(Stall),
}

impl<H: Upcalls<Tcp>> At<'_, H> {
    pub fn who(&self) -> Accessor<'_> {
        Accessor { auth: &self.common.auth, peer: self.host.address(self.peer) }
    }

    fn check(&self, remote: &[RemotePiece], access: MrAccess) -> Result<usize, Errno> {
        let regions = &self.common.domain.regions;
        regions.check_served(self.common.caps, self.who(), remote, Caps::RMA, access)
    }

    /// An operation of this end has ended.
    fn finish(&mut self, id: SlotId, result: Result<(), Errno>) {
        if self.host.finish(self.peer, id, result).is_some() {
            self.entry.outstanding = self.entry.outstanding.saturating_sub(1);
        }
    }
}

/// The pieces as a header names them; `None` for none, or for more than it has room for.
#[inline]
pub fn named_pieces(pieces: &[RemotePiece]) -> Option<Pieces> {
    let convert = |piece: &RemotePiece| {
        let &RemotePiece { addr, len, key } = piece;
        crate::wire::RemotePiece { addr, len: len as u64, key }
    };
    Pieces::new(pieces.iter().map(convert))
}

fn remote_pieces(pieces: &Pieces) -> Result<Vec<RemotePiece>, Broken> {
    let convert = |piece: &crate::wire::RemotePiece| {
        let len = usize::try_from(piece.len).ok()?;
        Some(RemotePiece { addr: piece.addr, len, key: piece.key })
    };
    let all: Option<Vec<_>> = pieces.as_slice().iter().map(convert).collect();
    all.ok_or(Broken::Access(Errno::EINVAL))
}

impl Conn {
    /// Processes packets at the front of `bytes`. Returns how many bytes it consumed. The rest is passed again, with
    /// more bytes behind it, or later if the connection is [stalled](Conn::stalled).
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub fn take<H: Upcalls<Tcp>>(&mut self, at: &mut At<'_, H>, bytes: &[u8]) -> Result<usize, Broken> {
        let mut used = 0;
        loop {
            if self.body.is_some() {
                used += self.place(at, &bytes[used..])?;
                if self.stalled.is_some() || self.body.as_ref().is_some_and(|body| body.left() > 0) {
                    return Ok(used);
                }
                if self.body.as_ref().is_some_and(Body::awaits_stripes) {
                    self.stalled = Some(Stall::Stripes);
                    return Ok(used);
                }
                if !self.end_body(at) {
                    self.stalled = Some(Stall::Application);
                    return Ok(used);
                }
                continue;
            }
            let rest = &bytes[used..];
            let Some((packet, header)) = Packet::parse(rest, self.order)? else { return Ok(used) };
            // A peer that does not read its answers gets no more of them.
            let owes = self.out.copied() > ANSWERS.0;
            if owes || self.answered > SHARE || !at.host.hungry() {
                self.stalled = Some(if owes { Stall::Peer } else { Stall::Poll });
                return Ok(used);
            }
            match self.take_packet(at, packet, &rest[header..])? {
                PacketStep::Took(payload) => {
                    used += header + payload;
                    if self.stripes > 0 && !matches!(packet, Packet::Striped { .. }) {
                        self.expect_stripes(at.entry.bulk.as_deref())?;
                    }
                    if self.body.as_ref().is_some_and(Body::is_long) {
                        self.ahead = AHEAD.0;
                    }
                }
                PacketStep::Wait => {
                    self.ahead = AHEAD.1;
                    return Ok(used);
                }
                PacketStep::Stall(stall) => {
                    self.stalled = Some(stall);
                    return Ok(used);
                }
            }
        }
    }

    /// Whether the peer must read some of its answers before a connection that has [stalled](Stall::Peer) goes on.
    pub fn is_owed_much(&self) -> bool {
        self.out.copied() > ANSWERS.0 || self.out.reads() > ANSWERS.1
    }

    fn take_packet<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        packet: Packet,
        payload: &[u8],
    ) -> Result<PacketStep, Broken> {
        match packet {
            Packet::Message { tag, data, confirm, len } => {
                let arrived = arrived(at.peer, tag, data, len as usize);
                Ok(self.take_message(at, &arrived, confirm, payload))
            }
            Packet::Ack => {
                let id = self.acks.pop_front().ok_or(Broken::Unexpected("an acknowledgement of nothing"))?;
                at.finish(id, Ok(()));
                Ok(PacketStep::Took(0))
            }
            Packet::Refusal { .. } if !self.extras.refusals => {
                Err(Broken::Unexpected("a refusal, which was not agreed on"))
            }
            Packet::Refusal { of_read, errno } => {
                let refused = if of_read { &mut self.reads } else { &mut self.acks };
                let id = refused.pop_front().ok_or(Broken::Unexpected("a refusal of nothing"))?;
                at.finish(id, Err(Errno::from_raw(errno.into())));
                Ok(PacketStep::Took(0))
            }
            Packet::Atomic { .. } if !self.extras.atomics => {
                Err(Broken::Unexpected("an atomic operation, which was not agreed on"))
            }
            Packet::Note { .. } if !self.extras.notes => {
                Err(Broken::Unexpected("a packet of this library alone, which was not agreed on"))
            }
            Packet::Atomic { len, .. } | Packet::Note { len, .. } if (payload.len() as u64) < len => {
                Ok(PacketStep::Wait)
            }
            Packet::Atomic { what, remote, len } => {
                self.take_atomic(at, what, &remote_pieces(&remote)?, &payload[..len as usize])?;
                Ok(PacketStep::Took(len as usize))
            }
            Packet::Note { words, len } => {
                // SAFETY: so many bytes are there, as was just checked.
                let taken = unsafe { at.host.noted(at.peer, words, payload.as_ptr(), len as usize) };
                taken.map_err(|_| Broken::Unexpected("a note that is none"))?;
                Ok(PacketStep::Took(len as usize))
            }
            Packet::Read { remote } => self.take_read(at, remote_pieces(&remote)?),
            Packet::ReadAnswer { len } => {
                let id = self.reads.pop_front().ok_or(Broken::Unexpected("an answer to no read"))?;
                let to = match at.host.op(at.peer, id) {
                    Some(TcpOp::Read { len: wanted, .. }) if *wanted as u64 != len => {
                        return Err(Broken::Unexpected("an answer of another length than was read"));
                    }
                    Some(_) => To::Read(id),
                    None => To::Nowhere, // given up
                };
                self.body = Some(Body::new(to, len as usize, false));
                Ok(PacketStep::Took(0))
            }
            Packet::Write { remote, data, confirm, len } => {
                let remote = remote_pieces(&remote)?;
                let to = match at.check(&remote, MrAccess::REMOTE_WRITE) {
                    Ok(_) => To::Memory(remote, data),
                    Err(errno) if self.extras.refusals && confirm => To::Refused(errno),
                    Err(errno) => return Err(Broken::Access(errno)),
                };
                self.body = Some(Body::new(to, len as usize, confirm));
                Ok(PacketStep::Took(0))
            }
            Packet::Grant { .. } | Packet::Rts { tag: None, .. } if !self.is_counted() => {
                Err(Broken::Unexpected("a grant or an announcement that was not agreed on"))
            }
            Packet::Grant { bytes } => {
                self.credit = self.credit.saturating_add_unsigned(bytes);
                Ok(PacketStep::Took(0))
            }
            Packet::Striped { count } if self.bulk != 0 && self.stripes == 0 && count > 1 => {
                self.stripes = count;
                Ok(PacketStep::Took(0))
            }
            Packet::Striped { .. } | Packet::Stripe { .. } => {
                Err(Broken::Unexpected("stripes that cannot be"))
            }
            Packet::Rts { number, tag, data, confirm, len } => {
                let arrived = arrived(at.peer, tag, data, len as usize);
                self.take_announcement(at, &arrived, number, confirm)
            }
            Packet::Cts { number } => {
                let found = self.announced.remove(&number);
                let own = found.ok_or(Broken::Unexpected("a request for a message that waits for none"))?;
                let count = self.begin_announced(number, &own, at.entry.bulk.as_deref_mut());
                if let Some(TcpOp::Send { stripes, .. }) = at.host.op(at.peer, own.op) {
                    *stripes = count;
                }
                Ok(PacketStep::Took(0))
            }
            Packet::Data { number, len } => {
                let asked = self.asked.remove(&number).filter(|asked| asked.len as u64 == len);
                let asked = asked.ok_or(Broken::Unexpected("a message that was not announced so"))?;
                let to = match asked.to {
                    Some(to) => to,
                    None if self.is_counted() => self.take_unasked(at, number, asked.len),
                    None => return Err(Broken::Unexpected("an announced message that was not asked for")),
                };
                self.body = Some(Body::new(to, asked.len, asked.confirm));
                Ok(PacketStep::Took(0))
            }
        }
    }

    /// The payload that begins now is striped, over bulk connections of the peer: it uses none before this end has
    /// listed it.
    #[cold]
    fn expect_stripes(&mut self, bulk: Option<&Bulk>) -> Result<(), Broken> {
        let count = std::mem::take(&mut self.stripes);
        let (incoming, lost) = bulk.map_or((0, false), |bulk| (bulk.incoming.len(), bulk.lost));
        if self.role != Role::Main || usize::from(count) > incoming + 1 {
            if lost {
                return Err(Broken::Lost);
            }
            return Err(Broken::Unexpected("more stripes than there are bulk connections"));
        }
        let body = self.body.as_mut().ok_or(Broken::Unexpected("stripes of no payload"))?;
        let in_turn = matches!(body.to, To::Spool(_));
        let stripes = Stripes::new(self.striped, count, body.len, in_turn);
        body.stripes = Some(stripes.ok_or(Broken::Unexpected("stripes of a payload that cannot have them"))?);
        body.end = stripe(body.len, count, 0).end;
        self.striped += 1;
        Ok(())
    }

    fn take_message<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        arrived: &Arrived,
        confirm: bool,
        payload: &[u8],
    ) -> PacketStep {
        let len = arrived.len;
        if len <= EAGER {
            if payload.len() < len {
                return PacketStep::Wait;
            }
            // SAFETY: so many bytes are there, as was just checked.
            match unsafe { at.host.deliver(arrived, payload.as_ptr()) } {
                Delivery::Taken | Delivery::Kept => {}
                Delivery::Stopped => return PacketStep::Stall(Stall::Application),
            }
            if confirm {
                self.acknowledge();
            }
            self.taken = self.taken.saturating_add(charge(len as u64));
            return PacketStep::Took(len);
        }
        let spool = at.entry.spools.insert(Spool { on: at.on, bytes: Vec::new(), len });
        at.entry.spooled = at.entry.spooled.saturating_add(len); // a hostile peer's may be no length
        let to = match at.host.announce(arrived, Token::Spool(spool)) {
            Announced::Pull(into) => To::Receive(into),
            Announced::Kept => To::Spool(spool),
            Announced::Unwanted(_) => To::Nowhere,
            Announced::Stopped(_) => {
                at.entry.unspool(spool);
                return PacketStep::Stall(Stall::Application);
            }
        };
        if !matches!(to, To::Spool(_)) {
            at.entry.unspool(spool);
        }
        self.taken = self.taken.saturating_add(charge(len as u64));
        self.body = Some(Body::new(to, len, confirm));
        PacketStep::Took(0)
    }

    fn take_announcement<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        arrived: &Arrived,
        number: u8,
        confirm: bool,
    ) -> Result<PacketStep, Broken> {
        if self.asked.contains_key(&number) || at.entry.unasked.contains_key(&(at.on, number)) {
            return Err(Broken::Unexpected("a second announcement by the same number"));
        }
        let to = match at.host.announce(arrived, Token::Announced(at.on, number)) {
            Announced::Pull(into) => Some(To::Receive(into)),
            Announced::Kept => None,
            Announced::Unwanted(_) => Some(To::Nowhere),
            Announced::Stopped(_) => return Ok(PacketStep::Stall(Stall::Application)),
        };
        self.asked.insert(number, AnnouncedMessage { len: arrived.len, confirm, to: None });
        if let Some(to) = to {
            self.ask(number, to);
        }
        Ok(PacketStep::Took(0))
    }

    /// The destination of an announced message for which there is no receive yet, and after which the peer ends.
    #[cold]
    fn take_unasked<H>(&mut self, at: &mut At<'_, H>, number: u8, len: usize) -> To {
        let spool = at.entry.spools.insert(Spool { on: at.on, bytes: Vec::new(), len });
        at.entry.spooled = at.entry.spooled.saturating_add(len);
        at.entry.unasked.insert((at.on, number), spool);
        To::Spool(spool)
    }

    /// Asks for an announced message.
    pub fn ask(&mut self, number: u8, to: To) {
        if let Some(asked) = self.asked.get_mut(&number) {
            asked.to = Some(to);
            self.out.header(&Packet::Cts { number }, self.order);
            self.dirty = true;
        }
    }

    pub(crate) fn acknowledge(&mut self) {
        self.out.header(&Packet::Ack, self.order);
        self.dirty = true;
    }

    /// Refuses an access in place of its answer or acknowledgement.
    pub(crate) fn refuse(&mut self, of_read: bool, errno: Errno) {
        let errno = u16::try_from(errno.get()).unwrap_or(libc::EIO as u16);
        self.out.header(&Packet::Refusal { of_read, errno }, self.order);
        self.dirty = true;
    }

    fn take_read<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        remote: Vec<RemotePiece>,
    ) -> Result<PacketStep, Broken> {
        if self.out.reads() > ANSWERS.1 {
            return Ok(PacketStep::Stall(Stall::Peer));
        }
        let len = match at.check(&remote, MrAccess::REMOTE_READ) {
            Ok(len) => len,
            Err(errno) if self.extras.refusals => {
                self.refuse(true, errno);
                return Ok(PacketStep::Took(0));
            }
            Err(errno) => return Err(Broken::Access(errno)),
        };
        self.dirty = true;
        // Two ends that read from each other must not both stop: neither would take the other's answers.
        let is_much = self.out.copied() > ANSWERS.0 / 2;
        let count = self.begin_stripes(at.entry.bulk.as_deref_mut(), len);
        self.out.header(&Packet::ReadAnswer { len: len as u64 }, self.order);
        if len > COPIED_ANSWER || (len > 0 && is_much) {
            self.answer_stripes(at.entry.bulk.as_deref_mut(), remote, len, count);
            return Ok(PacketStep::Took(0));
        }
        let read = |to: &mut [u8]| at.common.domain.regions.read_as(at.who(), &remote, 0, to).map(|_| ());
        self.out.fill(len, read).map_err(Broken::Access)?;
        self.answered += len;
        at.host.accessed(&at.common.domain.regions, MrAccess::REMOTE_READ, &remote);
        Ok(PacketStep::Took(0))
    }

    /// Copies bytes of a payload to their destination. Returns how many belong to it.
    pub fn place<H: Upcalls<Tcp>>(&mut self, at: &mut At<'_, H>, bytes: &[u8]) -> Result<usize, Broken> {
        let may_refuse = self.extras.refusals;
        let Some(body) = &mut self.body else { return Ok(0) };
        let len = bytes.len().min(body.left());
        let (from, skip) = (bytes.as_ptr(), body.at);
        match &body.to {
            To::Receive(into) => {
                if let Some(receiving) = at.host.receiving(*into) {
                    let len = len.min(receiving.len.saturating_sub(skip));
                    // SAFETY: the pieces are lent for this receive, and `from` has more bytes.
                    unsafe { copy::scatter(from, len, receiving.pieces, skip) };
                }
            }
            To::Spool(spool) => {
                let window = (self.extras.window > 0).then_some(at.common.window);
                if len > 0 && !may_spool(at.common.spooled, (at.entry.spooled, window)) {
                    self.stalled = Some(Stall::Application);
                    return Ok(0);
                }
                if let Some(spool) = at.entry.spools.get_mut(*spool) {
                    spool.bytes.extend_from_slice(&bytes[..len]);
                    at.common.spooled += len;
                }
            }
            To::Memory(remote, _) if len > 0 => {
                let who = Accessor { auth: &at.common.auth, peer: at.host.address(at.peer) };
                let regions = &at.common.domain.regions;
                match regions.write_as(who, remote, skip, len, [&bytes[..len]]) {
                    Ok(_) => {}
                    Err(errno) if may_refuse && body.confirm => body.to = To::Refused(errno),
                    Err(errno) => return Err(Broken::Access(errno)),
                }
            }
            To::Read(id) => {
                if let Some(TcpOp::Read { pieces, .. }) = at.host.op(at.peer, *id) {
                    // SAFETY: the pieces are lent until the read ends, and have as many bytes.
                    unsafe { copy::scatter(from, len, pieces, skip) };
                }
            }
            To::Memory(..) | To::Refused(_) | To::Nowhere => {}
        }
        body.at += len;
        Ok(len)
    }

    /// Ends a payload that has arrived whole. `false`: the application has no room for the report.
    fn end_body<H: Upcalls<Tcp>>(&mut self, at: &mut At<'_, H>) -> bool {
        let Some(body) = &self.body else { return true };
        let confirm = body.confirm;
        match &body.to {
            To::Receive(into) => at.host.received(*into, Ok(())),
            To::Memory(remote, data) => {
                if let Some(value) = *data
                    && !at.host.remote_write(at.peer, RemoteData { value, rx: RxName::ANY }, body.len)
                {
                    return false;
                }
                at.host.accessed(&at.common.domain.regions, MrAccess::REMOTE_WRITE, remote);
            }
            To::Read(id) => at.finish(*id, Ok(())),
            &To::Refused(errno) => {
                self.body = None;
                self.refuse(false, errno);
                return true;
            }
            To::Spool(_) | To::Nowhere => {}
        }
        self.body = None;
        if confirm {
            self.acknowledge();
        }
        true
    }

    /// The destinations of the next bytes of a long payload, into which the socket is read directly; none if they do
    /// not go to memory or may not. Grants must be held while the destinations are used.
    pub fn places<H: Upcalls<Tcp>>(
        &mut self,
        at: &mut At<'_, H>,
        into: &mut Vec<libc::iovec>,
    ) -> Vec<ofi_core::keys::Grant<ofi_core::domain::RegionData>> {
        let Some(body) = &self.body else { return Vec::new() };
        let len = body.left().min(AT_ONCE);
        let mut push = |addr: *mut u8, len: usize| {
            if into.len() < VECTORS {
                into.push(libc::iovec { iov_base: addr.cast(), iov_len: len });
            }
        };
        match &body.to {
            To::Receive(id) => {
                if let Some(receiving) = at.host.receiving(*id) {
                    let len = len.min(receiving.len.saturating_sub(body.at));
                    copy::runs(receiving.pieces, body.at, len).for_each(|(addr, len)| push(addr, len));
                }
            }
            To::Read(id) => {
                if let Some(TcpOp::Read { pieces, .. }) = at.host.op(at.peer, *id) {
                    copy::runs(pieces, body.at, len).for_each(|(addr, len)| push(addr, len));
                }
            }
            To::Memory(remote, _) => {
                let regions = &at.common.domain.regions;
                let range = (body.at, len);
                let held = regions.grants_as(at.who(), remote, range, MrAccess::REMOTE_WRITE);
                let held = held.unwrap_or_default(); // the copy finds out why not
                let pieces = held.iter().flat_map(ofi_core::keys::Grant::pieces);
                pieces.for_each(|piece| push(piece.addr, piece.len));
                return held;
            }
            To::Spool(_) | To::Refused(_) | To::Nowhere => {}
        }
        Vec::new()
    }
}

/// Bytes that are read at once.
const AT_ONCE: usize = 1 << 20;
/// Pieces that are read at once, without the one for what follows.
pub const VECTORS: usize = 32;

fn arrived(peer: PeerId, tag: Option<u64>, data: Option<u64>, len: usize) -> Arrived {
    Arrived {
        peer,
        rx: RxName::ANY,
        tagged: tag.is_some(),
        has_data: data.is_some(),
        tag: tag.unwrap_or(0),
        data: data.unwrap_or(0),
        len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_many_peers_are_bounded_together() {
        let window = Some(4 << 20);
        for (all, own, may) in [
            (SPOOLED.0 - 1, (usize::MAX, None), true),
            (SPOOLED.0, (0, None), false),
            (SPOOLED.0, (4 << 20, window), true),
            (SPOOLED.0, ((4 << 20) + 1, window), false),
            (SPOOLED.1 - 1, (1, window), true),
            (SPOOLED.1, (1, window), false),
        ] {
            assert_eq!(may_spool(all, own), may, "{all} bytes, {own:?}");
        }
    }
}
