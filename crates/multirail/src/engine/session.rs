//! Sessions: the shared state of two incarnations of two agents, from a greeting to a farewell.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::budget::{ENTRY, NUMBER};
use super::farewell::SessionClose;
use super::fence::{Fence, Lease};
use super::held::Held;
use super::inbox::{self, Inbox, Limits, Taken};
use super::later::Later;
use super::lost::{Expired, Lost};
use super::path::Path;
use super::receipts::{Receipt, Unacked};
use super::transfer::Outcome;
use super::{Command, Core, Event, InFlight, OpId, PathId, PeerId, Sink, Time, Timer};
use crate::wire::message::{Body, Reason};
use crate::wire::{Message, RailInfo};

/// Maximum repetitions of a message.
const MAX_REPEATS: u32 = 5;
/// Maximum answers to requests to fence that wait to be sent. A peer has one unanswered request.
pub(super) const FENCED: usize = 4;
/// Maximum regions whose keys a peer has asked for and was not told. A session leases no more.
const ASKED: usize = 4096;
/// Maximum doublings of the time before the next repetition.
const MAX_DOUBLINGS: u32 = 4;

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// We greet.
    Greeting,
    /// The peer has welcomed us, and we confirm.
    Confirming,
    /// The peer has greeted us, and we have answered.
    Offered,
    /// We reject a greeting.
    Rejecting(Reason),
    /// Open at both ends.
    Up,
    /// The session has ended, and waits until its operations have ended and the peer is told.
    Over,
}

/// A message that must arrive.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) body: Body,
    /// The transfer whose notification it belongs to. The message is dropped with the transfer.
    pub(super) transfer: Option<SlotId>,
    /// Repetitions since the last sign of it from the peer.
    pub(super) repeats: u32,
    /// The path that it used last.
    pub(super) last: Option<usize>,
}

impl Outgoing {
    pub(super) fn new(body: Body, transfer: Option<SlotId>) -> Self {
        Self { body, transfer, repeats: 0, last: None }
    }
}

