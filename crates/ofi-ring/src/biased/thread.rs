//! A word that identifies the thread, at the cost of one load.

/// This thread's id.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[inline(always)]
pub(super) fn thread() -> usize {
    let id: usize;
    // SAFETY: the psABI has the thread pointer in the word that it points to (TLS variant II), at fs:0.
    unsafe {
        core::arch::asm!("mov {}, fs:[0]", out(reg) id, options(nostack, preserves_flags, readonly, pure))
    };
    id
}

/// This thread's id.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
#[inline(always)]
pub(super) fn thread() -> usize {
    let id: usize;
    // SAFETY: any code may read the register; the psABI has the thread pointer there.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nostack, preserves_flags, nomem, pure))
    };
    id
}

/// This thread's id.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux")))]
#[inline(always)]
pub(super) fn thread() -> usize {
    std::thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| core::ptr::from_ref(here).addr())
}
