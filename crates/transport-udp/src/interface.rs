//! Which address an endpoint has that was given none: that of the interface in `FI_UDP_IFACE`, if it is set.

use std::net::IpAddr;
use std::ptr::null_mut;

use crate::settings;
use crate::socket::name::{empty_storage, from_storage};

/// The address that the setting names, of the family that is wanted: an address as it is, or the first one of an interface.
/// `None` where nothing is set, or there is no such thing.
pub fn chosen(v6: bool) -> Option<IpAddr> {
    let text = settings::INTERFACE.get();
    if text.is_empty() {
        return None;
    }
    let found = find(&text, v6);
    if found.is_none() {
        tracing::warn!(target: "ofi::udp::ep_ctrl", FI_UDP_IFACE = text, "no such interface or address here");
    }
    found
}

fn find(text: &str, v6: bool) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(ip) => (ip.is_ipv6() == v6).then_some(ip),
        // What is only valid on one link comes last.
        Err(_) => {
            let all = addresses(text);
            let fits = |ip: &&IpAddr| ip.is_ipv6() == v6;
            let local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            all.iter().filter(fits).find(|ip| !local(ip)).copied()
        }
    }
}

/// The addresses of an interface.
fn addresses(interface: &str) -> Vec<IpAddr> {
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
        // SAFETY: every entry has a name, which ends with a zero.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() != interface.as_bytes() || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: as the family says, and that is the first field of all socket addresses.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        let len = match family {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => continue,
        };
        let mut storage = empty_storage();
        let (from, to) = (entry.ifa_addr.cast::<u8>(), std::ptr::from_mut(&mut storage).cast::<u8>());
        // SAFETY: an address of this family has so many bytes, and the storage is larger than any.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        all.extend(from_storage(&storage).map(|address| address.ip()));
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
}
