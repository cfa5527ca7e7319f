//! IP addresses of socket-based endpoints: canonical forms, name resolution, and the address to bind. [`interface`] has
//! the addresses of this host, [`request`] those of a getinfo call, [`ports`] the port ranges. [`Addressing`] holds the
//! differences between providers.

pub mod interface;
pub mod ports;
pub mod request;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs, UdpSocket};

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

use crate::config::{AnySetting, Setting};
use crate::sys::service::port_of;
use interface::Interface;

/// A provider's name, and its setting for the default interface.
pub struct Addressing {
    provider: &'static str,
    interface: &'static Setting<&'static str>,
}

impl Addressing {
    /// The addressing of a provider. Its setting `interface` names an address or an interface; empty: all of the host.
    pub const fn new(provider: &'static str, interface: &'static Setting<&'static str>) -> Self {
        Self { provider, interface }
    }

    fn invalid(&self, found: impl Into<String>) -> Error {
        Error::wanted(
            Errno::EINVAL,
            format!("an address of provider {}", self.provider),
            "an IPv4 or IPv6 address and a port",
            found,
            "give a host name or numeric address, and a port number or the name of a service in /etc/services",
        )
    }

    /// The socket address in its [canonical] form.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that is not an IP address.
    pub fn socket(&self, address: &Address) -> Result<SocketAddr> {
        address.to_socket_addr().map(canonical).ok_or_else(|| self.invalid(address.to_string()))
    }