/// One session.
pub(super) struct Session {
    /// `None` for a greeting that is rejected.
    pub(super) peer: Option<SlotId>,
    pub(super) incarnation: u64,
    /// The answer goes to the addresses that the program has loaded as the peer's.
    pub(super) is_known: bool,
    /// Our tag for the session: random, so that it cannot be guessed.
    pub(super) tag: u64,
    /// The peer's tag for the session.
    pub(super) theirs: u64,
    pub(super) state: State,
    pub(super) paths: Vec<Path>,
    /// The peer's rails.
    pub(super) rails: Vec<RailInfo>,
    /// Addresses that are being inserted.
    pub(super) inserting: usize,
    /// Operations of any kind in flight.
    pub(super) operations: usize,
    /// The time by which the session must be open.
    pub(super) deadline: Time,
    /// The timer of that, or of the next greeting or confirmation.
    pub(super) timer: Option<(Time, u64)>,
    /// A greeting, or the answer to one, must be sent.
    pub(super) due: bool,
    /// Number of confirmations sent.
    pub(super) confirmations: u32,
    /// The path for the next greeting, welcome or confirmation.
    pub(super) turn: usize,
    /// The session is in the engine's list.
    pub(super) queued: bool,
    /// A bit for each rail for whose places the session was woken, until it has done what it can.
    pub(super) woken: u64,
    /// The timer for the time when another path may be better than a full one.
    pub(super) full: Option<(Time, u64)>,
    pub(super) outbox: VecDeque<Outgoing>,
    /// The first and the last of the session's transfers that have not ended, in the order of their posts.
    pub(super) ends: Option<(SlotId, SlotId)>,
    /// Transfers that have accesses to post.
    pub(super) transfers: VecDeque<SlotId>,
    /// Notifications that wait for acknowledgements of others.
    pub(super) held: Option<Box<Held>>,
    pub(super) inbox: Inbox,
    /// Bytes of its notifications that the program has not taken, and that are not acknowledged.
    pub(super) unread: usize,
    /// Bytes that it is charged in the agent's budget.
    pub(super) charge: usize,
    /// Notifications of which the peer must be told: at most [`ACKS`].
    pub(super) acks: BTreeMap<u64, Receipt>,
    /// Regions whose keys the peer has asked for: at most [`ASKED`].
    pub(super) asked: BTreeSet<u64>,
    /// Regions whose keys the peer has asked for, on all rails or on those near them: at most [`ASKED`].
    pub(super) widening: BTreeSet<(u64, bool)>,
    /// [`Body::Ready`] must be sent. As a flag it is sent once, however often the peer confirms.
    owes_ready: bool,
    pub(super) next_notification: u64,
    pub(super) unacked: BTreeMap<u64, Unacked>,
    pub(super) unacked_bytes: usize,
    /// The number and bytes of orders for device memory among them.
    pub(super) orders: u64,
    pub(super) order_bytes: usize,
    /// The next number for a transfer whose writes the peer counts; 16 bits of it travel over the wire.
    pub(super) next_number: u64,
    pub(super) numbers: BTreeSet<u64>,
    /// [`Body::Able`] must be sent before everything else. A flag costs an idle session no memory.
    introduces: bool,
    /// The peer can lease keys and fence them.
    pub(super) is_able: bool,
    /// Until this time a peer that has not sent [`Body::Able`] is asked for keys anyway, because the message may be in
    /// flight.
    pub(super) able_until: Time,
    /// Leases of the peer's regions.
    pub(super) leases: HashMap<u64, Lease>,
    /// Keys of the peer's regions on rails beside those near them.
    pub(super) wide: HashMap<u64, Lease>,
    /// The number of our rails that the peer knows: these have paths.
    pub(super) told: u8,
    /// [`Body::Taken`] must be sent.
    pub(super) owes_taken: bool,
    /// The peer's rails that were opened after the session.
    pub(super) later: Option<Box<Later>>,
    /// Our unanswered request to fence.
    pub(super) fence: Option<Box<Fence>>,
    /// Lost chunks that no request to fence names yet, oldest first.
    pub(super) lost: VecDeque<Lost>,
    /// Requests to fence lost chunks that were not answered in time.
    pub(super) expired: Vec<Expired>,
    /// The number of our last request.
    pub(super) fences: u64,
    /// The number of the peer's last request.
    pub(super) their_fence: u64,
    /// The peer has asked for keys of our regions.
    pub(super) has_leased: bool,
    /// The farewell to send, if the session has ended.
    pub(super) farewell: Option<Box<SessionClose>>,
}

