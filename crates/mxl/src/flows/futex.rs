//! Sleeps on words of shared files, and wakes the sleepers.

use std::ptr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Wakes every process and thread that sleeps on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address only as a key, and accesses no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

fn timespec(time: Duration) -> libc::timespec {
    let tv_sec = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    libc::timespec { tv_sec, tv_nsec: libc::c_long::from(time.subsec_nanos()) }
}

/// Sleeps until `word` differs from `seen` or `limit` has passed. May also return spuriously.
pub fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    let limit = timespec(limit);
    // SAFETY: the word is mapped as long as the reference, and the time is valid for a read.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
}

/// `struct futex_waitv` of the kernel.
#[repr(C)]
struct WaitV {
    val: u64,
    uaddr: u64,
    flags: u32,
    reserved: u32,
}

/// `FUTEX2_SIZE_U32`, shared between processes.
const SIZE_U32: u32 = 2;
/// Maximum words of one call.
pub const MANY: usize = 128;

/// Sleeps until one of the words differs from its seen value, or `limit` has passed. False if the kernel does not
/// support this (before 5.16) or forbids it, or for more than [`MANY`] words.
pub fn wait_many(words: &[(&AtomicU32, u32)], limit: Duration) -> bool {
    if words.is_empty() || words.len() > MANY {
        return false;
    }
    let entry = |(word, seen): &(&AtomicU32, u32)| WaitV {
        val: u64::from(*seen),
        uaddr: word.as_ptr().addr() as u64,
        flags: SIZE_U32,
        reserved: 0,
    };
    let entries: Vec<WaitV> = words.iter().map(entry).collect();
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let end = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_add(limit);
    let end = timespec(end);
    // SAFETY: the entries and the time are valid for reads, and the words are mapped as long as their references.
    let status = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            entries.as_ptr(),
            entries.len(),
            0,
            ptr::from_ref(&end),
            libc::CLOCK_MONOTONIC,
        )
    };
    status >= 0
        || !matches!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)
        )
}
