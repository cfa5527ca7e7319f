//! The addresses of this host, each with its interface.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// An address of this host, and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Of the interface.
    pub name: String,
    /// One of its addresses.
    pub ip: IpAddr,
    /// Its network: the prefix of the address, and the prefix length.
    pub network: String,
    flags: InterfaceFlags,
}

impl Interface {
    fn of(entry: InterfaceAddress) -> Option<Self> {
        let ip = entry.address.as_ref().and_then(ip_of)?;
        let bits = match entry.netmask.as_ref().and_then(ip_of) {
            Some(IpAddr::V4(mask)) => u32::from(mask).count_ones(),
            Some(IpAddr::V6(mask)) => u128::from(mask).count_ones(),
            None if ip.is_ipv6() => 128,
            None => 32,
        };
        Some(Self { name: entry.interface_name, ip, network: network(ip, bits), flags: entry.flags })
    }

    /// Whether it is a loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    }

    /// Whether the address has link scope.
    fn is_of_link(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// Whether other hosts reach this one through it by default: it is up, and neither loopback nor a tunnel, as in C
    /// libfabric.
    pub fn serves(&self, v6: bool) -> bool {
        let up = self.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let meant = !self.is_loopback()
            && !self.flags.contains(InterfaceFlags::IFF_POINTOPOINT)
            && !self.is_of_link();
        up && meant && self.ip.is_ipv6() == v6
    }
}

fn ip_of(storage: &SockaddrStorage) -> Option<IpAddr> {
    match (storage.as_sockaddr_in(), storage.as_sockaddr_in6()) {
        (Some(v4), _) => Some(v4.ip().into()),
        (None, Some(v6)) => Some(v6.ip().into()),
        (None, None) => None,
    }
}

/// The prefix of an address whose mask has this many bits, and their number.
fn network(ip: IpAddr, bits: u32) -> String {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            format!("{}/{bits}", std::net::Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            format!("{}/{bits}", std::net::Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}

/// The addresses of this host, in the system's order.
pub fn all() -> Vec<Interface> {
    getifaddrs().map_or_else(|_| Vec::new(), |entries| entries.filter_map(Interface::of).collect())
}

/// The address that `text` spells, or the first address of the interface of that name, in the requested family.
pub fn find(text: &str, v6: bool) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => (ip.is_ipv6() == v6).then_some(ip),
        Err(_) => first(all(), text, v6),
    }
}

/// The first address of the interface in this family. An address of link scope reaches no other network.
fn first(all: Vec<Interface>, name: &str, v6: bool) -> Option<IpAddr> {
    let named = |found: &Interface| found.name == name && found.ip.is_ipv6() == v6;
    all.into_iter().find(|found| named(found) && !found.is_of_link()).map(|found| found.ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_or_an_address_is_found_and_others_are_not() {
        assert_eq!(find("lo", false), Some([127, 0, 0, 1].into()));
        assert_eq!(find("10.1.2.3", false), Some([10, 1, 2, 3].into()));
        assert_eq!(find("10.1.2.3", true), None);
        assert_eq!(find("no-such-interface", false), None);
    }

    #[test]
    fn loopback_is_listed_and_serves_nobody_else() {
        let four = all().into_iter().find(|found| found.name == "lo" && found.ip.is_ipv4());
        let four = four.expect("127.0.0.1");
        assert_eq!((four.ip, &*four.network), ([127, 0, 0, 1].into(), "127.0.0.0/8"));
        assert!(four.is_loopback() && !four.serves(false));
    }

    #[test]
    fn an_address_of_link_scope_is_not_chosen() {
        let of = |ip: &str| Interface {
            name: "eth0".into(),
            ip: ip.parse().unwrap(),
            network: String::new(),
            flags: InterfaceFlags::empty(),
        };
        assert_eq!(first(vec![of("fe80::1"), of("fd00::7")], "eth0", true), Some(of("fd00::7").ip));
        assert_eq!(first(vec![of("fe80::1"), of("10.0.0.1")], "eth0", true), None);
    }

    #[test]
    fn a_network_is_the_prefix_of_its_addresses() {
        for (ip, bits, wanted) in [
            ("10.1.2.3", 8, "10.0.0.0/8"),
            ("10.1.2.3", 32, "10.1.2.3/32"),
            ("10.1.2.3", 0, "0.0.0.0/0"),
            ("fd00::12:7", 64, "fd00::/64"),
            ("fd00::7", 128, "fd00::7/128"),
        ] {
            assert_eq!(network(ip.parse().unwrap(), bits), wanted);
        }
    }
}
