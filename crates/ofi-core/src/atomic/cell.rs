//! The bits of an element, and how one instruction of their size changes them atomically in memory.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bits of 1, 2, 4, 8, 16 or 32 bytes.
pub trait Cell: Copy + PartialEq {
    /// Whether this CPU has atomic instructions of this size.
    fn is_atomic() -> bool;

    /// Reads them.
    ///
    /// # Safety
    /// [`Cell::is_atomic`], and `at` is aligned to their size and may be read.
    unsafe fn load(at: *mut u8) -> Self;

    /// Replaces `old` by `new`, or returns the different value that is there.
    ///
    /// # Safety
    /// [`Cell::is_atomic`], and `at` is aligned to their size and may be written.
    unsafe fn replace(at: *mut u8, old: Self, new: Self) -> Result<(), Self>;
}

macro_rules! cells {
    ($($bits:ty, $atomic:ty;)+) => {$(
        impl Cell for $bits {
            #[inline]
            fn is_atomic() -> bool {
                true
            }

            #[inline]
            unsafe fn load(at: *mut u8) -> Self {
                // SAFETY: the caller's promise; the reference is to an atomic, which others may change.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(Ordering::Acquire)
            }

            #[inline]
            unsafe fn replace(at: *mut u8, old: Self, new: Self) -> Result<(), Self> {
                // SAFETY: as above.
                let cell = unsafe { <$atomic>::from_ptr(at.cast()) };
                cell.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
            }
        }
    )+};
}

cells! {
    u8, AtomicU8;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

#[cfg(target_arch = "x86_64")]
impl Cell for u128 {
    /// With AVX, aligned loads of 16 bytes are atomic (Intel SDM volume 3, 9.1.1; AMD64 volume 2, 7.3.2). Reads of
    /// read-only memory need that, because cmpxchg16b cannot read it.
    #[inline]
    fn is_atomic() -> bool {
        std::arch::is_x86_feature_detected!("cmpxchg16b") && std::arch::is_x86_feature_detected!("avx")
    }

    #[inline]
    unsafe fn load(at: *mut u8) -> Self {
        let value: std::arch::x86_64::__m128i;
        // SAFETY: one aligned load of readable memory; the CPU has AVX, as `is_atomic` said.
        unsafe {
            std::arch::asm!(
                "vmovdqa {value}, xmmword ptr [{at}]",
                value = out(xmm_reg) value,
                at = in(reg) at,
                options(nostack, preserves_flags, readonly)
            );
        }
        // SAFETY: both are 16 bytes without invalid values.
        unsafe { std::mem::transmute(value) }
    }

    #[inline]
    unsafe fn replace(at: *mut u8, old: Self, new: Self) -> Result<(), Self> {
        let (mut low, mut high) = (old as u64, (old >> 64) as u64);
        // Written as assembly, because the compiler turns its intrinsic into a library call unless all surrounding code
        // is compiled for such CPUs. The compiler reserves rbx, so it is restored. SAFETY: aligned and writable by the
        // caller's promise; the CPU has the instruction, as `is_atomic` said.
        unsafe {
            std::arch::asm!(
                "xchg rsi, rbx",
                "lock cmpxchg16b [rdi]",
                "mov rbx, rsi",
                in("rdi") at,
                inout("rsi") new as u64 => _,
                in("rcx") (new >> 64) as u64,
                inout("rax") low,
                inout("rdx") high,
                options(nostack)
            );
        }
        let found = u128::from(high) << 64 | u128::from(low);
        if found == old { Ok(()) } else { Err(found) }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Cell for u128 {
    fn is_atomic() -> bool {
        false
    }

    unsafe fn load(_: *mut u8) -> Self {
        unreachable!("is_atomic() is false")
    }

    unsafe fn replace(_: *mut u8, _: Self, _: Self) -> Result<(), Self> {
        unreachable!("is_atomic() is false")
    }
}

/// Too wide for any instruction.
impl Cell for [u128; 2] {
    fn is_atomic() -> bool {
        false
    }

    unsafe fn load(_: *mut u8) -> Self {
        unreachable!("is_atomic() is false")
    }

    unsafe fn replace(_: *mut u8, _: Self, _: Self) -> Result<(), Self> {
        unreachable!("is_atomic() is false")
    }
}
