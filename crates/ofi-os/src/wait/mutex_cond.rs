//! `FI_WAIT_MUTEX_COND`: a thread that watches a descriptor and broadcasts a condition variable while it is readable.
//!
//! While the descriptor is readable, the broadcast is repeated at growing intervals, so that a thread that checked
//! before a broadcast and began to wait after it is woken by the next. A thread that prepares to wait starts the
//! intervals anew, so that it does not get the long ones of events that nobody waited for.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi_api::{MutexCond, Result};

use crate::fork::Born;
use crate::sys;
use crate::wake_fd::WakeFd;

/// The pause after the first broadcast, and the maximum pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// Never moved, as pthreads require, because it is in an `Arc`.
struct MutexCondShared {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
    stop: AtomicBool,
    /// How often a thread prepared to wait.
    preparations: AtomicU32,
    /// The thread is between two broadcasts.
    is_pausing: AtomicBool,
    /// Ends the thread's sleep.
    wake: WakeFd,
}

// SAFETY: pthreads' objects are made to be used by many threads, through pointers.
unsafe impl Sync for MutexCondShared {}
// SAFETY: as above; nothing of them belongs to a thread while nobody holds the mutex.
unsafe impl Send for MutexCondShared {}

impl Drop for MutexCondShared {
    fn drop(&mut self) {
        // SAFETY: initialised by its constant; the application no longer uses what it got from an object that is gone.
        unsafe { libc::pthread_cond_destroy(self.cond.get()) };
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_destroy(self.mutex.get()) };
    }
}

/// The thread, and what it broadcasts.
pub struct Waker {
    shared: Arc<MutexCondShared>,
    thread: Option<JoinHandle<()>>,
    born: Born,
}

impl Waker {
    /// Watches `fd`, which must stay open until the waker is dropped.
    ///
    /// # Errors
    /// Errors of starting a thread, or of eventfd(2).
    pub fn start(fd: RawFd) -> Result<Self> {
        let shared = Arc::new(MutexCondShared {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
            stop: AtomicBool::new(false),
            preparations: AtomicU32::new(0),
            is_pausing: AtomicBool::new(false),
            wake: WakeFd::new()?,
        });
        let theirs = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("ofi-cond".into());
        let thread =
            builder.spawn(move || theirs.watch(fd)).map_err(|_| sys::os_error("starting a thread"))?;
        Ok(Self { shared, thread: Some(thread), born: Born::here() })
    }

    /// Notes that a thread prepares to wait: the next event is broadcast without the pause after an earlier one.
    pub fn prepare(&self) {
        self.shared.preparations.fetch_add(1, Ordering::SeqCst);
        if self.shared.is_pausing.load(Ordering::SeqCst) {
            self.shared.wake.signal();
        }
    }

    /// The objects on which the application waits.
    pub fn pair(&self) -> MutexCond {
        MutexCond { mutex: self.shared.mutex.get().cast(), cond: self.shared.cond.get().cast() }
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The thread and perhaps the mutex belong to the parent: neither can be waited for or destroyed here.
            std::mem::forget((self.thread.take(), Arc::clone(&self.shared)));
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it cannot panic, and its end is all that matters
        }
    }
}

impl MutexCondShared {
    fn watch(&self, fd: RawFd) {
        let (mut pause, mut seen) = (PAUSES.0, 0);
        loop {
            self.wake.arm();
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if !sys::is_readable(fd) {
                pause = PAUSES.0;
                sys::wait_readable(&[fd, self.wake.fd()], None);
                continue;
            }
            self.broadcast();
            // Either `prepare` sees this flag, or its count is seen here.
            self.is_pausing.store(true, Ordering::SeqCst);
            let preparations = self.preparations.load(Ordering::SeqCst);
            if std::mem::replace(&mut seen, preparations) != preparations {
                pause = PAUSES.0;
            }
            sys::wait_readable(&[self.wake.fd()], Some(Instant::now() + pause));
            self.is_pausing.store(false, Ordering::SeqCst);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    fn broadcast(&self) {
        // SAFETY: an initialised mutex that lives as long as `self`.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        // SAFETY: as above, for the condition variable.
        unsafe { libc::pthread_cond_broadcast(self.cond.get()) };
        // SAFETY: locked above, by this thread.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }
}
