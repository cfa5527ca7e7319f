//! Socket addresses in the kernel's form.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Writes `address` to `storage`. Returns its length in bytes.
pub fn to_storage(address: SocketAddr, storage: &mut libc::sockaddr_storage) -> libc::socklen_t {
    let to = std::ptr::from_mut(storage);
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than any socket address, and aligned for it.
            unsafe { to.cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// The address in `storage`, unless it is of another family.
pub fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let from = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger, aligned, and all bits are valid for this type.
            let raw = unsafe { from.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { from.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), 0, raw.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// No address.
pub fn empty_storage() -> libc::sockaddr_storage {
    // SAFETY: integers and arrays of integers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}
