//! Memory that the device shares with the program: its queues, and the program's own.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of a page.
pub const PAGE: usize = 4096;

/// Memory that a program maps through the device's file. The device has its own mapping, so the memory outlives the
/// program's mapping.
pub struct SharedMapping {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: every access is an atomic operation on a word.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Zeroed memory of at least `len` bytes, in whole pages.
    ///
    /// # Errors
    /// The errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        // SAFETY: a name that ends with a zero.
        let fd = unsafe { libc::memfd_create(c"efa-emulator".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: made above, and owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is involved.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(null_mut(), len, protection, flags, fd.as_raw_fd(), 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(at) if base != libc::MAP_FAILED => Ok(Self { fd, base: at, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The descriptor that a program maps in place of the device's file.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at a byte offset that is a multiple of 4; wraps at the end.
    fn word(&self, at: usize) -> &AtomicU32 {
        let at = (at & !3) % self.len;
        // SAFETY: the word is inside the mapping, because its length is a multiple of 4, and aligned to 4. The mapping
        // lives as long as `self`, and is only accessed by atomic operations on words here; the program's plain
        // accesses are those that a device tolerates.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// Reads a word, so that everything that the program wrote before it is visible.
    pub fn load(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Reads `N` bytes.
    pub fn read<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (index, chunk) in bytes.chunks_mut(4).enumerate() {
            let word = self.word(at + 4 * index).load(Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        bytes
    }

    /// Writes whole words, the first one last: its phase bit tells the program that all are written.
    pub fn publish(&self, at: usize, bytes: &[u8]) {
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        for (index, word) in words.enumerate().collect::<Vec<_>>().into_iter().rev() {
            self.word(at + 4 * index).store(word, Ordering::Release);
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nothing refers to the mapping any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Copies from the program's memory by a system call, which cannot fault. `false` if the memory is unmapped.
pub fn peek(from: u64, to: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: to.len() };
    // SAFETY: `local` is all of `to`; the kernel checks the other address.
    let copied = unsafe { libc::process_vm_readv(process(), &local, 1, &remote, 1, 0) };
    usize::try_from(copied) == Ok(to.len())
}

/// Copies to the program's memory. `false` if the memory is unmapped or read-only.
pub fn poke(to: u64, from: &[u8]) -> bool {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: to as *mut libc::c_void, iov_len: from.len() };
    // SAFETY: `local` is all of `from`, and is only read. The destination is memory that the program gave to the
    // kernel's side for writing: answers to its commands, and memory that it registered.
    let copied = unsafe { libc::process_vm_writev(process(), &local, 1, &remote, 1, 0) };
    usize::try_from(copied) == Ok(from.len())
}

fn process() -> libc::pid_t {
    std::process::id() as libc::pid_t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wrap_and_bytes_come_back() {
        let shared = SharedMapping::new(100).unwrap();
        assert_eq!(shared.len(), PAGE);
        shared.publish(PAGE - 8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(shared.read::<8>(PAGE - 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(shared.read::<4>(2 * PAGE - 4), [5, 6, 7, 8]);
    }

    #[test]
    fn memory_that_is_not_there_is_no_fault() {
        let mut bytes = [0; 8];
        assert!(!peek(8, &mut bytes) && !poke(8, &bytes));
        let word = 0x0102_0304_u32.to_ne_bytes();
        assert!(peek(word.as_ptr() as u64, &mut bytes[..4]));
        assert_eq!(bytes[..4], word);
    }
}
