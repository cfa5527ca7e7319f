//! Copies to and from memory that another process may write or read at the same time.
//!
//! For an ordinary copy the compiler may assume that nothing else touches the memory. These copies are done by code
//! that is opaque to the compiler, so a racing write at worst yields a mix of old and new bytes.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use zerocopy::FromBytes;

/// Bytes of a [`block`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BLOCK: usize = 64;

/// Minimum length for [`string`], which from there on is faster than blocks if both addresses are equal modulo 32. If
/// they differ in their lowest four bits, it is ten times slower (AMD EPYC).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 1024;

/// Copies by the string instruction.
///
/// # Safety
/// The requirements of [`bytes`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: `rep movsb` touches exactly the two ranges, and the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies a block.
///
/// # Safety
/// The requirements of [`bytes`], for [`BLOCK`] bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn block(from: *const u8, to: *mut u8) {
    // SAFETY: the moves touch exactly the two ranges, and need no alignment.
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movdqu [{to}], {a}",
            "movdqu [{to} + 16], {b}",
            "movdqu [{to} + 32], {c}",
            "movdqu [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Whether two blocks differ.
///
/// # Safety
/// The requirements of [`bytes`], for [`BLOCK`] bytes that are only read.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn differ(left: *const u8, right: *const u8) -> bool {
    let equal: u32;
    // SAFETY: the moves read exactly the two ranges, and need no alignment.
    unsafe {
        std::arch::asm!(
            "movdqu {a}, [{left}]",
            "movdqu {t}, [{right}]",
            "pcmpeqb {a}, {t}",
            "movdqu {b}, [{left} + 16]",
            "movdqu {t}, [{right} + 16]",
            "pcmpeqb {b}, {t}",
            "pand {a}, {b}",
            "movdqu {b}, [{left} + 32]",
            "movdqu {t}, [{right} + 32]",
            "pcmpeqb {b}, {t}",
            "pand {a}, {b}",
            "movdqu {b}, [{left} + 48]",
            "movdqu {t}, [{right} + 48]",
            "pcmpeqb {b}, {t}",
            "pand {a}, {b}",
            "pmovmskb {equal:e}, {a}",
            left = in(reg) left,
            right = in(reg) right,
            equal = out(reg) equal,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            t = out(xmm_reg) _,
            options(nostack, preserves_flags, readonly),
        );
    }
    equal != 0xFFFF
}

/// Four vectors of AVX2.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const ROW: usize = 128;

/// The number of equal bytes at the start of two ranges: all bytes, or whole rows. For a grain's header this takes a
/// third of the instructions that [`differ`] takes.
///
/// # Safety
/// The requirements of [`bytes`], for `len` bytes that are only read.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
unsafe fn same(left: *const u8, right: *const u8, len: usize) -> usize {
    use std::arch::x86_64::{__m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_movemask_epi8};

    #[derive(Clone, Copy)]
    #[repr(C, packed)]
    struct Unaligned(__m256i);

    let equal = |at: usize| {
        // SAFETY: 32 bytes of the left range, by the caller's promise and the loop's bound.
        let left = unsafe { left.wrapping_add(at).cast::<Unaligned>().read_volatile() };
        // SAFETY: as above, of the right range.
        let right = unsafe { right.wrapping_add(at).cast::<Unaligned>().read_volatile() };
        _mm256_cmpeq_epi8(left.0, right.0)
    };
    let row = |at: usize| {
        let halves = [(0, 32), (64, 96)].map(|(a, b)| _mm256_and_si256(equal(at + a), equal(at + b)));
        _mm256_movemask_epi8(_mm256_and_si256(halves[0], halves[1])) == -1
    };
    let Some(last) = len.checked_sub(ROW) else { return 0 };
    let mut at = 0;
    while at <= last && row(at) {
        at += ROW;
    }
    // A rest shorter than a row is compared together with the preceding bytes, which are compared twice.
    if at > last && row(last) { len } else { at }
}

/// Bytes that [`is_zero_avx2`] combines before it looks at the result.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TURN: usize = 512;

