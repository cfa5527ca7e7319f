//! What the kernel says of a socket.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `SK_MEMINFO_DROPS` (linux/sock_diag.h): which number counts what found no room.
const DROPS: usize = 8;

/// Datagrams that the socket dropped for lack of room; 0 where the kernel does not say.
pub fn dropped(socket: &UdpSocket) -> u64 {
    let mut numbers = [0u32; 16];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    let to = numbers.as_mut_ptr().cast();
    // SAFETY: room for `len` bytes, of which the kernel writes as many as it has, and says how many.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, to, &mut len) };
    if rc < 0 || (len as usize) <= DROPS * size_of::<u32>() { 0 } else { numbers[DROPS].into() }
}

/// Lets other sockets of this host have the same address and port, as members of one group do.
///
/// # Errors
/// What setsockopt(2) answers.
pub fn share_address(fd: std::os::fd::RawFd) -> ofi_api::Result<()> {
    let (one, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    let from = std::ptr::from_ref(&one).cast();
    // SAFETY: `one` is an int, which this option takes.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, from, len) };
    if rc < 0 { Err(ofi_core::sys::os_error("setsockopt")) } else { Ok(()) }
}

/// A datagram socket that is not bound.
///
/// # Errors
/// What socket(2) answers.
pub fn unbound(v6: bool) -> ofi_api::Result<std::os::fd::OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(ofi_core::sys::os_error("socket"));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}

/// Binds a socket.
///
/// # Errors
/// What bind(2) answers.
pub fn bind(fd: std::os::fd::RawFd, address: std::net::SocketAddr) -> ofi_api::Result<()> {
    let mut storage = crate::socket::name::empty_storage();
    let len = crate::socket::name::to_storage(address, &mut storage);
    // SAFETY: the storage holds an address of `len` bytes.
    let rc = unsafe { libc::bind(fd, std::ptr::from_ref(&storage).cast(), len) };
    if rc < 0 { Err(ofi_core::sys::os_error("bind")) } else { Ok(()) }
}