impl Session {
    pub(super) fn new(
        incarnation: u64,
        tag: u64,
        theirs: u64,
        state: State,
        paths: Vec<Path>,
        deadline: Time,
    ) -> Self {
        Self {
            peer: None,
            is_known: false,
            incarnation,
            tag,
            theirs,
            state,
            inserting: paths.len(),
            paths,
            rails: Vec::new(),
            operations: 0,
            deadline,
            timer: None,
            due: true,
            confirmations: 0,
            turn: 0,
            queued: false,
            woken: 0,
            full: None,
            outbox: VecDeque::new(),
            ends: None,
            transfers: VecDeque::new(),
            held: None,
            inbox: Inbox::default(),
            unread: 0,
            charge: 0,
            acks: BTreeMap::new(),
            asked: BTreeSet::new(),
            widening: BTreeSet::new(),
            owes_ready: false,
            next_notification: 0,
            unacked: BTreeMap::new(),
            unacked_bytes: 0,
            orders: 0,
            order_bytes: 0,
            next_number: 0,
            numbers: BTreeSet::new(),
            introduces: false,
            is_able: false,
            able_until: Time::ZERO,
            leases: HashMap::new(),
            wide: HashMap::new(),
            told: 0,
            owes_taken: false,
            later: None,
            fence: None,
            lost: VecDeque::new(),
            expired: Vec::new(),
            fences: 0,
            their_fence: 0,
            has_leased: false,
            farewell: None,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether the session, which is open, owes its peer a message.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        self.introduces
            || self.owes_ready
            || self.owes_taken
            || !self.acks.is_empty()
            || !self.outbox.is_empty()
    }

    /// Whether the session has work that needs a place on a rail.
    pub(super) fn has_work(&self) -> bool {
        match self.state {
            State::Up => self.has_messages() || !self.transfers.is_empty(),
            State::Over => false,
            _ => self.due,
        }
    }

    /// Whether the session may have work of any kind.
    pub(super) fn is_to_be_asked(&self) -> bool {
        self.state != State::Up
            || self.has_work()
            || self.charge > 0
            || !self.asked.is_empty()
            || !self.widening.is_empty()
    }

    /// Introduces this agent's abilities in a new session, and expects the peer's by `able_until`. With one path
    /// neither end needs them.
    pub(super) fn introduce(&mut self, able_until: Time) {
        self.introduces = self.paths.len() > 1;
        self.able_until = able_until;
    }

    /// What the peer makes the session keep, in bytes.
    pub(super) fn kept(&self) -> usize {
        self.inbox.kept() + self.unread + NUMBER * (self.acks.len() + self.asked.len() + self.widening.len())
    }

    /// Whether the session only answers the greeting of a stranger.
    pub(super) fn is_answer(&self) -> bool {
        !self.is_known && matches!(self.state, State::Offered | State::Rejecting(_))
    }

    /// Whether it is listed for a place of a rail.
    pub(super) fn awaits_place(&self, rail: usize) -> bool {
        self.paths.iter().any(|path| path.place_turn != 0 && path.rail == rail)
    }

    /// The path for a message: the one expected to deliver it first, other than `last` if possible. `has_room` says
    /// whether a path's rail takes a message.
    pub(super) fn control_path(
        &self,
        has_room: impl Fn(&Path) -> bool,
        last: Option<usize>,
        now: Time,
    ) -> Option<usize> {
        let open = |path: &Path| path.is_up(now) && has_room(path);
        let paths = (0..self.paths.len()).filter(|&at| open(&self.paths[at]));
        let cost = |at: usize| (last == Some(at), self.paths[at].finish(0, now));
        paths.min_by(|&a, &b| {
            let ((a_last, a), (b_last, b)) = (cost(a), cost(b));
            a_last.cmp(&b_last).then(a.total_cmp(&b))
        })
    }
}

impl<G> Core<G> {
    /// Puts the next command of a session that is not open into the commands.
    pub(super) fn session_command(&mut self, id: SlotId, now: Time) {
        match self.sessions.get(id).map(|session| session.state) {
            None | Some(State::Up) => {}
            Some(State::Over) => self.settle(id),
            Some(State::Greeting | State::Confirming | State::Offered | State::Rejecting(_)) => {
                let command = self.greeting_command(id, now);
                self.commands.extend(command);
            }
        }
    }

    /// Does the next work of an open session: a message goes into the commands, accesses straight to their rail.
    /// Returns the number.
    pub(super) fn session_work(&mut self, id: SlotId, now: Time, sink: &mut impl Sink<G>) -> u64 {
        match self.control_command(id, now) {
            Some(command) => {
                self.commands.push_back(command);
                0
            }
            None => self.post_transfers(id, now, sink).unwrap_or(0),
        }
    }

