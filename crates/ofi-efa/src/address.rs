//! Addresses: 32 bytes in a canonical form, so that equal addresses compare equal.

use std::net::Ipv6Addr;

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use crate::srd::Gid;
use crate::wire::RawAddress;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider efa",
        "the 32 bytes of an endpoint's name (FI_ADDR_EFA)",
        found,
        "exchange addresses that fi_getname returns",
    )
}

/// Parses an address of the application.
///
/// # Errors
/// `FI_EINVAL` for an invalid address.
pub fn raw(address: &Address) -> Result<RawAddress> {
    let ours = matches!(address.format(), AddrFormat::Efa);
    let raw = ours.then(|| RawAddress::from_bytes(address.bytes())).flatten();
    raw.filter(|raw| raw.qpn != 0).ok_or_else(|| invalid(address.to_string()))
}

/// The application's form of an address.
pub fn named(raw: &RawAddress) -> Address {
    Address::new(AddrFormat::Efa, &raw.to_bytes())
}

/// The address of a device without a queue pair, which is the local address of an offer.
pub fn unmade(gid: &Gid) -> Address {
    named(&RawAddress { gid: *gid, qpn: 0, connid: 0 })
}

/// The device of an address without a queue pair.
///
/// # Errors
/// `FI_EINVAL` if the address is invalid, or is that of an endpoint.
pub fn device(address: &Address) -> Result<Gid> {
    let ours = matches!(address.format(), AddrFormat::Efa);
    let raw = ours.then(|| RawAddress::from_bytes(address.bytes())).flatten();
    raw.filter(|raw| raw.qpn == 0).map(|raw| raw.gid).ok_or_else(|| invalid(address.to_string()))
}

/// The local device that a node names: by its GID in the notation of an IPv6 address, or by the text of an address.
///
/// # Errors
/// `FI_EINVAL` for other text.
pub fn device_named(node: &str) -> Result<Gid> {
    let text = node.strip_prefix("fi_addr_efa://[").and_then(|rest| rest.split(']').next()).unwrap_or(node);
    text.parse::<Ipv6Addr>().map(|gid| gid.octets()).map_err(|_| {
        Error::wanted(
            Errno::EINVAL,
            "a node of provider efa",
            "the GID of a device of this host, such as fe80::1 (fi_info, src_addr)",
            node,
            "omit the node, or name with FI_SOURCE one of the devices that fi_info lists",
        )
    })
}

/// The endpoint that node and service name, as in C's provider: the node is its GID in the notation of an IPv6 address,
/// and the service the number of its queue pair, 0 without one. Its connection id is 0. The text of an address, which
/// contains all three, is also a valid node.
///
/// # Errors
/// `FI_EINVAL` for other text.
pub fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
    let found = || format!("node {:?} and service {:?}", node.unwrap_or(""), service.unwrap_or(""));
    let wanted = || {
        Error::wanted(
            Errno::EINVAL,
            "an endpoint of provider efa",
            "as node a GID such as fe80::1, and as service a queue pair number, 65535 at most",
            found(),
            "exchange addresses that fi_getname returns",
        )
    };
    let node = node.ok_or_else(wanted)?;
    // A service beside the text is ignored, as in C's provider: programs give a port with every node.
    let raw = match Address::of_node(Some(node), None) {
        Some(address) => {
            let address = address?;
            RawAddress::from_bytes(address.bytes()).filter(|_| address.format() == AddrFormat::Efa)
        }
        None => node.parse::<Ipv6Addr>().ok().and_then(|gid| {
            let qpn = service.map_or(Some(0), |service| service.parse().ok())?;
            Some(RawAddress { gid: gid.octets(), qpn, connid: 0 })
        }),
    };
    raw.map(|raw| named(&raw)).ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_devices_by_their_gids() {
        let gid: Gid = "fe80::1:2".parse::<Ipv6Addr>().unwrap().octets();
        for node in ["fe80::1:2", &unmade(&gid).to_string()] {
            assert_eq!(device_named(node).unwrap(), gid, "{node}");
        }
        for node in ["", "127.0.0.1", "host", "fi_addr_efa://[", "[fe80::1:2]"] {
            assert_eq!(device_named(node).unwrap_err().errno(), Errno::EINVAL, "{node:?}");
        }
        assert_eq!(device(&unmade(&gid)).unwrap(), gid);
        let made = named(&RawAddress { gid, qpn: 1, connid: 7 });
        assert_eq!(device(&made).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(raw(&unmade(&gid)).unwrap_err().errno(), Errno::EINVAL, "an address without a queue pair");
    }

    #[test]
    fn peers_are_named_by_gid_and_queue_pair() {
        let gid: Gid = "fe80::1:2".parse::<Ipv6Addr>().unwrap().octets();
        let peer = |qpn, connid| named(&RawAddress { gid, qpn, connid });
        assert_eq!(resolve(Some("fe80::1:2"), Some("9228")).unwrap(), peer(9228, 0));
        assert_eq!(resolve(Some("fe80::1:2"), None).unwrap(), peer(0, 0));
        let whole = peer(3, u32::MAX);
        assert_eq!(resolve(Some(&whole.to_string()), Some("9228")).unwrap(), whole);
        // Printed addresses parse, and may be inserted.
        let read: Address = whole.to_string().parse().unwrap();
        assert_eq!((raw(&read).unwrap(), &read), (raw(&whole).unwrap(), &whole));
        for (node, service) in [
            (None, Some("9228")),
            (Some(""), None),
            (Some("10.1.2.3"), Some("1")),
            (Some("host"), Some("1")),
            (Some("fe80::1:2"), Some("65536")),
            (Some("fe80::1:2"), Some("")),
            (Some("fi_addr_efa://[fe80::1:2]:1"), None),
            (Some("fi_addr_efa://fe80::1:2"), None),
            (Some("fi_sockaddr_in://10.1.2.3:1"), None),
            (Some("fi_shm://x"), None),
        ] {
            assert_eq!(resolve(node, service).unwrap_err().errno(), Errno::EINVAL, "{node:?} {service:?}");
        }
    }
}
