//! Maps the endpoint's numbers of its peers to those of its two transports.
//!
//! A peer is alone if neither transport has a number for it any more. Once the endpoint does not refer to its number
//! either, the number is reused. So there are only as many numbers as simultaneous peers, if the transports do the
//! same.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use ofi_api::Address;

use super::link::RouteLink;
use crate::growth;
use crate::transport::PeerId;

/// Index of the near transport.
pub const NEAR: usize = 0;
/// Index of the far transport.
pub const FAR: usize = 1;

/// No number.
const NONE: PeerId = PeerId::MAX;

/// The route of sends to a peer: a transport, and its number for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRoute(u32);

impl PeerRoute {
    /// The undecided route.
    pub const OPEN: Self = Self(u32::MAX);

    fn new(side: usize, local: PeerId) -> Self {
        Self(local << 1 | side as u32)
    }

    /// The transport of a decided route.
    #[inline(always)]
    pub fn side(self) -> usize {
        (self.0 & 1) as usize
    }

    /// Its number for the peer.
    #[inline(always)]
    pub fn local(self) -> PeerId {
        self.0 >> 1
    }

    /// Whether it is undecided.
    #[inline(always)]
    pub fn is_open(self) -> bool {
        self == Self::OPEN
    }
}

struct Known {
    address: Address,
    /// The transports' numbers.
    locals: [PeerId; 2],
    /// The peer was reachable over the near transport but did not respond there. Reset when it is lost over the far one
    /// too.
    refused: bool,
    /// The peer is in [`Routes::alone`].
    is_listed: bool,
}

/// The table of one endpoint's peers and of their numbers in both transports.
#[derive(Default)]
pub struct Routes {
    /// By the endpoint's number.
    routes: Vec<PeerRoute>,
    known: Vec<Known>,
    /// The endpoint's numbers, by the transports'.
    peers: [Vec<PeerId>; 2],
    /// The endpoint's numbers, by the addresses in `known`; hashed with a secret, as peers choose their addresses.
    by_address: HashTable<PeerId>,
    secret: RandomState,
    /// The address for which the near transport is being called: that of the peer that it introduces next.
    pub asked: Option<Address>,
    /// The connection, of an endpoint that has one.
    pub link: RouteLink,
    /// Peers for which neither transport had a number when they were added here.
    alone: VecDeque<PeerId>,
    /// Free numbers.
    vacant: Vec<PeerId>,
}

/// Peers that are checked for each new one. More than one, so that the number of gone peers falls.
const CHECKS_PER_NEW_PEER: usize = 2;

impl Routes {
    /// The route of sends to `peer`.
    #[inline(always)]
    pub fn get(&self, peer: PeerId) -> PeerRoute {
        self.routes.get(peer as usize).copied().unwrap_or(PeerRoute::OPEN)
    }

    /// The endpoint's number for a transport's.
    #[inline(always)]
    pub fn peer(&self, side: usize, local: PeerId) -> PeerId {
        self.peers[side].get(local as usize).copied().unwrap_or(NONE)
    }

    /// A transport's number for the endpoint's number `peer`, if the transport knows the peer.
    #[inline]
    pub fn local(&self, side: usize, peer: PeerId) -> Option<PeerId> {
        self.known.get(peer as usize).map(|known| known.locals[side]).filter(|&local| local != NONE)
    }

    /// A peer's address.
    pub fn address(&self, peer: PeerId) -> Option<&Address> {
        self.known.get(peer as usize).map(|known| &known.address)
    }

    /// The endpoint's number for an address, if it has one.
    pub fn find(&self, address: &Address) -> Option<PeerId> {
        let (known, hash) = (&self.known, self.secret.hash_one(address));
        self.by_address.find(hash, |&peer| known[peer as usize].address == *address).copied()
    }

