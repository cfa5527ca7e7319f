//! One peer: its session, if there is one, and what survives sessions.
//!
//! `transmit.rs` makes packets, `train.rs` rows of them, `sent.rs` remembers them, `incoming.rs` takes such rows, `acks.rs`
//! reacts to acknowledgements and finds losses, `timers.rs` to the passing of time, `pacing.rs` spreads packets over it,
//! `packet_size.rs` finds what the path carries, `question.rs` asks for sessions, `resting.rs` is one that nothing happens in. This file is about
//! sessions: how they begin, take packets, and end.

mod acks;
mod incoming;
mod pacing;
mod packet_size;
mod question;
mod resting;
mod sent;
mod timers;
mod train;
mod transmit;

use alloc::boxed::Box;
use core::net::SocketAddr;
use core::time::Duration;

use crate::congestion::{Congestion, Controller};
use crate::crypto::Protection;
use crate::endpoint::Driver;
use crate::ranges::RangeSet;
use crate::rtt::Rtt;
use crate::stream::{Flow, ReceiveStream, Refused, Senders, Stream};
use crate::time::Instant;
use crate::wire::handshake::param;
use crate::wire::{Accept, Frame, Header, Init, Params, Record, header};

use pacing::Pacer;
pub use packet_size::{BASE_PACKET, LONGEST_PACKET};
use packet_size::{PacketSize, Vanishing};
use question::Question;
use resting::Resting;
use sent::{History, Sent};
pub use train::Heads;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What peers are told.
    pub params: Params,
    /// Which congestion controller sessions get.
    pub congestion: Congestion,
    /// How long a peer may leave questions unanswered, its process too, before everything addressed to it fails.
    pub patience: Duration,
    /// How long an acknowledgement may wait for something to go along with.
    pub ack_delay: Duration,
    /// Peers that strangers may make this end remember, at most.
    pub max_peers: usize,
    /// And of those, of one host (IPv6: of one /64).
    pub max_of_host: usize,
    /// How long nothing has to come of a stranger before it may be asked whether it is there: for the place that it takes.
    pub idle: Duration,
    /// Peers at rest whose sessions stay as they are, for the next message to them; others are put into less memory.
    pub warm_peers: usize,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nobody answered for as long as was to be waited.
    Silent,
    /// The peer closed it.
    Closed,
    /// The peer knows nothing of it, or has begun another one.
    Reset,
    /// The peer broke the protocol.
    Broken,
    /// The peer speaks other versions of the protocol.
    Version,
    /// The peer has another authorization key.
    Key,
    /// The peer protects packets in no way that this end takes.
    Suites,
    /// The peer does not have the address that it was asked at, or not this end that which the peer sees: somebody changes addresses on
    /// the way.
    Address,
    /// More packets were forged than may be tried against one session.
    Forged,
}

/// Counters of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent, and received.
    pub packets: [u64; 2],
    /// Packets that were found lost.
    pub lost: u64,
    /// Packets that came more than once.
    pub duplicates: u64,
    /// Probe timeouts.
    pub probes: u64,
    /// Times that data waited for the peer's credit, and for the congestion window.
    pub stalls: [u64; 2],
    /// Smoothed round-trip time in nanoseconds.
    pub rtt_ns: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// Longest packet in bytes.
    pub packet_size: u64,
}

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

/// Everything of a session. Boxed, so that a peer without one costs little.
#[derive(Debug)]
struct Session {
    /// The peer's name for it.
    remote: u64,
    peer: Params,
    receive: [ReceiveStream; 2],

    next_number: u64,
    sent: History,
    in_flight: u64,
    in_flight_packets: u64,
    largest_acked: Option<u64>,
    last_eliciting: Instant,
    loss_time: Option<Instant>,
    probe_count: u32,
    /// The first of these probe timeouts.
    silent_from: Instant,
    /// Those since the peer's process last said that the endpoint lives, the first of them, and whether the path counts as changed
    /// since, until something is heard.
    unanswered: u32,
    unanswered_from: Instant,
    changed: bool,
    probes: u32,
    /// Packets that may go beyond the window, as this end will not be here when there is room.
    farewell: u32,
    rtt: Rtt,
    /// Round trips passed over, since the last that was not.
    odd_samples: u8,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    size: PacketSize,
    vanishing: Vanishing,

    received: RangeSet,
    /// Numbers below are forgotten, and count as received.
    floor: u64,
    largest_at: Instant,
    unacked: u32,
    ack_by: Option<Instant>,
    ack_now: bool,
    /// Acknowledgements do not wait: the last one that did found no company.
    quick: bool,
    tell_credit: bool,
    bulk_first: bool,
    ask: bool,
    asks: u32,
    last_heard: Instant,
    /// When the network last said that the peer cannot be reached, and was believed so far as to ask; and how often since
    /// something was heard.
    last_hint: Option<Instant>,
    hints: u32,
}

