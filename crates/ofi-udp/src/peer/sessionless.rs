//! Peers without a session.

use std::collections::VecDeque;

use ofi_core::transport::PeerId;
use ofi_rdm::Chunks;

use super::Peer;

/// Peers that had no session when they were added, least recently checked first. The number of an idle peer is reused
/// for the next new peer.
#[derive(Default)]
pub struct SessionlessPeers {
    pub peers: VecDeque<PeerId>,
    /// New peers since the last check.
    pub new: usize,
}

impl SessionlessPeers {
    /// Adds a peer without a session.
    pub fn add(&mut self, entry: &mut Peer, peer: PeerId) {
        if !std::mem::replace(&mut entry.is_sessionless, true) {
            self.peers.push_back(peer);
        }
    }
}

/// Creates the state of a new peer, which may have the number of a forgotten one.
pub fn introduce(peers: &mut Chunks<Peer>, sessionless: &mut SessionlessPeers, peer: u32) {
    debug_assert!(peer as usize <= peers.len(), "peers are introduced in the order of their numbers");
    match peers.get_mut(peer as usize) {
        Some(entry) => entry.renew(),
        None => peers.push(Peer::default()),
    }
    sessionless.new += 1;
    sessionless.add(&mut peers[peer as usize], peer);
}
