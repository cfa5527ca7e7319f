//! Buffers that operations may use while the test does something else: raw memory, filled with and checked against a
//! pattern. It is never behind a Rust reference, because a peer may be writing it.

use std::alloc::Layout;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use ofi::raw::{Allocation, Domain, Piece, Placement};
use ofi_core::hmem::Stager;
use ofi_core::hmem::cuda::{Cuda, DeviceMemory};

/// Shared memory of a test. Clones are handles to the same bytes; an operation keeps one until its endpoint is closed.
#[derive(Clone)]
pub struct Memory(Arc<Bytes>);

enum Bytes {
    /// Application memory.
    Heap(NonNull<u8>, Layout, usize),
    /// Library memory ([`Domain::alloc`]).
    Library(Allocation),
    /// A device's memory, and its copies.
    Device(DeviceMemory, Arc<Stager>, usize),
}

// SAFETY: the bytes are accessed only through raw pointers, by one test at a time or by operations under test.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Self::Heap(first, layout, _) = *self {
            // SAFETY: allocated with this layout in `Memory::new`; the last handle is going.
            unsafe { std::alloc::dealloc(first.as_ptr(), layout) };
        }
    }
}

/// Alignment of application memory: that of any buffer from `malloc`, so that no code relies on more.
const ALIGN: usize = 16;

/// Length of the pattern before it repeats: not a multiple of any size into which a transport cuts messages.
const PERIOD: usize = (64 << 10) + 1;

/// Two periods of the pattern, so that any run of it is one copy: tests in debug builds fill and check hundreds of
/// megabytes. No byte is 0, which is the initial value of memory.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut bytes = Vec::with_capacity(2 * PERIOD);
        // Eight bytes at a time: each process of a test fills the table.
        while bytes.len() < PERIOD {
            // Xorshift (Marsaglia 2003); any generator works.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&(state | 0x0101_0101_0101_0101).to_ne_bytes());
        }
        bytes.truncate(PERIOD);
        bytes.extend_from_within(..);
        bytes
    })
}

/// The longest run of the pattern `seed` from byte `at` on that needs no wrapping, at most `len` bytes.
fn run(seed: u8, at: usize, len: usize) -> &'static [u8] {
    let start = (at + usize::from(seed) * 251) % PERIOD;
    &table()[start..start + len.min(PERIOD)]
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:p}", self.len(), self.as_ptr())
    }
}

