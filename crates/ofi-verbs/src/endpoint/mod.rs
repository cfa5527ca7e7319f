//! All peers of a reliable datagram endpoint over its device.

mod connecting;
mod retiring;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{AddrFormat, Address, Errno, Error, Info, MsgOrder, Result};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Words, flag};
use ofi_core::transport::{Arm, PeerId, Upcalls};
use ofi_ring::cq_arm::{CqArm, may_sleep};
use rustc_hash::FxHashMap;

use crate::adapter::{Adapter, Ended, Posted as Request};
use crate::events::Failed;
use crate::peer::{Common, DETACHED, EndpointCounts, Link, NextStep, Peer, RecordPart};
use crate::rc::{Status, WorkCompletion};
use crate::timers::Timers;
use crate::wire::{HEAD, PAYLOAD, kind, unpack};
use crate::{Verbs, address, probe, settings};

/// Maximum payload bytes that one endpoint holds for receivers without room.
const KEPT_LIMIT: usize = 64 << 20;
/// Maximum number of completion queue entries that one poll reads.
const MAX_COMPLETIONS_PER_POLL: usize = 256;
/// Number of polls per check for connection events, if none is expected.
const POLLS_PER_EVENT_CHECK: u64 = 64;

/// The peers of one endpoint.
pub struct VerbsEndpoint {
    pub(crate) peers: Vec<Peer>,
    by_address: FxHashMap<SocketAddr, PeerId>,
    /// Peers by the identifiers and by the queue pairs of their connections.
    pub(crate) ids: FxHashMap<usize, PeerId>,
    pub(crate) qps: FxHashMap<u32, PeerId>,
    /// Peers with an established or pending connection, and some that have lost theirs since the last check.
    pub(crate) live: Vec<PeerId>,
    /// Number of connections in progress.
    pub(crate) connecting: usize,
    pub(crate) next_deadline: Option<Instant>,
    /// Completion queue entries that were read when it was armed.
    ready: VecDeque<WorkCompletion>,
    /// How often in a row the device did not report that a queue pair has returned its receives.
    unreturned: u32,
    /// Number of withdrawn registrations that were processed.
    withdrawals: u64,
    // Declared last: queue pairs are dropped before the memory that they use.
    pub(crate) common: Common,
}

