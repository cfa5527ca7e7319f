//! Peers' device memory that is mapped here. A peer has at most half of what is free of the mappings, so one with very
//! many regions leaves some to the others; beyond, its memory is staged.

use std::collections::HashMap;
use std::sync::Arc;

use ofi_core::budget::Places;

use crate::engine::PeerId;
use crate::memory::Mapping;

/// Mappings of one peer by region. `None` if the region cannot be mapped.
type OfPeer = HashMap<u64, Option<Arc<dyn Mapping>>>;

/// All mappings, which end with the session of their peer.
pub(super) struct Mappings {
    peers: HashMap<PeerId, OfPeer>,
    budget: Places,
}

impl Mappings {
    /// Maximum mappings at a time.
    const MAX: usize = 4096;

    pub(super) fn new() -> Self {
        Self { peers: HashMap::new(), budget: Places::new(Self::MAX) }
    }

    /// What is known of a region: its mapping, or that it has none.
    pub(super) fn get(&self, peer: PeerId, region: u64) -> Option<&Option<Arc<dyn Mapping>>> {
        self.peers.get(&peer)?.get(&region)
    }

    /// Whether another region of the peer may be mapped.
    pub(super) fn has_place(&self, peer: PeerId) -> bool {
        self.budget.has_place(self.peers.get(&peer).map_or(0, HashMap::len))
    }

    /// Keeps what is known of a region of which nothing was known.
    pub(super) fn insert(&mut self, peer: PeerId, region: u64, mapped: Option<Arc<dyn Mapping>>) {
        if self.peers.entry(peer).or_default().insert(region, mapped).is_none() {
            self.budget.take(1);
        }
    }

    /// Closes the mappings of a peer whose session has ended.
    pub(super) fn gone(&mut self, peer: PeerId) {
        self.budget.give_back(self.peers.remove(&peer).map_or(0, |known| known.len()));
    }
}

#[cfg(test)]
mod tests {
    use ofi_core::slots::SlotId;

    use super::*;

    /// One peer could take all 4,096.
    #[test]
    fn a_peer_leaves_mappings_to_others() {
        let mut mappings = Mappings::new();
        let peer = |number| PeerId(SlotId::from_wire(number));
        let fill = |mappings: &mut Mappings, of: PeerId| {
            (0..)
                .take_while(|&region| {
                    let may = mappings.has_place(of);
                    if may {
                        mappings.insert(of, region, None);
                    }
                    may
                })
                .count()
        };
        let taken: Vec<usize> = (1..=20).map(|number| fill(&mut mappings, peer(number))).collect();
        assert_eq!(taken[..2], [1365, 910]);
        assert!(taken.iter().all(|&count| count > 0), "{taken:?}");
        (1..=20).for_each(|number| mappings.gone(peer(number)));
        assert_eq!((fill(&mut mappings, peer(1)), mappings.budget.used()), (1365, 1365));
        assert!(mappings.get(peer(1), 0).is_some_and(Option::is_none) && mappings.get(peer(2), 0).is_none());
    }
}