impl Session {
    /// Nothing was sent yet, and nothing came.
    fn begin(
        remote: u64,
        peer: Params,
        receive: [ReceiveStream; 2],
        controller: Box<dyn Controller>,
        size: PacketSize,
        now: Instant,
    ) -> Self {
        Self {
            remote,
            peer,
            receive,
            next_number: 0,
            sent: History::new(),
            in_flight: 0,
            in_flight_packets: 0,
            largest_acked: None,
            last_eliciting: now,
            loss_time: None,
            probe_count: 0,
            silent_from: now,
            unanswered: 0,
            unanswered_from: now,
            changed: false,
            probes: 0,
            farewell: 0,
            rtt: Rtt::default(),
            odd_samples: 0,
            controller,
            pacer: Pacer::default(),
            size,
            vanishing: Vanishing::default(),
            received: RangeSet::default(),
            floor: 0,
            largest_at: now,
            unacked: 0,
            ack_by: None,
            ack_now: false,
            quick: true,
            tell_credit: false,
            bulk_first: false,
            ask: false,
            asks: 0,
            last_heard: now,
            last_hint: None,
            hints: 0,
        }
    }
}

impl Session {
    /// Whether nothing of the peer has come yet, and it is not long ago that the session began.
    fn is_unconfirmed(&self, now: Instant) -> bool {
        self.received.is_empty() && self.floor == 0 && now < self.last_heard + Duration::from_secs(1)
    }
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
    /// Sessions that this end has asked for.
    attempts: u64,
    peer_epoch: Option<u64>,
    peer_attempt: u64,
    /// Incarnations that are over.
    retired: Option<Box<Retired>>,
    /// Time without an answer, as far as this end was there to hear one.
    silent: Duration,
    last_tick: Instant,
    pub stats: Stats,
}

/// Incarnations of a peer that are over, the latest last; zeroes before there were so many, which no incarnation is called. Few peers
/// have any.
#[derive(Debug, Default)]
struct Retired {
    epochs: [u64; RETIRED],
}

/// What tells echoes of a peer's questions from new ones, and questions of this end from echoes.
#[derive(Debug, Default)]
pub struct Past {
    /// Sessions that this end has asked for.
    pub attempts: u64,
    /// The peer's last incarnation.
    pub peer_epoch: Option<u64>,
    peer_attempt: u64,
    retired: Option<Box<Retired>>,
}

