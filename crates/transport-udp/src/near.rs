//! Peers of the same host: shared memory, under the address that the endpoint has on the network.
//!
//! An endpoint at `10.0.0.1:7000` is also the shared-memory endpoint `fi_shm://udp/10.0.0.1:7000`, and says so by a
//! [`Door`]. Whoever is about to send to it for the first time looks whether the address is this host's and the door is
//! there. Everybody else uses the socket, which the endpoint has in any case: other hosts, containers with a network of
//! their own, other users, and processes that have shared memory turned off.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ofi_api::{AddrFormat, Address, Info, Result};
use ofi_core::composite::Pairing;
use transport_shm::Shm;

use crate::Udp;
use crate::address;
use crate::door::{self, Door};
use crate::settings;

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

    fn near_address(far: &Address) -> Option<Address> {
        let socket = address::socket(far).ok()?;
        Some(Address::from_text(&format!("{PREFIX}{socket}")))
    }

    fn far_address(near: &Address) -> Option<Address> {
        let socket: SocketAddr = near.text()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some(Address::from(address::canonical(socket)))
    }

    fn meet(far: &Address) -> Result<Door> {
        Door::open(address::socket(far)?)
    }

    fn is_near(_own: &mut Door, far: &Address) -> bool {
        address::socket(far).is_ok_and(|socket| is_local(socket.ip()) && door::is_open(socket))
    }
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
            let near = UdpOrShm::near_address(&far).unwrap();
            assert_eq!(UdpOrShm::far_address(&near), Some(far), "{near}");
        }
        for text in ["fi_shm://udp/", "fi_shm://udp/x:1", "fi_shm://10.0.0.1:7000"] {
            assert_eq!(UdpOrShm::far_address(&Address::from_text(text)), None);
        }
    }

    #[test]
    fn an_address_of_documentation_is_not_this_host_s() {
        assert!(is_local([127, 0, 0, 1].into()) && !is_local([203, 0, 113, 9].into()));
    }
}
