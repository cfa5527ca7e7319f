//! The devices of this host, by their addresses: the system's, and added ones.

use std::net::IpAddr;
use std::sync::Arc;

use ibv::{Context, EventChannel, Gid};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use ofi_api::{Errno, Error, Info, Result};

use crate::errors::failed;
use crate::listing::{self, HostAddress, Listing, PortTable, Served};
use crate::rc::msg::{Abilities, Channel};
use crate::rc::ud::UdPort;
use crate::rc::{self, Device, msg_system, ud_system};
use crate::settings;

/// An address of a device of this host.
#[derive(Clone)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The device that has it.
    pub of: Of,
}

/// A device.
#[derive(Clone)]
pub enum Of {
    /// A device of the system, for endpoints of every type.
    Port(Port),
    /// A device that was added ([`rc::add`]).
    Added(Arc<dyn Device>),
}

/// A port of a system device, at one of its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The device.
    pub context: Context,
    /// The port.
    pub number: u8,
    /// The port's GID for the address.
    pub gid: Gid,
    /// Its index in the port's table. A table that lacks it has no datagrams from the address.
    pub gid_index: Option<u8>,
}

impl Own {
    /// The device's name.
    pub fn name(&self) -> String {
        match &self.of {
            Of::Port(port) => port.context.name(),
            Of::Added(device) => device.name(),
        }
    }

    /// The port, if the system has the device.
    pub const fn port(&self) -> Option<Port> {
        match self.of {
            Of::Port(port) => Some(port),
            Of::Added(_) => None,
        }
    }

    /// The limits of connected endpoints there; `None` if the device has none.
    pub fn abilities(&self) -> Option<Abilities> {
        match &self.of {
            Of::Port(port) => msg_system::abilities(port.context, port.number).ok(),
            Of::Added(device) => device.connects()?.abilities().ok(),
        }
    }

    /// Whether the device has shared receive queues, which reliable datagrams need.
    pub fn has_shared_receives(&self) -> bool {
        match &self.of {
            Of::Port(port) => port.context.query().is_ok_and(|info| info.max_shared > 0),
            Of::Added(device) => device.limits().is_ok_and(|limits| limits.receives > 0),
        }
    }

    /// The port's unreliable datagrams; `None` if the device has none.
    pub fn datagrams(&self) -> Option<UdPort> {
        match &self.of {
            Of::Port(port) => {
                port.gid_index?;
                ud_system::port(port.context, port.number, port.gid).ok()
            }
            Of::Added(device) => device.datagrams()?.port(self.ip).ok(),
        }
    }

    /// Whether its GID is at this index of the port's table. A device that was added has no table.
    pub fn is_at(&self, index: u8) -> bool {
        self.port().is_none_or(|port| port.is_at(index))
    }
}

/// The source of connections at an address: an added device that has it, or the system.
///
/// # Errors
/// The device's error.
pub fn channel_at(ip: IpAddr) -> ibv::Result<Arc<dyn Channel>> {
    let added = rc::added();
    let mut found = added.iter().filter(|device| device.addresses().contains(&ip));
    match found.find_map(|device| device.connects()) {
        Some(device) => device.channel(),
        None => msg_system::channel(),
    }
}

impl Port {
    /// Whether its GID is at this index of the port's table.
    pub fn is_at(&self, index: u8) -> bool {
        self.context.gid_at(self.number, index).is_ok_and(|gid| gid == Some(self.gid))
    }
}

/// All addresses of ports that are up, followed by those of added devices.
///
/// # Errors
/// An error that says what this host lacks, if there is no address.
pub fn addresses() -> Result<Vec<Own>> {
    let mut added = Vec::new();
    for device in rc::added() {
        let of = |ip| Own { ip, of: Of::Added(Arc::clone(&device)) };
        added.extend(device.addresses().into_iter().map(of));
    }
    match of_the_system() {
        Ok(all) => Ok([all, added].concat()),
        Err(why) if added.is_empty() => Err(why),
        Err(_) => Ok(added),
    }
}

/// All addresses of the device that the info names; of all devices, if it names none.
///
/// # Errors
/// `FI_ENODEV` if there is no such device.
pub fn of_info(info: &Info) -> Result<Vec<Own>> {
    let wanted = &info.domain_attr.name;
    let (found, others): (Vec<Own>, Vec<Own>) =
        addresses()?.into_iter().partition(|own| wanted.is_empty() || own.name() == *wanted);
    if found.is_empty() {
        let mut names: Vec<String> = others.iter().map(Own::name).collect();
        names.dedup();
        return Err(Error::wanted(
            Errno::ENODEV,
            "fi_info.domain_attr.name",
            format!("one of {}", names.join(", ")),
            wanted.clone(),
            "use an info that getinfo returned",
        ));
    }
    Ok(found)
}

