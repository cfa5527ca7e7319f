//! Memory that the library allocates: private pages, which only this process uses.

use std::sync::Arc;

use ofi_api::{LibraryMemory, Placement, Result};

use ibv::cache::{Cache, RangeId};
use ofi_core::fork::Born;
use ofi_core::pages::Pages;

use crate::rc::Region;

struct MemoryHandle {
    pages: Pages,
    cache: Arc<Cache<Box<dyn Region>>>,
    range: RangeId,
    born: Born,
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        if self.born.is_here() {
            self.cache.remove(self.range);
        } else {
            std::mem::forget(Arc::clone(&self.cache)); // the registrations belong to the parent
        }
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
    Ok(Arc::new(MemoryHandle { pages, cache: Arc::clone(cache), range, born: Born::here() }))
}

impl LibraryMemory for MemoryHandle {
    fn as_ptr(&self) -> *mut u8 {
        self.pages.base()
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}
