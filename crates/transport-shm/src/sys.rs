//! System calls: memfds, mappings, sockets that pass descriptors, and who is alive.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use ofi_api::{Errno, Error, Result};
use ofi_core::fork::Born;

/// The error of a failed system call.
pub fn os_error(call: &'static str) -> Error {
    let error = io::Error::last_os_error();
    Error::with(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)), format!("{call}: {error}"))
}

fn owned(fd: RawFd, call: &'static str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(os_error(call));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Seals that every shared memory must have: its size never changes, so that no mapped page goes away under a reader.
const SIZE_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// A new shared memory of `len` bytes (rounded up to pages by the kernel), all zero, its pages allocated.
///
/// # Errors
/// `FI_ENOMEM`, `FI_EMFILE`.
pub fn memfd(name: &std::ffi::CStr, len: usize) -> Result<OwnedFd> {
    let fd = empty_memfd(name, len)?;
    allocate(&fd, len)?;
    Ok(fd)
}

/// As [`memfd`], before [`allocate`].
///
/// # Errors
/// `FI_EMFILE`.
pub fn empty_memfd(name: &std::ffi::CStr, len: usize) -> Result<OwnedFd> {
    memfd_of(name, len, 0)
}

/// A size of huge page that every x86-64 and most aarch64 systems have.
pub const HUGE_PAGE: usize = 2 << 20;

/// As [`memfd`], in huge pages that the administrator has reserved (`vm.nr_hugepages`). `len` is a multiple of
/// [`HUGE_PAGE`].
///
/// # Errors
/// `FI_ENOMEM`, `FI_ENOSPC` if too few are free.
pub fn huge_memfd(name: &std::ffi::CStr, len: usize) -> Result<OwnedFd> {
    let fd = memfd_of(name, len, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB)?;
    allocate(&fd, len)?;
    Ok(fd)
}

fn memfd_of(name: &std::ffi::CStr, len: usize, kind: libc::c_uint) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind;
    // SAFETY: `name` is a C string.
    let fd = owned(unsafe { libc::memfd_create(name.as_ptr(), flags) }, "memfd_create")?;
    // SAFETY: takes no pointers.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } < 0 {
        return Err(os_error("ftruncate"));
    }
    Ok(fd)
}

/// Allocates the pages of a shared memory, so that no access can run out of memory later.
///
/// # Errors
/// `FI_ENOMEM`, `FI_ENOSPC`.
pub fn allocate(fd: &OwnedFd, len: usize) -> Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t) } < 0 {
        return Err(os_error("fallocate"));
    }
    Ok(())
}

/// Who may write to a memory from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Those that have mapped it for writing already. The kernel refuses new writable mappings, write(2) and the punching
    /// of holes through every descriptor, also one that a receiver opens again by `/proc`.
    Present,
    /// Whoever has a descriptor.
    Any,
}

/// Forbids changes of size for ever, and says for ever who may write.
///
/// # Errors
/// What fcntl(2) answers.
pub fn seal(fd: &OwnedFd, writers: Writers) -> Result<()> {
    let write = if writers == Writers::Present { libc::F_SEAL_FUTURE_WRITE } else { 0 };
    add_seals(fd, SIZE_SEALS | write | libc::F_SEAL_SEAL)
}

/// Forbids changes of size for ever. [`seal`] may follow.
///
/// # Errors
/// What fcntl(2) answers.
pub fn seal_size(fd: &OwnedFd) -> Result<()> {
    add_seals(fd, SIZE_SEALS)
}

fn add_seals(fd: &OwnedFd, seals: libc::c_int) -> Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
        return Err(os_error("fcntl(F_ADD_SEALS)"));
    }
    Ok(())
}

/// Whether a memory consists of reserved huge pages.
fn is_huge(fd: BorrowedFd<'_>) -> Result<bool> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: room for the structure.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) } < 0 {
        return Err(os_error("fstatfs"));
    }
    // SAFETY: a plain structure, which was zero before the call.
    Ok(unsafe { stat.assume_init() }.f_type == libc::HUGETLBFS_MAGIC)
}

