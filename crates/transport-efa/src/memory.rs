//! Memory of the library: of packets, and what applications ask for. Nobody but this process touches it.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use ofi_api::{Errno, Error, LibraryMemory, Result};

/// Whole pages, zeroed at first, which are touched by raw pointers alone.
pub struct Pages {
    base: NonNull<u8>,
    layout: Layout,
    len: usize,
}

// SAFETY: a range of memory, which belongs to whoever holds this, and no thread.
unsafe impl Send for Pages {}
// SAFETY: only its place and length are shared; who uses the memory answers for that.
unsafe impl Sync for Pages {}

const PAGE: usize = 4096;

impl Pages {
    /// At least `len` bytes.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(len: usize) -> Result<Self> {
        let whole = len.max(1).checked_next_multiple_of(PAGE);
        let layout = whole.and_then(|whole| Layout::from_size_align(whole, PAGE).ok());
        let layout = layout.ok_or_else(|| Error::new(Errno::ENOMEM))?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) });
        Ok(Self { base: base.ok_or_else(|| Error::new(Errno::ENOMEM))?, layout, len })
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and nobody uses it any more.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
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

/// Allocates `len` bytes for an application.
///
/// # Errors
/// `FI_ENOMEM`.
pub fn alloc(len: usize) -> Result<Arc<dyn LibraryMemory>> {
    Ok(Arc::new(Pages::new(len)?))
}
