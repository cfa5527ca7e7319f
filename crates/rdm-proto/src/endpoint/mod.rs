//! All peers of one endpoint: finds whose a datagram is, begins and ends sessions, and keeps strangers at a distance.
//!
//! A stranger gets state here only after it has shown, by returning a cookie, that it receives at its address.
//! Everything that answers a stranger is shorter than what it answers, and the number of such answers is bounded.

mod book;
mod hosts;
mod incoming;
mod past;
mod pending;
mod schedule;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::SocketAddr;
use core::time::Duration;

use book::Book;
use hosts::Hosts;
use past::Pasts;
use pending::Waiting;

use crate::chunks::Chunks;
use crate::connection::{Config, Connection, Heads, Lost, Stats};
use crate::crypto::{Identity, Security};
use crate::hash::{self, Key};
use crate::stream::{Flow, Sender, Stream};
use crate::time::Instant;
use crate::wire::header::{self, flag};
use crate::wire::{Header, Kind, Record};

/// Who drives an [`Endpoint`]: what it is told, and asked for. Peers go by numbers, dense from 0, in the order in which they were
/// introduced; the number of one that was forgotten goes to the next.
pub trait Driver {
    /// There is a new peer, which has spoken first.
    fn introduce(&mut self, peer: u32, address: SocketAddr);

    /// A record has arrived: each once, and in the order in which it was sent. Answers may go to `sender`.
    fn record(&mut self, peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow;

    /// As [`Driver::record`], for records that have come together, of which it takes one off the front, or more: how many, and what
    /// became of the last. Of those it answers [`Flow::Stop`] to, it has taken none.
    fn records(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
    ) -> (usize, Flow) {
        (1, records.first().map_or(Flow::Next, |&record| self.record(peer, sender, stream, record)))
    }

    /// The session is over: what was not acknowledged may or may not have arrived, and is forgotten.
    fn lost(&mut self, peer: u32, reason: Lost);

    /// The marked record or payload has arrived at the peer.
    fn acked(&mut self, peer: u32, mark: u64);

    /// Copies bytes of a payload, from `at` on.
    fn fill(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]);

    /// As [`Driver::fill`], for the packets in `row`, each of which has its `part` bytes at `skip`: one behind the other in the
    /// payload, from `at` on.
    fn fill_row(&mut self, peer: u32, token: u64, at: u64, row: Row<'_>) {
        let part = row.part as u64;
        for (at, to) in (at..).step_by(row.part.max(1)).zip(row.parts()) {
            debug_assert_eq!(to.len() as u64, part);
            self.fill(peer, token, at, to);
        }
    }

    /// As [`Driver::fill`], for a packet that nobody looks at before it leaves: the bytes may take their place, which is a part
    /// of the buffer given to [`Endpoint::poll_transmit`], on the way out.
    fn refer(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        self.fill(peer, token, at, to);
    }
}

/// Packets of one length, one behind the other, and where each has room for its part of a payload.
#[derive(Debug)]
pub struct Row<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) heads: Heads,
    /// Bytes of payload in each packet.
    pub part: usize,
}

impl<'a> Row<'a> {
    /// The room in each, all of which is to be asked for: a packet's heads are written along with it, while its lines are here.
    pub fn parts(self) -> impl Iterator<Item = &'a mut [u8]> {
        let Self { bytes, len, mut heads, part } = self;
        bytes.chunks_exact_mut(len).map(move |packet| &mut heads.put(packet)[..part])
    }
}

/// A datagram to be sent, or a row of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: SocketAddr,
    /// Bytes of it.
    pub len: usize,
    /// Datagrams of this length that lie one behind the other in the buffer.
    pub count: usize,
    /// The peer, unless it goes to a stranger.
    pub peer: Option<u32>,
}

