//! All copies between application memory and memory that a peer may access at the same time.
//!
//! Such memory is never behind a Rust reference: all functions take raw pointers. By writing during a copy, a hostile
//! peer can change the bytes that arrive, but not their destination or number.

mod streaming;
#[cfg(target_arch = "x86_64")]
mod string;

use std::ptr;

use ofi_api::Piece;

pub use streaming::Stores;

/// The content of a register.
#[cfg(target_arch = "x86_64")]
type Wide = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Wide = u128;

/// Copies the first and the last `N` words of `len` bytes; the two may overlap. It uses registers, because an array of
/// words would go through the stack.
///
/// # Safety
/// As `bytes`, and `N * size_of::<W>() <= len <= 2 * N * size_of::<W>()`.
#[inline(always)]
unsafe fn ends<W: Copy, const N: usize>(from: *const u8, to: *mut u8, len: usize) {
    let last = len - N * size_of::<W>();
    for word in 0..N {
        let at = word * size_of::<W>();
        // SAFETY: inside `from..from + len`, by the caller's promise.
        let head = unsafe { from.wrapping_add(at).cast::<W>().read_unaligned() };
        // SAFETY: as above, since `last + N * size_of::<W>() == len`.
        let tail = unsafe { from.wrapping_add(last + at).cast::<W>().read_unaligned() };
        // SAFETY: inside `to..to + len`.
        unsafe { to.wrapping_add(at).cast::<W>().write_unaligned(head) };
        // SAFETY: as above.
        unsafe { to.wrapping_add(last + at).cast::<W>().write_unaligned(tail) };
    }
}

thread_local! {
    static COPIED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The number of bytes that this thread has copied by the functions of this module, for tests that count copies. Only
/// builds with debug assertions count; others return 0.
pub fn counted() -> u64 {
    COPIED.get()
}

/// Copies `len` bytes. Up to 128 bytes are copied inline, as overlapping words, because a call costs more than such a
/// copy.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and the two do not overlap.
#[inline(always)]
pub unsafe fn bytes(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(debug_assertions)]
    COPIED.set(COPIED.get() + len as u64);
    // Each call meets the length requirement of `ends`. The lengths of small messages are tested first.
    if len > 16 {
        match len {
            // SAFETY: the arm's range.
            17..=32 => unsafe { ends::<Wide, 1>(from, to, len) },
            // SAFETY: the arm's range.
            33..=64 => unsafe { ends::<Wide, 2>(from, to, len) },
            // SAFETY: the arm's range.
            65..=128 => unsafe { ends::<Wide, 4>(from, to, len) },
            // SAFETY: the caller's promise.
            _ => unsafe { long(from, to, len) },
        }
    } else {
        match len {
            // SAFETY: the arm's range.
            8.. => unsafe { ends::<u64, 1>(from, to, len) },
            // SAFETY: the arm's range.
            4..=7 => unsafe { ends::<u32, 1>(from, to, len) },
            // SAFETY: the arm's range.
            2..=3 => unsafe { ends::<u16, 1>(from, to, len) },
            1 => {
                // SAFETY: at least one byte.
                let byte = unsafe { from.read() };
                // SAFETY: as above.
                unsafe { to.write(byte) };
            }
            0 => {}
        }
    }
}

/// From this length on, the string instruction is at least as fast as the C library's copy, and does not suffer if
/// source and destination are at the same offset in their pages, as aligned buffers are: 26 GB/s against 17 to 20 for 1
/// MiB on a Zen 3.
#[cfg(target_arch = "x86_64")]
const STRING_COPY: usize = 32 << 10;
/// From this length on, the C library's copy uses that instruction too.
#[cfg(target_arch = "x86_64")]
const STRING_ALIAS: usize = 2 << 10;

