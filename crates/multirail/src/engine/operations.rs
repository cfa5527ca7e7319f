//! Operations in flight, and the handling of their ends.

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::latency::{CLASSES, class};
use super::receipts::Receipt;
use super::session::{self, State};
use super::transfer::{Chunk, Fate};
use super::{Audience, Core, Named, OpId, PathId, PeerId, PostedRun, Time, shares};

/// Accesses of one row that completed successfully at the same time, and are accounted for together. `len` is the
/// length of one of them; the others have the same length class.
#[derive(Clone, Copy)]
pub(super) struct Landed {
    row: SlotId,
    transfer: SlotId,
    len: u64,
    bytes: u64,
    since: u64,
    load: u64,
    now: Time,
    path: u32,
    count: u32,
}

/// The purpose of a message in flight.
pub(super) enum InFlight {
    /// A part of a session's own traffic that is repeated on another path if it fails.
    Control {
        session: SlotId,
        path: usize,
        /// `None` after it was repeated.
        outgoing: Option<Box<session::Outgoing>>,
        /// The timer of its repetition.
        timer: Option<(Time, u64)>,
    },
    /// A message that a timer repeats, or that is not repeated.
    Once {
        session: SlotId,
        path: usize,
        /// It answers a greeting.
        is_stranger: bool,
    },
    /// The notice that a session has ended.
    Goodbye { session: SlotId, path: usize },
}

impl<G> Core<G> {
    /// Takes the result of inserting a path's address.
    pub(super) fn inserted(&mut self, path: PathId, addr: Result<u64, Errno>) {
        let PathId { session: id, path: index } = path;
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(path) = session.paths.get_mut(index) else { return };
        session.inserting -= 1;
        match addr {
            Ok(addr) => {
                path.addr = Some(addr);
                self.places.accounts.join(path, addr);
            }
            Err(errno) => {
                tracing::warn!(target: "multirail", %errno, rail = path.rail, "a peer's address is invalid for this rail");
                // The path may have been to replace others.
                session.paths.iter_mut().for_each(|path| path.is_surplus = false);
            }
        }
        let is_lost = session.inserting == 0 && session.paths.iter().all(|path| path.addr.is_none());
        if is_lost {
            self.end_session(id, Errno::EHOSTUNREACH);
        } else {
            self.wake(id);
        }
        self.settle(id);
    }

    /// Records the end of an operation. The next [`Core::tick`] or [`Core::perform`] at the latest handles the
    /// consequences.
    #[inline]
    pub fn ended(&mut self, op: OpId, result: Result<(), Errno>, now: Time) {
        match op.named() {
            Named::Access(row, nth) => self.access_ended(row, nth, result, now),
            Named::Message(slot) => self.message_ended(slot, result, now),
        }
    }

    /// Records the successful ends of an access and of the `count - 1` that follow it in its row, as [`Core::ended`]
    /// does for one.
    #[inline]
    pub fn ended_in_row(&mut self, op: OpId, count: u32, now: Time) {
        let count = count.clamp(1, op.left_in_row());
        if let Named::Access(row, nth) = op.named()
            && self.accesses_landed(row, nth, count, now)
        {
            return;
        }
        (0..count).for_each(|nth| self.ended(op.nth(nth), Ok(()), now));
    }

    #[inline]
    fn access_ended(&mut self, id: SlotId, nth: u32, result: Result<(), Errno>, now: Time) {
        let Err(errno) = result else {
            if !self.accesses_landed(id, nth, 1, now) {
                self.ended_late(id, nth, result, now);
            }
            return;
        };
        let ended = self.rows.get_mut(id).and_then(|row| row.end(nth).map(|is_last| (*row, is_last)));
        let Some((row, is_last)) = ended else {
            return self.ended_late(id, nth, result, now);
        };
        let plan = self.transfers.get(row.transfer).map(|transfer| &transfer.plan);
        let chunk = row.chunk(nth, plan.map_or(&[][..], |plan| &plan.pieces));
        self.access_failed(row.transfer, chunk, (row.path as usize, row.lease, row.since), errno, now);
        self.remove_ended(id, is_last);
    }

    /// Records that `count` accesses of a row have landed, from `nth` on. Returns `false`, and records nothing, if one
    /// of them is not in flight, or their lengths cannot be counted in one class.
    #[inline]
    fn accesses_landed(&mut self, id: SlotId, nth: u32, count: u32, now: Time) -> bool {
        let Some(row) = self.rows.get_mut(id) else { return false };
        let found = row.bytes(nth, count, || {
            let transfer = self.transfers.get(row.transfer);
            transfer.map_or(&[][..], |transfer| &transfer.plan.pieces)
        });
        let Some((bytes, len)) = found else { return false };
        let Some(is_last) = row.end_some(nth, count) else { return false };
        match &mut self.landed {
            Some(last) if last.row == id && last.now == now && is_of_class(last.len, len) => {
                last.count += count;
                last.bytes += bytes;
            }
            _ => {
                let PostedRun { transfer, since, load, path, .. } = *row;
                self.account();
                self.landed = Some(Landed { row: id, transfer, len, bytes, since, load, now, path, count });
            }
        }
        self.remove_ended(id, is_last);
        true
    }