/// Counters of datagrams that lead to no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Malformed datagrams.
    pub malformed: u64,
    /// Datagrams of another version.
    pub versions: u64,
    /// Packets of sessions that there are not, or from another address than the session's.
    pub strangers: u64,
    /// Handshakes that were echoes or forgeries.
    pub stale: u64,
    /// Cookies asked for.
    pub retries: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions lost.
    pub lost: u64,
    /// Answers to strangers that were not given as there were too many.
    pub unanswered: u64,
    /// Sessions that were not begun: too many peers, or too many of one host.
    pub turned_away: u64,
    /// Sessions that were not begun: another authorization key, or no suite in common.
    pub rejected: u64,
    /// Packets and answers that were not what the peer had sent.
    pub forged: u64,
    /// Packets not taken, as too much before them was missing in too many places.
    pub crowded: u64,
}

/// See the module. `now` never goes backwards from one call to the next.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    identity: Identity,
    secret: KeyBox,
    counter: u64,
    peers: Chunks<Connection>,
    book: Book,
    /// Peers to which time means something, in no order; each knows its place.
    active: Vec<u32>,
    /// Peers that may have something to send, each once.
    ready: VecDeque<u32>,
    /// Bytes that the first of them has sent since its turn came.
    turn: usize,
    /// When to look at which peer. A peer is looked at at its own `timer`; entries of other times are stale.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Peers whose time has come, while they are looked at.
    due: Vec<u32>,
    /// Peers that were at rest when they were put here, the longest first.
    resting: VecDeque<u32>,
    /// Peers that an acknowledgement was owed to when they were put here, each once.
    owed: Vec<u32>,
    /// One to which something had not arrived at the last look.
    undrained: u32,
    stopped: Vec<u32>,
    answers: VecDeque<(SocketAddr, Header, Vec<u8>)>,
    waiting: Waiting,
    /// Numbers of peers that were forgotten.
    free: Vec<u32>,
    /// Strangers of each host.
    hosts: Hosts,
    /// The peer that is looked at next when a stranger comes.
    hand: u32,
    pasts: Pasts,
    /// Whether peers may begin sessions.
    admits: bool,
    /// Addresses of this endpoint itself.
    own: Vec<SocketAddr>,
    /// A peer says that it reached this endpoint at this address, which is none of them as far as that is known; and one that was still
    /// none of them when they were last named.
    unknown: Option<SocketAddr>,
    foreign: Option<SocketAddr>,
    stats: EndpointStats,
}

/// Bytes that a peer is sent before it is another's turn: about what the kernel takes as one message.
const TURN: usize = 1 << 16;

/// Keeps the key out of debug output.
struct KeyBox(Key);

impl core::fmt::Debug for KeyBox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("secret")
    }
}

impl Endpoint {
    /// An endpoint with a secret of 128 random bits. Equal secrets make equal endpoints, which no network should see.
    pub fn new(config: Config, secret: [u64; 2]) -> Self {
        let key = Key(secret[0], secret[1]);
        Self {
            config,
            identity: Identity::clear(hash::sip(key, b"epoch").max(1)),
            secret: KeyBox(key),
            counter: 0,
            peers: Chunks::new(),
            book: Book::default(),
            active: Vec::new(),
            ready: VecDeque::new(),
            turn: 0,
            timers: BinaryHeap::new(),
            due: Vec::new(),
            resting: VecDeque::new(),
            owed: Vec::new(),
            undrained: 0,
            stopped: Vec::new(),
            answers: VecDeque::new(),
            waiting: Waiting::default(),
            free: Vec::new(),
            hosts: Hosts::default(),
            hand: 0,
            pasts: Pasts::default(),
            admits: true,
            own: Vec::new(),
            unknown: None,
            foreign: None,
            stats: EndpointStats::default(),
        }
    }

    /// Names this incarnation of the endpoint.
    pub fn epoch(&self) -> u64 {
        self.identity.epoch
    }

    /// Says with whom it talks, and how packets are protected. To be called before anything else: an endpoint that is not told has no
    /// authorization key and sends in the clear.
    pub fn secure(&mut self, security: &Security) {
        self.identity = Identity::new(self.identity.epoch, security);
    }

