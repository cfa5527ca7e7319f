//! Watches memory whose registrations are cached, and reports when its pages are replaced.
//!
//! The monitor is userfaultfd(2). Watched memory is registered for write protection, and no page is ever protected, so
//! no access faults to this process's handler. That needs no privilege (`UFFD_USER_MODE_ONLY`). The events remain:
//! munmap, mremap, brk, a new mapping over an old one, and madvise with `MADV_DONTNEED`, `MADV_FREE` or `MADV_REMOVE`.
//! The system call that changes watched memory waits until this module's thread has read its event. Two changes raise
//! no event, and programs must not make them to memory that they send or receive: shmat(2) with `SHM_REMAP`, and
//! madvise with `MADV_GUARD_INSTALL`.
//!
//! An address may be mapped anew by another thread before the event is read, because the kernel queues events after it
//! has released its lock on the mappings. [`Watch::is_settled`] closes this gap: while an event is not read yet, the
//! kernel refuses `UFFDIO_COPY` with `EAGAIN`. Before Linux 5.15 it does so only until the first of several threads
//! goes on, so there is no monitor. `MADV_DONTNEED` is the exception: its event comes before the change.
//!
//! Invariants:
//! - The thread takes no lock and neither allocates nor frees: a thread that holds a lock, such as the allocator's, may
//!   wait in munmap for it. The standard library allocates when a thread starts, so no memory is watched before that.
//! - If the descriptor fails, such as in a program that closes all, the monitor is `dead` for ever: nothing is settled.
//! - In a forked child, whose descriptor is that of its parent, the parent's monitor does nothing.
//! - `reading` is set before an event is read, and cleared after it was published in `changes`.
//!
//! Only private memory without a file is watched. Pages of files and of shared memory are also replaced by truncation,
//! in other processes too, which raises no event here. The main thread's stack is not watched: that would split its
//! mapping, whose length pthread_getattr_np(3) reports. Other threads' stacks have theirs recorded by pthreads.

mod changes;
mod maps;
mod process;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, ptr};

pub use changes::Change;
use changes::Changes;
use maps::Maps;
use process::ThisProcess;

/// Reports changes of watched memory. Memory may be watched more than once.
pub trait Watch: Send + Sync {
    /// Watches whole pages. `false`: they cannot be watched.
    fn watch(&self, pages: &Range<usize>) -> bool;
    /// Ends one watch of these pages, of which `gone` were unmapped.
    fn unwatch(&self, pages: &Range<usize>, gone: Option<&Range<usize>>);
    /// Whether all changes that have replaced pages so far were published. A change under way makes it `false`, as does
    /// a monitor that does not work any more.
    fn is_settled(&self) -> bool;
    /// `false` in a forked child, which neither watches its parent's memory nor ends watches of it.
    fn is_here(&self) -> bool;
    /// Number of published changes.
    fn published(&self) -> u64;
    /// Passes the changes from number `from` on to `each`, and returns the number of the next one. `None` if some were
    /// lost.
    fn changes(&self, from: u64, each: &mut dyn FnMut(Change)) -> Option<u64>;
}

/// The monitor that `FI_MR_CACHE_MONITOR` names; `None` if that says to use none. Empty: userfaultfd.
///
/// # Errors
/// Why there is none.
pub fn by_name(name: &str) -> Result<Option<&'static dyn Watch>, String> {
    match name {
        "" | "userfaultfd" | "uffd" => Userfault::get().map(|found| Some(found as &dyn Watch)),
        "disabled" => Ok(None),
        "memhooks" => {
            Err("memhooks patches munmap and its kin in the C library, which misses system calls made by \
                           other code, such as Go programs and allocators: use userfaultfd"
                .into())
        }
        "kdreg2" => Err("there is no support for the kernel module kdreg2: use userfaultfd".into()),
        other => Err(format!("there is no monitor {other:?}: use userfaultfd or disabled")),
    }
}

/// Size of a page of memory.
pub fn page_size() -> usize {
    // SAFETY: the call only reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096).max(1)
}

