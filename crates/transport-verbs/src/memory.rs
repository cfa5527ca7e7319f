//! Memory that the library allocates: private pages. Nobody but this process touches them.

use std::sync::Arc;

use ofi_api::{LibraryMemory, Placement, Result};

use crate::sys::Pages;

struct Handle {
    pages: Pages,
    len: usize,
}

/// Allocates `len` bytes, zeroed.
///
/// # Errors
/// `FI_ENOMEM`.
pub fn alloc(len: usize, placement: Placement) -> Result<Arc<dyn LibraryMemory>> {
    Ok(Arc::new(Handle { pages: Pages::new(len, placement.huge)?, len }))
}

impl LibraryMemory for Handle {
    fn as_ptr(&self) -> *mut u8 {
        self.pages.base()
    }

    fn len(&self) -> usize {
        self.len
    }
}
