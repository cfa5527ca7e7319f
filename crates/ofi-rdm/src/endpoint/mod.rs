//! All peers of one endpoint: assigns datagrams to peers, begins and ends sessions, and limits what strangers can do.
//!
//! A stranger gets state here only after it has proved, by returning a cookie, that it receives at its address. An
//! answer to a stranger is never longer than its datagram, and the number of pending answers is bounded.

mod answers;
mod datagrams;
mod hosts;
mod incoming;
mod outgoing;
mod past;
mod peer_index;
mod peers;
mod pending;
mod schedule;
mod statistics;

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::SocketAddr;

pub use answers::{answer_liveness, answer_question};
pub use datagrams::{Arrivals, Transmit};
use hosts::Hosts;
use past::Pasts;
use peer_index::PeerIndex;
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

/// The protocol state of one endpoint and of all its peers. `now` must not go backwards from one call to the next.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    identity: Identity,
    secret: KeyBox,
    counter: u64,
    peers: Chunks<Connection>,
    book: PeerIndex,
    /// Peers with a pending timer, in no particular order. Each peer knows its index.
    active: Vec<u32>,
    /// Peers that may have something to send, each once.
    ready: VecDeque<u32>,
    /// Bytes that the first peer of `ready` has sent in its turn.
    turn: usize,
    /// Timers of peers. An entry whose time differs from the peer's own `timer` field is stale.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Peers whose timers have expired, while they are processed.
    due: Vec<u32>,
    /// Peers that were at rest when they were added, longest first.
    resting: VecDeque<u32>,
    /// Peers that were owed an acknowledgement when they were added, each once.
    owed: Vec<u32>,
    /// A peer for which data was in flight at the last check.
    undrained: u32,
    stopped: Vec<u32>,
    answers: VecDeque<(SocketAddr, Header, Vec<u8>)>,
    pending: PendingSessions,
    /// Free peer numbers.
    free: Vec<u32>,
    /// Number of strangers of each host.
    hosts: Hosts,
    /// The peer to examine next when a stranger arrives.
    hand: u32,
    pasts: Pasts,
    /// Whether peers may begin sessions.
    admits: bool,
    /// The endpoint's own addresses.
    own: Vec<SocketAddr>,
    /// An address at which a peer reached this endpoint and that is not in `own`.
    unknown: Option<SocketAddr>,
    /// Such an address that was still not in `own` after the driver listed the addresses again.
    foreign: Option<SocketAddr>,
    /// The datagrams being processed carry a congestion mark.
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
    /// Creates an endpoint with a secret of 128 random bits. Two endpoints with the same secret must not exist in one
    /// network.
    pub fn new(config: Config, secret: [u64; 2]) -> Self {
        let key = Key(secret[0], secret[1]);
        Self {
            config,
            identity: Identity::clear(hash::sip(key, b"epoch").max(1)),
            secret: KeyBox(key),
            counter: 0,
            peers: Chunks::new(),
            book: PeerIndex::default(),
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

    /// The epoch, which identifies this incarnation of the endpoint.
    pub fn epoch(&self) -> u64 {
        self.identity.epoch
    }

    /// Sets the authorization key and the ways to protect packets. Must be called before anything else. Without this
    /// call the endpoint has no authorization key and sends in the clear.
    ///
    /// # Errors
    /// A build without the feature `encryption` accepts neither a key nor a set of suites that excludes packets in the
    /// clear. The endpoint must not be used after this error: it would send in the clear.
    pub fn secure(&mut self, security: &Security) -> Result<(), NoEncryption> {
        self.identity = Identity::new(self.identity.epoch, security)?;
        Ok(())
    }

    /// Sets the addresses at which datagrams reach this endpoint. A question of its own that comes back is a message to
    /// itself only if it comes from one of these; from any other address it is a reflection. If a peer with the key
    /// dialled an address that is not listed, a third party on the path has redirected it here.
    pub fn set_addresses(&mut self, own: impl IntoIterator<Item = SocketAddr>) {
        self.own = own.into_iter().collect();
        self.foreign = self.unknown.take();
    }

    /// Whether the driver should list the addresses again: a peer reached this endpoint at an unlisted address, which
    /// the host may have got since. The peer repeats its question, so nothing is lost.
    pub fn wants_addresses(&self) -> bool {
        self.unknown.is_some()
    }

    /// Sets whether peers may begin sessions. By default they may.
    pub fn admit(&mut self, strangers: bool) {
        self.admits = strangers;
    }

    /// The sending streams to a peer.
    pub fn sender(&mut self, now: Instant, peer: u32) -> Option<&mut Sender> {
        self.activate(now, peer);
        self.peers.get_mut(peer as usize).map(|connection| &mut *connection.sender)
    }

    /// Whether a session with the peer is open.
    pub fn is_open(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(Connection::is_open)
    }

    /// Whether the peer is idle: it has no session, none is being opened, and nothing waits to be sent.
    pub fn is_idle(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_some_and(|connection| {
            !connection.is_open() && !connection.is_connecting() && connection.sender.is_drained()
        })
    }

    /// This end's name for the session with the peer, or for the one that was requested.
    pub fn session_name(&self, peer: u32) -> Option<u64> {
        self.peers.get(peer as usize).map(|connection| connection.local).filter(|&name| name != 0)
    }

    /// The longest record body that the peer accepts.
    pub fn longest_record(&self, peer: u32) -> usize {
        self.peers.get(peer as usize).map_or(0, |connection| connection.longest_record() as usize)
    }

    /// Sets whether the driver waits for the peer. If so, the peer is probed now and then.
    pub fn expect(&mut self, now: Instant, peer: u32, something: bool) {
        let Some(connection) = self.peers.get_mut(peer as usize) else { return };
        connection.expecting = something;
        self.activate(now, peer);
    }

    /// The endpoint's counters.
    pub fn statistics(&self) -> EndpointStats {
        self.stats
    }

    /// Sessions refused because there were too many peers, or too many from one host.
    pub fn turned_away(&self) -> u64 {
        self.stats.turned_away
    }

    /// The counters of a peer.
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

    /// A session name that is not in use.
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

    /// Offers stopped records again.
    pub fn resume<D: Driver>(&mut self, now: Instant, driver: &mut D) {
        for peer in core::mem::take(&mut self.stopped) {
            let connection = &mut self.peers[peer as usize];
            connection.stopped = false; // a peer forgotten meanwhile has nothing to resume
            match connection.resume(peer, driver) {
                Ok(()) if connection.is_stopped() => {
                    connection.stopped = true;
                    self.stopped.push(peer);
                }
                Ok(()) if connection.closed => self.lose(peer, Lost::Closed, driver),
                Ok(()) => {}
                Err(reason) => self.lose(peer, reason, driver),
            }
            // Credit for the records taken, and answers.
            self.activate(now, peer);
        }
    }

    /// Whether some records are stopped.
    pub fn is_stopped(&self) -> bool {
        !self.stopped.is_empty()
    }

    /// The system refused a datagram of `len` bytes to `peer` as too long for the path.
    pub fn too_long(&mut self, peer: u32, len: usize) {
        if let Some(connection) = self.peers.get_mut(peer as usize) {
            connection.on_too_long(len as u64);
            self.enqueue(peer);
            self.set_timer(peer);
        }
    }

    /// Handles a report by the network that the port at `address` is closed. A request for a session ends when such
    /// reports have continued for some time.
    pub fn refused(&mut self, now: Instant, address: SocketAddr) {
        if let Some(peer) = self.find(address) {
            self.peers[peer as usize].on_refused(now, self.config.patience);
        }
        self.unreachable(now, address);
    }

    /// Handles a report by the network that `address` is unreachable. The report may be forged, so the peer is only
    /// probed.
    pub fn unreachable(&mut self, now: Instant, address: SocketAddr) {
        if let Some(peer) = self.find(address) {
            self.peers[peer as usize].on_unreachable(now);
            return self.activate(now, peer);
        }
        // The addresses at which processes answer for their endpoints, if they were asked recently.
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

    /// Makes delayed acknowledgements due in the next [`Endpoint::poll_transmit`], because the driver is about to
    /// sleep. Returns whether there are any.
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

    /// Whether everything that was to be sent has arrived, at all peers with a session.
    pub fn is_drained(&mut self) -> bool {
        let drained = |connection: &Connection| {
            !connection.is_open() || connection.muted || connection.sender.is_drained()
        };
        // The answer usually depends on the same peer for some time.
        if self.peers.get(self.undrained as usize).is_some_and(|connection| !drained(connection)) {
            return false;
        }
        let undrained = self.active.iter().find(|&&peer| !drained(&self.peers[peer as usize]));
        self.undrained = undrained.copied().unwrap_or(0);
        undrained.is_none()
    }
}
