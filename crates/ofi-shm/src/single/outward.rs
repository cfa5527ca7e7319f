//! The sending end of a long transfer: it lends the bytes, and writes them from the back. The bytes belong to a message
//! or a write, or are registered memory that the peer reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ofi_api::{Errno, MrAccess, Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;
use ofi_ring::{access_token, crash_point};

use super::{BYTES, GIVEN_UP, TURN, chunk, pack, unpack};
use crate::Shm;
use crate::cma::{self, Fault};
use crate::command::{Words, flag, kind};
use crate::common::{Common, accessor};
use crate::exposed_buffer::ExposedBuffer;
use crate::layout::pair;
use crate::op::Op;
use crate::openings::{Opening, RegisteredMemory};
use crate::pair::OwnPair;
use crate::peer::bulk::BulkStream;
use crate::peer::link::Link;
use crate::peer::served::ServedRead;
use crate::peer::single::{Origin, Outward};
use crate::peer::{Broken, Peer};

/// The maximum number of a peer's reads that are offered at a time.
const MAX_OFFERS: usize = 8;

impl Peer {
    /// Lends a payload to the peer if it may be copied directly. Returns flags and words for its announcement, and the
    /// state that the operation keeps.
    pub fn lend(
        &mut self,
        common: &mut Common,
        pieces: &[Piece],
        len: usize,
    ) -> Option<(u32, [u64; 2], Option<Box<ExposedBuffer>>)> {
        if !self.is_single(common, len) {
            return None;
        }
        let mut high = if self.may_copy(common, true) { flag::WRITES } else { 0 };
        let mut words = [0; 2];
        let mut lend = None;
        if let [one] = pieces
            && let Some((own, slot, ticket)) = self.free_lend()
        {
            own.word64(pair::LENT + 8 * slot).store(ticket, Ordering::Relaxed); // published by the announcement
            high |= flag::LENT;
            words = [ticket, one.addr.addr() as u64];
            lend = Some(Box::new(ExposedBuffer::new(own, slot, ticket, None)));
        }
        (high != 0).then_some((high, words, lend))
    }

    /// A free word of `LENT`, and a ticket to put there.
    fn free_lend(&mut self) -> Option<(Arc<OwnPair>, usize, u64)> {
        let (Some(Link { own, .. }), Some(single)) = (&self.link, &mut self.single) else { return None };
        let slot = single.lends as usize % pair::LENT_SLOTS;
        if own.word64(pair::LENT + 8 * slot).load(Ordering::Relaxed) != 0 {
            return None;
        }
        single.lends += 1;
        Some((Arc::clone(own), slot, single.lends << 8 | slot as u64))
    }

