//! The addresses of this host, and the default address of an endpoint: that of the interface in `FI_UDP_IFACE`, if it
//! is set.

use std::net::IpAddr;
use std::ptr::null_mut;

use ofi_api::{Errno, Error, Result};

use crate::settings;
use crate::sockaddr::{empty_storage, from_storage};

/// The address that the setting names, in the requested family: the address itself, or the first one of an interface.
/// `None` if it is not set.
///
/// # Errors
/// `FI_EADDRNOTAVAIL` for an interface that does not exist or has no such address. There is no fallback: a user who
/// restricts an endpoint does not want it to be reachable everywhere.
pub fn chosen(v6: bool) -> Result<Option<IpAddr>> {
    let text = settings::INTERFACE.get();
    if text.is_empty() {
        return Ok(None);
    }
    let found = find(&text, v6).ok_or_else(|| {
        let family = if v6 { "IPv6" } else { "IPv4" };
        Error::wanted(
            Errno::EADDRNOTAVAIL,
            "FI_UDP_IFACE",
            format!("an interface of this host with an address of {family}, or such an address"),
            format!("{text:?}"),
            "correct the variable (`ip address` lists interfaces), or unset it for all addresses of the host",
        )
    })?;
    Ok(Some(found))
}

fn find(text: &str, v6: bool) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => (ip.is_ipv6() == v6).then_some(ip),
        // Addresses of link scope come last.
        Err(_) => {
            let named = |found: &Interface| found.name == text && found.ip.is_ipv6() == v6;
            all().into_iter().find(|found| named(found) && !found.is_of_link()).map(|found| found.ip)
        }
    }
}

/// An address of this host, and its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Of the interface.
    pub name: String,
    /// One of its addresses.
    pub ip: IpAddr,
    /// Its network: the address, cut to the prefix, and the length of that.
    pub network: String,
    flags: libc::c_uint,
}

impl Interface {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag as libc::c_uint != 0
    }

    /// Whether it is a loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.has(libc::IFF_LOOPBACK)
    }

    /// Whether the address has link scope.
    fn is_of_link(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// Whether endpoints may use this interface by default: it is up, and neither loopback nor a tunnel, as in C
    /// libfabric.
    pub fn serves(&self, v6: bool) -> bool {
        let up = self.has(libc::IFF_UP) && self.has(libc::IFF_RUNNING);
        let meant = !self.is_loopback() && !self.has(libc::IFF_POINTOPOINT) && !self.is_of_link();
        up && meant && self.ip.is_ipv6() == v6
    }
}

/// The single addresses that endpoints may bind: those of interfaces that are up, with loopback last and IPv4 before
/// IPv6. With `FI_UDP_IFACE`, only those that it names.
pub fn usable() -> Vec<Interface> {
    let text = settings::INTERFACE.get();
    let wanted = |found: &Interface| found.name == text || found.ip.to_string() == text;
    let found = all();
    let narrowed = !text.is_empty();
    let serves = |found: &Interface| found.serves(found.ip.is_ipv6()) || found.is_loopback();
    let mut usable: Vec<_> =
        found.into_iter().filter(|found| if narrowed { wanted(found) } else { serves(found) }).collect();
    usable.sort_by_key(|found| (found.is_loopback(), found.ip.is_ipv6())); // otherwise keeps the system's order
    usable
}

/// The network prefix of an address, and its length in bits.
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

/// The address at `place`, if it is an IP address.
///
/// # Safety
/// `place` is null, or leads to a socket address.
unsafe fn address_at(place: *const libc::sockaddr) -> Option<IpAddr> {
    if place.is_null() {
        return None;
    }
    // SAFETY: the family is the first field of all socket addresses.
    let len = match i32::from(unsafe { (*place).sa_family }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut storage = empty_storage();
    let to = std::ptr::from_mut(&mut storage).cast::<u8>();
    // SAFETY: an address of this family has so many bytes, and the storage is larger than any.
    unsafe { std::ptr::copy_nonoverlapping(place.cast::<u8>(), to, len) };
    from_storage(&storage).map(|address| address.ip())
}

/// The addresses of this host, in the system's order.
pub fn all() -> Vec<Interface> {
    let mut first: *mut libc::ifaddrs = null_mut();
    // SAFETY: writes a list's head, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is there until it is freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: an entry's address, if it has one.
        let Some(ip) = (unsafe { address_at(entry.ifa_addr) }) else { continue };
        // SAFETY: an entry's mask, if it has one.
        let bits = match unsafe { address_at(entry.ifa_netmask) } {
            Some(IpAddr::V4(mask)) => u32::from(mask).count_ones(),
            Some(IpAddr::V6(mask)) => u128::from(mask).count_ones(),
            None => {
                if ip.is_ipv6() {
                    128
                } else {
                    32
                }
            }
        };
        // SAFETY: every entry has a name, which ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        all.push(Interface { name, ip, network: network(ip, bits), flags: entry.ifa_flags });
    }
    // SAFETY: made by getifaddrs, and not used any more.
    unsafe { libc::freeifaddrs(first) };
    all
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
        let lo: Vec<Interface> = all().into_iter().filter(|found| found.name == "lo").collect();
        let four = lo.iter().find(|found| found.ip.is_ipv4()).expect("127.0.0.1");
        assert_eq!((four.ip, &*four.network), ([127, 0, 0, 1].into(), "127.0.0.0/8"));
        assert!(four.is_loopback() && !four.serves(false));
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
