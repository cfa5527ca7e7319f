//! Addresses: 32 bytes in a canonical form, so that equal addresses compare equal.

use std::net::Ipv6Addr;

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use crate::srd::Gid;
use crate::wire::RawAddress;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider efa",
        "the 32 bytes that an endpoint's name is (FI_ADDR_EFA)",
        found,
        "exchange addresses that fi_getname answers",
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

/// The address of a device without a queue pair. An offer has it as this end's address.
pub fn unmade(gid: &Gid) -> Address {
    named(&RawAddress { gid: *gid, qpn: 0, connid: 0 })
}

/// The device of an address that has no queue pair yet.
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
            "leave the node away, or ask with FI_SOURCE for one of the devices that fi_info lists",
        )
    })
}

/// Fails: a fabric of EFA devices does not resolve names.
///
/// # Errors
/// Always `FI_EINVAL`.
pub fn resolve(node: Option<&str>) -> Result<Address> {
    Err(invalid(format!("the name {:?}", node.unwrap_or(""))))
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
        assert_eq!(raw(&unmade(&gid)).unwrap_err().errno(), Errno::EINVAL, "nobody sends there");
    }
}