    /// Lets the peer choose the path of its read of registered memory. Returns `false` if only the ring is possible.
    pub fn offer<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &H,
        op: u64,
        remote: &[RemotePiece],
    ) -> bool {
        let &[piece] = remote else { return false };
        if !self.is_single(common, piece.len) {
            return false;
        }
        let who = accessor(common, host, self.peer);
        let found =
            RegisteredMemory::find(&common.shared.domain, who, piece, (0, piece.len), MrAccess::REMOTE_READ);
        let Ok(Some(registered)) = found else { return false };
        let mut high = if self.may_copy(common, true) { flag::WRITES } else { 0 };
        self.single.get_or_insert_default();
        let lend = self.free_lend().and_then(|(own, slot, ticket)| {
            let opening =
                Opening { own: Arc::clone(&own), word: pair::LENT + 8 * slot, ticket, writer: None };
            let opened = registered.open(&common.shared.domain, piece.key, opening)?;
            Some(ExposedBuffer::new(own, slot, ticket, Some(opened)))
        });
        let ticket = lend.as_ref().map_or(0, ExposedBuffer::ticket);
        if lend.is_some() {
            high |= flag::LENT;
        }
        if high == 0 {
            return false;
        }
        self.served.reads.push(ServedRead::new(op, piece, lend));
        self.reply(common, kind::OFFER | high, [op, ticket, registered.addr.addr() as u64]);
        crash_point!("offer.sent");
        true
    }

    fn take_served(&mut self, op: u64) -> Result<ServedRead, Broken> {
        let at = self.served.reads.iter().position(|served| served.op == op).ok_or(Broken)?;
        Ok(self.served.reads.remove(at))
    }

    /// Whether a command may be processed while others are served. That is a read after offered reads, so that the peer
    /// has the next offer before it finishes the last. The peer reads them in order.
    pub fn may_serve(&self, kind: u32) -> bool {
        let served = self.served.reads.len();
        self.served.serving == 0
            || (kind == kind::READ && self.served.serving == served && served < MAX_OFFERS)
    }

    /// The peer has read an offer, or declines it.
    pub fn take_read_end<H: Upcalls<Shm>>(
        &mut self,
        common: &Common,
        host: &mut H,
        op: u64,
        result: Result<(), Errno>,
    ) -> Result<(), Broken> {
        let served = self.take_served(op)?;
        self.served.serving -= 1;
        if result.is_ok() {
            host.accessed(&common.shared.domain.regions, MrAccess::REMOTE_READ, &[served.piece]);
        }
        crash_point!("offer.ended");
        Ok(())
    }

    /// Sends an offered payload through the ring, as the peer has chosen.
    pub fn stream_offered(&mut self, op: u64, len: u64) -> Result<(), Broken> {
        let served = self.take_served(op)?;
        if len != served.piece.len as u64 {
            return Err(Broken);
        }
        self.bulk.streams.push_back(BulkStream::read([served.piece].into(), op, served.piece.len));
        Ok(())
    }

    /// Processes the receiver's message that says where this end may write.
    pub fn take_share<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        words: &mut Words,
    ) -> Result<(), Broken> {
        let mut next = || words.next().ok_or(Broken);
        let (ticket, len, count) = (next()?, next()?, next()?);
        if count > cma::RANGES as u64 || len > BYTES {
            return Err(Broken);
        }
        let (mut there, mut room) = (Vec::with_capacity(count as usize), 0u64);
        for _ in 0..count {
            let (addr, run) = (next()?, next()?);
            room = room.checked_add(run).filter(|&room| room <= BYTES).ok_or(Broken)?;
            addr.checked_add(run).ok_or(Broken)?;
            there.push(Piece::new(std::ptr::without_provenance_mut(addr as usize), run as usize));
        }
        let (origin, most) = if high & flag::SERVED != 0 {
            let served = self.served.reads.iter().find(|served| served.op == op).ok_or(Broken)?;
            (Origin::Served(op), served.piece.len)
        } else {
            let op = SlotId::from_wire(op);
            match host.op(self.peer, op) {
                Some(Op::Message { payload, .. } | Op::Write(payload, _)) => (Origin::Op(op), payload.len()),
                _ => return Err(Broken),
            }
        };
        if len > room || len > most as u64 {
            return Err(Broken);
        }
        let may = self.may_copy(common, true);
        let (Some(Link { own, .. }), Some(single)) = (&self.link, &mut self.single) else { return Ok(()) };
        own.word64(pair::CLAIMED).store(pack(ticket, 0), Ordering::Relaxed);
        let given_up = if may { 0 } else { GIVEN_UP };
        own.word64(pair::WRITTEN).store(pack(ticket, 0) | given_up, Ordering::Release);
        let outward = Outward { origin, ticket, len: len as usize, there: there.into(), written: 0 };
        single.outward = may.then_some(outward);
        self.busy = true;
        if !may {
            self.ring(common);
        }
        crash_point!("single.asked");
        Ok(())
    }

    /// Writes from the end.
    pub(super) fn copy_out<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        let mut budget = TURN;
        while budget > 0 {
            let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &mut self.single) else {
                return;
            };
            let Some(outward) = &mut single.outward else { return };
            let (ticket, written) = (outward.ticket, outward.written);
            let target = cma::word(&up.parts.pair, pair::TARGET);
            let front = unpack(cma::word(&up.parts.pair, pair::FRONT).load(Ordering::Acquire), ticket);
            let (Some((front, _)), true) = (front, target.load(Ordering::Acquire) == ticket) else {
                single.outward = None;
                return;
            };
            let left = outward.len.saturating_sub(front).saturating_sub(written);
            if left == 0 {
                return; // until the receiver reports that it is complete, or cannot read the rest
            }
            let size = chunk(left, false);
            let skip = outward.len - written - size;
            let (whole, part, registered);
            let here: Option<(&[Piece], usize)> = match outward.origin {
                Origin::Op(op) => match host.op(self.peer, op) {
                    Some(Op::Message { payload, .. } | Op::Write(payload, _)) => match payload.pieces() {
                        Ok(pieces) => Some((pieces, skip)),
                        Err(bytes) => {
                            whole = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
                            Some((&whole, skip))
                        }
                    },
                    _ => None,
                },
                Origin::Served(op) => {
                    let who = accessor(common, host, self.peer);
                    let place = (skip, size);
                    let find = |piece| {
                        RegisteredMemory::find(
                            &common.shared.domain,
                            who,
                            piece,
                            place,
                            MrAccess::REMOTE_READ,
                        )
                    };
                    let served = self.served.reads.iter().find(|served| served.op == op);
                    registered = served.and_then(|read| find(read.piece).ok().flatten());
                    part = registered.as_ref().map(|found| Piece::new(found.addr, size));
                    part.is_some().then_some((part.as_slice(), 0))
                }
            };
            let Some((here, from)) = here else {
                own.word64(pair::WRITTEN).store(pack(ticket, written) | GIVEN_UP, Ordering::Release);
                single.outward = None;
                return self.ring(common);
            };
            budget = budget.saturating_sub(size);
            own.word64(pair::CLAIMED).store(pack(ticket, written + size), Ordering::Relaxed);
            let Some(writing) = access_token::claim(own.word64(pair::WRITING), target, ticket) else {
                single.outward = None;
                return;
            };
            crash_point!("single.write");
            let there = copy::runs(&outward.there, skip, size);
            // SAFETY: the payload is lent until the operation ends, or registered while its grant is held; it is only
            // read.
            let result = unsafe { up.parts.process.write(there, copy::runs(here, from, size)) };
            crash_point!("single.written");
            match result {
                Ok(()) => {
                    outward.written += size;
                    common.counts.single_written += size as u64;
                    own.word64(pair::WRITTEN).store(pack(ticket, outward.written), Ordering::Release);
                }
                Err(fault) => {
                    own.word64(pair::CLAIMED).store(pack(ticket, written), Ordering::Relaxed);
                    own.word64(pair::WRITTEN).store(pack(ticket, written) | GIVEN_UP, Ordering::Release);
                    single.outward = None;
                    if fault == Fault::Denied {
                        single.may_write = Some(false);
                        tracing::debug!(target: "ofi::shm::ep_data", "single copies with a peer's process end: the kernel forbids them now");
                    }
                }
            }
            drop(writing);
            self.ring(common);
        }
    }
}
