//! Neighbours of a transport over IP sockets: shared memory, under the endpoint's network address.
//!
//! An endpoint of `udp` at `10.0.0.1:7000` is also the shared-memory endpoint `fi_shm://udp/10.0.0.1:7000`, and one at
//! all addresses of the host is `fi_shm://udp/0.0.0.0:7000`; each announces this by a [`ProbeListener`]. Before its
//! first message to an endpoint, a peer checks whether the address belongs to this host and whether that listener
//! exists. Otherwise it uses the socket: for peers on other hosts, in containers with their own network, of other
//! users, of other libraries, and with shared memory turned off.

use std::marker::PhantomData;
use std::net::SocketAddr;

use ofi_api::{AddrFormat, Address, Info, Result};
use ofi_core::composite::CompositeSpec;
use ofi_core::ip::{self, Addressing};
use ofi_core::transport::Transport;

use crate::Shm;
use crate::locality_probe::{self, ProbeListener};
use crate::sys;

/// Prefix of the address in the names of passive endpoints, because another endpoint may have the same address.
const PASSIVE: &str = "passive/";
/// Prefix of a number and the address in the names of accepting endpoints, all of which have their listener's address.
const ACCEPTING: &str = "accepting/";

/// A transport whose endpoints have IP addresses and ports.
pub trait IpTransport: Transport {
    /// Prefix of its endpoints' addresses in shared memory: `fi_shm://`, a name of its own, and a slash.
    const SCHEME: &'static str;

    /// Its addresses.
    fn addressing() -> &'static Addressing;

    /// Whether its endpoints may use shared memory, by the setting.
    fn may_share() -> bool;

    /// Whether an enabled endpoint is bound to all addresses of the host.
    fn has_all_addresses(endpoint: &Self::Endpoint) -> bool;

    /// Whether an endpoint has the address of a passive endpoint, whose request it accepts.
    fn has_listener_s_address(endpoint: &Self::Endpoint) -> bool {
        let _ = endpoint;
        false
    }
}

/// The composite transport: sockets for other hosts, and shared memory for this one.
pub struct IpOrShm<T>(PhantomData<fn() -> T>);

impl<T: IpTransport> CompositeSpec for IpOrShm<T> {
    type Near = Shm;
    type Far = T;
    type Meeting = ProbeListener;

    const FAR_IS_COSTLY: bool = true;
    const FAR_NAME: &'static str = "sockets";

    fn near_info(info: &Info) -> Option<Info> {
        let info = Info { src_addr: None, dest_addr: None, addr_format: AddrFormat::Str, ..info.clone() };
        T::may_share().then_some(info)
    }

    fn own_near(endpoint: &T::Endpoint, far: &Address) -> Option<Address> {
        let own = T::addressing().socket(far).ok()?;
        if T::has_listener_s_address(endpoint) {
            return Some(accepting_name::<T>(sys::random(), own));
        }
        Some(name::<T>(if T::has_all_addresses(endpoint) { all_of(own) } else { own }))
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        let Some(socket) = socket_in::<T>(near) else { return Vec::new() };
        if !socket.ip().is_unspecified() {
            return vec![Address::from(socket)];
        }
        let v6 = socket.is_ipv6();
        let mine = ip::interface::all().into_iter().map(|found| found.ip).filter(|ip| ip.is_ipv6() == v6);
        let ips = std::iter::once(ip::host_ip(v6)).chain(mine);
        ips.map(|ip| Address::from(SocketAddr::new(ip, socket.port()))).collect()
    }

    fn far_of_accepting(near: &Address) -> Option<Address> {
        let (_number, socket) =
            near.text()?.strip_prefix(T::SCHEME)?.strip_prefix(ACCEPTING)?.split_once('/')?;
        socket.parse().ok().map(|socket| Address::from(ip::canonical(socket)))
    }

    fn meet(near: &Address) -> Result<ProbeListener> {
        ProbeListener::open(near)
    }

    fn near_address(_own: &mut ProbeListener, far: &Address) -> Option<Address> {
        near_names::<T>(far, name::<T>).find(locality_probe::is_open)
    }

    fn passive_near(wanted: Option<&Address>, far: &Address) -> Option<Address> {
        let own = T::addressing().socket(far).ok()?;
        let wanted = wanted.and_then(|wanted| T::addressing().socket(wanted).ok());
        let bound = T::addressing().to_bind(wanted, None, own.is_ipv6()).ok()?;
        Some(passive_name::<T>(if bound.ip().is_unspecified() { all_of(own) } else { own }))
    }

    fn near_passive(far: &Address) -> Option<Address> {
        near_names::<T>(far, passive_name::<T>).find(locality_probe::is_open)
    }