/// Maps the first `len` bytes of a memory that came from another process, so that no access to the mapping can fault: it is
/// sealed in size and allocated, and nobody can punch holes into what is only read here, nor into huge pages, which may
/// have run out when a hole is touched. (A hole in ordinary pages reads as zeroes.)
///
/// # Errors
/// `FI_EINVAL` if it is not so; what [`Mapping::new`] answers.
pub fn map_foreign(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Mapping> {
    // SAFETY: takes no pointers.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & SIZE_SEALS != SIZE_SEALS {
        return Err(Error::with(Errno::EINVAL, "a peer's memory is not sealed in size"));
    }
    let huge = is_huge(fd)?;
    if seals & libc::F_SEAL_FUTURE_WRITE == 0 && (huge || !writable) {
        return Err(Error::with(Errno::EINVAL, "a peer's memory is not sealed against new writers"));
    }
    // SAFETY: all zeroes is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` may be written.
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } < 0 {
        return Err(os_error("fstat"));
    }
    if (stat.st_size as u64) < len as u64 || (stat.st_blocks as u64) * 512 < len as u64 {
        return Err(Error::with(Errno::EINVAL, "a peer's memory is smaller than it said, or not allocated"));
    }
    // Huge pages are unmapped whole or not at all.
    let mapped = if huge { len.checked_next_multiple_of(stat.st_blksize as usize) } else { Some(len) };
    match mapped {
        Some(mapped) if mapped <= stat.st_size as usize || !huge => Mapping::new(fd, mapped, writable),
        _ => Err(Error::with(Errno::EINVAL, "a peer's memory ends within a huge page")),
    }
}

/// Checks that a descriptor of another process is an eventfd, and that writing to it does not block. Anything else might do
/// worse: a pipe or a socket raises `SIGPIPE`, and a file may be served by a program of the peer's.
///
/// # Errors
/// `FI_EINVAL` if it is not.
pub fn check_eventfd(fd: BorrowedFd<'_>) -> Result<()> {
    let invalid = |what| Err(Error::with(Errno::EINVAL, what));
    match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
        Ok(name) if name.as_os_str() == "anon_inode:[eventfd]" => {}
        Ok(_) => return invalid("what a peer wants to be woken by is no eventfd"),
        Err(_) => {
            // Without `/proc` at least no pipe, socket, device or file: those have a type.
            // SAFETY: all zeroes is a valid `stat`.
            let mut stat: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: `stat` may be written.
            let rc = unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) };
            if rc < 0 || stat.st_mode & libc::S_IFMT != 0 {
                return invalid("what a peer wants to be woken by is no eventfd");
            }
        }
    }
    // SAFETY: takes no pointers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 || flags & libc::O_NONBLOCK == 0 {
        return invalid("a peer's eventfd blocks its writers");
    }
    Ok(())
}

/// Shared memory in this process. Not inherited by a forked child.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    born: Born,
}

