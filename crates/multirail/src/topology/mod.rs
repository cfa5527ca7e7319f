//! The locations of this host's NICs, accelerators and memory, and their proximity.
//!
//! [`Topology::of_host`] reads sysfs only: it needs no library and no privilege. Feature `hwloc` asks hwloc instead.
//! Data that sysfs lacks (inside containers it may have little) is absent from the result, never guessed.
//! [`Topology::add_infos`] adds the infos of getinfo, so that interfaces without a PCI address have their place too.
//!
//! Invariants of a [`Topology`]: a node's parent has a smaller index; node 0 is the machine; NICs and accelerators are
//! in the order of their PCI addresses, those without an address last, by name.

mod bandwidth;
mod group;
#[cfg(feature = "hwloc")]
mod hwloc;
mod link;
mod near;
mod render;
mod svg;
mod sysfs;

use std::path::Path;

use serde::Serialize;

pub use bandwidth::DramLimit;
pub use group::Grouping;
pub use link::{PciLink, Rate};
pub use near::{Because, Near, Place};
pub use sysfs::PciAddress;

/// NICs, accelerators, PCI bridges and NUMA nodes of one machine, and how they are connected.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    nodes: Vec<Node>,
    nics: Vec<Nic>,
    accelerators: Vec<Accelerator>,
    numa: Vec<NumaNode>,
}

/// A place in the tree, with other places below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The place above; `None` for the machine.
    pub parent: Option<usize>,
    /// The kind of place.
    pub kind: NodeKind,
}

/// The kind of a [`Node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// The machine.
    Machine,
    /// A NUMA node, by the operating system's number.
    Numa(u32),
    /// A PCI root complex: domain and first bus.
    Host {
        /// PCI domain.
        domain: u16,
        /// First bus.
        bus: u8,
    },
    /// A PCI bridge or a port of a switch.
    Bridge {
        /// The bridge's address.
        pci: PciAddress,
        /// Its upstream link; `None` if unknown.
        link: Option<PciLink>,
    },
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// The operating system's number.
    pub id: u32,
    /// Distances to [`Topology::numa`], in its order; empty if unknown.
    pub distances: Vec<u32>,
}

/// The source that reports a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NicKind {
    /// An RDMA device (`/sys/class/infiniband`).
    Rdma,
    /// A network interface (`/sys/class/net`).
    Net,
    /// A device that only a provider reports.
    Provider,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Nic {
    /// The operating system's name, or the provider's name of the domain.
    pub name: String,
    /// The source that reports it.
    pub kind: NicKind,
    /// PCI address, if it is on PCI.
    pub pci: Option<PciAddress>,
    /// The nearest NUMA node.
    pub numa: Option<u32>,
    /// Rate of the port.
    pub speed: Option<Rate>,
    /// The PCI link of the NIC.
    pub link: Option<PciLink>,
    /// The node above the NIC.
    pub parent: usize,
    /// Providers that offer the NIC, each with the name of its domain.
    pub providers: Vec<Offer>,
}

/// A provider that reaches a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// For example `udp`.
    pub provider: String,
    /// The domain name for getinfo.
    pub domain: String,
}

/// The vendor of an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Vendor {
    /// An NVIDIA GPU.
    Nvidia,
    /// An AWS Inferentia or Trainium device.
    Neuron,
}

/// A compute device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accelerator {
    /// The vendor.
    pub vendor: Vendor,
    /// The vendor's product number.
    pub device: u16,
    /// PCI address.
    pub pci: PciAddress,
    /// The nearest NUMA node.
    pub numa: Option<u32>,
    /// The PCI link of the device. An idle GPU may have reduced its speed.
    pub link: Option<PciLink>,
    /// The node above the device.
    pub parent: usize,
}

impl Topology {
    /// The topology of this host, from `/sys`.
    ///
    /// # Errors
    /// The system's error if `/sys` cannot be read at all. Missing or unreadable files below it are skipped.
    pub fn of_host() -> std::io::Result<Self> {
        Self::read(Path::new("/sys"))
    }

    /// The topology of a directory that is laid out as `/sys`.
    ///
    /// # Errors
    /// The errors of [`Topology::of_host`].
    pub fn read(sys: &Path) -> std::io::Result<Self> {
        sysfs::read(sys)
    }

