//! Counters. A counter is two numbers. Endpoints add to them when their operations end (`endpoint/staging.rs`), and
//! regions when a peer's access has been executed.
//!
//! Invariants:
//! I1. A thread that raises a number checks the wake fd afterwards for sleepers. A thread that goes to sleep arms the
//!     wake fd first, and checks the numbers afterwards. All four accesses are `SeqCst`, so one of the two sees the
//!     other.
//! I2. While the lock of `polled` is held, only the sources are called. An endpoint never takes that lock while it
//!     holds its own.

mod binding;
pub mod trigger;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ofi_api::{CntrAttr, CntrEvents, Counter, Errno, Error, MutexCond, Result, WaitObj};

pub use binding::{Counters, Kind};

use self::trigger::{TriggerLine, Works};
use crate::domain_id::DomainId;
use crate::fork::Born;
use crate::lock::Lock;
use crate::source::{Arm, Source};
use crate::spin_policy::SpinPolicy;
use crate::wait::{WaitObject, Waitable, no_wait_object};

/// The core's counter.
pub struct Cntr {
    domain: DomainId,
    born: Born,
    events: CntrEvents,
    wait_obj: WaitObj,
    value: AtomicU64,
    errors: AtomicU64,
    /// The values that the application read last, for [`Counter::trywait`].
    seen: AtomicU64,
    seen_errors: AtomicU64,
    /// The values at the last poll of a poll set, adjusted for the application's own changes.
    told: AtomicU64,
    told_errors: AtomicU64,
    polled: Lock<Polled>,
    /// Requests that wait for this counter, and where they go when they are due.
    pub(crate) line: TriggerLine,
    works: Arc<Works>,
    waiting: Option<WaitObject>,
}

/// The state that a read uses, under one lock.
#[derive(Default)]
struct Polled {
    /// The sources to drive when the counter is read.
    sources: Vec<Arc<dyn Source>>,
    spin: SpinPolicy,
}

impl Cntr {
    /// Opens a counter.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_SET` without a set; `FI_EMFILE` and the like.
    pub fn open(attr: &CntrAttr, domain: DomainId, works: &Arc<Works>) -> Result<Arc<Self>> {
        let waiting = WaitObject::open(attr.wait_obj, attr.wait_set.as_ref())?;
        let counter = Arc::new(Self {
            domain,
            born: Born::here(),
            events: attr.events,
            wait_obj: attr.wait_obj,
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            seen_errors: AtomicU64::new(0),
            told: AtomicU64::new(0),
            told_errors: AtomicU64::new(0),
            polled: Lock::default(),
            line: TriggerLine::empty(),
            works: Arc::clone(works),
            waiting,
        });
        if let Some(waiting) = &counter.waiting {
            let member: Arc<dyn Waitable> = Arc::clone(&counter) as _;
            waiting.join(Arc::downgrade(&member))?;
        }
        Ok(counter)
    }

    /// The domain that it was opened in.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// The core's counter behind an application's handle.
    ///
    /// # Errors
    /// `FI_EINVAL` for a counter of another library, `FI_EDOMAIN` for one of another domain.
    pub fn of(counter: &Arc<dyn Counter>, domain: DomainId) -> Result<Arc<Self>> {
        Self::borrow(counter, domain)?;
        let any: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(counter) as _;
        any.downcast::<Self>().map_err(|_| not_ours(Errno::EINVAL))
    }

    /// As [`Cntr::of`], by reference.
    ///
    /// # Errors
    /// As [`Cntr::of`].
    #[inline]
    pub fn borrow(counter: &Arc<dyn Counter>, domain: DomainId) -> Result<&Self> {
        let any: &dyn std::any::Any = &**counter;
        match any.downcast_ref::<Self>() {
            Some(own) if own.domain == domain => Ok(own),
            Some(_) => Err(not_ours(Errno::EDOMAIN)),
            None => Err(not_ours(Errno::EINVAL)),
        }
    }

    /// Counts an operation of `len` bytes that has succeeded.
    #[inline]
    pub fn count(&self, len: usize) {
        self.raise(if self.events == CntrEvents::Bytes { len as u64 } else { 1 });
    }

