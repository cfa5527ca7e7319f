//! Direct transfer of our own device memory by our NICs, without the pool.
//!
//! A chunk is direct if every rail near the memory that leads to the peer has registered its dma-buf, and the peer is
//! known to be on another host: within one, a rail may lead through shared memory, which the processor copies. A peer
//! that has not named its host in the handle of its device memory is asked once per session; older agents do not
//! answer. A NIC may still refuse the access: without RDMA at either end a provider copies with the processor. Then the
//! chunk goes through the pool; after [`MAX_REFUSED_CHUNKS`] such chunks all chunks for that peer do, until its session
//! ends.

use std::collections::HashMap;

use ofi::Errno;

use super::{Chunk, Piece, Staging, Step, Transfer};
use crate::engine::{Core, PeerId, Time};
use crate::near::bit;
use crate::region::Guard;
use crate::wire::RegionInfo;
use crate::wire::staging::Order;

/// Refused chunks of a session after which all chunks go through the pool. The first refusals may come before the
/// NICs' drivers know each other.
const MAX_REFUSED_CHUNKS: u32 = 8;

/// The facts about a peer, as long as its session lasts.
#[derive(Default)]
struct Known {
    /// It was asked for its host.
    is_asked: bool,
    host: Option<[u8; 16]>,
    /// Refused chunks.
    refused: u32,
}

/// Where a peer is.
#[derive(Debug, PartialEq, Eq)]
enum PeerLocality {
    /// No rail leads to it through shared memory.
    Elsewhere,
    /// A rail may lead to it through shared memory.
    Here,
    Unknown,
}

/// Decides which chunks of device memory go directly to the NICs: whether a rail may share memory, and what is known of
/// each peer.
pub(super) struct Direct {
    /// Our rails may use shared memory.
    shares_memory: bool,
    peers: HashMap<PeerId, Known>,
}

impl Direct {
    pub(super) fn new(shares_memory: bool) -> Self {
        Self { shares_memory, peers: HashMap::new() }
    }

    /// Forgets a peer whose session has ended.
    pub(super) fn gone(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// Records the host that a peer has named.
    pub(super) fn is_at(&mut self, peer: PeerId, host: [u8; 16]) {
        // Only an answer to a request is kept.
        if let Some(known) = self.peers.get_mut(&peer) {
            known.host = Some(host);
        }
    }

    /// Where the owner of this region is, if `ours` is our host.
    fn place(&self, peer: PeerId, remote: &RegionInfo, ours: Option<[u8; 16]>) -> PeerLocality {
        let said = self.peers.get(&peer).and_then(|known| known.host);
        let host = remote.export.as_ref().map(|export| export.host).or(said);
        match (host, ours) {
            _ if !self.shares_memory => PeerLocality::Elsewhere,
            // The owner publishes keys of device memory without its handle only if it shares no memory.
            _ if remote.is_staged && remote.export.is_none() && !remote.keys.is_empty() => {
                PeerLocality::Elsewhere
            }
            (Some(theirs), Some(ours)) if theirs != ours => PeerLocality::Elsewhere,
            (Some(_), _) | (_, None) => PeerLocality::Here,
            (None, Some(_)) => PeerLocality::Unknown,
        }
    }
}

impl Staging {
    /// Whether our rails may move this piece from or to our device's memory.
    pub(super) fn may_be_direct(
        &mut self,
        core: &mut Core<Guard>,
        peer: PeerId,
        piece: &Piece,
        now: Time,
    ) -> bool {
        let (near, other): (Vec<usize>, Vec<usize>) =
            core.rails_to(peer).into_iter().partition(|&rail| piece.local.near() & bit(rail) != 0);
        let rails = if near.is_empty() { other } else { near };
        let is_taken = !rails.is_empty() && rails.into_iter().all(|rail| piece.local.on(rail).is_ok());
        if !is_taken {
            return false;
        }
        let place = self.direct.place(peer, &piece.remote, self.host);
        let known = self.direct.peers.entry(peer).or_default();
        if place == PeerLocality::Unknown && !std::mem::replace(&mut known.is_asked, true) {
            self.served.answer(core, peer, &Order::Where, now);
        }
        place == PeerLocality::Elsewhere && known.refused < MAX_REFUSED_CHUNKS
    }

    /// Handles a failed chunk. Returns whether direct access was refused, so that the chunk goes through the pool.
    pub(super) fn is_refused(&mut self, transfer: &mut Transfer, chunk: &Chunk, errno: Errno) -> bool {
        let is_data = matches!(chunk.step, Step::Move { is_data: true, .. });
        if !chunk.is_direct || !is_data || errno != Errno::EOPNOTSUPP || transfer.outcome.is_some() {
            return false;
        }
        self.direct.peers.entry(transfer.plan.peer).or_default().refused += 1;
        tracing::debug!(target: "multirail", "a NIC does not move device memory to this peer: it is staged");
        transfer.refused.push((chunk.piece, chunk.offset, chunk.offset + chunk.len));
        true
    }
}

#[cfg(test)]
mod tests {
    use ofi_core::slots::SlotId;

    use super::*;
    use crate::memory::Export;
    use crate::wire::RegionKey;

    const OURS: [u8; 16] = [1; 16];
    const THEIRS: [u8; 16] = [2; 16];

    fn region(is_staged: bool, has_keys: bool, host: Option<[u8; 16]>) -> RegionInfo {
        let export = host.map(|host| Export { host, device: [0; 16], handle: [0; 64], offset: 0 });
        let keys = has_keys.then_some(RegionKey { rail: 0, key: 1, base: 0 }).into_iter().collect();
        RegionInfo { id: 1, len: 1, keys, is_staged, export }
    }

    /// Rails of a peer that may be on this host may lead through shared memory, which cannot touch a device's.
    #[test]
    fn a_peer_is_elsewhere_only_if_that_is_known() {
        let peer = PeerId(SlotId::from_wire(1));
        let mut direct = Direct::new(true);
        let host = region(false, true, None);
        let cases = [
            (region(true, true, Some(THEIRS)), PeerLocality::Elsewhere),
            (region(true, false, Some(THEIRS)), PeerLocality::Elsewhere),
            (region(true, true, Some(OURS)), PeerLocality::Here),
            (region(true, true, None), PeerLocality::Elsewhere),
            (region(true, false, None), PeerLocality::Unknown),
            (host.clone(), PeerLocality::Unknown),
        ];
        for (remote, place) in cases {
            assert_eq!(direct.place(peer, &remote, Some(OURS)), place, "{remote:?}");
        }
        assert_eq!(direct.place(peer, &host, None), PeerLocality::Here, "our own host is not known");
        direct.is_at(peer, THEIRS);
        assert_eq!(direct.place(peer, &host, Some(OURS)), PeerLocality::Unknown, "nobody has asked");
        direct.peers.entry(peer).or_default().is_asked = true;
        direct.is_at(peer, THEIRS);
        assert_eq!(direct.place(peer, &host, Some(OURS)), PeerLocality::Elsewhere);
        direct.is_at(peer, OURS);
        assert_eq!(direct.place(peer, &host, Some(OURS)), PeerLocality::Here);
        direct.gone(peer);
        assert_eq!(direct.place(peer, &host, Some(OURS)), PeerLocality::Unknown, "of an earlier session");
        assert_eq!(Direct::new(false).place(peer, &host, Some(OURS)), PeerLocality::Elsewhere);
    }
}
