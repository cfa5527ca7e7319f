//! Peers of the same host: shared memory, under the endpoint's network address.
//!
//! An endpoint at `10.0.0.1:7000` is also the shared-memory endpoint `fi_shm://udp/10.0.0.1:7000`, and one at all
//! addresses of the host is `fi_shm://udp/0.0.0.0:7000`; each announces this by a [`ProbeListener`]. Before its first
//! message to an endpoint, a peer checks whether the address belongs to this host and the door exists. Otherwise it
//! uses the socket: peers on other hosts, in containers with their own network, of other users, and with shared memory
//! turned off.

use std::net::SocketAddr;

use ofi_api::{AddrFormat, Address, Info, Result};
use ofi_core::composite::CompositeSpec;
use ofi_shm::Shm;
use ofi_shm::locality_probe::{self, ProbeListener};

use crate::Udp;
use crate::address;
use crate::settings;
use crate::state::EndpointState;

/// Prefix of the addresses in shared memory.
const SCHEME: &str = "fi_shm://udp/";
/// Prefix of the address in the names of passive endpoints, because another endpoint may have the same address.
const PASSIVE: &str = "passive/";

/// The composite transport: sockets for other hosts, and shared memory for this one.
pub struct UdpOrShm;

impl CompositeSpec for UdpOrShm {
    type Near = Shm;
    type Far = Udp;
    type Meeting = ProbeListener;

    const FAR_IS_COSTLY: bool = true;
    const FAR_NAME: &'static str = "sockets";

    fn near_info(info: &Info) -> Option<Info> {
        let info = Info { src_addr: None, dest_addr: None, addr_format: AddrFormat::Str, ..info.clone() };
        settings::SHARED_MEMORY.get().then_some(info)
    }

    fn own_near(lanes: &EndpointState, far: &Address) -> Option<Address> {
        let own = address::socket(far).ok()?;
        Some(name(if lanes.has_all_addresses() { all_of(own) } else { own }))
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        let Some(socket) = socket_in(near) else { return Vec::new() };
        if !socket.ip().is_unspecified() {
            return vec![Address::from(socket)];
        }
        let v6 = socket.is_ipv6();
        let mine =
            ofi_core::ip::interface::all().into_iter().map(|found| found.ip).filter(|ip| ip.is_ipv6() == v6);
        let ips = std::iter::once(address::host_ip(v6)).chain(mine);
        ips.map(|ip| Address::from(SocketAddr::new(ip, socket.port()))).collect()
    }

    fn meet(near: &Address) -> Result<ProbeListener> {
        ProbeListener::open(near)
    }

    fn near_address(_own: &mut ProbeListener, far: &Address) -> Option<Address> {
        near_names(far, name).find(locality_probe::is_open)
    }

    fn passive_near(wanted: Option<&Address>, far: &Address) -> Option<Address> {
        let own = address::socket(far).ok()?;
        let wanted = wanted.and_then(|wanted| address::socket(wanted).ok());
        let bound = address::to_bind(wanted, None, own.is_ipv6()).ok()?;
        Some(passive_name(if bound.ip().is_unspecified() { all_of(own) } else { own }))
    }

    fn near_passive(far: &Address) -> Option<Address> {
        near_names(far, passive_name).find(locality_probe::is_open)
    }

    fn near_names(far: &Address) -> Vec<Address> {
        near_names(far, name).collect()
    }

    fn is_beside(one: &Address, other: &Address) -> bool {
        let ip = |address| address::socket(address).ok().map(|socket| socket.ip());
        ip(one).is_some() && ip(one) == ip(other)
    }
}

/// The names in shared memory, built by `name`, that an endpoint of this host at `far` may have.
fn near_names(far: &Address, name: fn(SocketAddr) -> Address) -> impl Iterator<Item = Address> {
    let socket = address::socket(far).ok().filter(|socket| locality_probe::is_local(socket.ip()));
    socket.into_iter().flat_map(|socket| [socket, all_of(socket)]).map(name)
}

/// The name in shared memory of the endpoint at `socket`.
fn name(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{SCHEME}{socket}"))
}

/// The name in shared memory of the passive endpoint at `socket`.
fn passive_name(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{SCHEME}{PASSIVE}{socket}"))
}

/// The address of the endpoint with this name in shared memory.
fn socket_in(near: &Address) -> Option<SocketAddr> {
    near.text()?.strip_prefix(SCHEME)?.parse().ok().map(address::canonical)
}

/// The port of `socket`, at all addresses of its family.
fn all_of(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(address::any(socket.is_ipv6()), socket.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_from_its_name_in_shared_memory() {
        for text in [
            "10.0.0.1:7000",
            "[::1]:1",
            "[fe80::1%3]:65535",
            "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535",
        ] {
            let far = Address::from(text.parse::<SocketAddr>().unwrap());
            let near = name(address::socket(&far).unwrap());
            assert_eq!(UdpOrShm::far_addresses(&near), [far], "{near}");
        }
        for text in ["fi_shm://udp/", "fi_shm://udp/x:1", "fi_shm://10.0.0.1:7000"] {
            assert!(UdpOrShm::far_addresses(&Address::from_text(text)).is_empty());
        }
    }

    #[test]
    fn an_endpoint_at_all_addresses_is_known_by_each() {
        let all = UdpOrShm::far_addresses(&Address::from_text("fi_shm://udp/0.0.0.0:7"));
        assert_eq!(all[0], Address::from(SocketAddr::new(address::host_ip(false), 7)));
        assert!(all.contains(&Address::from(SocketAddr::from(([127, 0, 0, 1], 7)))));
    }
}
