//! Direct copies between the memories of two processes by process_vm_readv and process_vm_writev, which the kernel
//! allows to a process that may ptrace the other.
//!
//! The calls name a process by its pid, and pids are reused. Therefore an endpoint that lets its peers copy has a
//! [`TokenPage`] at a random address, which no child inherits and which disappears with the endpoint or the program.
//! Every call begins there: a read also reads the page's nonce, and a write first writes a word into the page. The
//! kernel looks up the process once per call, works through the addresses in order, and stops at the first that is not
//! mapped (process_vm_readv(2)). So the bytes come from the intended process, and a different process with the same pid
//! is detected before a byte is written or trusted. Checking a pidfd before the call would leave a race.
//!
//! Addresses are plain numbers here: those that a peer sends refer to its own memory only.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use ofi_core::fork::Born;

use crate::sys::{self, Mapping};

/// Bytes of a token page.
const PAGE: usize = 4096;
/// Offset of the word that writers write and no process reads.
const SCRATCH: u64 = 64;
/// Ranges in one call besides the token's: as many as an operation has pieces.
pub const RANGES: usize = 8;
/// Attempts to find a free address for a token page.
const TRIES: usize = 8;

/// A page that identifies this process.
#[derive(Debug)]
pub struct TokenPage {
    base: NonNull<u8>,
    nonce: u64,
    born: Born,
}

// SAFETY: a mapping is an address range; this process only writes it once, when it is made.
unsafe impl Send for TokenPage {}
// SAFETY: as above.
unsafe impl Sync for TokenPage {}

impl TokenPage {
    /// Maps one. `None` if the system has no room.
    pub fn new() -> Option<Self> {
        let map = |at: usize, more: libc::c_int| {
            let (at, protection) = (std::ptr::without_provenance_mut(at), libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
            // SAFETY: a new mapping where there is none, or at an address of the kernel's choosing.
            let base = unsafe { libc::mmap(at, PAGE, protection, flags, -1, 0) };
            (base != libc::MAP_FAILED).then_some(base)
        };
        // Anywhere in 46 bits, which user programs have on every 64-bit system; if they do not, where the kernel
        // chooses.
        let random = || (sys::random() as usize & ((1 << 46) - 1)).max(1 << 32) & !(PAGE - 1);
        let base = (0..TRIES)
            .find_map(|_| map(random(), libc::MAP_FIXED_NOREPLACE))
            .or_else(|| map(0, 0))
            .and_then(|base| NonNull::new(base.cast::<u8>()))?;
        // SAFETY: the range was just mapped. Without the advice a child would have the page too.
        if unsafe { libc::madvise(base.as_ptr().cast(), PAGE, libc::MADV_DONTFORK) } < 0 {
            // SAFETY: as above.
            unsafe { libc::munmap(base.as_ptr().cast(), PAGE) };
            return None;
        }
        let nonce = sys::random().max(1);
        // SAFETY: the page is mapped, writable and aligned; nobody knows of it yet.
        unsafe { base.as_ptr().cast::<u64>().write(nonce) };
        Some(Self { base, nonce, born: Born::here() })
    }

    /// The description for peers.
    pub fn token(&self) -> Token {
        Token { page: self.base.as_ptr().addr() as u64, nonce: self.nonce }
    }
}

impl Drop for TokenPage {
    fn drop(&mut self) {
        if self.born.is_here() {
            // SAFETY: the range is this page, and nothing of this process points to it.
            unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE) };
        }
    }
}

/// How peers recognise a process by its [`TokenPage`]. If `page` is 0, no peer may copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// Its address there.
    pub page: u64,
    /// Its content.
    pub nonce: u64,
}

/// Why a copy did not happen, or only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No copy will ever work: the call is forbidden (EPERM, ENOSYS, or the error of a system call filter), or the
    /// process is gone or is another one.
    Denied,
    /// This memory cannot be copied.
    Memory,
}

/// Ranges of memory here or there, as the kernel takes them.
struct Ranges {
    list: [libc::iovec; 1 + RANGES],
    count: usize,
    bytes: usize,
}