/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: libc::c_int = 1;
/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFD_FEATURE_`: `PAGEFAULT_FLAG_WP`, `EVENT_REMAP`, `EVENT_REMOVE` and `EVENT_UNMAP`.
const FEATURES: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 6;
/// `UFFDIO_REGISTER_MODE_WP`.
const MODE_WP: u64 = 2;
/// `UFFDIO_API`, `UFFDIO_REGISTER`, `UFFDIO_UNREGISTER` and `UFFDIO_COPY`.
const IO_API: libc::c_ulong = 0xc018_aa3f;
const IO_REGISTER: libc::c_ulong = 0xc020_aa00;
const IO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const IO_COPY: libc::c_ulong = 0xc028_aa03;
/// `UFFD_EVENT_REMAP`, `UFFD_EVENT_REMOVE` and `UFFD_EVENT_UNMAP`.
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

/// `struct uffd_msg`; each event that is handled has up to three words.
#[repr(C)]
#[derive(Clone, Copy)]
struct UffdMessage {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}
const _: () = assert!(size_of::<UffdMessage>() == 32);

/// Number of events that are read at once.
const BATCH: usize = 16;

/// The first kernel that counts the changes under way.
const SINCE: (u32, u32) = (5, 15);
/// Maximum time to wait for the thread to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Milliseconds after which the thread looks whether its descriptor was replaced. A replaced userfaultfd still waits
/// for its events to be read, until poll(2) returns and lets go of it.
const CHECK_MS: libc::c_int = 1000;

/// The userfaultfd of a process.
struct Userfault {
    fd: OwnedFd,
    process: ThisProcess,
    maps: Maps,
    changes: Changes,
    /// Whether the thread has started: it allocates nothing any more.
    runs: AtomicBool,
    dead: AtomicBool,
    reading: AtomicBool,
    /// The watched ranges, each as often as it is watched.
    watched: Mutex<Vec<Range<usize>>>,
}

impl Userfault {
    /// The monitor of this process, which stays for its life. A forked child needs one of its own.
    fn get() -> Result<&'static Self, String> {
        static CURRENT: AtomicPtr<Userfault> = AtomicPtr::new(ptr::null_mut());
        let old = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or published below and never freed.
        if let Some(known) = unsafe { old.as_ref() }.filter(|known| known.process.is_here()) {
            return Ok(known);
        }
        let fresh = Self::start()?;
        let ours = ptr::from_ref(fresh).cast_mut();
        Ok(match CURRENT.compare_exchange(old, ours, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            // Another thread of this process was faster; what this one has made stays idle.
            // SAFETY: published by that thread, and never freed.
            Err(theirs) => unsafe { &*theirs },
        })
    }

    /// A monitor whose thread runs.
    fn start() -> Result<&'static Self, String> {
        let release = kernel_release();
        if !is_since(&release, SINCE) {
            return Err(format!(
                "Linux {release} may report changes of memory late: use Linux 5.15 or later"
            ));
        }
        let made = Box::into_raw(Box::new(Self::open().map_err(|error| advice(&error))?));
        // SAFETY: freed below only if no thread was started that uses it.
        let fresh: &'static Self = unsafe { &*made };
        let spawned = without_signals(|| {
            let builder = std::thread::Builder::new().name("ofi-mr-monitor".into()).stack_size(64 << 10);
            builder.spawn(|| fresh.run())
        });
        if let Err(error) = spawned {
            // SAFETY: made above; the thread that would have used it was not started.
            drop(unsafe { Box::from_raw(made) });
            return Err(format!("no thread for the memory monitor: {error}"));
        }
        let end = Instant::now() + START_TIMEOUT;
        while !fresh.runs.load(Ordering::Acquire) {
            if Instant::now() >= end {
                return Err(format!("the memory monitor's thread did not start within {START_TIMEOUT:?}"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(fresh)
    }

    fn open() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        let mut api = [API, FEATURES, 0];
        ioctl(&fd, IO_API, &mut api)?;
        Ok(Self {
            fd,
            process: ThisProcess::new()?,
            maps: Maps::open()?,
            changes: Changes::default(),
            runs: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            watched: Mutex::default(),
        })
    }

    /// Reads events until the descriptor has gone.
    fn run(&self) {
        run_anywhere();
        self.runs.store(true, Ordering::Release);
        let mut wait = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: one entry.
            let found = unsafe { libc::poll(&raw mut wait, 1, CHECK_MS) };
            if found < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                std::thread::sleep(Duration::from_millis(1)); // such as with RLIMIT_NOFILE 0
            }
            // Only if the kernel says that an event is there: the program may have closed this descriptor, and got its
            // number for another, whose data is not to be read here.
            match self.ask() {
                Asked::Changing => self.read(),
                Asked::Unchanged => {}
                Asked::Refused if found == 1 && wait.revents == libc::POLLIN => self.read(),
                Asked::Refused => {}
                Asked::Gone => return,
            }
        }
    }

    /// Asks the kernel whether events were not read yet.
    fn ask(&self) -> Asked {
        // Invalid on purpose: it copies nothing. The kernel first checks for such events.
        let mut copy = [0_u64; 5];
        let asked = match ioctl(&self.fd, IO_COPY, &mut copy).map_err(|error| error.raw_os_error()) {
            Err(Some(libc::EINVAL)) => return Asked::Unchanged,
            Err(Some(libc::EAGAIN)) => return Asked::Changing,
            Err(Some(libc::EBADF | libc::ENOTTY)) => Asked::Gone,
            _ => Asked::Refused,
        };
        self.dead.store(true, Ordering::SeqCst);
        asked
    }

    fn works(&self) -> bool {
        self.process.is_here() && !self.dead.load(Ordering::SeqCst)
    }

    /// Reads queued events and publishes them.
    fn read(&self) {
        let mut messages = [MaybeUninit::<UffdMessage>::uninit(); BATCH];
        self.reading.store(true, Ordering::SeqCst);
        let (to, len) = (messages.as_mut_ptr().cast::<c_void>(), size_of_val(&messages));
        // SAFETY: the array has `len` bytes.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), to, len) };
        let count = usize::try_from(got).unwrap_or(0) / size_of::<UffdMessage>();
        for message in &messages[..count] {
            // SAFETY: the kernel has written the first `count` messages, in which any bytes are valid.
            let UffdMessage { event, words: [first, second, third], .. } = unsafe { message.assume_init() };
            let change = match event {
                UNMAP => Change::Unmapped(first as usize..second as usize),
                REMOVE => Change::Emptied(first as usize..second as usize),
                REMAP => Change::Unmapped(first as usize..first.wrapping_add(third) as usize),
                _ => continue, // no other event is asked for
            };
            self.changes.push(&change);
        }
        self.reading.store(false, Ordering::Release);
    }
}

/// The kernel's answer about changes.
#[derive(PartialEq, Eq)]
enum Asked {
    /// All events were read.
    Unchanged,
    /// Some were not.
    Changing,
    /// No answer, such as under a new seccomp filter. The thread still reads, as long as others may wait for it.
    Refused,
    /// The descriptor was closed, or is no userfaultfd any more.
    Gone,
}

impl Watch for Userfault {
    fn watch(&self, pages: &Range<usize>) -> bool {
        // First a cheap no: registering memory of files and taking that back splits and joins mappings.
        if !self.works() || !self.maps.is_private(pages) {
            return false;
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut register = [pages.start as u64, pages.len() as u64, MODE_WP, 0];
        if ioctl(&self.fd, IO_REGISTER, &mut register).is_err() {
            return false;
        }
        // Again, since later changes of the mappings are reported.
        if !self.maps.is_private(pages) {
            self.end(pages, None, &watched);
            return false;
        }
        watched.push(pages.clone());
        true
    }

    fn unwatch(&self, pages: &Range<usize>, gone: Option<&Range<usize>>) {
        if !self.works() {
            return;
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = watched.iter().rposition(|known| known == pages) else { return };
        watched.swap_remove(at);
        self.end(pages, gone, &watched);
    }

    fn is_settled(&self) -> bool {
        let is_unchanged = self.works() && self.ask() == Asked::Unchanged;
        fence(Ordering::SeqCst);
        is_unchanged && !self.reading.load(Ordering::SeqCst)
    }

    fn is_here(&self) -> bool {
        self.process.is_here()
    }

    fn published(&self) -> u64 {
        self.changes.published()
    }

    fn changes(&self, from: u64, each: &mut dyn FnMut(Change)) -> Option<u64> {
        self.changes.read(from, each)
    }
}

impl Userfault {
    /// Removes pages from the kernel's watch, except those that were unmapped or that others watch.
    fn end(&self, pages: &Range<usize>, gone: Option<&Range<usize>>, others: &[Range<usize>]) {
        let mut keep: Vec<&Range<usize>> = others.iter().chain(gone).collect();
        keep.retain(|span| span.start < pages.end && pages.start < span.end);
        keep.sort_unstable_by_key(|span| span.start);
        let (mut at, end) = (pages.start, pages.end..pages.end);
        for span in keep.into_iter().chain([&end]) {
            if span.start > at {
                let mut range = [at as u64, (span.start - at) as u64];
                // An error means that the memory has gone meanwhile.
                _ = ioctl(&self.fd, IO_UNREGISTER, &mut range);
            }
            at = at.max(span.end);
        }
    }
}

fn ioctl<const N: usize>(fd: &OwnedFd, request: libc::c_ulong, words: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: each caller passes as many words as the structure of its request has.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `spawn` with all signals blocked, so that a new thread runs no handler of the program.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is written.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set was written above; the second is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let made = spawn();
    // SAFETY: the set was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    made
}

/// Lets this thread run on all processors, without a real-time policy. A new thread has its creator's: behind a thread
/// that spins on that processor, it would never read an event.
fn run_anywhere() {
    let all = [u64::MAX; 128];
    // SAFETY: the set is read. The kernel takes those processors that there are, and that cpusets permit.
    unsafe { libc::sched_setaffinity(0, size_of_val(&all), all.as_ptr().cast()) };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is read.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const param) };
}

/// As uname(2) names it, such as `6.1.0-18-amd64`.
fn kernel_release() -> String {
    let mut names = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: room for the names.
    unsafe { libc::uname(names.as_mut_ptr()) };
    // SAFETY: zeroed, and written by the call.
    let names = unsafe { names.assume_init() };
    names.release.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte as u8)).collect()
}

fn is_since(release: &str, (major, minor): (u32, u32)) -> bool {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map_while(|text| text.parse().ok());
    let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= (major, minor)
}

fn advice(error: &io::Error) -> String {
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no userfaultfd(2)",
        Some(libc::EPERM) => "a seccomp filter, such as Docker's, forbids userfaultfd(2)",
        Some(libc::EINVAL) => {
            "userfaultfd(2) of this kernel does not protect pages from writes (x86-64: Linux 5.15; arm64: 6.10)"
        }
        _ => "userfaultfd(2) failed",
    };
    format!("{why}: {error}")
}

#[cfg(test)]
mod tests;
