//! A topology as hwloc sees it (feature `hwloc`): of this host, or of a machine that `lstopo` described in XML.
//!
//! hwloc knows the bandwidth of a PCI link, but neither its lanes nor the rate of a port. Of the links with the same
//! bandwidth the widest is assumed; [`Topology::add_infos`] adds the rates. The NUMA node of a device is the one whose
//! memory is local to the place above the device; a device local to the whole machine has none.

use std::collections::HashMap;

use hwlocality::Topology as Hwloc;
use hwlocality::object::attributes::{
    DownstreamAttributes, ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes,
};
use hwlocality::object::types::{OSDeviceType, ObjectType};
use hwlocality::object::{TopologyObject, TopologyObjectID};
use hwlocality::topology::builder::{TopologyBuilder, TypeFilter};
use ofi::{Errno, Error, Result};

use super::{Accelerator, Nic, NicKind, Node, NodeKind, NumaNode, PciAddress, PciLink, Topology, sysfs};

/// Maximum length of an XML description, in bytes.
const MAX_XML_LEN: usize = 64 << 20;

impl Topology {
    /// The topology of this host, from hwloc: like [`Topology::of_host`], without port rates.
    ///
    /// # Errors
    /// `FI_EOTHER` with hwloc's message.
    pub fn of_host_by_hwloc() -> Result<Self> {
        build(TopologyBuilder::new())
    }

    /// The topology of a machine, from the output of hwloc's `lstopo --whole-io FILE.xml` there.
    ///
    /// # Errors
    /// `FI_EINVAL` for text that is not such a description.
    pub fn of_hwloc_xml(xml: &str) -> Result<Self> {
        let wrong = |found: String| {
            let wanted = "XML of hwloc, version 2";
            Error::wanted(Errno::EINVAL, "a machine's description", wanted, found, "write it with lstopo")
        };
        if xml.len() > MAX_XML_LEN {
            return Err(wrong(format!("{} bytes, more than {MAX_XML_LEN}", xml.len())));
        }
        let builder = TopologyBuilder::new().from_xml(xml).map_err(|error| wrong(error.to_string()))?;
        build(builder).map_err(|error| wrong(error.to_string()))
    }
}

fn build(builder: TopologyBuilder) -> Result<Topology> {
    let failed = |error: &dyn std::fmt::Display| Error::with(Errno::EOTHER, format!("hwloc: {error}"));
    let builder = builder.with_io_type_filter(TypeFilter::KeepAll).map_err(|error| failed(&error))?;
    let hwloc = builder.build().map_err(|error| failed(&error))?;
    let mut reader = XmlReader { hwloc: &hwloc, found: Topology::default(), places: HashMap::new() };
    reader.found.nodes.push(Node { parent: None, kind: NodeKind::Machine });
    reader.numa_nodes();
    reader.devices();
    reader.found.sort();
    Ok(reader.found)
}

struct XmlReader<'a> {
    hwloc: &'a Hwloc,
    found: Topology,
    /// Nodes of bridges.
    places: HashMap<TopologyObjectID, usize>,
}

