//! Datagram messages beside sessions. Both share one socket and one numbering of peers; the first byte distinguishes
//! them.

use std::net::SocketAddr;

use ofi_api::Address;
use ofi_core::transport::{Host, Peer};
use ofi_rdm::{Chunks, Endpoint};

use super::messages::Book;
use crate::Udp;
use crate::lane::Lane;
use crate::lane::loose::{Loose, introduce};

/// The peers of sessions.
pub struct Beside<'a> {
    pub endpoint: &'a mut Endpoint,
    pub lanes: &'a mut Chunks<Lane>,
    pub loose: &'a mut Loose,
}

impl Book for Beside<'_> {
    fn find(&self, socket: SocketAddr) -> Option<Peer> {
        self.endpoint.find(socket)
    }

    fn meet<H: Host<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> Peer {
        let (peer, new) = self.endpoint.peer(socket);
        if new {
            introduce(self.lanes, self.loose, peer);
            host.introduce(peer, &Address::from(socket));
        }
        peer
    }

    fn forget<H: Host<Udp>>(&mut self, host: &mut H, peer: Peer) -> bool {
        let Some(lane) = self.lanes.get_mut(peer as usize) else { return false };
        if !lane.is_idle() || !self.endpoint.is_idle(peer) || !host.retire(peer) {
            return false;
        }
        *lane = Lane { is_loose: lane.is_loose, ..Lane::default() };
        self.endpoint.forget(peer);
        true
    }

    fn address(&self, peer: Peer) -> Option<SocketAddr> {
        self.endpoint.address(peer)
    }
}
