//! How many and which rails the memory of one NUMA node can feed.
//!
//! NICs below one switch share its uplink, so beyond a certain count another NIC adds no bandwidth. The count and the
//! choice are NIXL's: as many rails as NIC links fit into the uplinks of the node's switches, spread over the switches,
//! then more of that node, then other nodes by distance. If links or NUMA nodes are unknown, all NICs count as equal
//! and are used.

use std::collections::BTreeMap;

use super::{PciAddress, PciLink, Rate, Topology};

/// Limit of the bandwidth for transfers of one NUMA node's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DramLimit {
    /// The average capacity of the switches of a NUMA node.
    #[default]
    Measured,
    /// This rate, counted in port rates.
    AtMost(Rate),
}

impl Topology {
    /// The total capacity of the switch uplinks of a NUMA node, for each node that has such NICs.
    pub fn numa_capacity(&self, nics: &[usize]) -> BTreeMap<u32, Rate> {
        let mut uplinks: BTreeMap<PciAddress, (u32, PciLink)> = BTreeMap::new();
        for nic in nics.iter().filter_map(|&nic| self.nics.get(nic)) {
            if let (Some(numa), Some((switch, link))) = (nic.numa, self.uplink(nic)) {
                uplinks.entry(switch).or_insert((numa, link));
            }
        }
        let mut capacity = BTreeMap::new();
        for (numa, link) in uplinks.into_values() {
            capacity.entry(numa).or_insert(Rate(0)).0 += link.rate().0;
        }
        capacity
    }

    /// The NICs, out of `nics`, that move memory of NUMA node `numa`. `turn` rotates among equals, so that successive
    /// buffers use different ones.
    pub fn dram_rails(&self, nics: &[usize], numa: Option<u32>, limit: DramLimit, turn: usize) -> Vec<usize> {
        let Some((wanted, link)) = self.wanted(nics, limit) else { return nics.to_vec() };
        let mut chosen = Vec::new();
        for node in self.nodes_by_distance(nics, numa) {
            let mut switches = self.switches_of(nics, node, link, turn);
            // As many of each switch as its uplink carries; then the others, one of each switch in turn.
            for switch in &mut switches {
                let room = switch.fits.min(switch.nics.len()).min(wanted - chosen.len());
                chosen.extend(switch.nics.drain(..room));
            }
            while chosen.len() < wanted && switches.iter().any(|switch| !switch.nics.is_empty()) {
                for switch in switches.iter_mut().filter(|switch| !switch.nics.is_empty()) {
                    if chosen.len() < wanted {
                        chosen.push(switch.nics.remove(0));
                    }
                }
            }
        }
        chosen
    }

    /// The number of NICs that suffice for a NUMA node's memory; `None` if links are unknown.
    pub(super) fn sufficient(&self, nics: &[usize], limit: DramLimit) -> Option<usize> {
        self.wanted(nics, limit).map(|(count, _)| count)
    }

    /// The number of rails, and the average link of a NIC; `None` for all NICs, if the links are unknown.
    fn wanted(&self, nics: &[usize], limit: DramLimit) -> Option<(usize, Rate)> {
        let of = |rate: fn(&super::Nic) -> Option<Rate>| {
            let rates: Option<Vec<u64>> =
                nics.iter().map(|&nic| self.nics.get(nic).and_then(rate).map(|rate| rate.0)).collect();
            average(&rates?)
        };
        let link = of(|nic| nic.link.map(PciLink::rate))?;
        let capacity: Vec<u64> = self.numa_capacity(nics).into_values().map(|rate| rate.0).collect();
        let capacity = average(&capacity)?;
        let rails = match limit {
            DramLimit::Measured => capacity / link,
            DramLimit::AtMost(Rate(limit)) => limit / of(|nic| nic.speed)?,
        };
        Some(((rails.max(1) as usize).min(nics.len()), Rate(link)))
    }

    /// NUMA nodes that have NICs, the nearest to `numa` first.
    fn nodes_by_distance(&self, nics: &[usize], numa: Option<u32>) -> Vec<Option<u32>> {
        let mut nodes: Vec<Option<u32>> = nics.iter().map(|&nic| self.nics[nic].numa).collect();
        let row = numa.and_then(|id| self.numa.iter().find(|node| node.id == id));
        nodes.sort_by_key(|&node| {
            let column = node.and_then(|id| self.numa.iter().position(|other| other.id == id));
            let far = || column.and_then(|at| row?.distances.get(at)).copied().unwrap_or(u32::MAX);
            (if node == numa { 0 } else { far() }, node)
        });
        nodes.dedup();
        nodes
    }

    fn switches_of(&self, nics: &[usize], node: Option<u32>, link: Rate, turn: usize) -> Vec<Switch> {
        let mut switches: BTreeMap<Option<PciAddress>, Switch> = BTreeMap::new();
        for &nic in nics.iter().filter(|&&nic| self.nics[nic].numa == node) {
            let uplink = self.uplink(&self.nics[nic]);
            let fits = uplink.map_or(0, |(_, uplink)| (uplink.rate().0 / link.0.max(1)) as usize);
            let switch = switches.entry(uplink.map(|(pci, _)| pci)).or_default();
            switch.fits = fits;
            switch.nics.push(nic);
        }
        let mut switches: Vec<Switch> = switches.into_values().collect();
        for switch in &mut switches {
            let by = turn % switch.nics.len().max(1);
            switch.nics.rotate_left(by);
        }
        let by = turn % switches.len().max(1);
        switches.rotate_left(by);
        switches
    }
}

/// NICs below one uplink.
#[derive(Default)]
struct Switch {
    /// The number of these NICs whose links the uplink carries.
    fits: usize,
    nics: Vec<usize>,
}

fn average(values: &[u64]) -> Option<u64> {
    let sum: u128 = values.iter().map(|&value| u128::from(value)).sum();
    let average = sum.checked_div(values.len() as u128)?;
    u64::try_from(average).ok().filter(|&average| average > 0)
}
