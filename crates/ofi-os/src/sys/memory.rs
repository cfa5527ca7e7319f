//! Memory that several processes map: memfds, the guarantees of their seals, and mappings that children do not inherit.
//!
//! A process that maps another process's memory checks it first ([`map_foreign`], [`sealed_len`]): its size is sealed,
//! so no mapped page can disappear under a reader, and no access can run out of pages.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use ofi_api::{Errno, Error, Result};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::{failed, os_error};
use crate::fork::Born;

/// Seals that every shared memory must have: its size never changes.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A new shared memory of `len` bytes (rounded up to pages by the kernel), all zero, its pages allocated.
///
/// # Errors
/// `FI_ENOMEM`, `FI_EMFILE`.
pub fn memfd(name: &CStr, len: usize) -> Result<OwnedFd> {
    let fd = empty_memfd(name, len)?;
    allocate(&fd, len)?;
    Ok(fd)
}

/// As [`memfd`], before [`allocate`]: pages are allocated when they are touched.
///
/// # Errors
/// `FI_EMFILE`.
pub fn empty_memfd(name: &CStr, len: usize) -> Result<OwnedFd> {
    memfd_of(name, len, MemfdFlags::empty())
}

/// A size of huge page that every x86-64 and most aarch64 systems have.
pub const HUGE_PAGE: usize = 2 << 20;

/// As [`memfd`], in huge pages that the administrator has reserved (`vm.nr_hugepages`). `len` is a multiple of
/// [`HUGE_PAGE`].
///
/// # Errors
/// `FI_ENOMEM`, `FI_ENOSPC` if too few are free.
pub fn huge_memfd(name: &CStr, len: usize) -> Result<OwnedFd> {
    let fd = memfd_of(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
    allocate(&fd, len)?;
    Ok(fd)
}

fn memfd_of(name: &CStr, len: usize, kind: MemfdFlags) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | kind;
    let fd = fs::memfd_create(name, flags).map_err(failed("memfd_create"))?;
    fs::ftruncate(&fd, len as u64).map_err(failed("ftruncate"))?;
    Ok(fd)
}

/// Allocates the pages of a shared memory, so that no access can run out of memory later.
///
/// # Errors
/// `FI_ENOMEM`, `FI_ENOSPC`.
pub fn allocate(fd: &OwnedFd, len: usize) -> Result<()> {
    fs::fallocate(fd, FallocateFlags::empty(), 0, len as u64).map_err(failed("fallocate"))
}

/// Who may write a memory from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Those that have already mapped it for writing. The kernel refuses new writable mappings, write(2) and hole
    /// punching through every descriptor, including one that a receiver reopens through `/proc`.
    Present,
    /// Every holder of a descriptor.
    Any,
}

/// Seals the size, and the set of writers, permanently.
///
/// # Errors
/// Errors of fcntl(2).
pub fn seal(fd: &OwnedFd, writers: Writers) -> Result<()> {
    let write = if writers == Writers::Present { SealFlags::FUTURE_WRITE } else { SealFlags::empty() };
    add_seals(fd, SIZE_SEALS | write | SealFlags::SEAL)
}

/// Forbids changes of size for ever. [`seal`] may follow.
///
/// # Errors
/// Errors of fcntl(2).
pub fn seal_size(fd: &OwnedFd) -> Result<()> {
    add_seals(fd, SIZE_SEALS)
}

fn add_seals(fd: &OwnedFd, seals: SealFlags) -> Result<()> {
    fs::fcntl_add_seals(fd, seals).map_err(failed("fcntl(F_ADD_SEALS)"))
}

/// The kernel's description of a memory that was received from another process.
struct Foreign {
    len: usize,
    /// Bytes of it that have pages.
    allocated: usize,
    page: usize,
    /// It consists of reserved huge pages.
    is_huge: bool,
    /// No process can map it for writing, or punch holes into it, any more.
    has_its_writers: bool,
}

impl Foreign {
    fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        let seals = fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SIZE_SEALS) {
            return Err(Error::with(
                Errno::EINVAL,
                "a peer's memory is not sealed against changes of its size",
            ));
        }
        let stat = fs::fstat(fd).map_err(failed("fstat"))?;
        let system = fs::fstatfs(fd).map_err(failed("fstatfs"))?;
        Ok(Self {
            len: usize::try_from(stat.st_size).unwrap_or(0),
            allocated: usize::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
            page: usize::try_from(stat.st_blksize).unwrap_or(1),
            is_huge: system.f_type == libc::HUGETLBFS_MAGIC,
            has_its_writers: seals.contains(SealFlags::FUTURE_WRITE),
        })
    }
}

/// The length of a memory that another process passed, of which pages may still be missing. Checks that its size is
/// sealed, and that it has ordinary pages, which are created when touched. (Huge ones may have run out.)
///
/// # Errors
/// `FI_EINVAL` if a check fails.
pub fn sealed_len(fd: &OwnedFd) -> Result<usize> {
    let memory = Foreign::of(fd.as_fd())?;
    if memory.is_huge {
        return Err(Error::with(
            Errno::EINVAL,
            "a peer's writable memory uses huge pages, which may run out and raise SIGBUS",
        ));
    }
    Ok(memory.len)
}