    /// Names the addresses at which datagrams reach this endpoint. Only from one of these does it take a question of its own as a
    /// message to itself; from anywhere else that is a reflection. A peer that has the key, and dials an address that is none of these,
    /// was turned here by somebody on the way.
    pub fn set_addresses(&mut self, own: impl IntoIterator<Item = SocketAddr>) {
        self.own = own.into_iter().collect();
        self.foreign = self.unknown.take();
    }

    /// Whether the addresses are to be named again, as a host gets new ones while it runs: a peer says that it reached this endpoint at one
    /// that was not among them. Its question waits for that, as it is repeated.
    pub fn wants_addresses(&self) -> bool {
        self.unknown.is_some()
    }

    /// The peer at `address`, and whether it is new. It is not talked to before something is to be sent.
    pub fn peer(&mut self, address: SocketAddr) -> (u32, bool) {
        if let Some(peer) = self.find(address) {
            return (peer, false);
        }
        let peer = match self.free.pop() {
            Some(peer) => {
                // The lists that the number is in stay as they are.
                let old = core::mem::replace(&mut self.peers[peer as usize], Connection::new(address));
                let connection = &mut self.peers[peer as usize];
                (connection.place, connection.timer) = (old.place, old.timer);
                (connection.queued, connection.resting) = (old.queued, old.resting);
                connection.owed = old.owed;
                peer
            }
            None => {
                self.peers.push(Connection::new(address));
                self.peers.len() as u32 - 1
            }
        };
        self.peers[peer as usize].recall(self.pasts.recall(&address));
        self.book.place(self.secret.0, &self.peers, peer);
        (peer, true)
    }

    /// The peer at `address`, if there is one.
    pub fn find(&self, address: SocketAddr) -> Option<u32> {
        self.book.at(self.secret.0, &self.peers, &address)
    }

    /// The address of a peer.
    pub fn address(&self, peer: u32) -> Option<SocketAddr> {
        self.peers.get(peer as usize).map(|connection| connection.address)
    }

    /// Whether peers may begin sessions. At first they may.
    pub fn admit(&mut self, strangers: bool) {
        self.admits = strangers;
    }

    /// Forgets a peer and its session, without a word to anybody. Its number goes to the next new peer.
    pub fn forget(&mut self, peer: u32) {
        if peer as usize >= self.peers.len() {
            return;
        }
        self.book.unname(&self.peers, peer);
        if self.book.displace(self.secret.0, &self.peers, peer) {
            self.free.push(peer);
        }
        if core::mem::take(&mut self.peers[peer as usize].stranger) {
            self.hosts.leave(self.secret.0, self.peers[peer as usize].address);
        }
        let connection = &mut self.peers[peer as usize];
        self.pasts.remember(connection.address, connection.past());
        connection.reset();
        self.stopped.retain(|&other| other != peer);
        self.enqueue(peer); // it comes to rest when it is its turn
    }

    /// Gives two peers each other's number.
    pub fn swap(&mut self, one: u32, other: u32) {
        if one == other || one.max(other) as usize >= self.peers.len() {
            return;
        }
        self.peers.swap(one as usize, other as usize);
        self.book.swapped(self.secret.0, &self.peers, one, other);
        let swapped = |number: &mut u32| {
            *number = if *number == one {
                other
            } else if *number == other {
                one
            } else {
                *number
            };
        };
        self.active.iter_mut().for_each(swapped);
        self.ready.iter_mut().for_each(swapped);
        self.resting.iter_mut().for_each(swapped);
        self.stopped.iter_mut().for_each(swapped);
        self.owed.iter_mut().for_each(swapped);
        self.free.iter_mut().for_each(swapped);
        let timers = core::mem::take(&mut self.timers).into_iter();
        self.timers = timers
            .map(|Reverse((time, mut peer))| {
                swapped(&mut peer);
                Reverse((time, peer))
            })
            .collect();
    }

