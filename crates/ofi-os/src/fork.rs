//! Objects after fork(2): in a child, calls on them return `FI_EINVAL`, and closing them does nothing.
//!
//! This needs no hooks. One page is marked `MADV_WIPEONFORK`: a child finds zero where the parent had its generation,
//! and the first object that it opens stores the next generation there. An object remembers the generation in which it
//! was opened; the comparison costs two loads.
//!
//! A child cannot use inherited objects: rings and windows are not mapped in it (`MADV_DONTFORK`), threads do not
//! exist, locks may be held by threads that do not exist, and descriptors are shared with its parent. Objects that it
//! opens itself work normally.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ofi_api::{Errno, Error, Result};

/// The generation of this process, 0 in a child that has opened nothing yet.
fn page() -> &'static AtomicU64 {
    static PAGE: OnceLock<&'static AtomicU64> = OnceLock::new();
    PAGE.get_or_init(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_LEN, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Box::leak(Box::new(AtomicU64::new(0))); // then children cannot be detected
        }
        // SAFETY: the range was just mapped. A kernel without this advice (before 4.14) does not distinguish children.
        unsafe { libc::madvise(base, PAGE_LEN, libc::MADV_WIPEONFORK) };
        // SAFETY: aligned, zeroed, never unmapped, and accessed atomically only.
        unsafe { &*base.cast::<AtomicU64>() }
    })
}

/// Enough for a page of any kernel, of which one word is used.
const PAGE_LEN: usize = 64 << 10;

/// The process that an object was opened in.
#[derive(Clone, Copy, Debug)]
pub struct Born {
    page: &'static AtomicU64,
    generation: u64,
}

impl Born {
    /// Here and now.
    pub fn here() -> Self {
        /// The last generation of this process and its ancestors.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let page = page();
        let mut generation = page.load(Ordering::Acquire);
        if generation == 0 {
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // If two threads open the first object at the same time, one of them chooses.
            let won = page.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire);
            generation = won.map_or_else(|theirs| theirs, |_| next);
        }
        Self { page, generation }
    }

    /// Whether this is still the same process.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.page.load(Ordering::Relaxed) == self.generation
    }

    /// Permits calls of that process only.
    ///
    /// # Errors
    /// `FI_EINVAL` in a child of it.
    #[inline(always)]
    pub fn check(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(elsewhere()) }
    }
}

impl Default for Born {
    /// Here and now.
    fn default() -> Self {
        Self::here()
    }
}

#[cold]
fn elsewhere() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "a call after fork",
        "an object that this process opened",
        "one of its parent",
        "open fabric, domain and endpoints anew in the child; old ones can only be closed",
    )
}
