//! Reads a topology from sysfs. The kernel's files are input like any other: bounded, parsed once, skipped when
//! malformed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ofi::raw::{BusAttr, PciAttr};
use serde::{Serialize, Serializer};

use super::{Accelerator, Nic, NicKind, Node, NodeKind, NumaNode, PciLink, Rate, Topology, Vendor};

/// Maximum bytes that are read of a file: sysfs limits an attribute to one page.
const MAX_ATTRIBUTE_LEN: u64 = 4096;

/// Product numbers of AWS Neuron devices: Inferentia 2, Trainium 1, 2 and 3.
const NEURON: [u16; 5] = [0x7264, 0x7164, 0x7364, 0x7564, 0x7565];

/// A PCI address, in the order of bus numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain, or segment.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

impl PciAddress {
    /// The PCI address of an info.
    pub fn of(bus: BusAttr) -> Option<Self> {
        let BusAttr::Pci(PciAttr { domain_id, bus_id, device_id, function_id }) = bus else { return None };
        Some(Self { domain: domain_id, bus: bus_id, device: device_id, function: function_id })
    }
}

impl FromStr for PciAddress {
    type Err = ofi::Error;

    /// `0000:3b:00.1`, as in sysfs.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let PciAttr { domain_id, bus_id, device_id, function_id } = text.parse()?;
        Ok(Self { domain: domain_id, bus: bus_id, device: device_id, function: function_id })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

pub(super) fn read(sys: &Path) -> std::io::Result<Topology> {
    fs::read_dir(sys)?; // an error only if there is no sysfs at all
    let mut reader =
        SysfsReader { sys: sys.to_path_buf(), found: Topology::default(), places: BTreeMap::new() };
    reader.found.nodes.push(Node { parent: None, kind: NodeKind::Machine });
    reader.numa_nodes();
    reader.accelerators();
    let taken = reader.rdma_devices();
    reader.interfaces(&taken);
    reader.found.sort();
    Ok(reader.found)
}

struct SysfsReader {
    sys: PathBuf,
    found: Topology,
    /// Nodes of root complexes and bridges, by their directories.
    places: BTreeMap<PathBuf, usize>,
}

impl SysfsReader {
    fn numa_nodes(&mut self) {
        for (name, dir) in entries(&self.sys.join("devices/system/node")) {
            let Some(id) = name.strip_prefix("node").and_then(|id| id.parse().ok()) else { continue };
            let distances = text(&dir.join("distance")).unwrap_or_default();
            let distances = distances.split_whitespace().map_while(|word| word.parse().ok()).collect();
            self.found.numa.push(NumaNode { id, distances });
        }
        self.found.numa.sort_by_key(|node| node.id);
        for at in 0..self.found.numa.len() {
            let kind = NodeKind::Numa(self.found.numa[at].id);
            self.found.nodes.push(Node { parent: Some(0), kind });
        }
    }

    fn accelerators(&mut self) {
        for (name, dir) in entries(&self.sys.join("bus/pci/devices")) {
            let Ok(pci) = name.parse() else { continue };
            let hex = |file: &str| number(&text(&dir.join(file))?);
            let (Some(class), Some(vendor), Some(device)) = (hex("class"), hex("vendor"), hex("device"))
            else {
                continue;
            };
            let device = device as u16;
            let Some(vendor) = vendor_of(vendor, class, device) else { continue };
            let Ok(real) = dir.canonicalize() else { continue };
            let (parent, numa) = (self.place(&real), numa_of(&real));
            self.found.accelerators.push(Accelerator {
                vendor,
                device,
                pci,
                numa,
                link: link_of(&real),
                parent,
            });
        }
    }

    /// Adds the RDMA devices. Returns the directories of their PCI devices: interfaces there belong to the same NICs.
    fn rdma_devices(&mut self) -> BTreeSet<PathBuf> {
        let mut taken = BTreeSet::new();
        for (name, dir) in entries(&self.sys.join("class/infiniband")) {
            // `100 Gb/sec (4X EDR)`, of the first port.
            let speed = text(&dir.join("ports/1/rate")).and_then(|rate| {
                let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
                (0.0..1e6)
                    .contains(&gigabits)
                    .then_some(Rate((gigabits * 1e9) as u64))
                    .filter(|rate| rate.0 > 0)
            });
            if let Some(real) = self.nic(name, NicKind::Rdma, speed, &dir.join("device")) {
                taken.insert(real);
            }
        }
        taken
    }

