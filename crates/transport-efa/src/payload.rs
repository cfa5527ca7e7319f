//! Bytes on their way out: lent by the application, or copied.

use ofi_api::{OpFlags, Piece};
use ofi_core::copy;

/// Bytes to be sent later.
pub enum Payload {
    /// In the application's memory, lent until the operation ends.
    Lent(Box<[Piece]>),
    /// A copy: the operation was injected.
    Owned(Box<[u8]>),
}

impl Payload {
    /// Borrows or copies, as `flags` allow.
    pub fn new(pieces: &[Piece], len: usize, flags: OpFlags) -> Self {
        if !flags.contains(OpFlags::INJECT) {
            return Self::Lent(pieces.into());
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the pieces are lent during the call that posts the operation, and the vector has `len` bytes.
        unsafe { copy::gather(pieces, 0, bytes.as_mut_ptr(), len) };
        Self::Owned(bytes.into())
    }

    /// Copies bytes from byte `skip` on to `to`.
    ///
    /// # Safety
    /// `to` may be written for `len` bytes.
    pub unsafe fn gather(&self, skip: usize, to: *mut u8, len: usize) {
        match self {
            // SAFETY: the pieces are lent until the operation ends, and it has not; `to` is the caller's promise.
            Self::Lent(pieces) => unsafe {
                copy::gather(pieces, skip, to, len);
            },
            Self::Owned(bytes) => {
                let part = bytes.get(skip..).unwrap_or_default();
                // SAFETY: both are as long.
                unsafe { copy::bytes(part.as_ptr(), to, len.min(part.len())) };
            }
        }
    }
}
