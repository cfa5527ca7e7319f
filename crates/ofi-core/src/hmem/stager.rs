//! Copies between the host and a device, through pinned memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Errno, Result};

use super::cuda::{Cuda, Direction, PinnedMemory};
use crate::copy;

/// The shortest pinned buffer, in bytes. All lengths are powers of two.
const SHORTEST: usize = 64 << 10;
/// The limit on a device's pinned bytes, both lent and idle. Beyond it buffers are ordinary memory, which the driver
/// copies through its own.
const PINNED: usize = 64 << 20;
/// The maximum length of a pinned buffer, so that no single message needs all pinned bytes.
const ONE_PINNED: usize = PINNED / 4;
/// Bytes of one copy in [`Stager::read`] and [`Stager::write`].
const CHUNK: usize = 1 << 20;
/// Buffers of up to [`CHUNK`] bytes that [`Stager::prepare`] makes.
const PREPARED: usize = 4;

/// Pinned memory. It is freed only with the stager: allocating or freeing such memory may make the caller wait for the
/// device's work, which may itself wait for the network.
#[derive(Default)]
struct Pool {
    idle: Vec<PinnedMemory>,
    /// The total number of its bytes, including lent memory.
    made: usize,
}

/// A device, and pinned memory for copies to and from it.
pub struct Stager {
    cuda: Cuda,
    pool: Mutex<Pool>,
}

impl fmt::Debug for Stager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stager({:?})", self.cuda)
    }
}

impl Stager {
    /// A stager without memory yet.
    pub fn new(cuda: Cuda) -> Self {
        Self { cuda, pool: Mutex::default() }
    }

    /// The device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// A buffer of `len` bytes with undefined content, pinned if possible.
    pub fn buffer(self: &Arc<Self>, len: usize) -> StagingBuffer {
        let memory = self.pinned(len).map_or_else(|| Memory::heap(len), Memory::Pinned);
        StagingBuffer { memory, len, home: Arc::clone(self), is_lost: false }
    }

    fn pinned(&self, len: usize) -> Option<PinnedMemory> {
        if len == 0 || len > ONE_PINNED {
            return None;
        }
        let mut pool = self.pool();
        let idle = pool.idle.iter().enumerate().filter(|(_, memory)| memory.len() >= len);
        if let Some((at, _)) = idle.min_by_key(|(_, memory)| memory.len()) {
            return Some(pool.idle.swap_remove(at));
        }
        let len = len.next_power_of_two().max(SHORTEST);
        if pool.made + len > PINNED {
            return None;
        }
        pool.made += len;
        drop(pool);
        let pinned = self.cuda.pinned(len);
        pinned
            .inspect_err(|error| {
                self.pool().made -= len;
                tracing::debug!(target: "ofi::core::hmem", %error, len, "no pinned memory");
            })
            .ok()
    }

    fn give_back(&self, memory: PinnedMemory) {
        self.pool().idle.push(memory);
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates pinned memory in advance, for the first operations on `len` bytes of the device. May wait for the
    /// device's work.
    pub fn prepare(&self, len: usize) {
        let lengths = [len.min(ONE_PINNED)].into_iter().chain([len.min(CHUNK); PREPARED]);
        let prepared: Vec<_> = lengths.filter_map(|len| self.pinned(len)).collect();
        self.pool().idle.extend(prepared);
    }

    /// Copies `len` bytes to device memory at `to`, and waits.
    ///
    /// # Errors
    /// The driver's error; part of the bytes may have been written.
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
    /// The driver's error; part of the bytes may have been copied.
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
    /// A box in raw form, because transports have pointers into it.
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
    /// A copy has failed or did not end, so the memory is never freed.
    is_lost: bool,
}

// SAFETY: the value owns the memory and only returns pointers to it; code that follows one has the memory lent to it.
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
        unsafe { self.copy(at, len, Direction::FromDevice, from) }
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
        unsafe { self.copy(at, len, Direction::ToDevice, to) }
    }

    /// # Safety
    /// As [`StagingBuffer::copy_in`].
    unsafe fn copy(&mut self, at: usize, len: usize, direction: Direction, device: u64) -> Result<()> {
        assert!(at <= self.len && len <= self.len - at, "a copy stays inside its buffer");
        if len == 0 {
            return Ok(());
        }
        let here = self.as_ptr().wrapping_add(at).expose_provenance() as u64;
        let (to, from) = match direction {
            Direction::FromDevice => (here, device),
            Direction::ToDevice => (device, here),
        };
        // SAFETY: the device's range by the caller's promise; the buffer's by the assertion, and it stays allocated: if
        // the copy does not end, it is leaked below.
        let pending = unsafe { self.home.cuda.copy_towards(direction, to, from, len as u64) };
        let pending = pending.inspect_err(|error| self.is_lost |= error.errno() == Errno::ETIMEDOUT)?;
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
