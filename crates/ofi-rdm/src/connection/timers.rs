//! Handles the passing of time: losses, probes, silence.

use core::time::Duration;

use super::session_request::SessionRequest;
use super::{Config, Connection, State};
use crate::driver::Lost;
use crate::time::Instant;

/// The maximum interval between probes, unless three round trips of the path take longer. It lets a peer that resumes
/// after a pause get its data soon.
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum silence that one clock reading adds, because an endpoint that is not polled cannot hear its peer.
const MAX_TICK: Duration = Duration::from_secs(1);
/// The peer's process is asked after this many probe timeouts, if they took at least this long.
const ASK_AFTER: (u32, Duration) = (2, Duration::from_millis(10));
/// The minimum interval between probes in response to unreachable reports.
pub(super) const LEAST_HINT_GAP: Duration = Duration::from_millis(100);
/// Unreachable reports are believed after this many since a packet last arrived from the peer. The patience is then
/// divided by the second number.
const BELIEVED_HINTS: (u32, u32) = (3, 5);
/// The path is assumed to have changed after this many probe timeouts in which the peer's process did not answer
/// either, if they took at least this long. A thread that waits for a core is not a change of the path.
const BLACK_HOLE_AFTER: (u32, Duration) = (4, Duration::from_millis(50));

impl Connection {
    /// The time at which [`Connection::on_time`] must be called next.
    pub fn timeout(&self, config: &Config) -> Option<Instant> {
        let question = self.question.as_deref().map(SessionRequest::timeout);
        if let State::Yielding { until } = self.state {
            return Some(until);
        }
        let Some(session) = self.session.as_deref() else { return question };
        let mut earliest = session.loss_time;
        let mut add = |time: Option<Instant>| {
            earliest = match (earliest, time) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        };
        add(session.ack_by.filter(|_| session.unacked > 0));
        add(session.pacer.until().filter(|_| self.sender.has_output()));
        add(self.probe_time());
        add(self.keep_alive_time(config));
        add(question);
        earliest
    }

    fn probe_time(&self) -> Option<Instant> {
        let session = self.session.as_deref().filter(|session| session.in_flight_packets > 0)?;
        let backoff = 1u32 << session.probe_count.min(12);
        let wait = session.rtt.probe_timeout().saturating_mul(backoff);
        let longest =
            session.rtt.least().map_or(MAX_PROBE_INTERVAL, |least| MAX_PROBE_INTERVAL.max(least * 3));
        let wait = wait.min(longest);
        Some(session.last_eliciting + wait)
    }

    /// The time at which to probe a peer that the driver waits for.
    fn keep_alive_time(&self, config: &Config) -> Option<Instant> {
        let session = self.session.as_deref().filter(|session| session.in_flight_packets == 0)?;
        let waits = self.expecting || self.sender.commands.is_blocked() || self.sender.bulk.is_blocked();
        waits.then(|| session.last_heard.max(session.last_eliciting) + config.patience / 4)
    }

    /// Handles a report by the network that the peer is unreachable: probes it, at most once per probe timeout.
    pub fn on_unreachable(&mut self, now: Instant) {
        self.thaw();
        let Some(session) = self.session.as_deref_mut() else { return };
        let wait = session.rtt.probe_timeout().max(LEAST_HINT_GAP);
        if session.last_hint.is_some_and(|last| now < last + wait) {
            return;
        }
        (session.last_hint, session.hints) = (Some(now), session.hints + 1);
        session.probes = session.probes.max(1);
        session.ask |= session.peer.liveness_port != 0;
    }

    /// Whether no timer is pending.
    pub fn is_quiet(&self) -> bool {
        match (&self.state, &self.session) {
            (State::Connecting | State::Yielding { .. }, _) => false,
            (_, Some(session)) => {
                self.question.is_none()
                    && session.in_flight_packets == 0
                    && session.unacked == 0
                    && !session.ack_now
                    && !session.tell_credit
                    && !session.ask
                    && session.size.probe().is_none()
                    && !self.expecting
                    && self.sender.is_drained()
                    && session.receive.iter().all(|stream| stream.new_limit().is_none())
            }
            (_, None) => self.sender.is_drained(),
        }
    }

    /// Handles the passing of time.
    ///
    /// # Errors
    /// Why the session ended.
    pub fn on_time(&mut self, now: Instant, config: &Config) -> Result<(), Lost> {
        let passed = now.since(self.last_tick).min(MAX_TICK);
        self.last_tick = now;
        let connecting = self.is_connecting();
        let refused = self.refused(now);
        self.stop_yielding(now);
        let keep_alive = self.keep_alive_time(config).is_some_and(|time| time <= now);
        let probe = self.probe_time().is_some_and(|time| time <= now);
        let Some(session) = self.session.as_deref_mut() else {
            if connecting {
                self.silent += passed;
                if self.silent >= config.patience {
                    return Err(Lost::Silent);
                }
            }
            return refused.map_or(Ok(()), Err);
        };
        session.pacer.on_time(now);
        if session.probe_count > 0 {
            self.silent += passed;
            let (hints, part) = BELIEVED_HINTS;
            let patience = if session.hints >= hints { config.patience / part } else { config.patience };
            if self.silent >= patience && (session.asks >= 2 || session.peer.liveness_port == 0) {
                return Err(Lost::Silent);
            }
        }
        if session.loss_time.is_some_and(|time| time <= now) {
            self.stats.lost += session.find_lost(&mut self.sender, now);
        }
        if keep_alive {
            session.probes = 1;
        }
        if probe {
            if session.probe_count == 0 {
                session.silent_from = now;
            }
            if session.unanswered == 0 {
                (session.unanswered_from, session.changed) = (now, false);
            }
            session.probe_count += 1;
            session.unanswered += 1;
            session.probes = 2;
            self.stats.probes += 1;
            session.repeat_oldest(&mut self.sender);
            let (count, time) = ASK_AFTER;
            let long = session.probe_count >= count && now >= session.silent_from + time;
            session.ask |= long && session.peer.liveness_port != 0;
            let (count, time) = BLACK_HOLE_AFTER;
            let over = session.unanswered >= count && now >= session.unanswered_from + time;
            if over && !session.changed {
                session.changed = true;
                session.controller.on_silence(now);
                if session.size.on_black_hole() {
                    session.controller.set_packet_size(session.size.packet());
                }
            }
        }
        Ok(())
    }
}
