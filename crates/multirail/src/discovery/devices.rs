//! The devices of this host that can be rails, from the infos of getinfo and from sysfs.

use std::path::Path;

use ofi::Info;
use ofi::raw::LinkState;

use crate::topology::PciAddress;

/// Maximum number of interfaces between the one with the address and a device: a VLAN on a bond on ports.
const MAX_DEPTH: usize = 4;

/// A device, as one provider offers it.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) info: Info,
    pub(super) reach: Reach,
    /// The provider's name alone selects this device: getinfo lists it first.
    pub(super) is_first: bool,
    /// The other names of the NIC at this provider, which has one device for each NIC: a VLAN's beside its bond's.
    others: Vec<String>,
    /// What it sends through. Two devices with a port in common are one NIC.
    ports: Vec<Port>,
}

/// How far a device reaches. The least of a provider's devices are the ones to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// Over a network: hardware, or an interface on top of hardware.
    Network,
    /// An interface without hardware that this process sees: a container's, a tunnel, a bridge of virtual machines.
    Virtual,
    /// The processes that share the loopback interface.
    Loopback,
    /// Nothing now: its link is down.
    Down,
    /// A domain that is not of one device.
    Any,
}

/// An identity of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Port {
    /// A PCI function. Of an interface, also its port there: some functions have two.
    Pci(PciAddress, Option<u32>),
    Named(String),
}

impl Port {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            // An RDMA device is all of its function.
            (Self::Pci(one, port), Self::Pci(other, beside)) => {
                one == other && (port.is_none() || beside.is_none() || port == beside)
            }
            _ => self == other,
        }
    }
}

/// Providers in the order in which `auto` tries them; unknown ones come after `verbs`.
pub(super) fn rank(provider: &str) -> u8 {
    match provider {
        "efa" => 0,
        "verbs" => 1,
        "udp" => 3,
        "tcp" => 4,
        "shm" => 5,
        _ => 2,
    }
}

impl Device {
    /// The device of an info. `sys` is the directory of sysfs.
    fn of(info: &Info, sys: &Path) -> Self {
        let (provider, domain) = (&info.fabric_attr.prov_name, &info.domain_attr.name);
        let nic = info.nic.as_ref();
        let pci = nic.and_then(|nic| PciAddress::of(nic.bus_attr));
        let interface = sys.join("class/net").join(domain);
        let is_interface = !domain.contains('/') && interface.is_dir();
        let port = if is_interface { port_of(&interface) } else { None };
        let mut ports: Vec<Port> = pci.map(|pci| Port::Pci(pci, port)).into_iter().collect();
        if ports.is_empty() && is_interface {
            hardware(&interface, MAX_DEPTH, &mut ports);
        }
        let is_down = nic.is_some_and(|nic| nic.link_attr.state == LinkState::Down);
        let has_hardware = !ports.is_empty() || nic.is_some() && !is_interface;
        let reach = match (is_interface, domain == provider) {
            _ if is_down => Reach::Down,
            _ if has_hardware => Reach::Network,
            (true, _) if is_loopback(&interface) => Reach::Loopback,
            (true, _) => Reach::Virtual,
            (false, true) => Reach::Any,
            (false, false) => Reach::Network,
        };
        if ports.is_empty() {
            ports.push(Port::Named(domain.clone()));
        }
        Self { info: info.clone(), reach, is_first: false, others: Vec::new(), ports }
    }

    /// The names by which a pattern may call the device.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let device = self.info.nic.as_ref().map(|nic| nic.device_attr.name.as_str());
        std::iter::once(self.info.domain_attr.name.as_str()).chain(device.filter(|name| !name.is_empty()))
    }

    /// These names, and those of the provider's other devices of the same NIC.
    pub(super) fn names_of_nic(&self) -> impl Iterator<Item = &str> {
        self.names().chain(self.others.iter().map(String::as_str))
    }

    /// Takes the names of another device of the same NIC.
    fn merge(&mut self, other: &Self) {
        for name in other.names() {
            if !self.names_of_nic().any(|own| own == name) {
                self.others.push(name.to_string());
            }
        }
    }

    /// Whether both are the same NIC.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.ports.iter().any(|port| other.ports.iter().any(|beside| port.is_same(beside)))
    }

    /// Hosts of the same make have their NICs in the same order.
    fn key(&self) -> (u8, Reach, bool, Option<(PciAddress, Option<u32>)>) {
        let pci = self.ports.iter().find_map(|port| match port {
            Port::Pci(pci, port) => Some((*pci, *port)),
            Port::Named(_) => None,
        });
        (rank(&self.info.fabric_attr.prov_name), self.reach, pci.is_none(), pci)
    }
}

/// The devices of these infos, the best provider first, and of each provider one for each NIC, by PCI address.
pub(super) fn all(infos: &[Info], sys: &Path) -> Vec<Device> {
    let mut found: Vec<Device> = Vec::new();
    for mut device in infos.iter().map(|info| Device::of(info, sys)) {
        let provider = &device.info.fabric_attr.prov_name;
        let of_provider = |known: &&mut Device| known.info.fabric_attr.prov_name == *provider;
        let (mut is_first, mut is_known) = (true, false);
        for known in found.iter_mut().filter(of_provider) {
            is_first = false;
            if known.is_same(&device) {
                is_known = true;
                known.merge(&device);
            }
        }
        if !is_known {
            device.is_first = is_first;
            found.push(device);
        }
    }
    found.sort_by_key(Device::key);
    found
}

/// The hardware below an interface: the interface's own, or that of the interfaces that it is made of.
fn hardware(interface: &Path, depth: usize, ports: &mut Vec<Port>) {
    if let Ok(device) = interface.join("device").canonicalize() {
        // The function itself, or that of a virtio or auxiliary device. Further up are bridges, and the controllers of
        // USB, which serve many.
        let pci = device.ancestors().take(2).find_map(|dir| dir.file_name()?.to_str()?.parse().ok());
        let named = || Port::Named(device.to_string_lossy().into_owned());
        ports.push(pci.map_or_else(named, |pci| Port::Pci(pci, port_of(interface))));
        return;
    }
    let Ok(entries) = interface.read_dir() else { return };
    let mut lower: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    lower.sort();
    for name in lower.iter().filter_map(|name| name.to_str()?.strip_prefix("lower_")) {
        if let (true, Some(beside)) = (depth > 0, interface.parent()) {
            hardware(&beside.join(name), depth - 1, ports);
        }
    }
}

/// The number of an interface's port, of those that its function has.
fn port_of(interface: &Path) -> Option<u32> {
    std::fs::read_to_string(interface.join("dev_port")).ok()?.trim().parse().ok()
}

/// `ARPHRD_LOOPBACK` of `linux/if_arp.h`.
fn is_loopback(interface: &Path) -> bool {
    std::fs::read_to_string(interface.join("type")).is_ok_and(|kind| kind.trim() == "772")
}
