//! Memory that the library allocates: a memfd each, so that a peer can be let in by handing it a descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use ofi_api::{LibraryMemory, Placement, Result};
use rustc_hash::FxHashMap;

use crate::sys::{self, Mapping};

/// One allocation.
pub struct Allocated {
    mapping: Mapping,
    len: usize,
    /// Names it to peers that it sends messages from.
    pub key: u64,
    fd: OwnedFd,
}

impl Allocated {
    /// Address of its first byte.
    pub fn base(&self) -> usize {
        self.mapping.base().as_ptr() as usize
    }

    /// Bytes that are mapped: whole pages.
    pub fn mapped(&self) -> usize {
        self.mapping.len()
    }

    /// Bytes that were asked for.
    pub fn asked(&self) -> usize {
        self.len
    }

    /// A descriptor for a peer.
    ///
    /// # Errors
    /// `FI_EMFILE`; without `/proc` there are no read-only ones.
    pub fn descriptor(&self, write: bool) -> Result<OwnedFd> {
        if write { self.fd.try_clone().map_err(|_| sys::os_error("dup")) } else { sys::read_only(&self.fd) }
    }
}

/// The allocations of a domain that live.
#[derive(Default)]
pub struct Allocations {
    by_base: RwLock<BTreeMap<usize, Arc<Allocated>>>,
    by_key: RwLock<FxHashMap<u64, Arc<Allocated>>>,
}

impl Allocations {
    /// The allocation that holds `len` bytes at `addr`.
    pub fn find(&self, addr: usize, len: usize) -> Option<Arc<Allocated>> {
        let by_base = self.by_base.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = by_base.range(..=addr).next_back()?;
        (addr - found.base() <= found.mapped() && len <= found.mapped() - (addr - found.base()))
            .then(|| Arc::clone(found))
    }

    /// The allocation that peers name by `key`.
    pub fn keyed(&self, key: u64) -> Option<Arc<Allocated>> {
        self.by_key.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn remove(&self, allocated: &Allocated) {
        self.by_base.write().unwrap_or_else(PoisonError::into_inner).remove(&allocated.base());
        self.by_key.write().unwrap_or_else(PoisonError::into_inner).remove(&allocated.key);
    }
}

/// The application's handle to an allocation.
struct Handle {
    allocated: Arc<Allocated>,
    domain: Arc<crate::ShmDomain>,
}

/// Memory in reserved huge pages, if they are wanted and enough are free. The kernel takes them from the node that first
/// touches them, and they are touched here: not for a placement on a node.
fn huge_pages(size: usize, placement: Placement) -> Option<(OwnedFd, Mapping)> {
    if !placement.huge || placement.node.is_some() {
        return None;
    }
    let fd = sys::huge_memfd(c"ofi-shm memory", size).ok()?;
    let mapping = Mapping::new(fd.as_fd(), size, true).ok()?;
    Some((fd, mapping))
}

/// Memory in pages as the kernel gives them.
fn pages_of(size: usize, placement: Placement) -> Result<(OwnedFd, Mapping)> {
    let fd = sys::empty_memfd(c"ofi-shm memory", size)?;
    let mapping = Mapping::new(fd.as_fd(), size, true)?;
    if let Some(node) = placement.node {
        mapping.prefer_node(node)?;
    }
    if placement.huge {
        mapping.advise_huge();
    }
    sys::allocate(&fd, size)?;
    Ok((fd, mapping))
}

/// Allocates `len` bytes.
///
/// # Errors
/// `FI_ENOMEM`, `FI_EMFILE`.
pub fn alloc(
    domain: &Arc<crate::ShmDomain>,
    len: usize,
    placement: Placement,
) -> Result<Arc<dyn LibraryMemory>> {
    let pages = len.checked_next_multiple_of(if placement.huge { sys::HUGE_PAGE } else { 4096 });
    let size = pages.ok_or_else(|| ofi_api::Error::new(ofi_api::Errno::ENOMEM))?;
    let (fd, mapping) = match huge_pages(size, placement) {
        Some(memory) => memory,
        None => pages_of(size, placement)?,
    };
    sys::seal(&fd, false)?;
    let allocated = Arc::new(Allocated { mapping, len, key: sys::random().max(1), fd });
    let live = &domain.allocations;
    live.by_base
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(allocated.base(), Arc::clone(&allocated));
    live.by_key.write().unwrap_or_else(PoisonError::into_inner).insert(allocated.key, Arc::clone(&allocated));
    Ok(Arc::new(Handle { allocated, domain: Arc::clone(domain) }))
}

impl LibraryMemory for Handle {
    fn as_ptr(&self) -> *mut u8 {
        self.allocated.mapping.base().as_ptr()
    }

    fn len(&self) -> usize {
        self.allocated.len
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.domain.allocations.remove(&self.allocated);
    }
}
