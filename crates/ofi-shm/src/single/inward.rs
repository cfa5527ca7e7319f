//! The receiving end of a long transfer: it chooses the path, and copies from the front. The transfer is a message, a
//! peer's write to a region of this end, or this end's own read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ofi_api::{Errno, MrAccess, Piece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;
use ofi_ring::{access_token, crash_point};

use super::ending::trusts_writers;
use super::{BYTES, TURN, chunk, deadline, pack, unpack};
use crate::Shm;
use crate::cma::{self, Fault};
use crate::command::{CommandWriter, flag, kind};
use crate::common::{Common, accessor};
use crate::layout::pair;
use crate::op::{Op, ReadPath};
use crate::openings::{Opening, RegisteredMemory};
use crate::path::Path;
use crate::peer::link::Link;
use crate::peer::single::{Inward, Queued};
use crate::peer::{Broken, Peer};
use crate::settings::SingleCopy;
use crate::token::{Sink, Token};

/// The state of an inward copy after a poll.
enum CopyStatus {
    /// It continues at the next poll.
    Busy,
    /// It is complete.
    Whole,
    /// Neither end can copy.
    Failed,
    /// No operation waits for it any more.
    Unwanted,
    /// The peer may not, or no longer, write here.
    Refused(Errno),
}

impl Peer {
    /// Whether the settings of both ends permit direct copies of this length.
    pub fn is_single(&self, common: &Common, len: usize) -> bool {
        let wanted = common.single != SingleCopy::Never && len >= common.single_size && len as u64 <= BYTES;
        wanted && self.up().is_some_and(|up| up.parts.process.token.page != 0)
    }

    /// Chooses the path of an announced payload, if there is a choice.
    fn choose_path(&mut self, common: &mut Common, token: &Token, sink: Sink, len: usize) -> Option<Path> {
        if !self.is_single(common, len) {
            return None;
        }
        let readable = token.high & flag::LENT != 0
            && token.offset.checked_add(len as u64).is_some()
            && self.may_copy(common, false);
        let single = self.single.get_or_insert_default();
        match common.single {
            SingleCopy::Always => (readable || token.high & flag::WRITES != 0).then_some(Path::Single),
            _ => readable.then(|| single.choices[usize::from(sink.is_access())].choose(len)),
        }
    }

