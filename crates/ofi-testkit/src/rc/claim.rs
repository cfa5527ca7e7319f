//! Addresses of simulated devices: one of IPv4 and one of IPv6 for each, unique in the network namespace. Endpoints of
//! one host find each other by the IPv4 address, which is therefore an address of this host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first IPv4 address: those at the beginning of 127.0.0.0/8 are in common use.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 0]);
/// The number of addresses, up to 127.254.255.255.
const COUNT: u32 = (254 - 64 + 1) << 16;
/// The maximum number of addresses that are tried.
const TRIES: u32 = 1 << 16;

/// The addresses of a device, reserved while this value exists.
pub struct Claim {
    v4: Ipv4Addr,
    /// A socket bound to a name that contains the address: the kernel gives a name to one process, and releases it with
    /// the process.
    _name: UnixDatagram,
}

impl Claim {
    /// Reserves free addresses.
    ///
    /// # Panics
    /// If there are none, or no socket.
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Devices of one process are adjacent, and processes far apart, so that the first try usually succeeds.
        let begin = std::process::id().wrapping_mul(64).wrapping_add(MADE.fetch_add(1, Ordering::Relaxed));
        for attempt in 0..TRIES {
            let v4 = Ipv4Addr::from(FIRST + begin.wrapping_add(attempt) % COUNT);
            let name = SocketAddr::from_abstract_name(format!("ofi-simulated/{v4}")).expect("a short name");
            match UnixDatagram::bind_addr(&name) {
                Ok(name) => return Self { v4, _name: name },
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(error) => panic!("a socket that keeps {v4}: {error}"),
            }
        }
        panic!("{TRIES} addresses from {} on are taken", Ipv4Addr::from(FIRST + begin % COUNT));
    }

    /// The IPv4 and the IPv6 address.
    pub fn both(&self) -> [IpAddr; 2] {
        let [_, a, b, c] = self.v4.octets();
        let v6 = Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, a.into(), u16::from_be_bytes([b, c]));
        [self.v4.into(), v6.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn devices_have_addresses_of_their_own() {
        const DEVICES: usize = 300;
        let claims: Vec<Claim> = (0..DEVICES).map(|_| Claim::new()).collect();
        let all: BTreeSet<IpAddr> = claims.iter().flat_map(Claim::both).collect();
        assert_eq!(all.len(), 2 * DEVICES);
        let v4 = all.iter().filter(|ip| ip.is_ipv4());
        assert_eq!(v4.filter(|ip| ip.is_loopback()).count(), DEVICES, "addresses of this host");
    }

    #[test]
    fn an_address_that_somebody_has_is_passed_over() {
        let first = Claim::new();
        // Where this process's next claim may begin: all of these are taken.
        let next = u32::from(first.v4) + 1..u32::from(first.v4) + 20;
        let name = |v4: u32| {
            SocketAddr::from_abstract_name(format!("ofi-simulated/{}", Ipv4Addr::from(v4))).unwrap()
        };
        let _taken: Vec<_> = next.clone().map(|v4| UnixDatagram::bind_addr(&name(v4))).collect();
        let second = Claim::new();
        assert!(!next.contains(&u32::from(second.v4)), "{}", second.v4);
    }
}