/// Whether all bytes are 0, of a slice of at least [`TURN`] bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
fn is_zero_avx2(bytes: &[u8]) -> bool {
    use std::arch::x86_64::{
        __m256i, _mm256_loadu_si256, _mm256_or_si256, _mm256_setzero_si256, _mm256_testz_si256,
    };

    let turn = |turn: &[u8]| {
        let vectors = turn.as_chunks::<32>().0;
        // SAFETY: each load is of the 32 bytes of a chunk, and needs no alignment.
        let load = |vector: &[u8; 32]| unsafe { _mm256_loadu_si256(vector.as_ptr().cast::<__m256i>()) };
        let all =
            vectors.iter().fold(_mm256_setzero_si256(), |all, vector| _mm256_or_si256(all, load(vector)));
        _mm256_testz_si256(all, all) == 1
    };
    let (turns, rest) = bytes.as_chunks::<TURN>();
    // The rest is compared together with the bytes before it.
    turns.iter().all(|bytes| turn(bytes)) && (rest.is_empty() || turn(&bytes[bytes.len() - TURN..]))
}

/// Whether all bytes are 0.
pub fn is_zero(bytes: &[u8]) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= TURN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { is_zero_avx2(bytes) };
    }
    bytes.iter().all(|byte| *byte == 0)
}

/// The rest of two ranges of the same length.
struct Left {
    from: *const u8,
    to: *mut u8,
    len: usize,
}

impl Left {
    /// The next `size` bytes of both, if that many are left.
    #[inline]
    fn take(&mut self, size: usize) -> Option<(*const u8, *mut u8)> {
        let at = (self.from, self.to);
        self.len = self.len.checked_sub(size)?;
        (self.from, self.to) = (self.from.wrapping_add(size), self.to.wrapping_add(size));
        Some(at)
    }
}

/// Copies `len` bytes, but does not store bytes that are already equal: a store takes the cache line away from other
/// processors.
///
/// # Safety
/// The requirements of [`bytes`].
unsafe fn changes(from: *const u8, to: *mut u8, len: usize) {
    let mut left = Left { from, to, len };
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, on a processor with AVX2.
        let same = unsafe { same(from, to, len) };
        let _ = left.take(same);
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    while let Some((from, to)) = left.take(BLOCK) {
        // SAFETY: a block of both ranges.
        if unsafe { differ(from, to) } {
            // SAFETY: as above.
            unsafe { block(from, to) };
        }
    }
    while let Some((from, to)) = left.take(1) {
        // SAFETY: a byte of both ranges.
        let new = unsafe { from.read_volatile() };
        // SAFETY: as above.
        let old = unsafe { to.read_volatile() };
        if new != old {
            // SAFETY: as above.
            unsafe { to.write_volatile(new) };
        }
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped for the access, and do not overlap. One of them may be accessed by other processes.
#[inline]
pub unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) {
    let mut left = Left { from, to, len };
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if len >= LONG && (from as usize ^ to as usize).is_multiple_of(32) {
            // SAFETY: the caller's promise.
            return unsafe { string(from, to, len) };
        }
        while let Some((from, to)) = left.take(BLOCK) {
            // SAFETY: a block of both ranges.
            unsafe { block(from, to) };
        }
    }
    while let Some((from, to)) = left.take(8) {
        // SAFETY: eight bytes of both ranges.
        let word = unsafe { from.cast::<[u8; 8]>().read_volatile() };
        // SAFETY: as above.
        unsafe { to.cast::<[u8; 8]>().write_volatile(word) };
    }
    while let Some((from, to)) = left.take(1) {
        // SAFETY: a byte of both ranges.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as above.
        unsafe { to.write_volatile(byte) };
    }
}

/// A range of memory that other processes may access: never a slice.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: NonNull<u8>,
    len: usize,
}

impl Shared {
    /// # Safety
    /// The range stays mapped as long as this and its copies are used.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    fn fits(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies out. Returns whether the range was inside.
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.fits(offset, to.len()) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; only this code can access `to`, so they do not overlap.
        unsafe { bytes(self.as_ptr().wrapping_add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies a value out, into memory that may be uninitialised. `None` if the range was not inside.
    #[must_use]
    pub fn read_value<'a, T: FromBytes>(
        &self,
        offset: usize,
        to: &'a mut MaybeUninit<T>,
    ) -> Option<&'a mut T> {
        if !self.fits(offset, size_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping, as just checked; only this code can access `to`, so they do not overlap.
        unsafe { bytes(self.as_ptr().wrapping_add(offset), to.as_mut_ptr().cast(), size_of::<T>()) };
        // SAFETY: every byte was just written, and any bytes are a `T`.
        Some(unsafe { to.assume_init_mut() })
    }

    /// Copies `len` bytes in from memory that others may write meanwhile. Returns whether the range was inside.
    ///
    /// # Safety
    /// `from` is mapped for that many bytes, outside of this range.
    #[must_use]
    pub unsafe fn write_from(&self, offset: usize, from: *const u8, len: usize) -> bool {
        if !self.fits(offset, len) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; the rest is the caller's promise.
        unsafe { bytes(from, self.as_ptr().wrapping_add(offset), len) };
        true
    }

    /// Copies in; the range must be mapped for writing. Returns whether it was inside.
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        if !self.fits(offset, from.len()) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; `from` is not written meanwhile, so they do not overlap.
        unsafe { bytes(from.as_ptr(), self.as_ptr().wrapping_add(offset), from.len()) };
        true
    }

