//! Copies that write past the caches.

use super::bytes;

/// How a copy writes memory that another core will read.
///
/// Plain stores take each line away from the core that used it last, and leave it in this core's cache, from which the
/// reader fetches it. Streaming (non-temporal) stores write whole lines to memory without fetching them. Which is
/// faster depends on the processor and on the distance between the two cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// Plain stores.
    #[default]
    Cached,
    /// Streaming stores, where the processor has them.
    Streaming,
}

impl Stores {
    /// Whether this processor has streaming stores that the library knows.
    pub const STREAM: bool = cfg!(target_arch = "x86_64");

    /// Copies `len` bytes with these stores.
    ///
    /// # Safety
    /// As [`bytes`].
    #[inline(always)]
    pub unsafe fn copy(self, from: *const u8, to: *mut u8, len: usize) {
        match self {
            // SAFETY: the caller's promise.
            Self::Cached => unsafe { bytes(from, to, len) },
            // SAFETY: as above.
            Self::Streaming => unsafe { stream(from, to, len) },
        }
    }
}

/// A cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies `len` bytes, whole lines of `to` by streaming stores. A later store, such as one that publishes the bytes,
/// becomes visible after them.
///
/// # Safety
/// As [`bytes`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = (to.addr().wrapping_neg() % LINE).min(len);
    // SAFETY: the caller's promise, and `head <= len`.
    unsafe { bytes(from, to, head) };
    let mut done = head;
    while len - done >= LINE {
        let (from, to) = (from.wrapping_add(done).cast::<__m128i>(), to.wrapping_add(done).cast::<__m128i>());
        for word in 0..LINE / size_of::<__m128i>() {
            // SAFETY: the line lies within `len` bytes.
            let part = unsafe { _mm_loadu_si128(from.wrapping_add(word)) };
            // SAFETY: as above, and `to` is aligned to a line.
            unsafe { _mm_stream_si128(to.wrapping_add(word), part) };
        }
        done += LINE;
    }
    // SAFETY: the caller's promise for what is left.
    unsafe { bytes(from.wrapping_add(done), to.wrapping_add(done), len - done) };
    // Streaming stores are not ordered with later ones, not even with a release.
    // SAFETY: every x86-64 processor has this instruction.
    unsafe { _mm_sfence() };
}

/// Copies `len` bytes.
///
/// # Safety
/// As [`bytes`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { bytes(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_place_of_a_line_is_copied_exactly() {
        let from: Vec<u8> = (0..600u32).map(|n| (n * 7) as u8).collect();
        for stores in [Stores::Cached, Stores::Streaming] {
            for at in 0..66 {
                for len in (0..200).chain([256, 300, 511]) {
                    let mut to = vec![0xEEu8; 640];
                    // SAFETY: `at + len <= 577`, and both vectors are longer.
                    unsafe { stores.copy(from[at / 3..].as_ptr(), to[at..].as_mut_ptr(), len) };
                    assert_eq!(to[at..at + len], from[at / 3..at / 3 + len], "{stores:?} {at} {len}");
                    assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xEE), "{at} {len}");
                }
            }
        }
    }
}
