//! The bytes of an operation that are sent after the call that posted it returns.

use ofi_api::{OpFlags, Piece};

use crate::copy::{self, Stores};

/// Bytes that are sent later: application memory that is lent until the operation ends, or a copy of injected bytes.
pub struct Payload(Bytes);

enum Bytes {
    Lent(Box<[Piece]>),
    Owned(Box<[u8]>),
}

impl Payload {
    /// Borrows or copies `len` bytes, as `flags` allow.
    ///
    /// # Safety
    /// The pieces are lent for reading: during this call with `FI_INJECT`, otherwise until the value is dropped. The
    /// core keeps this promise for posted operations: the application may not touch its memory before the operation has
    /// ended, and the value is dropped with the operation.
    pub unsafe fn new(pieces: &[Piece], len: usize, flags: OpFlags) -> Self {
        if flags.contains(OpFlags::INJECT) {
            // SAFETY: the caller's promise.
            Self::owned(unsafe { copy::copied(pieces, len) })
        } else {
            // SAFETY: the caller's promise.
            unsafe { Self::lent(pieces.into()) }
        }
    }

    /// Borrows.
    ///
    /// # Safety
    /// The pieces are lent for reading until the value is dropped.
    pub const unsafe fn lent(pieces: Box<[Piece]>) -> Self {
        Self(Bytes::Lent(pieces))
    }

    /// Bytes of the operation's own.
    pub const fn owned(bytes: Box<[u8]>) -> Self {
        Self(Bytes::Owned(bytes))
    }

    /// The operation's own bytes, or the payload if they are lent.
    ///
    /// # Errors
    /// The payload, whose bytes are lent.
    pub fn into_owned(self) -> std::result::Result<Box<[u8]>, Self> {
        match self.0 {
            Bytes::Owned(bytes) => Ok(bytes),
            Bytes::Lent(_) => Err(self),
        }
    }

    /// Copies borrowed bytes: the application's memory is no longer needed.
    pub fn keep(&mut self) {
        if let Bytes::Lent(pieces) = &self.0 {
            let len = pieces.iter().map(|piece| piece.len).sum();
            // SAFETY: lent until the value is dropped, as whoever made it promised.
            self.0 = Bytes::Owned(unsafe { copy::copied(pieces, len) });
        }
    }

    /// Their length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Bytes::Lent(pieces) => pieces.iter().map(|piece| piece.len).sum(),
            Bytes::Owned(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their location: lent pieces, or the operation's own bytes.
    ///
    /// # Errors
    /// The bytes.
    pub fn pieces(&self) -> Result<&[Piece], &[u8]> {
        match &self.0 {
            Bytes::Lent(pieces) => Ok(pieces),
            Bytes::Owned(bytes) => Err(bytes),
        }
    }

    /// As [`pieces`](Self::pieces), without the payload.
    ///
    /// # Errors
    /// The bytes.
    pub fn into_pieces(self) -> Result<Box<[Piece]>, Box<[u8]>> {
        match self.0 {
            Bytes::Lent(pieces) => Ok(pieces),
            Bytes::Owned(bytes) => Err(bytes),
        }
    }

    /// Copies bytes from byte `skip` on to `to`. Returns how many there were.
    pub fn gather(&self, skip: usize, to: &mut [u8]) -> usize {
        // SAFETY: `to` is as long as it says.
        unsafe { self.gather_raw(skip, to.as_mut_ptr(), to.len()) }
    }

    /// As [`gather`](Self::gather), to memory that others may be reading.
    ///
    /// # Safety
    /// `to` may be written for `len` bytes.
    pub unsafe fn gather_raw(&self, skip: usize, to: *mut u8, len: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.gather_by(Stores::Cached, skip, to, len) }
    }

    /// As [`gather_raw`](Self::gather_raw), by these stores.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn gather_by(&self, stores: Stores, skip: usize, to: *mut u8, len: usize) -> usize {
        match &self.0 {
            // SAFETY: lent until the value is dropped, as whoever made it promised; `to` is the caller's promise.
            Bytes::Lent(pieces) => unsafe { copy::gather_by(stores, pieces, skip, to, len) },
            Bytes::Owned(bytes) => {
                let part = bytes.get(skip..).unwrap_or_default();
                let len = len.min(part.len());
                // SAFETY: `part` has `len` bytes, and `to` is the caller's promise.
                unsafe { stores.copy(part.as_ptr(), to, len) };
                len
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_and_what_is_injected_have_the_same_bytes() {
        let (mut first, mut second) = ([1u8, 2, 3], [4u8, 5]);
        let pieces = [&mut first[..], &mut second[..]].map(|part| Piece::new(part.as_mut_ptr(), part.len()));
        for flags in [OpFlags::empty(), OpFlags::INJECT] {
            // SAFETY: both arrays outlive the payload.
            let payload = unsafe { Payload::new(&pieces, 5, flags) };
            assert_eq!((payload.len(), payload.pieces().is_err()), (5, flags == OpFlags::INJECT));
            let mut to = [9u8; 4];
            assert_eq!((payload.gather(2, &mut to), to), (3, [3, 4, 5, 9]));
            assert_eq!(payload.gather(5, &mut to), 0);
            assert_eq!(payload.gather(6, &mut to), 0);
        }
    }

    #[test]
    fn what_is_kept_does_not_change_with_what_was_lent() {
        let mut memory = [1u8, 2, 3];
        let piece = Piece::new(memory.as_mut_ptr(), memory.len());
        // SAFETY: the array outlives what is lent of it.
        let mut payload = unsafe { Payload::lent([piece].into()) };
        payload.keep();
        // SAFETY: the array is there, and nobody else uses it.
        unsafe { piece.addr.write(9) };
        assert_eq!(payload.pieces().err(), Some(&[1u8, 2, 3][..]));
    }
}
