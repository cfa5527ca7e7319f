//! The receiver's end: which way a payload comes, and reading it from the front.

use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Host;
use ofi_ring::crash_point;

use super::{BYTES, Inward, TURN, Waiting, chunk, deadline, pack, unpack};
use crate::Shm;
use crate::choice::Way;
use crate::cma::{self, Fault};
use crate::command::{Writer, flag, kind};
use crate::lane::{Common, Lane, Link};
use crate::layout::pair;
use crate::message::Token;
use crate::settings::SingleCopy;

/// What became of an inward copy for now.
enum Stand {
    /// It goes on at the next poll.
    Busy,
    /// It is whole.
    Whole,
    /// Neither end can copy.
    Failed,
    /// Nobody waits for it any more.
    Unwanted,
}

impl Lane {
    /// How an announced payload comes, if there is a choice.
    pub fn pull_way(&mut self, common: &mut Common, token: &Token, len: usize) -> Option<Way> {
        if common.single == SingleCopy::Never || len < common.single_size || len as u64 > BYTES {
            return None;
        }
        if self.up().is_none_or(|up| up.parts.process.token.page == 0) {
            return None; // it does not want it
        }
        let readable = token.high & flag::LENT != 0
            && token.offset.checked_add(len as u64).is_some()
            && self.may_copy(common, false);
        let single = self.single.get_or_insert_default();
        match common.single {
            SingleCopy::Always => (readable || token.high & flag::WRITES != 0).then_some(Way::Single),
            _ => readable.then(|| single.choice.choose(len)),
        }
    }

