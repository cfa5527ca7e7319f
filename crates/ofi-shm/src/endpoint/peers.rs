//! Creation, reuse and loss of peers.

use ofi_api::Errno;
use ofi_core::transport::{PeerId, Upcalls};

use super::ShmEndpoint;
use crate::Shm;
use crate::peer::Peer;

/// Lost peers that are checked for each new peer.
const SPARES: usize = 8;

impl ShmEndpoint {
    pub(crate) fn meet<H: Upcalls<Shm>>(&mut self, host: &mut H, socket: &[u8]) -> Option<PeerId> {
        if let Some(&peer) = self.by_socket.get(socket) {
            return Some(peer);
        }
        let address = crate::name::address_of(socket, self.format)?;
        let peer = self.take_spare(host).unwrap_or(self.peers.len() as PeerId);
        let state = Peer::new(peer, socket.to_vec());
        match self.peers.get_mut(peer as usize) {
            Some(spare) => {
                let last = std::mem::replace(spare, state);
                self.by_socket.remove(&last.socket);
            }
            None => self.peers.push(state),
        }
        self.by_socket.insert(socket.to_vec(), peer);
        host.introduce(peer, &address);
        Some(peer)
    }

    /// The number of a lost peer that nothing refers to. Because of this reuse, there are only as many peers as exist
    /// simultaneously, not as many as have ever existed.
    pub(super) fn take_spare<H: Upcalls<Shm>>(&mut self, host: &mut H) -> Option<PeerId> {
        for _ in 0..self.spare.len().min(SPARES) {
            let peer = self.spare.pop_front()?;
            let state = &mut self.peers[peer as usize];
            let is_idle = state.link.is_none() && state.initiated.outstanding == 0;
            if is_idle && !host.retire(peer) {
                self.spare.push_back(peer); // later, perhaps
                continue;
            }
            state.schedule.is_spare = false;
            if is_idle {
                return Some(peer);
            }
        }
        None
    }

    /// Frees the state of a lost peer. It is kept for the peer's return, and goes to another peer if no other is free.
    pub(super) fn spare(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer as usize];
        if !state.schedule.is_spare {
            state.schedule.is_spare = true;
            self.spare.push_back(peer);
        }
    }

    pub(super) fn known(&self, socket: &[u8], incarnation: u64) -> Option<PeerId> {
        let peer = *self.by_socket.get(socket)?;
        let up = self.peers[peer as usize].up()?;
        (up.parts.incarnation == incarnation).then_some(peer)
    }

    /// Records that a peer is gone. Its state is freed when everything that it sent has been processed.
    pub(crate) fn mark_gone(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer as usize];
        (state.end.gone, state.busy) = (true, true);
        self.warm_up(peer); // a cold peer is not polled
    }

    #[cold]
    pub(crate) fn give_up<H: Upcalls<Shm>>(&mut self, host: &mut H, peer: PeerId, errno: Errno) {
        let state = &mut self.peers[peer as usize];
        let incarnation = state.up().map(|up| up.parts.incarnation);
        self.common.shared.forget(&state.socket, incarnation);
        self.common.shared.shut_out();
        state.lose(&mut self.common, host, errno);
        self.drop_from_lists(peer);
        self.spare(peer);
    }

    #[cold]
    pub(super) fn break_up<H: Upcalls<Shm>>(&mut self, host: &mut H, peer: PeerId) {
        let state = &self.peers[peer as usize];
        let closed = state.end.gone || state.is_closed();
        if !closed {
            self.common.counts.corrupt += 1;
            let peer = crate::name::shown(&state.socket, self.format);
            tracing::warn!(target: "ofi::shm::ep_data", %peer, "a peer broke the protocol and is disconnected");
        }
        self.give_up(host, peer, if closed { Errno::ECONNRESET } else { Errno::EIO });
    }

    pub(super) fn drop_from_lists(&mut self, peer: PeerId) {
        self.hot.retain(|&other| other != peer);
        self.cold.retain(|&other| other != peer);
    }
}
