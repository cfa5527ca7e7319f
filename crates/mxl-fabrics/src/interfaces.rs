//! The addresses and providers of this host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use ofi::raw::{BusAttr, Caps, EpType, GetinfoFlags, Info, LinkState, Request, Version};
use ofi::{AddrFormat, Hints};
use serde_json::{Value, json};

use crate::Provider;

/// An address that reaches this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// The provider.
    pub provider: Provider,
    /// An address of this host; for shared memory the host's name.
    pub node: String,
    /// Maximum length of a transfer, in bytes.
    pub max_message: u64,
    /// Further properties, by the C++ SDK's names.
    pub attributes: BTreeMap<&'static str, Value>,
}

/// The addresses of this host, for one provider or all, at one node or all. `udp` is listed as `tcp`, its
/// name in the C++ SDK, unless the caller asks for `udp`. Providers without a device are omitted without an
/// error.
pub fn interfaces(provider: Option<Provider>, node: Option<&str>) -> Vec<Interface> {
    let wanted = |candidate: &Provider| match provider {
        Some(provider) => *candidate == provider,
        None => *candidate != Provider::Udp,
    };
    let mut all: Vec<Interface> = Vec::new();
    for info in infos() {
        let carries = |candidate: &Provider| candidate.of_stack() == info.fabric_attr.prov_name;
        for provider in Provider::ALL.into_iter().filter(wanted).filter(carries) {
            for (node, device) in nodes(&info) {
                if all.iter().any(|other| (other.provider, &other.node) == (provider, &node)) {
                    continue;
                }
                let max_message = info.ep_attr.max_msg_size as u64;
                all.push(Interface { provider, node, max_message, attributes: attributes(&info, device) });
            }
        }
    }
    all.retain(|entry| node.is_none_or(|node| entry.node == node));
    all
}

/// The reasons why [`interfaces`] finds none: the addresses of this host, if it lacks the node, or the obstacles to the
/// providers.
pub fn reasons(provider: Option<Provider>, node: Option<&str>) -> Vec<String> {
    let elsewhere = interfaces(provider, None);
    if let (Some(node), [_, ..]) = (node, &elsewhere[..]) {
        let others: Vec<&str> = elsewhere.iter().map(|entry| &*entry.node).collect();
        return vec![format!("{node} is not of this host, which is reached at {}", others.join(", "))];
    }
    let mut hints = hints();
    let name = provider.map_or("", Provider::of_stack);
    hints.info.fabric_attr.prov_name = name.into();
    let request = Request {
        version: Version::API,
        node: None,
        service: None,
        flags: GetinfoFlags::empty(),
        hints: Some(&hints),
    };
    let refusals = match ofi::explain(&request) {
        Ok(offers) => offers.refusals,
        Err(error) => return vec![error.to_string()],
    };
    let about = |provider: &str| name.is_empty() || provider == name;
    refusals.iter().filter(|refusal| about(&refusal.provider)).map(ToString::to_string).collect()
}

/// The hints for flows.
fn hints() -> Hints {
    let mut hints = Hints::default();
    hints.info.ep_attr.ep_type = EpType::Rdm;
    hints.info.caps = Caps::MSG | Caps::RMA;
    hints.info.domain_attr.mr_mode = crate::link::MR_MODE;
    hints
}

/// The infos of all providers for flows.
fn infos() -> Vec<Info> {
    ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints())).unwrap_or_default()
}

/// The nodes of an info, and their devices if the system knows them.
fn nodes(info: &Info) -> Vec<(String, Option<String>)> {
    match &info.src_addr {
        _ if info.addr_format == AddrFormat::Str => {
            let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
            vec![(host.unwrap_or_else(|_| "localhost".into()), None)]
        }
        Some(address) => match address.to_socket_addr().map(|address| address.ip()) {
            Some(ip) if ip.is_unspecified() => local(),
            Some(ip) => vec![(ip.to_string(), None)],
            // Not an IP address: use the provider's form.
            None => vec![(address.to_string(), None)],
        },
        None => local(),
    }
}

/// The addresses of this host, with their devices.
fn local() -> Vec<(String, Option<String>)> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let up = all.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
    let named = up.filter_map(|entry| {
        let address = entry.address?;
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            // A link-local address needs the name of its link, for which a target info has no room.
            (_, Some(v6)) if !v6.ip().is_unicast_link_local() => IpAddr::V6(v6.ip()),
            _ => return None,
        };
        Some((ip.to_string(), Some(entry.interface_name)))
    });
    named.collect()
}

fn attributes(info: &Info, device: Option<String>) -> BTreeMap<&'static str, Value> {
    let mut known = BTreeMap::new();
    let mut put = |name, text: &str| {
        if !text.is_empty() {
            known.insert(name, json!(text));
        }
    };
    put("ep_addr_format", &format!("{:?}", info.addr_format));
    put("ep_protocol", &format!("{:?}", info.ep_attr.protocol));
    put("ep_type", &format!("{:?}", info.ep_attr.ep_type));
    put("fi_domain_name", &info.domain_attr.name);
    put("device_name", device.as_deref().unwrap_or(&info.domain_attr.name));
    let Some(nic) = &info.nic else { return known };
    let (device, link) = (&nic.device_attr, &nic.link_attr);
    put("device_name", &device.name);
    put("device_id", &device.device_id);
    put("device_vendor_id", &device.vendor_id);
    put("device_version", &device.device_version);
    put("device_driver", &device.driver);
    put("device_firmware", &device.firmware);
    put("link_address", &link.address);
    put("link_type", &link.network_type);
    put(
        "link_state",
        match link.state {
            LinkState::Up => "up",
            LinkState::Down => "down",
            _ => "unknown",
        },
    );
    if link.speed > 0 {
        known.insert("link_speed", json!(link.speed));
    }
    if let BusAttr::Pci(pci) = nic.bus_attr {
        known.insert("pci_domain_id", json!(pci.domain_id));
        known.insert("pci_bus_id", json!(pci.bus_id));
        known.insert("pci_device_id", json!(pci.device_id));
        known.insert("pci_function_id", json!(pci.function_id));
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_reached_over_shared_memory_and_ip() {
        let all = interfaces(None, None);
        let over = |provider| all.iter().filter(|entry| entry.provider == provider).count();
        assert!(over(Provider::Shm) == 1 && over(Provider::Tcp) > 0 && over(Provider::Udp) == 0, "{all:?}");
        assert!(all.iter().all(|entry| entry.max_message > 0));
        let home = interfaces(Some(Provider::Udp), Some("127.0.0.1"));
        assert!(home.len() == 1 && home[0].provider == Provider::Udp, "{home:?}");
        assert!(interfaces(None, Some("203.0.113.77")).is_empty());
    }
}
