//! Datagram messages beside sessions. Both share one socket and one numbering of peers; the first byte distinguishes
//! them.

use std::net::SocketAddr;

use ofi_api::Address;
use ofi_core::transport::{PeerId, Upcalls};
use ofi_rdm::{Chunks, Endpoint};

use super::messages::PeerNumbers;
use crate::Udp;
use crate::peer::Peer;
use crate::peer::sessionless::{SessionlessPeers, introduce};

/// The peers of sessions.
pub struct SharedNumbers<'a> {
    pub endpoint: &'a mut Endpoint,
    pub peers: &'a mut Chunks<Peer>,
    pub sessionless: &'a mut SessionlessPeers,
}

impl PeerNumbers for SharedNumbers<'_> {
    fn find(&self, socket: SocketAddr) -> Option<PeerId> {
        self.endpoint.find(socket)
    }

    fn meet<H: Upcalls<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> PeerId {
        let (peer, new) = self.endpoint.peer(socket);
        if new {
            introduce(self.peers, self.sessionless, peer);
            host.introduce(peer, &Address::from(socket));
        }
        peer
    }

    fn forget<H: Upcalls<Udp>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        let Some(entry) = self.peers.get_mut(peer as usize) else { return false };
        if !entry.is_idle() || !self.endpoint.is_idle(peer) || !host.retire(peer) {
            return false;
        }
        *entry = Peer { is_sessionless: entry.is_sessionless, ..Peer::default() };
        self.endpoint.forget(peer);
        true
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.endpoint.address(peer)
    }
}
