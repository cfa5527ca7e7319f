//! Peers and their numbers: adding, forgetting and renumbering peers.

use core::cmp::Reverse;
use core::net::SocketAddr;

use crate::connection::Connection;

use super::Endpoint;

impl Endpoint {
    /// The peer at `address`, and whether it is new. Nothing is sent to a new peer until there is data for it.
    pub fn peer(&mut self, address: SocketAddr) -> (u32, bool) {
        if let Some(peer) = self.find(address) {
            return (peer, false);
        }
        let peer = match self.free.pop() {
            Some(peer) => {
                // Lists that contain the number are not changed.
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

    /// Forgets a peer and its session without notifying the peer. Its number goes to the next new peer.
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
        self.enqueue(peer); // it is put to rest in its turn
    }

    /// Swaps the numbers of two peers.
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
}
