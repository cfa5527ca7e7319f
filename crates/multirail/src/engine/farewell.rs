//! Telling a peer that its session is over.
//!
//! A session that ends because all its paths rest cannot tell the peer at once. The peer may not notice the end by
//! itself: a transfer that lacks only the acknowledgement would wait for its deadline. Therefore the session stays in
//! the table and sends a goodbye as soon as a path is usable again. A goodbye that fails on one path is sent on
//! another. The session stops trying when the peer has received one, when a new session with the peer is open (which
//! ends the old one there), when all endpoints of the peer are gone, or after
//! [`Config::connect_timeout`](super::Config::connect_timeout).

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::session::State;
use super::{Command, Core, InFlight, OpId, PathId, Time, Timer, path};
use crate::wire::Message;
use crate::wire::message::Body;

/// The farewell of a session that has ended.
pub(super) struct SessionClose {
    /// Time after which the session sends no further goodbye.
    until: Time,
    /// A bit for each path with a goodbye in flight.
    under_way: u64,
    /// The path of the last goodbye.
    last: Option<usize>,
    /// The timer of the next attempt.
    timer: Option<(Time, u64)>,
}

impl<G> Core<G> {
    /// Ends a session as `end_session` does, and tells the peer if the session was open.
    pub(super) fn part(&mut self, id: SlotId, errno: Errno, now: Time) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.state == State::Up
        {
            let until = now + self.config.connect_timeout;
            session.farewell = Some(Box::new(SessionClose { until, under_way: 0, last: None, timer: None }));
        }
        self.end_session(id, errno);
        self.say_goodbye(id, now);
    }

    /// Sends a goodbye over the best usable path, or schedules the next attempt.
    pub(super) fn say_goodbye(&mut self, id: SlotId, now: Time) {
        if self.is_needless(id, now) {
            self.end_farewell(id);
            return self.settle(id);
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(farewell) = &mut session.farewell else { return };
        // A peer that reads nothing is not told of the end of one session after the other. Other messages that it has
        // not read hold up no farewell: an agent that closes has little time for it.
        let is_free = |at: usize, path: &path::Path| {
            path.is_up(now) && farewell.under_way >> at & 1 == 0 && self.places.takes_farewell(path)
        };
        let paths = session.paths.iter().enumerate().filter(|&(at, path)| is_free(at, path));
        let best = paths.min_by(|&(one, a), &(other, b)| {
            let was_last = |at| farewell.last == Some(at);
            was_last(one).cmp(&was_last(other)).then(a.finish(0, now).total_cmp(&b.finish(0, now)))
        });
        let Some(index) = best.map(|(index, _)| index) else {
            let rests = session.paths.iter().filter(|path| path.addr.is_some()).map(path::Path::rests_until);
            let next = rests.filter(|&until| until > now).min().unwrap_or(now + self.config.repeat_after);
            let next = next.min(farewell.until);
            return self.say_goodbye_at(id, next);
        };
        farewell.under_way |= 1 << index;
        farewell.last = Some(index);
        let Some(addr) = session.paths[index].addr else { return };
        session.paths[index].sent(now);
        session.operations += 1;
        let (rail, to) = (session.paths[index].rail, session.theirs);
        self.places.begin(&session.paths[index], Kind::Farewell, 1, false);
        let op = OpId::message(self.messages.insert(InFlight::Goodbye { session: id, path: index }));
        let bytes = Message { to, body: Body::Goodbye }.encode();
        let path = PathId { session: id, path: index };
        self.commands.push_back(Command::Send { path, op, rail, addr, bytes });
        // The path may be mute, so another is tried later.
        self.say_goodbye_at(id, now + self.config.repeat_after);
    }

    fn say_goodbye_at(&mut self, id: SlotId, at: Time) {
        let key = self.remind(at, Timer::SessionClose(id));
        let farewell = self.sessions.get_mut(id).and_then(|session| session.farewell.as_mut());
        if let Some(before) = farewell.and_then(|farewell| farewell.timer.replace(key)) {
            self.timers.remove(&before);
        }
    }

    fn end_farewell(&mut self, id: SlotId) {
        let farewell = self.sessions.get_mut(id).and_then(|session| session.farewell.take());
        if let Some(timer) = farewell.and_then(|farewell| farewell.timer) {
            self.timers.remove(&timer);
        }
    }

    /// Handles the completion of a goodbye.
    pub(super) fn goodbye_ended(&mut self, id: SlotId, index: usize, is_said: bool, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(farewell) = &mut session.farewell else { return };
        farewell.under_way &= !(1 << index);
        if is_said {
            self.end_farewell(id);
        } else {
            self.say_goodbye(id, now);
        }
    }

    /// Whether the peer needs no goodbye, or is unreachable.
    fn is_needless(&self, id: SlotId, now: Time) -> bool {
        let Some(session) = self.sessions.get(id) else { return true };
        let Some(farewell) = &session.farewell else { return true };
        let current = session.peer.and_then(|peer| self.peers.get(peer)?.current);
        let is_replaced = current.is_some_and(|id| self.sessions.get(id).is_some_and(|other| other.is_up()));
        let is_gone = session.paths.iter().all(|path| path.addr.is_none() || path.is_refused);
        now >= farewell.until || is_replaced || is_gone
    }
}
