//! How a session opens: greeting, welcome, confirmation, and the answer to the confirmation.
//!
//! Clocks of hosts may differ, so an agent does not trust the times in incarnations here. It replaces nothing before
//! the other side has answered: a greeting that was delayed beyond its sender's death gets a welcome that is never
//! confirmed. A restarted peer's greeting ends the session with its predecessor when the greeting is confirmed, not
//! before. The greeter in turn uses the session only after the other side has sent a message in it: a welcome may be
//! stale too.
//!
//! If both sides greet at once, the side with the greater incarnation ignores the other's greeting. The other side
//! gives up its own greeting, and its waiting transfers use the session that the peer opens. So do transfers that are
//! posted while the agent answers a peer's greeting. Greetings are repeated, on one path after the other, until the
//! session is open or its time is up.

use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::session::{Session, State};
use super::{Command, Core, Event, InFlight, OpId, PathId, Time, Timer, path};
use crate::wire::message::{Body, Reason};
use crate::wire::{Message, RailInfo};

/// Unanswered confirmations after which the agent greets again.
const CONFIRMATIONS: u32 = 4;
/// Greetings that are rejected at the same time; more are not answered.
const REJECTIONS: usize = 64;

impl<G> Core<G> {
    /// Creates a session in this state, and queues each path's address for insertion into its rail's address vector.
    fn open(&mut self, incarnation: u64, theirs: u64, state: State, rails: &[RailInfo], now: Time) -> SlotId {
        let tag = loop {
            let tag = (self.random)();
            if !self.tags.contains_key(&((tag >> 32) as u32)) {
                break tag;
            }
        };
        // The greeter repeats its greeting, so an unconfirmed answer may expire soon.
        let patience = if state == State::Offered {
            8 * self.config.greeting_interval
        } else {
            self.config.connect_timeout
        };
        let deadline = now + patience.min(self.config.connect_timeout);
        // A greeting tells the peer of all our rails.
        let told =
            if state == State::Greeting { self.rails.len() } else { self.known_to_greeter(rails, now) };
        let paths = path::pair(&self.rails[..told], rails);
        let addresses: Vec<_> = paths.iter().map(|path| (path.rail, rails[path.remote].clone())).collect();
        let mut session = Session::new(incarnation, tag, theirs, state, paths, deadline);
        (session.rails, session.told) = (rails.to_vec(), told as u8);
        let id = self.sessions.insert(session);
        self.tags.insert((tag >> 32) as u32, id);
        for (nth, (rail, RailInfo { format, address, .. })) in addresses.into_iter().enumerate() {
            self.commands.push_back(Command::Insert {
                path: PathId { session: id, path: nth },
                rail,
                format,
                address,
            });
        }
        self.time_session(id, deadline);
        self.wake(id);
        id
    }

    /// The number of our rails that a peer certainly knows which has greeted us: those of our start, and if its rails
    /// reach none of these that works, those up to the first that it may have used.
    fn known_to_greeter(&self, rails: &[RailInfo], now: Time) -> usize {
        let works = |path: &path::Path| self.rests_until[path.rail] <= now;
        let reached = |&count: &usize| path::pair(&self.rails[..count], rails).iter().any(works);
        let mut counts = self.first_rails..=self.rails.len();
        counts.find(reached).unwrap_or(self.rails.len())
    }

    /// Sets the timer of a session that is not open.
    fn time_session(&mut self, id: SlotId, at: Time) {
        let timer = self.remind(at, Timer::Session(id));
        let Some(session) = self.sessions.get_mut(id) else { return };
        if let Some(before) = session.timer.replace(timer) {
            self.timers.remove(&before);
        }
    }

    /// Starts to open a session with a peer.
    pub(super) fn greet(&mut self, peer: SlotId, now: Time) -> SlotId {
        let (incarnation, rails) = self
            .peers
            .get(peer)
            .map_or_else(|| (0, Vec::new().into()), |found| (found.incarnation, Arc::clone(&found.rails)));
        let id = self.open(incarnation, 0, State::Greeting, &rails, now);
        if let Some(session) = self.sessions.get_mut(id) {
            session.peer = Some(peer);
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.current = Some(id);
        }
        id
    }