    /// The streams to a peer, to be written to.
    pub fn sender(&mut self, now: Instant, peer: u32) -> Option<&mut Sender> {
        self.activate(now, peer);
        self.peers.get_mut(peer as usize).map(|connection| &mut *connection.sender)
    }

    /// Whether there is a session with the peer.
    pub fn is_open(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(Connection::is_open)
    }

    /// Whether nothing is of the peer: no session, none that is asked for, and nothing to be sent.
    pub fn is_idle(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(|connection| {
            !connection.is_open() && !connection.is_connecting() && connection.sender.is_drained()
        })
    }

    /// This end's name for the session with the peer, or for the one asked for.
    pub fn session_name(&self, peer: u32) -> Option<u64> {
        self.peers.get(peer as usize).map(|connection| connection.local).filter(|&name| name != 0)
    }

    /// Longest body of a record that the peer takes.
    pub fn longest_record(&self, peer: u32) -> usize {
        self.peers.get(peer as usize).map_or(0, |connection| connection.longest_record() as usize)
    }

    /// Whether the driver waits for the peer to do something: then it is asked now and then whether it is there.
    pub fn expect(&mut self, now: Instant, peer: u32, something: bool) {
        let Some(connection) = self.peers.get_mut(peer as usize) else { return };
        connection.expecting = something;
        self.activate(now, peer);
    }

    /// Counters.
    pub fn statistics(&self) -> EndpointStats {
        self.stats
    }

    /// Sessions that were not begun as there were too many peers, or too many of one host.
    pub fn turned_away(&self) -> u64 {
        self.stats.turned_away
    }

    /// Counters of a peer.
    pub fn peer_statistics(&self, peer: u32) -> Option<Stats> {
        self.peers.get(peer as usize).map(Connection::statistics)
    }

