//! The progress thread of a domain that was opened with `FI_PROGRESS_AUTO`: it drives transfers while the application
//! is busy elsewhere, and sleeps while the application busy-polls.
//!
//! Every 10 ms the thread counts the polls of the application. With `BUSY_POLLS` or more there is nothing to do.
//! Otherwise the thread polls until there is no more progress, and then blocks until a peer wakes it, checking at least
//! once a second.
//!
//! A poll of the application disarms the endpoint and wakes the thread; [`ofi_ring::sleep_handshake`] describes how
//! neither misses the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::Result;
use ofi_ring::sleep_handshake::SleepHandshake;

use crate::rearm::REARM_INTERVAL;
use crate::source::{Arm, Source};
use crate::sys::{self, WaitSet};
use crate::wake_fd::WakeFd;

/// The interval at which the thread checks whether the application polls.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// From this number of polls in that time, the thread leaves progress to the application: one per millisecond. With
/// fewer, a transfer that takes several steps at both ends would wait at each of them.
const BUSY_POLLS: u64 = 10;
/// The maximum sleep.
const MAX_SLEEP: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Sources(Vec<Weak<dyn Source>>);

struct Thread {
    sources: Mutex<Sources>,
    wake: WakeFd,
    slumber: SleepHandshake,
    stop: AtomicBool,
}

/// A domain's progress: by a thread, or only by the application's calls.
#[derive(Default)]
pub struct Progress(Option<Arc<Thread>>);

impl Progress {
    /// Progress as the application drives it.
    pub const fn manual() -> Self {
        Self(None)
    }

    /// Progress by a thread.
    ///
    /// # Errors
    /// Errors of starting a thread.
    pub fn automatic() -> Result<Self> {
        let thread = Arc::new(Thread {
            sources: Mutex::default(),
            wake: WakeFd::new()?,
            slumber: SleepHandshake::default(),
            stop: AtomicBool::new(false),
        });
        let shared = Arc::clone(&thread);
        let builder = std::thread::Builder::new().name("ofi-progress".into());
        builder.spawn(move || shared.run()).map_err(|_| sys::os_error("starting the progress thread"))?;
        Ok(Self(Some(thread)))
    }

    /// Drives `source` too.
    pub fn add(&self, source: &Arc<dyn Source>) {
        if let Some(thread) = &self.0 {
            thread.sources().0.push(Arc::downgrade(source));
            thread.wake.signal();
        }
    }

    /// Stops driving `source`.
    pub fn remove(&self, source: &Arc<dyn Source>) {
        if let Some(thread) = &self.0 {
            let gone = Arc::as_ptr(source).cast::<()>();
            thread.sources().0.retain(|source| source.as_ptr().cast::<()>() != gone);
            thread.wake.signal();
        }
    }

    /// Records a poll of the application. Call it under the lock of the endpoint, in the section that disarms the
    /// transport.
    #[inline]
    pub fn polled(&self) {
        if let Some(thread) = &self.0
            && thread.slumber.polled()
        {
            thread.wake.notify();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(thread) = &self.0 {
            thread.stop.store(true, Ordering::Release);
            thread.wake.signal();
        }
    }
}

impl Thread {
    fn sources(&self) -> std::sync::MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let (mut since, mut before) = (Instant::now(), self.slumber.polls());
        while !self.stop.load(Ordering::Acquire) {
            if self.slumber.polls().wrapping_sub(before) >= BUSY_POLLS {
                before = self.slumber.polls();
                self.wake.arm();
                if !self.stop.load(Ordering::Acquire) {
                    sys::wait_readable(&[self.wake.fd()], Some(Instant::now() + CHECK_INTERVAL));
                }
                since = Instant::now();
                continue;
            }
            if since.elapsed() >= CHECK_INTERVAL {
                (since, before) = (Instant::now(), self.slumber.polls());
            }
            self.drive();
        }
    }

    /// Polls until there is no more progress, then blocks.
    fn drive(&self) {
        let sources: Vec<Arc<dyn Source>> = self.sources().0.iter().filter_map(Weak::upgrade).collect();
        self.wake.arm();
        let Ok(set) = WaitSet::new() else { return std::thread::sleep(CHECK_INTERVAL) };
        let mut blocks = set.add(self.wake.fd()).is_ok() && !self.stop.load(Ordering::Acquire);
        let mut longest = MAX_SLEEP;
        self.slumber.begin();
        for source in &sources {
            match source.stand_in() {
                Arm::Armed => {}
                Arm::Stalled => longest = REARM_INTERVAL,
                Arm::Ready => blocks = false,
            }
            if let Some(fd) = source.wait_fd() {
                blocks &= set.add(fd).is_ok();
            }
        }
        drop(sources);
        if blocks {
            sys::wait_readable(&[set.fd()], Some(Instant::now() + longest));
        }
        self.slumber.end();
    }
}