    /// Removes a row whose last access has ended.
    #[inline]
    fn remove_ended(&mut self, id: SlotId, is_last: bool) {
        // An abandoned access keeps the row's number: a later row of that number would get its end.
        if is_last && (self.abandoned.is_empty() || !self.abandoned.contains_key(&id)) {
            self.rows.remove(id);
        }
    }

    /// Handles the consequences of the accesses that have landed.
    #[inline]
    pub(super) fn account(&mut self) {
        if let Some(landed) = self.landed.take() {
            self.account_for(landed);
        }
    }

    fn account_for(&mut self, landed: Landed) {
        let Landed { transfer: id, len, bytes, since, load, now, path, count, .. } = landed;
        self.now = now;
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        let session_id = transfer.session;
        let Some(session) = self.sessions.get_mut(session_id) else { return };
        session.operations -= count as usize;
        let index = path as usize;
        let since = since.min(nanos(now));
        let measured = session.paths[index].ended(len, bytes, count, since, now);
        if session.paths.len() > 1 {
            shares::served(&mut session.paths, index, bytes, load, measured.took, now);
        }
        if measured.is_bandwidth {
            shares::level(&mut session.paths, index, now);
        }
        let path = &session.paths[index];
        let (rail, account) = (path.rail, path.account);
        self.latencies[rail].add(len, count, nanos(now) - since);
        transfer.landed(bytes, count);
        let is_awaited = self.places.end(path, Kind::Access, count);
        // The common case in a long transfer: no work waits for this path, and the transfer does not end with these
        // operations.
        let is_common = transfer.in_flight > 0
            && session.state == State::Up
            && session.transfers.is_empty()
            && !session.has_messages();
        if is_awaited {
            self.wake_after_end(rail, account, count);
        }
        if is_common {
            return;
        }
        self.after_progress(id);
        self.wake(session_id);
        self.settle(session_id);
    }

    #[cold]
    fn access_failed(
        &mut self,
        id: SlotId,
        chunk: Chunk,
        (path, lease, since): (usize, Option<u64>, u64),
        mut errno: Errno,
        now: Time,
    ) {
        self.account();
        let Some(session_id) = self.transfers.get(id).map(|transfer| transfer.session) else { return };
        let Some(session) = self.sessions.get_mut(session_id) else { return };
        session.operations -= 1;
        let is_path = is_path_fault(errno);
        session.paths[path].failed(chunk.len, is_path, now);
        let is_severed = session.paths[path].severed.is_some_and(|severed| since <= nanos(severed));
        self.operations_left(session_id, path, Kind::Access, 1);
        let fate = match lease {
            Some(key) if is_path && self.lose(id, chunk, (path, key), (errno, is_severed), now) => Fate::Shut,
            // Posted before a key was leased, so it cannot be fenced.
            None if is_severed && self.may_arrive(id) => {
                errno = Errno::ETIMEDOUT;
                Fate::Access
            }
            _ if is_path => Fate::Path,
            // The peer may have closed the key because of another path, or because it has ended the session. Then the
            // region's own key is valid; if it is not, the transfer gets its error.
            Some(_) => Fate::Lease,
            None => Fate::Access,
        };
        if let (Fate::Lease, Some(key)) = (fate, lease) {
            self.lease_refused(session_id, id, &chunk, path, key);
        }
        self.chunk_failed(id, chunk, path, errno, fate);
        self.check_paths(session_id, errno, now);
        self.wake(session_id);
        self.settle(session_id);
    }

    fn message_ended(&mut self, op: SlotId, result: Result<(), Errno>, now: Time) {
        let Some(in_flight) = self.messages.remove(op) else {
            self.counts.stale += 1;
            return;
        };
        let is_goodbye = matches!(in_flight, InFlight::Goodbye { .. });
        let kind = match in_flight {
            InFlight::Once { is_stranger: true, .. } => Kind::Answer,
            InFlight::Goodbye { .. } => Kind::Farewell,
            _ => Kind::Message,
        };
        let (id, path, outgoing) = match in_flight {
            InFlight::Control { session, path, outgoing, timer } => {
                if let Some(timer) = timer {
                    self.timers.remove(&timer);
                }
                (session, path, outgoing)
            }
            InFlight::Once { session, path, .. } | InFlight::Goodbye { session, path } => {
                (session, path, None)
            }
        };
        let is_wanted = |id| self.transfers.get(id).is_some_and(|transfer| transfer.outcome.is_none());
        let again = outgoing.filter(|outgoing| outgoing.transfer.is_none_or(is_wanted));
        if let Some(session) = self.sessions.get_mut(id) {
            session.operations -= 1;
            match result {
                Ok(()) => {
                    let measured = session.paths[path].ended(0, 0, 1, nanos(now), now);
                    if measured.is_bandwidth {
                        shares::level(&mut session.paths, path, now);
                    }
                }
                Err(_) => session.paths[path].failed(0, true, now),
            }
            session.paths[path].is_refused = result == Err(Errno::ECONNREFUSED);
            if let (Err(_), Some(outgoing)) = (result, again) {
                session.outbox.push_front(*outgoing);
            }
            self.operations_left(id, path, kind, 1);
        }
        if is_goodbye {
            self.goodbye_ended(id, path, result.is_ok(), now);
        } else if let Err(errno) = result {
            self.check_paths(id, errno, now);
            self.check_greeting(id);
        }
        self.wake(id);
        self.settle(id);
    }