    /// Number of peers.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    fn random(&mut self) -> u64 {
        self.counter += 1;
        hash::sip(self.secret.0, &self.counter.to_le_bytes())
    }

    /// A name for a session that nobody has.
    fn fresh_name(&mut self) -> u64 {
        loop {
            let name = self.random();
            if name != 0 && self.book.named(&self.peers, name).is_none() && self.waiting.named(name).is_none()
            {
                return name;
            }
        }
    }

    fn rename(&mut self, peer: u32, name: u64) {
        self.book.unname(&self.peers, peer);
        self.peers[peer as usize].local = name;
        self.book.name(&self.peers, peer);
    }

    /// Ends a session.
    fn lose<D: Driver>(&mut self, peer: u32, reason: Lost, driver: &mut D) {
        self.book.unname(&self.peers, peer);
        self.peers[peer as usize].reset();
        self.stats.lost += 1;
        driver.lost(peer, reason);
    }

    /// Offers records again that were stopped.
    pub fn resume<D: Driver>(&mut self, now: Instant, driver: &mut D) {
        for peer in core::mem::take(&mut self.stopped) {
            let connection = &mut self.peers[peer as usize];
            match connection.resume(peer, driver) {
                Ok(()) if connection.is_stopped() => self.stopped.push(peer),
                Ok(()) if connection.closed => self.lose(peer, Lost::Closed, driver),
                Ok(()) => {}
                Err(reason) => self.lose(peer, reason, driver),
            }
            // Credit for what was taken, and answers.
            self.activate(now, peer);
        }
    }

    /// Whether some records are stopped.
    pub fn is_stopped(&self) -> bool {
        !self.stopped.is_empty()
    }

    /// Writes the next datagram to `buf`. To be called until it answers `None`.
    pub fn poll_transmit<D: Driver>(
        &mut self,
        now: Instant,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        self.poll_train(now, 1, buf, driver)
    }

    /// As [`Endpoint::poll_transmit`], but for up to `most` datagrams of one length to one peer, one behind the other.
    pub fn poll_train<D: Driver>(
        &mut self,
        now: Instant,
        most: usize,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        if let Some((to, mut header, body)) = self.answers.pop_front() {
            let len = header::LEN + body.len();
            let packet = buf.get_mut(..len)?;
            packet[header::LEN..].copy_from_slice(&body);
            header.flags |= flag::CHECKED;
            header.write(packet);
            return Some(Transmit { to, len, count: 1, peer: None });
        }
        while let Some(&peer) = self.ready.front() {
            if let Some(transmit) = self.poll_train_to(now, peer, most, buf, driver) {
                self.turn += transmit.len * transmit.count;
                if self.turn >= TURN {
                    self.turn = 0;
                    self.ready.rotate_left(1);
                }
                return Some(transmit);
            }
            self.turn = 0;
            self.ready.pop_front();
            self.peers[peer as usize].queued = false;
            self.rest(peer);
        }
        None
    }

    /// Whether what waits for `peer` had better leave now: nothing is on its way to it but what was sent more than `gap`
    /// ago, or a whole packet waits. Otherwise more may come along, or an acknowledgement.
    pub fn is_ready(&self, now: Instant, peer: u32, gap: Duration) -> bool {
        let since = Instant::from_nanos(now.as_nanos().saturating_sub(gap.as_nanos() as u64));
        self.peers.get(peer as usize).is_some_and(|connection| connection.is_ready(since))
    }

    /// As [`Endpoint::poll_transmit`], for one peer.
    pub fn poll_transmit_to<D: Driver>(
        &mut self,
        now: Instant,
        peer: u32,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        self.poll_train_to(now, peer, 1, buf, driver)
    }

    fn poll_train_to<D: Driver>(
        &mut self,
        now: Instant,
        peer: u32,
        most: usize,
        buf: &mut [u8],
        driver: &mut D,
    ) -> Option<Transmit> {
        let connection = self.peers.get_mut(peer as usize)?;
        if connection.wants_session() {
            let name = self.fresh_name();
            self.rename(peer, name);
            self.peers[peer as usize].connect(now, name);
        }
        let connection = &mut self.peers[peer as usize];
        let written = connection.transmit(now, &self.config, &self.identity, peer, buf, driver);
        let more = match &written {
            Some((_, len)) if most > 1 => {
                connection.train(now, &self.config, peer, most - 1, &mut buf[*len..], driver)
            }
            _ => 0,
        };
        self.set_timer(peer);
        let (to, len) = written?;
        Some(Transmit { to, len, count: 1 + more, peer: Some(peer) })
    }

    /// Writes a packet with any frames, for tests that play a hostile peer. `None` where there is no session, or no room.
    #[doc(hidden)]
    pub fn forge(&mut self, peer: u32, frames: &[u8], buf: &mut [u8]) -> Option<Transmit> {
        let (to, len) = self.peers.get_mut(peer as usize)?.forge(&self.config, frames, buf)?;
        Some(Transmit { to, len, count: 1, peer: Some(peer) })
    }

    /// The system refused to send a datagram of `len` bytes to `peer` as too long for the path.
    pub fn too_long(&mut self, peer: u32, len: usize) {
        if let Some(connection) = self.peers.get_mut(peer as usize) {
            connection.on_too_long(len as u64);
            self.enqueue(peer);
            self.set_timer(peer);
        }
    }

    /// The network says that nobody is at `address`. Anybody can say that, so it only makes this end ask.
    pub fn unreachable(&mut self, now: Instant, address: SocketAddr) {
        if let Some(peer) = self.find(address) {
            self.peers[peer as usize].on_unreachable(now);
            return self.activate(now, peer);
        }
        // Where processes answer for their endpoints: those that were just asked after.
        let asked = |peer: &&u32| {
            let connection = &self.peers[**peer as usize];
            connection.liveness().is_some_and(|(liveness, _)| liveness == address)
        };
        let peers: Vec<u32> = self.active.iter().filter(asked).copied().collect();
        for peer in peers {
            self.peers[peer as usize].on_unreachable(now);
            self.activate(now, peer);
        }
    }

    /// Has acknowledgements that wait for company sent by the next [`Endpoint::poll_transmit`]: the driver is about to
    /// sleep. Whether there are any.
    pub fn hasten(&mut self) -> bool {
        let Self { owed, peers, ready, .. } = self;
        owed.retain(|&peer| {
            let connection = &mut peers[peer as usize];
            connection.owed = connection.hasten();
            if connection.owed && !core::mem::replace(&mut connection.queued, true) {
                ready.push_back(peer);
            }
            connection.owed
        });
        !owed.is_empty()
    }

    /// Whether everything that was to be sent has arrived, where there is a session.
    pub fn is_drained(&mut self) -> bool {
        let drained = |connection: &Connection| {
            !connection.is_open() || connection.muted || connection.sender.is_drained()
        };
        // Mostly it is the same one for some time.
        if self.peers.get(self.undrained as usize).is_some_and(|connection| !drained(connection)) {
            return false;
        }
        let undrained = self.active.iter().find(|&&peer| !drained(&self.peers[peer as usize]));
        self.undrained = undrained.copied().unwrap_or(0);
        undrained.is_none()
    }

    /// The endpoint is about to close, and the driver's payloads to go away, but for those whose tokens are `lasting`: from here on nothing is sent to peers that would
    /// need them. The others get what is left, such as answers, though the window may be full: a search for the path's
    /// longest packet fills that of a young session, and nobody would send them later.
    pub fn take_leave(&mut self, lasting: &dyn Fn(u64) -> bool) {
        for (peer, connection) in self.peers.iter_mut().enumerate() {
            connection.muted =
                !connection.sender.commands.is_plain(lasting) || !connection.sender.bulk.is_plain(lasting);
            connection.take_leave();
            if connection.sender.has_output() && !core::mem::replace(&mut connection.queued, true) {
                self.ready.push_back(peer as u32);
            }
        }
    }

    /// Writes a datagram that tells `peer` that the endpoint closes. `None` where there is no session.
    pub fn close(&mut self, peer: u32, buf: &mut [u8]) -> Option<Transmit> {
        let (to, len) = self.peers.get_mut(peer as usize)?.close(&self.config, buf)?;
        Some(Transmit { to, len, count: 1, peer: Some(peer) })
    }
}

