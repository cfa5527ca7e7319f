//! A request for a session, called a question. This end repeats it until it is answered, is refused, or times out.
//!
//! An end also asks if an unauthenticated packet says that its peer no longer has the open session, to find out whether
//! that is true.

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use super::{Connection, State};
use crate::crypto::{Identity, Initiator};
use crate::driver::Lost;
use crate::time::Instant;
use crate::wire::handshake::{FIRST_LEN, INIT_LEN};
use crate::wire::header::{self, flag};
use crate::wire::{Header, Init, Kind, Params, Retry};

/// The first interval before an `Init` is sent again; it doubles.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// The longest interval: some forty tries in 5 s connect two ends even if the path loses every second packet.
const LAST_RETRY: Duration = Duration::from_millis(125);
/// How long to wait for the server's own answer after a refusal, which is unauthenticated and may be forged.
const REFUSAL_GRACE: Duration = Duration::from_millis(250);
/// A question fails after this many reports that the server's port is closed, if they span at least this many [`PARTS`]
/// of the patience (2 s of 5). Hosts report rarely (Linux: once a second per destination, six at first). Reports may be
/// forged or stale, and the server may be about to start.
const REPORTS: (u32, u32) = (3, 2);
const PARTS: u32 = 5;
/// The minimum interval between replacements of a cookie, since each new one costs a new key.
const LEAST_COOKIE_TIME: Duration = Duration::from_millis(500);
/// How long this end's question yields to the peer's, which is older or takes precedence.
const YIELD: Duration = Duration::from_millis(500);
/// Attempts to find out whether the peer still has a session.
const CHECKS: u32 = 8;

/// The state of one request for a session.
#[derive(Debug)]
pub struct SessionRequest {
    /// This end's name for the session.
    pub name: u64,
    /// The question only checks a doubted session.
    pub is_check: bool,
    attempt: u64,
    cookie: u64,
    since: Instant,
    next: Instant,
    tries: u32,
    handshake: Option<(Box<Initiator>, [u8; FIRST_LEN])>,
    refused: Option<(Instant, Lost)>,
    absent: Absent,
}

/// Reports that the server's port is closed, since the question began or a packet last came from that port.
#[derive(Debug, Default)]
struct Absent {
    count: u32,
    /// The number of tries at the last report, so that each try counts once.
    tries: u32,
    /// The silence at the first report.
    since: Duration,
}

impl SessionRequest {
    fn new(now: Instant, name: u64, attempt: u64, is_check: bool) -> Self {
        let (cookie, tries) = (0, 0);
        let (handshake, refused, absent) = (None, None, Absent::default());
        Self { name, is_check, attempt, cookie, since: now, next: now, tries, handshake, refused, absent }
    }

    fn init(&self, epoch: u64, suites: u8, server: SocketAddr, params: Params) -> Init {
        let message = self.handshake.as_ref().map_or([0; FIRST_LEN], |(_, message)| *message);
        let (session, attempt, cookie) = (self.name, self.attempt, self.cookie);
        Init { session, epoch, attempt, cookie, params, suites, server, message }
    }

    /// The initiator that waits for the handshake's second message, if there is one.
    pub fn initiator(&self) -> Option<&Initiator> {
        self.handshake.as_ref().map(|(initiator, _)| &**initiator)
    }

    /// Records that a packet from the server's address belongs to this question: the port is open.
    pub fn hear(&mut self) {
        self.absent = Absent { tries: self.tries, ..Absent::default() };
        self.refused = self.refused.filter(|(_, reason)| *reason != Lost::Refused);
    }

    /// Postpones the next attempt until `time`.
    pub fn put_off(&mut self, time: Instant) {
        self.next = self.next.max(time);
    }

    /// When the question needs attention.
    pub fn timeout(&self) -> Instant {
        self.refused.map_or(self.next, |(at, _)| self.next.min(at + REFUSAL_GRACE))
    }
}

impl Connection {
    /// Starts to request a session under the name `local`.
    pub fn connect(&mut self, now: Instant, local: u64) {
        if !self.is_connecting() {
            self.silent = Duration::ZERO;
        }
        self.local = local;
        self.attempts += 1;
        self.state = State::Connecting;
        self.question = Some(Box::new(SessionRequest::new(now, local, self.attempts, false)));
    }

