//! Memory that the library allocates.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ofi_api::{Allocation, Placement, Result};
use ofi_core::copy;

use crate::buffer::{Buffer, BufferMut, RawBuffer};
use crate::opened::OpenedDomain;

struct Parts {
    allocation: Allocation,
    opened: Arc<OpenedDomain>,
    placement: Placement,
}

/// Memory from [`Domain::alloc`](crate::Domain::alloc): accessible as bytes, usable as a buffer of operations, and the
/// best memory for a [`Window`](crate::Window).
pub struct Memory(Box<Parts>);

impl Memory {
    pub(crate) fn new(opened: &Arc<OpenedDomain>, len: usize, placement: Placement) -> Result<Self> {
        let allocation = opened.raw.alloc(len, placement)?;
        Ok(Self(Box::new(Parts { allocation, opened: Arc::clone(opened), placement })))
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let allocation = &self.0.allocation;
        // SAFETY: mapped while `self` lives, and initialised: zeroed at first. Nothing else writes it: peers get write
        // access only to windows, and a window's memory comes back as a copy (`from_raw_written`).
        unsafe { std::slice::from_raw_parts(allocation.as_ptr(), allocation.len()) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let allocation = &self.0.allocation;
        // SAFETY: as above, and `&mut self` gives exclusive access.
        unsafe { std::slice::from_raw_parts_mut(allocation.as_ptr(), allocation.len()) }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the mapping does not move while its handle exists, and the raw form keeps the handle.
unsafe impl Buffer for Memory {
    fn into_raw(self) -> RawBuffer {
        let (addr, len) = (self.0.allocation.as_ptr(), self.0.allocation.len());
        RawBuffer::new(addr, len, Box::into_raw(self.0).cast())
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: from `Box::into_raw`, and reassembled only once (the caller's promise).
        Self(unsafe { Box::from_raw(raw.owner().cast()) })
    }

    /// Peers had the memory mapped for writing, and a peer that violates the protocol may keep the mapping. The result
    /// is therefore a copy in memory that no peer has seen.
    unsafe fn from_raw_written(raw: RawBuffer) -> Result<Self> {
        // SAFETY: the caller's promise.
        let old = unsafe { Self::from_raw(raw) };
        let Parts { allocation, opened, placement } = &*old.0;
        let fresh = Self::new(opened, allocation.len(), *placement)?;
        // SAFETY: both allocations have this length, and they do not overlap.
        unsafe { copy::bytes(allocation.as_ptr(), fresh.0.allocation.as_ptr(), allocation.len()) };
        Ok(fresh)
    }
}
// SAFETY: the handle is the only one.
unsafe impl BufferMut for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.0.allocation.len())
    }
}
