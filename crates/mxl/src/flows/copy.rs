//! Copies to and from memory that another process may write or read at the same time.
//!
//! For an ordinary copy the compiler may assume that nothing else touches the memory. These copies are done by code
//! that is opaque to the compiler, so a racing write at worst yields a mix of old and new bytes.

use std::ptr::NonNull;

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped for the access, and do not overlap. One of them may be accessed by other processes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) {
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

/// Copies `len` bytes.
///
/// # Safety
/// Both ranges are mapped for the access, and do not overlap. One of them may be accessed by other processes.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub unsafe fn bytes(mut from: *const u8, mut to: *mut u8, mut len: usize) {
    while len >= 8 {
        // SAFETY: eight bytes are left of both ranges.
        let word = unsafe { from.cast::<[u8; 8]>().read_volatile() };
        // SAFETY: as above.
        unsafe { to.cast::<[u8; 8]>().write_volatile(word) };
        (from, to, len) = (from.wrapping_add(8), to.wrapping_add(8), len - 8);
    }
    while len > 0 {
        // SAFETY: a byte is left of both ranges.
        let byte = unsafe { from.read_volatile() };
        // SAFETY: as above.
        unsafe { to.write_volatile(byte) };
        (from, to, len) = (from.wrapping_add(1), to.wrapping_add(1), len - 1);
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

    /// Copies out. Whether the range was inside.
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.fits(offset, to.len()) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; `to` is ours alone, so they do not overlap.
        unsafe { bytes(self.as_ptr().wrapping_add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies in; the range must be mapped for writing. Whether it was inside.
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        if !self.fits(offset, from.len()) {
            return false;
        }
        // SAFETY: inside the mapping, as just checked; nobody writes `from`, so they do not overlap.
        unsafe { bytes(from.as_ptr(), self.as_ptr().wrapping_add(offset), from.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Shared;
    use std::ptr::NonNull;

    #[test]
    fn copies_stay_inside() {
        let mut memory = [0_u8; 100];
        // SAFETY: `memory` outlives it and is not used beside it.
        let shared = unsafe { Shared::new(NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) };
        assert!(shared.write(3, b"0123456789abcdefg"));
        let mut out = [0; 17];
        assert!(shared.read(3, &mut out));
        assert_eq!(&out, b"0123456789abcdefg");
        assert!(!shared.read(84, &mut out) && !shared.write(usize::MAX, &out) && !shared.read(101, &mut []));
        assert!(shared.read(100, &mut []));
    }
}
