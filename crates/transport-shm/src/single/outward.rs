//! The sender's end: lending a payload, and writing it from its end.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ofi_api::Piece;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Host;
use ofi_ring::crash_point;

use super::{BYTES, GIVEN_UP, Outward, TURN, chunk, pack, unpack};
use crate::Shm;
use crate::cma::{self, Fault};
use crate::command::{Words, flag};
use crate::lane::{Broken, Common, Lane, Link};
use crate::layout::pair;
use crate::message::Op;
use crate::pair::OwnPair;
use crate::settings::SingleCopy;

/// A payload that the receiver may read, until this goes.
pub struct Lend {
    own: Arc<OwnPair>,
    slot: usize,
}

impl Drop for Lend {
    fn drop(&mut self) {
        self.own.word64(pair::LENT + 8 * self.slot).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst); // whatever the application stores there is seen after this
    }
}

impl Lane {
    /// Lends a payload to the peer, if it may be copied from memory to memory: flags and words of its announcement, and what
    /// the operation keeps.
    pub fn lend(
        &mut self,
        common: &mut Common,
        pieces: &[Piece],
        len: usize,
    ) -> Option<(u32, [u64; 2], Option<Box<Lend>>)> {
        if common.single == SingleCopy::Never || len < common.single_size {
            return None;
        }
        if self.up().is_none_or(|up| up.parts.process.token.page == 0) {
            return None; // nobody there yet, or it does not want it
        }
        let mut high = if self.may_copy(common, true) { flag::WRITES } else { 0 };
        let (Some(Link { own, .. }), Some(single)) = (&self.link, &mut self.single) else { return None };
        let mut words = [0; 2];
        let mut lend = None;
        if let [one] = pieces {
            let slot = single.lends as usize % pair::LENT_SLOTS;
            let word = own.word64(pair::LENT + 8 * slot);
            if word.load(Ordering::Relaxed) == 0 {
                single.lends += 1;
                let ticket = single.lends << 8 | slot as u64;
                word.store(ticket, Ordering::Relaxed); // published by the announcement
                high |= flag::LENT;
                words = [ticket, one.addr.addr() as u64];
                lend = Some(Box::new(Lend { own: Arc::clone(own), slot }));
            }
        }
        (high != 0).then_some((high, words, lend))
    }

    /// The receiver says where this end may write.
    pub fn take_share<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
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
        let op = SlotId::from_wire(op);
        let Some(Op::Message { payload, .. }) = host.op(self.peer, op) else { return Err(Broken) };
        if len > room || len > payload.len() as u64 {
            return Err(Broken);
        }
        let may = self.may_copy(common, true);
        let (Some(Link { own, .. }), Some(single)) = (&self.link, &mut self.single) else { return Ok(()) };
        own.word64(pair::CLAIMED).store(pack(ticket, 0), Ordering::Relaxed);
        let given_up = if may { 0 } else { GIVEN_UP };
        own.word64(pair::WRITTEN).store(pack(ticket, 0) | given_up, Ordering::Release);
        let outward = Outward { op, ticket, len: len as usize, there: there.into(), written: 0 };
        single.outward = may.then_some(outward);
        self.busy = true;
        if !may {
            self.ring(common);
        }
        crash_point!("single.asked");
        Ok(())
    }

    /// Writes from the end.
    pub(super) fn copy_out<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
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
                return; // until the receiver says that it is whole, or cannot read the rest
            }
            let Some(Op::Message { payload, .. }) = host.op(self.peer, outward.op) else {
                own.word64(pair::WRITTEN).store(pack(ticket, written) | GIVEN_UP, Ordering::Release);
                single.outward = None;
                return self.ring(common);
            };
            let size = chunk(left, false);
            budget = budget.saturating_sub(size);
            own.word64(pair::CLAIMED).store(pack(ticket, written + size), Ordering::Relaxed);
            let writing = own.word64(pair::WRITING);
            writing.store(ticket, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            crash_point!("single.write");
            let result = if target.load(Ordering::SeqCst) == ticket {
                let skip = outward.len - written - size;
                let there = copy::runs(&outward.there, skip, size);
                let whole;
                let here: &[Piece] = match payload.pieces() {
                    Ok(pieces) => pieces,
                    Err(bytes) => {
                        whole = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
                        &whole
                    }
                };
                // SAFETY: the payload is lent until the operation ends; it is only read.
                unsafe { up.parts.process.write(there, copy::runs(here, skip, size)) }
            } else {
                writing.store(0, Ordering::Release);
                single.outward = None;
                return;
            };
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
                    }
                }
            }
            writing.store(0, Ordering::Release);
            self.ring(common);
        }
    }
}
