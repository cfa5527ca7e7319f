//! Buffers' memory under a registration.

use std::marker::PhantomData;
use std::sync::Arc;

use ofi_api::{Errno, Error, MrAccess, MrAttr, Piece, Result};

use crate::buffer::{Buffer, RawBuffer};
use crate::opened::OpenedDomain;
use crate::request::PostError;

/// A buffer's memory under a registration. The memory is freed only once the registration is known to be closed, and
/// otherwise leaked.
pub struct Region<B: Buffer> {
    /// Taken when the region ends.
    raw: Option<RawBuffer>,
    pub mr: Arc<dyn ofi_api::MemoryRegion>,
    _buffer: PhantomData<B>,
}

impl<B: Buffer> Region<B> {
    /// Registers `buffer`.
    pub fn new(opened: &OpenedDomain, buffer: B, access: MrAccess) -> Result<Self, PostError<B>> {
        let raw = buffer.into_raw();
        let pieces = [Piece::new(raw.addr, raw.len)];
        // SAFETY: the memory stays mapped until `end`, and no reference to it exists while peers have rights to it.
        let attr = unsafe { MrAttr::new(&pieces, access) };
        match opened.raw.register(&attr) {
            Ok(mr) => Ok(Self { raw: Some(raw), mr, _buffer: PhantomData }),
            // SAFETY: taken apart above, and not registered.
            Err(error) => Err(PostError { error, buffer: unsafe { B::from_raw(raw) } }),
        }
    }

    /// The memory's address and length in bytes.
    pub fn memory(&self) -> (*mut u8, usize) {
        self.raw.as_ref().map_or((std::ptr::null_mut(), 0), |raw| (raw.addr, raw.len))
    }

    /// Closes the registration and returns the memory.
    ///
    /// # Errors
    /// `FI_EBUSY` if the memory may still be in use; it is then leaked.
    pub fn end(mut self) -> Result<RawBuffer> {
        let raw = self.raw.take();
        self.mr.close()?;
        raw.ok_or_else(|| Error::new(Errno::EOPBADSTATE))
    }
}

impl<B: Buffer> Drop for Region<B> {
    fn drop(&mut self) {
        let Some(raw) = self.raw.take() else { return };
        match self.mr.close() {
            // SAFETY: made by `into_raw` in `new`; the registration is closed, so nothing uses the memory any more.
            Ok(()) => drop(unsafe { B::from_raw(raw) }),
            Err(error) => {
                tracing::warn!(target: "ofi::core::mr", %error, len = raw.len, "memory of a registration is leaked")
            }
        }
    }
}
