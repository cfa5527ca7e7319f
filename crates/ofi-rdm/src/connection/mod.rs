//! One peer: its session, if there is one, and what survives sessions.
//!
//! Packets out: `transmit.rs` makes them, `train.rs` makes rows of them, `sent.rs` remembers them, `pacing.rs` spreads
//! them over time, `packet_size.rs` finds what the path carries. Packets in: `data.rs` takes them one by one,
//! `incoming.rs` takes rows, `foresight.rs` says which come next, `acks.rs` reacts to acknowledgements and finds
//! losses. `timers.rs` reacts to the passing of time. Sessions: `question.rs` asks for them, `session.rs` holds one,
//! `resting.rs` holds one that is idle in less memory, `past.rs` tells an echo from a restart. This file begins and
//! ends sessions.

mod acks;
mod config;
mod data;
mod draft;
mod foresight;
mod incoming;
mod marks;
mod pacing;
mod packet_size;
mod past;
mod question;
mod resting;
mod sent;
mod session;
mod skips;
mod timers;
mod train;
mod transmit;

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use crate::crypto::Protection;
use crate::stream::{ReceiveStream, Senders};
use crate::time::Instant;
use crate::wire::handshake::param;
use crate::wire::{Accept, Header, Init, Params, Stream, header};

pub use config::{Config, Counts, Stats};
pub use data::Arrival;
pub use foresight::Foresight;
use marks::Marks;
use packet_size::PacketSize;
pub use packet_size::{BASE_PACKET, LONGEST_PACKET};
pub use past::Past;
use past::Retired;
use question::Question;
use resting::Resting;
use session::Session;

#[derive(Debug)]
enum State {
    /// No session.
    Idle,
    /// This end has asked for one.
    Connecting,
    /// The peer has asked for one, and what this end would have asked for waits for what comes of that.
    Yielding { until: Instant },
    /// There is one.
    Open,
}

/// Opens the body of a packet in place, if it is protected as those of the session are.
pub fn open_packet<'a>(
    protection: Option<&mut Protection>,
    now: Instant,
    head: &Header,
    bytes: &[u8],
    body: &'a mut [u8],
) -> Option<&'a [u8]> {
    let sealed = head.flags & header::flag::SEALED != 0;
    match protection {
        Some(protection) if sealed => protection.open(now, head.number, bytes, body),
        None if !sealed => Some(body),
        _ => None,
    }
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    pub address: SocketAddr,
    /// This end's name for the session, or for the one asked for.
    pub local: u64,
    state: State,
    session: Option<Box<Session>>,
    /// Which session this end asks for, if it does.
    pub question: Option<Box<Question>>,
    /// The session, while nothing happens in it.
    asleep: Option<Box<Resting>>,
    /// What protects the session's packets, if something does.
    protection: Option<Box<Protection>>,
    pub sender: Senders,
    /// Whether the driver waits for something of the peer.
    pub expecting: bool,
    /// Its place among those that the endpoint looks at.
    pub place: Option<u32>,
    /// Whether the endpoint will ask it for packets.
    pub queued: bool,
    /// Whether the endpoint counts it among those at rest.
    pub resting: bool,
    /// When the endpoint will look at it.
    pub timer: Option<Instant>,
    /// The peer has closed the session, but not everything that it sent has been taken.
    pub closed: bool,
    /// Nothing more is sent.
    pub muted: bool,
    /// It has spoken first, and counts among those of its host.
    pub stranger: bool,
    /// The endpoint counts it among those to which it owes an acknowledgement.
    pub owed: bool,
    /// The endpoint counts it among those whose records were stopped.
    pub stopped: bool,
    /// Sessions that this end has asked for.
    attempts: u64,
    peer_epoch: Option<u64>,
    peer_attempt: u64,
    /// Incarnations that are over.
    retired: Option<Box<Retired>>,
    /// Time without an answer, as far as this end was there to hear one.
    silent: Duration,
    last_tick: Instant,
    pub stats: Counts,
    /// There were marks of congestion, of this end's packets or of the peer's.
    marks: Option<Box<Marks>>,
}

/// How long a question waits to be sent again that lies with its peer.
const WAITED_RETRY: Duration = Duration::from_secs(1);
/// Packets after which an acknowledgement does not wait.
const ACK_EVERY: u32 = 2;

