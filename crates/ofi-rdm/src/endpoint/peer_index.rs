//! Finds peers by address and by session name.
//!
//! Both tables hold only peer numbers, and read the key from the peer, which is accessed next in any case. Addresses
//! are hashed with a secret, because strangers choose them. Names are random bits chosen by this end, and serve as
//! their own hash.

use core::net::{IpAddr, SocketAddr};

use hashbrown::HashTable;

use crate::chunks::Chunks;
use crate::connection::Connection;
use crate::hash::{self, Key};

/// The index of an endpoint's peers, by address and by session name.
#[derive(Debug, Default)]
pub struct PeerIndex {
    by_address: HashTable<u32>,
    by_session: HashTable<u32>,
}

/// The hash of an address.
fn hash_of(key: Key, address: &SocketAddr) -> u64 {
    let mut bytes = [0u8; 18];
    match address.ip() {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[..16].copy_from_slice(&ip.octets()),
    }
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    hash::sip(key, &bytes)
}

impl PeerIndex {
    /// The peer at an address.
    pub fn at(&self, key: Key, peers: &Chunks<Connection>, address: &SocketAddr) -> Option<u32> {
        let is_it = |&peer: &u32| peers[peer as usize].address == *address;
        self.by_address.find(hash_of(key, address), is_it).copied()
    }

    /// The peer whose session this end calls `name`.
    #[inline]
    pub fn named(&self, peers: &Chunks<Connection>, name: u64) -> Option<u32> {
        self.by_session.find(name, |&peer| peers[peer as usize].local == name).copied()
    }

    /// Enters `peer`'s address, which no other peer has.
    pub fn place(&mut self, key: Key, peers: &Chunks<Connection>, peer: u32) {
        let hash = |&peer: &u32| hash_of(key, &peers[peer as usize].address);
        self.by_address.insert_unique(hash(&peer), peer, hash);
    }

    /// Removes `peer`'s address. Returns whether it was entered.
    pub fn displace(&mut self, key: Key, peers: &Chunks<Connection>, peer: u32) -> bool {
        let hash = hash_of(key, &peers[peer as usize].address);
        self.by_address.find_entry(hash, |&other| other == peer).map(|entry| entry.remove()).is_ok()
    }

    /// Enters `peer`'s name, which no other peer has.
    pub fn name(&mut self, peers: &Chunks<Connection>, peer: u32) {
        let hash = |&peer: &u32| peers[peer as usize].local;
        self.by_session.insert_unique(hash(&peer), peer, hash);
    }

    /// Removes `peer`'s name.
    pub fn unname(&mut self, peers: &Chunks<Connection>, peer: u32) {
        let hash = peers[peer as usize].local;
        if let Ok(entry) = self.by_session.find_entry(hash, |&other| other == peer) {
            entry.remove();
        }
    }

    /// Two peers have swapped their numbers.
    pub fn swapped(&mut self, key: Key, peers: &Chunks<Connection>, one: u32, other: u32) {
        let [first, second] = [one, other].map(|peer| &peers[peer as usize]);
        let [address, name] =
            [[first, second].map(|peer| hash_of(key, &peer.address)), [first.local, second.local]];
        for (table, [first, second]) in [(&mut self.by_address, address), (&mut self.by_session, name)] {
            // A peer that is not in the table needs no new number.
            let mut renumber = |hash: u64, from: u32, to: u32| {
                if let Some(number) = table.find_mut(hash, |&number| number == from) {
                    *number = to;
                }
            };
            renumber(first, other, NOBODY);
            renumber(second, one, other);
            renumber(first, NOBODY, one);
        }
    }
}

/// A number that no peer has.
const NOBODY: u32 = u32::MAX;
