//! The sink that carries out the engine's work, and the loop that hands the work to it.
//!
//! Work goes straight from the decision into the sink: a queue between them cost more than the rest of an access. Work
//! for which a rail has no room waits here, in order, and the rail gets no other work before it.

use std::collections::VecDeque;

use ofi::Errno;

use super::session::State;
use super::{Access, Command, Core, OpId, Piece, Plan, Time};
use crate::wire::RegionKey;
use crate::wire::message::LeasedKey;

/// Approximate limit of commands and accesses in one [`Core::perform`], so that the call ends.
const MAX_COMMANDS_PER_PERFORM: u64 = 4096;

/// The reason why a rail did not take an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The rail has no room now: the engine offers the operation again.
    Full,
    /// The rail will never take it: the operation has ended with this error.
    Failed(Errno),
}

/// The rails, as the engine uses them. Rails are named by their index in the list passed to [`Core::new`].
pub trait Sink<G> {
    /// Posts an access of `plan`; [`Core::ended`] follows when the bytes are in place. `more` says that another access
    /// follows on this rail at once.
    ///
    /// # Errors
    /// [`Refused`]: [`Core::ended`] must not follow.
    fn access(&mut self, access: &Access, plan: &Plan<G>, more: bool) -> Result<(), Refused>;

    /// Posts accesses one after the other: `access`, which moves the first of `pieces` or a part of it, and one for
    /// each further piece. On an error, `access` is the refused one.
    ///
    /// # Errors
    /// The errors of [`Sink::access`].
    fn row(
        &mut self,
        access: &mut Access,
        pieces: &[Piece],
        plan: &Plan<G>,
        more: bool,
    ) -> Result<(), Refused> {
        for pair in pieces.windows(2) {
            self.access(access, plan, true)?;
            access.follow(&pair[0], &pair[1]);
        }
        self.access(access, plan, more)
    }

    /// Sends a message to the peer `addr`; [`Core::ended`] follows.
    ///
    /// # Errors
    /// The errors of [`Sink::access`], with the message.
    fn send(&mut self, op: OpId, rail: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)>;

    /// Inserts a peer's address of this format into a rail's vector, and returns its number there.
    ///
    /// # Errors
    /// The problem with the address.
    fn insert(&mut self, rail: usize, format: u32, address: &[u8]) -> Result<u64, Errno>;

    /// Removes an address by the number that [`Sink::insert`] has returned.
    fn remove(&mut self, rail: usize, addr: u64);

    /// Abandons an access in flight. Afterwards the rail does not touch the access's local memory, but data of a write
    /// that has been sent may still arrive. [`Core::ended`] follows in any case, with any result.
    ///
    /// # Errors
    /// `FI_ENOENT` if the access has ended; `FI_EAGAIN` while a device uses the memory, so that the same call may
    /// succeed later, when all accesses that use a registration are abandoned; `FI_EOPNOTSUPP` if the rail cannot
    /// abandon accesses. By default no rail can.
    fn abandon(&mut self, _rail: usize, _op: OpId) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Ends a rail's connection to the peer with this number in the rail's address vector. Afterwards the rail's device
    /// touches no local memory of the accesses to this peer, all of which end ([`Core::ended`]), and executes no access
    /// that the peer has posted so far. Later operations connect anew.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if the rail cannot. By default no rail can.
    fn sever(&mut self, _rail: usize, _addr: u64) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Leases keys of our region `region` that can be closed for the session with this tag alone. Returns existing
    /// leases, and new ones for rails without one. A rail with connections leases the region's own key. Rails that can
    /// do neither are omitted. By default no rail leases keys.
    fn lease(&mut self, _tag: u64, _region: u64) -> Vec<RegionKey> {
        Vec::new()
    }

    /// Closes keys that were leased to the session with this tag, whose peer has these addresses: rails, and numbers in
    /// their address vectors. Rails with connections end those. Returns whether the keys are closed: then no access
    /// that was posted under them so far touches memory any more, and the session's own keys are not leased again.
    fn close_leased(&mut self, _tag: u64, _keys: &[LeasedKey], _peer: &[(usize, u64)]) -> bool {
        false
    }

    /// Closes all keys that were leased to the session with this tag, since it has ended.
    fn end_leases(&mut self, _tag: u64) {}
}

/// Work that waits for room on its rail, and the rails that have refused work.
#[derive(Default)]
pub(super) struct Stalled {
    /// By rail, oldest first.
    commands: Vec<VecDeque<Command>>,
    /// A bit for each rail that has refused something in this call of [`Core::perform`].
    blocked: u64,
}