    fn interfaces(&mut self, taken: &BTreeSet<PathBuf>) {
        for (name, dir) in entries(&self.sys.join("class/net")) {
            let device = dir.join("device");
            if pci_dir(&device).is_some_and(|real| taken.contains(&real)) {
                continue;
            }
            // In units of 10^6; -1 or an error if there is no speed.
            let speed = text(&dir.join("speed")).and_then(|speed| speed.parse::<u32>().ok());
            let speed = speed
                .filter(|&speed| speed != u32::MAX)
                .and_then(|speed| Rate::known(u64::from(speed) * 1_000_000));
            self.nic(name, NicKind::Net, speed, &device);
        }
    }

    /// Adds a NIC whose device is at `device`. Returns the directory of its PCI device.
    fn nic(&mut self, name: String, kind: NicKind, speed: Option<Rate>, device: &Path) -> Option<PathBuf> {
        let real = pci_dir(device);
        let pci = real.as_deref().and_then(Path::file_name).and_then(address);
        let (parent, numa, link) = match &real {
            Some(real) => (self.place(real), numa_of(real), link_of(real)),
            None => (0, None, None),
        };
        self.found.nics.push(Nic { name, kind, pci, numa, speed, link, parent, providers: Vec::new() });
        real
    }

    /// The node above a PCI device, with all nodes above it.
    fn place(&mut self, device: &Path) -> usize {
        let numa = numa_of(device);
        let mut above: Vec<&Path> = device.ancestors().skip(1).collect();
        above.reverse();
        let mut parent = numa.and_then(|id| self.found.numa_index(id)).unwrap_or(0);
        for dir in above {
            let Some(name) = dir.file_name() else { continue };
            let kind = match (root_complex(name), address(name)) {
                (Some((domain, bus)), _) => NodeKind::Host { domain, bus },
                (None, Some(pci)) => NodeKind::Bridge { pci, link: link_of(dir) },
                (None, None) => continue,
            };
            parent = match self.places.get(dir) {
                Some(&known) => known,
                None => {
                    self.found.nodes.push(Node { parent: Some(parent), kind });
                    let new = self.found.nodes.len() - 1;
                    self.places.insert(dir.to_path_buf(), new);
                    new
                }
            };
        }
        parent
    }
}

/// The vendor of a PCI device, if it is an accelerator; `class` has 24 bits.
pub(super) fn vendor_of(vendor: u32, class: u32, device: u16) -> Option<Vendor> {
    match (vendor, class >> 16) {
        (0x10DE, 0x03) => Some(Vendor::Nvidia), // a display controller, unlike its audio device and bridges
        (0x1D0F, _) if NEURON.contains(&device) => Some(Vendor::Neuron),
        _ => None,
    }
}

/// Names and paths below a directory; empty if it cannot be read.
fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let named =
        entries.flatten().filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let mut found: Vec<_> = named.collect();
    found.sort();
    found
}

/// A file's text, without surrounding white space.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_ATTRIBUTE_LEN).read_to_string(&mut text).ok()?;
    Some(text.trim().to_string())
}

/// `0x10de`
fn number(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn address(name: &OsStr) -> Option<PciAddress> {
    name.to_str()?.parse().ok()
}

/// Domain and bus of a root complex: `pci0000:44`.
fn root_complex(name: &OsStr) -> Option<(u16, u8)> {
    let (domain, bus) = name.to_str()?.strip_prefix("pci")?.split_once(':')?;
    Some((u16::from_str_radix(domain, 16).ok()?, u8::from_str_radix(bus, 16).ok()?))
}

/// The PCI device of a class device: the device itself, or one above it, as for a virtio interface.
fn pci_dir(device: &Path) -> Option<PathBuf> {
    let real = device.canonicalize().ok()?;
    let dir = real.ancestors().find(|dir| dir.file_name().and_then(address).is_some());
    dir.map(Path::to_path_buf)
}

fn numa_of(device: &Path) -> Option<u32> {
    text(&device.join("numa_node"))?.parse().ok() // not -1
}

fn link_of(device: &Path) -> Option<PciLink> {
    PciLink::parse(&text(&device.join("current_link_speed"))?, &text(&device.join("current_link_width"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_printed_and_nothing_else_is_one() {
        for good in ["0000:00:00.0", "ffff:ff:1f.7", "0001:3b:00.1"] {
            assert_eq!(good.parse::<PciAddress>().unwrap().to_string(), good);
        }
        for bad in
            ["", "pci0000:00", "0000:00:00", "0000:00:20.0", "0000:00:00.8", "000:00:00.0", "0000:+1:00.0"]
        {
            assert_eq!(bad.parse::<PciAddress>().unwrap_err(), ofi::Errno::EINVAL, "{bad}");
        }
    }
}
