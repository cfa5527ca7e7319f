//! The domains of an agent's rails, and which rails are near memory.
//!
//! A registration takes time and pins memory on each NIC, and a NIC of another socket or switch moves the bytes more
//! slowly. So a region has keys on the rails near it ([`Topology::near`]), at least two where there are two, so that a
//! transfer goes on when one fails. A rail without a NIC of its own (`shm`, `udp` of all addresses) is near everything.
//! Other rails register a region when a peer asks for their keys, because its paths to the near ones have failed.
//!
//! The whole region has one place, that of most of its pages: ranges of their own would make the metadata grow with the
//! number of pages, and the parts of a transfer are spread over the rails in any case.

mod pages;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use ofi::Info;
use ofi::raw::Domain;

use crate::topology::{DramLimit, Place, Topology};

/// A set of rails, a bit each.
pub(crate) type RailSet = u64;

/// The rails that regions register with.
pub(crate) struct Domains {
    /// By number. Rails that are opened later are added behind the others.
    sites: Box<[OnceLock<RailSite>]>,
    topology: Option<Topology>,
    limit: DramLimit,
}

struct RailSite {
    domain: Arc<dyn Domain>,
    /// The NIC, by its index in the topology.
    nic: Option<usize>,
}

impl Domains {
    /// The domains of these rails, in their order. Without a topology all rails are near all memory.
    pub(crate) fn new<'a>(
        rails: impl IntoIterator<Item = (&'a Info, &'a Arc<dyn Domain>)>,
        topology: Option<Topology>,
        limit: DramLimit,
    ) -> Self {
        let sites = (0..RailSet::BITS).map(|_| OnceLock::new()).collect();
        let domains = Self { sites, topology, limit };
        rails.into_iter().for_each(|(info, domain)| domains.add(info, domain));
        domains
    }

    /// Adds a rail with the next number. The caller adds one at a time.
    pub(crate) fn add(&self, info: &Info, domain: &Arc<dyn Domain>) {
        let nic = self.topology.as_ref().and_then(|topology| topology.nic_of(info));
        if let Some(site) = self.sites.get(self.count()) {
            let _ = site.set(RailSite { domain: Arc::clone(domain), nic });
        }
    }

    fn sites(&self) -> impl Iterator<Item = &RailSite> {
        self.sites.iter().map_while(OnceLock::get)
    }

    /// The number of rails.
    pub(crate) fn count(&self) -> usize {
        self.sites().count()
    }

    pub(crate) fn get(&self, rail: usize) -> Option<&Arc<dyn Domain>> {
        self.sites.get(rail)?.get().map(|site| &site.domain)
    }

    /// The rail with this domain.
    pub(crate) fn rail_of(&self, domain: &Arc<dyn Domain>) -> Option<usize> {
        self.sites().position(|site| Arc::ptr_eq(&site.domain, domain))
    }

    /// Whether it matters where memory is.
    pub(crate) fn chooses(&self) -> bool {
        self.topology.is_some() && self.count() > 2
    }

    /// The place of host memory, if it matters and can be told.
    pub(crate) fn place_of_pages(&self, at: *mut u8, len: usize) -> Option<Place> {
        let topology = self.topology.as_ref().filter(|_| self.chooses())?;
        match topology.numa() {
            [] => None,
            [only] => Some(Place::Numa(only.id)),
            _ => pages::node_of(at, len).map(Place::Numa),
        }
    }

    /// The rails near memory at a place; all of them if it is unknown.
    pub(crate) fn near(&self, place: Option<Place>) -> RailSet {
        let all = (0..self.count()).fold(0, |all, rail| all | bit(rail));
        let (Some(topology), Some(place)) = (self.topology.as_ref().filter(|_| self.chooses()), place) else {
            return all;
        };
        let nics: Vec<usize> = self.sites().filter_map(|site| site.nic).collect();
        // No turn among equals: rails are paired by their order, so both ends should choose the same ones.
        let mut chosen = topology.near(&nics, place, self.limit, 0).nics;
        let rails = |chosen: &[usize]| {
            let is_near = |site: &RailSite| site.nic.is_none_or(|nic| chosen.contains(&nic));
            let near = self.sites().enumerate().filter(|(_, site)| is_near(site));
            near.fold(0, |set, (rail, _)| set | bit(rail))
        };
        let of_nics = |chosen: &[usize]| nics.iter().filter(|nic| chosen.contains(nic)).count();
        while of_nics(&chosen) < 2 {
            let Some(next) = topology.next_nearest(&nics, &chosen) else { break };
            chosen.push(next);
        }
        let near = rails(&chosen);
        if near == 0 { all } else { near }
    }
}

/// The set of this rail alone.
pub(crate) fn bit(rail: usize) -> RailSet {
    1_u64.checked_shl(rail as u32).unwrap_or(0)
}
