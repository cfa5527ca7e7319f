//! The peers that a datagram endpoint remembers: those that it sends to, and those that sent to it. Above the limit,
//! the least recently used peer is removed, with its route.

use rustc_hash::FxHashMap;

use ofi_api::{Errno, Error, Result};
use ofi_core::transport::PeerId;

use crate::address::Name;
use crate::errors::failed;
use crate::rc::ud::{UdQueues, UdRoute};

/// Maximum number of peers that an endpoint remembers. The application may insert more addresses.
pub const MAX_PEERS: usize = 1 << 14;
/// Number of least recently used peers that are examined for one that may be removed.
const MAX_EVICTION_TRIES: usize = 16;
/// Marks the ends of the list.
const NONE: PeerId = PeerId::MAX;

struct Known {
    name: Name,
    /// Created at the first send.
    route: Option<UdRoute>,
    /// The neighbours in the list: the next less recently used peer, and the next more recently used one.
    before: PeerId,
    after: PeerId,
}

/// The table of peers that a datagram endpoint remembers. They form a list, from the least to the most
/// recently used.
pub struct Peers {
    all: Vec<Known>,
    by_name: FxHashMap<Name, PeerId>,
    most: usize,
    oldest: PeerId,
    newest: PeerId,
    /// The peer number of all senders that are not remembered. It is not in the list.
    nobody: Option<PeerId>,
    /// Number of removed peers, whose numbers were reused.
    pub forgotten: u64,
}

/// The result of [`Peers::meet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// The peer was known.
    Before(PeerId),
    /// The peer is new, and has this number.
    New(PeerId),
    /// All peers that could be removed are in use.
    NoRoom,
}

impl Peers {
    /// An empty table of at most `most` peers.
    pub fn new(most: usize) -> Self {
        Self {
            all: Vec::new(),
            by_name: FxHashMap::default(),
            most,
            oldest: NONE,
            newest: NONE,
            nobody: None,
            forgotten: 0,
        }
    }

    /// Number of peers that are remembered.
    pub fn count(&self) -> usize {
        self.by_name.len()
    }

    /// The queue pair of a peer.
    ///
    /// # Errors
    /// `FI_EINVAL` if the peer does not exist.
    pub fn qp(&self, peer: PeerId) -> Result<u32> {
        let known = self.all.get(peer as usize);
        known.map(|known| known.name.qp).ok_or_else(|| Error::new(Errno::EINVAL))
    }

    /// Finds or adds the peer with this name, and makes it the most recently used. The number of a removed peer is
    /// reused if `retire` allows it.
    pub fn meet(&mut self, name: Name, mut retire: impl FnMut(PeerId) -> bool) -> Met {
        if let Some(&peer) = self.by_name.get(&name) {
            self.touch(peer);
            return Met::Before(peer);
        }
        if self.count() < self.most {
            return Met::New(self.add(name));
        }
        for _ in 0..MAX_EVICTION_TRIES {
            let peer = self.oldest;
            if peer == NONE {
                break;
            }
            self.touch(peer);
            if retire(peer) {
                let known = &mut self.all[peer as usize];
                let old = std::mem::replace(&mut known.name, name);
                known.route = None;
                self.by_name.remove(&old);
                self.by_name.insert(name, peer);
                self.forgotten += 1;
                return Met::New(peer);
            }
        }
        Met::NoRoom
    }

    /// Adds a peer, even beyond the limit.
    pub fn add(&mut self, name: Name) -> PeerId {
        let peer = self.push(name);
        self.by_name.insert(name, peer);
        self.link(peer);
        peer
    }

    /// The peer number of all senders that are not remembered, and whether it is new.
    pub fn nobody(&mut self) -> (PeerId, bool) {
        if let Some(peer) = self.nobody {
            return (peer, false);
        }
        let peer = self.push(Name::NOBODY);
        self.nobody = Some(peer);
        (peer, true)
    }

    fn push(&mut self, name: Name) -> PeerId {
        self.all.push(Known { name, route: None, before: NONE, after: NONE });
        (self.all.len() - 1) as PeerId
    }

    /// Makes a peer the most recently used.
    pub fn touch(&mut self, peer: PeerId) {
        if peer != self.newest && Some(peer) != self.nobody {
            self.unlink(peer);
            self.link(peer);
        }
    }

    fn link(&mut self, peer: PeerId) {
        let before = std::mem::replace(&mut self.newest, peer);
        let known = &mut self.all[peer as usize];
        (known.before, known.after) = (before, NONE);
        match self.all.get_mut(before as usize) {
            Some(known) => known.after = peer,
            None => self.oldest = peer,
        }
    }

    fn unlink(&mut self, peer: PeerId) {
        let Known { before, after, .. } = self.all[peer as usize];
        match self.all.get_mut(before as usize) {
            Some(known) => known.after = after,
            None => self.oldest = after,
        }
        match self.all.get_mut(after as usize) {
            Some(known) => known.before = before,
            None => self.newest = before,
        }
    }