impl Stalled {
    pub(super) fn new(rails: usize) -> Self {
        Self { commands: (0..rails).map(|_| VecDeque::new()).collect(), blocked: 0 }
    }

    pub(super) fn blocked(&self) -> u64 {
        self.blocked
    }

    pub(super) fn block(&mut self, rail: usize, command: Command) {
        self.blocked |= 1 << rail;
        self.commands[rail].push_back(command);
    }

    /// Removes an access that waits for room. Returns whether there was one.
    pub(super) fn take_access(&mut self, rail: usize, op: OpId) -> bool {
        let is_it = |command: &Command| matches!(command, Command::Access(access) if access.op == op);
        let found = self.commands[rail].iter().position(is_it);
        found.and_then(|at| self.commands[rail].remove(at)).is_some()
    }
}

impl<G> Core<G> {
    /// Whether work waits for room on a rail.
    pub fn is_stalled(&self) -> bool {
        self.stalled.commands.iter().any(|commands| !commands.is_empty())
    }

    /// Hands the pending work to the rails. Returns whether there was any.
    pub fn perform(&mut self, now: Time, sink: &mut impl Sink<G>) -> bool {
        self.account();
        let was_freed = self.retry_stalled(now, sink);
        let mut done = 0;
        while done < MAX_COMMANDS_PER_PERFORM {
            if let Some(command) = self.commands.pop_front() {
                done += 1;
                match command.rail() {
                    Some(rail) if self.stalled.blocked >> rail & 1 == 1 => self.stalled.block(rail, command),
                    _ => {
                        if let Some((rail, refused)) = self.carry_out(command, now, sink) {
                            self.stalled.block(rail, refused);
                        }
                    }
                }
                continue;
            }
            let Some(id) = self.ready.pop_front() else { break };
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.queued = false;
            let posted = if session.state == State::Up {
                self.session_work(id, now, sink)
            } else {
                self.session_command(id, now);
                0
            };
            done += posted;
            if posted > 0 || !self.commands.is_empty() {
                self.wake(id);
            }
        }
        done > 0 || was_freed
    }

    /// Offers the waiting work to the rails that had no room for it. Returns whether a rail has taken any.
    fn retry_stalled(&mut self, now: Time, sink: &mut impl Sink<G>) -> bool {
        self.stalled.blocked = 0;
        let mut was_freed = false;
        for rail in 0..self.stalled.commands.len() {
            while let Some(command) = self.stalled.commands[rail].pop_front() {
                if let Some((_, refused)) = self.carry_out(command, now, sink) {
                    self.stalled.commands[rail].push_front(refused);
                    self.stalled.blocked |= 1 << rail;
                    break;
                }
                was_freed = true;
            }
        }
        if was_freed {
            self.wake_all();
        }
        was_freed
    }

    /// Carries out a command, or returns it with its rail, if the rail has no room.
    fn carry_out(
        &mut self,
        command: Command,
        now: Time,
        sink: &mut impl Sink<G>,
    ) -> Option<(usize, Command)> {
        match command {
            Command::Insert { path, rail, format, address } => {
                let inserted = sink.insert(rail, format, &address);
                self.inserted(path, inserted);
            }
            Command::Remove { rail, addr } => sink.remove(rail, addr),
            Command::Abandon { row, until } => self.abandon(row, until, now, sink),
            Command::Sever { session, path } => self.sever(session, path, now, sink),
            Command::Fence { session } => self.fence_lost(session, now),
            Command::Lease { session, region } => self.lease(session, region, sink),
            Command::Close { session, serial, keys, out } => {
                self.close_keys(session, serial, &keys, out, sink);
            }
            Command::EndLeases { tag } => sink.end_leases(tag),
            Command::Send { op, rail, addr, bytes } => match sink.send(op, rail, addr, bytes) {
                Ok(()) => {}
                Err((Refused::Full, bytes)) => return Some((rail, Command::Send { op, rail, addr, bytes })),
                Err((Refused::Failed(errno), _)) => self.ended(op, Err(errno), now),
            },
            Command::Access(access) => {
                let posted = match self.transfers.get(access.transfer.0) {
                    Some(transfer) => sink.access(&access, &transfer.plan, false),
                    None => Err(Refused::Failed(Errno::ECANCELED)),
                };
                match posted {
                    Ok(()) => {}
                    Err(Refused::Full) => return Some((access.rail, command)),
                    Err(Refused::Failed(errno)) => self.ended(access.op, Err(errno), now),
                }
            }
        }
        None
    }
}
