//! A buffer of any type. Queues return these, because operations with buffers of different types complete in one queue.

use std::any::{TypeId, type_name};
use std::fmt;
use std::mem::ManuallyDrop;

use crate::buffer::{Buffer, RawBuffer};

/// Functions and identity of the buffer's type.
struct BufferType {
    id: TypeId,
    name: fn() -> &'static str,
    drop: unsafe fn(RawBuffer),
}

trait HasKind: Buffer {
    const KIND: BufferType =
        BufferType { id: TypeId::of::<Self>(), name: type_name::<Self>, drop: drop_raw::<Self> };
}

impl<B: Buffer> HasKind for B {}

/// # Safety
/// As `Buffer::from_raw`.
unsafe fn drop_raw<B: Buffer>(raw: RawBuffer) {
    // SAFETY: the caller's promise.
    drop(unsafe { B::from_raw(raw) });
}

/// A [`Buffer`] whose type is known only at run time. Needs no allocation.
///
/// ```
/// let any = ofi::AnyBuffer::from(vec![1, 2, 3]);
/// assert_eq!(any.bytes(), [1, 2, 3]);
/// let any = any.downcast::<Box<[u8]>>().unwrap_err(); // it is none
/// assert_eq!(any.downcast::<Vec<u8>>().unwrap(), [1, 2, 3]);
/// ```
pub struct AnyBuffer {
    raw: ManuallyDrop<RawBuffer>,
    kind: &'static BufferType,
}

impl AnyBuffer {
    /// The buffer's raw form. While the memory is in use, the caller must keep this value from being dropped or
    /// downcast.
    pub(crate) fn raw(&self) -> &RawBuffer {
        &self.raw
    }

    /// The bytes. Must not be called while the buffer is in flight.
    pub fn bytes(&self) -> &[u8] {
        if self.raw.len == 0 {
            return &[]; // it may have any address
        }
        // SAFETY: `Buffer` promises that the memory is initialised and readable. Nothing writes it unless it is in
        // flight.
        unsafe { std::slice::from_raw_parts(self.raw.addr, self.raw.len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.raw.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.raw.len == 0
    }

    /// Whether it is a `B`.
    pub fn is<B: Buffer>(&self) -> bool {
        self.kind.id == TypeId::of::<B>()
    }

    fn take(self) -> RawBuffer {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never used again.
        unsafe { ManuallyDrop::take(&mut this.raw) }
    }

    /// The buffer, if it is a `B`.
    ///
    /// # Errors
    /// Returns the value itself if it is not.
    pub fn downcast<B: Buffer>(self) -> Result<B, Self> {
        if !self.is::<B>() {
            return Err(self);
        }
        // SAFETY: made by `B::into_raw`, and this value, its only holder, ends here. It is not in flight: tables of
        // operations in flight do not give out their buffers.
        Ok(unsafe { B::from_raw(self.take()) })
    }
}

impl<B: Buffer> From<B> for AnyBuffer {
    #[inline]
    fn from(buffer: B) -> Self {
        Self { raw: ManuallyDrop::new(buffer.into_raw()), kind: &B::KIND }
    }
}

impl Drop for AnyBuffer {
    fn drop(&mut self) {
        // SAFETY: the value ends here.
        let raw = unsafe { ManuallyDrop::take(&mut self.raw) };
        // SAFETY: `raw` has the type that `kind` stands for, and is not in flight.
        unsafe { (self.kind.drop)(raw) };
    }
}

impl fmt::Debug for AnyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyBuffer({}, {} bytes)", (self.kind.name)(), self.raw.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn dropping_frees_once_and_a_wrong_type_keeps_it() {
        let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
        let any = AnyBuffer::from(Arc::clone(&shared));
        assert_eq!(Arc::strong_count(&shared), 2);
        let any = any.downcast::<Vec<u8>>().unwrap_err();
        assert_eq!((any.bytes(), any.len(), any.is_empty()), (&b"shared"[..], 6, false));
        assert!(format!("{any:?}").contains("6 bytes"));
        drop(any);
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
