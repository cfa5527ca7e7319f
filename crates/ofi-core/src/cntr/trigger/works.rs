//! A domain's due requests, and the counters for which other requests wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ofi_api::{Context, Counter, DeferredOp, Errno, Error, Result, Threshold, Watcher, Work, WorkId};
use ofi_ring::single_runner::SingleRunner;

use super::line::take;
use super::{Deed, DeferredTarget, Item, Owned};
use crate::cntr::Cntr;
use crate::domain_id::DomainId;
use crate::lock::Lock;

/// The maximum number of requests that wait for one counter; beyond it calls return `FI_EAGAIN`.
const LIMIT: usize = 1 << 16;

/// The due requests of one domain, and the counters for which requests may wait.
pub struct Works {
    /// Starts the requests in `ready`, one thread at a time.
    runner: SingleRunner,
    next: AtomicU64,
    ready: Lock<VecDeque<Item>>,
    /// Counters for which requests may wait.
    counters: Mutex<Vec<Weak<Cntr>>>,
}

impl Works {
    /// None.
    pub fn empty() -> Self {
        Self {
            runner: SingleRunner::default(),
            next: AtomicU64::new(1),
            ready: Lock::new(VecDeque::new()),
            counters: Mutex::default(),
        }
    }

    /// Whether due requests wait to be started.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.runner.is_due()
    }

    /// Starts due requests. Call it without holding a lock.
    #[inline]
    pub fn run_if_due(&self) {
        if self.is_due() {
            self.run();
        }
    }

    /// Takes the requests that are due at `counter`. The next thread that holds no lock starts them.
    #[cold]
    pub fn release(&self, counter: &Cntr) {
        let mut ready = self.ready.lock();
        self.runner.announce(); // before anything is taken: see `start`
        let (value, errors) = counter.values();
        counter.line.take_due(value, errors, &mut ready);
    }

    /// A watcher that may be called under a lock; it calls `watcher` once no lock is held.
    pub fn telling(self: &Arc<Self>, watcher: Watcher) -> Watcher {
        let works = Arc::clone(self);
        Arc::new(move |event| {
            let mut ready = works.ready.lock();
            ready.push_back(Item { id: 0, threshold: 0, deed: Deed::Tell(Arc::clone(&watcher), event) });
            works.runner.announce();
        })
    }

    /// Starts the requests that are due at `counter`. Call it without holding a lock.
    ///
    /// They start directly from its line, unless older requests wait. A thread that takes requests out of the line
    /// meanwhile has announced that before; requests that are taken later come after its requests.
    #[inline]
    pub fn start(&self, counter: &Cntr) {
        if self.is_due() || !self.runner.take() {
            self.release(counter);
            return self.run();
        }
        let mut behind = false;
        loop {
            let (value, errors) = counter.values();
            let Some(item) = counter.line.take_first(value, errors) else { break };
            behind = self.is_due() || !item.start();
            if behind {
                self.ready.lock().push_back(item);
            }
            if behind || !counter.has_due() {
                break;
            }
        }
        let due = self.runner.end();
        if behind {
            self.release(counter);
        }
        if behind || due {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        loop {
            if !self.runner.begin() {
                return; // the running thread checks again
            }
            let mut left = VecDeque::new();
            let mut full: Vec<*const ()> = Vec::new();
            while let Some(item) = self.pop() {
                let target = item.target();
                if target.is_some_and(|target| full.contains(&target)) {
                    left.push_back(item);
                } else if !item.start() {
                    full.extend(target);
                    left.push_back(item);
                }
            }
            let stuck = !left.is_empty();
            if stuck {
                let mut ready = self.ready.lock();
                left.append(&mut ready);
                *ready = left;
                self.runner.announce();
            }
            if !self.runner.end() || stuck {
                return; // blocked requests are tried again at the next poll
            }
        }
    }

    /// The next request that is due.
    fn pop(&self) -> Option<Item> {
        self.ready.lock().pop_front()
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

    /// The counter of a triggered operation that must wait. `None` if the caller must post it at once.
    ///
    /// # Errors
    /// Those of [`Cntr::of`].
    #[inline]
    pub fn waits<'a>(&self, when: &'a Threshold<'_>, domain: DomainId) -> Result<Option<&'a Cntr>> {
        let (counter, threshold) = (Cntr::borrow(when.counter, domain)?, when.value);
        let due = counter.values().0 >= threshold && !counter.line.concerns(threshold) && !self.is_due();
        Ok((!due).then_some(counter))
    }

    /// Adds a triggered operation that must wait.
    ///
    /// # Errors
    /// `FI_EAGAIN` if too many wait.
    #[inline]
    pub fn wait_for(&self, when: &Threshold<'_>, counter: &Cntr, deed: Deed) -> Result<()> {
        self.add(when, counter, Item { id: 0, threshold: when.value, deed })
    }

    #[inline]
    fn add(&self, when: &Threshold<'_>, counter: &Cntr, item: Item) -> Result<()> {
        if !counter.line.enlisted.load(Ordering::Acquire) {
            self.enlist(when.counter, counter.domain())?;
        }
        if !counter.line.add(item, LIMIT) {
            return Err(Error::AGAIN);
        }
        counter.start_due();
        Ok(())
    }

    /// Adds a request of the deferred work queue.
    ///
    /// # Errors
    /// `FI_EAGAIN` if too many wait; those of [`Cntr::of`].
    pub fn queue(&self, when: &Threshold<'_>, domain: DomainId, deed: Deed) -> Result<WorkId> {
        let counter = Cntr::borrow(when.counter, domain)?;
        let id = self.next_id();
        self.add(when, counter, Item { id, threshold: when.value, deed })?;
        Ok(WorkId(id))
    }

    /// Removes requests that have not started, whether waiting or due.
    fn withdraw(&self, counter: Option<&Cntr>, mut wanted: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut gone = Vec::new();
        for known in self.counters() {
            if counter.is_none_or(|counter| std::ptr::eq(counter, &*known)) {
                gone.append(&mut known.line.withdraw(&mut wanted));
            }
        }
        if counter.is_none() {
            gone.append(&mut take(&mut self.ready.lock(), wanted));
        }
        gone
    }

    /// `FI_CANCEL_WORK`.
    ///
    /// # Errors
    /// `FI_ENOENT` if it has started or never existed.
    pub fn cancel(&self, id: WorkId) -> Result<()> {
        if self.withdraw(None, |item| item.id == id.0 && id.0 != 0).is_empty() {
            return Err(Error::wanted(
                Errno::ENOENT,
                "FI_CANCEL_WORK",
                "a request that waits",
                format!("{}, which does not", id.0),
                "no action needed: it has started, or was cancelled before",
            ));
        }
        Ok(())
    }

    /// `FI_FLUSH_WORK`: cancels all deferred work, or the work of one counter. Returns the number of cancelled
    /// requests.
    pub fn flush(&self, counter: Option<&Cntr>) -> usize {
        self.withdraw(counter, |item| item.deed.triggered().is_none() && !matches!(item.deed, Deed::Tell(..)))
            .len()
    }

    /// Drops the triggered operations of a closing endpoint. Its deferred work finds that out when it is due.
    pub fn forget(&self, target: *const ()) {
        drop(self.withdraw(None, |item| item.deed.triggered().is_some_and(|(its, ..)| is(its, target))));
    }

    /// `fi_cancel` of a triggered operation. Returns whether one was removed.
    pub fn cancel_triggered(&self, target: *const (), context: Context) -> bool {
        let mut found = false;
        let mut is_it = |item: &Item| {
            let is_it =
                item.deed.triggered().is_some_and(|(its, known, _)| is(its, target) && known == context);
            let first = is_it && !found;
            found |= first;
            first
        };
        for item in self.withdraw(None, &mut is_it) {
            if let Some((target, context, flags)) = item.deed.triggered() {
                target.lost(context, flags, Errno::ECANCELED);
            }
        }
        found
    }
}

/// Whether `target` is the endpoint at that address.
fn is(target: &Arc<dyn DeferredTarget>, endpoint: *const ()) -> bool {
    std::ptr::eq(Arc::as_ptr(target).cast::<()>(), endpoint)
}

/// The action of a work request, checked as far as possible before it starts. `target` returns the core of an
/// application's endpoint.
///
/// # Errors
/// As [`Cntr::of`] and `target`; `FI_ENOSYS` for work that is not supported.
pub fn deed(
    work: &Work<'_>,
    domain: DomainId,
    target: impl FnOnce(&Arc<dyn ofi_api::Endpoint>, &DeferredOp<'_>) -> Result<Weak<dyn DeferredTarget>>,
) -> Result<Deed> {
    Ok(match work {
        Work::Post { endpoint, op, completion } => {
            let completion = completion.map(|counter| Cntr::of(counter, domain)).transpose()?;
            let owned = Box::new(Owned::new(op, false));
            Deed::Work(target(endpoint, op)?, owned, completion.as_ref().map(Arc::downgrade))
        }
        Work::SetCounter(counter, value) => Deed::Set(Arc::downgrade(&Cntr::of(counter, domain)?), *value),
        Work::AddCounter(counter, value) => Deed::Add(Arc::downgrade(&Cntr::of(counter, domain)?), *value),
    })
}
