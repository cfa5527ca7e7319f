//! Posts messages, reads and writes.

use ofi_api::{Error, OpFlags, Result};
use ofi_core::slots::SlotId;
use ofi_core::transport::{CompletionInfo, OutMessage, OutRma, Payload, Posted, Upcalls};

use super::TcpEndpoint;
use crate::Tcp;
use crate::bulk::Role;
use crate::conn::{Announced, Phase};
use crate::op::TcpOp;
use crate::taking::named_pieces;
use crate::wire::{Packet, charge};

/// The maximum length of a payload that is copied behind its header; longer ones are sent from their own memory.
const COPIED: usize = 4 << 10;
/// Bytes of copies that may wait for a peer.
const WAITING: usize = 256 << 10;
/// The maximum bytes of copies in a batch.
const GATHERED: usize = 32 << 10;
/// Operations without completions that leave at once between two polls. Programs that post more of them without polling
/// send streams.
const BURST: u8 = 2;
/// Reads that may wait for a peer. So each end owes the other fewer answers than those with which it stops to process
/// packets: two ends that both stopped would never go on.
const READS: usize = 1 << 15;
/// Bytes of a tagged message's header with data: what `FI_TCP_MAX_SAVED_SIZE` counts, as in C.
const TAGGED_HEADER: usize = 32;

/// The levels that end with the peer's acknowledgement.
const CONFIRMED: OpFlags = OpFlags::DELIVERY_COMPLETE.union(OpFlags::TRANSMIT_COMPLETE);

impl TcpEndpoint {
    /// Whether an operation may be posted: a fence waits for operations in flight.
    pub(super) fn may_post(&self, peer: u32, flags: OpFlags, id: SlotId) -> bool {
        let fenced = flags.contains(OpFlags::FENCE) && self.peers[peer as usize].outstanding > 0;
        let conn = self.conns.get(id).and_then(Option::as_deref);
        !fenced && conn.is_some_and(|conn| conn.out.copied() < WAITING && conn.atomics.is_empty())
    }

