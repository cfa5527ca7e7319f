//! Mappings of memory behind a descriptor.
//!
//! Any descriptor that can be mapped, such as a file in memory, serves as a dma-buf. A kernel accepts only descriptors
//! of dma-bufs.

use std::os::fd::RawFd;
use std::ptr::{NonNull, null_mut};

use crate::memory::PAGE;

/// A mapping of a dma-buf's memory, in the device's place.
pub struct Mapping {
    base: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: it is only unmapped, once.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` on. Returns the address of the first one, too.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for no bytes, for bytes beyond its end, and for what cannot be mapped.
    pub fn new(fd: RawFd, offset: u64, len: u64, write: bool) -> Result<(Self, u64), i32> {
        let inside = offset % PAGE as u64;
        let whole = len.checked_add(inside).and_then(|len| usize::try_from(len).ok()).ok_or(libc::EINVAL)?;
        let begin = libc::off_t::try_from(offset - inside).map_err(|_| libc::EINVAL)?;
        // SAFETY: all zeros are a valid value of the structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: room for the structure.
        if unsafe { libc::fstat(fd, &mut stat) } != 0 {
            return Err(libc::EBADF);
        }
        let end = offset.checked_add(len).ok_or(libc::EINVAL)?;
        if whole == 0 || u64::try_from(stat.st_size).is_ok_and(|size| end > size) {
            return Err(libc::EINVAL);
        }
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), whole, protection, libc::MAP_SHARED, fd, begin) };
        match NonNull::new(base) {
            Some(at) if base != libc::MAP_FAILED => {
                Ok((Self { base: at, len: whole }, base.addr() as u64 + inside))
            }
            _ => Err(libc::EINVAL),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped above; requests access the memory by system calls, which report that it is gone.
        unsafe { libc::munmap(self.base.as_ptr(), self.len) };
    }
}