    /// Handles a peer's greeting.
    pub(super) fn greeted(
        &mut self,
        to: u64,
        name: &str,
        incarnation: u64,
        theirs: u64,
        rails: &[RailInfo],
        now: Time,
    ) {
        if path::pair(&self.rails, rails).is_empty() {
            self.counts.strays += 1; // an answer is impossible
            return;
        }
        if to != self.incarnation {
            return self.reject(Reason::Stale, incarnation, theirs, rails, now);
        }
        if *name == *self.name && incarnation != self.incarnation {
            // As in `Core::load`: the peer would take the place of this agent among its own peers.
            return self.reject(Reason::Taken, incarnation, theirs, rails, now);
        }
        let Ok(id) = self.greeter(name, incarnation, rails) else {
            return self.reject(Reason::Full, incarnation, theirs, rails, now);
        };
        let is_self = incarnation == self.incarnation;
        let Some(peer) = self.peers.get_mut(id) else { return };
        let (current, before) = (peer.current.filter(|_| !is_self), peer.offered);
        let mut given_up = None;
        if let Some(found) = current.and_then(|current| self.sessions.get(current)) {
            let is_opening = matches!(found.state, State::Greeting | State::Confirming);
            let is_crossing = is_opening && found.incarnation == incarnation;
            let is_open = found.state == State::Up && found.theirs == theirs;
            if is_open || (is_crossing && self.incarnation > incarnation) {
                return;
            }
            given_up = current.filter(|_| is_crossing);
        }
        if let Some(offered) = before
            && let Some(session) = self.sessions.get_mut(offered)
            && session.theirs == theirs
            && session.incarnation == incarnation
        {
            if session.state == State::Offered {
                session.due = true; // the welcome was lost
                self.wake(offered);
            }
            return;
        }
        // Only an answer to the loaded addresses is one to a known peer: a greeting may name others beside them.
        let loaded = self.peers.get(id).map_or(0, |peer| peer.loaded_among(rails));
        let offered = self.open(incarnation, theirs, State::Offered, rails, now);
        if let Some(session) = self.sessions.get_mut(offered) {
            let is_known = session.paths.iter().any(|path| path.remote < loaded);
            (session.peer, session.is_known) = (Some(id), is_known);
        }
        for old in before.into_iter().chain(given_up) {
            self.move_waiting(old, offered);
            self.end_session(old, Errno::ECONNRESET);
            self.settle(old);
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.offered = Some(offered);
        }
    }

    fn reject(&mut self, reason: Reason, incarnation: u64, theirs: u64, rails: &[RailInfo], now: Time) {
        if self.rejections < REJECTIONS {
            self.rejections += 1;
            self.open(incarnation, theirs, State::Rejecting(reason), rails, now);
        }
    }

    /// The greeting, welcome or rejection that is due.
    pub(super) fn greeting_command(&mut self, id: SlotId, now: Time) -> Option<Command> {
        let (stalled, places) = (&self.stalled, &self.places);
        let session = self.sessions.get_mut(id)?;
        if !session.due {
            return None;
        }
        let paths = session.paths.len();
        let loaded = match session.state {
            State::Offered if session.is_known => session.peer.and_then(|peer| self.peers.get(peer)),
            _ => None,
        };
        // A known peer is answered at a loaded address first. A later answer may go to another one, as to a stranger.
        let loaded = loaded.map_or(usize::MAX, |peer| peer.loaded_among(&session.rails));
        let (is_answer, is_first) = (session.is_answer(), session.turn == 0);
        let open = |path: &path::Path| {
            let is_stranger = is_answer || path.remote >= loaded;
            (path.remote < loaded || !is_first)
                && path.addr.is_some()
                && !stalled.is_shut(path)
                && places.takes_greeting(path, is_stranger)
        };
        let index =
            (0..paths).map(|nth| (session.turn + nth) % paths).find(|&at| open(&session.paths[at]))?;
        if session.paths[index].remote >= loaded {
            session.is_known = false;
        }
        let is_stranger = session.is_answer();
        session.due = false;
        session.turn = index + 1;
        let (rail, addr) = (session.paths[index].rail, session.paths[index].addr?);
        session.paths[index].sent(now);
        session.operations += 1;
        let kind = if is_stranger { Kind::Answer } else { Kind::Message };
        self.places.begin(&session.paths[index], kind, 1, false);
        let (state, tag, deadline) = (session.state, session.tag, session.deadline);
        let (to, body) = match state {
            State::Rejecting(reason) => {
                let to = session.theirs;
                session.state = State::Over;
                session.rails = Vec::new();
                if let Some(timer) = session.timer.take() {
                    self.timers.remove(&timer);
                }
                self.rejections -= 1;
                self.tags.remove(&((tag >> 32) as u32));
                (to, Body::Reject(reason))
            }
            State::Offered => (session.theirs, Body::Welcome { incarnation: self.incarnation, tag }),
            State::Confirming => {
                session.confirmations += 1;
                (session.theirs, Body::Confirm)
            }
            _ => {
                let rails =
                    self.rails.iter().take(session.told.into()).map(|rail| rail.info.clone()).collect();
                let (name, incarnation) = (self.name.to_string(), self.incarnation);
                (session.incarnation, Body::Hello { name, incarnation, tag, rails })
            }
        };
        if matches!(state, State::Rejecting(_)) {
            self.await_no_places(id);
        }
        if matches!(state, State::Greeting | State::Confirming) {
            self.time_session(id, deadline.min(now + self.config.greeting_interval));
        }
        let flight = InFlight::Once { session: id, path: index, is_stranger };
        let op = OpId::message(self.messages.insert(flight));
        let path = PathId { session: id, path: index };
        Some(Command::Send { path, op, rail, addr, bytes: Message { to, body }.encode() })
    }