/// Packets whose arrival is remembered, in runs.
const RECEIVED_RUNS: usize = 128;
/// How long a question waits to be sent again that lies with its peer.
const WAITED_RETRY: Duration = Duration::from_secs(1);
/// Packets after which an acknowledgement does not wait.
const ACK_EVERY: u32 = 2;
/// Incarnations of a peer that are remembered, so that an echo is not taken for a restart.
const RETIRED: usize = 4;

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
            attempts: 0,
            peer_epoch: None,
            peer_attempt: 0,
            retired: None,
            silent: Duration::ZERO,
            last_tick: Instant::default(),
            stats: Stats::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether there is a session, and no message was sent in it since `since` that is still under way; or a whole packet
    /// waits. Probes do not count: whoever posted the last message has nothing left to look for.
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

    /// Whether an `Init` is an echo of the past: of an incarnation that is over, or of a session before.
    pub fn is_echo(&self, init: &Init) -> bool {
        self.retired.as_ref().is_some_and(|retired| retired.epochs.contains(&init.epoch))
            || (self.peer_epoch == Some(init.epoch) && init.attempt <= self.peer_attempt)
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

    /// This end's name for the session that there is, if it is with the incarnation that calls it `remote` and has this epoch.
    pub fn is_with(&self, epoch: u64, local: u64) -> bool {
        self.is_open() && self.peer_epoch == Some(epoch) && self.local == local
    }

    /// The name that the incarnation `epoch` of the peer has for the session that there is with it; 0 without.
    pub fn current(&self, epoch: u64) -> u64 {
        if self.peer_epoch == Some(epoch) { self.remote().unwrap_or(0) } else { 0 }
    }

    /// Sessions that this end has asked for.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    fn meet(&mut self, epoch: u64, attempt: u64) {
        if let Some(old) = self.peer_epoch.replace(epoch)
            && old != epoch
        {
            self.peer_attempt = 0;
            let retired = self.retired.get_or_insert_default();
            retired.epochs.rotate_left(1);
            retired.epochs[RETIRED - 1] = old;
        }
        self.peer_attempt = self.peer_attempt.max(attempt);
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

    /// What is to be known of the peer when it is met again.
    pub fn past(&mut self) -> Past {
        let Self { attempts, peer_epoch, peer_attempt, .. } = *self;
        Past { attempts, peer_epoch, peer_attempt, retired: self.retired.take() }
    }

    /// Takes what was known of the peer before it was forgotten.
    pub fn recall(&mut self, past: Past) {
        (self.attempts, self.peer_epoch) = (past.attempts, past.peer_epoch);
        (self.peer_attempt, self.retired) = (past.peer_attempt, past.retired);
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

    /// The process of the peer that was asked for a session says that the endpoint lives: it has the question, and will look at it.
    pub fn on_wait(&mut self, now: Instant) {
        if let Some(question) = &mut self.question {
            self.silent = Duration::ZERO;
            question.put_off(now + WAITED_RETRY);
        }
    }

    /// Takes the frames of a packet.
    ///
    /// # Errors
    /// Why the session is over.
    pub fn on_data<D: Driver>(
        &mut self,
        now: Instant,
        config: &Config,
        peer: u32,
        head: &Header,
        body: &[u8],
        driver: &mut D,
    ) -> Result<Arrival, Lost> {
        self.thaw();
        let Some(session) = self.session.as_deref_mut() else { return Ok(Arrival::Malformed) };
        if head.number < session.floor || session.received.contains(head.number) {
            self.stats.duplicates += 1;
            // Its sender may not know that it came: say so again, unless that is all that it said. A network that repeats
            // everything would keep two ends at it for good.
            session.ack_now |= asks_for_acknowledgement(body);
            return Ok(Arrival::Duplicate);
        }
        if head.number >= u64::MAX / 2 {
            return Ok(Arrival::Malformed);
        }
        self.hear(now);
        self.stats.packets[1] += 1;
        let (mut rest, mut eliciting) = (body, false);
        loop {
            let (frame, after) = match Frame::parse(rest) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => break,
                Err(_) => return Ok(Arrival::Malformed), // not acknowledged either
            };
            rest = after;
            eliciting |= frame.asks();
            match frame {
                Frame::Ping => {}
                Frame::Ack(ack) => {
                    if !self.on_ack(now, &ack) {
                        return Err(Lost::Broken);
                    }
                    for stream in Stream::ALL {
                        while let Some(mark) = self.sender.stream(stream).pop_acked() {
                            driver.acked(peer, mark);
                        }
                    }
                }
                Frame::Data { stream, offset, bytes } => {
                    let Some(session) = self.session.as_deref_mut() else { return Ok(Arrival::Malformed) };
                    let sender = &mut self.sender;
                    let mut take = |record: Record<'_>| driver.record(peer, sender, stream, record);
                    match session.receive[stream as usize].receive(offset, bytes, &mut take) {
                        Ok(()) => {}
                        Err(Refused::Crowded) => return Ok(Arrival::Crowded), // nor acknowledged
                        Err(Refused::Violation) => return Err(Lost::Broken),
                    }
                }
                Frame::Credit { stream, limit } => self.sender.stream(stream).set_limit(limit),
                Frame::Close { .. } => return Err(Lost::Closed),
            }
        }
        let Some(session) = self.session.as_deref_mut() else { return Ok(Arrival::Malformed) };
        let expected = session.received.last().map_or(0, |run| run.end);
        session.received.insert(head.number..head.number + 1);
        if session.received.len() > RECEIVED_RUNS
            && let Some(run) = session.received.forget_first()
        {
            session.floor = run.end;
        }
        if head.number >= expected {
            session.largest_at = now;
        }
        if eliciting {
            let urgent = head.number != expected || head.flags & header::flag::URGENT != 0;
            session.on_eliciting(now, config, 1, urgent);
        }
        Ok(Arrival::Fresh)
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

    /// Whether a stream was stopped by the driver.
    pub fn is_stopped(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.receive.iter().any(ReceiveStream::is_stopped))
    }

    /// Goes on with streams that were stopped.
    ///
    /// # Errors
    /// Why the session is over.
    pub fn resume<D: Driver>(&mut self, peer: u32, driver: &mut D) -> Result<(), Lost> {
        let Some(session) = self.session.as_deref_mut() else { return Ok(()) };
        let sender = &mut self.sender;
        for (stream, receive) in Stream::ALL.into_iter().zip(&mut session.receive) {
            if receive.is_stopped() {
                receive
                    .resume(&mut |record| -> Flow { driver.record(peer, sender, stream, record) })
                    .map_err(|_| Lost::Broken)?;
            }
        }
        Ok(())
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
        let mut stats = self.stats;
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

/// Whether a packet has frames whose sender wants to know that they came.
fn asks_for_acknowledgement(mut frames: &[u8]) -> bool {
    while let Ok(Some((frame, rest))) = Frame::parse(frames) {
        if frame.asks() {
            return true;
        }
        frames = rest;
    }
    false
}

/// What became of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    Fresh,
    Duplicate,
    Malformed,
    /// There is no room for it among what came too early.
    Crowded,
}
