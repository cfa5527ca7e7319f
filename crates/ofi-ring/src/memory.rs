//! The storage of a record ring's lines: memory that the caller keeps mapped ([`Lines`]), or a block of the heap
//! ([`HeapLines`]).
//!
//! A line is 64 bytes. Its first eight are a header word if a record starts there, and body bytes if a longer record
//! passes through, so a line is accessed only through the atomic header word and by raw copies. A reference to a line
//! covers its body as an `UnsafeCell`, and only the header is read or written through it. Under `cfg(loom)`, where an
//! atomic does not have eight bytes, a line is a loom atomic and a loom cell that stands for the rest.

use core::ptr::NonNull;

use crate::sync::{AtomicU64, UnsafeCell};

/// Bytes in a line: 64, the unit of coherence on x86-64 and a part of it elsewhere. (With loom it is the size of a loom
/// line.)
pub const LINE: usize = size_of::<Line>();

/// Minimum number of lines in a ring: a record may take a quarter of them and one more, with a skip before it.
pub const MIN_LINES: usize = 4;

/// Maximum number of lines in a ring, 4 GiB: the length of a record of a quarter of it still fits into 31 bits.
pub const MAX_LINES: usize = 1 << 26;

/// One line of a ring: a header word and a body.
#[cfg(not(loom))]
#[repr(C, align(64))]
pub(crate) struct Line {
    header: AtomicU64,
    /// Accessed only through the raw pointer of [`body_of`].
    _body: UnsafeCell<[u8; 56]>,
}
#[cfg(not(loom))]
const _: () = assert!(LINE == 64);

/// One line of a ring: a header word and a body.
#[cfg(loom)]
pub(crate) struct Line {
    header: AtomicU64,
    body: UnsafeCell<u64>,
}

impl Line {
    /// An empty line.
    fn new() -> Self {
        Self {
            header: AtomicU64::new(0),
            #[cfg(not(loom))]
            _body: UnsafeCell::new([0; 56]),
            #[cfg(loom)]
            body: UnsafeCell::new(0),
        }
    }

    /// The header word.
    #[inline(always)]
    pub(crate) fn header(&self) -> &AtomicU64 {
        &self.header
    }

    /// The cell that stands for the rest of the line.
    #[cfg(loom)]
    pub(crate) fn body(&self) -> &UnsafeCell<u64> {
        &self.body
    }
}

/// The start of the body of the record that starts at `line`.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn body_of(line: NonNull<Line>) -> *mut u8 {
    line.as_ptr().cast::<u8>().wrapping_add(core::mem::offset_of!(Line, _body))
}

/// A handle of lines that the caller keeps mapped. It owns nothing.
///
/// While a producer or consumer made from it exists, at least as many bytes as [`bytes`](Self::bytes) returns are
/// mapped: the promise of [`new`](Self::new).
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    first: NonNull<Line>,
    /// One less than the count, which is a power of two.
    mask: usize,
}

impl Lines {
    /// Makes a handle of `count` lines from `base` on.
    ///
    /// # Errors
    /// [`BadLines`] unless `count` is a power of two in [`MIN_LINES`]`..=`[`MAX_LINES`] and `base` is a multiple of
    /// [`LINE`].
    ///
    /// # Safety
    /// `count * LINE` bytes from `base` on are readable (a consumer's lines need no more), and stay so while any
    /// [`Producer`](crate::record::Producer) or [`Consumer`](crate::record::Consumer) made from this value or its
    /// copies exists. Within this process no reference to any of these bytes exists, and only those two access them;
    /// other processes may do anything with them.
    #[cfg(not(loom))]
    pub unsafe fn new(base: NonNull<u8>, count: usize) -> Result<Self, BadLines> {
        if !is_valid(count) {
            return Err(BadLines::Count(count));
        }
        if !base.addr().get().is_multiple_of(LINE) {
            return Err(BadLines::Unaligned);
        }
        Ok(Self { first: base.cast(), mask: count - 1 })
    }

    /// The number of lines, a power of two.
    pub const fn count(&self) -> usize {
        self.mask + 1
    }

    /// The size of all lines in bytes.
    pub const fn bytes(&self) -> usize {
        self.count() * LINE
    }

    /// The line of any `position`.
    #[inline(always)]
    pub(crate) fn at(&self, position: u64) -> NonNull<Line> {
        let index = position as usize & self.mask;
        // SAFETY: `index` is below the count, and that many lines are mapped, by `new`.
        unsafe { self.first.add(index) }
    }

    /// The end of the last line.
    pub(crate) fn end(&self) -> NonNull<Line> {
        // SAFETY: one past the mapped lines, by `new`.
        unsafe { self.first.add(self.count()) }
    }

    /// Lines from `position` to the end: at least one.
    #[inline(always)]
    pub(crate) fn after(&self, position: u64) -> u64 {
        (self.count() - (position as usize & self.mask)) as u64
    }
}

/// Why memory cannot hold a ring's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadLines {
    /// Not a power of two, too few, or too many.
    #[error("{0} is not a power of two from {MIN_LINES} to {MAX_LINES}")]
    Count(usize),
    /// The first byte is not at the start of a line.
    #[error("the first byte does not lie on a multiple of {LINE}")]
    Unaligned,
}

/// Empty lines on the heap, for rings within one process.
#[derive(Debug)]
pub struct HeapLines {
    /// From `Box::into_raw`, and kept as a raw pointer, because a `Box` would claim unique access to its content.
    lines: NonNull<[Line]>,
}

// SAFETY: the value only owns the allocation; every access to its content makes its own promise.
unsafe impl Send for HeapLines {}
// SAFETY: as above; a shared reference gives out only the address and the count.
unsafe impl Sync for HeapLines {}

impl HeapLines {
    /// Allocates `count` lines of zeros.
    ///
    /// # Errors
    /// [`BadLines::Count`], as for [`Lines::new`].
    pub fn new(count: usize) -> Result<Self, BadLines> {
        if !is_valid(count) {
            return Err(BadLines::Count(count));
        }
        let lines: Box<[Line]> = (0..count).map(|_| Line::new()).collect();
        Ok(Self { lines: NonNull::from(Box::leak(lines)) })
    }

    /// A handle of the lines for a producer or a consumer. They stay mapped until `self` is dropped.
    pub fn lines(&self) -> Lines {
        Lines { first: self.lines.cast(), mask: self.lines.len() - 1 }
    }
}

impl Drop for HeapLines {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a `Box` in `new` and is freed once, here. By the promise of their constructors,
        // no producer or consumer of these lines exists.
        drop(unsafe { Box::from_raw(self.lines.as_ptr()) });
    }
}

const fn is_valid(count: usize) -> bool {
    count.is_power_of_two() && MIN_LINES <= count && count <= MAX_LINES
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_needs_a_power_of_two_of_aligned_lines() {
        for count in [0, 1, 2, 3, 5, 100, MAX_LINES * 2, usize::MAX] {
            assert_eq!(HeapLines::new(count).err(), Some(BadLines::Count(count)));
        }
        let heap = HeapLines::new(8).unwrap();
        let lines = heap.lines();
        assert_eq!((lines.count(), lines.bytes()), (8, 512));
        let base: NonNull<u8> = lines.first.cast();
        // SAFETY: `heap` outlives the name, from which nothing is made.
        let shifted = unsafe { Lines::new(base.map_addr(|addr| addr.saturating_add(8)), 4) };
        assert_eq!(shifted.err(), Some(BadLines::Unaligned));
        // SAFETY: as above.
        let same = unsafe { Lines::new(base, 8) }.unwrap();
        assert_eq!(same.first, lines.first);
    }
}