// SAFETY: a mapping is an address range; who accesses it how is each user's concern.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EACCES`.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        // SAFETY: the range was just mapped. A kernel without the advice lets children inherit; they may not use it.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Errno::ENOMEM))?;
        Ok(Self { base, len, born: Born::here() })
    }

    /// First byte; aligned to a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Prefers NUMA node `node` for pages that are allocated from now on.
    ///
    /// # Errors
    /// `FI_EINVAL` for a node that the host does not have.
    pub fn prefer_node(&self, node: u32) -> Result<()> {
        const MPOL_PREFERRED: libc::c_long = 1;
        let mut mask = [0u64; 16];
        let Some(word) = mask.get_mut(node as usize / 64) else {
            return Err(Error::with(Errno::EINVAL, format!("NUMA node {node}: there are fewer than 1,024")));
        };
        *word = 1 << (node % 64);
        let (base, bits) = (self.base.as_ptr(), mask.len() * 64 + 1);
        // SAFETY: the range is this mapping, and the mask has as many bits as said.
        let rc =
            unsafe { libc::syscall(libc::SYS_mbind, base, self.len, MPOL_PREFERRED, mask.as_ptr(), bits, 0) };
        if rc < 0 { Err(os_error("mbind")) } else { Ok(()) }
    }

    /// Asks for huge pages; does nothing where the system has none to give.
    pub fn advise_huge(&self) {
        // SAFETY: the range is this mapping.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// A word of the mapping, to be accessed atomically.
    ///
    /// # Panics
    /// If `offset` is not inside, or not aligned: offsets come from `layout.rs`, never from a peer.
    pub fn word<W>(&self, offset: usize) -> *const W {
        assert!(offset + size_of::<W>() <= self.len && offset.is_multiple_of(align_of::<W>()));
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return; // not inherited: the range may be something else by now
        }
        // SAFETY: the range is this mapping, and its users hold it by `Arc`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Who sent a datagram, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in this process's namespace; 0 if it is not visible here.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

/// A datagram that came in.
pub struct Datagram {
    /// Bytes of it in the buffer.
    pub len: usize,
    /// The abstract name of the socket it was sent from; empty for one that has none.
    pub from: Vec<u8>,
    /// The sender.
    pub credentials: Credentials,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A socket for control datagrams, bound to an abstract name: no file, so nothing is left behind.
#[derive(Debug)]
pub struct ControlSocket(OwnedFd);

/// Most descriptors in one datagram.
const MAX_FDS: usize = 4;

#[repr(C, align(8))]
struct AncillaryBuffer([u8; 128]);

fn abstract_address(name: &[u8]) -> Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all zeroes is a valid `sockaddr_un`.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() + 1 > address.sun_path.len() {
        return Err(Error::wanted(
            Errno::EINVAL,
            "the name of an endpoint",
            format!("at most {} bytes", address.sun_path.len() - 1),
            name.len().to_string(),
            "choose a shorter one",
        ));
    }
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as libc::socklen_t))
}

impl ControlSocket {
    /// A socket bound to `name`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` if somebody has the name.
    pub fn bind(name: &[u8]) -> Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes no pointers.
        let fd = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }, "socket")?;
        let on: libc::c_int = 1;
        // SAFETY: the option's value is a readable int.
        let rc = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PASSCRED,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if rc < 0 {
            return Err(os_error("setsockopt(SO_PASSCRED)"));
        }
        let (address, len) = abstract_address(name)?;
        // SAFETY: `address` is valid for `len` bytes.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
            let error = os_error("bind");
            if error.errno() != Errno::EADDRINUSE {
                return Err(error);
            }
            return Err(Error::wanted(
                Errno::EADDRINUSE,
                "the address of an endpoint",
                "one that no endpoint of this host has",
                String::from_utf8_lossy(name),
                "choose another name or port, or port 0",
            ));
        }
        Ok(Self(fd))
    }

    /// For polling.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sends a datagram with descriptors to the socket called `to`. Never blocks.
    ///
    /// # Errors
    /// `FI_ECONNREFUSED` if there is no such socket; `FI_EAGAIN` if it does not take more for now.
    pub fn send(&self, to: &[u8], bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let (mut address, address_len) = abstract_address(to)?;
        let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut ancillary = AncillaryBuffer([0; 128]);
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = address_len;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let payload = size_of::<RawFd>() * fds.len().min(MAX_FDS);
            message.msg_control = ancillary.0.as_mut_ptr().cast();
            // SAFETY: computes a length.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(payload as u32) } as usize;
            // SAFETY: the header points to a buffer of that length.
            let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
            // SAFETY: `CMSG_FIRSTHDR` answers the start of our buffer, which has room for a header.
            let header = unsafe { &mut *header };
            header.cmsg_level = libc::SOL_SOCKET;
            header.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: computes a length.
            header.cmsg_len = unsafe { libc::CMSG_LEN(payload as u32) } as usize;
            // SAFETY: the data follow the header, in our buffer.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for (index, fd) in fds.iter().take(MAX_FDS).enumerate() {
                // SAFETY: `payload` bytes of room lie at `data`.
                unsafe { data.wrapping_add(index).write_unaligned(fd.as_raw_fd()) };
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: every pointer in the header is valid for the length beside it.
        if unsafe { libc::sendmsg(self.fd(), &raw const message, flags) } < 0 {
            return Err(match io::Error::last_os_error().raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ETOOMANYREFS | libc::EINTR) => Error::AGAIN,
                Some(libc::ECONNREFUSED) => Error::new(Errno::ECONNREFUSED),
                _ => os_error("sendmsg"),
            });
        }
        Ok(())
    }

    /// Takes the next datagram, if there is one.
    pub fn receive(&self, buffer: &mut [u8]) -> Option<Datagram> {
        // SAFETY: all zeroes is a valid `sockaddr_un`.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut ancillary = AncillaryBuffer([0; 128]);
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of_val(&address) as libc::socklen_t;
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = ancillary.0.as_mut_ptr().cast();
        message.msg_controllen = ancillary.0.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: every pointer in the header is valid for the length beside it.
        let len = unsafe { libc::recvmsg(self.fd(), &raw mut message, flags) };
        if len < 0 {
            return None;
        }
        let path = std::mem::offset_of!(libc::sockaddr_un, sun_path);
        // Only an abstract name begins with a zero byte. A path, which anybody may choose, names no endpoint.
        let is_abstract = message.msg_namelen as usize > path && address.sun_path[0] == 0;
        let name_len =
            (message.msg_namelen as usize).saturating_sub(path + 1).min(address.sun_path.len() - 1);
        let name_len = if is_abstract { name_len } else { 0 };
        let from = address.sun_path[1..1 + name_len].iter().map(|&byte| byte as u8).collect();
        let mut datagram = Datagram {
            len: len as usize,
            from,
            credentials: Credentials { pid: 0, uid: u32::MAX },
            fds: Vec::new(),
        };
        // SAFETY: the kernel filled the header in.
        let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        while !next.is_null() {
            // SAFETY: not null, so it points to a header in our buffer.
            let header = unsafe { &*next };
            // SAFETY: the data follow the header, in our buffer.
            let data = unsafe { libc::CMSG_DATA(header) };
            // SAFETY: computes a length.
            let len = header.cmsg_len.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..len / size_of::<RawFd>() {
                        // SAFETY: inside the data.
                        let fd = unsafe { data.cast::<RawFd>().wrapping_add(index).read_unaligned() };
                        // SAFETY: the kernel just made this descriptor for us.
                        datagram.fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if len >= size_of::<libc::ucred>() => {
                    // SAFETY: inside the data.
                    let who = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                    datagram.credentials = Credentials { pid: who.pid, uid: who.uid };
                }
                _ => {}
            }
            // SAFETY: `next` is a header of this message.
            next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
        }
        Some(datagram)
    }
}

