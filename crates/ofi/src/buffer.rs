//! Buffers: memory that moves into an operation and comes back with its completion.
//!
//! While an operation is in flight, only the [`RawBuffer`] exists: an address that no `Box` or reference claims to own.
//! A transport, a device or a peer may therefore access the memory without violating Rust's aliasing rules.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use ofi_api::Desc;

/// A buffer in flight: the location of its memory, and the state needed to restore the buffer.
#[derive(Debug)]
pub struct RawBuffer {
    pub(crate) addr: *mut u8,
    pub(crate) len: usize,
    owner: *mut (),
    pub(crate) desc: Desc,
    /// The domain that `desc` belongs to; 0 for none.
    pub(crate) domain: u64,
}

// SAFETY: made from a buffer, which is `Send`, and later turned back into one.
unsafe impl Send for RawBuffer {}

impl RawBuffer {
    /// Describes `len` bytes at `addr`. `owner` is anything else that [`Buffer::from_raw`] needs.
    pub const fn new(addr: *mut u8, len: usize, owner: *mut ()) -> Self {
        Self { addr, len, owner, desc: Desc::NONE, domain: 0 }
    }

    pub(crate) const fn registered(self, desc: Desc, domain: u64) -> Self {
        Self { desc, domain, ..self }
    }

    /// Address of the first byte.
    pub const fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `owner` that was passed to [`RawBuffer::new`].
    pub const fn owner(&self) -> *mut () {
        self.owner
    }
}

/// Memory that an operation may read: the source of a send or a remote write. Programs use the types that implement it:
/// `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, `&'static [u8]`, [`Memory`](crate::Memory), [`Registered`](crate::Registered),
/// and with feature `bytes` `bytes::Bytes` and `BytesMut`.
///
/// # Safety
/// * From `into_raw` on, the memory that the raw buffer describes is initialised and valid for reads, and neither moves
///   nor changes, until `from_raw` gets the same value, possibly on another thread.
/// * While a value of the type exists, only its owner writes the memory.
/// * `from_raw` only restores the value.
/// * Neither function calls a node, or waits for a thread that does: they run under locks of an
///   [`AsyncNode`](crate::AsyncNode).
pub unsafe trait Buffer: Send + Sized + 'static {
    /// Gives up the memory for the duration of an operation.
    fn into_raw(self) -> RawBuffer;

    /// Takes the memory back.
    ///
    /// # Safety
    /// `raw` came from `into_raw` of this type and was not taken back before, and the memory is no longer in use.
    unsafe fn from_raw(raw: RawBuffer) -> Self;

    /// Takes back memory that peers could write until now. Does the same as `from_raw`, unless a peer that violates the
    /// protocol might still write the memory: then it replaces the memory. A buffer that wraps another one forwards
    /// this call to it.
    ///
    /// # Errors
    /// The error of replacing the memory; the buffer is then lost.
    ///
    /// # Safety
    /// As `from_raw`.
    unsafe fn from_raw_written(raw: RawBuffer) -> ofi_api::Result<Self> {
        // SAFETY: the caller's promise.
        Ok(unsafe { Self::from_raw(raw) })
    }
}

/// Memory that an operation may also write: the target of a receive or a remote read.
///
/// # Safety
/// From `into_raw` until `from_raw`, the memory is also valid for writes, and nothing else reads it. Any bytes may be
/// written.
pub unsafe trait BufferMut: Buffer {}

// SAFETY: taking a vector apart does not move its allocation, and its first `len` bytes are initialised.
unsafe impl Buffer for Vec<u8> {
    fn into_raw(self) -> RawBuffer {
        let mut parts = ManuallyDrop::new(self);
        let owner = std::ptr::without_provenance_mut(parts.capacity());
        RawBuffer::new(parts.as_mut_ptr(), parts.len(), owner)
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: the parts of a vector, reassembled only once (the caller's promise).
        unsafe { Self::from_raw_parts(raw.addr, raw.len, raw.owner.addr()) }
    }
}
// SAFETY: the vector owns its bytes alone.
unsafe impl BufferMut for Vec<u8> {}

// SAFETY: as for `Vec`.
unsafe impl Buffer for Box<[u8]> {
    fn into_raw(self) -> RawBuffer {
        let bytes = Self::into_raw(self);
        RawBuffer::new(bytes.cast(), bytes.len(), std::ptr::null_mut())
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: from `Box::into_raw`, and reassembled only once (the caller's promise).
        unsafe { Self::from_raw(std::ptr::slice_from_raw_parts_mut(raw.addr, raw.len)) }
    }
}
// SAFETY: the box owns its bytes alone.
unsafe impl BufferMut for Box<[u8]> {}

// SAFETY: shared bytes cannot be written, and this handle keeps them alive. Useful to send one message to many peers.
unsafe impl Buffer for Arc<[u8]> {
    fn into_raw(self) -> RawBuffer {
        let bytes = Self::into_raw(self);
        RawBuffer::new(bytes.cast_mut().cast(), bytes.len(), std::ptr::null_mut())
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: from `Arc::into_raw`, and reassembled only once (the caller's promise).
        unsafe { Self::from_raw(std::ptr::slice_from_raw_parts(raw.addr, raw.len)) }
    }
}

// SAFETY: static bytes cannot be written and are never freed.
unsafe impl Buffer for &'static [u8] {
    fn into_raw(self) -> RawBuffer {
        RawBuffer::new(self.as_ptr().cast_mut(), self.len(), std::ptr::null_mut())
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        // SAFETY: made from a static slice.
        unsafe { std::slice::from_raw_parts(raw.addr, raw.len) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn there_and_back<B: Buffer + AsRef<[u8]>>(buffer: B) {
        let bytes = buffer.as_ref().to_vec();
        let address = buffer.as_ref().as_ptr();
        let raw = buffer.into_raw();
        assert_eq!(
            (raw.addr().cast_const(), raw.len(), raw.is_empty()),
            (address, bytes.len(), bytes.is_empty())
        );
        // SAFETY: taken apart above.
        let buffer = unsafe { B::from_raw(raw) };
        assert_eq!((buffer.as_ref(), buffer.as_ref().as_ptr()), (&bytes[..], address));
    }

    #[test]
    fn every_buffer_comes_back_as_it_was() {
        for len in [0, 1, 100] {
            let mut vec = Vec::with_capacity(len + 7);
            vec.resize(len, 3);
            there_and_back(vec.clone());
            there_and_back(vec.clone().into_boxed_slice());
            there_and_back(Arc::<[u8]>::from(vec));
        }
        there_and_back(&b"static"[..]);
    }
}
