//! A domain's requests that are due, and where the others wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ofi_api::{Context, Counter, DeferredOp, Errno, Error, Result, Threshold, Work, WorkId};

use super::line::take;
use super::{Deed, Item, Owned, Target};
use crate::cntr::Cntr;
use crate::domain::DomainId;

/// Requests that may wait for one counter; more answer `FI_EAGAIN`.
const LIMIT: usize = 1 << 16;

/// See the module.
pub struct Works {
    /// Something is in `ready`.
    due: AtomicBool,
    running: AtomicBool,
    next: AtomicU64,
    ready: Mutex<VecDeque<Item>>,
    /// Counters that something may wait for.
    counters: Mutex<Vec<Weak<Cntr>>>,
}

impl Default for Works {
    fn default() -> Self {
        Self {
            due: AtomicBool::new(false),
            running: AtomicBool::new(false),
            next: AtomicU64::new(1),
            ready: Mutex::default(),
            counters: Mutex::default(),
        }
    }
}

impl Works {
    fn ready(&self) -> MutexGuard<'_, VecDeque<Item>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something waits only for being started.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }

    /// Starts what is due. To be called without a lock.
    #[inline]
    pub fn run_if_due(&self) {
        if self.is_due() {
            self.run();
        }
    }

    /// Takes what is due at `counter`, to be started by whoever next holds no lock.
    #[cold]
    pub fn release(&self, counter: &Cntr) {
        let mut ready = self.ready();
        let (value, errors) = counter.values();
        counter.line.take_due(value, errors, &mut ready);
        if !ready.is_empty() {
            self.due.store(true, Ordering::SeqCst);
        }
    }

    #[cold]
    fn run(&self) {
        loop {
            if self.running.swap(true, Ordering::SeqCst) {
                return; // whoever runs looks again
            }
            self.due.store(false, Ordering::SeqCst);
            let mut left = VecDeque::new();
            let mut full: Vec<*const ()> = Vec::new();
            while let Some(item) = self.pop() {
                let target = item.target();
                if target.is_some_and(|target| full.contains(&target)) {
                    left.push_back(item);
                } else if let Some(item) = item.start() {
                    full.extend(target);
                    left.push_back(item);
                }
            }
            let stuck = !left.is_empty();
            if stuck {
                let mut ready = self.ready();
                left.append(&mut ready);
                *ready = left;
                self.due.store(true, Ordering::SeqCst);
            }
            self.running.store(false, Ordering::SeqCst);
            if stuck || !self.due.load(Ordering::SeqCst) {
                return; // what is stuck is tried again at the next poll
            }
        }
    }

    /// The next request that is due.
    #[inline]
    fn pop(&self) -> Option<Item> {
        self.ready().pop_front()
    }

    #[cold]
    fn enlist(&self, counter: &Arc<dyn Counter>, domain: DomainId) -> Result<()> {
        let counter = Cntr::of(counter, domain)?;
        if !counter.line.enlisted.swap(true, Ordering::AcqRel) {
            let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
            counters.retain(|known| known.strong_count() > 0);
            counters.push(Arc::downgrade(&counter));
        }
        Ok(())
    }

