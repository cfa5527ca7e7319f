//! Groups NICs with the accelerators that they serve.
//!
//! The rule is NIXL's, so that both give the same result for a machine: an accelerator belongs to the nearest place
//! above it that has a NIC somewhere below; a NIC belongs to the nearest place above it that has such an accelerator.
//! In each place the NICs, in order of bus number, are dealt out evenly in consecutive blocks; if the division leaves a
//! remainder, the first accelerators get one more each. If there are fewer NICs than accelerators, all accelerators
//! share all NICs. An accelerator without NICs of its own may use every NIC.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Topology;

/// The NICs that serve each accelerator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Grouping {
    /// Indices of NICs, for each accelerator in the order of [`Topology::accelerators`].
    pub nics: Vec<Vec<usize>>,
    /// NICs that are not near any accelerator.
    pub spare: Vec<usize>,
}

impl Topology {
    /// Groups these NICs (indices of [`Topology::nics`]; others are ignored) with the accelerators.
    pub fn group(&self, nics: &[usize]) -> Grouping {
        let mut nics: Vec<usize> = nics.iter().copied().filter(|&nic| nic < self.nics.len()).collect();
        nics.sort_by_key(|&nic| (self.nics[nic].pci.is_none(), self.nics[nic].pci, nic));
        nics.dedup();

        let above_nics: BTreeSet<usize> =
            nics.iter().flat_map(|&nic| self.climb(self.nics[nic].parent)).collect();
        let mut places: BTreeMap<usize, GroupSite> = BTreeMap::new();
        for (index, accelerator) in self.accelerators.iter().enumerate() {
            if let Some(place) = self.climb(accelerator.parent).find(|at| above_nics.contains(at)) {
                places.entry(place).or_default().accelerators.push(index);
            }
        }
        let mut grouping = Grouping { nics: vec![Vec::new(); self.accelerators.len()], spare: Vec::new() };
        for &nic in &nics {
            let place = self.climb(self.nics[nic].parent).find(|at| places.contains_key(at));
            match place.and_then(|at| places.get_mut(&at)) {
                Some(place) => place.nics.push(nic),
                None => grouping.spare.push(nic),
            }
        }
        for place in places.values() {
            place.deal(&mut grouping.nics);
        }
        for served in grouping.nics.iter_mut().filter(|served| served.is_empty()) {
            served.clone_from(&nics);
        }
        grouping
    }
}

/// A place with accelerators, and the NICs that are nearest to them.
#[derive(Default)]
struct GroupSite {
    accelerators: Vec<usize>,
    nics: Vec<usize>,
}

impl GroupSite {
    fn deal(&self, served: &mut [Vec<usize>]) {
        let shares = self.accelerators.len();
        if self.nics.len() < shares {
            for &accelerator in &self.accelerators {
                served[accelerator].clone_from(&self.nics);
            }
            return;
        }
        let mut rest = &self.nics[..];
        for (nth, &accelerator) in self.accelerators.iter().enumerate() {
            let size = self.nics.len() / shares + usize::from(nth < self.nics.len() % shares);
            let (share, others) = rest.split_at(size);
            served[accelerator] = share.to_vec();
            rest = others;
        }
    }
}
