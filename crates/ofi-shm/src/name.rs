//! Addresses: a name (`fi_shm://…`, or `fi_ns://…` for a node and a service; `FI_ADDR_STR`) or a port of this host
//! (`FI_SOCKADDR_IN`, `FI_SOCKADDR_IN6`; among names its text, `fi_sockaddr_in://127.0.0.1:PORT`). Each maps to an
//! abstract socket.
//!
//! The kernel identifies the sender of a datagram by the name of its socket. Addresses and sockets correspond one to
//! one: a name that spells an address differently (`05000`, or a name that continues after a zero byte) is invalid. So
//! an address cannot be forged while its owner lives.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use ofi_api::{AddrFormat, Address, Errno, Error, Result};
use ofi_core::sys::service;

use crate::sys::{self, ControlSocket};

/// Prefix of a name, as in C libfabric.
pub const SCHEME: &str = "fi_shm://";
/// Prefix of a name that is made from a node and a service, as in C libfabric.
const SERVICE_SCHEME: &str = "fi_ns://";
/// First byte string of a socket that belongs to a name.
const NAMED: &[u8] = b"ofi-shm/n/";
/// And to the name of a service.
const SERVICE: &[u8] = b"ofi-shm/s/";
/// The schemes of names, and the prefix of each scheme's sockets.
const SCHEMES: [(&str, &[u8]); 2] = [(SCHEME, NAMED), (SERVICE_SCHEME, SERVICE)];
/// First byte string of a socket that belongs to a port.
const PORT: &[u8] = b"ofi-shm/p/";
/// The maximum length of a name, in bytes, so that the socket's fits into `sun_path`.
const MAX_NAME: usize = 96;

fn invalid(found: impl Into<String>) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "an address of provider shm",
        format!(
            "{SCHEME}NAME or {SERVICE_SCHEME}NAME of at most {MAX_NAME} bytes, or an address and port of this host"
        ),
        found,
        "use an address that fi_getname returned on this host",
    )
}

/// The name in an address of a scheme, and the prefix of its socket.
fn named(text: &str) -> Option<(&str, &'static [u8])> {
    SCHEMES.iter().find_map(|&(scheme, prefix)| Some((text.strip_prefix(scheme)?, prefix)))
}

/// Whether `text` is an address rather than the name of a host.
pub fn has_scheme(text: &str) -> bool {
    named(text).is_some()
}

/// The name that C libfabric makes from any node and service. A node that is already an address is used as it is.
///
/// # Errors
/// `FI_EINVAL` if it is too long, and for an address of another kind.
pub fn of_service(node: Option<&str>, service: Option<&str>) -> Result<Address> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    let text = match (given(node), given(service)) {
        (Some(node), _) if has_scheme(&node) => node,
        (Some(node), service) if node.contains("://") => {
            return as_text(&resolve(Some(&node), service.as_deref())?);
        }
        (Some(node), Some(service)) => format!("{SERVICE_SCHEME}{node}:{service}"),
        (None, Some(service)) => format!("{SERVICE_SCHEME}{service}"),
        (Some(node), None) => format!("{SCHEME}{node}"),
        (None, None) => return Err(invalid("neither a node nor a service")),
    };
    normalize(&Address::from_text(&text))
}

/// Whether `ip` belongs to this host.
pub fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The canonical form of an address of this host: ports belong to the host, whatever interface was named.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, address.port()).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, address.port()).into(),
    }
}

/// The socket address of a port, also as text among names.
fn port_of(address: &Address) -> Option<SocketAddr> {
    match address.text() {
        Some(text) if !has_scheme(text) => text.parse::<Address>().ok()?.to_socket_addr(),
        Some(_) => None,
        None => address.to_socket_addr(),
    }
}

/// The text of a port, for endpoints whose addresses are names. It is the same for both address families.
fn port_text(port: u16) -> Address {
    Address::from_text(&Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).to_string())
}

