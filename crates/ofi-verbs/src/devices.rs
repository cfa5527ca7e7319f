//! The devices of this host, by their addresses: the system's, and added ones.

use std::net::IpAddr;
use std::sync::Arc;

use ibv::{Context, Gid};
use ofi_api::{Errno, Error, Info, Result};

use crate::errors::failed;
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

    /// The port's unreliable datagrams; `None` if the device has none.
    pub fn datagrams(&self) -> Option<UdPort> {
        match &self.of {
            Of::Port(port) => ud_system::port(port.context, port.number, port.gid).ok(),
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

fn of_the_system() -> Result<Vec<Own>> {
    let (mut all, mut down) = (Vec::new(), Vec::new());
    let (name, iface) = (settings::DEVICE_NAME.get(), settings::IFACE.get());
    // An empty list takes all interfaces, also those of other network namespaces, which have no name here.
    let takes_interface = |interface: Option<String>| settings::takes(&iface, &interface.unwrap_or_default());
    for &context in ibv::contexts().map_err(|error| failed(&error))? {
        if !settings::takes(&name, &context.name()) {
            tracing::debug!(target: "ofi::verbs::core", device = context.name(), "FI_VERBS_DEVICE_NAME leaves out");
            continue;
        }
        let ports = match context.query() {
            Ok(info) => info.ports,
            // This device was removed; the others still work.
            Err(error) => {
                down.push(format!("{}, which does not respond ({error})", context.name()));
                continue;
            }
        };
        for port in 1..=ports {
            let active = context.port(port).is_ok_and(|port| port.active);
            for gid in context.gids(port).unwrap_or_default() {
                let local = matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
                // A link-local address is ambiguous without its interface.
                if local || !takes_interface(context.interface(port, gid)) {
                    continue;
                }
                match active {
                    true => {
                        let of = Of::Port(Port { context, number: port, gid });
                        all.push(Own { ip: gid.ip(), of });
                    }
                    false => {
                        down.push(format!("{} of {}, whose port {port} is down", gid.ip(), context.name()))
                    }
                }
            }
        }
    }
    for device in &down {
        tracing::info!(target: "ofi::verbs::core", "left out {device}");
    }
    if !down.is_empty() && all.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose port is up",
            down.join("; "),
            "bring the interface up (`ip link set`), or check the cable (`rdma link`)",
        ));
    }
    if all.is_empty() {
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
    Ok(all)
}