    /// See [`ofi_core::transport::TransportEndpoint::send`].
    pub(crate) fn send<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let id = self.connection(out.peer)?;
        if !self.may_post(out.peer, out.flags, id) {
            return Err(Error::AGAIN);
        }
        let data = out.flags.contains(OpFlags::REMOTE_CQ_DATA).then_some(out.data);
        let confirm = out.flags.intersects(CONFIRMED);
        let tag = out.tagged.then_some(out.tag);
        let (max_saved, window) = (self.max_saved, self.common.window);
        let Some(conn) = self.conn(id) else { return Err(Error::AGAIN) };
        let charge = charge(out.len as u64);
        let is_asked_for = match conn.phase {
            Phase::Ready if conn.is_counted() && conn.credit < charge.cast_signed() => true,
            Phase::Ready => {
                tag.is_some() && conn.announces && out.len > max_saved.saturating_sub(TAGGED_HEADER)
            }
            // Whether the peer counts is not known yet.
            _ if conn.early > 0 && conn.early.saturating_add(charge) > window => return Err(Error::AGAIN),
            _ => false,
        };
        if is_asked_for {
            let free = (1..=254).find(|number| !conn.announced.contains_key(number));
            let number = free.ok_or(Error::AGAIN)?;
            // SAFETY: the core lends the pieces of what it posts, of injected messages during this call.
            let payload = unsafe { Payload::new(out.pieces, out.len, out.flags) };
            let (payload, kept) = match payload.into_owned() {
                Ok(bytes) => (Payload::owned(Box::default()), Some(bytes)),
                Err(lent) => (lent, None),
            };
            let op = host.open(out.peer, out.ticket, TcpOp::Send { payload, confirm, stripes: 1 });
            conn.out.header(&Packet::Rts { number, tag, data, confirm, len: out.len as u64 }, conn.order);
            conn.announced.insert(number, Announced { op, len: out.len, confirm, kept });
            self.peers[out.peer as usize].outstanding += 1;
            self.common.counts.announced += 1;
            self.leave(host, id, &out.ticket, out.flags);
            return Ok(Posted::Pending);
        }
        if conn.phase == Phase::Ready {
            conn.credit = conn.credit.saturating_sub_unsigned(charge);
        } else {
            conn.early = conn.early.saturating_add(charge);
        }
        let packet = Packet::Message { tag, data, confirm, len: out.len as u64 };
        let (payload, ticket) = ((out.peer, out.pieces, out.len), (out.flags, &out.ticket));
        // SAFETY: the core lends the pieces of what it posts.
        Ok(unsafe { self.post(host, id, &packet, payload, confirm, ticket) })
    }

    /// Queues a packet with its payload, and sends it now or later.
    ///
    /// # Safety
    /// As for [`Self::payload`].
    unsafe fn post<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        packet: &Packet,
        (peer, pieces, len): (u32, &[ofi_api::Piece], usize),
        confirm: bool,
        (flags, ticket): (OpFlags, &CompletionInfo),
    ) -> Posted {
        let stripes = self.begin_stripes(peer, id, len, flags);
        let payload = (peer, pieces, len, stripes);
        // SAFETY: the caller's promise.
        let posted = unsafe { self.payload(host, id, packet, payload, confirm, (flags, ticket)) };
        self.leave(host, id, ticket, flags);
        posted
    }

    /// Queues a packet with its payload, as a copy or by reference.
    ///
    /// # Safety
    /// The pieces are lent for reading: during the call if it is injected or short, otherwise until the operation ends.
    unsafe fn payload<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        packet: &Packet,
        (peer, pieces, len, stripes): (u32, &[ofi_api::Piece], usize, u8),
        confirm: bool,
        (flags, ticket): (OpFlags, &CompletionInfo),
    ) -> Posted {
        let (polls, gathers) = (self.polls, self.gathers());
        let (injected, more) = (flags.contains(OpFlags::INJECT), flags.contains(OpFlags::MORE));
        let stripes_left = self.has_stripes_left(peer);
        let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { return Posted::Done };
        conn.out.header(packet, conn.order);
        let copied = injected || len <= COPIED;
        let behind = conn.out.has_lent() || stripes_left;
        if copied {
            // SAFETY: the caller's promise.
            unsafe { conn.out.copy(pieces, len) };
        }
        // Before the connection is established it may still fail: then not even a copy counts as sent.
        let is_open = conn.phase == Phase::Ready;
        // What waits for the next poll ends in it: an application that has all its completions may never poll again.
        // What has no completion has ended: its memory is free.
        let waits = conn.full || behind || more || (gathers && ticket.signal && conn.wrote == polls);
        if copied && !confirm && is_open && !waits {
            return Posted::Done;
        }
        let op = if copied {
            let payload = Payload::owned(Box::default());
            if confirm { TcpOp::Confirm } else { TcpOp::Send { payload, confirm, stripes } }
        } else {
            // SAFETY: the caller's promise.
            TcpOp::Send { payload: unsafe { Payload::lent(pieces.into()) }, confirm, stripes }
        };
        let op = host.open(peer, *ticket, op);
        self.peers[peer as usize].outstanding += 1;
        if copied && !confirm {
            conn.out.mark(op);
        }
        if confirm {
            conn.acks.push_back(op);
        }
        if !copied {
            conn.lend_stripes(self.peers[peer as usize].bulk.as_deref_mut(), op, len, stripes);
        }
        Posted::Pending
    }

    /// See [`ofi_core::transport::TransportEndpoint::rma`].
    pub(crate) fn rma<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let Some(remote) = named_pieces(out.remote) else {
            // More than `rma_iov_limit` are not posted.
            return Ok(Posted::Done);
        };
        let id = self.connection(out.peer)?;
        if !self.may_post(out.peer, out.flags, id) {
            return Err(Error::AGAIN);
        }
        let Some(conn) = self.conn(id) else { return Err(Error::AGAIN) };
        if !out.write {
            if conn.reads.len() >= READS {
                return Err(Error::AGAIN);
            }
            conn.out.header(&Packet::Read { remote }, conn.order);
            let op = host.open(out.peer, out.ticket, TcpOp::Read { pieces: out.pieces.into(), len: out.len });
            conn.reads.push_back(op);
            self.peers[out.peer as usize].outstanding += 1;
            self.leave(host, id, &out.ticket, out.flags);
            return Ok(Posted::Pending);
        }
        let data = out.remote_data().map(|data| data.value);
        // Only an acknowledgement tells a write from one that the peer refuses, by ending the connection.
        let confirm = true;
        let packet = Packet::Write { remote, data, confirm, len: out.len as u64 };
        let (payload, ticket) = ((out.peer, out.pieces, out.len), (out.flags, &out.ticket));
        // SAFETY: the core lends the pieces of what it posts.
        Ok(unsafe { self.post(host, id, &packet, payload, confirm, ticket) })
    }

    /// Sends queued data now, or leaves it to the batch.
    pub(super) fn leave<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        ticket: &CompletionInfo,
        flags: OpFlags,
    ) {
        let (polls, gathers) = (self.polls, self.gathers());
        let Some(conn) = self.conn(id) else { return };
        let is_main = conn.role == Role::Main;
        if conn.full || conn.phase != Phase::Ready {
            return if is_main {
                self.send_stripes(host, id)
            }; // others wait until the socket has room
        }
        let more = flags.contains(OpFlags::MORE);
        let follows = gathers && conn.wrote == polls;
        conn.burst = if follows { conn.burst.saturating_add(1) } else { 0 };
        let is_stream = follows && conn.burst >= BURST;
        let waits = more || (follows && ticket.signal) || is_stream;
        let waits = waits && conn.out.copied() < GATHERED && conn.out.is_copied();
        if !waits || !(ticket.signal || more || self.unattended || host.attend_later()) {
            self.flush(host, id);
            return if is_main {
                self.send_stripes(host, id)
            };
        }
        self.unattended |= !ticket.signal && !more;
        let Some(conn) = self.conn(id) else { return };
        if !std::mem::replace(&mut conn.dirty, true) {
            self.dirty.push(id);
        }
    }
}