    /// Copies in like [`write`](Self::write), but does not store bytes that are equal already.
    #[must_use]
    pub fn write_changes(&self, offset: usize, from: &[u8]) -> bool {
        if !self.fits(offset, from.len()) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; `from` is not written meanwhile, so they do not overlap.
        unsafe { changes(from.as_ptr(), self.as_ptr().wrapping_add(offset), from.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Shared, is_zero};
    use std::ptr::NonNull;

    #[test]
    fn copies_stay_inside() {
        let mut memory = [0_u8; 100];
        // SAFETY: `memory` outlives it and is not used meanwhile.
        let shared = unsafe { Shared::new(NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) };
        assert!(shared.write(3, b"0123456789abcdefg"));
        let mut out = [0; 17];
        assert!(shared.read(3, &mut out));
        assert_eq!(&out, b"0123456789abcdefg");
        assert!(!shared.read(84, &mut out) && !shared.write(usize::MAX, &out) && !shared.read(101, &mut []));
        assert!(shared.read(100, &mut []));
    }

    #[test]
    fn every_length_is_copied_from_and_to_every_alignment() {
        let source: Vec<u8> = (0..1200).map(|at| (at * 7 + at / 256) as u8).collect();
        for (start, to, len) in (0..17).flat_map(|start| {
            (0..17).flat_map(move |to| {
                [0, 1, 7, 8, 15, 63, 64, 65, 200, 1023, 1024, 1100].map(|len| (start, to, len))
            })
        }) {
            let mut memory = vec![0xAA_u8; 1200];
            // SAFETY: `memory` outlives it and is not used meanwhile.
            let shared = unsafe { Shared::new(NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) };
            assert!(shared.write(to, &source[start..start + len]));
            let mut out = vec![0; len];
            assert!(shared.read(to, &mut out));
            assert_eq!(out, source[start..start + len]);
            let untouched = [&memory[..to], &memory[to + len..]].concat();
            assert!(untouched.iter().all(|&byte| byte == 0xAA), "{len} bytes from {start} to {to}");
        }
    }

    #[test]
    fn changes_are_written_wherever_they_are() {
        let from: Vec<u8> = (0..450).map(|at| (at * 7 + at / 256) as u8).collect();
        for at in 0..from.len() {
            let mut memory = [&[7][..], &from, &[9]].concat();
            memory[1 + at] ^= 0x10;
            // SAFETY: `memory` outlives it and is not used meanwhile.
            let shared = unsafe { Shared::new(NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) };
            assert!(shared.write_changes(1, &from) && !shared.write_changes(3, &from));
            assert_eq!(memory, [&[7][..], &from, &[9]].concat(), "{at}");
        }
    }

    #[test]
    fn a_single_bit_is_not_zero() {
        for len in [0, 1, 511, 512, 513, 1024, 1100, 4068] {
            let mut bytes = vec![0_u8; len + 2];
            (bytes[0], bytes[len + 1]) = (1, 1);
            assert!(is_zero(&bytes[1..=len]), "{len}");
            for at in 1..=len {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes[1..=len]), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
    }

    /// Unchanged bytes are not stored, so this does not fault on read-only memory.
    #[test]
    fn what_is_the_same_is_not_stored() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        // SAFETY: a new mapping, which affects no other memory.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE) };
        let map = map.unwrap();
        // SAFETY: it is unmapped below, after its last use.
        let shared = unsafe { Shared::new(NonNull::new(map.cast()).unwrap(), 4096) };
        assert!(shared.write_changes(28, &[0; 4068]));
        // SAFETY: the mapping from above.
        unsafe { munmap(map, 4096) }.unwrap();
    }
}