    /// The places; the machine is the first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The NICs.
    pub fn nics(&self) -> &[Nic] {
        &self.nics
    }

    /// The accelerators.
    pub fn accelerators(&self) -> &[Accelerator] {
        &self.accelerators
    }

    /// The NUMA nodes.
    pub fn numa(&self) -> &[NumaNode] {
        &self.numa
    }

    /// Indices of the NICs for which `wanted` holds.
    pub fn nics_where(&self, wanted: impl Fn(&Nic) -> bool) -> Vec<usize> {
        (0..self.nics.len()).filter(|&index| wanted(&self.nics[index])).collect()
    }

    /// The NICs for rails if the user names none: RDMA devices if there are any, otherwise those that a provider
    /// offers, otherwise those on PCI.
    pub fn usual_nics(&self) -> Vec<usize> {
        let choices: [fn(&Nic) -> bool; 3] =
            [|nic| nic.kind == NicKind::Rdma, |nic| !nic.providers.is_empty(), |nic| nic.pci.is_some()];
        choices
            .iter()
            .map(|choice| self.nics_where(choice))
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// Adds the infos of getinfo. If an info's device, domain or PCI address matches a NIC, its provider is added to
    /// the NIC, and its speed if sysfs gave none. Any other info becomes a new NIC, below the machine or its NUMA node.
    pub fn add_infos(&mut self, infos: &[ofi::Info]) {
        for info in infos {
            let offer =
                Offer { provider: info.fabric_attr.prov_name.clone(), domain: info.domain_attr.name.clone() };
            let pci = info.nic.as_ref().and_then(|nic| PciAddress::of(nic.bus_attr));
            let device = info.nic.as_ref().map_or("", |nic| nic.device_attr.name.as_str());
            let speed = info.nic.as_ref().and_then(|nic| Rate::known(nic.link_attr.speed as u64));
            let found = self.nics.iter_mut().find(|nic| {
                (pci.is_some() && nic.pci == pci) || nic.name == device || nic.name == offer.domain
            });
            match found {
                Some(nic) => {
                    nic.speed = nic.speed.or(speed);
                    if !nic.providers.contains(&offer) {
                        nic.providers.push(offer);
                    }
                }
                None => {
                    let numa = info.nic.as_ref().and_then(|nic| nic.numa_node);
                    let parent = numa.and_then(|id| self.numa_index(id)).unwrap_or(0);
                    self.nics.push(Nic {
                        name: offer.domain.clone(),
                        kind: NicKind::Provider,
                        pci,
                        numa,
                        speed,
                        link: None,
                        parent,
                        providers: vec![offer],
                    });
                }
            }
        }
        self.sort();
    }

    /// The NIC of an info: by PCI address, device or domain.
    pub fn nic_of(&self, info: &ofi::Info) -> Option<usize> {
        let pci = info.nic.as_ref().and_then(|nic| PciAddress::of(nic.bus_attr));
        let device = info.nic.as_ref().map_or("", |nic| nic.device_attr.name.as_str());
        let by_pci = || self.nics.iter().position(|nic| nic.pci == pci);
        let named = |name: &str| self.nics.iter().position(|nic| nic.name == name);
        let by_name = || named(device).or_else(|| named(&info.domain_attr.name));
        pci.and_then(|_| by_pci()).or_else(by_name)
    }

    fn sort(&mut self) {
        self.nics.sort_by(|a, b| (a.pci.is_none(), a.pci, &a.name).cmp(&(b.pci.is_none(), b.pci, &b.name)));
        self.accelerators.sort_by_key(|accelerator| accelerator.pci);
    }

    /// The index of a NUMA node among the nodes.
    fn numa_index(&self, id: u32) -> Option<usize> {
        self.nodes.iter().position(|node| node.kind == NodeKind::Numa(id))
    }

    /// A node and those above it, up to the machine.
    fn climb(&self, from: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(from), |&at| self.nodes.get(at).and_then(|node| node.parent))
    }

    /// The switch uplink that a NIC shares with its neighbours: the topmost bridge above it whose link is known.
    pub fn uplink(&self, nic: &Nic) -> Option<(PciAddress, PciLink)> {
        let links = self.climb(nic.parent).filter_map(|at| match self.nodes[at].kind {
            NodeKind::Bridge { pci, link: Some(link) } => Some((pci, link)),
            _ => None,
        });
        links.last()
    }
}