    /// Frees numbers that neither a transport nor (according to `retire`) the core needs. Call it before a peer may be
    /// added.
    pub fn make_room(&mut self, mut retire: impl FnMut(PeerId) -> bool) {
        for _ in 0..CHECKS_PER_NEW_PEER.min(self.alone.len()) {
            let Some(peer) = self.alone.pop_front() else { return };
            let known = &mut self.known[peer as usize];
            if known.locals != [NONE; 2] {
                known.is_listed = false;
            } else if retire(peer) {
                known.is_listed = false;
                let hash = self.secret.hash_one(&known.address);
                if let Ok(entry) = self.by_address.find_entry(hash, |&other| other == peer) {
                    entry.remove();
                }
                self.vacant.push(peer);
            } else {
                self.alone.push_back(peer);
            }
        }
    }

    /// Records a transport's new peer. Returns the endpoint's number, and whether that is new as well.
    pub fn meet(&mut self, side: usize, local: PeerId, address: &Address) -> (PeerId, bool) {
        let found = self.find(address);
        let peer = found.unwrap_or_else(|| self.enter(address));
        self.known[peer as usize].locals[side] = local;
        debug_assert!(local as usize <= self.peers[side].len(), "peers are introduced in order");
        match self.peers[side].get_mut(local as usize) {
            Some(reused) => *reused = peer,
            None => self.peers[side].push(peer),
        }
        (peer, found.is_none())
    }

    /// Gives a new peer its number.
    fn enter(&mut self, address: &Address) -> PeerId {
        let known = Known { address: address.clone(), locals: [NONE; 2], refused: false, is_listed: false };
        let peer = match self.vacant.pop() {
            Some(peer) => {
                self.known[peer as usize] = known;
                self.routes[peer as usize] = PeerRoute::OPEN;
                peer
            }
            None => {
                growth::push(&mut self.known, known);
                self.routes.push(PeerRoute::OPEN);
                (self.known.len() - 1) as PeerId
            }
        };
        let (known, secret) = (&self.known, &self.secret);
        let hash_of = |&peer: &PeerId| secret.hash_one(&known[peer as usize].address);
        self.by_address.insert_unique(secret.hash_one(address), peer, hash_of);
        peer
    }

    /// Whether sends to the peer with this number at a transport use that transport.
    pub fn leads(&self, side: usize, local: PeerId) -> bool {
        self.get(self.peer(side, local)) == PeerRoute::new(side, local)
    }

    /// A transport's number has become free.
    pub fn retire(&mut self, side: usize, local: PeerId) {
        let peer = self.peer(side, local);
        if let Some(known) = self.known.get_mut(peer as usize) {
            known.locals[side] = NONE;
            if known.locals == [NONE; 2] && !known.is_listed {
                known.is_listed = true;
                self.alone.push_back(peer);
            }
        }
        if let Some(route) = self.routes.get_mut(peer as usize)
            && *route == PeerRoute::new(side, local)
        {
            *route = PeerRoute::OPEN;
        }
        if let Some(peer) = self.peers[side].get_mut(local as usize) {
            *peer = NONE;
        }
    }

    /// Routes sends to a peer over this transport. `None` if the transport does not know the peer.
    pub fn decide(&mut self, side: usize, peer: PeerId) -> Option<PeerRoute> {
        let route = PeerRoute::new(side, self.local(side, peer)?);
        self.routes[peer as usize] = route;
        Some(route)
    }

    /// Handles the loss of a peer over one transport. If sends used it, their route becomes undecided.
    pub fn lost(&mut self, side: usize, peer: PeerId, refused: bool) {
        if let Some(route) = self.routes.get_mut(peer as usize)
            && !route.is_open()
            && route.side() == side
        {
            *route = PeerRoute::OPEN;
        }
        if let Some(known) = self.known.get_mut(peer as usize) {
            known.refused = side == NEAR && (refused || known.refused);
        }
    }

    /// Whether the near transport was tried with this peer without success.
    pub fn refused(&self, peer: PeerId) -> bool {
        self.known.get(peer as usize).is_some_and(|known| known.refused)
    }

    /// The number of peers that a transport knows.
    pub fn met(&self, side: usize) -> usize {
        self.peers[side].len()
    }

    /// The number of peers for which sends use a transport.
    pub fn sent_over(&self, side: usize) -> usize {
        self.routes.iter().filter(|route| !route.is_open() && route.side() == side).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str) -> Address {
        Address::from_text(name)
    }

