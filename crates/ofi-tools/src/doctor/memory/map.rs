//! Short-lived mappings that test whether they are possible.
#![allow(unsafe_code)] // mmap and munmap; nothing accesses what they map

use std::io;
use std::ptr::null_mut;

/// Maps a huge page of `len` bytes, the default size, from those that the administrator has reserved.
///
/// # Errors
/// The system's error.
pub fn try_huge(len: usize) -> io::Result<()> {
    map(len, libc::MAP_HUGETLB)
}

/// Maps and locks `len` bytes.
///
/// # Errors
/// The system's error: `EAGAIN` beyond the limit.
pub fn try_locked(len: usize) -> io::Result<()> {
    map(len, libc::MAP_LOCKED)
}

fn map(len: usize, flag: libc::c_int) -> io::Result<()> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flag);
    // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing.
    let base = unsafe { libc::mmap(null_mut(), len, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: exactly the range that was mapped above, which no other code knows.
    unsafe { libc::munmap(base, len) };
    Ok(())
}
