//! System calls: pages, and what a sleeper waits on.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::os_error;

/// Pages of this process, zeroed at first.
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of memory, which belongs to whoever holds this, and no thread.
unsafe impl Send for Pages {}
// SAFETY: only its place and length are shared; who uses the memory answers for that.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` bytes.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(len: usize, huge: bool) -> Result<Self> {
        let unit = if huge { 2 << 20 } else { 4096 };
        let len = len
            .max(1)
            .checked_next_multiple_of(unit)
            .filter(|&len| len <= isize::MAX as usize)
            .ok_or_else(|| Error::new(Errno::ENOMEM))?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        if huge {
            // SAFETY: advice on the mapping just made, which does not change what it holds.
            unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::new(Errno::ENOMEM))?;
        Ok(Self { base, len })
    }

    /// The first byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A descriptor that becomes readable when one of others does, or at a time.
pub struct Waiter {
    set: OwnedFd,
    timer: OwnedFd,
}

impl Waiter {
    /// For these descriptors, which stay open as long as this.
    ///
    /// # Errors
    /// `FI_EMFILE`.
    pub fn new(of: &[RawFd]) -> Result<Self> {
        // SAFETY: no memory is involved.
        let set = owned("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is involved.
        let timer = owned("timerfd_create", unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        for &fd in of.iter().chain([&timer.as_raw_fd()]) {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: both descriptors are open, and the event is read during the call.
            if unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } != 0 {
                return Err(os_error("epoll_ctl"));
            }
        }
        Ok(Self { set, timer })
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// Has it become readable after this time; `None`: not for that.
    pub fn wake_after(&self, time: Option<Duration>) {
        let (secs, nanos) = time.map_or((0, 0), |time| (time.as_secs() as i64, time.subsec_nanos().max(1)));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at = libc::timespec { tv_sec: secs, tv_nsec: nanos.into() };
        let value = libc::itimerspec { it_interval: zero, it_value: at };
        // SAFETY: the timer is open, and the value is read during the call.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &value, std::ptr::null_mut()) };
    }
}

fn owned(call: &'static str, fd: RawFd) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(os_error(call));
    }
    // SAFETY: a descriptor that was just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a descriptor is readable, waiting for that as long as `time`.
pub fn is_readable(fd: RawFd, time: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which is written during the call.
    unsafe { libc::poll(&mut poll, 1, time.as_millis().min(60_000) as i32) > 0 }
}