/// See [`ofi_core::transport::Transport::normalize`].
pub fn normalize(address: &Address) -> Result<Address> {
    if let Some(text) = address.text()
        && let Some((name, _)) = named(text)
    {
        let fits = !name.is_empty() && name.len() <= MAX_NAME;
        return fits.then(|| Address::from_text(text)).ok_or_else(|| invalid(format!("{text:?}")));
    }
    let Some(socket) = port_of(address) else { return Err(invalid(address.to_string())) };
    if !is_local(socket.ip()) {
        return Err(invalid(format!("{socket}, which is not on this host")));
    }
    Ok(match address.format() {
        AddrFormat::Str => port_text(socket.port()),
        _ => Address::from(canonical(socket)),
    })
}

/// The text of an address, for endpoints whose addresses are names.
///
/// # Errors
/// Those of [`normalize`].
pub fn as_text(address: &Address) -> Result<Address> {
    normalize(&Address::from_text(&address.to_string()))
}

/// See [`ofi_core::transport::Transport::resolve`]. A number and the name of a known service are ports;
/// any other service makes a name.
pub fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
    let node = node.filter(|node| !node.is_empty());
    let service = service.filter(|service| !service.is_empty());
    if let Some(name) = node.filter(|node| has_scheme(node)) {
        return normalize(&Address::from_text(name));
    }
    if let Some(address) = Address::of_node(node, service.filter(|&service| service != "0")) {
        return normalize(&address?);
    }
    let port: u16 = match service.map(service::port_of) {
        None => 0,
        Some(Some(port)) => port,
        Some(None) => return of_service(node, service),
    };
    let Some(host) = node else { return Ok(Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))) };
    let mut found = (host, port).to_socket_addrs().map_err(|error| invalid(format!("{host}: {error}")))?;
    let local = found.find(|address| is_local(address.ip()));
    local
        .map(|address| Address::from(canonical(address)))
        .ok_or_else(|| invalid(format!("{host}, not on this host")))
}

/// The socket behind a normalised address.
pub fn socket_name(address: &Address) -> Result<Vec<u8>> {
    if let Some((name, prefix)) = address.text().and_then(named) {
        return Ok([prefix, name.as_bytes()].concat());
    }
    let socket = port_of(address).ok_or_else(|| invalid(address.to_string()))?;
    Ok([PORT, socket.port().to_string().as_bytes()].concat())
}

/// Whether a socket of this name is an endpoint's.
pub fn is_endpoint(socket: &[u8]) -> bool {
    address_of(socket, AddrFormat::Unspec).is_some()
}

/// The address behind a socket, in the form that an endpoint with addresses of `format` uses; `None` for a socket whose
/// name no address gives.
pub fn address_of(socket: &[u8], format: AddrFormat) -> Option<Address> {
    let address = spelt(socket, format)?;
    (socket_name(&address).ok()? == socket).then_some(address)
}

/// The address behind a socket, in the log.
pub fn shown(socket: &[u8], format: AddrFormat) -> String {
    let unnamed = || String::from_utf8_lossy(socket).into_owned();
    address_of(socket, format).map_or_else(unnamed, |address| address.to_string())
}