impl Connection {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            local: 0,
            state: State::Idle,
            session: None,
            question: None,
            asleep: None,
            protection: None,
            sender: Senders::new(),
            expecting: false,
            place: None,
            queued: false,
            resting: false,
            timer: None,
            closed: false,
            muted: false,
            stranger: false,
            owed: false,
            stopped: false,
            attempts: 0,
            peer_epoch: None,
            peer_attempt: 0,
            retired: None,
            silent: Duration::ZERO,
            last_tick: Instant::default(),
            stats: Counts::default(),
            marks: None,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether there is a session, and no message was sent in it since `since` that is still under way; or a whole
    /// packet waits. Probes do not count: whoever posted the last message has nothing left to look for.
    pub fn is_ready(&self, since: Instant) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.in_flight_packets == 0
                || session.last_eliciting <= since
                || !self.sender.is_under_way()
                || self.sender.commands.unsent() as u64 >= session.size.packet()
        })
    }

    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting | State::Yielding { .. })
    }

    /// The peer's name for the session.
    pub fn remote(&self) -> Option<u64> {
        let asleep = self.asleep.as_ref().map(|session| session.remote);
        self.session.as_ref().map(|session| session.remote).or(asleep)
    }

    /// Where its process answers for it, and its epoch.
    pub fn liveness(&self) -> Option<(SocketAddr, u64)> {
        let port = self.params()?.liveness_port;
        let mut address = self.address; // with its scope, where it has one
        address.set_port(port);
        (port != 0).then_some((address, self.peer_epoch?))
    }

    /// What the peer said of itself.
    fn params(&self) -> Option<&Params> {
        let asleep = self.asleep.as_ref().map(|session| &session.peer);
        self.session.as_ref().map(|session| &session.peer).or(asleep)
    }

    /// The longest record that the peer takes.
    pub fn longest_record(&self) -> u64 {
        self.params().map_or(crate::wire::handshake::LEAST_WINDOW, |peer| peer.window) / 2
            - crate::wire::record::HEAD as u64
    }

    /// The peer is being looked at again after a while.
    pub fn wake(&mut self, now: Instant) {
        self.last_tick = now;
        self.thaw();
    }

    /// Whether an `Init` of the peer is to be answered.
    pub fn hears(&self, now: Instant, own_epoch: u64, init: &Init) -> bool {
        if self.is_echo(init) {
            return false;
        }
        match self.state {
            // Both ask at once: the higher epoch's question counts.
            State::Connecting => own_epoch < init.epoch,
            // The peer has granted this session, and does not know yet that this end knows.
            State::Open if self.peer_epoch == Some(init.epoch) => {
                !self.session.as_ref().is_some_and(|session| session.is_unconfirmed(now))
            }
            _ => true,
        }
    }

    /// This end's name for the session that there is, if it is with the incarnation that calls it `remote` and has this
    /// epoch.
    pub fn is_with(&self, epoch: u64, local: u64) -> bool {
        self.is_open() && self.peer_epoch == Some(epoch) && self.local == local
    }

    /// The name that the incarnation `epoch` of the peer has for the session that there is with it; 0 without.
    pub fn current(&self, epoch: u64) -> u64 {
        if self.peer_epoch == Some(epoch) { self.remote().unwrap_or(0) } else { 0 }
    }

    /// Begins a session that the peer has asked for, under the name `local`.
    pub fn begin_server(
        &mut self,
        now: Instant,
        config: &Config,
        local: u64,
        init: &Init,
        protection: Option<Box<Protection>>,
    ) {
        self.local = local;
        self.meet(init.epoch, init.attempt);
        self.open(now, config, init.session, init.params, protection);
    }

    /// Begins the session that was asked for, and lets the server know.
    pub fn begin_client(
        &mut self,
        now: Instant,
        config: &Config,
        accept: &Accept,
        protection: Option<Box<Protection>>,
    ) {
        self.meet(accept.epoch, accept.attempt);
        self.open(now, config, accept.session, accept.params, protection);
        if let Some(session) = &mut self.session {
            session.probes = 1;
        }
    }

    /// Begins a session with the endpoint itself.
    pub fn begin_self(
        &mut self,
        now: Instant,
        config: &Config,
        epoch: u64,
        protection: Option<Box<Protection>>,
    ) {
        self.meet(epoch, self.attempts);
        self.open(now, config, self.local, config.params, protection);
    }

    fn open(
        &mut self,
        now: Instant,
        config: &Config,
        remote: u64,
        peer: Params,
        protection: Option<Box<Protection>>,
    ) {
        (self.state, self.question, self.protection) = (State::Open, None, protection);
        (self.silent, self.last_tick) = (Duration::ZERO, now);
        for stream in Stream::ALL {
            self.sender.stream(stream).set_limit(peer.window);
        }
        let longest = config.params.max_packet.min(peer.max_packet) as u64;
        self.asleep = None;
        if let Some(marks) = self.marks.as_deref_mut() {
            marks.restart();
        }
        let receive = core::array::from_fn(|_| ReceiveStream::new(config.params.window));
        let controller = config.congestion.controller(BASE_PACKET.min(longest));
        let size = PacketSize::new(longest);
        self.session = Some(Box::new(Session::begin(remote, peer, receive, controller, size, now)));
    }

    /// Opens the body of a packet in place. `None` if the peer did not send it so.
    pub fn open_packet<'a>(
        &mut self,
        now: Instant,
        head: &Header,
        bytes: &[u8],
        body: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        open_packet(self.protection.as_deref_mut(), now, head, bytes, body)
    }

    /// Whether the session's packets are sealed.
    pub fn is_sealed(&self) -> bool {
        self.protection.is_some()
    }

    /// Whether too many forged packets came.
    pub fn is_spent(&self) -> bool {
        self.protection.as_deref().is_some_and(Protection::is_spent)
    }

    /// Bytes behind the frames of each packet.
    fn trailer(&self) -> usize {
        self.protection.as_deref().map_or(0, Protection::trailer)
    }

    /// Whether all packets must carry a checksum.
    pub fn is_checked(&self, config: &Config) -> bool {
        if self.trailer() > 0 {
            return false; // a seal does more
        }
        let peer = self.params().map_or(0, |peer| peer.flags);
        (peer | config.params.flags) & param::CHECKED != 0
    }

    /// Forgets the session and everything that was to be sent.
    pub fn reset(&mut self) {
        self.state = State::Idle;
        (self.session, self.asleep, self.protection, self.question) = (None, None, None, None);
        self.sender = Senders::new();
        (self.expecting, self.closed) = (false, false);
        self.silent = Duration::ZERO;
        self.local = 0;
    }

    /// Something came from the peer that only the peer can have sent.
    fn hear(&mut self, now: Instant) {
        self.silent = Duration::ZERO;
        if let Some(session) = &mut self.session {
            (session.asks, session.hints, session.last_heard) = (0, 0, now);
        }
    }

    /// The peer's process says that the endpoint lives: it does not look, which says nothing of the path.
    pub fn on_alive(&mut self, now: Instant) {
        self.hear(now);
        if let Some(session) = &mut self.session {
            session.unanswered = 0;
            session.end_silence(now);
        }
    }

    /// The process of the peer that was asked for a session says that the endpoint lives: it has the question, and will
    /// look at it.
    pub fn on_wait(&mut self, now: Instant) {
        if let Some(question) = &mut self.question {
            self.silent = Duration::ZERO;
            question.put_off(now + WAITED_RETRY);
        }
    }

    /// Asks whether the peer is there, if nothing has come of it for so long. It has been lost soon if it is not.
    pub fn ask_if_idle(&mut self, now: Instant, idle: Duration) -> bool {
        let asleep = self.asleep.as_ref().map(|session| session.last_heard);
        let heard = self.session.as_ref().map(|session| session.last_heard).or(asleep);
        if !self.is_open() || self.expecting || heard.is_none_or(|heard| now < heard + idle) {
            return false;
        }
        self.thaw();
        if let Some(session) = self.session.as_deref_mut().filter(|session| session.in_flight_packets == 0) {
            session.probes = session.probes.max(1);
        }
        true
    }

    /// Acknowledges at the next opportunity what was to wait. Whether there is something.
    pub fn hasten(&mut self) -> bool {
        let Some(session) = &mut self.session else { return false };
        session.ack_now |= session.unacked > 0;
        session.ack_now
    }

    /// Whether [`Connection::hasten`] may find something.
    pub fn owes(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.unacked > 0 || session.ack_now)
    }

    /// Counters.
    pub fn statistics(&self) -> Stats {
        let Counts { packets, lost, duplicates, probes, stalls } = self.stats;
        let marked = self.marks.as_ref().map_or([0; 2], |marks| marks.total);
        let mut stats = Stats { packets, lost, marked, duplicates, probes, stalls, ..Stats::default() };
        if let Some(session) = &self.session {
            stats.rtt_ns = session.rtt.smoothed().as_nanos() as u64;
            stats.window = session.controller.window();
            stats.packet_size = session.size.packet();
        } else if let Some(session) = &self.asleep {
            session.describe(&mut stats);
        }
        stats
    }
}
