//! Operations under way, and what follows when one has ended.

use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::session::{self, State};
use super::transfer::Chunk;
use super::{Core, Notification, OpId, PathId, Time};

/// What an operation is for.
pub(super) enum InFlight {
    Chunk {
        transfer: SlotId,
        session: SlotId,
        path: u32,
        chunk: Chunk,
        since: Time,
    },
    /// A part of a session's own traffic that is repeated on another path if it fails.
    Control {
        session: SlotId,
        path: usize,
        /// `None` once it was repeated.
        outgoing: Option<Box<session::Outgoing>>,
        /// When it is repeated, among the engine's timers.
        timer: Option<(Time, u64)>,
    },
    /// A message that is repeated by a timer, or not at all.
    Once {
        session: SlotId,
        path: usize,
    },
}

impl<G> Core<G> {
    /// How the insertion of a path's address went.
    pub fn inserted(&mut self, path: PathId, addr: Result<u64, Errno>) {
        let PathId { session: id, path: index } = path;
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(path) = session.paths.get_mut(index) else { return };
        session.inserting -= 1;
        match addr {
            Ok(addr) => path.addr = Some(addr),
            Err(errno) => {
                tracing::warn!(target: "multirail", %errno, rail = path.rail, "a peer's address is none for this rail")
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

    /// An operation has ended.
    pub fn ended(&mut self, op: OpId, result: Result<(), Errno>, now: Time) {
        let Some(in_flight) = self.ops.remove(op.0) else {
            self.counts.stale += 1;
            return;
        };
        let session = match in_flight {
            InFlight::Chunk { transfer, session, path, chunk, since } => {
                let path = path as usize;
                let is_path = result.is_err_and(is_path_fault);
                let mut is_plain = result.is_ok();
                if let Some(session) = self.sessions.get_mut(session) {
                    session.operations -= 1;
                    let path = &mut session.paths[path];
                    match result {
                        Ok(()) => {
                            path.ended(chunk.len, since, now);
                            self.latencies[path.rail].add(chunk.len, now.saturating_sub(since));
                        }
                        Err(_) => path.failed(chunk.len, is_path, now),
                    }
                    // Nothing waits for this path, and nothing ends with the operation.
                    is_plain &= session.state == State::Up && session.transfers.is_empty();
                }
                let is_last = self.chunk_ended(transfer, chunk, path, result, is_path);
                if is_plain && !is_last {
                    return;
                }
                session
            }
            InFlight::Control { session: id, path, outgoing, timer } => {
                if let Some(timer) = timer {
                    self.timers.remove(&timer);
                }
                if let Some(session) = self.sessions.get_mut(id) {
                    session.operations -= 1;
                    match result {
                        Ok(()) => session.paths[path].ended(0, now, now),
                        Err(_) => session.paths[path].failed(0, true, now),
                    }
                    let is_wanted =
                        |id| self.transfers.get(id).is_some_and(|transfer| transfer.outcome.is_none());
                    let again = outgoing.filter(|outgoing| outgoing.transfer.is_none_or(is_wanted));
                    if let (Err(_), Some(outgoing)) = (result, again) {
                        session.outbox.push_front(*outgoing);
                    }
                }
                id
            }
            InFlight::Once { session: id, path } => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.operations -= 1;
                    match result {
                        Ok(()) => session.paths[path].ended(0, now, now),
                        Err(_) => session.paths[path].failed(0, true, now),
                    }
                }
                id
            }
        };
        if let Err(errno) = result {
            self.check_paths(session, errno, now);
        }
        self.wake(session);
        self.settle(session);
    }

    /// Ends an open session that has no path left.
    pub(super) fn check_paths(&mut self, id: SlotId, errno: Errno, now: Time) {
        let is_lost = self.sessions.get(id).is_some_and(|session| {
            session.state == State::Up && !session.paths.iter().any(|path| path.is_up(now))
        });
        if is_lost {
            self.end_session(id, errno);
        }
    }

    /// A write with remote CQ data has arrived.
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
            }
        }
    }

    /// A notification is complete.
    pub(super) fn hand_out(&mut self, id: SlotId, notification: u64, bytes: Vec<u8>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.acks.push(notification);
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get(peer)) {
            self.notifications.push_back(Notification { peer: Arc::clone(&peer.name), bytes });
        }
        self.wake(id);
    }
}

/// Whether an error says that the path does not work, rather than that the operation was wrong.
fn is_path_fault(errno: Errno) -> bool {
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