    /// Has an announced payload come this way, after those that come another.
    pub fn pull_by<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (token, into, len): (Token, SlotId, usize),
        way: Way,
    ) {
        self.single.get_or_insert_default().waiting.push_back(Waiting { token, into, len, way });
        self.busy = true;
        self.start_waiting(common, host);
    }

    /// Starts what waits, as far as it goes the way of what is under way: ways that overlap could not be compared. One single
    /// copy at a time.
    fn start_waiting<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        while let Some(single) = &mut self.single
            && let Some(next) = single.waiting.front()
        {
            let same = single.way == Some(Way::Ring) && next.way == Way::Ring;
            if single.flying > 0 && !same {
                return;
            }
            if single.flying == 0 && common.single == SingleCopy::Auto {
                single.since = Some(Instant::now());
            }
            let Some(Waiting { token, into, len, way }) = single.waiting.pop_front() else { return };
            (single.flying, single.way) = (single.flying + 1, Some(way));
            match way {
                Way::Ring => self.ask(common, host, token, into, len, true),
                Way::Single => {
                    let reads = token.high & flag::LENT != 0 && single.may_read == Some(true);
                    single.inward = Some(Inward { token, into, len, ticket: 0, front: 0, reads });
                    crash_point!("single.begin");
                }
            }
        }
    }

    /// A measured payload is here.
    pub fn landed<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H, len: usize) {
        let Some(single) = &mut self.single else { return };
        if let (Some(way), Some(since)) = (single.way, single.since) {
            let now = Instant::now();
            single.choice.measured(way, len, now - since);
            single.since = Some(now);
        }
        self.took_off(common, host);
    }

    /// A measured payload is not under way any more.
    fn took_off<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        if let Some(single) = &mut self.single {
            single.flying = single.flying.saturating_sub(1);
            self.start_waiting(common, host);
        }
    }

    /// Moves on what is being copied to here, and begins what waits.
    pub(super) fn copy_all_in<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        let mut budget = TURN;
        while let Some(mut inward) = self.single.as_mut().and_then(|single| single.inward.take()) {
            let stand = self.copy_in(common, host, &mut inward, &mut budget);
            let Inward { token, into, len, front, .. } = inward;
            match stand {
                Stand::Busy => {
                    if let Some(single) = &mut self.single {
                        single.inward = Some(inward);
                    }
                    return;
                }
                Stand::Whole => {
                    common.counts.single_messages += 1;
                    common.counts.single_received += (len - front.min(len)) as u64;
                    host.received(into, Ok(()));
                    self.done(common, token.op, Ok(()));
                    crash_point!("single.done");
                    self.landed(common, host, len);
                }
                Stand::Failed => {
                    common.counts.single_failed += 1;
                    if let Some(single) = &mut self.single {
                        single.choice.failed(len);
                    }
                    self.ask(common, host, token, into, len, false);
                    self.took_off(common, host);
                }
                Stand::Unwanted => {
                    self.withdraw(deadline());
                    self.discard(common, token);
                    self.took_off(common, host);
                }
            }
        }
    }

    /// Reads from the front, and looks what the sender has written.
    fn copy_in<H: Host<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        inward: &mut Inward,
        budget: &mut usize,
    ) -> Stand {
        if host.receiving(inward.into).is_none() {
            return Stand::Unwanted;
        }
        let shared = inward.token.high & flag::WRITES != 0;
        if inward.ticket == 0 {
            if !self.share(host, inward, shared) {
                return Stand::Busy;
            }
            self.ring(common);
        }
        let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &mut self.single) else {
            return Stand::Busy;
        };
        let (ticket, len) = (inward.ticket, inward.len);
        let said = |offset| {
            let word = cma::word(&up.parts.pair, offset).load(Ordering::Acquire);
            if shared { unpack(word, ticket).unwrap_or_default() } else { (0, false) }
        };
        let front = own.word64(pair::FRONT);
        while inward.reads {
            let left = len.saturating_sub(inward.front).saturating_sub(said(pair::CLAIMED).0);
            if left == 0 {
                break;
            }
            if *budget == 0 {
                return Stand::Busy;
            }
            let size = chunk(left, !shared);
            *budget = budget.saturating_sub(size);
            front.store(pack(ticket, inward.front + size), Ordering::Release);
            let Some(receiving) = host.receiving(inward.into) else { return Stand::Unwanted };
            let there = std::ptr::without_provenance_mut::<u8>(inward.token.offset as usize);
            let there = std::iter::once((there.wrapping_add(inward.front), size));
            // SAFETY: the pieces are lent for this receive, which is open.
            let read =
                unsafe { up.parts.process.read(there, copy::runs(receiving.pieces, inward.front, size)) };
            crash_point!("single.read");
            fence(Ordering::SeqCst);
            let slot = inward.token.key as usize & 0xFF;
            let lent = slot < pair::LENT_SLOTS
                && cma::word(&up.parts.pair, pair::LENT + 8 * slot).load(Ordering::Acquire)
                    == inward.token.key;
            if read.is_ok() && lent {
                inward.front += size;
                common.counts.single_read += size as u64;
            } else {
                // The other end may, or else the ring; what it says there is what it says everywhere.
                inward.reads = false;
                front.store(pack(ticket, inward.front), Ordering::Release);
                if read == Err(Fault::Denied) {
                    single.may_read = Some(false);
                }
            }
        }
        let (written, given_up) = said(pair::WRITTEN);
        let whole = inward.front.saturating_add(written) >= len;
        if !whole && (inward.reads || (shared && !given_up)) {
            return Stand::Busy;
        }
        // S1: from here on the sender begins nothing.
        own.word64(pair::TARGET).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if shared && cma::word(&up.parts.pair, pair::WRITING).load(Ordering::SeqCst) == ticket {
            return Stand::Busy; // it is in the middle of a chunk, of bytes that are there already
        }
        crash_point!("single.whole");
        if whole { Stand::Whole } else { Stand::Failed }
    }

    /// Gives a copy its ticket, and tells the sender where to write, if it can. `false`: not yet, for want of room.
    fn share<H: Host<Shm>>(&mut self, host: &mut H, inward: &mut Inward, shared: bool) -> bool {
        let (Some(Link { own, replies, .. }), Some(single)) = (&mut self.link, &mut self.single) else {
            return false;
        };
        let ticket = single.tickets + 1;
        own.word64(pair::FRONT).store(pack(ticket, 0), Ordering::Relaxed);
        if shared {
            let Some(receiving) = host.receiving(inward.into) else { return false };
            let runs = || copy::runs(receiving.pieces, 0, inward.len);
            let count = runs().count();
            let Ok(mut slot) = replies.reserve(8 * (4 + 2 * count)) else {
                self.busy = true;
                return false;
            };
            own.word64(pair::TARGET).store(ticket, Ordering::Release);
            // SAFETY: four words and two for each piece were reserved.
            let mut body = unsafe { Writer::new(slot.body()) };
            [inward.token.op, ticket, inward.len as u64, count as u64]
                .into_iter()
                .for_each(|word| body.word(word));
            for (addr, len) in runs() {
                body.word(addr.addr() as u64);
                body.word(len as u64);
            }
            slot.publish(kind::SHARE);
        }
        (single.tickets, inward.ticket) = (ticket, ticket);
        crash_point!("single.shared");
        true
    }
}