    /// The route to a peer, which becomes the most recently used. If the device cannot hold more routes, another peer's
    /// is dropped. `resolve` returns the GID, if there is one, and the LID of a name.
    ///
    /// # Errors
    /// `FI_EINVAL` if the peer does not exist; the error of `resolve`; the device's error.
    pub fn route(
        &mut self,
        peer: PeerId,
        queues: &dyn UdQueues,
        resolve: impl Fn(Name) -> Result<(Option<[u8; 16]>, u16)>,
    ) -> Result<UdRoute> {
        let name = match self.all.get(peer as usize) {
            Some(Known { route: Some(route), .. }) => {
                let route = UdRoute::clone(route);
                self.touch(peer);
                return Ok(route);
            }
            Some(known) => known.name,
            None => return Err(Error::new(Errno::EINVAL)),
        };
        self.touch(peer);
        let (gid, lid) = resolve(name)?;
        let route = loop {
            match queues.route(gid, lid) {
                Err(error) if error.errno == libc::ENOMEM && self.give_up_route() => {}
                made => break made.map_err(|error| failed(&error))?,
            }
        };
        self.all[peer as usize].route = Some(UdRoute::clone(&route));
        Ok(route)
    }

    /// Drops the routes of the peers whose names are `of`.
    pub fn drop_routes(&mut self, of: impl Fn(&Name) -> bool) {
        self.all.iter_mut().filter(|known| of(&known.name)).for_each(|known| known.route = None);
    }

    /// Drops the route of the least recently used peer that has one. Returns whether there was one.
    fn give_up_route(&mut self) -> bool {
        let mut at = self.oldest;
        while let Some(known) = self.all.get_mut(at as usize) {
            if known.route.take().is_some() {
                return true;
            }
            at = known.after;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn name(number: u32) -> Name {
        Name { gid: [1; 16], qp: number, lid: 0 }
    }

    #[test]
    fn who_was_used_least_recently_is_forgotten_first() {
        let mut peers = Peers::new(3);
        for number in 0..3 {
            assert_eq!(peers.meet(name(number), |_| panic!("there is room")), Met::New(number));
        }
        assert_eq!(peers.meet(name(0), |_| false), Met::Before(0));
        assert_eq!(peers.meet(name(3), |_| true), Met::New(1), "1 was used least recently");
        assert_eq!(peers.meet(name(1), |_| true), Met::New(2), "then 2; 1 is a stranger again");
        assert_eq!((peers.count(), peers.forgotten, peers.qp(1).unwrap()), (3, 2, 3));
    }

    #[test]
    fn who_is_in_use_stays_and_the_next_one_goes() {
        let mut peers = Peers::new(3);
        assert_eq!([0, 1, 2].map(|number| peers.add(name(number))), [0, 1, 2]);
        assert_eq!(peers.meet(name(9), |_| false), Met::NoRoom);
        assert_eq!(peers.add(name(9)), 3, "the application may name more");
        assert_eq!(peers.meet(name(8), |peer| peer == 2), Met::New(2));
        assert_eq!(peers.meet(name(9), |_| false), Met::Before(3));
    }

    #[test]
    fn nobody_is_never_forgotten() {
        let mut peers = Peers::new(1);
        assert_eq!((peers.nobody(), peers.nobody()), ((0, true), (0, false)));
        peers.touch(0);
        assert_eq!(peers.meet(name(1), |_| true), Met::New(1));
        assert_eq!(peers.meet(name(2), |_| true), Met::New(1));
        assert_eq!(peers.meet(Name::NOBODY, |_| true), Met::New(1), "handled like any other name");
    }

    /// Compares the list of peers with a simple model.
    #[test]
    fn the_list_keeps_the_order_of_use() {
        let (mut peers, mut model) = (Peers::new(20), VecDeque::new());
        let mut draw = 1u32;
        for _ in 0..5000 {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let wanted = name(draw >> 27);
            let goes = (!model.contains(&wanted) && model.len() == 20).then(|| model.pop_front()).flatten();
            let mut gone = None;
            let met = peers.meet(wanted, |peer| {
                gone = Some(peer);
                true
            });
            assert_eq!(gone.is_some(), goes.is_some());
            if let Some(goes) = goes {
                assert!(!peers.by_name.contains_key(&goes));
            }
            assert_eq!(matches!(met, Met::Before(_)), model.contains(&wanted));
            model.retain(|name| *name != wanted);
            model.push_back(wanted);
            let mut order = Vec::new();
            let mut at = peers.oldest;
            while let Some(known) = peers.all.get(at as usize) {
                order.push(known.name);
                at = known.after;
            }
            assert_eq!(order, model.iter().copied().collect::<Vec<_>>());
        }
    }
}