/// Maps the first `len` bytes of a memory that another process passed, such that no access to the mapping can fault.
/// Its size must be sealed and its pages allocated, and no process may be able to punch holes into memory that is only
/// read here, nor into huge pages, which may have run out when a hole is touched. (A hole in ordinary pages reads as
/// zeros.)
///
/// # Errors
/// `FI_EINVAL` if a check fails; those of [`Mapping::new`].
pub fn map_foreign(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Mapping> {
    let memory = Foreign::of(fd)?;
    if !memory.has_its_writers && (memory.is_huge || !writable) {
        return Err(Error::with(Errno::EINVAL, "a peer's memory is not sealed against new writers"));
    }
    if memory.len < len || memory.allocated < len {
        return Err(Error::with(
            Errno::EINVAL,
            "a peer's memory is smaller than the peer claims, or not allocated",
        ));
    }
    if !memory.is_huge {
        return Mapping::new(fd, len, writable);
    }
    // Huge pages are unmapped whole or not at all.
    match len.checked_next_multiple_of(memory.page) {
        Some(whole) if whole <= memory.len => Mapping::new(fd, whole, writable),
        _ => Err(Error::with(Errno::EINVAL, "a peer's memory ends within a huge page")),
    }
}

/// Shared memory in this process, until it is dropped. Not inherited by a forked child.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    born: Born,
}

// SAFETY: only an address and a length. Other processes change the memory at any time, so it is accessed only by
// atomics and raw copies, whichever thread does it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EACCES`.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) };
        let base = base.map_err(failed("mmap"))?;
        // SAFETY: the range was just mapped, and nobody refers to it. A kernel without the advice lets children
        // inherit; they may not use it.
        let _ = unsafe { mm::madvise(base, len, Advice::LinuxDontFork) };
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Errno::ENOMEM))?;
        Ok(Self { base, len, born: Born::here() })
    }

    /// First byte; aligned to a page.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes, which is not 0.
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty range")]
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
            return Err(Error::with(
                Errno::EINVAL,
                format!("NUMA node {node}: a node is a number below 1,024"),
            ));
        };
        *word = 1 << (node % 64);
        let (base, bits) = (self.base.as_ptr(), mask.len() * 64 + 1);
        // SAFETY: the range is this mapping, and the mask has as many bits as said (the kernel takes one off).
        let rc =
            unsafe { libc::syscall(libc::SYS_mbind, base, self.len, MPOL_PREFERRED, mask.as_ptr(), bits, 0) };
        if rc < 0 { Err(os_error("mbind")) } else { Ok(()) }
    }

    /// Requests huge pages; has no effect if the system has none.
    pub fn advise_huge(&self) {
        // SAFETY: the range is this mapping, and the advice does not change what it holds.
        let _ = unsafe { mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// A word of the mapping, to be accessed atomically.
    ///
    /// # Panics
    /// If `offset` is outside the mapping or not aligned. Offsets come from the layout, never from a peer.
    pub fn word<W>(&self, offset: usize) -> *const W {
        let is_inside = offset.checked_add(size_of::<W>()).is_some_and(|end| end <= self.len);
        assert!(is_inside && offset.is_multiple_of(align_of::<W>()));
        self.base.as_ptr().wrapping_add(offset).cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return; // not inherited: the range may be something else by now
        }
        // SAFETY: the range belongs to this mapping, and holders of pointers into it keep the mapping alive.
        let _ = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_is_sealed_in_size_is_taken() {
        let fd = empty_memfd(c"test", 8192).unwrap();
        assert!(sealed_len(&fd).is_err(), "its owner may cut it off");
        assert!(map_foreign(fd.as_fd(), 4096, true).is_err());
        seal(&fd, Writers::Any).unwrap();
        assert_eq!(sealed_len(&fd).unwrap(), 8192);
        assert!(map_foreign(fd.as_fd(), 4096, true).is_err(), "it has no pages yet");
        allocate(&fd, 8192).unwrap();
        assert!(map_foreign(fd.as_fd(), 4096, true).is_ok());
        assert!(map_foreign(fd.as_fd(), 4096, false).is_err(), "anybody may punch holes into it");
        assert!(map_foreign(fd.as_fd(), 8193, true).is_err(), "it is shorter");
    }

    #[test]
    fn what_is_no_memory_is_not_taken() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(map_foreign(file.as_fd(), 4096, true).is_err());
        assert!(sealed_len(&file.into()).is_err());
    }

    #[test]
    #[should_panic(expected = "is_inside")]
    fn a_word_lies_inside() {
        let fd = memfd(c"test", 4096).unwrap();
        let mapping = Mapping::new(fd.as_fd(), 4096, true).unwrap();
        let _ = mapping.word::<u64>(usize::MAX & !7);
    }
}