    /// The address that node and service denote, in `format` if given. Without a node, an address of this host.
    ///
    /// # Errors
    /// `FI_EINVAL` for names that do not resolve, or not in `format`; errors of [`Self::chosen`].
    pub fn resolve(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        format: Option<AddrFormat>,
    ) -> Result<Address> {
        if let Some(address) = Address::of_node(node, service) {
            let address = self.socket(&address?)?;
            let other =
                || self.invalid(format!("{address}, which is of another format than the one asked for"));
            return fits(address, format).then(|| address.into()).ok_or_else(other);
        }
        let node = node.filter(|node| !node.is_empty());
        let port: u16 = match service.filter(|service| !service.is_empty()) {
            None => 0,
            Some(service) => port_of(service).ok_or_else(|| self.invalid(format!("port {service:?}")))?,
        };
        let Some(host) = node else {
            let ip = self.own_ip(format == Some(AddrFormat::SockaddrIn6))?;
            return Ok(Address::from(SocketAddr::new(ip, port)));
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let mut found =
            (host, port).to_socket_addrs().map_err(|error| self.invalid(format!("{host}: {error}")))?;
        found
            .find(|&address| fits(address, format))
            .map(|address| Address::from(canonical(address)))
            .ok_or_else(|| self.invalid(format!("{host}, which has no address of the format asked for")))
    }

    /// The address that an endpoint binds: `name`, or else `source` with any port. The setting replaces a wildcard
    /// address.
    ///
    /// # Errors
    /// Those of [`Self::chosen`].
    pub fn to_bind(&self, name: Option<SocketAddr>, source: Option<IpAddr>, v6: bool) -> Result<SocketAddr> {
        let mut wanted = name.unwrap_or_else(|| SocketAddr::new(source.unwrap_or(any(v6)), 0));
        if wanted.ip().is_unspecified()
            && let Some(ip) = self.chosen(wanted.is_ipv6())?
        {
            wanted.set_ip(ip);
        }
        Ok(wanted)
    }

    /// The address that the setting names, or [`host_ip`].
    ///
    /// # Errors
    /// Those of [`Self::chosen`].
    pub fn own_ip(&self, v6: bool) -> Result<IpAddr> {
        Ok(self.chosen(v6)?.unwrap_or_else(|| host_ip(v6)))
    }

    /// The setting's address in the requested family: the address itself, or the first one of its interface. `None` if
    /// the setting is empty.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` for an interface that does not exist or has no such address. There is no fallback: it would
    /// open an endpoint that the user wanted restricted.
    pub fn chosen(&self, v6: bool) -> Result<Option<IpAddr>> {
        let text = self.interface.get();
        if text.is_empty() {
            return Ok(None);
        }
        interface::find(&text, v6).map(Some).ok_or_else(|| {
            let family = if v6 { "IPv6" } else { "IPv4" };
            Error::wanted(
                Errno::EADDRNOTAVAIL,
                self.interface.env(),
                format!("an interface of this host with an address of {family}, or such an address"),
                format!("{text:?}"),
                "correct the variable (`ip address` lists interfaces), or unset it for all addresses of the host",
            )
        })
    }

    /// The single addresses that endpoints may bind: those of interfaces that are up, IPv4 before IPv6 and loopback
    /// last. If the setting is set, only those that it names.
    pub fn usable(&self) -> Vec<Interface> {
        let text = self.interface.get();
        let wanted = |found: &Interface| found.name == *text || found.ip.to_string() == *text;
        let serves = |found: &Interface| found.serves(found.ip.is_ipv6()) || found.is_loopback();
        let mut usable = interface::all();
        usable.retain(|found| if text.is_empty() { serves(found) } else { wanted(found) });
        usable.sort_by_key(|found| (found.is_loopback(), found.ip.is_ipv6())); // otherwise keeps the system's order
        usable
    }
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

/// Whether it is a multicast group of link or interface scope (RFC 4291, 2.7), which may exist on other interfaces too.
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

/// The wildcard address of the requested family.
pub fn any(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The address of this host from which `to` is reached.
pub fn route(to: SocketAddr) -> Option<IpAddr> {
    let probe = UdpSocket::bind((any(to.is_ipv6()), 0)).ok()?;
    // Connecting a datagram socket sends nothing; it only looks up the route.
    probe.connect(SocketAddr::new(to.ip(), to.port().max(1))).ok()?;
    probe.local_addr().ok().map(|address| address.ip())
}

/// The address by which other hosts most likely reach this one: that of the default route, else that of an interface,
/// else loopback.
pub fn host_ip(v6: bool) -> IpAddr {
    // Addresses for documentation (RFC 5737, RFC 3849): only the default route leads there.
    let (outside, loopback): (IpAddr, IpAddr) = if v6 {
        (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), Ipv6Addr::LOCALHOST.into())
    } else {
        (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::LOCALHOST.into())
    };
    let any = || interface::all().into_iter().find(|found| found.serves(v6)).map(|found| found.ip);
    route(SocketAddr::new(outside, 9)).or_else(any).unwrap_or(loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    static INTERFACE: Setting<&'static str> = Setting::new("ip_test", "iface", "", "Never set");
    static OURS: Addressing = Addressing::new("mine", &INTERFACE);

    #[test]
    fn names_and_numbers_resolve_in_the_format_asked_for() {
        let four = OURS.resolve(Some("127.0.0.1"), Some("7471"), None).unwrap();
        assert_eq!(four, Address::from(SocketAddr::from(([127, 0, 0, 1], 7471))));
        assert_eq!(OURS.resolve(Some("fi_sockaddr_in://127.0.0.1:7471"), None, None).unwrap(), four);
        let six = OURS.resolve(Some("[::1]"), Some("1"), Some(AddrFormat::SockaddrIn6)).unwrap();
        assert_eq!(six.format(), AddrFormat::SockaddrIn6);
        for (node, service, format) in [
            (Some("127.0.0.1"), Some("no such service"), None),
            (Some("127.0.0.1"), Some("70000"), None),
            (Some("127.0.0.1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("fi_sockaddr_in://127.0.0.1:1"), None, Some(AddrFormat::SockaddrIn6)),
            (Some("fi_sockaddr_in://127.0.0.1:7471"), Some("7471"), None),
            (Some("fi_sockaddr_in://localhost:7471"), None, None),
            (Some("fi_shm://x"), None, None),
            (Some("no such host"), None, None),
        ] {
            let error = OURS.resolve(node, service, format).unwrap_err();
            assert_eq!(error.errno(), Errno::EINVAL, "{node:?}");
        }
    }

    #[test]
    fn flow_labels_and_needless_scopes_do_not_tell_addresses_apart() {
        let with = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 7, 9);
        let without = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0, 0);
        assert_eq!(OURS.socket(&with.into()).unwrap(), without.into());
        let local = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 0, 9);
        assert_eq!(OURS.socket(&local.into()).unwrap(), local.into());
        let error = OURS.socket(&Address::from_text("fi_shm://x")).unwrap_err().to_string();
        assert!(error.contains("an address of provider mine"), "{error}");
    }

    #[test]
    fn an_endpoint_binds_its_name_or_a_source_or_everything() {
        let name = SocketAddr::from(([127, 0, 0, 1], 7));
        let source = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(OURS.to_bind(Some(name), Some(source), false).unwrap(), name);
        assert_eq!(OURS.to_bind(None, Some(source), false).unwrap(), SocketAddr::new(source, 0));
        assert_eq!(OURS.to_bind(None, None, true).unwrap(), SocketAddr::new(any(true), 0));
    }
}
