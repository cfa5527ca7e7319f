//! Memory that the library allocates: private pages, which only this process uses.

use std::sync::Arc;

use ofi_api::{LibraryMemory, Placement, Result};

use ibv::cache::{Cache, RangeId};
use ofi_core::pages::Pages;

use crate::rc::Region;

struct MemoryHandle {
    pages: Pages,
    cache: Arc<Cache<Box<dyn Region>>>,
    range: RangeId,
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        self.cache.remove(self.range);
    }
}

/// Allocates `len` bytes, zeroed.
///
/// # Errors
/// `FI_ENOMEM`.
pub fn alloc(
    cache: &Arc<Cache<Box<dyn Region>>>,
    len: usize,
    placement: Placement,
) -> Result<Arc<dyn LibraryMemory>> {
    let pages = Pages::new(len, placement.huge)?;
    let range = cache.add(pages.base().addr(), len);
    Ok(Arc::new(MemoryHandle { pages, cache: Arc::clone(cache), range }))
}

impl LibraryMemory for MemoryHandle {
    fn as_ptr(&self) -> *mut u8 {
        self.pages.base()
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}
