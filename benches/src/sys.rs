//! The system calls of this package that the standard library lacks; its only `unsafe` code.

use std::{
    fs::File,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    time::Duration,
};

/// Pins the calling thread, and the processes that it starts later, to `core`.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    let mut set = [0_u64; 16]; // 1,024 cores, the size of the C library's cpu_set_t
    let word = set.get_mut(core / 64).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (core % 64);
    // SAFETY: `set` has as many readable bytes as the call is told, and thread 0 means the caller.
    let rc = unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the process of `command` killed when the thread that starts it ends, even if that is killed itself.
pub fn die_with_this_thread(command: &mut Command) {
    let parent = std::process::id().cast_signed();
    let die = move || {
        // SAFETY: asks for a signal, touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have ended before the kernel knew of this.
        // SAFETY: the call takes nothing.
        let same = unsafe { libc::getppid() } == parent;
        if same { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec two system calls are made, which need nothing of the parent.
    unsafe { command.pre_exec(die) };
}

/// The cores that the calling thread may run on.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let mut set = [0_u64; 16]; // as above
    // SAFETY: `set` has as many writable bytes as the call is told, and thread 0 means the caller.
    let rc = unsafe { libc::sched_getaffinity(0, size_of_val(&set), set.as_mut_ptr().cast()) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..64 * set.len()).filter(|core| set[core / 64] >> (core % 64) & 1 == 1).collect())
}

/// The core that the calling thread runs on.
pub fn current_core() -> io::Result<usize> {
    // SAFETY: the call takes nothing.
    let core = unsafe { libc::sched_getcpu() };
    usize::try_from(core).map_err(|_| io::Error::last_os_error())
}

/// Number of cores of the machine, whether or not this process may use them.
pub fn configured_cores() -> usize {
    // SAFETY: the call takes a number.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1).max(1)
}

/// A new blocking eventfd that is closed on exec.
pub fn eventfd() -> io::Result<File> {
    // SAFETY: takes two numbers and no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened above and has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// CPU time that this process has used, kernel and user.
pub fn process_cpu_time() -> io::Result<Duration> {
    let usage = usage(libc::RUSAGE_SELF)?;
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64)
    };
    Ok(part(usage.ru_utime) + part(usage.ru_stime))
}

/// Waits with epoll until `fd` is readable, or `patience` is over.
pub fn wait_readable(fd: std::os::fd::RawFd, patience: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    let rc = unsafe { libc::poll(&raw mut poll, 1, patience.as_millis() as libc::c_int) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether `fd` is readable now.
pub fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    let rc = unsafe { libc::poll(&raw mut poll, 1, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc > 0) }
}

fn usage(who: libc::c_int) -> io::Result<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is writable and as large as the call expects.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, which is a valid value of a struct of integers, and then filled in by the kernel.
    Ok(unsafe { usage.assume_init() })
}

/// Raises this process's limit of descriptors to its maximum. Returns the limit.
pub fn raise_descriptors() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the structure.
    let rc = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    if rc == 0 { Ok(limit.rlim_max) } else { Err(io::Error::last_os_error()) }
}

/// Waits for many descriptors; the cost depends only on the readable ones.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates a set without descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes a number.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened above and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds `fd`, which [`Epoll::wait`] reports as `name`.
    pub fn add(&self, fd: std::os::fd::BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name };
        // SAFETY: both descriptors are open, and the event is copied.
        let rc = unsafe {
            libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event)
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits at most `milliseconds` for readable descriptors. Returns the names of some.
    pub fn wait(&self, milliseconds: i32) -> io::Result<impl Iterator<Item = u64> + use<>> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: as many events as it is told.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, milliseconds) };
        if count < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(io::Error::last_os_error());
        }
        Ok(events.into_iter().take(count.max(0) as usize).map(|event| event.u64))
    }
}

/// Resident memory of this process in bytes.
pub fn resident_bytes() -> io::Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    // SAFETY: takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    pages.map(|pages| pages * page).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