impl Ranges {
    /// The token's range and then `runs`. `None` for more than [`RANGES`] of them.
    fn new(first: *mut u64, runs: impl Iterator<Item = (*mut u8, usize)>) -> Option<Self> {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut ranges = Self { list: [none; 1 + RANGES], count: 1, bytes: 0 };
        ranges.list[0] = libc::iovec { iov_base: first.cast(), iov_len: size_of::<u64>() };
        for (addr, len) in runs {
            *ranges.list.get_mut(ranges.count)? = libc::iovec { iov_base: addr.cast(), iov_len: len };
            (ranges.count, ranges.bytes) = (ranges.count + 1, ranges.bytes + len);
        }
        Some(ranges)
    }
}

/// A process whose memory is copied from or to.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Its pid, from the credentials of its socket; 0 if the process is not visible from here.
    pub pid: i32,
    /// Identifies the process.
    pub token: Token,
}

impl Remote {
    /// Whether its memory can be read. Costs a system call.
    pub fn may_read(&self) -> bool {
        // SAFETY: no memory of this process but the token's word.
        unsafe { self.read(std::iter::empty(), std::iter::empty()) }.is_ok()
    }

    /// Whether its memory can be written. Costs a system call.
    pub fn may_write(&self) -> bool {
        // SAFETY: as above.
        unsafe { self.write(std::iter::empty(), std::iter::empty()) }.is_ok()
    }

    /// Copies from `there` to `here`, which are equally long.
    ///
    /// # Errors
    /// [`Fault`]: then some of `here` may have been written.
    ///
    /// # Safety
    /// `here` may be written.
    pub unsafe fn read(
        &self,
        there: impl Iterator<Item = (*mut u8, usize)>,
        here: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Result<(), Fault> {
        let mut nonce = 0u64;
        let remote = std::ptr::without_provenance_mut(self.token.page as usize);
        let (Some(here), Some(there)) = (Ranges::new(&raw mut nonce, here), Ranges::new(remote, there))
        else {
            return Err(Fault::Memory);
        };
        // SAFETY: the caller's promise for `here`; the nonce lives here.
        unsafe { self.call(libc::SYS_process_vm_readv, &here, &there) }?;
        // SAFETY: a word of this function, which the kernel has written.
        let nonce = unsafe { (&raw const nonce).read_volatile() };
        if nonce == self.token.nonce { Ok(()) } else { Err(Fault::Denied) }
    }

    /// Copies from `here` to `there`, which are equally long.
    ///
    /// # Errors
    /// [`Fault`]: then some of `there` may have been written.
    ///
    /// # Safety
    /// `here` may be read.
    pub unsafe fn write(
        &self,
        there: impl Iterator<Item = (*mut u8, usize)>,
        here: impl Iterator<Item = (*mut u8, usize)>,
    ) -> Result<(), Fault> {
        let mut word = self.token.nonce;
        let remote = std::ptr::without_provenance_mut(self.token.page.wrapping_add(SCRATCH) as usize);
        let (Some(here), Some(there)) = (Ranges::new(&raw mut word, here), Ranges::new(remote, there)) else {
            return Err(Fault::Memory);
        };
        // SAFETY: the caller's promise for `here`; the word lives here.
        unsafe { self.call(libc::SYS_process_vm_writev, &here, &there) }
    }

    /// # Safety
    /// `here` may be accessed as the call does.
    unsafe fn call(&self, number: libc::c_long, here: &Ranges, there: &Ranges) -> Result<(), Fault> {
        if self.token.page == 0 || self.pid <= 0 || here.bytes != there.bytes {
            return Err(Fault::Denied);
        }
        // SAFETY: both lists are as long as said; the kernel checks addresses of the other process.
        let moved = unsafe {
            libc::syscall(
                number,
                libc::c_long::from(self.pid),
                here.list.as_ptr(),
                here.count,
                there.list.as_ptr(),
                there.count,
                0usize,
            )
        };
        match usize::try_from(moved) {
            Ok(moved) if moved == size_of::<u64>() + here.bytes => Ok(()),
            Ok(_) => Err(Fault::Memory),
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                // EFAULT means that the token's page is missing: a fault after it would have returned a number of
                // bytes.
                Some(libc::ENOMEM | libc::EINTR) => Err(Fault::Memory),
                _ => Err(Fault::Denied),
            },
        }
    }
}

