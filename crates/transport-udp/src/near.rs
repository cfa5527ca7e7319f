//! Peers of the same host: shared memory, under the address that the endpoint has on the network.
//!
//! An endpoint at `10.0.0.1:7000` is also the shared-memory endpoint `fi_shm://udp/10.0.0.1:7000`, and one at all addresses of
//! the host is `fi_shm://udp/0.0.0.0:7000`; each says so by a [`Door`]. Whoever is about to send to it for the first time looks whether the address is this host's and the door is
//! there. Everybody else uses the socket, which the endpoint has in any case: other hosts, containers with a network of
//! their own, other users, and processes that have shared memory turned off.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ofi_api::{AddrFormat, Address, Errno, Error, Info, Result};
use ofi_core::composite::Pairing;
use transport_shm::Shm;

use crate::Udp;
use crate::address;
use crate::door::{self, Door};
use crate::settings;
use crate::socket::local;
use crate::state::State;

/// How shared-memory names of endpoints begin.
const PREFIX: &str = "fi_shm://udp/";

/// Sockets for other hosts, and shared memory for this one.
pub struct UdpOrShm;

/// Whether the address is one of this host's.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

impl Pairing for UdpOrShm {
    type Near = Shm;
    type Far = Udp;
    type Meeting = Door;

    const FAR_IS_COSTLY: bool = true;

    fn near_info(info: &Info) -> Option<Info> {
        let info = Info { src_addr: None, dest_addr: None, addr_format: AddrFormat::Str, ..info.clone() };
        settings::SHARED_MEMORY.get().then_some(info)
    }

    fn own_near(lanes: &State, far: &Address) -> Option<Address> {
        let own = address::socket(far).ok()?;
        Some(name(if lanes.has_all_addresses() { all_of(own) } else { own }))
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        let Some(socket) = socket_in(near) else { return Vec::new() };
        if !socket.ip().is_unspecified() {
            return vec![Address::from(socket)];
        }
        let v6 = socket.is_ipv6();
        let mine = crate::interface::all().into_iter().map(|found| found.ip).filter(|ip| ip.is_ipv6() == v6);
        let ips = std::iter::once(address::own_ip(v6)).chain(mine);
        ips.map(|ip| Address::from(SocketAddr::new(ip, socket.port()))).collect()
    }

    fn meet(near: &Address) -> Result<Door> {
        Door::open(socket_in(near).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?)
    }

    fn near_address(_own: &mut Door, far: &Address) -> Option<Address> {
        let socket = address::socket(far).ok().filter(|socket| is_local(socket.ip()))?;
        [socket, all_of(socket)].into_iter().find(|&socket| door::is_open(socket)).map(name)
    }
}

/// The name in shared memory of the endpoint at `socket`.
fn name(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{PREFIX}{socket}"))
}

/// Where the endpoint is whose name in shared memory this is.
fn socket_in(near: &Address) -> Option<SocketAddr> {
    near.text()?.strip_prefix(PREFIX)?.parse().ok().map(address::canonical)
}

/// The port of `socket`, at all addresses of its family.
fn all_of(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(local::any(socket.is_ipv6()), socket.port())
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
        assert_eq!(all[0], Address::from(SocketAddr::new(address::own_ip(false), 7)));
        assert!(all.contains(&Address::from(SocketAddr::from(([127, 0, 0, 1], 7)))));
    }

    #[test]
    fn an_address_of_documentation_is_not_this_host_s() {
        assert!(is_local([127, 0, 0, 1].into()) && !is_local([203, 0, 113, 9].into()));
    }
}
