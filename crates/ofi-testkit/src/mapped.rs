//! Registrations of memory behind a descriptor. The device maps it, wherever its owner addresses it.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use ofi::raw::{Errno, Error, Result};

/// A mapping of the device's own.
pub struct Mapped {
    base: NonNull<u8>,
    len: usize,
    /// The first registered byte, in the mapping and in accesses.
    start: usize,
    iova: u64,
}

// SAFETY: the mapping is used by raw pointers, under the device's lock.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps `len` bytes from `offset` on.
    ///
    /// # Errors
    /// `FI_EINVAL` for a descriptor without memory of this length.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize, iova: u64) -> Result<Self> {
        let start = (offset % 4096) as usize;
        let refused = || Error::with(Errno::EINVAL, "no memory of this length behind the descriptor");
        // SAFETY: a place for the description of a file.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let found = unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) };
        let end = offset.checked_add(len as u64);
        if found != 0 || end.is_none_or(|end| end > stat.st_size as u64) {
            return Err(refused());
        }
        let (rights, whole) = (libc::PROT_READ | libc::PROT_WRITE, start + len);
        let from = (offset - start as u64) as libc::off_t;
        // SAFETY: a new mapping, at any address.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), whole, rights, libc::MAP_SHARED, fd.as_raw_fd(), from) };
        let base = NonNull::new(base.cast()).filter(|_| base != libc::MAP_FAILED).ok_or_else(refused)?;
        Ok(Self { base, len: whole, start, iova })
    }

    /// The place that accesses name by this address. The caller has checked that it lies inside.
    pub fn at(&self, addr: u64) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.start + (addr - self.iova) as usize)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: of `new`, and not used any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
