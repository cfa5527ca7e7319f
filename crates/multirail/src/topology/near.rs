//! The NICs for memory at one place of the machine, and the reason.

use std::fmt;

use serde::Serialize;

use super::{DramLimit, PciAddress, Topology};

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The accelerator with this PCI address.
    Accelerator(PciAddress),
    /// The NUMA node with this number.
    Numa(u32),
}

/// The NICs for memory at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Near {
    /// Indices of [`Topology::nics`], in ascending order.
    pub nics: Vec<usize>,
    /// The reason.
    pub because: Because,
}

/// The rule that chose the NICs for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// There is no choice.
    OnlyNic,
    /// They are the accelerator's share of the NICs that are nearest to it.
    Nearest,
    /// They are nearest to the accelerator, and to this number of accelerators.
    Shared(usize),
    /// No NIC is nearer to the accelerator than to others, so it uses all.
    NoneNear,
    /// The system does not tell where the accelerator is, so all are used.
    PlaceUnknown,
    /// The system does not tell the links or NUMA nodes of NICs or switches, so all are used.
    LinksUnknown,
    /// So many NICs suffice for the memory of a NUMA node, and `own` of them are on it. Others are on the nearest
    /// nodes.
    Bandwidth {
        /// The number of NICs that suffice.
        suffice: usize,
        /// Those on the node itself.
        own: usize,
    },
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnlyNic => write!(f, "there is no other"),
            Self::Nearest => write!(f, "they are the nearest, and no other accelerator has them"),
            Self::Shared(count) => write!(f, "they are the nearest to {count} accelerators"),
            Self::NoneNear => write!(f, "none is nearer than others"),
            Self::PlaceUnknown => write!(f, "the system does not tell where the accelerator is"),
            Self::LinksUnknown => write!(f, "the system does not tell the links and NUMA nodes of all"),
            Self::Bandwidth { suffice, own } => {
                write!(f, "{suffice} suffice for the uplinks of a node, and {own} of them are on this one")
            }
        }
    }
}

impl Topology {
    /// The NICs, out of `nics`, for memory at a place. `turn` rotates among equals, so that successive regions of a
    /// NUMA node use different ones.
    pub fn near(&self, nics: &[usize], place: Place, limit: DramLimit, turn: usize) -> Near {
        let all = || {
            let mut all: Vec<usize> = nics.iter().copied().filter(|&nic| nic < self.nics.len()).collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let nics = all();
        if nics.len() < 2 {
            return Near { nics, because: Because::OnlyNic };
        }
        match place {
            Place::Accelerator(pci) => self.near_accelerator(nics, pci),
            Place::Numa(node) => {
                let Some(suffice) = self.sufficient(&nics, limit) else {
                    return Near { nics, because: Because::LinksUnknown };
                };
                let mut chosen = self.dram_rails(&nics, Some(node), limit, turn);
                chosen.sort_unstable();
                let own = chosen.iter().filter(|&&nic| self.nics[nic].numa == Some(node)).count();
                Near { nics: chosen, because: Because::Bandwidth { suffice, own } }
            }
        }
    }

    /// The NIC, out of `nics` and not in `chosen`, that is nearest to those: the one that shares the lowest place in
    /// the tree with one of them, and among equals the next by index, in a circle.
    pub fn next_nearest(&self, nics: &[usize], chosen: &[usize]) -> Option<usize> {
        let depth = |at: usize| self.climb(at).count();
        let shared = |one: usize, other: usize| {
            let above: Vec<usize> = self.climb(self.nics[one].parent).collect();
            self.climb(self.nics[other].parent).find(|at| above.contains(at)).map_or(0, depth)
        };
        let last = chosen.iter().copied().max().unwrap_or(0);
        let candidates = nics.iter().copied().filter(|nic| *nic < self.nics.len() && !chosen.contains(nic));
        candidates.min_by_key(|&nic| {
            let of_chosen = chosen.iter().filter(|&&known| known < self.nics.len());
            let nearest = of_chosen.map(|&known| shared(known, nic)).max().unwrap_or(0);
            (std::cmp::Reverse(nearest), nic < last, nic)
        })
    }

    fn near_accelerator(&self, nics: Vec<usize>, pci: PciAddress) -> Near {
        let Some(index) = self.accelerators.iter().position(|found| found.pci == pci) else {
            return Near { nics, because: Because::PlaceUnknown };
        };
        let grouping = self.group(&nics);
        let mut chosen = grouping.nics[index].clone();
        chosen.sort_unstable();
        let same = |other: &&Vec<usize>| other.iter().any(|nic| chosen.contains(nic));
        let because = match grouping.nics.iter().filter(same).count() {
            _ if chosen == nics && grouping.nics.len() > 1 => Because::NoneNear,
            1 => Because::Nearest,
            sharing => Because::Shared(sharing),
        };
        Near { nics: chosen, because }
    }
}
