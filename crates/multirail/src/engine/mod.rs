//! The engine without I/O: sessions with peers, transfers over their paths, notifications.
//!
//! It owns no rail, clock or thread. What happens comes in by [`Core::ended`], [`Core::message`], [`Core::arrived`] and
//! [`Core::tick`]; what is to be done comes out of [`Core::next_command`]; what the program is to know comes out of
//! [`Core::take_events`] and [`Core::take_notifications`]. A simulated network drives it as a program does.
//!
//! Invariants:
//! - A transfer has one end: done, failed, or cancelled. It has it by its deadline, whatever the network does.
//! - Its memory is used by nobody once it is *quiet*, which may be later: an operation that a rail has not given back stays in the
//!   table, and keeps the transfer's plan.
//! - An id names one operation, transfer or session for ever (a slot and its generation): what comes late finds nothing.
//! - Operations that do not end are not waited for without end: messages are repeated on another path, and a path on which nothing ends is fenced.
//! - An error of an operation that is not a rail's fault ends its transfer alone. A rail's fault moves its work to the others; when no path
//!   is left, the session ends, and with it its transfers.

mod greet;
mod inbox;
mod latency;
mod path;
mod schedule;
mod session;
mod transfer;
mod vocabulary;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::{SlotId, Slots};

use crate::wire::message::Body;
use crate::wire::{Metadata, RailInfo, RegionInfo};

pub use latency::{CLASSES, Histogram, Latencies};
use session::{Session, State};
use transfer::Transfer;
pub use transfer::{Chunk, Outcome, Piece, Plan, Progress, Way};
pub use vocabulary::{
    Access, Command, Config, Counts, Event, Notification, OpId, PathId, PathState, PeerId, RailSpec, Time,
    TransferId,
};

struct Peer {
    name: Arc<str>,
    incarnation: u64,
    rails: Vec<RailInfo>,
    regions: HashMap<u64, Arc<RegionInfo>>,
    current: Option<SlotId>,
    /// A greeting of the peer that was answered and not confirmed yet.
    offered: Option<SlotId>,
}

/// What an operation is for.
enum InFlight {
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

/// The engine. `G` is what keeps the memory of a plan.
pub struct Core<G> {
    config: Config,
    name: Arc<str>,
    incarnation: u64,
    rails: Vec<RailSpec>,
    random: Box<dyn FnMut() -> u64 + Send>,
    peers: Slots<Peer>,
    names: HashMap<Arc<str>, SlotId>,
    sessions: Slots<Session>,
    /// Sessions by the upper half of our tag, which writes carry.
    tags: HashMap<u32, SlotId>,
    transfers: Slots<Transfer<G>>,
    ops: Slots<InFlight>,
    /// Sessions that may have something to do.
    ready: VecDeque<SlotId>,
    /// When sessions and transfers want to be looked at.
    timers: BTreeMap<(Time, u64), Timer>,
    next_timer: u64,
    /// The session of the last write that has arrived: the next is mostly of the same.
    last_arrival: Option<SlotId>,
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
    notifications: VecDeque<Notification>,
    counts: Counts,
    /// By rails.
    latencies: Vec<Latencies>,
}

#[derive(Clone, Copy)]
enum Timer {
    Session(SlotId),
    Transfer(SlotId),
    Control(SlotId),
    Path(SlotId, usize),
    /// A session's best path was full, and by now another may be better.
    Full(SlotId),
}

/// Events that nobody takes are forgotten, the oldest first.
const EVENTS: usize = 4096;

impl<G> Core<G> {
    /// An engine for the agent `name` with these rails. `random` gives 64 random bits at a time.
    pub fn new(
        name: &str,
        rails: Vec<RailSpec>,
        config: Config,
        mut random: Box<dyn FnMut() -> u64 + Send>,
    ) -> Self {
        let incarnation = random();
        let latencies = vec![Latencies::default(); rails.len()];
        Self {
            config,
            name: name.into(),
            incarnation,
            rails,
            random,
            peers: Slots::default(),
            names: HashMap::new(),
            sessions: Slots::default(),
            tags: HashMap::new(),
            transfers: Slots::default(),
            ops: Slots::default(),
            ready: VecDeque::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            last_arrival: None,
            commands: VecDeque::new(),
            events: VecDeque::new(),
            notifications: VecDeque::new(),
            counts: Counts::default(),
            latencies,
        }
    }

