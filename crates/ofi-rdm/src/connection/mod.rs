//! One peer: its session, if there is one, and the state that outlives sessions.
//!
//! Outgoing packets: `transmit.rs` sends them, `draft.rs` assembles one, `train.rs` makes rows of them, `sent.rs`
//! records them, `pacing.rs` spreads them over time, `packet_size.rs` finds the path's limit. Incoming packets:
//! `data.rs` processes single packets, `incoming.rs` rows, `prediction.rs` predicts the next ones, `placed.rs` takes
//! predicted ones with more frames, `acks.rs` processes acknowledgements and finds losses. `timers.rs` handles the
//! passing of time. Sessions: `session_request.rs` requests them, `session.rs` holds an active one, `resting.rs` an
//! idle one in less memory, `past.rs` distinguishes echoes from restarts. This file begins and ends sessions.

mod acks;
mod config;
mod data;
mod draft;
mod incoming;
mod marks;
mod pacing;
mod packet_size;
mod past;
mod placed;
mod prediction;
mod resting;
mod sent;
mod session;
mod session_request;
mod skips;
mod timers;
mod train;
mod transmit;

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use crate::crypto::Protection;
use crate::driver::Late;
use crate::stream::{ReceiveStream, Senders};
use crate::time::Instant;
use crate::wire::handshake::param;
use crate::wire::{Accept, Header, Init, Params, Stream, header};

pub use config::{Config, PeerCounts, Stats};
pub use data::Arrival;
use marks::Marks;
use packet_size::PacketSize;
pub use packet_size::{BASE_PACKET, MAX_PACKET_LEN};
pub use past::OldIncarnations;
use past::Retired;
pub use prediction::RxPrediction;
use resting::IdleSession;
use session::Session;
use session_request::SessionRequest;

#[derive(Debug)]
enum State {
    /// No session.
    Idle,
    /// This end requested a session.
    Connecting,
    /// The peer requested a session, and this end's own request waits for the outcome.
    Yielding { until: Instant },
    /// A session is open.
    Open,
}

/// Decrypts the body of a packet in place, if the session's packets are protected.
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

/// The state of one peer: its session, if there is one, and the state that outlives sessions.
#[derive(Debug)]
pub struct Connection {
    pub address: SocketAddr,
    /// This end's name for the session that is open or requested.
    pub local: u64,
    state: State,
    session: Option<Box<Session>>,
    /// This end's request for a session, if one is pending.
    pub question: Option<Box<SessionRequest>>,
    /// The session, while it is idle.
    asleep: Option<Box<IdleSession>>,
    /// The keys that protect the session's packets, if any.
    protection: Option<Box<Protection>>,
    pub sender: Senders,
    /// Whether the driver waits for the peer.
    pub expecting: bool,
    /// Index in the endpoint's list of active peers.
    pub place: Option<u32>,
    /// Whether the peer is in the endpoint's send queue.
    pub queued: bool,
    /// Whether the endpoint counts the peer as resting.
    pub resting: bool,
    /// The time of the endpoint's timer for this peer.
    pub timer: Option<Instant>,
    /// The peer has closed the session, but the driver has not taken everything that the peer sent.
    pub closed: bool,
    /// Nothing more is sent.
    pub muted: bool,
    /// The peer made the first contact, and counts among the strangers of its host.
    pub stranger: bool,
    /// Whether the peer is in the endpoint's list of peers to which an acknowledgement is due.
    pub owed: bool,
    /// Whether the peer is in the endpoint's list of peers whose records were stopped.
    pub stopped: bool,
    /// Number of sessions that this end requested.
    attempts: u64,
    peer_epoch: Option<u64>,
    peer_attempt: u64,
    /// The peer's past incarnations.
    retired: Option<Box<Retired>>,
    /// How long the peer has not answered, while this end was polled and could have received an answer.
    silent: Duration,
    last_tick: Instant,
    pub stats: PeerCounts,
    /// Congestion marks, of this end's packets or the peer's.
    marks: Option<Box<Marks>>,
}

