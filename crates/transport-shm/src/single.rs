//! Large messages in application memory without a stop on the way: the receiver reads from the sender's memory and the sender
//! writes to the receiver's, from both ends, until they meet.
//!
//! 1. An `Announce` says where its payload lies (`LENT`), and whether the sender can write (`WRITES`).
//! 2. The receiver begins to copy from the front, and tells the sender by `Share` where its memory is. The sender copies from
//!    the end, if it is there to do so: a sender that computes holds nothing up. Each says in its pair memory how far it has
//!    got (`FRONT`; `CLAIMED` and `WRITTEN`). Where the two overlap, bytes are copied twice, the same ones.
//! 3. The receiver sees that all is there, and answers `Done`.
//!
//! One message of a lane is copied so at a time. What cannot be copied (a page that is a device's, a right that was taken
//! away) is left to the other end, and if neither can, the message comes through the bulk ring, from its beginning.
//!
//! Nobody writes into memory whose operation has ended, and nobody believes what was read out of such:
//! S1. A sender stores `WRITING`, fences, looks whether `TARGET` still has the ticket, and only then writes; `WRITING` goes
//!     back to 0 after each chunk. A receiver that ends a receive for whatever reason takes `TARGET` away, fences, and waits
//!     until `WRITING` is not the ticket any more, or the process of the sender has ended: [`Lane::withdraw`].
//! S2. A sender takes `LENT` away when its operation ends ([`Lend`]), before the application has the memory back. A receiver
//!     looks at it after each read, and drops what it read if the ticket is gone.
//! S3. `CLAIMED` and `WRITTEN` begin with 16 bits of the ticket, and a sender sets them at each `Share`, of which a ring of
//!     replies holds fewer than 64: what stands there of another message is never taken for this one's.
//!
//! A peer that lies about any of it spoils its own messages, or its own memory (`docs/threat-model.md`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use ofi_api::Piece;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Host;
use ofi_ring::crash_point;

use crate::Shm;
use crate::choice::{Choice, Way};
use crate::cma::{self, Fault};
use crate::command::{Words, Writer, flag, kind};
use crate::lane::{Broken, Common, Lane, Link};
use crate::layout::pair;
use crate::message::{Op, Token};
use crate::pair::OwnPair;
use crate::settings::SingleCopy;
use crate::sys;

/// The longest chunk: some 60 us of a system call, for which ending an operation may have to wait.
const LONGEST_CHUNK: usize = 512 << 10;
/// The shortest, but for what is left: a call costs as much as copying this.
const SHORTEST_CHUNK: usize = 64 << 10;
/// Bytes that one poll copies, each way: the application and the other peers wait.
const TURN: usize = 1 << 20;
/// How long ending a receive waits for a sender that writes into it: a chunk, or as long as the sender's process is kept
/// from running in the middle of one.
const BOUND: Duration = Duration::from_secs(5);

/// Bits of a progress word: a part of the ticket, whether the writer has given up, and bytes.
const TICKET_SHIFT: u32 = 48;
const GIVEN_UP: u64 = 1 << 47;
const BYTES: u64 = GIVEN_UP - 1;

fn pack(ticket: u64, bytes: usize) -> u64 {
    ticket << TICKET_SHIFT | bytes as u64 & BYTES
}

/// Bytes, and whether the writer has given up, if the word is of this ticket.
fn unpack(word: u64, ticket: u64) -> Option<(usize, bool)> {
    (word >> TICKET_SHIFT == ticket & 0xFFFF).then_some(((word & BYTES) as usize, word & GIVEN_UP != 0))
}

/// How much of what is left to copy next. Both ends take less and less, so that they are through at the same time.
fn chunk(left: usize, alone: bool) -> usize {
    let share = if alone { left } else { (left / 8 * 3).next_multiple_of(4096) };
    let share = if share + SHORTEST_CHUNK / 2 >= left { left } else { share };
    share.clamp(SHORTEST_CHUNK, LONGEST_CHUNK).min(left)
}

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

/// A payload of which it is decided how it comes.
struct Waiting {
    token: Token,
    into: SlotId,
    len: usize,
    way: Way,
}

/// A payload that is being copied to here.
struct Inward {
    token: Token,
    into: SlotId,
    len: usize,
    /// 0 before the sender was asked.
    ticket: u64,
    /// Bytes read, from the front.
    front: usize,
    /// This end can read, as far as it knows.
    reads: bool,
}

/// A payload that is being copied from here.
struct Outward {
    op: SlotId,
    ticket: u64,
    len: usize,
    /// Where it goes: addresses of the peer.
    there: Box<[Piece]>,
    /// Bytes written, from the end.
    written: usize,
}

// SAFETY: addresses of another process, which this one never follows.
unsafe impl Send for Outward {}

/// What a lane has for single copies; made at the first message that may be copied so.
#[derive(Default)]
pub struct Single {
    may_read: Option<bool>,
    may_write: Option<bool>,
    waiting: VecDeque<Waiting>,
    inward: Option<Inward>,
    outward: Option<Outward>,
    /// Tickets given out, of receives and of payloads that are lent.
    tickets: u64,
    lends: u64,
    choice: Choice,
    /// Measured payloads under way, all of them this way, and since when the next of them is under way.
    flying: usize,
    way: Option<Way>,
    since: Option<Instant>,
}