    /// Counts an operation that has failed.
    #[cold]
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::SeqCst);
        self.changed();
    }

    /// Adds to the value, whatever it counts.
    #[inline]
    pub(crate) fn raise(&self, by: u64) {
        self.value.fetch_add(by, Ordering::SeqCst);
        self.changed();
    }

    #[inline]
    fn changed(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.wake.notify();
        }
        if !self.line.is_empty() && self.has_due() {
            self.works.release(self);
        }
    }

    /// Whether a waiting request is due.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        let (value, errors) = self.values();
        self.line.concerns(value.saturating_add(errors))
    }

    /// Starts due requests. Call it without holding a lock.
    #[inline]
    pub(crate) fn start_due(&self) {
        if self.has_due() {
            self.works.start(self);
        } else {
            self.works.run_if_due();
        }
    }

    /// The application's changes.
    #[inline]
    fn changed_by_call(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.wake.notify();
        }
        self.start_due();
    }

    fn put(&self, value: u64) {
        self.told.store(value, Ordering::Release);
        self.value.store(value, Ordering::SeqCst);
    }

    /// Sets the value.
    pub(crate) fn store(&self, value: u64) {
        self.put(value);
        self.changed();
    }

    /// Drives `source` whenever the counter is read or waited on, until [`Cntr::remove_source`]. Call that before the
    /// source is dropped.
    ///
    /// # Errors
    /// Errors of adding its descriptor to the wait set.
    pub fn add_source(&self, source: &Arc<dyn Source>) -> Result<()> {
        let sources = &mut self.polled.lock().sources;
        if !sources.iter().any(|known| Arc::ptr_eq(known, source)) {
            if let Some(waiting) = &self.waiting
                && let Some(fd) = source.wait_fd()
            {
                waiting.sources.add(fd)?;
            }
            sources.push(Arc::clone(source));
            if let Some(waiting) = &self.waiting {
                waiting.wake.signal();
            }
        }
        Ok(())
    }

    /// Leaves `source` alone from now on.
    pub fn remove_source(&self, source: &Arc<dyn Source>) {
        if let Some(waiting) = &self.waiting
            && let Some(fd) = source.wait_fd()
        {
            waiting.sources.remove(fd);
        }
        let mut gone = Vec::new();
        self.polled.lock().sources.retain(|known| {
            let stays = !Arc::ptr_eq(known, source);
            if !stays {
                gone.push(Arc::clone(known)); // dropped without the lock
            }
            stays
        });
    }

    /// Drives all sources.
    pub(crate) fn drive(&self) {
        if !self.born.is_here() {
            return; // nothing else refers to it
        }
        for source in &self.polled.lock().sources {
            source.attend();
        }
        self.works.run_if_due();
    }

    /// Successes and failures.
    pub(crate) fn values(&self) -> (u64, u64) {
        (self.value.load(Ordering::SeqCst), self.errors.load(Ordering::SeqCst))
    }

    /// Arms everything that may change the counter. `Ok` if the numbers are still `values` afterwards: then the caller
    /// may block until one of the descriptors is readable.
    fn arm(&self, waiting: &WaitObject, values: (u64, u64)) -> bool {
        waiting.wake.arm();
        let wake = Some(&waiting.wake);
        let armed =
            self.polled.lock().sources.iter().all(|source| source.prepare_to_block(wake) == Arm::Armed);
        armed && self.values() == values && !self.works.is_due()
    }

    fn seen(&self) -> (u64, u64) {
        (self.seen.load(Ordering::Relaxed), self.seen_errors.load(Ordering::Relaxed))
    }

    /// Whether the numbers have changed since the last call, other than by the application. Drives progress.
    pub(crate) fn take_change(&self) -> bool {
        self.drive();
        let (value, errors) = self.values();
        let told = (self.told.swap(value, Ordering::AcqRel), self.told_errors.swap(errors, Ordering::AcqRel));
        told != (value, errors)
    }

    fn set_seen(&self, (value, errors): (u64, u64)) {
        self.seen.store(value, Ordering::Relaxed);
        self.seen_errors.store(errors, Ordering::Relaxed);
    }
}

#[cold]
fn not_ours(errno: Errno) -> Error {
    let found =
        if errno == Errno::EDOMAIN { "one of another domain" } else { "one of another implementation" };
    Error::wanted(
        errno,
        "the counter",
        "one that was opened in this domain",
        found,
        "open it with fi_cntr_open of this domain",
    )
}

impl Counter for Cntr {
    fn read(&self) -> u64 {
        if self.born.is_here() {
            let mut polled = self.polled.lock();
            for source in &polled.sources {
                source.attend();
            }
            let found = self.value.load(Ordering::SeqCst) != self.seen.load(Ordering::Relaxed);
            let hint = polled.spin.polled(found);
            drop(polled);
            self.works.run_if_due();
            hint.apply();
        }
        let value = self.value.load(Ordering::SeqCst);
        self.seen.store(value, Ordering::Relaxed);
        value
    }

    fn read_error(&self) -> u64 {
        self.drive();
        let errors = self.errors.load(Ordering::SeqCst);
        self.seen_errors.store(errors, Ordering::Relaxed);
        errors
    }

