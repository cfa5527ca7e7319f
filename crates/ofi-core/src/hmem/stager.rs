//! Copies between the host and a device, through pinned memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::Result;

use super::cuda::{Cuda, PinnedMemory};
use crate::copy;

/// The shortest pinned buffer, in bytes. All lengths are powers of two.
const SHORTEST: usize = 64 << 10;
/// The longest pinned buffer, and the number of bytes that idle ones of a device may have together. Longer buffers are
/// ordinary memory, which the driver copies through its own.
const IDLE: usize = 64 << 20;
/// Bytes of one copy in [`Stager::read`] and [`Stager::write`].
const CHUNK: usize = 1 << 20;

/// A device, and idle pinned memory for copies to and from it.
pub struct Stager {
    cuda: Cuda,
    idle: Mutex<Vec<PinnedMemory>>,
}

impl fmt::Debug for Stager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stager({:?})", self.cuda)
    }
}

impl Stager {
    /// A stager without memory yet.
    pub fn new(cuda: Cuda) -> Self {
        Self { cuda, idle: Mutex::default() }
    }

    /// The device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// A buffer of `len` bytes, with any content: pinned if possible.
    pub fn buffer(self: &Arc<Self>, len: usize) -> StagingBuffer {
        let memory = self.pinned(len).map_or_else(|| Memory::heap(len), Memory::Pinned);
        StagingBuffer { memory, len, home: Arc::clone(self), is_lost: false }
    }

    fn pinned(&self, len: usize) -> Option<PinnedMemory> {
        if len == 0 || len > IDLE {
            return None;
        }
        let len = len.next_power_of_two().max(SHORTEST);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|memory| memory.len() == len) {
            return Some(idle.swap_remove(at));
        }
        drop(idle);
        let pinned = self.cuda.pinned(len);
        pinned
            .inspect_err(|error| tracing::debug!(target: "ofi::core::hmem", %error, len, "no pinned memory"))
            .ok()
    }

    fn give_back(&self, memory: PinnedMemory) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let held: usize = idle.iter().map(PinnedMemory::len).sum();
        if held + memory.len() <= IDLE {
            idle.push(memory);
        }
    }

    /// Copies `len` bytes to device memory at `to`, and waits.
    ///
    /// # Errors
    /// The driver's, of which a part may have been written.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes (others may be changing them), and the device's range is registered.
    pub unsafe fn write(self: &Arc<Self>, to: u64, from: *const u8, len: usize) -> Result<()> {
        let mut buffer = self.buffer(len.min(CHUNK));
        for done in (0..len).step_by(CHUNK) {
            let part = CHUNK.min(len - done);
            // SAFETY: the caller's promise, and the buffer is as long as the longest part.
            unsafe { copy::bytes(from.wrapping_add(done), buffer.as_ptr(), part) };
            // SAFETY: the caller's promise.
            unsafe { buffer.copy_out(0, to + done as u64, part)? };
        }
        Ok(())
    }

    /// Copies `len` bytes of device memory at `from`, and waits.
    ///
    /// # Errors
    /// The driver's, of which a part may have been copied.
    ///
    /// # Safety
    /// `to` may be written for `len` bytes, and the device's range is registered.
    pub unsafe fn read(self: &Arc<Self>, from: u64, to: *mut u8, len: usize) -> Result<()> {
        let mut buffer = self.buffer(len.min(CHUNK));
        for done in (0..len).step_by(CHUNK) {
            let part = CHUNK.min(len - done);
            // SAFETY: the caller's promise.
            unsafe { buffer.copy_in(0, from + done as u64, part)? };
            // SAFETY: the caller's promise, and the buffer is as long as the longest part.
            unsafe { copy::bytes(buffer.as_ptr(), to.wrapping_add(done), part) };
        }
        Ok(())
    }
}

/// The memory of a buffer.
enum Memory {
    Pinned(PinnedMemory),
    /// A box taken apart, since transports have pointers into it.
    Heap(*mut [u8]),
    None,
}

impl Memory {
    fn heap(len: usize) -> Self {
        Self::Heap(Box::into_raw(vec![0_u8; len].into_boxed_slice()))
    }
}

/// Host memory in place of a device's.
pub struct StagingBuffer {
    memory: Memory,
    len: usize,
    home: Arc<Stager>,
    /// A copy has failed or not ended: the memory is never freed.
    is_lost: bool,
}

// SAFETY: the memory belongs to the value, which hands out pointers only; who follows one has it lent.
unsafe impl Send for StagingBuffer {}
// SAFETY: as above.
unsafe impl Sync for StagingBuffer {}

impl StagingBuffer {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.memory {
            Memory::Pinned(memory) => memory.as_ptr(),
            Memory::Heap(memory) => memory.cast(),
            Memory::None => std::ptr::null_mut(),
        }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nothing depends on it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies `len` bytes of device memory at `from` to byte `at` of the buffer, and waits.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The device's range is registered, or lent to the caller, and nobody else uses that part of the buffer.
    pub unsafe fn copy_in(&mut self, at: usize, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(at, len, |here| (here, from)) }
    }

    /// Copies `len` bytes from byte `at` of the buffer to device memory at `to`, and waits.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As [`StagingBuffer::copy_in`].
    pub unsafe fn copy_out(&mut self, at: usize, to: u64, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(at, len, |here| (to, here)) }
    }

    /// # Safety
    /// As [`StagingBuffer::copy_in`]; `ways` returns destination and source.
    unsafe fn copy(&mut self, at: usize, len: usize, ways: impl FnOnce(u64) -> (u64, u64)) -> Result<()> {
        assert!(at <= self.len && len <= self.len - at, "a copy stays inside its buffer");
        if len == 0 {
            return Ok(());
        }
        let (to, from) = ways(self.as_ptr().wrapping_add(at).expose_provenance() as u64);
        // SAFETY: the device's range by the caller's promise; the buffer's by the assertion, and it stays: below it is
        // given up if the copy does not end.
        let pending = unsafe { self.home.cuda.copy(to, from, len as u64) }?;
        let waited = pending.wait();
        self.is_lost |= waited.is_err();
        waited
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::None);
        if self.is_lost {
            std::mem::forget(memory);
            return;
        }
        match memory {
            Memory::Pinned(memory) => self.home.give_back(memory),
            // SAFETY: made of a box, and freed once.
            Memory::Heap(memory) => drop(unsafe { Box::from_raw(memory) }),
            Memory::None => {}
        }
    }
}