impl XmlReader<'_> {
    fn numa_nodes(&mut self) {
        let nodes = self.hwloc.objects_with_type(ObjectType::NUMANode);
        let mut ids: Vec<u32> = nodes.filter_map(|node| node.os_index()?.try_into().ok()).collect();
        ids.sort_unstable();
        let matrices = self.hwloc.distances_with_type(None, ObjectType::NUMANode).unwrap_or_default();
        let matrix: HashMap<(u32, u32), u64> = matrices
            .first()
            .into_iter()
            .flat_map(|matrix| {
                let id = |object: Option<&TopologyObject>| object?.os_index()?.try_into().ok();
                matrix.enumerate_distances().filter_map(move |((from, to), distance)| {
                    Some(((id(matrix.objects().nth(from)?)?, id(matrix.objects().nth(to)?)?), distance))
                })
            })
            .collect();
        for &id in &ids {
            let distances: Option<Vec<u32>> = ids
                .iter()
                .map(|&to| matrix.get(&(id, to)).and_then(|&far| u32::try_from(far).ok()))
                .collect();
            self.found.numa.push(NumaNode { id, distances: distances.unwrap_or_default() });
            self.found.nodes.push(Node { parent: Some(0), kind: NodeKind::Numa(id) });
        }
    }

    fn devices(&mut self) {
        for device in self.hwloc.pci_devices() {
            let Some(ObjectAttributes::PCIDevice(pci)) = device.attributes() else { continue };
            let address = address(pci);
            let (numa, parent, link) = (numa_of(device), self.place(device), link_of(pci));
            let (vendor, product) = (pci.vendor_id(), pci.device_id());
            if let Some(vendor) = sysfs::vendor_of(vendor.into(), u32::from(pci.class_id()) << 8, product) {
                let found = Accelerator { vendor, device: product, pci: address, numa, link, parent };
                self.found.accelerators.push(found);
            }
            // The interfaces of an RDMA device belong to the same NIC.
            let named = |wanted: OSDeviceType| names(device, wanted);
            let rdma = named(OSDeviceType::OpenFabrics);
            let kind = if rdma.is_empty() { NicKind::Net } else { NicKind::Rdma };
            let names = if rdma.is_empty() { named(OSDeviceType::Network) } else { rdma };
            for name in names {
                let nic = Nic {
                    name,
                    kind,
                    pci: Some(address),
                    numa,
                    speed: None,
                    link,
                    parent,
                    providers: Vec::new(),
                };
                self.found.nics.push(nic);
            }
        }
    }

    /// The node above an object, with all nodes above it.
    fn place(&mut self, object: &TopologyObject) -> usize {
        let numa = numa_of(object);
        let mut parent = numa.and_then(|id| self.found.numa_index(id)).unwrap_or(0);
        let bridges: Vec<&TopologyObject> =
            object.ancestors().filter(|above| above.object_type() == ObjectType::Bridge).collect();
        for bridge in bridges.into_iter().rev() {
            let id = bridge.global_persistent_index();
            let Some(kind) = kind_of(bridge) else { continue };
            parent = match self.places.get(&id) {
                Some(&known) => known,
                None => {
                    self.found.nodes.push(Node { parent: Some(parent), kind });
                    let new = self.found.nodes.len() - 1;
                    self.places.insert(id, new);
                    new
                }
            };
        }
        parent
    }
}

fn kind_of(bridge: &TopologyObject) -> Option<NodeKind> {
    let Some(ObjectAttributes::Bridge(bridge)) = bridge.attributes() else { return None };
    if let Some(UpstreamAttributes::PCI(pci)) = bridge.upstream_attributes() {
        return Some(NodeKind::Bridge { pci: address(pci), link: link_of(pci) });
    }
    let DownstreamAttributes::PCI(below) = bridge.downstream_attributes()?;
    Some(NodeKind::Host { domain: below.domain(), bus: below.secondary_bus() })
}

fn address(pci: &PCIDeviceAttributes) -> PciAddress {
    PciAddress { domain: pci.domain(), bus: pci.bus_id(), device: pci.bus_device(), function: pci.function() }
}

fn link_of(pci: &PCIDeviceAttributes) -> Option<PciLink> {
    // In units of 10^9 bytes per second; zero if unknown.
    PciLink::carrying(f64::from(pci.link_speed()) * 8e9)
}

/// The names of the operating system's devices of this kind for a PCI device.
fn names(device: &TopologyObject, wanted: OSDeviceType) -> Vec<String> {
    let is_wanted = |below: &TopologyObject| match below.attributes() {
        Some(ObjectAttributes::OSDevice(device)) => device.device_type() == wanted,
        _ => false,
    };
    let devices = device.io_children().filter(|below| is_wanted(below));
    devices.filter_map(|below| Some(below.name()?.to_str().ok()?.to_string())).collect()
}

fn numa_of(object: &TopologyObject) -> Option<u32> {
    let place = object.first_non_io_ancestor().filter(|place| place.object_type() != ObjectType::Machine)?;
    let nodes = place.nodeset()?;
    let only = nodes.first_set().filter(|_| nodes.weight() == Some(1))?;
    usize::from(only).try_into().ok()
}