impl Single {
    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        self.inward.is_some() || self.outward.is_some() || !self.waiting.is_empty()
    }
}

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
    /// Whether this end may read the peer's memory, write there with `write`. Asks the kernel once.
    fn may_copy(&mut self, common: &mut Common, write: bool) -> bool {
        let Some(up) = self.up() else { return false };
        let process = up.parts.process;
        let single = self.single.get_or_insert_default();
        let known = if write { &mut single.may_write } else { &mut single.may_read };
        *known.get_or_insert_with(|| {
            let may = if write { process.may_write() } else { process.may_read() };
            if !may {
                common.counts.single_denied += 1;
                tracing::debug!(target: "ofi::shm::ep_data", pid = process.pid, write, "single copies are not possible");
            }
            may
        })
    }

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

    /// Moves single copies on, either way.
    pub fn move_single<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        self.copy_out(common, host);
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
                    self.withdraw(Instant::now() + BOUND);
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
    fn copy_out<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) {
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

    /// Whether a poll would move a single copy.
    pub fn has_copies_to_move(&self) -> bool {
        let (Some(Link { up: Some(up), .. }), Some(single)) = (&self.link, &self.single) else {
            return false;
        };
        let its = |offset, ticket| {
            unpack(cma::word(&up.parts.pair, offset).load(Ordering::Acquire), ticket).unwrap_or_default()
        };
        let inward = single.inward.as_ref().is_some_and(|inward| {
            let shared = inward.token.high & flag::WRITES != 0;
            let (ticket, left) = (inward.ticket, inward.len - inward.front.min(inward.len));
            let (written, given_up) = its(pair::WRITTEN, ticket);
            let reads = inward.reads && left > its(pair::CLAIMED, ticket).0;
            let idle = cma::word(&up.parts.pair, pair::WRITING).load(Ordering::Acquire) != ticket;
            ticket == 0 || !shared || reads || (idle && (written >= left || given_up))
        });
        let outward = single.outward.as_ref().is_some_and(|outward| {
            let front = its(pair::FRONT, outward.ticket).0;
            outward.len > front.saturating_add(outward.written)
        });
        inward || outward || (single.flying == 0 && !single.waiting.is_empty())
    }

    /// Takes away what the peer may write to, and waits until it does not (S1), at the latest until `deadline`.
    pub fn withdraw(&mut self, deadline: Instant) {
        let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &self.single) else { return };
        own.word64(pair::TARGET).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        crash_point!("close.withdraw");
        if single.tickets == 0 {
            return;
        }
        let writing: &AtomicU64 = cma::word(&up.parts.pair, pair::WRITING);
        let mut looks = 0u32;
        while writing.load(Ordering::SeqCst) == single.tickets {
            if sys::has_ended(up.parts.process.pid) {
                return;
            }
            if Instant::now() >= deadline {
                tracing::error!(
                    target: "ofi::shm::ep_data",
                    peer = self.peer,
                    "a peer that was writing into a receive has not stopped: its memory may still be written"
                );
                return;
            }
            looks += 1;
            if looks > 64 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Takes away what the peer may read of this end's memory, and write to.
    pub fn close_copies(&mut self, deadline: Instant) {
        if self.single.is_some()
            && let Some(Link { own, .. }) = &self.link
        {
            (0..pair::LENT_SLOTS)
                .for_each(|slot| own.word64(pair::LENT + 8 * slot).store(0, Ordering::SeqCst));
        }
        self.withdraw(deadline);
    }

    /// Whether something is being copied from memory to memory: the lane has to be polled.
    pub fn copies(&self) -> bool {
        self.single.as_ref().is_some_and(|single| single.is_busy())
    }

    /// Receives may have ended without this lane: see [`ofi_core::transport::Lanes::settle_receives`].
    pub fn settle_receives<H: Host<Shm>>(&mut self, host: &H) {
        let inward = self.single.as_ref().and_then(|single| single.inward.as_ref());
        if inward.is_some_and(|inward| host.receiving(inward.into).is_none()) {
            self.withdraw(Instant::now() + BOUND);
        }
    }
}

/// How long closing waits; see [`BOUND`].
pub fn deadline() -> Instant {
    Instant::now() + BOUND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_another_ticket_says_nothing() {
        for (ticket, bytes) in [(1, 0), (7, 1 << 20), (0x1_0000, 3), (u64::MAX, BYTES as usize)] {
            let word = pack(ticket, bytes);
            assert_eq!(unpack(word, ticket), Some((bytes, false)));
            assert_eq!(unpack(word | GIVEN_UP, ticket), Some((bytes, true)));
            assert_eq!(unpack(word, ticket.wrapping_add(1)), None);
        }
    }

    #[test]
    fn two_ends_meet_in_few_chunks_and_one_alone_in_fewer() {
        for len in [1, 4_096, SHORTEST_CHUNK - 1, SHORTEST_CHUNK, 100_000, 1 << 20, (4 << 20) + 17, 64 << 20]
        {
            let (mut front, mut written, mut calls) = (0, 0, 0);
            while front + written < len {
                let size = chunk(len - front - written, false);
                assert!(size > 0 && size <= LONGEST_CHUNK && front + written + size <= len);
                if calls % 2 == 0 {
                    front += size
                } else {
                    written += size
                }
                calls += 1;
            }
            assert!(calls <= 8 + len / LONGEST_CHUNK, "{len}: {calls}");
            assert_eq!(chunk(len, true), len.min(LONGEST_CHUNK));
        }
    }
}
