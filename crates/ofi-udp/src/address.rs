//! Addresses: IP socket addresses in canonical form, and names that resolve to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs, UdpSocket};

use ofi_api::{AddrFormat, Address, Caps, Errno, Error, Info, Result};
use ofi_core::sys::service::port_of;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider udp",
        "an IPv4 or IPv6 address and a port",
        found,
        "give a host name or numeric address, and a port number or the name of a service in /etc/services",
    )
}

/// The socket of an address, without the parts that do not distinguish sockets.
pub fn socket(address: &Address) -> Result<SocketAddr> {
    address.to_socket_addr().map(canonical).ok_or_else(|| invalid(address.to_string()))
}

/// See [`ofi_core::transport::Transport::normalize`].
pub fn normalize(address: &Address) -> Result<Address> {
    socket(address).map(Address::from)
}

/// The canonical form of a socket address: no flow label, and an interface only if the address needs one.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => {
            let local = v6.ip().is_unicast_link_local() || is_local_group(*v6.ip());
            let scope = if local { v6.scope_id() } else { 0 };
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
    }
}

/// Whether it is a multicast group of link or interface scope (RFC 4291, 2.7), which other interfaces may have too.
pub fn is_local_group(ip: Ipv6Addr) -> bool {
    ip.is_multicast() && matches!(ip.segments()[0] & 15, 1 | 2)
}

fn fits(address: SocketAddr, format: Option<AddrFormat>) -> bool {
    match format {
        Some(AddrFormat::SockaddrIn) => address.is_ipv4(),
        Some(AddrFormat::SockaddrIn6) => address.is_ipv6(),
        _ => true,
    }
}

/// The address that node and service denote, in `format` if given. Without a node, an address of this host.
///
/// # Errors
/// `FI_EINVAL` for names that do not resolve.
pub fn resolve(node: Option<&str>, service: Option<&str>, format: Option<AddrFormat>) -> Result<Address> {
    if let Some(address) = Address::of_node(node, service) {
        let address = socket(&address?)?;
        let other = || invalid(format!("{address}, which is of another format than the one asked for"));
        return fits(address, format).then(|| address.into()).ok_or_else(other);
    }
    let node = node.filter(|node| !node.is_empty());
    let service = service.filter(|service| !service.is_empty());
    let port: u16 = match service {
        None => 0,
        Some(service) => port_of(service).ok_or_else(|| invalid(format!("port {service:?}")))?,
    };
    let Some(host) = node else {
        let ip = own_ip(format == Some(AddrFormat::SockaddrIn6))?;
        return Ok(Address::from(SocketAddr::new(ip, port)));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut found = (host, port).to_socket_addrs().map_err(|error| invalid(format!("{host}: {error}")))?;
    found
        .find(|&address| fits(address, format))
        .map(|address| Address::from(canonical(address)))
        .ok_or_else(|| invalid(format!("{host}, which has no address of the format asked for")))
}

/// The wildcard address of the requested family.
pub fn any(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The address that an endpoint binds: `name`, or the address `source` of an interface. Without either: all addresses
/// of this host, or those that `FI_UDP_IFACE` selects.
///
/// # Errors
/// Errors of [`crate::interface::chosen`].
pub fn to_bind(name: Option<SocketAddr>, source: Option<IpAddr>, v6: bool) -> Result<SocketAddr> {
    let any = any(v6);
    let mut wanted = name.unwrap_or_else(|| SocketAddr::new(source.unwrap_or(any), 0));
    if wanted.ip().is_unspecified()
        && let Some(ip) = crate::interface::chosen(wanted.is_ipv6())?
    {
        wanted.set_ip(ip);
    }
    Ok(wanted)
}

/// Returns `wanted`, or a single address of this host if the endpoint may join groups. An endpoint bound to all
/// addresses would also receive the datagrams of groups that other endpoints joined under the same port.
///
/// # Errors
/// Errors of [`own_ip`].
pub fn beside_groups(info: &Info, mut wanted: SocketAddr) -> Result<SocketAddr> {
    if info.caps.contains(Caps::MULTICAST) && wanted.ip().is_unspecified() {
        wanted.set_ip(own_ip(wanted.is_ipv6())?);
    }
    Ok(wanted)
}

/// The address of this host from which `to` is reached.
pub fn route(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let probe = UdpSocket::bind((any, 0)).ok()?;
    // Connecting a datagram socket sends nothing; it only looks up the route.
    probe.connect(SocketAddr::new(to.ip(), to.port().max(1))).ok()?;
    probe.local_addr().ok().map(|address| address.ip())
}

/// The address that `FI_UDP_IFACE` names, or [`host_ip`].
///
/// # Errors
/// Errors of [`crate::interface::chosen`].
fn own_ip(v6: bool) -> Result<IpAddr> {
    Ok(crate::interface::chosen(v6)?.unwrap_or_else(|| host_ip(v6)))
}

/// The address by which others most likely reach this host: that of the default route, else of an interface, else
/// loopback.
pub fn host_ip(v6: bool) -> IpAddr {
    // Addresses for documentation (RFC 5737, RFC 3849): only the default route leads there.
    let (outside, loopback): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::LOCALHOST.into())
    } else {
        (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into())
    };
    let any = || crate::interface::all().into_iter().find(|found| found.serves(v6)).map(|found| found.ip);
    route(SocketAddr::new(outside, 9)).or_else(any).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_resolve_in_the_format_asked_for() {
        let four = resolve(Some("127.0.0.1"), Some("7471"), None).unwrap();
        assert_eq!(four, Address::from(SocketAddr::from(([127, 0, 0, 1], 7471))));
        assert_eq!(resolve(Some("fi_sockaddr_in://127.0.0.1:7471"), None, None).unwrap(), four);
        for (node, service) in [
            ("fi_sockaddr_in://127.0.0.1:7471", Some("7471")),
            ("fi_sockaddr_in://localhost:7471", None),
            ("fi_shm://x", None),
        ] {
            assert_eq!(resolve(Some(node), service, None).unwrap_err().errno(), Errno::EINVAL, "{node}");
        }
        let six = resolve(Some("[::1]"), Some("1"), Some(AddrFormat::SockaddrIn6)).unwrap();
        assert_eq!(six.format(), AddrFormat::SockaddrIn6);
        for (node, service, format) in [
            (Some("127.0.0.1"), Some("no such service"), None),
            (Some("127.0.0.1"), Some("70000"), None),
            (Some("127.0.0.1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("fi_sockaddr_in://127.0.0.1:1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("no such host"), None, None),
        ] {
            assert_eq!(resolve(node, service, format).unwrap_err().errno(), Errno::EINVAL, "{node:?}");
        }
    }

    #[test]
    fn flow_labels_and_needless_scopes_do_not_tell_addresses_apart() {
        let with = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 7, 9);
        let without = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0, 0);
        assert_eq!(normalize(&with.into()).unwrap(), Address::from(without));
        let local = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 9);
        assert_eq!(normalize(&local.into()).unwrap(), Address::from(local));
        assert!(normalize(&Address::from_text("fi_shm://x")).is_err());
    }
}
