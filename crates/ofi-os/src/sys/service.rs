//! Maps service names to ports.

use std::ffi::CString;
use std::ptr;

/// The port that `service` denotes: a number, or a name in the system's database of services (services(5)).
pub fn port_of(service: &str) -> Option<u16> {
    if let Ok(port) = service.parse() {
        return Some(port);
    }
    // The system also takes numbers, and cuts those above 65535 (RFC 6335: a name has a letter).
    if !service.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        return None;
    }
    let name = CString::new(service).ok()?;
    // SAFETY: all zeroes is a valid `addrinfo`.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_INET;
    let mut found: *mut libc::addrinfo = ptr::null_mut();
    // SAFETY: a C string, initialised hints, and a place for the answer; no node is asked for.
    if unsafe { libc::getaddrinfo(ptr::null(), name.as_ptr(), &raw const hints, &raw mut found) } != 0 {
        return None;
    }
    // SAFETY: after success the list has one entry at least.
    let address = unsafe { (*found).ai_addr };
    // SAFETY: an address of the family that was asked for; it may lie at any place.
    let socket = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in>()) };
    // SAFETY: the list is ours, and nothing points into it any more.
    unsafe { libc::freeaddrinfo(found) };
    Some(u16::from_be(socket.sin_port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_services_are_ports() {
        assert_eq!((port_of("7471"), port_of("0"), port_of("65535")), (Some(7471), Some(0), Some(65_535)));
        for wrong in ["65536", "70000", "-1", " 80", "", "no such service", "ht\0tp", "0x50"] {
            assert_eq!(port_of(wrong), None, "{wrong:?}");
        }
        let Ok(database) = std::fs::read_to_string("/etc/services") else {
            println!("skipped: this host has no /etc/services");
            return;
        };
        let line = database.lines().find(|line| line.starts_with("domain")).expect("the name servers' port");
        assert!(line.contains("53/"), "{line}");
        assert_eq!(port_of("domain"), Some(53));
    }
}