    #[test]
    fn a_peer_has_one_number_whichever_transport_met_it_first() {
        let mut routes = Routes::default();
        assert_eq!(routes.meet(FAR, 0, &address("a")), (0, true));
        assert_eq!(routes.meet(NEAR, 0, &address("b")), (1, true));
        assert_eq!(routes.meet(NEAR, 1, &address("a")), (0, false));
        assert_eq!(routes.meet(FAR, 1, &address("b")), (1, false));
        assert_eq!((routes.peer(NEAR, 0), routes.peer(NEAR, 1)), (1, 0));
        assert_eq!((routes.peer(FAR, 0), routes.peer(FAR, 1)), (0, 1));
        assert_eq!(routes.local(NEAR, 0), Some(1));
        assert_eq!((routes.local(NEAR, 7), routes.peer(NEAR, 7)), (None, PeerId::MAX));
    }

    #[test]
    fn a_transport_s_number_is_used_again_for_another_peer() {
        let mut routes = Routes::default();
        routes.meet(NEAR, 0, &address("a"));
        routes.meet(NEAR, 1, &address("b"));
        routes.decide(NEAR, 0);
        routes.retire(NEAR, 0);
        assert!(routes.get(0).is_open());
        assert_eq!((routes.local(NEAR, 0), routes.peer(NEAR, 0)), (None, PeerId::MAX));
        assert_eq!(routes.meet(NEAR, 0, &address("c")), (2, true));
        assert_eq!((routes.peer(NEAR, 0), routes.peer(NEAR, 1), routes.met(NEAR)), (2, 1, 2));
        // And its previous peer may return under another number.
        assert_eq!(routes.meet(NEAR, 2, &address("a")), (0, false));
        assert_eq!(routes.local(NEAR, 0), Some(2));
    }

    #[test]
    fn a_number_is_used_again_when_neither_transport_nor_the_core_needs_it() {
        let mut routes = Routes::default();
        for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
            routes.meet(NEAR, at as PeerId, &address(name));
        }
        routes.meet(FAR, 0, &address("a"));
        [0, 1].into_iter().for_each(|local| routes.retire(NEAR, local));
        let mut asked = Vec::new();
        routes.make_room(|peer| {
            asked.push(peer);
            false
        });
        assert_eq!(asked, [1], "the others are met");
        assert_eq!(routes.meet(NEAR, 0, &address("d")), (3, true));
        routes.make_room(|_| true);
        assert_eq!((routes.find(&address("b")), routes.find(&address("a"))), (None, Some(0)));
        assert_eq!(routes.meet(FAR, 1, &address("e")), (1, true));
        assert_eq!((routes.address(1), routes.local(NEAR, 1)), (Some(&address("e")), None));
        assert_eq!(routes.meet(NEAR, 1, &address("b")), (4, true), "another one by now");
    }

    #[test]
    fn peers_that_come_and_go_are_not_kept() {
        let mut routes = Routes::default();
        for number in 0..1000 {
            routes.make_room(|_| true);
            let (peer, new) = routes.meet(NEAR, 0, &address(&number.to_string()));
            assert!(new && peer < 4, "{peer}");
            routes.retire(NEAR, 0);
        }
        assert!(routes.known.len() <= 4 && routes.by_address.len() <= 4);
    }

    #[test]
    fn a_route_lasts_until_its_own_peer_is_lost() {
        let mut routes = Routes::default();
        routes.meet(FAR, 0, &address("a"));
        assert!(routes.get(0).is_open() && routes.get(9).is_open());
        assert_eq!(routes.decide(NEAR, 0), None, "the near transport has not met it");
        routes.meet(NEAR, 0, &address("a"));
        let route = routes.decide(NEAR, 0).unwrap();
        assert_eq!((route.side(), route.local(), routes.get(0)), (NEAR, 0, route));
        routes.lost(FAR, 0, true);
        assert_eq!((routes.get(0), routes.refused(0)), (route, false));
        routes.lost(NEAR, 0, true);
        assert!(routes.get(0).is_open() && routes.refused(0));
        routes.decide(FAR, 0);
        routes.lost(FAR, 0, true);
        assert!(!routes.refused(0), "whoever comes after may be near");
    }
}