    /// Handles the timer of a session that is not open.
    pub(super) fn session_timer(&mut self, id: SlotId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.timer = None;
        if matches!(session.state, State::Up | State::Over) {
            return;
        }
        let deadline = session.deadline;
        if now >= deadline {
            let peer =
                session.peer.filter(|_| session.state == State::Offered && !session.transfers.is_empty());
            if let Some(peer) =
                peer.filter(|&peer| self.peers.get(peer).is_some_and(|peer| peer.current.is_none()))
            {
                let greeting = self.greet(peer, now);
                self.move_waiting(id, greeting);
            }
            self.end_session(id, Errno::ETIMEDOUT);
            self.settle(id);
            return;
        }
        if session.state == State::Confirming && session.confirmations >= CONFIRMATIONS {
            (session.state, session.confirmations) = (State::Greeting, 0);
        }
        if session.state != State::Offered {
            session.due = true;
        }
        self.time_session(id, deadline);
        self.wake(id);
    }

    /// Handles the peer's welcome.
    pub(super) fn welcomed(&mut self, id: SlotId, incarnation: u64, tag: u64, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.incarnation != incarnation {
            self.counts.strays += 1;
            return;
        }
        if session.theirs != 0 && session.theirs != tag {
            // The peer has created another session from our greeting, since its end of the known session is gone.
            // Writes of the old session were counted under our tag and may still arrive: the new session must not share
            // the tag.
            if let Some(peer) = session.peer {
                let greeting = self.greet(peer, now);
                self.move_waiting(id, greeting);
            }
            self.end_session(id, Errno::ECONNRESET);
            return self.settle(id);
        }
        if session.state == State::Greeting {
            (session.theirs, session.state, session.due) = (tag, State::Confirming, true);
        }
        self.wake(id);
    }

    /// Handles the peer's first message in a session that this agent requested.
    pub(super) fn opened(&mut self, id: SlotId) {
        self.await_no_places(id);
        let able_until = self.now + self.patience();
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.state = State::Up;
        session.introduce(able_until);
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get(peer)) {
            let name = Arc::clone(&peer.name);
            self.tell(Event::Up(name));
        }
        self.announce(id);
        self.wake(id);
    }

    /// Handles the confirmation of a session that this agent offered. It replaces the previous session.
    pub(super) fn confirmed(&mut self, id: SlotId) {
        self.await_no_places(id);
        let able_until = self.now + self.patience();
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.state = State::Up;
        session.introduce(able_until);
        let (incarnation, is_known, rails) = (session.incarnation, session.is_known, session.rails.clone());
        let Some(peer) = session.peer.and_then(|peer| self.peers.get_mut(peer)) else { return };
        if incarnation == self.incarnation {
            return self.announce(id); // the other end is this agent itself; posts use the session that greeted
        }
        peer.offered = None;
        let old = peer.current.replace(id);
        let name = Arc::clone(&peer.name);
        if peer.incarnation != incarnation {
            // A new incarnation has new addresses and new memory keys.
            (peer.incarnation, peer.rails) = (incarnation, rails.into());
            peer.regions = Arc::clone(&self.no_regions);
            self.tell(Event::Restarted(Arc::clone(&name)));
        } else {
            peer.has_added(&rails, is_known);
        }
        if let Some(old) = old {
            self.move_waiting(old, id);
            self.end_session(old, Errno::ECONNRESET);
            self.settle(old);
        }
        self.tell(Event::Up(name));
        self.announce(id);
        self.wake(id);
    }

    /// Moves transfers that wait for a session to open to another session of the same incarnation.
    fn move_waiting(&mut self, old: SlotId, new: SlotId) {
        let Some(session) = self.sessions.get_mut(old) else { return };
        let (state, incarnation) = (session.state, session.incarnation);
        if !matches!(state, State::Greeting | State::Confirming | State::Offered)
            || self.sessions.get(new).is_none_or(|new| new.incarnation != incarnation)
        {
            return;
        }
        for id in self.transfers_of(old) {
            self.unlink(id);
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.session = new;
                transfer.queued = false;
            }
            self.link(id);
            self.queue(id);
        }
    }
}
