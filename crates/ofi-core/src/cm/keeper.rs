//! Drives connections during their setup, for transports that answer peers only while the application polls
//! ([`crate::transport::Transport::KEEPS`]). One thread of the process does this, and sleeps while nothing arrives.
//!
//! Passive endpoints are driven while they listen, endpoints while a connection is being established or ended.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::Result;

use crate::eq::Driven;
use crate::source::Arm;
use crate::sys::{self, WaitSet};
use crate::wake_fd::WakeFd;

/// The interval at which the thread, if nothing wakes it, checks for endpoints that no longer need it.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// After this many consecutive rounds with work, the thread pauses for [`PAUSE`] before each further one.
const BUSY: u32 = 100;
/// See [`BUSY`].
const PAUSE: Duration = Duration::from_millis(1);

struct Entry {
    driven: Weak<dyn Driven>,
    fd: Option<RawFd>,
}

struct Keeper {
    entries: Mutex<Vec<Entry>>,
    wake: WakeFd,
    set: WaitSet,
    process: u32,
}

/// The keeper of this process. A forked child has none until it needs one.
static KEEPER: Mutex<Option<Arc<Keeper>>> = Mutex::new(None);

/// Drives `driven` from now on, while it reports that it is pending.
///
/// # Errors
/// `FI_EMFILE`; `FI_EAGAIN` if no thread can be started.
pub fn keep(driven: &Arc<dyn Driven>) -> Result<()> {
    Keeper::get()?.add(driven)
}

impl Keeper {
    fn get() -> Result<Arc<Self>> {
        let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(keeper) = keeper.as_ref().filter(|keeper| keeper.process == std::process::id()) {
            return Ok(Arc::clone(keeper));
        }
        let (wake, set, process) = (WakeFd::new()?, WaitSet::new()?, std::process::id());
        set.add(wake.fd())?;
        let fresh = Arc::new(Self { entries: Mutex::default(), wake, set, process });
        let thread = Arc::clone(&fresh);
        let builder = std::thread::Builder::new().name("ofi-connect".into()).stack_size(256 << 10);
        builder.spawn(move || thread.run()).map_err(|_| sys::os_error("starting the connection thread"))?;
        *keeper = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, driven: &Arc<dyn Driven>) -> Result<()> {
        let place = Arc::as_ptr(driven).cast::<()>();
        let mut entries = self.entries();
        if !entries.iter().any(|entry| entry.driven.as_ptr().cast::<()>() == place) {
            let fd = driven.wait_fd();
            fd.map_or(Ok(()), |fd| self.set.add(fd))?;
            entries.push(Entry { driven: Arc::downgrade(driven), fd });
        }
        drop(entries);
        self.wake.signal();
        Ok(())
    }

    fn run(&self) {
        let mut busy = 0;
        loop {
            self.wake.arm();
            let all: Vec<Arc<dyn Driven>> =
                self.entries().iter().filter_map(|entry| entry.driven.upgrade()).collect();
            let mut until = Instant::now() + CHECK_INTERVAL;
            let mut ready = false;
            for driven in &all {
                driven.drive_if_pending();
                // It need not be woken when others make progress: any poll advances the connection, and the thread
                // checks again soon.
                ready |= driven.arm(&self.wake) == Arm::Ready;
                until = driven.deadline().map_or(until, |deadline| deadline.min(until));
            }
            drop(all);
            let none = self.forget();
            busy = if ready { busy + 1 } else { 0 };
            if busy > BUSY {
                std::thread::sleep(PAUSE); // it waits for the application
            }
            if !ready {
                sys::wait_readable(&[self.set.fd()], (!none).then_some(until));
            }
        }
    }

    /// Drops endpoints that no longer need the thread. Returns whether none are left.
    fn forget(&self) -> bool {
        let mut entries = self.entries();
        entries.retain(|entry| {
            let kept = entry.driven.upgrade();
            let keep = kept.as_ref().is_some_and(|driven| driven.is_pending());
            if !keep && let (Some(driven), Some(fd)) = (&kept, entry.fd) {
                // A closed descriptor's number may be reused; then it has left the set by itself.
                if driven.wait_fd() == Some(fd) {
                    self.set.remove(fd);
                }
            }
            keep
        });
        entries.is_empty()
    }
}