    fn add(&self, value: u64) -> Result<()> {
        self.born.check()?;
        self.told.fetch_add(value, Ordering::AcqRel);
        self.value.fetch_add(value, Ordering::SeqCst);
        self.changed_by_call();
        Ok(())
    }

    fn add_error(&self, value: u64) -> Result<()> {
        self.born.check()?;
        self.errors.fetch_add(value, Ordering::SeqCst);
        self.changed_by_call();
        Ok(())
    }

    fn set(&self, value: u64) -> Result<()> {
        self.born.check()?;
        self.put(value);
        self.changed_by_call();
        Ok(())
    }

    fn set_error(&self, value: u64) -> Result<()> {
        self.born.check()?;
        self.errors.store(value, Ordering::SeqCst);
        self.changed_by_call();
        Ok(())
    }

    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()> {
        self.born.check()?;
        let alone = self.waiting.is_some() && self.wait_obj != WaitObj::Set;
        if !alone && self.wait_obj != WaitObj::Yield {
            return Err(no_wait_object("fi_cntr_attr.wait_obj"));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let errors = self.errors.load(Ordering::SeqCst);
        loop {
            self.drive();
            let values = self.values();
            self.set_seen(values);
            // Check for a failure first: the value may have been reached before the call.
            if values.1 != errors {
                return Err(Error::AVAIL);
            }
            if values.0 >= threshold {
                return Ok(());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(Errno::ETIMEDOUT));
            }
            match &self.waiting {
                Some(waiting) => waiting.wake.asleep(|| {
                    if self.arm(waiting, values) {
                        waiting.sources.wait_readable(deadline);
                    }
                }),
                None => std::thread::yield_now(),
            }
        }
    }

    fn trywait(&self) -> Result<()> {
        self.born.check()?;
        let Some(waiting) = &self.waiting else { return Err(no_wait_object("fi_cntr_attr.wait_obj")) };
        waiting.prepare();
        if self.arm(waiting, self.seen()) { Ok(()) } else { Err(Error::AGAIN) }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.waiting.as_ref().and_then(|waiting| waiting.shown_fd(self.wait_obj))
    }

    fn mutex_cond(&self) -> Option<MutexCond> {
        self.waiting.as_ref().and_then(WaitObject::mutex_cond)
    }

    fn events(&self) -> CntrEvents {
        self.events
    }
}

impl Waitable for Cntr {
    fn has_something(&self) -> bool {
        self.drive();
        self.values() != self.seen()
    }

    fn prepare(&self) -> Result<()> {
        self.trywait()
    }
}

impl Drop for Cntr {
    fn drop(&mut self) {
        if !self.born.is_here() {
            std::mem::forget(self.waiting.take()); // as for queues
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(events: CntrEvents, wait_obj: WaitObj) -> Arc<Cntr> {
        let attr = CntrAttr { events, wait_obj, wait_set: None };
        let domain = DomainId::next();
        Cntr::open(&attr, domain, &Arc::new(Works::empty())).unwrap()
    }

    #[test]
    fn operations_and_bytes_are_counted_and_failures_one_by_one() {
        for (events, value) in [(CntrEvents::Comp, 2), (CntrEvents::Bytes, 107)] {
            let counter = counter(events, WaitObj::None);
            counter.count(100);
            counter.count(7);
            counter.count_error();
            assert_eq!((counter.read(), counter.read_error()), (value, 1));
        }
    }

    #[test]
    fn without_a_wait_object_nothing_waits() {
        let counter = counter(CntrEvents::Comp, WaitObj::None);
        assert_eq!(counter.wait(0, None).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(counter.trywait().unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(counter.wait_fd(), None);
    }

    /// Two threads take turns, each asleep until the other has counted. A lost wake-up would cause a timeout.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: u64 = 2_000;
        let bound = Some(Duration::from_secs(10));
        for wait_obj in [WaitObj::Unspec, WaitObj::Yield] {
            let (ping, pong) = (counter(CntrEvents::Comp, wait_obj), counter(CntrEvents::Comp, wait_obj));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 1..=ROUNDS {
                        ping.wait(round, bound).unwrap();
                        pong.count(0);
                    }
                });
                for round in 1..=ROUNDS {
                    ping.count(0);
                    pong.wait(round, bound).unwrap();
                }
            });
        }
    }

    #[test]
    fn a_failure_ends_a_wait() {
        let counter = counter(CntrEvents::Comp, WaitObj::Fd);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| counter.wait(1, Some(Duration::from_secs(10))));
            std::thread::sleep(Duration::from_millis(20));
            counter.count_error();
            assert_eq!(waiter.join().unwrap().unwrap_err().errno(), Errno::EAVAIL);
        });
        assert_eq!(counter.wait(1, Some(Duration::ZERO)).unwrap_err().errno(), Errno::ETIMEDOUT);
    }
}
