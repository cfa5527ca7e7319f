//! All peers of one endpoint: finds whose a datagram is, begins and ends sessions, and keeps strangers at a distance.
//!
//! A stranger gets state here only after it has shown, by returning a cookie, that it receives at its address.
//! Everything that answers a stranger is no longer than what it answers, and the number of such answers is bounded.

mod answers;
mod book;
mod datagrams;
mod hosts;
mod incoming;
mod outgoing;
mod past;
mod peers;
mod pending;
mod schedule;
mod statistics;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::SocketAddr;

pub use answers::{answer_liveness, answer_question};
use book::Book;
pub use datagrams::{Arrivals, Transmit};
use hosts::Hosts;
use past::Pasts;
use pending::PendingSessions;
pub use statistics::EndpointStats;

use crate::chunks::Chunks;
use crate::connection::{Config, Connection, Stats};
use crate::crypto::{Identity, NoEncryption, Security};
use crate::driver::{Driver, Lost};
use crate::hash::{self, Key};
use crate::stream::Sender;
use crate::time::Instant;
use crate::wire::Header;

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
    pending: PendingSessions,
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
    /// A peer says that it reached this endpoint at this address, which is none of them as far as that is known; and
    /// one that was still none of them when they were last named.
    unknown: Option<SocketAddr>,
    foreign: Option<SocketAddr>,
    /// The datagrams that are being taken were marked on their way.
    marked: bool,
    stats: EndpointStats,
}

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
            pending: PendingSessions::default(),
            free: Vec::new(),
            hosts: Hosts::default(),
            hand: 0,
            pasts: Pasts::default(),
            admits: true,
            own: Vec::new(),
            unknown: None,
            foreign: None,
            marked: false,
            stats: EndpointStats::default(),
        }
    }

    /// Names this incarnation of the endpoint.
    pub fn epoch(&self) -> u64 {
        self.identity.epoch
    }

    /// Says with whom it talks, and how packets are protected. To be called before anything else: an endpoint that is
    /// not told has no authorization key and sends in the clear.
    ///
    /// # Errors
    /// A build without the feature `encryption` takes neither a key nor wishes that leave out packets in the clear. The
    /// endpoint must not be used then: it would send in the clear.
    pub fn secure(&mut self, security: &Security) -> Result<(), NoEncryption> {
        self.identity = Identity::new(self.identity.epoch, security)?;
        Ok(())
    }

    /// Names the addresses at which datagrams reach this endpoint. Only from one of these does it take a question of
    /// its own as a message to itself; from anywhere else that is a reflection. A peer that has the key, and dials an
    /// address that is none of these, was turned here by somebody on the way.
    pub fn set_addresses(&mut self, own: impl IntoIterator<Item = SocketAddr>) {
        self.own = own.into_iter().collect();
        self.foreign = self.unknown.take();
    }

    /// Whether the addresses are to be named again, as a host gets new ones while it runs: a peer says that it reached
    /// this endpoint at one that was not among them. Its question waits for that, as it is repeated.
    pub fn wants_addresses(&self) -> bool {
        self.unknown.is_some()
    }

    /// Whether peers may begin sessions. At first they may.
    pub fn admit(&mut self, strangers: bool) {
        self.admits = strangers;
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

    /// Whether the peer is idle: it has no session, none is being opened, and nothing waits to be sent.
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
            if name != 0 && self.book.named(&self.peers, name).is_none() && self.pending.named(name).is_none()
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
            connection.stopped = false; // one that was forgotten meanwhile has nothing to go on with
            match connection.resume(peer, driver) {
                Ok(()) if connection.is_stopped() => {
                    connection.stopped = true;
                    self.stopped.push(peer);
                }
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
}
