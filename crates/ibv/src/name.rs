//! Socket addresses in the system's format.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address as a `struct sockaddr`, in storage for any family.
pub fn to_storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros are a valid storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = std::ptr::from_mut(&mut storage);
    match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger, and aligned for every address.
            unsafe { to.cast::<libc::sockaddr_in>().write(name) };
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(name) };
        }
    }
    storage
}

/// An address from a `struct sockaddr`; `None` for a family other than IP.
pub fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family matches, and the storage is larger.
            let name = unsafe { from.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddrV4::new(ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { from.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(name.sin6_port), 0, name.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.1.2.3:4", "[fd00::1]:65535", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(from_storage(&to_storage(address)), Some(address));
        }
        // SAFETY: all zeros are a valid storage.
        assert_eq!(from_storage(&unsafe { std::mem::zeroed() }), None);
    }
}