    pub(super) fn control_command(&mut self, id: SlotId, now: Time) -> Option<Command> {
        let (stalled, places) = (&self.stalled, &self.places);
        let has_room = |path: &Path| !stalled.is_shut(path) && places.takes_message(path);
        let session = self.sessions.get_mut(id)?;
        let owes = session.introduces || session.owes_ready || session.owes_taken || !session.acks.is_empty();
        let last = match (owes, session.outbox.front()) {
            (true, _) => None,
            (false, Some(outgoing)) => outgoing.last,
            (false, None) => {
                // The answer goes into the outbox: so it never has more than one.
                if let Some(region) = session.asked.pop_first() {
                    self.commands.push_back(Command::Lease { session: id, region });
                } else if let Some((region, is_all)) = session.widening.pop_first() {
                    self.commands.push_back(Command::Widen { session: id, region, is_all });
                }
                if session.charge > 0 {
                    self.charge(id);
                }
                return None;
            }
        };
        let index = session.control_path(has_room, last, now)?;
        let mut outgoing = if std::mem::take(&mut session.introduces) {
            Outgoing::new(Body::Able, None)
        } else if std::mem::take(&mut session.owes_ready) {
            Outgoing::new(Body::Ready, None)
        } else if std::mem::take(&mut session.owes_taken) {
            Outgoing::new(Body::Taken(session.rails.len() as u8), None)
        } else if let Some(receipts) = session.take_receipts() {
            Outgoing::new(receipts, None)
        } else {
            session.outbox.pop_front()?
        };
        let is_charged = session.charge > 0;
        let (rail, to) = (session.paths[index].rail, session.theirs);
        let addr = session.paths[index].addr?;
        session.paths[index].sent(now);
        session.operations += 1;
        self.places.begin(&session.paths[index], Kind::Message, 1, false);
        outgoing.last = Some(index);
        let message = Message { to, body: outgoing.body.clone() };
        let patience = self.config.repeat_after.saturating_mul(1 << outgoing.repeats.min(MAX_DOUBLINGS));
        let may_repeat = session.paths.len() > 1 && outgoing.repeats < MAX_REPEATS;
        let flight =
            InFlight::Control { session: id, path: index, outgoing: Some(Box::new(outgoing)), timer: None };
        let op = self.messages.insert(flight);
        if may_repeat {
            let key = self.remind(now + patience, Timer::Control(op));
            if let Some(InFlight::Control { timer, .. }) = self.messages.get_mut(op) {
                *timer = Some(key);
            }
        }
        self.watch(id, index, now);
        if is_charged {
            self.charge(id); // acknowledgements have left
        }
        let path = PathId { session: id, path: index };
        Some(Command::Send { path, op: OpId::message(op), rail, addr, bytes: message.encode() })
    }

    /// Sends a message that was not acknowledged for some time on another path too. Receivers recognise the duplicate.
    pub(super) fn repeat(&mut self, op: SlotId) {
        let Some(InFlight::Control { session, outgoing, timer, .. }) = self.messages.get_mut(op) else {
            return;
        };
        *timer = None;
        let (id, is_wanted) = (*session, |id| {
            self.transfers.get(id).is_some_and(|transfer: &super::Transfer<G>| transfer.outcome.is_none())
        });
        let Some(mut outgoing) = outgoing.take_if(|outgoing| outgoing.transfer.is_none_or(is_wanted)) else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(id)
            && session.state == State::Up
        {
            outgoing.repeats += 1;
            self.counts.repeated += 1;
            session.outbox.push_back(*outgoing);
            self.wake(id);
        }
    }

    /// Schedules an examination of a path, unless one is scheduled: the engine does not wait for operations that never
    /// end.
    pub(super) fn watch(&mut self, id: SlotId, index: usize, now: Time) {
        let path = self.sessions.get(id).and_then(|session| session.paths.get(index));
        if path.is_some_and(|path| path.watch.is_none()) {
            self.watch_at(id, index, now + self.config.stall_timeout);
        }
    }

    fn watch_at(&mut self, id: SlotId, index: usize, at: Time) {
        let timer = self.remind(at, Timer::Path(id, index));
        if let Some(session) = self.sessions.get_mut(id) {
            session.paths[index].watch = Some(timer);
        }
    }

    /// Examines a path when its timer expires. If no operation has ended on the path for long, but some have on
    /// another, the peer is alive but the path is not: it is fenced, and its parts move (`fence.rs`). If no path makes
    /// progress, the engine keeps waiting: the peer may not be polling.
    pub(super) fn look_at(&mut self, id: SlotId, index: usize, now: Time) {
        let stall = self.config.stall_timeout;
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.state == State::Up) else {
            return;
        };
        session.paths[index].watch = None;
        let Some(since) = session.paths[index].busy_since() else { return };
        let mut others = session.paths.iter().enumerate().filter(|&(at, _)| at != index);
        let next = if now < since + stall {
            since + stall
        } else if session.fence.is_some() {
            now + stall / 4
        } else if others.any(|(_, path)| path.last_ended() > since + stall / 2) {
            return self.fence(id, index, now);
        } else {
            if !std::mem::replace(&mut session.paths[index].probed, true) && session.paths.len() > 1 {
                // Any message would do; the peer answers this one and does nothing else.
                let probe = Outgoing { last: Some(index), ..Outgoing::new(Body::Confirm, None) };
                session.outbox.push_back(probe);
            }
            now + stall / 4
        };
        self.watch_at(id, index, next);
        self.wake(id);
    }