/// Answers a datagram that lies in the socket of an endpoint which does not look, if it asks for a session: that the endpoint lives. Whoever
/// asked knows that by the name that it has just made up, and by the address. The answer is shorter than the question.
pub fn answer_question(datagram: &[u8]) -> Option<[u8; header::LEN]> {
    let (head, body) = Header::parse(datagram).ok()?;
    let long = datagram.len() >= crate::wire::handshake::INIT_LEN;
    if head.kind != Kind::Init || head.flags & flag::CHECKED == 0 || !long {
        return None;
    }
    let name = u64::from_be_bytes(*body.first_chunk::<8>()?);
    let mut packet = [0u8; header::LEN];
    Header { flags: flag::CHECKED, ..Header::new(Kind::Wait, name, 0) }.write(&mut packet);
    Some(packet)
}

/// Answers a datagram that came to a process's liveness port: whether `lives` knows the endpoint that it asks for.
/// `None` for what is no question.
pub fn answer_liveness(datagram: &[u8], lives: impl FnOnce(u64) -> bool) -> Option<[u8; header::LEN]> {
    let (head, _) = Header::parse(datagram).ok()?;
    if head.kind != Kind::Ask || head.flags & flag::CHECKED == 0 {
        return None;
    }
    let alive = if lives(head.session) { flag::ALIVE } else { 0 };
    let mut packet = [0u8; header::LEN];
    Header { flags: flag::CHECKED | alive, ..Header::new(Kind::Answer, head.session, head.number) }
        .write(&mut packet);
    Some(packet)
}