/// The interval at which a question is repeated if the peer's process has reported that its endpoint will read it.
const WAITED_RETRY: Duration = Duration::from_secs(1);
/// After this many packets an acknowledgement is not delayed.
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
            stats: PeerCounts::default(),
            marks: None,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether a session is open and data should leave now: no message sent since `since` is in flight, or a full
    /// packet waits. Probes do not count: the program that posted the last message has no reason to poll again.
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

    /// The address at which the peer's process answers liveness questions, and the peer's epoch.
    pub fn liveness(&self) -> Option<(SocketAddr, u64)> {
        let port = self.params()?.liveness_port;
        let mut address = self.address; // including its scope, if it has one
        address.set_port(port);
        (port != 0).then_some((address, self.peer_epoch?))
    }

    /// The peer's parameters.
    fn params(&self) -> Option<&Params> {
        let asleep = self.asleep.as_ref().map(|session| &session.peer);
        self.session.as_ref().map(|session| &session.peer).or(asleep)
    }

    /// The longest record that the peer accepts.
    pub fn longest_record(&self) -> u64 {
        self.params().map_or(crate::wire::handshake::LEAST_WINDOW, |peer| peer.window) / 2
            - crate::wire::record::HEAD as u64
    }

    /// Prepares the peer for use after a pause.
    pub fn wake(&mut self, now: Instant) {
        self.last_tick = now;
        self.thaw();
    }

    /// Whether this end must answer an `Init` of the peer.
    pub fn hears(&self, now: Instant, own_epoch: u64, init: &Init) -> bool {
        if self.is_echo(init) {
            return false;
        }
        match self.state {
            // Both ends request a session at once: the request of the higher epoch wins.
            State::Connecting => own_epoch < init.epoch,
            // The peer granted this session, but does not know yet that the grant has arrived.
            State::Open if self.peer_epoch == Some(init.epoch) => {
                !self.session.as_ref().is_some_and(|session| session.is_unconfirmed(now))
            }
            _ => true,
        }
    }

    /// This end's name for the open session with the incarnation of this epoch, if it is the one that the peer calls
    /// `remote`.
    pub fn is_with(&self, epoch: u64, local: u64) -> bool {
        self.is_open() && self.peer_epoch == Some(epoch) && self.local == local
    }

    /// The name that incarnation `epoch` of the peer uses for the open session; 0 without one.
    pub fn current(&self, epoch: u64) -> u64 {
        if self.peer_epoch == Some(epoch) { self.remote().unwrap_or(0) } else { 0 }
    }

    /// Begins a session that the peer requested. This end calls it `local`.
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

    /// Begins the session that this end requested, and confirms it to the server.
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

    /// Decrypts the body of a packet in place. `None` if it is not authentic.
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

    /// Whether the limit of forged packets is reached.
    pub fn is_spent(&self) -> bool {
        self.protection.as_deref().is_some_and(Protection::is_spent)
    }

    /// Bytes after the frames of each packet.
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

    /// Discards the session and everything that was still to be sent.
    pub fn reset(&mut self) {
        self.state = State::Idle;
        (self.session, self.asleep, self.protection, self.question) = (None, None, None, None);
        self.sender = Senders::new();
        (self.expecting, self.closed) = (false, false);
        self.silent = Duration::ZERO;
        self.local = 0;
    }

    /// Records that an authentic packet arrived from the peer.
    fn hear(&mut self, now: Instant) {
        self.silent = Duration::ZERO;
        if let Some(session) = &mut self.session {
            (session.asks, session.hints, session.last_heard) = (0, 0, now);
        }
    }

    /// Handles a report by the peer's process that the endpoint exists but is not being polled. The report says nothing
    /// about the path.
    pub fn on_alive(&mut self, now: Instant) {
        self.hear(now);
        if let Some(session) = &mut self.session {
            session.unanswered = 0;
            session.end_silence(now);
        }
    }

    /// Handles a report by the peer's process that the endpoint to which a session request was sent exists: the request
    /// is in its socket and will be read.
    pub fn on_wait(&mut self, now: Instant) {
        if let Some(question) = &mut self.question {
            self.silent = Duration::ZERO;
            question.hear();
            question.put_off(now + WAITED_RETRY);
        }
    }

    /// Probes the peer if it was silent for `idle`, so that an absent peer is soon detected.
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

    /// Makes a delayed acknowledgement due now. Returns whether there is one.
    pub fn hasten(&mut self) -> bool {
        let Some(session) = &mut self.session else { return false };
        session.ack_now |= session.unacked > 0;
        session.ack_now
    }

    /// Whether [`Connection::hasten`] may find a delayed acknowledgement.
    pub fn owes(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.unacked > 0 || session.ack_now)
    }

    /// The state for the driver's log.
    pub fn late(&self) -> Late {
        let Stats { probes: timeouts, lost, rtt_ns, window, packet_size, .. } = self.statistics();
        Late { timeouts, lost, rtt_ns, window, packet_size }
    }

    /// Whether the peer has been silent for so long that the congestion window was reset.
    pub fn is_silent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.changed)
    }

    /// The peer's counters.
    pub fn statistics(&self) -> Stats {
        let PeerCounts { packets, lost, duplicates, probes, stalls } = self.stats;
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