    fn near_names(far: &Address) -> Vec<Address> {
        near_names::<T>(far, name::<T>).collect()
    }

    fn is_beside(one: &Address, other: &Address) -> bool {
        let ip = |address| T::addressing().socket(address).ok().map(|socket| socket.ip());
        ip(one).is_some() && ip(one) == ip(other)
    }
}

/// The names in shared memory, built by `name`, that an endpoint of this host at `far` may have.
fn near_names<T: IpTransport>(
    far: &Address,
    name: fn(SocketAddr) -> Address,
) -> impl Iterator<Item = Address> {
    let socket = T::addressing().socket(far).ok().filter(|socket| locality_probe::is_local(socket.ip()));
    socket.into_iter().flat_map(|socket| [socket, all_of(socket)]).map(name)
}

/// The name in shared memory of the endpoint at `socket`.
fn name<T: IpTransport>(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{}{socket}", T::SCHEME))
}

/// The name in shared memory of the passive endpoint at `socket`.
fn passive_name<T: IpTransport>(socket: SocketAddr) -> Address {
    Address::from_text(&format!("{}{PASSIVE}{socket}", T::SCHEME))
}

/// The name in shared memory of an endpoint that accepts a request to the passive endpoint at `socket`.
fn accepting_name<T: IpTransport>(number: u64, socket: SocketAddr) -> Address {
    Address::from_text(&format!("{}{ACCEPTING}{number:016x}/{socket}", T::SCHEME))
}

/// The address of the endpoint with this name in shared memory.
fn socket_in<T: IpTransport>(near: &Address) -> Option<SocketAddr> {
    near.text()?.strip_prefix(T::SCHEME)?.parse().ok().map(ip::canonical)
}

/// The port of `socket`, at all addresses of its family.
fn all_of(socket: SocketAddr) -> SocketAddr {
    SocketAddr::new(ip::any(socket.is_ipv6()), socket.port())
}

#[cfg(test)]
mod tests {
    use ofi_core::config::Setting;

    use super::*;

    static INTERFACE: Setting<&'static str> = Setting::new("neighbours_test", "iface", "", "Never set");
    static IP: Addressing = Addressing::new("mine", &INTERFACE);

    /// Addresses alone are tested: any transport will do.
    impl IpTransport for Shm {
        const SCHEME: &'static str = "fi_shm://mine/";

        fn addressing() -> &'static Addressing {
            &IP
        }

        fn may_share() -> bool {
            true
        }

        fn has_all_addresses(_endpoint: &Self::Endpoint) -> bool {
            false
        }
    }

    type Spec = IpOrShm<Shm>;

    const ADDRESSES: [&str; 4] =
        ["10.0.0.1:7000", "[::1]:1", "[fe80::1%3]:65535", "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"];

    #[test]
    fn an_address_comes_back_from_its_name_in_shared_memory() {
        for text in ADDRESSES {
            let far = Address::from(text.parse::<SocketAddr>().unwrap());
            let near = name::<Shm>(IP.socket(&far).unwrap());
            assert_eq!(Spec::far_addresses(&near), [far], "{near}");
        }
        for text in
            ["fi_shm://mine/", "fi_shm://mine/x:1", "fi_shm://10.0.0.1:7000", "fi_shm://mine/passive/[::1]:1"]
        {
            assert!(Spec::far_addresses(&Address::from_text(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn endpoints_that_accept_at_one_address_have_names_of_their_own() {
        for text in ADDRESSES {
            let far = Address::from(text.parse::<SocketAddr>().unwrap());
            let name = |number| accepting_name::<Shm>(number, IP.socket(&far).unwrap());
            assert_ne!(name(1), name(2));
            // Only a request that was sent there leads to it.
            assert!(Spec::far_addresses(&name(u64::MAX)).is_empty());
            assert_eq!(Spec::far_of_accepting(&name(u64::MAX)), Some(far.clone()));
            crate::name::normalize(&name(u64::MAX)).expect("it is short enough");
        }
        for text in [
            "fi_shm://mine/10.0.0.1:7000",
            "fi_shm://mine/accepting/10.0.0.1:7000",
            "fi_shm://accepting/1/[::1]:1",
        ] {
            assert_eq!(Spec::far_of_accepting(&Address::from_text(text)), None, "{text}");
        }
    }

    #[test]
    fn an_endpoint_at_all_addresses_is_known_by_each() {
        let all = Spec::far_addresses(&Address::from_text("fi_shm://mine/0.0.0.0:7"));
        assert_eq!(all[0], Address::from(SocketAddr::new(ip::host_ip(false), 7)));
        assert!(all.contains(&Address::from(SocketAddr::from(([127, 0, 0, 1], 7)))));
    }
}