/// Copies more than a few cache lines.
///
/// # Safety
/// As [`bytes`].
unsafe fn long(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_ALIAS && std::arch::is_x86_feature_detected!("ermsb") {
        if string::aliases(from, to) {
            // SAFETY: the caller's promise.
            return unsafe { string::by_way_of_the_stack(from, to, len) };
        }
        if len >= STRING_COPY {
            // SAFETY: the caller's promise.
            return unsafe { string::copy(from, to, len) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// Fetches the cache line of `at`, which need not be mapped, to be written by this core soon.
/// (`prefetchw` has no effect on x86-64 processors that do not know it; the compiler's intrinsic would require it.)
#[inline(always)]
pub fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, harmless for any address; it changes neither registers nor flags.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    let _ = at;
}

/// Copies `len` bytes between ranges that may overlap.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes.
pub unsafe fn overlapping(from: *const u8, to: *mut u8, len: usize) {
    if (from as usize).abs_diff(to as usize) >= len {
        // SAFETY: they do not overlap.
        unsafe { bytes(from, to, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy(from, to, len) };
    }
}

/// Gathers `len` bytes, starting at byte `skip` of `pieces`, into `to`. Returns how many there were.
///
/// # Safety
/// The pieces are lent for reading and `to` may be written for `len` bytes.
pub unsafe fn gather(pieces: &[Piece], skip: usize, to: *mut u8, len: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { gather_by(Stores::Cached, pieces, skip, to, len) }
}

/// As [`gather`], with the given kind of stores.
///
/// # Safety
/// As [`gather`].
pub unsafe fn gather_by(stores: Stores, pieces: &[Piece], skip: usize, to: *mut u8, len: usize) -> usize {
    let mut done = 0;
    for (addr, run) in runs(pieces, skip, len) {
        // SAFETY: `run` bytes lie in the piece, and `done + run <= len`.
        unsafe { stores.copy(addr, to.wrapping_add(done), run) };
        done += run;
    }
    done
}

/// A copy of the first `len` bytes of `pieces`, padded with zeroes if they have fewer.
///
/// # Safety
/// The pieces are lent for reading during the call.
pub unsafe fn copied(pieces: &[Piece], len: usize) -> Box<[u8]> {
    let mut bytes = vec![0u8; len];
    // SAFETY: the caller's promise, and the vector has `len` bytes.
    unsafe { gather(pieces, 0, bytes.as_mut_ptr(), len) };
    bytes.into()
}

/// Scatters `len` bytes at `from` into `pieces`, starting at their byte `skip`. Returns how many fitted.
///
/// # Safety
/// The pieces are lent for writing and `from` may be read for `len` bytes.
pub unsafe fn scatter(from: *const u8, len: usize, pieces: &[Piece], skip: usize) -> usize {
    let mut done = 0;
    for (addr, run) in runs(pieces, skip, len) {
        // SAFETY: `run` bytes lie in the piece, and `done + run <= len`.
        unsafe { bytes(from.wrapping_add(done), addr, run) };
        done += run;
    }
    done
}

/// The contiguous runs that make up `len` bytes of `pieces`, starting at byte `skip`.
pub fn runs(
    pieces: &[Piece],
    mut skip: usize,
    mut len: usize,
) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
    pieces.iter().filter_map(move |piece| {
        if skip >= piece.len {
            skip -= piece.len;
            return None;
        }
        let run = (piece.len - skip).min(len);
        let addr = piece.addr.wrapping_add(skip);
        skip = 0;
        len -= run;
        (run > 0).then_some((addr, run))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_exactly() {
        let from: Vec<u8> = (0..40_100u32).map(|n| n as u8).collect();
        for len in (0..=260).chain([40_000]) {
            let mut to = vec![0xEEu8; 40_100];
            // SAFETY: both vectors are longer.
            unsafe { bytes(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], from[..len], "{len}");
            assert!(to[len..].iter().all(|&byte| byte == 0xEE), "{len}");
        }
    }

    #[test]
    fn scatter_undoes_gather_at_any_offset() {
        let mut source = [[1u8, 2, 3], [4, 5, 6], [7, 8, 9]];
        let pieces: Vec<Piece> = source.iter_mut().map(|part| Piece::new(part.as_mut_ptr(), 3)).collect();
        for skip in 0..9 {
            for len in 0..=12 {
                let mut flat = [0u8; 12];
                // SAFETY: the pieces and `flat` live here.
                let got = unsafe { gather(&pieces, skip, flat.as_mut_ptr(), len) };
                assert_eq!(got, len.min(9 - skip));
                assert_eq!(flat[..got], [1, 2, 3, 4, 5, 6, 7, 8, 9][skip..skip + got]);
            }
        }
    }
}
