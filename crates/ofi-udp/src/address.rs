//! Addresses: IP socket addresses in canonical form, and names that resolve to them ([`ofi_core::ip`]).

use std::net::{IpAddr, SocketAddr};

use ofi_api::{AddrFormat, Address, Caps, Info, Result};
use ofi_core::ip::Addressing;
pub use ofi_core::ip::{canonical, host_ip, is_local_group, route};

use crate::settings;

/// The addresses of this provider's endpoints.
pub static IP: Addressing = Addressing::new("udp", &settings::INTERFACE);

/// See [`Addressing::socket`].
pub fn socket(address: &Address) -> Result<SocketAddr> {
    IP.socket(address)
}

/// See [`ofi_core::transport::Transport::normalize`].
pub fn normalize(address: &Address) -> Result<Address> {
    socket(address).map(Address::from)
}

/// See [`Addressing::resolve`].
pub fn resolve(node: Option<&str>, service: Option<&str>, format: Option<AddrFormat>) -> Result<Address> {
    IP.resolve(node, service, format)
}

/// See [`Addressing::to_bind`].
pub fn to_bind(name: Option<SocketAddr>, source: Option<IpAddr>, v6: bool) -> Result<SocketAddr> {
    IP.to_bind(name, source, v6)
}

/// Returns `wanted`, or a single address of this host if the endpoint may join groups. An endpoint bound to all
/// addresses would also receive the datagrams of groups that other endpoints joined under the same port.
///
/// # Errors
/// Errors of [`Addressing::own_ip`].
pub fn beside_groups(info: &Info, mut wanted: SocketAddr) -> Result<SocketAddr> {
    if info.caps.contains(Caps::MULTICAST) && wanted.ip().is_unspecified() {
        wanted.set_ip(IP.own_ip(wanted.is_ipv6())?);
    }
    Ok(wanted)
}