    /// Handles a message of a peer.
    pub fn message(&mut self, bytes: &[u8], now: Time) {
        self.now = now;
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.counts.malformed += 1;
                tracing::debug!(target: "multirail", %error, len = bytes.len(), "dropped a message");
                return;
            }
        };
        if let Body::Hello { name, incarnation, tag, rails } = message.body {
            return self.greeted(message.to, &name, incarnation, tag, &rails, now);
        }
        let session = self.tags.get(&((message.to >> 32) as u32)).copied();
        let session =
            session.filter(|&id| self.sessions.get(id).is_some_and(|session| session.tag == message.to));
        let Some(id) = session else {
            self.counts.strays += 1;
            return;
        };
        let Some(state) = self.sessions.get(id).map(|session| session.state) else { return };
        match (message.body, state) {
            (Body::Welcome { incarnation, tag }, State::Greeting | State::Confirming) => {
                self.welcomed(id, incarnation, tag, now)
            }
            (Body::Reject(reason), State::Greeting | State::Confirming) => {
                let errno = match reason {
                    Reason::Stale => Errno::ECONNRESET,
                    Reason::Full => Errno::ECONNREFUSED,
                    Reason::Taken => Errno::EADDRINUSE,
                };
                self.end_session(id, errno);
                self.settle(id);
            }
            // Any message in the session proves that the peer has the session.
            (body, State::Confirming) => {
                self.opened(id);
                self.said(id, body, now);
            }
            (body, State::Offered) => {
                self.confirmed(id);
                self.said(id, body, now);
            }
            (body, State::Up) => self.said(id, body, now),
            _ => self.counts.strays += 1,
        }
    }

    /// Handles a message in an open session.
    fn said(&mut self, id: SlotId, body: Body, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        match body {
            Body::Notify(fragment) => {
                let unread = session.peer.and_then(|peer| self.peers.get(peer)?.unread.as_deref());
                // The audience is one byte more.
                let longest = self.config.longest_notification.saturating_add(1);
                let (unread, longest_unread) = unread.map_or(((0, 0), 0), |unread| unread.open(inbox::BYTES));
                let limits = Limits { longest, unread, longest_unread };
                match session.inbox.take(&fragment, limits) {
                    Taken::Incomplete => {}
                    Taken::Complete(notification, bytes) => self.hand_out(id, notification, bytes),
                    Taken::Repeated => self.counts.refused += u64::from(!session.acknowledge(fragment.id)),
                    Taken::Refused => self.counts.refused += 1,
                }
            }
            Body::Void(notification) => {
                if session.inbox.was_read(notification)
                    && let Some(peer) = session.peer.and_then(|peer| self.peers.get_mut(peer))
                    && let Some(unread) = &mut peer.unread
                {
                    match unread.void(id, notification) {
                        Some((len, true)) => self.budget.taken(len),
                        Some((len, false)) => session.unread -= ENTRY + len,
                        None => {}
                    }
                }
                let is_taken = session.inbox.void(notification) && session.acknowledge(notification);
                self.counts.refused += u64::from(!is_taken);
            }
            Body::Ack(ids) => {
                let told: Vec<_> = ids.into_iter().filter_map(|id| session.acknowledged(id)).collect();
                self.send_held(id);
                told.into_iter().for_each(|transfer| self.told(transfer));
            }
            Body::Arrived(ids) => {
                let told: Vec<_> = ids.into_iter().filter_map(|id| session.arrived(id)).collect();
                told.into_iter().for_each(|transfer| self.told(transfer));
            }
            Body::Goodbye => {
                self.end_session(id, Errno::ESHUTDOWN);
                self.settle(id);
            }
            Body::Able => session.is_able = true,
            Body::Lease(region) => {
                if session.asked.len() < ASKED {
                    session.asked.insert(region);
                } else {
                    self.counts.refused += 1;
                }
            }
            Body::Leased { region, keys } => self.leased(id, region, keys),
            Body::Widen(_) | Body::Renew(_) if session.widening.len() >= ASKED => self.counts.refused += 1,
            Body::Widen(region) => _ = session.widening.insert((region, true)),
            Body::Renew(region) => _ = session.widening.insert((region, false)),
            Body::Widened { region, keys } => self.widened(id, region, keys),
            Body::Rails { first, rails } => self.told_rails(id, first.into(), &rails),
            Body::Taken(count) => self.taken(id, count),
            Body::Renewed { region, keys } => self.renewed(id, region, keys),
            Body::Fence { serial, keys, notices } => self.asked_to_fence(id, serial, keys, &notices),
            Body::Fenced { serial, out } => self.fenced(id, serial, &out, now),
            Body::Release(notification) => {
                if let Some(bytes) = session.inbox.release(notification) {
                    self.hand_out(id, notification, bytes);
                }
            }
            // Our answer may have been lost.
            Body::Confirm => session.owes_ready = true,
            // The peer's timer repeats these.
            Body::Ready | Body::Welcome { .. } | Body::Reject(_) | Body::Hello { .. } => {}
        }
        self.wake(id);
        self.charge(id);
    }

    /// Ends a session: its pending work is dropped.
    pub(super) fn end_session(&mut self, id: SlotId, errno: Errno) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.state == State::Over {
            return;
        }
        self.await_no_places(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let (was_up, session_peer) = (session.state == State::Up, session.peer);
        self.rejections -= usize::from(matches!(session.state, State::Rejecting(_)));
        session.state = State::Over;
        session.rails = Vec::new(); // it may wait long for its operations
        session.outbox.clear();
        session.transfers.clear();
        session.held = None;
        (session.inbox, session.unread) = (Inbox::default(), 0);
        (session.acks, session.asked) = (BTreeMap::new(), BTreeSet::new());
        (session.widening, session.later) = (BTreeSet::new(), None);
        session.fence = None;
        (session.lost, session.expired) = (VecDeque::new(), Vec::new());
        (session.leases, session.wide) = (HashMap::new(), HashMap::new());
        if session.has_leased {
            self.commands.push_back(Command::EndLeases { tag: session.tag });
        }
        self.discharge(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        let woken = std::mem::take(&mut session.woken);
        // A peer may open sessions and end them faster than their timers pass.
        let timers = session.paths.iter_mut().filter_map(|path| path.watch.take());
        for timer in timers.chain(session.full.take()).chain(session.timer.take()) {
            self.timers.remove(&timer);
        }
        self.tags.remove(&((session.tag >> 32) as u32));
        if let Some(id) = session.peer.map(PeerId).filter(|id| was_up && !self.gone.contains(id)) {
            self.gone.push(id);
        }
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get_mut(peer)) {
            if let Some(unread) = &mut peer.unread {
                unread.session_ended(id);
            }
            for slot in [&mut peer.current, &mut peer.offered] {
                if *slot == Some(id) {
                    *slot = None;
                }
            }
            if was_up {
                let name = Arc::clone(&peer.name);
                self.tell(Event::Down(name, errno));
            }
        }
        if let Some(peer) = session_peer {
            self.list_if_idle(peer);
        }
        for transfer in self.transfers_of(id) {
            self.finish(transfer, Outcome::Failed(errno));
        }
        self.wake(id);
        if woken != 0 {
            self.pass_on(id, woken);
        }
    }

    /// Forgets an ended session once none of its operations is in flight and the peer needs no farewell.
    pub(super) fn settle(&mut self, id: SlotId) {
        let is_over = self.sessions.get(id).is_some_and(|session| {
            session.state == State::Over
                && session.operations == 0
                && session.inserting == 0
                && session.farewell.is_none()
        });
        if !is_over {
            return;
        }
        let Some(session) = self.sessions.remove(id) else { return };
        session.paths.iter().for_each(|path| self.places.leave(path));
        let removals = session
            .paths
            .iter()
            .filter_map(|path| path.addr.map(|addr| Command::Remove { rail: path.rail, addr }));
        self.commands.extend(removals);
    }
}
