//! Private pages: memory that the library allocates and only this process accesses.

use std::ptr::NonNull;
use std::sync::Arc;

use ofi_api::{Errno, Error, LibraryMemory, Placement, Result};

use crate::fork::Born;
use crate::sys::os_error;

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed pages of this process, accessed only through raw pointers.
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
    mapped: usize,
    born: Born,
}

// SAFETY: a range of memory that belongs to the holder of this value, not to a thread.
unsafe impl Send for Pages {}
// SAFETY: only the address and the length are shared; users of the memory are responsible for synchronisation.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` bytes, of huge pages if `huge` asks for them and the kernel has some.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(len: usize, huge: bool) -> Result<Self> {
        let unit = if huge { HUGE_PAGE } else { PAGE };
        let mapped = len
            .max(1)
            .checked_next_multiple_of(unit)
            .filter(|&mapped| mapped <= isize::MAX as usize)
            .ok_or_else(|| Error::new(Errno::ENOMEM))?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        if huge {
            // SAFETY: advice on the mapping just made, which does not change what it holds.
            unsafe { libc::madvise(base, mapped, libc::MADV_HUGEPAGE) };
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Errno::ENOMEM))?;
        Ok(Self { base, len, mapped, born: Born::here() })
    }

    /// Keeps the pages out of forked children, which neither use them nor need copies of them. A device that has pinned
    /// them then keeps those of this process on every kernel.
    pub fn keep_from_children(&self) {
        // SAFETY: this value's pages; a child that accesses them ends by a signal.
        unsafe { libc::madvise(self.base().cast(), self.mapped, libc::MADV_DONTFORK) };
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The requested length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no caller tests for emptiness")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return; // a forked child need not have these pages: the range may be one of its own mappings
        }
        // SAFETY: mapped by `new` in this process, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

impl LibraryMemory for Pages {
    fn as_ptr(&self) -> *mut u8 {
        self.base()
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// Allocates `len` bytes for an application (`Transport::alloc`).
///
/// # Errors
/// `FI_ENOMEM`.
pub fn alloc(len: usize, placement: Placement) -> Result<Arc<dyn LibraryMemory>> {
    Ok(Arc::new(Pages::new(len, placement.huge)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child that dropped inherited pages unmapped what it had mapped in their place.
    #[test]
    fn a_child_does_not_unmap_its_own_memory_in_place_of_its_parents_pages() {
        let pages = Pages::new(PAGE, false).unwrap();
        pages.keep_from_children();
        let base = pages.base();
        // SAFETY: the child calls nothing that takes a lock or allocates.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the kernel refuses the address if anything is mapped there.
            let own = unsafe { libc::mmap(base.cast(), PAGE, protection, flags, -1, 0) };
            if own != base.cast() {
                // SAFETY: ends the child.
                unsafe { libc::_exit(2) };
            }
            drop(pages);
            // SAFETY: mapped above.
            unsafe { base.write_volatile(7) };
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: the status is valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "ended by signal {}", libc::WTERMSIG(status));
        // The parent's are mapped as long as it holds them.
        // SAFETY: its own pages.
        unsafe { base.write_volatile(7) };
    }
}
