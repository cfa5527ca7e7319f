//! Addresses: IP socket addresses in a canonical form, so that equal addresses compare equal, and names that resolve to
//! them.

mod name;

use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};

use ofi_api::{AddrFormat, Address, Errno, Error, Result};
use ofi_core::sys::service::port_of;

pub use self::name::{Name, service, source};
use crate::devices;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider verbs",
        "an IPv4 or IPv6 address and a port",
        found,
        "give a host name or numeric address, and a port number or the name of a service in /etc/services",
    )
}

/// The socket address in an address, in canonical form.
pub fn socket(address: &Address) -> Result<SocketAddr> {
    address.to_socket_addr().map(canonical).ok_or_else(|| invalid(address.to_string()))
}

/// The canonical form of a socket address: without a flow label, and with an interface only if the address is ambiguous
/// without one.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => {
            let local = v6.ip().is_unicast_link_local();
            let scope = if local { v6.scope_id() } else { 0 };
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
    }
}

/// Whether an address is of `format`, if that is one of the two.
pub fn fits(address: SocketAddr, format: Option<AddrFormat>) -> bool {
    match format {
        Some(AddrFormat::SockaddrIn) => address.is_ipv4(),
        Some(AddrFormat::SockaddrIn6) => address.is_ipv6(),
        _ => true,
    }
}

/// Resolves a node and a service, in `format` if one is requested. Without a node, the address is this host's.
///
/// # Errors
/// `FI_EINVAL` for names that do not resolve.
pub fn resolve(node: Option<&str>, service: Option<&str>, format: Option<AddrFormat>) -> Result<Address> {
    if let Some(address) = Address::of_node(node, service) {
        let address = address?;
        if address.format() == AddrFormat::IbUd && format.is_none() {
            return Ok(address);
        }
        let address = socket(&address)?;
        let other = || invalid(format!("{address}, which is of another format than the one requested"));
        return fits(address, format).then(|| address.into()).ok_or_else(other);
    }
    let node = node.filter(|node| !node.is_empty());
    let service = service.filter(|service| !service.is_empty());
    let port: u16 = match service {
        None => 0,
        Some(service) => port_of(service).ok_or_else(|| invalid(format!("port {service:?}")))?,
    };
    let Some(host) = node else {
        let own = devices::addresses()?.into_iter().map(|own| SocketAddr::new(own.ip, port));
        let own = own.into_iter().find(|&address| fits(address, format));
        return own
            .map(Address::from)
            .ok_or_else(|| invalid("no RDMA device with an address of this format"));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().map_err(|error| invalid(format!("{host}: {error}")))?;
    found
        .find(|&address| fits(address, format))
        .map(|address| Address::from(canonical(address)))
        .ok_or_else(|| invalid(format!("{host}, which has no address of the requested format")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn names_and_numbers_resolve_in_the_format_asked_for() {
        let four = resolve(Some("127.0.0.1"), Some("7471"), None).unwrap();
        assert_eq!(four, Address::from(SocketAddr::from(([127, 0, 0, 1], 7471))));
        assert_eq!(resolve(Some("fi_sockaddr_in://127.0.0.1:7471"), None, None).unwrap(), four);
        // The system's database has services by name.
        let named = resolve(Some("127.0.0.1"), Some("http"), None).unwrap();
        assert_eq!(named, Address::from(SocketAddr::from(([127, 0, 0, 1], 80))));
        let datagrams = resolve(Some("fi_addr_ib_ud://fe80::1:1a/0/ffff/0"), None, None).unwrap();
        assert_eq!(Name::parse(&datagrams).unwrap().qp, 0x1a);
        let six = resolve(Some("[::1]"), Some("1"), Some(AddrFormat::SockaddrIn6)).unwrap();
        assert_eq!(six.format(), AddrFormat::SockaddrIn6);
        for (node, service, format) in [
            (Some("127.0.0.1"), Some("no such service"), None),
            (Some("127.0.0.1"), Some("70000"), None),
            (Some("127.0.0.1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("fi_sockaddr_in://127.0.0.1:1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("fi_sockaddr_in://127.0.0.1:1"), Some("1"), None),
            (Some("no such host"), None, None),
        ] {
            assert_eq!(resolve(node, service, format).unwrap_err().errno(), Errno::EINVAL, "{node:?}");
        }
    }

    #[test]
    fn flow_labels_and_needless_scopes_do_not_tell_addresses_apart() {
        let with = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 7, 9);
        let without = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0, 0);
        assert_eq!(socket(&with.into()).unwrap(), without.into());
        let local = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 9);
        assert_eq!(socket(&local.into()).unwrap(), local.into());
        assert!(socket(&Address::from_text("fi_shm://x")).is_err());
    }
}