    fn counters(&self) -> Vec<Arc<Cntr>> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().filter_map(Weak::upgrade).collect()
    }

    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn wait_for(&self, when: &Threshold<'_>, counter: &Cntr, item: Item) -> Result<()> {
        if !counter.line.enlisted.load(Ordering::Acquire) {
            self.enlist(when.counter, counter.domain())?;
        }
        if !counter.line.add(item, LIMIT) {
            return Err(Error::AGAIN);
        }
        counter.look(self);
        self.run_if_due();
        Ok(())
    }

    /// Takes a triggered operation, if it is not due: `Ok(false)` has the caller post it at once.
    ///
    /// # Errors
    /// `FI_EAGAIN` if too many wait; those of [`Cntr::of`].
    pub fn trigger(
        &self,
        when: &Threshold<'_>,
        domain: DomainId,
        target: impl FnOnce() -> Weak<dyn Target>,
        op: &DeferredOp<'_>,
    ) -> Result<bool> {
        let (counter, threshold) = (Cntr::borrow(when.counter, domain)?, when.value);
        if counter.values().0 >= threshold && !counter.line.concerns(threshold) && !self.is_due() {
            return Ok(false);
        }
        let deed = Deed::Triggered(target(), Owned::new(op, true));
        self.wait_for(when, counter, Item { id: 0, threshold, deed }).map(|()| true)
    }

    /// Takes a request of the deferred work queue.
    ///
    /// # Errors
    /// `FI_EAGAIN` if too many wait; those of [`Cntr::of`].
    pub fn queue(&self, when: &Threshold<'_>, domain: DomainId, deed: Deed) -> Result<WorkId> {
        let counter = Cntr::borrow(when.counter, domain)?;
        let id = self.next_id();
        self.wait_for(when, counter, Item { id, threshold: when.value, deed })?;
        Ok(WorkId(id))
    }

    /// Takes requests back that have not started: those that wait, and those that found no room.
    fn withdraw(&self, counter: Option<&Cntr>, mut wanted: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut gone = Vec::new();
        for known in self.counters() {
            if counter.is_none_or(|counter| std::ptr::eq(counter, &*known)) {
                gone.append(&mut known.line.withdraw(&mut wanted));
            }
        }
        if counter.is_none() {
            gone.append(&mut take(&mut self.ready(), wanted));
        }
        gone
    }

    /// `FI_CANCEL_WORK`.
    ///
    /// # Errors
    /// `FI_ENOENT` if it has started, or never was.
    pub fn cancel(&self, id: WorkId) -> Result<()> {
        if self.withdraw(None, |item| item.id == id.0 && id.0 != 0).is_empty() {
            return Err(Error::wanted(
                Errno::ENOENT,
                "FI_CANCEL_WORK",
                "a request that waits",
                format!("{}, which does not", id.0),
                "nothing: it has started, or was cancelled before",
            ));
        }
        Ok(())
    }

    /// `FI_FLUSH_WORK`: all deferred work, or that of one counter. How much there was.
    pub fn flush(&self, counter: Option<&Cntr>) -> usize {
        self.withdraw(counter, |item| !matches!(item.deed, Deed::Triggered(..))).len()
    }

    /// `fi_cancel` of a triggered operation. Whether one was taken back.
    pub fn cancel_triggered(&self, target: *const (), context: Context) -> bool {
        let mut found = false;
        let mut is_it = |item: &Item| match &item.deed {
            Deed::Triggered(known, op) if !found => {
                found = std::ptr::eq(known.as_ptr().cast::<()>(), target) && op.context() == context;
                found
            }
            _ => false,
        };
        let gone = self.withdraw(None, &mut is_it);
        for item in gone {
            if let Deed::Triggered(target, op) = &item.deed
                && let Some(target) = target.upgrade()
            {
                target.lost(op.context(), op.flags(), Errno::ECANCELED);
            }
        }
        found
    }
}

/// What a work request does, checked as far as that is possible before it starts. `target` takes the core out of an
/// application's endpoint.
///
/// # Errors
/// As [`Cntr::of`] and `target`; `FI_ENOSYS` for work that is not supported.
pub fn deed(
    work: &Work<'_>,
    domain: DomainId,
    target: impl FnOnce(&Arc<dyn ofi_api::Endpoint>, &DeferredOp<'_>) -> Result<Weak<dyn Target>>,
) -> Result<Deed> {
    Ok(match work {
        Work::Post { endpoint, op, completion } => {
            let completion = completion.map(|counter| Cntr::of(counter, domain)).transpose()?;
            Deed::Work(target(endpoint, op)?, Owned::new(op, false), completion.as_ref().map(Arc::downgrade))
        }
        Work::SetCounter(counter, value) => Deed::Set(Arc::downgrade(&Cntr::of(counter, domain)?), *value),
        Work::AddCounter(counter, value) => Deed::Add(Arc::downgrade(&Cntr::of(counter, domain)?), *value),
    })
}
