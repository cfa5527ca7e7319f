//! System calls: sockets, timers, pages.

use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::os_error;

/// The socket of a descriptor that stays its owner's.
pub fn lend_socket(fd: RawFd) -> ManuallyDrop<UdpSocket> {
    // SAFETY: it is never dropped, so the descriptor is not closed; the caller knows that it is open.
    ManuallyDrop::new(unsafe { UdpSocket::from_raw_fd(fd) })
}

/// Has each look at a datagram that leaves it there be at the next one, from the first on; or each at the first one again. Whether the
/// system does that.
pub fn peek_from_front(socket: &UdpSocket, each: bool) -> bool {
    let offset: libc::c_int = if each { 0 } else { -1 };
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = std::ptr::from_ref(&offset).cast();
    // SAFETY: `value` is an integer of `len` bytes.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, value, len) == 0 }
}

/// Pages of this process, zeroed at first.
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of memory, which belongs to whoever holds this, and no thread.
unsafe impl Send for Pages {}
// SAFETY: only its place and length are shared; who uses the memory answers for that.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` bytes.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(len: usize, huge: bool) -> Result<Self> {
        let unit = if huge { 2 << 20 } else { 4096 };
        let len = len
            .max(1)
            .checked_next_multiple_of(unit)
            .filter(|&len| len <= isize::MAX as usize)
            .ok_or_else(|| Error::new(Errno::ENOMEM))?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        if huge {
            // SAFETY: advice on the mapping just made, which does not change what it holds.
            unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Errno::ENOMEM))?;
        Ok(Self { base, len })
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Sets an option that is an int; whether that went.
pub fn set_option(socket: &UdpSocket, level: i32, name: i32, value: i32) -> bool {
    let (from, len) = (std::ptr::from_ref(&value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: `value` is an int, which all options used here are.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, from, len) == 0 }
}

fn option(socket: &UdpSocket, level: i32, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` is an int, which all options used here are.
    (unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &mut len) } == 0).then_some(value)
}

/// A socket, and what the kernel granted it.
pub struct Bound {
    /// Bound; does not block; sends no fragments, and reports what ICMP says.
    pub socket: UdpSocket,
    /// Bytes that the kernel lets it receive ahead, overhead included.
    pub granted: usize,
    /// Many datagrams may be sent as one message (UDP_SEGMENT).
    pub joins: bool,
}

/// Binds a socket with buffers of about `buffer` bytes. `segments`: datagrams may go to the kernel and come from it many at
/// a time, where it can do that.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, and what else bind(2) answers.
pub fn bind(address: SocketAddr, buffer: usize, segments: bool) -> Result<Bound> {
    let socket = crate::ports::bind(address).map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        let wanted = "an address and port of this host that are free";
        let advice = "leave the port 0, or choose another address with FI_SOURCE or fi_setname";
        Error::wanted(errno, "the address of an endpoint", wanted, format!("{address}: {error}"), advice)
    })?;
    socket.set_nonblocking(true).map_err(|_| os_error("fcntl"))?;
    crate::socket::local::prepare(&socket, address);
    let asked = i32::try_from(buffer).unwrap_or(i32::MAX);
    // Privileged processes get what they ask for, others at most net.core.rmem_max and wmem_max.
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if !set_option(&socket, libc::SOL_SOCKET, forced, asked) {
            set_option(&socket, libc::SOL_SOCKET, plain, asked);
        }
    }
    // Packets that are too long for the path are to vanish, so that the longest size that does not can be found.
    if address.is_ipv4() {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    } else {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
    }
    if segments {
        set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    let joins = segments && option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_some();
    let granted = option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(212_992);
    Ok(Bound { socket, granted: usize::try_from(granted).unwrap_or(0).max(65_536), joins })
}

/// A timer that makes a descriptor readable.
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// What timerfd_create(2) answers.
    pub fn new() -> Result<Self> {
        // SAFETY: takes no pointers.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(os_error("timerfd_create"));
        }
        // SAFETY: the call just made this descriptor, so nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Becomes readable after `time`, or never. What was set before no longer counts.
    pub fn set(&self, time: Option<Duration>) {
        let time = time.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: time.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
        };
        let spec =
            libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: `spec` is valid; the old value is not asked for.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
