//! One buffer for many messages (`FI_MULTI_RECV`).
//!
//! The buffer is reference-counted: the posted operation holds it, and so does every range that a completion returned.
//! Ranges do not overlap, and a range is created only once its message has arrived. So a range may be read while the
//! rest of the buffer is still being filled, and after the node is closed.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::any_buffer::AnyBuffer;
use crate::buffer::BufferMut;

struct SharedBuffer(AnyBuffer);

// SAFETY: through a shared reference, only the address is read, and bytes of ranges that are no longer written. Only
// the owner of the last reference takes the buffer out or drops it.
unsafe impl Sync for SharedBuffer {}

/// A buffer for [`Node::recv_multi`](crate::Node::recv_multi). It comes back in the completion that is
/// [`released`](crate::Completion::released).
pub struct MultiRecvBuffer(Arc<SharedBuffer>);

impl MultiRecvBuffer {
    /// Wraps `buffer`.
    pub fn new<B: BufferMut>(buffer: B) -> Self {
        Self(Arc::new(SharedBuffer(AnyBuffer::from(buffer))))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.0.len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no range of it exists, so that it may be posted again. A buffer of a
    /// [`SharedReceive`](crate::SharedReceive) is also in use while any of its nodes has unread messages in it.
    pub fn is_unused(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// Returns the wrapped buffer.
    ///
    /// # Errors
    /// Returns the value itself while ranges of it exist, or if the buffer is of another type.
    pub fn into_inner<B: BufferMut>(self) -> Result<B, Self> {
        let shared = Arc::try_unwrap(self.0).map_err(Self)?;
        shared.0.downcast().map_err(|any| Self(Arc::new(SharedBuffer(any))))
    }

    /// Another handle to the buffer. While two handles exist, the buffer is in use.
    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(crate) fn buffer(&self) -> &AnyBuffer {
        &self.0.0
    }

    /// The range that a completion reports, if it lies inside the buffer. The transport no longer writes it.
    pub(crate) fn part(&self, addr: usize, len: usize) -> Option<MultiRecvRange> {
        let start = addr.checked_sub(self.0.0.raw().addr() as usize)?;
        let end = start.checked_add(len)?;
        (end <= self.len()).then(|| MultiRecvRange { shared: Arc::clone(&self.0), range: start..end })
    }
}

impl fmt::Debug for MultiRecvBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MultiRecvBuffer({} bytes)", self.len())
    }
}

/// The bytes of a message in a [`MultiRecvBuffer`]. Keeps the buffer alive.
#[derive(Clone)]
pub struct MultiRecvRange {
    shared: Arc<SharedBuffer>,
    range: Range<usize>,
}

impl MultiRecvRange {
    /// The message's range in the buffer.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for MultiRecvRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.range.is_empty() {
            return &[];
        }
        let start = self.shared.0.raw().addr().wrapping_add(self.range.start);
        // SAFETY: inside the buffer, which `shared` keeps; initialised, as `Buffer` promises; and no longer written:
        // the message is complete, and the transport writes only other ranges.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl AsRef<[u8]> for MultiRecvRange {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for MultiRecvRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MultiRecvRange({:?} of {} bytes)", self.range, self.shared.0.len())
    }
}
