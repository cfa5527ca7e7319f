//! System calls: sockets in batches, timers, pages.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::os_error;

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

fn set_option(socket: &UdpSocket, level: i32, name: i32, value: i32) -> bool {
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

/// A bound socket that does not block and does not fragment, with buffers of about `buffer` bytes. Answers also how many
/// bytes the kernel lets it receive ahead.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, and what else bind(2) answers.
pub fn bind(address: SocketAddr, buffer: usize) -> Result<(UdpSocket, usize)> {
    let socket = UdpSocket::bind(address).map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        let wanted = "an address and port of this host that are free";
        let advice = "leave the port 0, or choose another address with FI_SOURCE or fi_setname";
        Error::wanted(errno, "the address of an endpoint", wanted, format!("{address}: {error}"), advice)
    })?;
    socket.set_nonblocking(true).map_err(|_| os_error("fcntl"))?;
    let asked = i32::try_from(buffer).unwrap_or(i32::MAX);
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, asked);
    set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, asked);
    // Packets that are too long for the path are to vanish, so that the longest size that does not can be found.
    if address.is_ipv4() {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    } else {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    }
    let granted = option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(212_992);
    Ok((socket, usize::try_from(granted).unwrap_or(0).max(65_536)))
}

fn to_storage(address: SocketAddr, storage: &mut libc::sockaddr_storage) -> libc::socklen_t {
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

fn from_storage(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
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

fn empty_storage() -> libc::sockaddr_storage {
    // SAFETY: integers and arrays of integers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: integers and pointers, for which all zeros are valid.
    unsafe { std::mem::zeroed() }
}

/// Room for one datagram of any length.
const DATAGRAM: usize = 65_536;

/// Datagrams on their way in or out, and what recvmmsg(2) and sendmmsg(2) need to know of them. The datagrams lie in pages
/// that are touched only as far as they are used.
pub struct Batch {
    pages: Pages,
    count: usize,
    addresses: Box<[libc::sockaddr_storage]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers inside lead to the batch's own heap memory, and are set anew before each call.
unsafe impl Send for Batch {}

impl Batch {
    /// Room for `count` datagrams.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(count: usize) -> Result<Self> {
        Ok(Self {
            pages: Pages::new(count * DATAGRAM, false)?,
            count,
            addresses: (0..count).map(|_| empty_storage()).collect(),
            vectors: (0..count).map(|_| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }).collect(),
            headers: (0..count).map(|_| empty_header()).collect(),
        })
    }

    /// The buffer of datagram `index`.
    pub fn buffer(&mut self, index: usize) -> &mut [u8] {
        assert!(index < self.count);
        // SAFETY: inside the mapping, which is borrowed mutably along with `self`; no call uses it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.pages.base().wrapping_add(index * DATAGRAM), DATAGRAM) }
    }

    /// The bytes of received datagram `index`, and its sender.
    pub fn received(&self, index: usize) -> (&[u8], Option<SocketAddr>) {
        assert!(index < self.count);
        let len = (self.headers[index].msg_len as usize).min(DATAGRAM);
        // SAFETY: inside the mapping, which is borrowed along with `self`.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.pages.base().wrapping_add(index * DATAGRAM), len) };
        (bytes, from_storage(&self.addresses[index]))
    }

    /// Sets where datagram `index` of `len` bytes goes.
    pub fn address(&mut self, index: usize, to: SocketAddr, len: usize) {
        assert!(len <= DATAGRAM);
        let name_len = to_storage(to, &mut self.addresses[index]);
        self.point(index, len, name_len);
    }

    fn point(&mut self, index: usize, len: usize, name_len: libc::socklen_t) {
        self.vectors[index] =
            libc::iovec { iov_base: self.pages.base().wrapping_add(index * DATAGRAM).cast(), iov_len: len };
        let header = &mut self.headers[index].msg_hdr;
        header.msg_name = std::ptr::from_mut(&mut self.addresses[index]).cast();
        header.msg_namelen = name_len;
        header.msg_iov = &mut self.vectors[index];
        header.msg_iovlen = 1;
    }

    /// The length of datagram `index`.
    pub fn len(&self, index: usize) -> usize {
        self.vectors[index].iov_len
    }

    /// Receives as many datagrams as there are, and room for.
    pub fn receive(&mut self, socket: &UdpSocket) -> usize {
        for index in 0..self.count {
            self.point(index, DATAGRAM, size_of::<libc::sockaddr_storage>() as libc::socklen_t);
        }
        let count = self.count as libc::c_uint;
        // SAFETY: the headers lead to buffers and addresses of this batch, of the lengths that they say.
        let got = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(got).unwrap_or(0)
    }

    /// Sends datagrams `range`; answers how many went, or the error number of the first.
    pub fn send(&mut self, socket: &UdpSocket, range: std::ops::Range<usize>) -> Result<usize, i32> {
        let headers = &mut self.headers[range];
        let count = headers.len() as libc::c_uint;
        // SAFETY: the headers lead to buffers and addresses of this batch, of the lengths that they say.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
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
