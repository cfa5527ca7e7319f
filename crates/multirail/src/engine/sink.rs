//! The sink that carries out the engine's work, and the loop that hands the work to it.
//!
//! Work goes straight from the decision into the sink: a queue between them cost more than the rest of an access. Work
//! for which a rail has no room waits here, in order, and its path gets no other work before it. Paths to other peers
//! go on: a rail may have no room for one peer alone. How much one peer may take of a rail says `places.rs`.

use std::collections::{HashMap, VecDeque};

use ofi::Errno;

use super::path::Path;
use super::session::State;
use super::{Access, Command, Core, OpId, PathId, Piece, Plan, Time};
use crate::wire::RegionKey;
use crate::wire::message::LeasedKey;

/// Approximate limit of commands and accesses in one [`Core::perform`], so that the call ends.
const MAX_COMMANDS_PER_PERFORM: u64 = 4096;

/// Refusals after which a rail is offered nothing more in one [`Core::perform`]: a rail without any room costs as much
/// with many peers as with few.
const MAX_REFUSALS: u32 = 8;

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

    /// Posts accesses in order: `access`, which moves the first of `pieces` or a part of it, then one for each further
    /// piece, to which `access` advances. On an error `access` is the one that was refused, and those before it are
    /// posted.
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

    /// Whether abandoning an access of a rail disturbs no other one. Otherwise the accesses of ended transfers have
    /// some time to end by themselves.
    fn abandons_alone(&self, _rail: usize) -> bool {
        true
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

    /// Our region's own keys on all rails that can register it, for a peer that has no path to those whose keys it has.
    /// By default there are none.
    fn widen(&mut self, _region: u64) -> Vec<RegionKey> {
        Vec::new()
    }

    /// Our region's own keys on the rails near it, with those that were opened since its metadata was made. By default
    /// there are none.
    fn renew(&mut self, _region: u64) -> Vec<RegionKey> {
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

/// Work that rails have refused for lack of room, by path: a peer's refused work waits for that peer alone, and takes
/// no place of its rail.
#[derive(Default)]
pub(super) struct Stalled {
    /// Oldest first.
    queues: HashMap<PathId, VecDeque<Command>>,
    rails: Vec<Refusing>,
    /// A bit for each rail that has refused [`MAX_REFUSALS`] pieces of work in this call of [`Core::perform`].
    blocked: u64,
}

/// A rail that may have refused work.
#[derive(Default)]
struct Refusing {
    /// The paths with refused work, in the order in which they are tried again.
    turns: VecDeque<PathId>,
    /// Refusals in this call of [`Core::perform`].
    refusals: u32,
}

impl Stalled {
    pub(super) fn new(rails: usize) -> Self {
        let rails = (0..rails).map(|_| Refusing::default()).collect();
        Self { queues: HashMap::new(), rails, blocked: 0 }
    }

    pub(super) fn add_rail(&mut self) {
        self.rails.push(Refusing::default());
    }

    pub(super) fn blocked(&self) -> u64 {
        self.blocked
    }

    /// Whether a path gets no work now: its rail has refused some, or has refused much of others.
    #[inline]
    pub(super) fn is_shut(&self, path: &Path) -> bool {
        path.is_stalled || self.blocked >> path.rail & 1 == 1
    }

    /// Keeps work that a rail has refused. The caller marks the path, and gives back the work's place.
    pub(super) fn refused(&mut self, rail: usize, path: PathId, command: Command) {
        let refusing = &mut self.rails[rail];
        refusing.refusals += 1;
        if refusing.refusals >= MAX_REFUSALS {
            self.blocked |= 1 << rail;
        }
        self.keep(rail, path, command);
    }

    /// Keeps work behind the refused work of its path.
    fn keep(&mut self, rail: usize, path: PathId, command: Command) {
        let queue = self.queues.entry(path).or_default();
        if queue.is_empty() {
            self.rails[rail].turns.push_back(path);
        }
        queue.push_back(command);
    }

    fn next_of(&mut self, path: PathId) -> Option<Command> {
        self.queues.get_mut(&path)?.pop_front()
    }
}

impl<G> Core<G> {
    /// Whether work waits for room on a rail.
    pub fn is_stalled(&self) -> bool {
        !self.stalled.queues.is_empty() || self.places.has_refused()
    }

    /// Removes an access that waits for room. Returns whether there was one.
    pub(super) fn take_stalled(&mut self, path: PathId, op: OpId) -> bool {
        let Some(queue) = self.stalled.queues.get_mut(&path) else { return false };
        let is_it = |command: &Command| matches!(command, Command::Access(_, access) if access.op == op);
        let found = queue.iter().position(is_it);
        let Some(Command::Access(_, access)) = found.and_then(|at| queue.remove(at)) else { return false };
        let is_empty = queue.is_empty();
        self.places.take(access.rail, 1); // until its end is handled
        if is_empty {
            self.flows_again(path);
        }
        true
    }

    /// Nothing of a path waits for room any more.
    fn flows_again(&mut self, path: PathId) {
        self.stalled.queues.remove(&path);
        let Some(session) = self.sessions.get_mut(path.session) else { return };
        let Some(found) = session.paths.get_mut(path.path) else { return };
        found.is_stalled = false;
        let rail = found.rail;
        self.stalled.rails[rail].turns.retain(|&other| other != path);
        self.wake(path.session);
    }

    /// Hands the pending work to the rails. Returns whether there was any.
    pub fn perform(&mut self, now: Time, sink: &mut impl Sink<G>) -> bool {
        self.account();
        if !self.ending.is_empty() {
            self.give_up(now, sink); // before their refused work is offered again
        }
        let was_freed = self.retry_stalled(now, sink);
        let mut done = 0;
        while done < MAX_COMMANDS_PER_PERFORM {
            if let Some(command) = self.commands.pop_front() {
                done += 1;
                match command.needs_room() {
                    Some((path, rail)) if self.is_shut(path) => {
                        self.mark_stalled(path);
                        self.stalled.keep(rail, path, command);
                        self.left(rail, 1);
                    }
                    _ => {
                        if let Some((rail, path, refused)) = self.carry_out(command, now, sink) {
                            self.mark_stalled(path);
                            self.stalled.refused(rail, path, refused);
                            self.left(rail, 1);
                        }
                    }
                }
                continue;
            }
            let Some(id) = self.ready.pop_front() else { break };
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.queued = false;
            let is_up = session.state == State::Up;
            let woken = session.woken;
            let posted = if is_up {
                self.session_work(id, now, sink)
            } else {
                self.session_command(id, now);
                0
            };
            done += posted;
            let has_done = posted > 0 || !self.commands.is_empty();
            if !(has_done && self.wake(id)) {
                self.await_places(id);
                if woken != 0 {
                    self.was_woken(id, woken);
                }
            }
        }
        done > 0 || was_freed
    }

    fn is_shut(&self, id: PathId) -> bool {
        let path = self.sessions.get(id.session).and_then(|session| session.paths.get(id.path));
        path.is_some_and(|path| self.stalled.is_shut(path))
    }

    fn mark_stalled(&mut self, id: PathId) {
        let session = self.sessions.get_mut(id.session);
        if let Some(path) = session.and_then(|session| session.paths.get_mut(id.path)) {
            path.is_stalled = true;
        }
    }

    /// Offers the waiting work to the rails that had no room for it. Returns whether a rail has taken any.
    fn retry_stalled(&mut self, now: Time, sink: &mut impl Sink<G>) -> bool {
        let mut was_freed = false;
        if !self.is_stalled() {
            return false;
        }
        self.stalled.blocked = 0;
        for rail in 0..self.stalled.rails.len() {
            self.stalled.rails[rail].refusals = 0;
            for _ in 0..self.stalled.rails[rail].turns.len() {
                // The others get the rest of the refusals.
                if self.stalled.rails[rail].refusals >= MAX_REFUSALS / 2 {
                    break;
                }
                let Some(path) = self.stalled.rails[rail].turns.pop_front() else { break };
                was_freed |= self.retry(rail, path, now, sink);
            }
        }
        self.wake_refused(MAX_REFUSALS / 2);
        was_freed
    }

    /// Offers the waiting work of a path to its rail. Returns whether the rail has taken any.
    fn retry(&mut self, rail: usize, path: PathId, now: Time, sink: &mut impl Sink<G>) -> bool {
        let mut was_freed = false;
        while let Some(command) = self.stalled.next_of(path) {
            self.places.take(rail, 1);
            if let Some((_, _, refused)) = self.carry_out(command, now, sink) {
                self.places.give_back(rail, 1);
                self.stalled.rails[rail].refusals += 1;
                self.stalled.rails[rail].turns.push_back(path);
                self.stalled.queues.entry(path).or_default().push_front(refused);
                return was_freed;
            }
            was_freed = true;
        }
        self.flows_again(path);
        was_freed
    }

    /// Carries out a command, or returns it with its rail and path, if the rail has no room.
    fn carry_out(
        &mut self,
        command: Command,
        now: Time,
        sink: &mut impl Sink<G>,
    ) -> Option<(usize, PathId, Command)> {
        match command {
            Command::Insert { path, rail, format, address } => {
                let inserted = sink.insert(rail, format, &address);
                self.inserted(path, inserted);
            }
            Command::Remove { rail, addr } => sink.remove(rail, addr),
            Command::Abandon { row, until } => self.abandon(row, until, now, sink),
            Command::GiveUp => self.give_up(now, sink),
            Command::Sever { session, path } => self.sever(session, path, now, sink),
            Command::Fence { session } => self.fence_lost(session, now),
            Command::Lease { session, region } => self.lease(session, region, sink),
            Command::Widen { session, region, is_all } => self.widen(session, region, is_all, sink),
            Command::Close { session, serial, keys, out } => {
                self.close_keys(session, serial, &keys, out, sink);
            }
            Command::EndLeases { tag } => sink.end_leases(tag),
            Command::Send { path, op, rail, addr, bytes } => match sink.send(op, rail, addr, bytes) {
                Ok(()) => {}
                Err((Refused::Full, bytes)) => {
                    return Some((rail, path, Command::Send { path, op, rail, addr, bytes }));
                }
                Err((Refused::Failed(errno), _)) => self.ended(op, Err(errno), now),
            },
            Command::Access(path, access) => {
                let posted = match self.transfers.get(access.transfer.0) {
                    Some(transfer) => sink.access(&access, &transfer.plan, false),
                    None => Err(Refused::Failed(Errno::ECANCELED)),
                };
                match posted {
                    Ok(()) => {}
                    Err(Refused::Full) => return Some((access.rail, path, command)),
                    Err(Refused::Failed(errno)) => self.ended(access.op, Err(errno), now),
                }
            }
        }
        None
    }
}