/// A word of 8 bytes of a peer's memory.
pub fn word(memory: &Mapping, offset: usize) -> &AtomicU64 {
    // SAFETY: `Mapping::word` checks place and alignment; mapped while `memory` lives and accessed atomically.
    unsafe { &*memory.word(offset) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process as a peer sees it. `None` if it may not even copy from itself.
    fn this(page: &TokenPage) -> Option<Remote> {
        let remote = Remote { pid: std::process::id() as i32, token: page.token() };
        remote.may_read().then_some(remote)
    }

    fn range(bytes: &mut [u8]) -> (*mut u8, usize) {
        (bytes.as_mut_ptr(), bytes.len())
    }

    #[test]
    fn several_ranges_are_copied_either_way() {
        let page = TokenPage::new().unwrap();
        let Some(remote) = this(&page) else {
            return println!("skipped: process_vm_readv is forbidden here");
        };
        let (mut from, mut to) = ([1u8, 2, 3, 4, 5, 6], [0u8; 6]);
        let (left, right) = to.split_at_mut(2);
        let here = [range(left), range(right)].into_iter();
        // SAFETY: both arrays live here, and nothing else refers to them.
        unsafe { remote.read([range(&mut from)].into_iter(), here) }.unwrap();
        assert_eq!(to, from);
        let mut other = [0u8; 6];
        // SAFETY: as above.
        unsafe { remote.write([range(&mut other)].into_iter(), [range(&mut from)].into_iter()) }.unwrap();
        assert_eq!(other, from);
    }

    #[test]
    fn another_process_under_the_number_is_found_out_before_anything_is_written() {
        let page = TokenPage::new().unwrap();
        let Some(remote) = this(&page) else {
            return println!("skipped: process_vm_readv is forbidden here");
        };
        let gone = TokenPage::new().unwrap().token();
        let mut memory = [7u8; 64];
        let mut from = [9u8; 64];
        // As if the process of `gone` had ended and this one had its pid.
        let stranger = Remote { token: gone, ..remote };
        assert!(!stranger.may_read() && !stranger.may_write());
        // SAFETY: both arrays live here, and nothing else refers to them.
        let written =
            unsafe { stranger.write([range(&mut memory)].into_iter(), [range(&mut from)].into_iter()) };
        assert!(written.is_err());
        assert_eq!(memory, [7; 64]);
        // A page at the same address with another nonce is rejected.
        let forged = Remote { token: Token { nonce: page.token().nonce ^ 1, ..page.token() }, ..remote };
        assert!(!forged.may_read());
    }

    #[test]
    fn memory_that_is_not_there_is_a_fault_of_that_memory() {
        let page = TokenPage::new().unwrap();
        let Some(remote) = this(&page) else {
            return println!("skipped: process_vm_readv is forbidden here");
        };
        let mut to = [0u8; 32];
        let nowhere = (std::ptr::without_provenance_mut::<u8>(8), 32);
        // SAFETY: `to` lives here, and nothing else refers to it.
        let read = unsafe { remote.read([nowhere].into_iter(), [range(&mut to)].into_iter()) };
        assert_eq!(read, Err(Fault::Memory));
        assert!(remote.may_read());
    }

    #[test]
    fn nothing_is_copied_where_it_is_not_offered_or_the_process_cannot_be_seen() {
        let page = TokenPage::new().unwrap();
        let this = std::process::id() as i32;
        assert!(!Remote { pid: this, token: Token::default() }.may_read());
        assert!(!Remote { pid: 0, token: page.token() }.may_read());
        assert!(!Remote { pid: 0, token: page.token() }.may_write());
    }

    #[test]
    fn no_child_has_the_page() {
        let page = TokenPage::new().unwrap();
        let Some(remote) = this(&page) else {
            return println!("skipped: process_vm_readv is forbidden here");
        };
        // SAFETY: the child only sleeps and exits, by functions that are safe after fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes no pointers.
            unsafe { libc::sleep(60) };
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        let its = Remote { pid: child, ..remote };
        assert!(!its.may_read() && !its.may_write());
        // SAFETY: a child of ours, by its id.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
}