/// Whether a socket is bound to the abstract `name`.
pub fn is_bound(name: &[u8]) -> bool {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes no pointers.
    let Ok(probe) = owned(unsafe { libc::socket(libc::AF_UNIX, kind, 0) }, "socket") else { return true };
    let Ok((address, len)) = abstract_address(name) else { return false };
    // SAFETY: `address` is valid for `len` bytes.
    let rc = unsafe { libc::connect(probe.as_raw_fd(), (&raw const address).cast(), len) };
    rc == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ECONNREFUSED)
}

/// A descriptor that becomes readable when process `pid` ends. `None` if it has ended, or cannot be watched.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(fd as RawFd, "pidfd_open").ok()
}

/// Whether the process of a [`pidfd`] has ended: that one, whoever has its number now.
pub fn is_over(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// Whether process `pid` has ended (a zombie has), as far as this process may know.
pub fn has_ended(pid: i32) -> bool {
    match pidfd(pid) {
        Some(fd) => is_over(&fd),
        None => {
            // SAFETY: takes no pointers; signal 0 only asks.
            let rc = unsafe { libc::kill(pid, 0) };
            rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
        }
    }
}

/// How many descriptors this process may have open.
pub fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if rc < 0 { 1024 } else { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) }
}

/// This process's effective user.
pub fn user() -> u32 {
    // SAFETY: takes no pointers.
    unsafe { libc::geteuid() }
}

/// Random bits from the kernel.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // Falls back to the address and time only where the system has no random numbers at all.
    if getrandom::fill(&mut bytes).is_err() {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        return clock.as_nanos() as u64 ^ (&raw const bytes) as u64;
    }
    u64::from_ne_bytes(bytes)
}