/// The ports of devices that rdma_cm has named, and their GID tables.
#[derive(Default)]
struct Ports {
    places: Vec<(Context, u8)>,
    tables: Vec<PortTable>,
    /// Why a device cannot be used.
    useless: Vec<String>,
}

impl Ports {
    /// The place of a port in the list; `None` if its device cannot be used.
    fn find(&mut self, context: Context, number: u8) -> Option<usize> {
        let known = self.places.iter().position(|&place| place == (context, number));
        if known.is_some() {
            return known;
        }
        let device = context.name();
        if context.is_iwarp() {
            self.useless.push(format!("{device}, which is iWARP: this provider serves InfiniBand and RoCE"));
            return None;
        }
        let (port, gids) = match (context.port(number), context.gid_entries(number)) {
            (Ok(port), Ok(gids)) => (port, gids),
            // This device was removed; the others still work.
            (Err(error), _) | (_, Err(error)) => {
                self.useless.push(format!("{device}, which does not respond ({error})"));
                return None;
            }
        };
        self.places.push((context, number));
        let (is_active, is_ethernet) = (port.active, port.ethernet);
        self.tables.push(PortTable { device, number, is_active, is_ethernet, gids });
        Some(self.tables.len() - 1)
    }
}

/// The addresses of this network namespace, each with the port to which rdma_cm binds it.
fn of_the_host(ports: &mut Ports) -> Result<Vec<HostAddress>> {
    let channel = EventChannel::new().map_err(|error| failed(&error))?;
    let system = |errno: nix::Error| Error::with(Errno::from_raw(errno as i32), "getifaddrs failed");
    let mut all = Vec::new();
    for entry in getifaddrs().map_err(system)? {
        let Some(ip) = entry.address.as_ref().and_then(ip_of) else { continue };
        let flags = entry.flags;
        let is_loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let bound = if is_loopback { Ok(None) } else { ibv::binding_of(&channel, ip) };
        let bound = bound.unwrap_or_else(|error| {
            tracing::info!(target: "ofi::verbs::core", %ip, interface = entry.interface_name, %error, "rdma_cm does not bind the address");
            None
        });
        let bound = bound.and_then(|at| Some((ports.find(at.context, at.port)?, at.gid)));
        let index = nix::net::if_::if_nametoindex(&*entry.interface_name).unwrap_or(0);
        let is_up = flags.contains(InterfaceFlags::IFF_UP);
        all.push(HostAddress { interface: entry.interface_name, index, ip, is_up, bound });
    }
    Ok(all)
}

fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

fn of_the_system() -> Result<Vec<Own>> {
    ibv::contexts().map_err(|error| failed(&error))?; // says what this host lacks
    let mut ports = Ports::default();
    let addresses = of_the_host(&mut ports)?;
    let (name, iface) = (settings::DEVICE_NAME.get(), settings::IFACE.get());
    let Listing { served, mut down, unwanted } = listing::list(&addresses, &ports.tables, &name, &iface);
    down.append(&mut ports.useless);
    for device in &down {
        tracing::info!(target: "ofi::verbs::core", "left out {device}");
    }
    if unwanted > 0 {
        tracing::debug!(target: "ofi::verbs::core", unwanted, "FI_VERBS_DEVICE_NAME or FI_VERBS_IFACE leaves out addresses");
    }
    if !down.is_empty() && served.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "InfiniBand or RoCE, with a port that is up",
            down.join("; "),
            "bring the interface up (`ip link set`), or check the cable (`rdma link`)",
        ));
    }
    if served.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose interface has an IP address",
            format!(
                "none that FI_VERBS_DEVICE_NAME={name:?} and FI_VERBS_IFACE={iface:?} allow (empty: all)"
            ),
            "give the interface an address (`ip addr add`), or set FI_VERBS_DEVICE_NAME or FI_VERBS_IFACE",
        ));
    }
    let own = |Served { ip, port, gid, gid_index }| {
        let (context, number) = ports.places[port];
        Own { ip, of: Of::Port(Port { context, number, gid, gid_index }) }
    };
    Ok(served.into_iter().map(own).collect())
}
