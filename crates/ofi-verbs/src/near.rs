//! Peers on the same host: shared memory, under the endpoint's address on its device.
//!
//! A reliable datagram endpoint at `10.0.0.1:7471` is also the shared-memory endpoint `fi_shm://verbs/10.0.0.1:7471`. A
//! [`ProbeListener`] advertises that. Connected endpoints and unreliable datagrams always use the device, because the
//! other end may be C libfabric's.

use std::net::SocketAddr;

use ofi_api::{AddrFormat, Address, EpType, Info, Result};
use ofi_core::composite::CompositeSpec;
use ofi_shm::Shm;
use ofi_shm::locality_probe::{self, ProbeListener};

use crate::state::EndpointState;
use crate::{Verbs, address, settings};

/// Prefix of the addresses in shared memory.
const SCHEME: &str = "fi_shm://verbs/";

/// The composite transport: a device for other hosts, and shared memory for this one.
pub struct VerbsOrShm;

impl CompositeSpec for VerbsOrShm {
    type Near = Shm;
    type Far = Verbs;
    type Meeting = ProbeListener;

    const FAR_IS_COSTLY: bool = false;
    const FAR_NAME: &'static str = "the RDMA device";

    fn near_info(info: &Info) -> Option<Info> {
        let near = Info { src_addr: None, dest_addr: None, addr_format: AddrFormat::Str, ..info.clone() };
        (info.ep_attr.ep_type == EpType::Rdm && settings::SHARED_MEMORY.get()).then_some(near)
    }

    fn own_near(_own: &EndpointState, far: &Address) -> Option<Address> {
        address::socket(far).ok().map(name)
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        socket_in(near).map(Address::from).into_iter().collect()
    }

    fn meet(near: &Address) -> Result<ProbeListener> {
        ProbeListener::open(near)
    }

    fn near_address(_own: &mut ProbeListener, far: &Address) -> Option<Address> {
        address::socket(far)
            .ok()
            .filter(|socket| locality_probe::is_local(socket.ip()))
            .map(name)
            .filter(locality_probe::is_open)
    }

    fn near_names(far: &Address) -> Vec<Address> {
        address::socket(far).ok().map(name).into_iter().collect()
    }

    fn is_beside(one: &Address, other: &Address) -> bool {
        let ip = |address| address::socket(address).ok().map(|socket| socket.ip());
        ip(one).is_some() && ip(one) == ip(other)
    }
}

/// The shared-memory name of the endpoint at `socket`.
fn name(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{SCHEME}{socket}"))
}

/// The socket address of the endpoint with this shared-memory name.
fn socket_in(near: &Address) -> Option<SocketAddr> {
    near.text()?.strip_prefix(SCHEME)?.parse().ok().map(address::canonical)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_from_its_name_in_shared_memory() {
        for text in ["10.0.0.1:7471", "[fe80::1%3]:1", "[2001:db8::1]:65535"] {
            let far = Address::from(text.parse::<SocketAddr>().unwrap());
            let near = VerbsOrShm::near_names(&far).remove(0);
            assert_eq!(VerbsOrShm::far_addresses(&near), [far], "{near}");
        }
        for text in ["fi_shm://verbs/", "fi_shm://verbs/x:1", "fi_shm://udp/10.0.0.1:1"] {
            assert!(VerbsOrShm::far_addresses(&Address::from_text(text)).is_empty());
        }
    }

    #[test]
    fn an_address_without_a_probe_is_not_near() {
        let far = Address::from(SocketAddr::from(([127, 0, 0, 1], 1)));
        let own = VerbsOrShm::near_names(&far).remove(0);
        let mut probe = ProbeListener::open(&own).unwrap();
        assert_eq!(VerbsOrShm::near_address(&mut probe, &far), Some(own));
        let elsewhere = Address::from(SocketAddr::from(([203, 0, 113, 9], 1)));
        let name = VerbsOrShm::near_names(&elsewhere).remove(0);
        let _squatted = ProbeListener::open(&name).unwrap();
        assert_eq!(VerbsOrShm::near_address(&mut probe, &elsewhere), None, "not an address of this host");
        let silent = Address::from(SocketAddr::from(([127, 0, 0, 1], 2)));
        assert_eq!(VerbsOrShm::near_address(&mut probe, &silent), None);
    }
}