impl VerbsEndpoint {
    pub(crate) fn new(domain: &Arc<DomainPart<Verbs>>, info: &Info, name: Option<&Address>) -> Result<Self> {
        let source = info.src_addr.as_ref().filter(|source| address::socket(source).is_ok());
        let wanted = domain.transport.source(name.or(source), info.addr_format)?;
        if wanted.is_ipv6() != (info.addr_format == AddrFormat::SockaddrIn6) {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!("{wanted} is not of the info's addr_format, {}", info.addr_format),
            ));
        }
        let incarnation = getrandom::u64().map_err(|error| Error::with(Errno::EIO, error.to_string()))?;
        let common = Common {
            domain: Arc::clone(domain),
            caps: info.caps,
            orders_messages: info.tx_attr.msg_order.intersects(MsgOrder::WAS | MsgOrder::RAS),
            adapter: Adapter::new(&domain.transport, wanted)?,
            kept: 0,
            kept_limit: KEPT_LIMIT,
            wishing: Vec::new(),
            dirty: Vec::new(),
            stalled: Vec::new(),
            grant: settings::PEER_CREDITS.get(),
            timers: Timers::read().map_err(settings::unusable)?,
            gone: None,
            closing: false,
            incarnation,
            attempts: 0,
            turn: 0,
            counts: EndpointCounts::default(),
        };
        Ok(Self {
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            ids: FxHashMap::default(),
            qps: FxHashMap::default(),
            live: Vec::new(),
            connecting: 0,
            next_deadline: None,
            ready: VecDeque::new(),
            unreturned: 0,
            withdrawals: domain.transport.withdrawals(),
            common,
        })
    }

    /// The peer with this address. A new peer is introduced to the core.
    pub(crate) fn peer_at<H: Upcalls<Verbs>>(&mut self, host: &mut H, address: SocketAddr) -> PeerId {
        if let Some(&peer) = self.by_address.get(&address) {
            return peer;
        }
        let peer = self.peers.len() as PeerId;
        self.peers.push(Peer::new(address));
        self.by_address.insert(address, peer);
        host.introduce(peer, &Address::from(address));
        peer
    }

    /// Prepares a peer for a post. The endpoint connects to it at first use.
    pub(crate) fn prepare(&mut self, peer: PeerId) -> Result<()> {
        let state = &self.peers[peer as usize];
        if state.ending.is_some() {
            return Err(Error::AGAIN); // the next poll ends it
        }
        if matches!(state.link, Link::Closed) {
            self.connect(peer);
            // Nothing is queued on the peer yet: the caller gets the error, and does not retry forever.
            if let Some(errno) = self.peers[peer as usize].ending.take() {
                return Err(Error::with(
                    errno,
                    match self.common.gone {
                        Some(_) => {
                            "the device is lost; close the endpoint and its domain, and call getinfo again"
                        }
                        None => {
                            "the device cannot start a connection to this peer; check its address and the route"
                        }
                    },
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn poll<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.common.turn += 1;
        if self.connecting > 0 || self.common.turn.is_multiple_of(POLLS_PER_EVENT_CHECK) {
            self.handle_events(host);
            self.retire();
            self.common.domain.transport.cache.tidy();
        }
        let common = &mut self.common;
        for peer in std::mem::take(&mut common.stalled) {
            self.resume(host, peer);
        }
        let mut taken = 0;
        while taken < MAX_COMPLETIONS_PER_POLL && host.hungry() {
            if self.ready.is_empty() && self.refill() == 0 {
                break;
            }
            while host.hungry()
                && let Some(entry) = self.ready.pop_front()
            {
                taken += 1;
                self.take(host, &entry);
            }
        }
        if !self.common.wishing.is_empty() {
            self.lift_wishes(host);
        }
        if self.common.domain.transport.withdrawals() != self.withdrawals {
            self.tell_withdrawn();
        }
        for peer in std::mem::take(&mut self.common.dirty) {
            self.tend(host, peer);
        }
    }

    /// Reads entries of the completion queue.
    pub(crate) fn refill(&mut self) -> usize {
        let polled = self.common.adapter.queues.poll(&mut self.ready);
        polled.unwrap_or_else(|error| {
            if self.common.gone.is_none() {
                tracing::error!(target: "ofi::verbs::cq", %error, "the completion queue is lost");
                self.lost(Errno::EIO);
            }
            0
        })
    }

    /// Processes the device's events, and ends the connections whose queue pair or queue has failed.
    pub(crate) fn take_device_events(&mut self) {
        while let Some(failed) = self.common.adapter.watch.next() {
            match failed {
                Failed::Device => {
                    tracing::error!(target: "ofi::verbs::domain", "the device is lost");
                    self.lost(Errno::ENODEV);
                }
                Failed::Queue(queue) if self.common.adapter.queues.has_queue(queue) => {
                    tracing::error!(target: "ofi::verbs::cq", "a queue of the endpoint has failed");
                    self.lost(Errno::EIO);
                }
                Failed::Pair(qp) => {
                    let Some(&peer) = self.qps.get(&qp) else { continue };
                    let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
                    tracing::warn!(target: "ofi::verbs::ep_data", qp, to = %state.address, "the device reports that a queue pair has failed");
                    common.adapter.watch.failures += 1;
                    state.ending.get_or_insert(Errno::EIO);
                    common.hold(&mut state.is_dirty, peer);
                }
                Failed::Queue(_) => {} // another endpoint's
            }
        }
    }

    /// Handles the loss of the device: ends all connections for good.
    #[cold]
    fn lost(&mut self, errno: Errno) {
        let common = &mut self.common;
        common.adapter.watch.failures += 1;
        if common.gone.is_some() {
            return;
        }
        common.gone = Some(errno);
        let Adapter { watch, waiter, queues, .. } = &mut common.adapter;
        watch.mute(waiter, queues.fd());
        for (peer, state) in self.peers.iter_mut().enumerate() {
            if !matches!(state.link, Link::Closed) {
                state.ending.get_or_insert(errno);
                common.hold(&mut state.is_dirty, peer as PeerId);
            }
        }
    }

    /// Processes records that arrived before a connection ended, even if the core wants no more.
    pub(crate) fn take_rest<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        loop {
            while let Some(entry) = self.ready.pop_front() {
                self.take(host, &entry);
            }
            if self.refill() == 0 {
                return;
            }
        }
    }

    fn take<H: Upcalls<Verbs>>(&mut self, host: &mut H, entry: &WorkCompletion) {
        match self.common.adapter.sort(entry) {
            Ended::Returned { slot } => self.common.adapter.receive(slot),
            Ended::Received { slot, qp, len } => match self.qps.get(&qp) {
                Some(&peer) => self.take_record(host, peer, slot, len),
                None => self.common.adapter.receive(slot),
            },
            Ended::Unasked { slot, qp } => match self.qps.get(&qp) {
                Some(&peer) => self.broken(peer, Some(slot)),
                None => self.common.adapter.receive(slot),
            },
            Ended::Request { id, status } => {
                let Some(posted) = self.common.adapter.posted.remove(id) else { return };
                let peer = posted.peer();
                let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
                state.requests -= 1;
                let result = outcome(status);
                if result.is_ok() {
                    state.end_quiet(common, posted.number());
                }
                match posted {
                    Request::Send { slot, mark, marks, quiet, .. } => {
                        common.adapter.end_send(slot, quiet);
                        if result.is_ok() {
                            for mark in mark.into_iter().chain(marks) {
                                state.sent(host, peer, mark);
                            }
                        }
                    }
                    Request::Step { transfer, reads, is_access, .. } => {
                        common.adapter.reads -= usize::from(reads);
                        state.reads_out -= usize::from(reads && is_access);
                        if is_access {
                            state.note_refusal(result);
                        }
                        state.fetched(common, host, peer, transfer, result);
                    }
                    Request::Single { op, reads, held, .. } => {
                        common.adapter.reads -= usize::from(reads);
                        state.reads_out -= usize::from(reads);
                        state.note_refusal(result);
                        state.single_ended(common, host, (peer, op), held, result);
                    }
                }
                if let Err(errno) = result {
                    tracing::debug!(target: "ofi::verbs::ep_data", ?status, to = %state.address, "a request failed");
                    // Only the refused access itself ends with `EKEYREJECTED`.
                    state.ending.get_or_insert(match errno {
                        Errno::EKEYREJECTED => Errno::ECONNRESET,
                        errno => errno,
                    });
                }
                let is_over = state.ending.is_some() || state.retiring.is_some();
                if state.waits() || state.owes_credits(common) || is_over {
                    common.hold(&mut state.is_dirty, peer);
                }
            }
        }
    }

    /// Processes a record, or holds it until there is room.
    fn take_record<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId, slot: u32, len: usize) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        common.counts.received += 1;
        state.heard(common, peer);
        state.last_use = common.turn;
        let record = common.adapter.record(slot, 0, len);
        let head = record.first_chunk::<HEAD>().copied();
        let Some([what, _, high, low, 0, 0, 0, 0]) = head.filter(|head| flag::are_known(head[1])) else {
            return self.broken(peer, Some(slot));
        };
        state.credits += usize::from(u16::from_be_bytes([high, low]));
        state.used += usize::from(what != kind::CREDIT);
        if state.used > common.grant {
            return self.broken(peer, Some(slot)); // it would take the receives of others
        }
        match what {
            kind::CREDIT => common.adapter.receive(slot),
            kind::PACK => match unpack(record) {
                Ok(parts) => {
                    let count = parts.len();
                    for (index, (at, len)) in parts.into_iter().enumerate() {
                        let part = RecordPart { slot, at, len, last: index + 1 == count, orphan: false };
                        if self.take_part(host, peer, part).is_err() {
                            return self.broken(peer, Some(slot));
                        }
                    }
                }
                Err(Broken) => return self.broken(peer, Some(slot)),
            },
            _ => {
                let part = RecordPart { slot, at: 0, len, last: true, orphan: false };
                if self.take_part(host, peer, part).is_err() {
                    return self.broken(peer, Some(slot));
                }
            }
        }
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        if state.waits() || state.owes_credits(common) {
            common.hold(&mut state.is_dirty, peer);
        }
    }

    /// Processes a record, or holds it behind earlier ones.
    fn take_part<H: Upcalls<Verbs>>(
        &mut self,
        host: &mut H,
        peer: PeerId,
        part: RecordPart,
    ) -> Result<(), Broken> {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        let what = common.adapter.record(part.slot, part.at, part.len)[0];
        if what < kind::ANSWERS && (!state.stalled.is_empty() || state.is_read()) {
            state.stalled.push_back(part);
            return Ok(());
        }
        match dispatch(state, common, host, peer, part)? {
            NextStep::Next => state.taken(common, part),
            NextStep::Stop => {
                common.counts.stalls += 1;
                state.stalled.push_front(part);
                common.stalled.push(peer);
            }
        }
        Ok(())
    }

    /// Handles a protocol violation: drops the peer's records, and ends its connection. `slot` is a slot that is not
    /// among the stalled.
    fn broken(&mut self, peer: PeerId, slot: Option<u32>) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        common.counts.malformed += 1;
        let stalled = std::mem::take(&mut state.stalled);
        // If a pack broke in the middle, its stalled records are in the given slot, and none of them is marked as the
        // last.
        for part in stalled.iter().filter(|part| part.last) {
            common.adapter.receive(part.slot);
        }
        if let Some(slot) = slot {
            common.adapter.receive(slot);
        }
        state.ending.get_or_insert(Errno::EIO);
        common.hold(&mut state.is_dirty, peer);
    }

    /// Offers held records to the core again.
    pub(crate) fn resume<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) {
        loop {
            let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
            if state.is_read() {
                return; // continues when these reads are served
            }
            let Some(part) = state.stalled.pop_front() else { return };
            let taken =
                if host.hungry() { dispatch(state, common, host, peer, part) } else { Ok(NextStep::Stop) };
            match taken {
                Ok(NextStep::Next) => {
                    state.taken(common, part);
                    common.hold(&mut state.is_dirty, peer);
                }
                Ok(NextStep::Stop) => {
                    state.stalled.push_front(part);
                    return common.stalled.push(peer);
                }
                // A pack's slot is given back with its last record, which is among the stalled.
                Err(Broken) => return self.broken(peer, part.last.then_some(part.slot)),
            }
        }
    }

    /// Posts queued records and requests of a peer, and ends it if its connection is over.
    fn tend<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        state.is_dirty = false;
        if state.is_retired() {
            return self.close_idle(host, peer);
        }
        let reading = state.is_read();
        if state.ending.is_some() {
            state.reads.clear(); // no peer expects the answers any more, and records after the reads need not wait
        }
        if !state.flush(common, host, peer) || state.is_read() {
            common.hold(&mut state.is_dirty, peer);
        }
        if reading && !state.is_read() && !state.stalled.is_empty() {
            self.resume(host, peer);
        }
        let state = &mut self.peers[peer as usize];
        let Some(errno) = state.ending else {
            // The connection was ended elsewhere, and refused accesses must go to their owner; or the idle connection
            // was closed, and a payload must be fetched.
            if matches!(state.link, Link::Closed) && state.wants_connection() {
                self.connect(peer);
            }
            return;
        };
        // Records that arrived before the end are processed first.
        if self.ready.is_empty() && self.refill() == 0 && self.peers[peer as usize].stalled.is_empty() {
            self.hang_up(host, peer);
            let state = &mut self.peers[peer as usize];
            if state.has_agreed() {
                return self.close_idle(host, peer);
            }
            state.lose(&mut self.common, host, peer, errno);
            if state.has_commands() {
                self.connect(peer); // for the refused accesses
            }
        } else {
            let state = &mut self.peers[peer as usize];
            self.common.hold(&mut state.is_dirty, peer);
        }
    }

    /// Notifies peers of withdrawn keys. Until a peer is notified, an access with such a key by its device ends the
    /// connection.
    #[cold]
    fn tell_withdrawn(&mut self) {
        self.withdrawals = self.common.domain.transport.withdrawals();
        for &peer in &self.live {
            self.peers[peer as usize].tell_withdrawn(&mut self.common, peer);
        }
    }

    /// Tells peers to stop holding payloads.
    #[cold]
    fn lift_wishes<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        for peer in std::mem::take(&mut self.common.wishing) {
            if !host.may_hold(peer, PAYLOAD) {
                self.common.wishing.push(peer);
                continue;
            }
            let state = &mut self.peers[peer as usize];
            state.wished = false;
            state.wish(&mut self.common, peer, false);
        }
    }

    pub(crate) fn arm(&mut self) -> Arm {
        if !self.common.dirty.is_empty() || !self.ready.is_empty() {
            return Arm::Ready;
        }
        if !may_sleep(self) {
            return Arm::Ready;
        }
        self.common.domain.transport.cache.tidy();
        if self.common.adapter.watch.is_ready() {
            self.connecting += 1; // makes the next poll check
            return Arm::Ready;
        }
        let now = self.common.adapter.queues.now();
        let mut wait = self.next_deadline.filter(|_| self.connecting > 0);
        if self.may_retire() {
            self.connecting += 1; // makes the next poll do that
            return Arm::Ready;
        }
        if self.live.iter().any(|&peer| self.peers[peer as usize].awaits_word(self.common.turn)) {
            let probe = now + probe::interval();
            wait = Some(wait.map_or(probe, |at| at.min(probe)));
            self.connecting += 1; // makes the next poll check
        }
        self.common.adapter.waiter.wake_after(wait.map(|at| at.saturating_duration_since(now)));
        if self.common.stalled.is_empty() { Arm::Armed } else { Arm::Stalled }
    }

    /// Waits briefly for the arrival of fire-and-forget messages, and of answers to operations that this end executed.
    /// Queued frames are sent as credits arrive.
    fn close(&mut self) {
        let end = self.common.adapter.queues.now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        self.common.closing = true;
        for peer in 0..self.peers.len() {
            self.peers[peer].flush_frames(&mut self.common, peer as PeerId);
            self.peers[peer].await_quiet(&mut self.common, peer as PeerId);
        }
        while self.peers.iter().any(Peer::is_awaited) && self.common.adapter.queues.now() < end {
            if self.ready.is_empty() && self.refill() == 0 {
                // Perhaps no slot was free before, because requests of other peers used them.
                for peer in 0..self.peers.len() {
                    self.peers[peer].flush_frames(&mut self.common, peer as PeerId);
                    self.peers[peer].await_quiet(&mut self.common, peer as PeerId);
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            while let Some(entry) = self.ready.pop_front() {
                self.take_last(&entry);
            }
        }
        for state in &self.peers {
            if let Some(id) = state.link.open() {
                let _ = id.disconnect();
            }
        }
    }

    /// Processes a completion while the endpoint closes, for fire-and-forget messages.
    fn take_last(&mut self, entry: &WorkCompletion) {
        match self.common.adapter.sort(entry) {
            Ended::Returned { .. } | Ended::Unasked { .. } => {}
            Ended::Received { slot, qp, len } => {
                let Some(&peer) = self.qps.get(&qp) else { return };
                let record = self.common.adapter.record(slot, 0, len);
                let given =
                    record.first_chunk::<4>().map_or(0, |head| u16::from_be_bytes([head[2], head[3]]));
                let state = &mut self.peers[peer as usize];
                state.credits += usize::from(given);
                // The peer has fetched a message that was held for it.
                if let [kind::DONE, flag::KEPT, ..] = record
                    && let Ok(op) = record.get(HEAD..).ok_or(Broken).and_then(|body| Words(body).word())
                    && let Some((_, len)) = state.kept.remove(SlotId::from_wire(op))
                {
                    self.common.kept -= len;
                }
                // Queued work at both ends continues if the idle connection is not closed.
                if let [kind::RETIRE, ..] = record
                    && let Some(body) = record.get(HEAD..).map(<[u8]>::to_vec)
                {
                    let _ = state.take_retire(&mut self.common, peer, &body);
                }
                self.common.adapter.receive(slot);
                state.flush_frames(&mut self.common, peer);
            }
            Ended::Request { id, status } => {
                let Some(posted) = self.common.adapter.posted.remove(id) else { return };
                let peer = posted.peer();
                let state = &mut self.peers[peer as usize];
                state.requests -= 1;
                if status == Status::SUCCESS {
                    state.end_quiet(&mut self.common, posted.number());
                }
                if let Request::Send { slot, mark, marks, quiet, .. } = posted {
                    self.common.adapter.end_send(slot, quiet);
                    let arrived = mark.into_iter().chain(marks).filter(|&mark| mark == DETACHED);
                    state.detached = state.detached.saturating_sub(arrived.count());
                }
                if status != Status::SUCCESS {
                    state.ending.get_or_insert(Errno::ECONNRESET);
                }
                state.flush_frames(&mut self.common, peer);
            }
        }
    }
}

/// The error for a request's status.
fn outcome(status: Status) -> Result<(), Errno> {
    match status {
        Status::SUCCESS => Ok(()),
        Status::FLUSHED => Err(Errno::ECONNRESET),
        Status::RETRY_EXCEEDED => Err(Errno::ECONNABORTED),
        Status::REMOTE_ACCESS => Err(Errno::EKEYREJECTED),
        _ => Err(Errno::EIO),
    }
}

/// Passes a record to the code for its kind.
fn dispatch<H: Upcalls<Verbs>>(
    state: &mut Peer,
    common: &mut Common,
    host: &mut H,
    peer: PeerId,
    part: RecordPart,
) -> Result<NextStep, Broken> {
    // A copy of the slice, because the handlers change the peer. The device has written the slot and no longer writes
    // to it.
    let record = common.adapter.record(part.slot, part.at, part.len);
    let (from, len) = (record.as_ptr(), record.len());
    // SAFETY: the slot does not change until it is posted again, which happens after this.
    let record = unsafe { std::slice::from_raw_parts(from, len) };
    let (head, body) = record.split_first_chunk::<HEAD>().ok_or(Broken)?;
    let [what, flags, ..] = *head;
    match what {
        kind::MESSAGE => state.take_message(common, host, peer, flags, body, !part.orphan),
        kind::ANNOUNCE => state.take_announcement(common, host, peer, flags, body),
        kind::WRITE => state.take_write(common, host, peer, flags, body),
        kind::WRITE_LONG => state.take_long_write(common, host, peer, flags, body),
        kind::WRITE_PART => state.take_write_part(common, host, peer, body),
        kind::READ => state.take_read(common, host, peer, body),
        kind::ATOMIC => state.take_atomic(common, host, peer, body),
        kind::WRITTEN => state.take_written(common, host, peer, flags, body),
        kind::MOVED => state.take_moved(body).map(|()| NextStep::Next),
        kind::RETIRE => state.take_retire(common, peer, body).map(|()| NextStep::Next),
        kind::KEY => state.take_key(body).map(|()| NextStep::Next),
        kind::KEY_GONE => {
            state.keys.remove(&Words(body).word()?);
            Ok(NextStep::Next)
        }
        kind::NOTE => {
            let mut words = Words(body);
            let say = [words.word()?, words.word()?, words.word()?, words.word()?];
            // SAFETY: the payload is readable for its length during the call.
            let taken = unsafe { host.noted(peer, say, words.0.as_ptr(), words.0.len()) };
            taken.map(|()| NextStep::Next).map_err(|_| Broken)
        }
        kind::DONE => state.take_done(common, host, peer, flags, body).map(|()| NextStep::Next),
        kind::READ_PART => state.take_read_part(host, peer, body).map(|()| NextStep::Next),
        kind::KEEP => {
            state.peer_wishes = Words(body).word()? != 0;
            Ok(NextStep::Next)
        }
        _ => Err(Broken),
    }
}

impl CqArm for VerbsEndpoint {
    fn quiet(&mut self) {
        self.common.adapter.queues.quiet();
    }

    fn arm(&mut self) -> bool {
        // A lost queue sends no notifications, so no thread stays awake for it.
        self.common.adapter.queues.arm().is_ok() || self.common.gone.is_some()
    }

    fn look(&mut self) -> bool {
        // If the queue turns out to be lost, a poll must end the peers.
        self.refill() > 0 || !self.common.dirty.is_empty()
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        self.close();
        self.peers.clear();
    }
}