    /// Queues an announced payload for this path, after those on another.
    fn queue_transfer<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (token, sink, len): (Token, Sink, usize),
        path: Path,
    ) {
        self.single.get_or_insert_default().waiting.push_back(Queued { token, sink, len, path });
        self.busy = true;
        self.start_waiting(common, host);
    }

    /// Starts waiting payloads on the path that is in use, because paths that overlap could not be compared. One single
    /// copy runs at a time.
    fn start_waiting<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        while let Some(single) = &mut self.single
            && let Some(next) = single.waiting.front()
        {
            let same = single.path == Some(Path::Ring) && next.path == Path::Ring;
            if single.in_flight > 0 && !same {
                return;
            }
            if single.in_flight == 0 && common.single == SingleCopy::Auto {
                single.since = Some(Instant::now());
            }
            let Some(Queued { token, sink, len, path }) = single.waiting.pop_front() else { return };
            (single.in_flight, single.path) = (single.in_flight + 1, Some(path));
            match path {
                Path::Ring => self.ask(common, host, token, sink, len, true),
                Path::Single => {
                    let reads = token.high & flag::LENT != 0 && single.may_read == Some(true);
                    // If there are payloads in both directions, each end copies the one that it receives, which needs
                    // no messages between them and copies no byte twice.
                    let both_ways = self.link.as_ref().is_some_and(|link| link.own.lends());
                    let shared = token.high & flag::WRITES != 0 && trusts_writers() && !(reads && both_ways);
                    single.inward =
                        Some(Inward { token, sink, len, ticket: 0, front: 0, reads, shared, opened: None });
                    crash_point!("single.begin");
                }
            }
        }
    }

    /// A measured payload has arrived.
    pub fn transfer_completed<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        sink: Sink,
        len: usize,
    ) {
        let Some(single) = &mut self.single else { return };
        if let (Some(path), Some(since)) = (single.path, single.since) {
            let now = Instant::now();
            let cost = (now - since).as_nanos() as f32 / len.max(1) as f32;
            single.choices[usize::from(sink.is_access())].measured(path, len, cost);
            single.since = Some(now);
        }
        self.transfer_ended(common, host);
    }

    /// A measured payload is no longer in flight.
    pub fn transfer_ended<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        if let Some(single) = &mut self.single {
            single.in_flight = single.in_flight.saturating_sub(1);
            self.start_waiting(common, host);
        }
    }

    /// Advances the current inward copy, and starts waiting ones.
    pub(super) fn copy_all_in<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) {
        let mut budget = TURN;
        while let Some(mut inward) = self.single.as_mut().and_then(|single| single.inward.take()) {
            let status = self.copy_in(common, host, &mut inward, &mut budget);
            let Inward { token, sink, len, front, .. } = inward;
            if let CopyStatus::Busy = status {
                if let Some(single) = &mut self.single {
                    single.inward = Some(inward);
                }
                return;
            }
            if let CopyStatus::Unwanted = status {
                self.withdraw(deadline());
            }
            drop(inward); // closes the registered memory
            match status {
                CopyStatus::Busy => {}
                CopyStatus::Whole => {
                    let counts = &mut common.counts;
                    let kind = if sink.is_access() {
                        &mut counts.single_accesses
                    } else {
                        &mut counts.single_messages
                    };
                    *kind += 1;
                    counts.single_received += (len - front.min(len)) as u64;
                    match sink {
                        Sink::Receive(into) => {
                            host.received(into, Ok(()));
                            self.done(common, token.op, Ok(()));
                        }
                        Sink::Write(id) => self.written(common, host, id, Ok(())),
                        Sink::Read(id) => {
                            self.finish(host, id, Ok(()));
                            self.tell_read(common, token, None);
                        }
                    }
                    crash_point!("single.done");
                    self.transfer_completed(common, host, sink, len);
                }
                CopyStatus::Failed => {
                    common.counts.single_failed += 1;
                    if let Some(single) = &mut self.single {
                        single.choices[usize::from(sink.is_access())].failed(len);
                    }
                    self.ask(common, host, token, sink, len, false);
                    self.transfer_ended(common, host);
                }
                CopyStatus::Unwanted => {
                    match sink {
                        Sink::Receive(_) => self.discard(common, token),
                        Sink::Read(id) => self.refuse_offer(common, host, token, id),
                        Sink::Write(_) => {} // its writer is gone
                    }
                    self.transfer_ended(common, host);
                }
                CopyStatus::Refused(errno) => {
                    if let Sink::Write(id) = sink {
                        self.written(common, host, id, Err(errno));
                    }
                    self.transfer_ended(common, host);
                }
            }
        }
    }

    /// Whether the payload that is being copied to this end is still wanted.
    pub(super) fn is_wanted<H: Upcalls<Shm>>(&self, host: &mut H, sink: Sink) -> bool {
        match sink {
            Sink::Receive(into) => host.receiving(into).is_some(),
            Sink::Write(id) => self.served.writes.get(id).is_some(),
            Sink::Read(id) => match host.op(self.peer, id) {
                Some(Op::Read { coming, .. }) => *coming != ReadPath::Unwanted,
                _ => false,
            },
        }
    }

    /// Declines the peer's offer to a read.
    fn refuse_offer<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H, token: Token, id: SlotId) {
        self.finish(host, id, Err(Errno::ECANCELED));
        self.tell_read(common, token, Some(Errno::ECANCELED));
    }

    /// Reads from the front, and checks what the sender has written.
    fn copy_in<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        inward: &mut Inward,
        budget: &mut usize,
    ) -> CopyStatus {
        if !self.is_wanted(host, inward.sink) {
            return CopyStatus::Unwanted;
        }
        if inward.ticket == 0 {
            match self.share(common, host, inward) {
                Ok(true) => self.ring(common),
                Ok(false) => return CopyStatus::Busy,
                Err(errno) => return CopyStatus::Refused(errno),
            }
        }
        let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &mut self.single) else {
            return CopyStatus::Busy;
        };
        let (ticket, len) = (inward.ticket, inward.len);
        let target = own.word64(pair::TARGET);
        let writes = inward.shared;
        // The registration was closed, or a counter was bound to it: the sender starts no more chunks; those written
        // count.
        let alone = inward.opened.is_some() && target.load(Ordering::SeqCst) != ticket;
        let progress = |offset| {
            let word = cma::word(&up.parts.pair, offset).load(Ordering::Acquire);
            if writes { unpack(word, ticket).unwrap_or_default() } else { (0, false) }
        };
        let is_writing =
            || writes && access_token::is_writing(cma::word(&up.parts.pair, pair::WRITING), ticket);
        if alone && is_writing() {
            return CopyStatus::Busy;
        }
        let claimed = if alone { pair::WRITTEN } else { pair::CLAIMED };
        let front = own.word64(pair::FRONT);
        let mut refused = None;
        while inward.reads {
            let left = len.saturating_sub(inward.front).saturating_sub(progress(claimed).0);
            if left == 0 {
                break;
            }
            if *budget == 0 {
                return CopyStatus::Busy;
            }
            let size = chunk(left, !writes || alone);
            *budget = budget.saturating_sub(size);
            front.store(pack(ticket, inward.front + size), Ordering::Release);
            let there = std::ptr::without_provenance_mut::<u8>(inward.token.offset as usize);
            let there = std::iter::once((there.wrapping_add(inward.front), size));
            let process = &up.parts.process;
            let read = match inward.sink {
                Sink::Receive(into) => {
                    let Some(receiving) = host.receiving(into) else { return CopyStatus::Unwanted };
                    let here = copy::runs(receiving.pieces, inward.front, size);
                    // SAFETY: the pieces are lent for this receive, which is open.
                    unsafe { process.read(there, here) }
                }
                Sink::Read(id) => {
                    let Some(Op::Read { pieces, .. }) = host.op(self.peer, id) else {
                        return CopyStatus::Unwanted;
                    };
                    // SAFETY: the pieces are lent until the operation ends, and it is open.
                    unsafe { process.read(there, copy::runs(pieces, inward.front, size)) }
                }
                Sink::Write(id) => {
                    let Some(served) = self.served.writes.get(id) else { return CopyStatus::Unwanted };
                    let who = accessor(common, host, self.peer);
                    let part = (inward.front, size);
                    match RegisteredMemory::find(
                        &common.shared.domain,
                        who,
                        served.write.remote()[0],
                        part,
                        MrAccess::REMOTE_WRITE,
                    ) {
                        // SAFETY: registered memory that the peer may write, and the grant is held until this is over.
                        Ok(Some(to)) => unsafe { process.read(there, std::iter::once((to.addr, size))) },
                        Ok(None) => Err(Fault::Memory),
                        Err(errno) => {
                            refused = Some(errno);
                            break;
                        }
                    }
                }
            };
            crash_point!("single.read");
            let slot = inward.token.key as usize & 0xFF;
            let lent = slot < pair::LENT_SLOTS
                && access_token::is_still_lent(
                    cma::word(&up.parts.pair, pair::LENT + 8 * slot),
                    inward.token.key,
                );
            if read.is_ok() && lent {
                inward.front += size;
                common.counts.single_read += size as u64;
            } else {
                // This end cannot read. The sender may write, or the ring takes over; a denial applies to all later
                // payloads.
                inward.reads = false;
                front.store(pack(ticket, inward.front), Ordering::Release);
                if read == Err(Fault::Denied) {
                    single.may_read = Some(false);
                    tracing::debug!(target: "ofi::shm::ep_data", "single copies with a peer's process end: the kernel forbids them now");
                }
            }
        }
        let (written, given_up) = progress(pair::WRITTEN);
        let whole = inward.front.saturating_add(written) >= len;
        if !whole && refused.is_none() && (inward.reads || (writes && !given_up && !alone)) {
            return CopyStatus::Busy;
        }
        // S1: from here on the sender starts no chunk.
        access_token::clear(target);
        access_token::settle();
        if is_writing() {
            return CopyStatus::Busy; // the sender is in the middle of a chunk, whose bytes have already arrived
        }
        crash_point!("single.whole");
        match (refused, inward.sink) {
            (Some(errno), _) => CopyStatus::Refused(errno),
            (None, Sink::Write(id)) if whole => {
                let data = self.served.writes.get(id).and_then(|served| served.write.data);
                match data {
                    Some(data) if !host.remote_write(self.peer, data, len) => CopyStatus::Busy,
                    _ => CopyStatus::Whole,
                }
            }
            (None, _) if whole => CopyStatus::Whole,
            (None, _) => CopyStatus::Failed,
        }
    }

    /// Tells the peer that a read of its offer has ended.
    fn tell_read(&mut self, common: &mut Common, token: Token, error: Option<Errno>) {
        let errno = error.map_or(0, |errno| errno.get() as u64);
        self.reply(common, kind::DONE | flag::SERVED, [token.op, errno, 0]);
    }

    /// Issues a copy's ticket and, if the sender can write, tells it where. Returns `false` if there is no room yet.
    ///
    /// # Errors
    /// Why the peer may not write there.
    fn share<H: Upcalls<Shm>>(
        &mut self,
        common: &Common,
        host: &mut H,
        inward: &mut Inward,
    ) -> Result<bool, Errno> {
        let (Some(Link { own, replies, up: Some(up), .. }), Some(single)) =
            (&mut self.link, &mut self.single)
        else {
            return Ok(false);
        };
        // This end finishes a single chunk before the other end could find out about it.
        inward.shared &= !inward.reads || chunk(inward.len, false) < inward.len;
        let ticket = single.tickets + 1;
        own.word64(pair::FRONT).store(pack(ticket, 0), Ordering::Relaxed);
        let mut registered = None;
        let one;
        let pieces: &[Piece] = match inward.sink {
            Sink::Receive(into) => match host.receiving(into) {
                Some(receiving) => receiving.pieces,
                None => return Ok(false),
            },
            Sink::Read(id) => match host.op(self.peer, id) {
                Some(Op::Read { pieces, .. }) => pieces,
                _ => return Ok(false),
            },
            Sink::Write(id) => {
                let Some(served) = self.served.writes.get(id) else { return Ok(false) };
                let who = accessor(common, host, self.peer);
                let (piece, all) = (served.write.remote()[0], (0, inward.len));
                match RegisteredMemory::find(&common.shared.domain, who, piece, all, MrAccess::REMOTE_WRITE)?
                {
                    Some(found) => {
                        one = [Piece::new(found.addr, inward.len)];
                        registered = Some((found, piece.key));
                        &one
                    }
                    None => {
                        inward.shared = false;
                        &[]
                    }
                }
            }
        };
        if inward.shared {
            let runs = || copy::runs(pieces, 0, inward.len);
            let count = runs().count();
            let Ok(mut slot) = replies.reserve(8 * (4 + 2 * count)) else {
                self.busy = true;
                return Ok(false);
            };
            if let Some((to, key)) = registered {
                let writer = Some((Arc::clone(&up.parts.pair), up.parts.process.pid));
                let opening = Opening { own: Arc::clone(own), word: pair::TARGET, ticket, writer };
                inward.opened = to.open(&common.shared.domain, key, opening);
                if inward.opened.is_none() {
                    return Ok(false); // just closed: the next poll reports why
                }
            } else {
                own.word64(pair::TARGET).store(ticket, Ordering::Release);
            }
            // SAFETY: four words and two for each piece were reserved.
            let mut body = unsafe { CommandWriter::new(slot.body()) };
            [inward.token.op, ticket, inward.len as u64, count as u64]
                .into_iter()
                .for_each(|word| body.word(word));
            for (addr, len) in runs() {
                body.word(addr.addr() as u64);
                body.word(len as u64);
            }
            slot.publish(kind::SHARE | (inward.token.high & flag::SERVED));
        }
        (single.tickets, inward.ticket) = (ticket, ticket);
        crash_point!("single.shared");
        Ok(true)
    }

    /// The owner of the memory that this end reads permits a direct copy.
    pub fn take_offer<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        op: u64,
        (key, offset): (u64, u64),
    ) -> Result<(), Broken> {
        let id = SlotId::from_wire(op);
        let Some(Op::Read { len, coming, .. }) = host.op(self.peer, id) else { return Err(Broken) };
        let token = Token { op, high: high | flag::SERVED, key, offset };
        match coming {
            ReadPath::Asked => {}
            ReadPath::Unwanted => {
                self.refuse_offer(common, host, token, id);
                return Ok(());
            }
            ReadPath::Offered | ReadPath::Parts(_) => return Err(Broken),
        }
        let len = *len;
        *coming = ReadPath::Offered;
        crash_point!("offer.taken");
        self.start_transfer(common, host, token, Sink::Read(id), len);
        Ok(())
    }

    /// Starts the transfer of a payload on the chosen path.
    pub fn start_transfer<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        token: Token,
        sink: Sink,
        len: usize,
    ) {
        match self.choose_path(common, &token, sink, len) {
            Some(path) => self.queue_transfer(common, host, (token, sink, len), path),
            None => self.ask(common, host, token, sink, len, false),
        }
    }
}