    /// Gives back the places of operations of a path that have ended.
    pub(super) fn operations_left(&mut self, id: SlotId, index: usize, kind: Kind, count: u32) {
        let path = self.sessions.get(id).and_then(|session| session.paths.get(index));
        let Some(path) = path else { return };
        let (rail, account) = (path.rail, path.account);
        if self.places.end(path, kind, count) {
            self.wake_after_end(rail, account, count);
        }
    }

    /// Gives back the places of operations that wait because the rail has refused them.
    pub(super) fn left(&mut self, rail: usize, count: u32) {
        if self.places.give_back(rail, count) {
            self.wake_after_end(rail, None, count);
        }
    }

    /// Ends an open session that has no path left. The peer is told as soon as a path may be used again.
    pub(super) fn check_paths(&mut self, id: SlotId, errno: Errno, now: Time) {
        let is_lost = self.sessions.get_mut(id).is_some_and(|session| {
            session.use_surplus(now);
            session.state == State::Up && !session.paths.iter().any(|path| path.is_up(now))
        });
        if is_lost {
            self.part(id, errno, now);
        }
    }

    /// Ends a session that greets a peer whose endpoints are all gone: a new endpoint there belongs to another
    /// incarnation.
    fn check_greeting(&mut self, id: SlotId) {
        let is_gone = self.sessions.get(id).is_some_and(|session| {
            session.state == State::Greeting
                && session.inserting == 0
                && session.paths.iter().all(|path| path.addr.is_none() || path.is_refused)
        });
        if is_gone {
            self.end_session(id, Errno::ECONNREFUSED);
        }
    }

    /// Handles the arrival of a write with remote CQ data.
    pub fn arrived(&mut self, data: u64) {
        let (tag, transfer, chunk) = ((data >> 32) as u32, (data >> 16) as u16, data as u16);
        let is_its = |&id: &SlotId| {
            let session = self.sessions.get(id);
            session.is_some_and(|session| (session.tag >> 32) as u32 == tag && session.state != State::Over)
        };
        let Some(id) = self.last_arrival.filter(is_its).or_else(|| self.tags.get(&tag).copied()) else {
            self.counts.strays += 1;
            return;
        };
        self.last_arrival = Some(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        match session.inbox.arrived(transfer, chunk) {
            None => self.counts.strays += 1,
            Some(ready) => {
                for (notification, bytes) in ready {
                    self.hand_out(id, notification, bytes);
                }
                self.charge(id);
            }
        }
    }

    /// Delivers a complete notification.
    pub(super) fn hand_out(&mut self, id: SlotId, notification: u64, mut bytes: Vec<u8>) {
        let Some(session) = self.sessions.get(id) else { return };
        let audience = Audience::of(bytes.pop());
        let mut receipt = Some(Receipt::Taken);
        match (audience, session.peer.filter(|&peer| self.peers.get(peer).is_some())) {
            (Some(Audience::Program), Some(peer)) => {
                receipt = self.keep_unread(peer, id, notification, bytes);
            }
            (Some(Audience::Memory), Some(peer)) => self.orders.push_back((PeerId(peer), bytes)),
            (None, _) => self.counts.refused += 1,
            (Some(_), None) => {}
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        match receipt {
            Some(Receipt::Taken) => {
                session.acknowledge(notification);
            }
            Some(Receipt::Arrived) => {
                session.inbox.is_unread(notification);
                session.has_arrived(notification);
            }
            None => session.inbox.is_unread(notification),
        }
        self.wake(id);
    }
}

/// Whether an error means that the path does not work, rather than that the operation was wrong.
pub(super) fn is_path_fault(errno: Errno) -> bool {
    const FAULTS: [Errno; 13] = [
        Errno::ETIMEDOUT,
        Errno::ECONNRESET,
        Errno::ECONNREFUSED,
        Errno::ECONNABORTED,
        Errno::ENOTCONN,
        Errno::ESHUTDOWN,
        Errno::EHOSTUNREACH,
        Errno::EHOSTDOWN,
        Errno::ENETUNREACH,
        Errno::ENETDOWN,
        Errno::ENODEV,
        Errno::EIO,
        Errno::ECANCELED,
    ];
    FAULTS.contains(&errno)
}

/// Whether both lengths are counted in one histogram.
#[inline]
fn is_of_class(one: u64, other: u64) -> bool {
    // The first limit is a power of two, and most descriptors of one row are below it.
    one == other || (one | other) < CLASSES[0] || class(one) == class(other)
}

/// A time in nanoseconds, which covers 584 years.
pub(super) fn nanos(time: Time) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(time.subsec_nanos()))
}
