//! Whether code runs in the process that made a value, or in a forked child of it.
//!
//! A process identifier does not tell: a child in a new namespace may have its parent's. The kernel clears a page with
//! `MADV_WIPEONFORK` in children, and a look at it takes no system call.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use super::page_size;

/// The process that made this.
pub struct ThisProcess {
    mark: NonNull<AtomicU32>,
    len: usize,
}

// SAFETY: the mark stays mapped as long as this exists, and is accessed atomically.
unsafe impl Send for ThisProcess {}
// SAFETY: as above.
unsafe impl Sync for ThisProcess {}

impl ThisProcess {
    pub fn new() -> io::Result<Self> {
        let len = page_size();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        let mark = NonNull::new(base.cast::<AtomicU32>()).filter(|_| base != libc::MAP_FAILED);
        let made = Self { mark: mark.ok_or_else(io::Error::last_os_error)?, len };
        // SAFETY: the page was just mapped, and nothing else is in it.
        if unsafe { libc::madvise(base, len, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        made.mark().store(1, Ordering::Relaxed);
        Ok(made)
    }

    fn mark(&self) -> &AtomicU32 {
        // SAFETY: aligned, zeroed by the kernel, and mapped until this is dropped.
        unsafe { self.mark.as_ref() }
    }

    /// `false` in a forked child.
    pub fn is_here(&self) -> bool {
        self.mark().load(Ordering::Relaxed) != 0
    }
}

impl Drop for ThisProcess {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no reference to it is left.
        unsafe { libc::munmap(self.mark.as_ptr().cast(), self.len) };
    }
}