impl Memory {
    /// `len` zeroes on the heap.
    ///
    /// # Panics
    /// If memory is exhausted.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGN).expect("a buffer's size");
        // SAFETY: the layout is not empty.
        let first = unsafe { std::alloc::alloc_zeroed(layout) };
        let first = NonNull::new(first).expect("memory");
        Self(Arc::new(Bytes::Heap(first, layout, len)))
    }

    /// `len` bytes of the pattern `seed`, on the heap.
    pub fn patterned(len: usize, seed: u8) -> Self {
        let memory = Self::new(len);
        memory.fill(seed);
        memory
    }

    /// `len` zeroes in library memory.
    ///
    /// # Panics
    /// If the domain cannot allocate.
    pub fn library(domain: &Arc<dyn Domain>, len: usize) -> Self {
        Self::placed(domain, len, Placement::default())
    }

    /// `len` zeroes in library memory with this placement.
    ///
    /// # Panics
    /// If the domain cannot allocate.
    pub fn placed(domain: &Arc<dyn Domain>, len: usize, placement: Placement) -> Self {
        Self(Arc::new(Bytes::Library(domain.alloc(len, placement).expect("library memory"))))
    }

    /// `len` zeroes in memory of a device.
    ///
    /// # Panics
    /// If the device has no memory.
    pub fn device(cuda: &Cuda, len: usize) -> Self {
        let memory = cuda.alloc(len.max(1)).expect("memory of the device");
        let memory = Self(Arc::new(Bytes::Device(memory, Arc::new(Stager::new(cuda.clone())), len)));
        memory.slice(..).put(&vec![0; len]);
        memory
    }

    /// Whether it is a device's.
    pub fn is_of_device(&self) -> bool {
        matches!(*self.0, Bytes::Device(..))
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        match &*self.0 {
            Bytes::Device(memory, ..) => std::ptr::without_provenance_mut(memory.address() as usize),
            Bytes::Heap(first, ..) => first.as_ptr(),
            Bytes::Library(allocation) => allocation.as_ptr(),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match &*self.0 {
            Bytes::Heap(_, _, len) | Bytes::Device(_, _, len) => *len,
            Bytes::Library(allocation) => allocation.len(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the part is not inside.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Slice {
        let at = match range.start_bound() {
            Bound::Included(&at) => at,
            Bound::Excluded(&at) => at + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end + 1,
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len(),
        };
        assert!(at <= end && end <= self.len(), "{at}..{end} of {}", self.len());
        Slice { memory: self.clone(), at, len: end - at }
    }

    /// Fills all of it with the pattern `seed`.
    pub fn fill(&self, seed: u8) {
        self.slice(..).fill(seed);
    }

    /// A copy of the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.slice(..).bytes()
    }

    /// Fails unless it begins with `len` bytes of the pattern `seed`.
    #[track_caller]
    pub fn check(&self, len: usize, seed: u8) {
        self.slice(..len).check(seed);
    }
}

/// A part of a [`Memory`].
#[derive(Clone)]
pub struct Slice {
    memory: Memory,
    at: usize,
    len: usize,
}

impl Slice {
    /// As a piece for an operation.
    pub fn piece(&self) -> Piece {
        Piece::new(self.as_ptr(), self.len)
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.at)
    }

    /// Whether it is a device's.
    pub fn is_of_device(&self) -> bool {
        self.memory.is_of_device()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills it with the pattern `seed`.
    pub fn fill(&self, seed: u8) {
        for at in (0..self.len).step_by(PERIOD) {
            let bytes = run(seed, at, self.len - at);
            self.memory.slice(self.at + at..self.at + at + bytes.len()).put(bytes);
        }
    }

    /// Writes `bytes` to its beginning.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn put(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        if let Bytes::Device(_, stager, _) = &*self.memory.0 {
            // SAFETY: the slice is read, and the range is the device's, which `memory` keeps.
            let put = unsafe { stager.write(self.as_ptr().addr() as u64, bytes.as_ptr(), bytes.len()) };
            return put.expect("a copy to the device");
        }
        // SAFETY: inside the allocation, and a Rust slice does not overlap it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr(), bytes.len()) };
    }

    /// A copy of the bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        if let Bytes::Device(_, stager, _) = &*self.memory.0 {
            // SAFETY: as in `put`, the other way.
            let got = unsafe { stager.read(self.as_ptr().addr() as u64, bytes.as_mut_ptr(), self.len) };
            got.expect("a copy from the device");
            return bytes;
        }
        // SAFETY: as in `put`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Fails unless it contains the pattern `seed`.
    #[track_caller]
    pub fn check(&self, seed: u8) {
        self.check_from(seed, 0);
    }

    /// Fails unless it contains the pattern `seed` from byte `from` of the pattern on.
    #[track_caller]
    pub fn check_from(&self, seed: u8, from: usize) {
        let bytes = self.bytes();
        for (number, found) in bytes.chunks(PERIOD).enumerate() {
            let start = number * PERIOD;
            let wanted = run(seed, from + start, found.len());
            if found != wanted {
                let at = found.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
                let (found, wanted, at) = (found[at], wanted[at], start + at);
                panic!("byte {at} of {}: found {found:#04x}, wanted {wanted:#04x} (seed {seed})", self.len);
            }
        }
    }
}

/// The memory of one operation: zero or more pieces.
#[derive(Clone, Default)]
pub struct Buffers(pub Vec<Slice>);

impl From<&Memory> for Buffers {
    fn from(memory: &Memory) -> Self {
        Self(vec![memory.slice(..)])
    }
}

impl From<Slice> for Buffers {
    fn from(slice: Slice) -> Self {
        Self(vec![slice])
    }
}

impl From<Vec<Slice>> for Buffers {
    fn from(slices: Vec<Slice>) -> Self {
        Self(slices)
    }
}

impl From<()> for Buffers {
    fn from((): ()) -> Self {
        Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_found_again_and_a_changed_byte_is_noticed() {
        let memory = Memory::patterned(70_000, 3);
        memory.check(70_000, 3);
        memory.slice(100..200).check_from(3, 100);
        memory.slice(69_999..).put(&[memory.bytes()[69_999] ^ 1]);
        let noticed = std::thread::spawn(move || memory.check(70_000, 3)).join();
        assert!(noticed.is_err());
    }
}