    /// Handles an unauthenticated packet that says that the peer does not know the session. Returns whether
    /// [`Connection::check`] must verify that.
    pub fn doubt(&mut self, now: Instant) -> bool {
        self.thaw();
        let Some(session) = self.session.as_deref_mut() else { return false };
        let wait = session.rtt.probe_timeout().max(super::timers::LEAST_HINT_GAP);
        if self.question.is_some() || session.last_hint.is_some_and(|last| now < last + wait) {
            return false;
        }
        session.last_hint = Some(now);
        true
    }

    /// Requests another session only to learn whether the peer still has this one.
    pub fn check(&mut self, now: Instant, name: u64) {
        self.attempts += 1;
        self.question = Some(Box::new(SessionRequest::new(now, name, self.attempts, true)));
    }

    /// Gives the peer's question precedence. This end's question becomes void, and a new one follows if the peer's
    /// question leads to no session.
    pub fn give_way(&mut self, now: Instant) {
        if self.is_connecting() {
            self.question = None;
            self.state = State::Yielding { until: now + YIELD };
        }
    }

    /// Whether data waits for a session that neither end has requested.
    pub fn wants_session(&self) -> bool {
        match self.state {
            State::Idle => !self.sender.is_drained(),
            State::Yielding { .. } | State::Connecting | State::Open => false,
        }
    }

    /// Stops yielding to a peer's question that led to no session.
    pub(super) fn stop_yielding(&mut self, now: Instant) {
        if matches!(self.state, State::Yielding { until } if until <= now) {
            self.state = State::Idle;
        }
    }

    /// The server asks for its cookie.
    pub fn retry(&mut self, now: Instant, retry: Retry, identity: &mut Identity, params: Params) {
        let Some(question) = &mut self.question else { return };
        question.hear();
        if question.cookie == retry.cookie
            || (question.cookie != 0 && now < question.since + LEAST_COOKIE_TIME)
        {
            return;
        }
        (question.cookie, question.since, question.next) = (retry.cookie, now, now);
        question.handshake = None;
        let mut body = [0u8; Init::LEN];
        question.init(identity.epoch, identity.suites(), self.address, params).write(&mut body);
        question.handshake = identity.initiate(&Init::prologue(&body), retry.insists);
    }

    /// Handles an unauthenticated packet that says that there will be no session.
    pub fn refuse(&mut self, now: Instant, reason: Lost) {
        match &mut self.question {
            Some(question) if question.is_check => self.question = None,
            Some(question) => _ = question.refused.get_or_insert((now, reason)),
            None => {}
        }
    }

    /// Handles a report by the network that the server's port is closed. Time is measured as silence, which does not
    /// grow while this end is not polled: otherwise a report could be as old as the last poll.
    pub fn on_refused(&mut self, now: Instant, patience: Duration) {
        let silent = self.silent;
        let Some(question) = self.question.as_deref_mut().filter(|question| !question.is_check) else {
            return;
        };
        let absent = &mut question.absent;
        if absent.tries == question.tries {
            return;
        }
        absent.tries = question.tries;
        if absent.count == 0 {
            absent.since = silent;
        }
        absent.count += 1;
        let (count, parts) = REPORTS;
        if absent.count >= count && silent.saturating_sub(absent.since) >= patience * parts / PARTS {
            question.refused.get_or_insert((now, Lost::Refused));
        }
    }

    /// The error with which the question must be abandoned, if any.
    pub(super) fn refused(&self, now: Instant) -> Option<Lost> {
        let (at, reason) = self.question.as_ref()?.refused?;
        (at + REFUSAL_GRACE <= now).then_some(reason)
    }

    /// Writes the question if it is due; returns its length.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        params: Params,
        identity: &Identity,
        buf: &mut [u8],
    ) -> Option<usize> {
        let question = self.question.as_deref_mut()?;
        if question.next > now {
            return None;
        }
        if question.is_check && question.tries >= CHECKS {
            self.question = None;
            return None;
        }
        question.next = now + (FIRST_RETRY * (1 << question.tries.min(8))).min(LAST_RETRY);
        question.tries += 1;
        let packet = buf.get_mut(..INIT_LEN)?;
        packet.fill(0);
        let init = question.init(identity.epoch, identity.suites(), self.address, params);
        init.write(&mut packet[header::LEN..]);
        Header { flags: flag::CHECKED, ..Header::new(Kind::Init, 0, 0) }.write(packet);
        Some(INIT_LEN)
    }
}