    /// What the agent hands out of itself, with these regions.
    pub fn metadata(&self, regions: Vec<RegionInfo>) -> Metadata {
        let rails = self.rails.iter().map(|rail| rail.info.clone()).collect();
        Metadata { name: self.name.to_string(), incarnation: self.incarnation, rails, regions }
    }

    /// Takes what a peer has handed out. A peer that is known under this name and has another incarnation has restarted: its session
    /// ends, and its regions are those given now. Otherwise regions are added.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` for our own name, `FI_ENOSPC` for more peers than there may be, `FI_EHOSTUNREACH` if no rail of the peer's
    /// reaches one of ours.
    pub fn load(&mut self, metadata: &Metadata) -> Result<PeerId, (Errno, &'static str)> {
        if *metadata.name == *self.name && metadata.incarnation != self.incarnation {
            return Err((Errno::EADDRINUSE, "the name is this agent's own"));
        }
        if path::pair(&self.rails, &metadata.rails).is_empty() {
            return Err((
                Errno::EHOSTUNREACH,
                "no rail of the peer has a provider and address format of a rail here",
            ));
        }
        let id = self.peer(&metadata.name, metadata.incarnation, &metadata.rails)?;
        let Some(peer) = self.peers.get_mut(id) else { return Err((Errno::ENOENT, "no such peer")) };
        if peer.incarnation != metadata.incarnation {
            let (old, name) = (peer.current.take(), Arc::clone(&peer.name));
            peer.regions.clear();
            (peer.incarnation, peer.rails) = (metadata.incarnation, metadata.rails.clone());
            self.tell(Event::Restarted(name));
            if let Some(old) = old {
                self.end_session(old, Errno::ECONNRESET);
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.regions.extend(metadata.regions.iter().map(|region| (region.id, Arc::new(region.clone()))));
        }
        Ok(PeerId(id))
    }

    /// The peer of a name, made if there is none.
    fn peer(
        &mut self,
        name: &str,
        incarnation: u64,
        rails: &[RailInfo],
    ) -> Result<SlotId, (Errno, &'static str)> {
        if let Some(&id) = self.names.get(name) {
            return Ok(id);
        }
        if self.peers.len() >= self.config.most_peers {
            return Err((Errno::ENOSPC, "there are as many peers as there may be"));
        }
        let name: Arc<str> = name.into();
        let peer = Peer {
            name: Arc::clone(&name),
            incarnation,
            rails: rails.to_vec(),
            regions: HashMap::new(),
            current: None,
            offered: None,
        };
        let id = self.peers.insert(peer);
        self.names.insert(name, id);
        Ok(id)
    }

    /// The peer of a name.
    pub fn find(&self, name: &str) -> Option<PeerId> {
        self.names.get(name).copied().map(PeerId)
    }

    /// A region of a peer, and the peer's incarnation.
    pub fn region(&self, peer: PeerId, id: u64) -> Option<(Arc<RegionInfo>, u64)> {
        let peer = self.peers.get(peer.0)?;
        Some((Arc::clone(peer.regions.get(&id)?), peer.incarnation))
    }

    /// Regions of a peer.
    pub fn regions(&self, peer: PeerId) -> Vec<Arc<RegionInfo>> {
        let mut regions: Vec<_> =
            self.peers.get(peer.0).map_or_else(Vec::new, |peer| peer.regions.values().cloned().collect());
        regions.sort_by_key(|region| region.id);
        regions
    }

    /// Begins to open a session with the peer, if there is none.
    pub fn connect(&mut self, peer: PeerId, now: Time) {
        self.session_for(peer.0, now);
    }

    /// Whether a session with the peer is open.
    pub fn is_up(&self, peer: PeerId) -> bool {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        session.is_some_and(|session| session.state == State::Up)
    }

    /// The paths to a peer.
    pub fn paths(&self, peer: PeerId, now: Time) -> Vec<PathState> {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        let paths = session.map_or(&[][..], |session| &session.paths);
        let state = |path: &path::Path| PathState {
            rail: path.rail,
            remote: path.remote,
            up: path.is_up(now),
            bandwidth: path.bandwidth(),
            moved: path.moved,
            failures: path.failures,
            in_flight: path.in_flight,
        };
        paths.iter().map(state).collect()
    }

    /// Ends the session with a peer, after telling it. What is under way fails with `FI_ECANCELED`.
    pub fn disconnect(&mut self, peer: PeerId, now: Time) {
        let Some(peer) = self.peers.get_mut(peer.0) else { return };
        for id in [peer.current.take(), peer.offered.take()].into_iter().flatten() {
            self.say_once(id, Body::Goodbye, now);
            self.end_session(id, Errno::ECANCELED);
        }
    }

    /// Forgets a peer: its metadata, and its session as [`Core::disconnect`] does.
    pub fn forget(&mut self, peer: PeerId, now: Time) {
        self.disconnect(peer, now);
        if let Some(peer) = self.peers.remove(peer.0) {
            self.names.remove(&peer.name);
        }
    }

    /// All peers.
    pub fn peers(&self) -> Vec<(Arc<str>, PeerId)> {
        self.names.iter().map(|(name, &id)| (Arc::clone(name), PeerId(id))).collect()
    }

    /// What happened to peers.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// The next notification.
    pub fn take_notification(&mut self) -> Option<Notification> {
        self.notifications.pop_front()
    }

    /// What was counted.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// How long accesses took, by rails.
    pub fn latencies(&self) -> &[Latencies] {
        &self.latencies
    }

    /// Operations, transfers and sessions that are in the tables.
    pub fn kept(&self) -> (usize, usize, usize) {
        (self.ops.len(), self.transfers.len(), self.sessions.len())
    }

    fn tell(&mut self, event: Event) {
        tracing::debug!(target: "multirail", ?event);
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn remind(&mut self, at: Time, timer: Timer) -> (Time, u64) {
        let key = (at, self.next_timer);
        self.timers.insert(key, timer);
        self.next_timer += 1;
        key
    }

    /// When [`Core::tick`] wants to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Timer::Session(id) => self.session_timer(id, now),
                Timer::Transfer(id) => self.overdue(id),
                Timer::Control(op) => self.repeat(op),
                Timer::Path(id, index) => self.look_at(id, index, now),
                Timer::Full(id) => {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.full = None;
                    }
                    self.wake(id);
                }
            }
        }
    }

    /// Something that commands are made of has changed.
    fn wake(&mut self, id: SlotId) {
        if let Some(session) = self.sessions.get_mut(id)
            && !session.queued
        {
            session.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Looks at all sessions again: a rail takes commands again.
    pub fn wake_all(&mut self) {
        for id in self.sessions.ids(|session| !session.queued) {
            self.wake(id);
        }
    }

    /// The next thing to do, on rails that are not in `blocked` (a bit for each).
    pub fn next_command(&mut self, blocked: u64, now: Time) -> Option<Command> {
        self.has_command(blocked, now);
        self.commands.pop_front()
    }

    /// Whether there is something to do. Where it is an access, what follows is known too: see [`Core::first_access`].
    pub(crate) fn has_command(&mut self, blocked: u64, now: Time) -> bool {
        while self.commands.len() < 2
            && let Some(id) = self.ready.pop_front()
        {
            if let Some(session) = self.sessions.get_mut(id) {
                session.queued = false;
            }
            let before = self.commands.len();
            self.session_command(id, blocked, now);
            if self.commands.len() > before {
                self.wake(id);
            }
        }
        !self.commands.is_empty()
    }

    /// The next command, if it is an access: with its plan, and whether another follows on the same rail. It stays until
    /// [`Core::take_command`].
    pub(crate) fn first_access(&self) -> Option<(&Access, Option<&Plan<G>>, bool)> {
        let Some(Command::Access(access)) = self.commands.front() else { return None };
        let more = matches!(self.commands.get(1), Some(Command::Access(next)) if next.rail == access.rail);
        let plan = self.transfers.get(access.transfer.0).map(|transfer| &*transfer.plan);
        Some((access, plan, more))
    }

    /// Takes the next command away.
    pub(crate) fn take_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

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
    fn check_paths(&mut self, id: SlotId, errno: Errno, now: Time) {
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
    fn hand_out(&mut self, id: SlotId, notification: u64, bytes: Vec<u8>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.acks.push(notification);
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get(peer)) {
            self.notifications.push_back(Notification { peer: Arc::clone(&peer.name), bytes });
        }
        self.wake(id);
    }

    /// The session that takes what is posted to a peer: the one that there is, that which the peer is opening, or a new one.
    fn session_for(&mut self, peer: SlotId, now: Time) -> Option<SlotId> {
        let found = self.peers.get(peer)?;
        let answered = found.offered.filter(|&offered| {
            let is_peers = |session: &Session| {
                session.state == State::Offered
                    && session.incarnation == found.incarnation
                    && session.incarnation != self.incarnation
            };
            self.sessions.get(offered).is_some_and(is_peers)
        });
        let session = found.current.or(answered);
        Some(session.unwrap_or_else(|| self.greet(peer, now)))
    }

    /// Whether operations of a transfer whose plan `uses` something are under way, or may still be posted.
    pub fn is_used(&self, uses: impl Fn(&G) -> bool) -> bool {
        let is_user = |transfer: &Transfer<G>| !transfer.progress().is_quiet && uses(&transfer.plan.guard);
        !self.transfers.ids(is_user).is_empty()
    }

    /// Posts a plan: [`Core::progress`] says how it goes, and [`Core::release`] gives it up. `deadline` is the time at which it has
    /// ended in any case.
    ///
    /// # Errors
    /// `FI_ENOENT` for a peer that is not there, `FI_ECONNRESET` for a plan of an earlier incarnation of it, `FI_EMSGSIZE` for a
    /// notification that is too long.
    pub fn post(
        &mut self,
        peer: PeerId,
        plan: Arc<Plan<G>>,
        notice: Option<Vec<u8>>,
        deadline: Time,
        now: Time,
    ) -> Result<TransferId, (Errno, &'static str)> {
        let Some(found) = self.peers.get(peer.0) else {
            return Err((Errno::ENOENT, "the peer was forgotten"));
        };
        if !plan.pieces.is_empty() && plan.incarnation != found.incarnation {
            return Err((Errno::ECONNRESET, "the peer has restarted since the plan was prepared"));
        }
        if notice.as_ref().is_some_and(|notice| notice.len() > self.config.longest_notification) {
            return Err((Errno::EMSGSIZE, "the notification is longer than agents take"));
        }
        let Some(session) = self.session_for(peer.0, now) else {
            return Err((Errno::ENOENT, "the peer was forgotten"));
        };
        let id = self.transfers.insert(Transfer::new(plan, session, notice));
        let timer = self.remind(deadline, Timer::Transfer(id));
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.timer = Some(timer);
        }
        if let Some(session) = self.sessions.get_mut(session) {
            session.transfers.push_back(id);
        }
        self.wake(session);
        self.finish_if_done(id);
        Ok(TransferId(id))
    }

    /// What a transfer's memory is kept by, while it is not quiet.
    pub fn plan(&self, id: TransferId) -> Option<&Arc<Plan<G>>> {
        self.transfers.get(id.0).map(|transfer| &transfer.plan)
    }

    /// How a transfer goes; `None` for one that was given up.
    pub fn progress(&self, id: TransferId) -> Option<Progress> {
        self.transfers.get(id.0).map(Transfer::progress)
    }

    /// Ends a transfer, if it has not ended: nothing more of it is posted.
    pub fn cancel(&mut self, id: TransferId) {
        self.finish(id.0, Outcome::Cancelled);
    }

    /// Gives a transfer up: it is cancelled if it has not ended, and forgotten when it is quiet.
    pub fn release(&mut self, id: TransferId) {
        self.finish(id.0, Outcome::Cancelled);
        if let Some(transfer) = self.transfers.get_mut(id.0) {
            transfer.released = true;
        }
        self.forget_if_quiet(id.0);
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
