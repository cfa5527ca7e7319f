//! System calls of shared vectors: abstract sockets that hand descriptors over, and sealed memory.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use ofi_api::{Errno, Error, Result};

pub use crate::sys::effective_user;
use crate::sys::os_error;

fn owned(fd: RawFd, call: &'static str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(os_error(call));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// New memory of `len` bytes, all zero, whose size never changes. Pages are allocated when they are touched.
///
/// # Errors
/// `FI_EMFILE`, `FI_ENOMEM`.
pub fn memory(len: usize) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = owned(unsafe { libc::memfd_create(c"ofi-av".as_ptr(), flags) }, "memfd_create")?;
    // SAFETY: takes no pointers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } < 0 {
        return Err(os_error("ftruncate"));
    }
    // SAFETY: takes no pointers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) } < 0 {
        return Err(os_error("fcntl(F_ADD_SEALS)"));
    }
    Ok(fd)
}

/// The length of a memory that came from another process, if its pages cannot go away under a mapping.
///
/// # Errors
/// `FI_EINVAL` if they can: it is not sealed, or no ordinary memory.
pub fn sealed_len(fd: &OwnedFd) -> Result<usize> {
    // SAFETY: takes no pointers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    // SAFETY: all zeroes is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` may be written.
    let rc = unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) };
    // Huge pages can run out at an access, and are told by their block size.
    if seals < 0 || seals & SEALS != SEALS || rc < 0 || stat.st_blksize > 1 << 16 {
        return Err(Error::with(Errno::EINVAL, "the memory of a shared address vector may shrink"));
    }
    usize::try_from(stat.st_size).map_err(|_| Error::new(Errno::EINVAL))
}

/// A mapping, until it is dropped.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; what lies there is accessed by atomics and raw copies alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes.
    ///
    /// # Errors
    /// What mmap(2) answers.
    pub fn new(fd: &OwnedFd, len: usize, writable: bool) -> Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(first) if base != libc::MAP_FAILED => Ok(Self { base: first, len }),
            _ => Err(os_error("mmap")),
        }
    }

    /// Its first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and by nobody unmapped since.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn abstract_address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    debug_assert!(name.len() < address.sun_path.len());
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    (address, len as libc::socklen_t)
}

fn socket() -> Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }, "socket")
}

/// A socket that has the abstract `name`, or `None` if another one has it.
///
/// # Errors
/// What socket(2) and bind(2) answer.
pub fn bind(name: &str) -> Result<Option<OwnedFd>> {
    let fd = socket()?;
    let (address, len) = abstract_address(name);
    // SAFETY: `address` is valid for `len` bytes.
    match unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(Some(fd)),
        _ if last() == libc::EADDRINUSE => Ok(None),
        _ => Err(os_error("bind")),
    }
}

/// Lets others connect.
///
/// # Errors
/// What listen(2) answers.
pub fn listen(fd: &OwnedFd) -> Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::listen(fd.as_raw_fd(), 64) } < 0 { Err(os_error("listen")) } else { Ok(()) }
}

/// A connection to whoever listens under `name`; `None` if nobody does.
///
/// # Errors
/// `FI_EAGAIN` while its queue is full; what socket(2) answers.
pub fn connect(name: &str) -> Result<Option<OwnedFd>> {
    let fd = socket()?;
    let (address, len) = abstract_address(name);
    // SAFETY: `address` is valid for `len` bytes.
    match unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(Some(fd)),
        _ if last() == libc::ECONNREFUSED => Ok(None),
        _ if last() == libc::EAGAIN => Err(Error::AGAIN),
        _ => Err(os_error("connect")),
    }
}

/// The next connection that waits at a listening socket.
pub fn accept(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let fd = unsafe { libc::accept4(fd.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    owned(fd, "accept4").ok()
}

/// The user of the process at the other end: for a connection made here, who called listen(2).
pub fn peer_user(fd: &OwnedFd) -> Option<u32> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option's value is a writable `ucred`.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some(who.uid)
}

#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Sends two descriptors, in one packet. Never blocks.
pub fn send_two(to: &OwnedFd, fds: [BorrowedFd<'_>; 2]) {
    let mut byte = [1_u8];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut ancillary = Ancillary([0; 64]);
    let payload = size_of::<[RawFd; 2]>() as u32;
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = ancillary.0.as_mut_ptr().cast();
    // SAFETY: computes a length, of 24 bytes.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as usize;
    // SAFETY: the header points to a buffer of that length.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: the start of our buffer, which has room for a header.
    let header = unsafe { &mut *header };
    (header.cmsg_level, header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // SAFETY: computes a length.
    header.cmsg_len = unsafe { libc::CMSG_LEN(payload) } as usize;
    // SAFETY: the data follow the header, in our buffer.
    let data = unsafe { libc::CMSG_DATA(header) }.cast::<[RawFd; 2]>();
    // SAFETY: the buffer has room for them there.
    unsafe { data.write_unaligned(fds.map(|fd| fd.as_raw_fd())) };
    // SAFETY: every pointer in the header is valid for the length beside it. Who does not take it asks again.
    unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
}

/// Takes a packet with two descriptors, if that is what is here.
pub fn take_two(from: &OwnedFd) -> Option<[OwnedFd; 2]> {
    let mut byte = [0_u8];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut ancillary = Ancillary([0; 64]);
    // SAFETY: all zeroes is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    (message.msg_control, message.msg_controllen) = (ancillary.0.as_mut_ptr().cast(), ancillary.0.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in the header is valid for the length beside it.
    if unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, flags) } < 1 {
        return None;
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the header in.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a header in our buffer.
        let header = unsafe { &*next };
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: computes a length.
            let len = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            // SAFETY: the data follow the header, in our buffer.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for index in 0..len / size_of::<RawFd>() {
                // SAFETY: inside the data.
                let fd = unsafe { data.wrapping_add(index).read_unaligned() };
                // SAFETY: the kernel just made this descriptor for us.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `next` is a header of this message.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    fds.try_into().ok()
}
