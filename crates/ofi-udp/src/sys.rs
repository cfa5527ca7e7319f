//! System calls of sockets.

use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use ofi_api::Result;
use ofi_core::sys::os_error;

use crate::sockaddr::{empty_storage, to_storage};

/// Borrows the socket of a descriptor, which its owner keeps.
pub fn lend_socket(fd: RawFd) -> ManuallyDrop<UdpSocket> {
    // SAFETY: it is never dropped, so the descriptor is not closed; the caller knows that it is open.
    ManuallyDrop::new(unsafe { UdpSocket::from_raw_fd(fd) })
}

/// Makes each peek return the next datagram, starting with the first, or always the first. Returns whether the system
/// supports that.
pub fn peek_from_front(socket: &UdpSocket, each: bool) -> bool {
    let offset: libc::c_int = if each { 0 } else { -1 };
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = std::ptr::from_ref(&offset).cast();
    // SAFETY: `value` is an integer of `len` bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, value, len) == 0 }
}

/// Sets an option that is an int. Returns whether that succeeded.
pub fn set_option(socket: &UdpSocket, level: i32, name: i32, value: i32) -> bool {
    let (from, len) = (std::ptr::from_ref(&value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: `value` is an int, which all options used here are.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, from, len) == 0 }
}

/// Reads such an option; `None` if the system does not know it.
pub fn option(socket: &UdpSocket, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` is an int, which all options used here are.
    (unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &mut len) } == 0).then_some(value)
}

/// `SK_MEMINFO_DROPS` (linux/sock_diag.h): the index of the counter of drops.
const DROPS: usize = 8;

/// Datagrams that the socket dropped for lack of room; 0 if the kernel does not report them.
pub fn dropped(socket: &UdpSocket) -> u64 {
    let mut numbers = [0u32; 16];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    let to = numbers.as_mut_ptr().cast();
    // SAFETY: room for `len` bytes, of which the kernel writes as many as it has, and says how many.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, to, &mut len) };
    if rc < 0 || (len as usize) <= DROPS * size_of::<u32>() { 0 } else { numbers[DROPS].into() }
}

/// Permits other sockets of this host to bind the same address and port, as members of a group do.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn share_address(fd: RawFd) -> Result<()> {
    let (one, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    let from = std::ptr::from_ref(&one).cast();
    // SAFETY: `one` is an int, which this option takes.
    let rc = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, from, len) };
    if rc < 0 { Err(os_error("setsockopt")) } else { Ok(()) }
}

/// A datagram socket that is not bound.
///
/// # Errors
/// Errors of socket(2).
pub fn unbound(v6: bool) -> Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(os_error("socket"));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { FromRawFd::from_raw_fd(fd) })
}

/// Binds a socket.
///
/// # Errors
/// Errors of bind(2).
pub fn bind(fd: RawFd, address: SocketAddr) -> Result<()> {
    let mut storage = empty_storage();
    let len = to_storage(address, &mut storage);
    // SAFETY: the storage holds an address of `len` bytes.
    let rc = unsafe { libc::bind(fd, std::ptr::from_ref(&storage).cast(), len) };
    if rc < 0 { Err(os_error("bind")) } else { Ok(()) }
}
