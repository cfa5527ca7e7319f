//! Buffers that are registered for local operations.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ofi_api::{MrAccess, Result};

use crate::buffer::{Buffer, BufferMut, RawBuffer};
use crate::opened::OpenedDomain;
use crate::region::Region;
use crate::request::PostError;

struct Parts<B: Buffer> {
    region: Region<B>,
    opened: Arc<OpenedDomain>,
}

/// A buffer that stays registered across operations; between them, its bytes are accessible. Peers have no access to
/// it; use a [`Window`](crate::Window) for that.
///
/// It belongs to its domain: nodes of another domain refuse it with `FI_EDOMAIN`.
pub struct Registered<B: Buffer>(Box<Parts<B>>);

impl<B: Buffer> Registered<B> {
    pub(crate) fn new(opened: &Arc<OpenedDomain>, buffer: B) -> Result<Self, PostError<B>> {
        let access = MrAccess::SEND | MrAccess::RECV | MrAccess::READ | MrAccess::WRITE;
        let region = Region::new(opened, buffer, access)?;
        Ok(Self(Box::new(Parts { region, opened: Arc::clone(opened) })))
    }

    /// Closes the registration.
    ///
    /// # Errors
    /// The error of closing the registration; the memory is leaked then.
    pub fn into_inner(self) -> Result<B> {
        let raw = self.0.region.end()?;
        // SAFETY: made by `into_raw` in `Region::new`; the registration is closed, and no operation has it.
        Ok(unsafe { B::from_raw(raw) })
    }
}

impl<B: Buffer> Deref for Registered<B> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (addr, len) = self.0.region.memory();
        if len == 0 {
            return &[];
        }
        // SAFETY: the memory of a buffer, which is readable and initialised; the registration has no remote rights, and
        // no operation has the memory while `self` exists.
        unsafe { std::slice::from_raw_parts(addr, len) }
    }
}

impl<B: BufferMut> DerefMut for Registered<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (addr, len) = self.0.region.memory();
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as above; a `BufferMut` is writable, and `&mut self` gives exclusive access.
        unsafe { std::slice::from_raw_parts_mut(addr, len) }
    }
}

impl<B: Buffer> AsRef<[u8]> for Registered<B> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the inner buffer is always in its raw form, which the region keeps.
unsafe impl<B: Buffer> Buffer for Registered<B> {
    fn into_raw(self) -> RawBuffer {
        let (addr, len) = self.0.region.memory();
        let (desc, domain) = (self.0.region.mr.desc(), self.0.opened.id);
        RawBuffer::new(addr, len, Box::into_raw(self.0).cast()).registered(desc, domain)
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: from `Box::into_raw`, and reassembled only once (the caller's promise).
        Self(unsafe { Box::from_raw(raw.owner().cast()) })
    }

    /// Memory that peers could write is replaced as the inner buffer requires, and registered again.
    unsafe fn from_raw_written(raw: RawBuffer) -> Result<Self> {
        // SAFETY: the caller's promise.
        let Self(parts) = unsafe { Self::from_raw(raw) };
        let Parts { region, opened } = *parts;
        let inner = region.end()?;
        // SAFETY: made by `into_raw` in `Region::new`, and the registration is closed.
        let buffer = unsafe { B::from_raw_written(inner) }?;
        Ok(Self::new(&opened, buffer)?)
    }
}
// SAFETY: the region has the buffer alone.
unsafe impl<B: BufferMut> BufferMut for Registered<B> {}

impl<B: Buffer> fmt::Debug for Registered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({} bytes)", self.len())
    }
}