/// The address that a socket's name spells, possibly not in its canonical spelling.
fn spelt(socket: &[u8], format: AddrFormat) -> Option<Address> {
    for (scheme, prefix) in SCHEMES {
        if let Some(name) = socket.strip_prefix(prefix) {
            let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
            return Some(Address::from_text(&format!("{scheme}{name}")));
        }
    }
    let port = std::str::from_utf8(socket.strip_prefix(PORT)?).ok()?.parse().ok()?;
    if format == AddrFormat::Str {
        return Some(port_text(port));
    }
    let ip: IpAddr = match format {
        AddrFormat::SockaddrIn6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    Some(Address::from(SocketAddr::from((ip, port))))
}

/// Candidate addresses for an endpoint that requested `wanted`: `wanted` itself, or, where that leaves a choice, an
/// endless sequence.
pub fn candidates(wanted: Option<&Address>, format: AddrFormat) -> impl Iterator<Item = Address> {
    let (fixed, ip) = match wanted.map(|address| (address, port_of(address))) {
        Some((_, Some(socket))) if socket.port() == 0 => (None, Some(socket.ip())),
        Some((address, _)) => (Some(address.clone()), None),
        None => match format {
            AddrFormat::SockaddrIn | AddrFormat::Sockaddr | AddrFormat::SockaddrIp => {
                (None, Some(Ipv4Addr::LOCALHOST.into()))
            }
            AddrFormat::SockaddrIn6 => (None, Some(Ipv6Addr::LOCALHOST.into())),
            _ => (None, None),
        },
    };
    let tries = if fixed.is_some() { 1 } else { 1000 };
    (0..tries).map(move |_| match (&fixed, ip) {
        (Some(address), _) => address.clone(),
        // Linux's range of ephemeral ports.
        (None, Some(ip)) => {
            let port = 32_768 + (sys::random() % 28_232) as u16;
            if format == AddrFormat::Str {
                port_text(port)
            } else {
                Address::from(SocketAddr::from((ip, port)))
            }
        }
        (None, None) => Address::from_text(&format!("{SCHEME}{}:{:016x}", std::process::id(), sys::random())),
    })
}

/// Binds the socket of an endpoint that requested `wanted`. If the name is only `proposed` (by the info that opened the
/// endpoint) and is taken, the endpoint gets a free one that begins with it.
///
/// # Errors
/// `FI_EADDRINUSE` if the name is taken and was not merely proposed.
pub fn bind(
    wanted: Option<&Address>,
    proposed: bool,
    format: AddrFormat,
) -> Result<(Address, ControlSocket)> {
    match bind_as(wanted, format) {
        Err(error) if proposed && error.errno() == Errno::EADDRINUSE => {
            // There is no alternative to a port.
            let Some(name) = wanted.and_then(Address::text).filter(|text| has_scheme(text)) else {
                return Err(error);
            };
            bind_as(Some(&normalize(&beside(name))?), format)
        }
        other => other,
    }
}

/// A free name with `name` as its prefix.
fn beside(name: &str) -> Address {
    let suffix = format!(":{:016x}", sys::random());
    let scheme =
        SCHEMES.iter().find(|(scheme, _)| name.starts_with(scheme)).map_or(0, |(scheme, _)| scheme.len());
    let mut end = name.len().min(scheme + MAX_NAME - suffix.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Address::from_text(&format!("{}{suffix}", &name[..end]))
}

fn bind_as(wanted: Option<&Address>, format: AddrFormat) -> Result<(Address, ControlSocket)> {
    let mut bound = Err(Error::new(Errno::EADDRNOTAVAIL));
    for address in candidates(wanted, format) {
        match ControlSocket::bind(&socket_name(&address)?) {
            Ok(socket) => return Ok((address, socket)),
            Err(error) => bound = Err(error),
        }
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_port_come_back_from_their_sockets() {
        for text in ["fi_shm://a", "fi_shm://123:45", "fi_ns://a", "fi_ns://target:activation"] {
            let address = normalize(&Address::from_text(text)).unwrap();
            let socket = socket_name(&address).unwrap();
            assert_eq!(address_of(&socket, AddrFormat::Str), Some(address));
        }
        let address = resolve(Some("127.0.0.1"), Some("5000")).unwrap();
        let socket = socket_name(&address).unwrap();
        assert_eq!(address_of(&socket, AddrFormat::SockaddrIn), Some(address.clone()));
        // Among names, in one spelling for both families.
        for text in
            ["fi_sockaddr_in://127.0.0.1:5000", "fi_sockaddr_in6://[::1]:5000", "fi_sockaddr://0.0.0.0:5000"]
        {
            let name = as_text(&Address::from_text(text)).unwrap();
            assert_eq!(name, as_text(&address).unwrap());
            assert_eq!(name.to_string().parse::<Address>().unwrap(), address);
            assert_eq!(socket_name(&name).unwrap(), socket);
            assert_eq!(address_of(&socket, AddrFormat::Str), Some(name));
        }
    }

    #[test]
    fn what_a_node_and_a_service_mean_is_the_same_where_one_listens_and_where_one_inserts() {
        for (node, service, wanted) in [
            ("127.0.0.1", "7713", "fi_sockaddr_in://127.0.0.1:7713"),
            ("fi_sockaddr_in://127.0.0.1:7713", "", "fi_sockaddr_in://127.0.0.1:7713"),
            ("fi_sockaddr_in://127.0.0.1:7713", "0", "fi_sockaddr_in://127.0.0.1:7713"),
            ("target", "activation", "fi_ns://target:activation"),
            ("fi_shm://x", "0", "fi_shm://x"),
            ("fi_shm://x", "", "fi_shm://x"),
        ] {
            let address = resolve(Some(node), Some(service)).unwrap();
            assert_eq!(as_text(&address).unwrap().text(), Some(wanted), "{node} {service}");
        }
        for (node, service) in
            [("203.0.113.9", "80"), ("fi_sockaddr_in://203.0.113.9:1", ""), ("fi_shm://", "0")]
        {
            assert!(resolve(Some(node), Some(service)).is_err(), "{node} {service}");
        }
    }

    /// Each of these sockets can be bound beside the one that it imitates.
    #[test]
    fn an_address_has_one_spelling() {
        for (socket, format) in [
            (&b"ofi-shm/n/foo\0bar"[..], AddrFormat::Str),
            (b"ofi-shm/n/foo\0", AddrFormat::Str),
            (b"ofi-shm/n/", AddrFormat::Str),
            (b"ofi-shm/s/x\0", AddrFormat::Str),
            (b"ofi-shm/p/05000", AddrFormat::SockaddrIn),
            (b"ofi-shm/p/+5000", AddrFormat::SockaddrIn6),
            (b"", AddrFormat::Str),
        ] {
            assert_eq!(address_of(socket, format), None, "{:?}", String::from_utf8_lossy(socket));
            assert!(!is_endpoint(socket));
        }
        assert!(is_endpoint(b"ofi-shm/p/5000") && is_endpoint(b"ofi-shm/n/foo"));
    }

    #[test]
    fn a_node_and_a_service_make_a_name_whatever_they_are() {
        for (node, service, name) in [
            (Some("target"), Some("activation"), "fi_ns://target:activation"),
            (Some("203.0.113.9"), Some("80"), "fi_ns://203.0.113.9:80"),
            (None, Some("7471"), "fi_ns://7471"),
            (Some("here"), None, "fi_shm://here"),
            (Some("fi_shm://here"), Some("7471"), "fi_shm://here"),
            (Some("fi_sockaddr_in://127.0.0.1:7471"), None, "fi_sockaddr_in://127.0.0.1:7471"),
        ] {
            assert_eq!(of_service(node, service).unwrap(), Address::from_text(name));
        }
        assert!(of_service(None, None).is_err() && of_service(Some(""), Some("")).is_err());
        assert!(of_service(Some(&"x".repeat(97)), None).is_err());
        for other in ["fi_sockaddr_in://203.0.113.9:80", "fi_addr_efa://[fe80::1]:1:1", "fi_sm2://x"] {
            assert_eq!(of_service(Some(other), None).unwrap_err().errno(), Errno::EINVAL, "{other}");
        }
    }

    #[test]
    fn a_proposed_name_that_somebody_has_is_only_how_the_next_one_begins() {
        let wanted = Address::from_text(&format!("fi_ns://{:016x}é{}", sys::random(), "x".repeat(70)));
        let (first, _socket) = bind(Some(&wanted), true, AddrFormat::Str).unwrap();
        assert_eq!(first, wanted);
        assert_eq!(bind(Some(&wanted), false, AddrFormat::Str).err().unwrap().errno(), Errno::EADDRINUSE);
        let (second, _beside) = bind(Some(&wanted), true, AddrFormat::Str).unwrap();
        let (begins, text) = (&wanted.text().unwrap()[..20], second.text().unwrap());
        assert!(second != wanted && text.starts_with(begins), "{text}");
        assert_eq!(normalize(&second).unwrap(), second);
    }

    #[test]
    fn an_address_of_another_host_is_refused_with_advice() {
        let other = Address::from(SocketAddr::from(([203, 0, 113, 9], 80)));
        let error = normalize(&other).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.to_string().contains("not on this host"), "{error}");
        assert!(normalize(&Address::from_text("fi_sm2://x")).is_err());
        assert!(normalize(&Address::from_text(&format!("fi_shm://{}", "x".repeat(97)))).is_err());
    }
}
