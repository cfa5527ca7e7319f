//! System calls: wait objects here, what is mapped in `mapped.rs`, shared memory in `memory.rs`, ports of services in
//! `service.rs`, and sockets that pass descriptors in `unix.rs`.

pub mod mapped;
pub mod memory;
pub mod service;
pub mod unix;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, Result};

/// The error of a failed system call.
pub fn os_error(call: &'static str) -> Error {
    let error = std::io::Error::last_os_error();
    Error::with(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)), format!("{call}: {error}"))
}

/// As [`os_error`], for a call that returns its error.
pub fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::with(Errno::from_raw(errno.raw_os_error()), format!("{call}: {errno}"))
}

fn owned(fd: RawFd, call: &'static str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(os_error(call));
    }
    // SAFETY: the call just made this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// This process's effective user.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A non-blocking eventfd.
///
/// # Errors
/// Errors of eventfd(2).
pub fn eventfd() -> Result<OwnedFd> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")
}

/// Makes an eventfd readable.
pub fn signal_eventfd(fd: impl AsFd) {
    // A full counter (EAGAIN) is readable already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub fn drain_eventfd(fd: impl AsFd) {
    // An empty counter answers EAGAIN.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

/// Checks that a descriptor from another process is an eventfd, and that writing to it does not block. Writing to
/// anything else could do harm: a pipe or a socket raises `SIGPIPE`, and a program of the peer may serve a file.
///
/// # Errors
/// `FI_EINVAL` if it is not.
pub fn check_eventfd(fd: BorrowedFd<'_>) -> Result<()> {
    let invalid = |what| Err(Error::with(Errno::EINVAL, what));
    let is_one = match std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
        Ok(name) => name.as_os_str() == "anon_inode:[eventfd]",
        // Without `/proc`, at least exclude pipes, sockets, devices and files: those have a type.
        Err(_) => rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == 0),
    };
    if !is_one {
        return invalid("the descriptor by which a peer wants to be woken is not an eventfd");
    }
    if !rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK)) {
        return invalid("a peer's eventfd blocks its writers");
    }
    Ok(())
}

/// The involuntary context switches of the calling thread.
pub fn involuntary_switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for the structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: a plain structure, which was zero before the call.
    unsafe { usage.assume_init() }.ru_nivcsw
}

/// A set of descriptors that is itself a descriptor, readable when one of them is.
pub struct WaitSet(OwnedFd);

impl WaitSet {
    /// An empty set.
    ///
    /// # Errors
    /// Errors of epoll_create1(2).
    pub fn new() -> Result<Self> {
        // SAFETY: takes no pointers.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1").map(Self)
    }

    /// Adds a descriptor; one that is there already stays.
    ///
    /// # Errors
    /// Errors of epoll_ctl(2).
    pub fn add(&self, fd: RawFd) -> Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: `event` is a valid structure for the call.
        let rc = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if rc < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            return Err(os_error("epoll_ctl"));
        }
        Ok(())
    }

    /// Removes a descriptor, if it is there.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: EPOLL_CTL_DEL takes no event.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Which of its descriptors are readable, up to 64 at once. Does not wait.
    pub fn ready(&self) -> Vec<RawFd> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for as many events as said.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, 0) };
        events.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64 as RawFd).collect()
    }

    /// The set's own descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Blocks until one of `fds` (three at most) is readable or `deadline` has passed. Returns whether one is; false after
/// a signal.
pub fn wait_readable(fds: &[RawFd], deadline: Option<Instant>) -> bool {
    let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polls = [readable(-1), readable(-1), readable(-1)];
    for (poll, &fd) in polls.iter_mut().zip(fds) {
        poll.fd = fd;
    }
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let time = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: libc::c_long::from(left.subsec_nanos() as i32),
    });
    let time_ptr = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: three pollfds, of which negative ones are passed over; the time is null or valid; no signal mask.
    let ready = unsafe { libc::ppoll(polls.as_mut_ptr(), 3, time_ptr, std::ptr::null()) };
    ready > 0
}

/// Whether a descriptor is readable now.
pub fn is_readable(fd: RawFd) -> bool {
    wait_readable(&[fd], Some(Instant::now()))
}

/// Requests huge pages for memory that will be accessed randomly. Has no effect on less than two of them, or if the
/// system has none.
pub fn advise_huge<T>(memory: &mut [std::mem::MaybeUninit<T>]) {
    const HUGE: usize = 2 << 20;
    let (base, len) = (memory.as_mut_ptr().addr(), size_of_val(memory));
    let start = base.next_multiple_of(HUGE);
    let end = (base + len) / HUGE * HUGE;
    if end > start + HUGE {
        let first = memory.as_mut_ptr().cast::<u8>().wrapping_add(start - base);
        // SAFETY: the range lies inside `memory`, and the advice does not change what it holds.
        unsafe { libc::madvise(first.cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// A timer that makes a descriptor readable.
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is not set.
    ///
    /// # Errors
    /// Errors of timerfd_create(2).
    pub fn new() -> Result<Self> {
        // SAFETY: takes no pointers.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        owned(fd, "timerfd_create").map(Self)
    }

    /// Becomes readable after `time`, or never. Replaces the previous setting.
    pub fn set(&self, time: Option<Duration>) {
        let time = time.map_or(Duration::ZERO, |time| time.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: time.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
        };
        let spec =
            libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // SAFETY: `spec` is valid; the old value is not asked for.
        unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
