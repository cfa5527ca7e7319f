//! A cache of device registrations of local memory.
//!
//! A registration that outlives its use is only valid while the same pages stay behind its addresses. The cache keeps
//! registrations of two kinds of memory:
//! - *ranges*, which are promised to stay in place, because the application has registered them (fi_mr_reg) or the
//!   library has allocated them. Closing the registration, or freeing the memory, flushes the range.
//! - *watched* memory, if there is a monitor ([`crate::monitor`]) that reports when pages are replaced.
//!
//! All other memory is registered for one operation.
//!
//! Invariants:
//! I1. The cache keeps a registration only for a range that was added and not removed, or for watched memory without a
//! reported change. Operations that use it also hold it.
//! I2. For each of the two kinds, the cache keeps at most [`CacheLimits::count`] registrations of at most
//! [`CacheLimits::bytes`] bytes. It evicts the least recently used.
//! I3. A kept registration of watched memory is used only if the monitor is settled after the operation began: the
//! operation's memory was mapped before, so each change that made room for it was published and is applied first.
//! I4. Memory whose pages were dropped in place (`MADV_DONTNEED`) is not kept for [`EMPTIED_PAUSE`]: that change alone
//! is reported before it happens, so pages that are registered meanwhile may be dropped later.
//! I5. Memory is registered without the lock, because that may take long. Meanwhile the range is not removed: its
//! removal waits, as do other threads that need the same registration.

mod spans;
#[cfg(test)]
mod tests;

use std::ops::Range as Span;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::monitor::{self, Change, Watch, page_size};
pub use spans::RangeId;
use spans::Spans;

/// The limits of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Maximum number of registrations. With 0, all memory is registered for one operation.
    pub count: usize,
    /// Maximum total bytes of all registrations.
    pub bytes: usize,
}

/// Who accesses the memory by a registration. Each has a registration of its own, so that peers cannot read memory
/// that was never sent to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Requests of this end.
    Local,
    /// Peers' devices, which read messages.
    Exposed,
}

/// Until when a registration may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAs {
    /// Until the range is removed.
    Range,
    /// Until the pages are replaced. No change of their protection is reported: a registration for requests of this end
    /// must be writable.
    Watched,
    /// Until the operation ends.
    Lent,
}

/// The error of a registration.
pub trait RegisterError {
    /// Whether other registrations, or the memory that they lock, leave no room for this one.
    fn is_shortage(&self) -> bool;
}

impl RegisterError for crate::Error {
    fn is_shortage(&self) -> bool {
        is_shortage(self.errno)
    }
}

/// Whether this error number of a registration says that others leave no room for it.
pub fn is_shortage(errno: i32) -> bool {
    matches!(errno, libc::ENOMEM | libc::ENOSPC | libc::EAGAIN)
}

/// How long emptied memory is not kept: far longer than a thread takes from an event of madvise to its effect.
pub const EMPTIED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of emptied ranges that are remembered apart.
const MAX_EMPTIED: usize = 64;
/// How often a lookup yields to wait for a change of memory that is under way.
const SETTLE_YIELDS: usize = 8;

/// The statistics of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Uses of a kept registration.
    pub hits: u64,
    /// Created registrations, both cached ones and those for one operation.
    pub misses: u64,
    /// Registrations that were evicted.
    pub evictions: u64,
    /// Registrations that ended because the pages of their memory were replaced.
    pub invalidations: u64,
    /// Number of registrations kept now.
    pub kept: usize,
    /// Total bytes of those.
    pub bytes: usize,
}

/// A registration, and the addresses that it covers.
pub type Kept<R> = (Span<usize>, Arc<R>);

/// A monitor, and the limits of watched memory.
pub type Watched = (&'static dyn Watch, CacheLimits);

/// The monitor that `FI_MR_CACHE_MONITOR` names, with the limits of what is kept for it; `None` if that says to use
/// none, or if nothing may be kept: then it is not started. If there is no such monitor, `missing` gets the reason,
/// once in each process.
pub fn watched(name: &str, limits: CacheLimits, missing: impl FnOnce(String)) -> Option<Watched> {
    static TOLD: Once = Once::new();
    if limits.count == 0 {
        return None;
    }
    let found = monitor::by_name(name).unwrap_or_else(|why| {
        TOLD.call_once(|| missing(why));
        None
    });
    found.map(|watch| (watch, limits))
}

struct CacheState<R> {
    ranges: Spans<R>,
    watched: Spans<R>,
    /// Number of the monitor's next change.
    next_change: u64,
    /// Memory that was emptied, and when.
    emptied: Vec<(Span<usize>, Instant)>,
    clock: u64,
    counts: CacheCounts,
}

/// A cache of device registrations of type `R`.
pub struct Cache<R> {
    limits: CacheLimits,
    watch: Option<Watched>,
    page: usize,
    state: Mutex<CacheState<R>>,
    /// Signalled when a range was registered, or was not.
    made: Condvar,
    /// As [`CacheState::next_change`], to read without the lock.
    applied: AtomicU64,
    removals: AtomicU64,
}

impl<R> Cache<R> {
    /// An empty cache of ranges.
    pub fn new(limits: CacheLimits) -> Self {
        Self::with(limits, None)
    }

    /// An empty cache, of watched memory too if there is a monitor.
    pub fn with(limits: CacheLimits, watch: Option<Watched>) -> Self {
        let watch = watch.filter(|(_, limits)| limits.count > 0);
        let state = CacheState {
            ranges: Spans::default(),
            watched: Spans::default(),
            next_change: watch.map_or(0, |(watch, _)| watch.published()),
            emptied: Vec::new(),
            clock: 0,
            counts: CacheCounts::default(),
        };
        let applied = AtomicU64::new(state.next_change);
        Self {
            limits,
            watch,
            page: page_size(),
            state: Mutex::new(state),
            made: Condvar::new(),
            applied,
            removals: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, CacheState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a thread has registered a range.
    fn wait<'a>(&self, state: MutexGuard<'a, CacheState<R>>) -> MutexGuard<'a, CacheState<R>> {
        self.made.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds memory that stays in place until it is removed. Ranges may overlap.
    pub fn add(&self, start: usize, len: usize) -> RangeId {
        self.tidy();
        self.state().ranges.add(start, len)
    }

    /// As [`Cache::add`], for memory that not all peers may access: a message there is registered for peers alone, and
    /// for one operation.
    pub fn add_guarded(&self, start: usize, len: usize) -> RangeId {
        self.tidy();
        self.state().ranges.add_guarded(start, len)
    }

    /// Removes memory that may be freed or moved, with its cached registrations.
    pub fn remove(&self, id: RangeId) {
        let mut state = self.state();
        while state.ranges.is_making(id, None) {
            state = self.wait(state);
        }
        self.removals.fetch_add(1, Ordering::Release);
        let removed = state.ranges.remove(id);
        drop(state); // before the removed registrations: deregistering takes a system call
        drop(removed);
        self.tidy();
    }

    /// Evicts a registration. Its memory is registered again at its next use.
    pub fn retire(&self, made: &Arc<R>) {
        let mut gone = Vec::new(); // dropped after the lock
        let mut state = self.state();
        self.removals.fetch_add(1, Ordering::Release);
        if let Some((watch, _)) = self.watch {
            self.apply(&mut state, watch, None, &mut gone);
        }
        let mut kept = state.ranges.take(made);
        if kept.is_none()
            && let Some((watch, _)) = self.watch
            && let Some((id, (span, made))) = state.watched.take(made)
        {
            state.watched.forget(id);
            self.unwatch(watch, &span, None);
            kept = Some((id, (span, made)));
        }
        drop(state);
        drop(kept); // the caller has another
    }

    /// Drops registrations of watched memory that has changed. Endpoints call it when they poll and before they sleep,
    /// so that unmapped memory does not stay pinned, nor open to peers.
    pub fn tidy(&self) {
        if let Some((watch, _)) = self.watch
            && watch.published() != self.applied.load(Ordering::Relaxed)
        {
            let mut gone = Vec::new();
            self.apply(&mut self.state(), watch, None, &mut gone);
        }
    }

    /// Number of removals of ranges. After a removal, a registration that was found earlier must not be used for a new
    /// operation.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// A registration that covers `len` bytes from `start` on: a cached one, or a new one from `make`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn get<E: RegisterError>(
        &self,
        purpose: Purpose,
        start: usize,
        len: usize,
        mut make: impl FnMut(usize, usize, KeptAs) -> Result<R, E>,
    ) -> Result<Arc<R>, E> {
        let is_guarded = purpose == Purpose::Exposed && self.state().ranges.is_guarded(start, len);
        if !is_guarded {
            if let Some((_, made)) = self.get_range(purpose, start, len, &mut make)? {
                return Ok(made);
            }
            if let Some(made) = self.get_watched(purpose, start, len, &mut make) {
                return Ok(made);
            }
        }
        let made = self.with_room(|| make(start, len, KeptAs::Lent))?;
        self.state().counts.misses += 1;
        Ok(Arc::new(made))
    }

    /// Calls `make`, and once more if it finds no room and [`Cache::release_unused`] makes some.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn with_room<T, E: RegisterError>(&self, mut make: impl FnMut() -> Result<T, E>) -> Result<T, E> {
        match make() {
            Err(error) if error.is_shortage() && self.release_unused() => make(),
            made => made,
        }
    }

    /// Removes the registrations of watched memory that no operation uses. The limit of locked memory, or of the
    /// device's registrations, may leave room for nothing else. Whether there were any.
    pub fn release_unused(&self) -> bool {
        let released = self.release(&mut self.state());
        !released.is_empty()
    }

    fn release(&self, state: &mut CacheState<R>) -> Vec<Arc<R>> {
        let Some((watch, _)) = self.watch else { return Vec::new() };
        let mut released = Vec::new();
        self.apply(state, watch, None, &mut released);
        let unused = state.watched.take_unused();
        state.counts.evictions += unused.len() as u64;
        for (span, made) in unused {
            self.unwatch(watch, &span, None);
            released.push(made);
        }
        released
    }

    /// The registration of an added range that contains `len` bytes from `start` on, and the addresses that it covers.
    /// `None` if there is no such range, or it is too long to be kept, or `make` has failed for it before.
    ///
    /// # Errors
    /// The errors of `make`, which is given the whole range.
    pub fn get_range<E: RegisterError>(
        &self,
        purpose: Purpose,
        start: usize,
        len: usize,
        mut make: impl FnMut(usize, usize, KeptAs) -> Result<R, E>,
    ) -> Result<Option<Kept<R>>, E> {
        let mut state = self.state();
        let (id, now) = loop {
            let Some(id) = state.ranges.find(purpose, start, len) else { return Ok(None) };
            let now = state.tick();
            if let Some(kept) = state.ranges.touch(id, purpose, now) {
                state.counts.hits += 1;
                return Ok(Some(kept));
            }
            if !state.ranges.is_making(id, Some(purpose)) {
                break (id, now);
            }
            state = self.wait(state);
        };
        let bytes = state.ranges.len_of(id);
        if bytes > self.limits.bytes || self.limits.count == 0 {
            return Ok(None);
        }
        // No other thread removes the range meanwhile, or registers it a second time.
        state.ranges.set_making(id, purpose, true);
        drop(state);
        let making = Making { cache: self, id, purpose };
        let made = self.with_room(|| make(id.start, bytes, KeptAs::Range));
        let mut state = self.state();
        let made = made.map(Arc::new).inspect_err(|_| state.ranges.refuse(id, purpose))?;
        state.counts.misses += 1;
        let gone = state.ranges.make_room(bytes, self.limits);
        state.counts.evictions += gone.len() as u64;
        state.ranges.keep(id, purpose, Arc::clone(&made), now);
        drop(state);
        drop(making);
        drop(gone);
        Ok(Some((id.start..id.start + bytes, made)))
    }

    /// The registration of watched memory. `None` if the memory cannot be watched, or changes.
    fn get_watched<E>(
        &self,
        purpose: Purpose,
        start: usize,
        len: usize,
        make: &mut impl FnMut(usize, usize, KeptAs) -> Result<R, E>,
    ) -> Option<Arc<R>> {
        let (watch, limits) = self.watch?;
        let end = start.checked_add(len)?;
        if !self.settle(watch) {
            return None; // rare: the registration for one operation is valid in any case
        }
        let mut gone = Vec::new(); // dropped after the lock
        let mut state = self.state();
        self.apply(&mut state, watch, None, &mut gone);
        let now = state.tick();
        if let Some(id) = state.watched.find(purpose, start, len)
            && let Some((_, made)) = state.watched.touch(id, purpose, now)
        {
            state.counts.hits += 1;
            return Some(made);
        }
        if len == 0 || len > limits.bytes || state.was_emptied(start..end) {
            return None;
        }
        // Peers read nothing but messages; requests of this end may use the rest of a page.
        let least = match purpose {
            Purpose::Local => self.pages(&(start..end)).filter(|pages| pages.len() <= limits.bytes)?,
            Purpose::Exposed => start..end,
        };
        // One registration for all overlapping memory, if it is not too long: neighbours share a page, and a message in
        // many pieces must not pin each piece again with the next one.
        let whole = state.watched.union(purpose, &least);
        let longest = limits.bytes.min(least.len().saturating_mul(2));
        let whole = if whole.len() <= longest { whole } else { least };
        let pages = self.pages(&whole)?;
        if state.was_emptied(pages.clone()) || !watch.watch(&pages) {
            return None;
        }
        let from = state.next_change;
        drop(state);
        let Ok(made) = make(whole.start, whole.len(), KeptAs::Watched) else {
            watch.unwatch(&pages, None);
            return None;
        };
        let made = Arc::new(made);
        // The pages may have been replaced since they were watched.
        let is_settled = self.settle(watch);
        let mut state = self.state();
        state.counts.misses += 1;
        // Other threads may have applied changes meanwhile, which apply does not see again.
        let is_stable = is_settled && (state.next_change == from || is_unchanged(watch, from, &pages));
        if !self.apply(&mut state, watch, Some(&pages), &mut gone) || !is_stable {
            watch.unwatch(&pages, None);
            return Some(made); // for this operation, whose own memory does not change
        }
        for id in state.watched.inside(purpose, &whole) {
            if let Some((span, old)) = state.watched.drop_one(id, purpose) {
                self.unwatch(watch, &span, None);
                gone.push(old);
            }
        }
        for (id, (span, old)) in state.watched.make_room(whole.len(), limits) {
            state.counts.evictions += 1;
            state.watched.forget(id);
            self.unwatch(watch, &span, None);
            gone.push(old);
        }
        let id = state.watched.add(whole.start, whole.len());
        state.watched.keep(id, purpose, Arc::clone(&made), now);
        drop(state);
        Some(made)
    }

    /// Waits shortly until no change of memory is under way.
    fn settle(&self, watch: &dyn Watch) -> bool {
        (0..SETTLE_YIELDS).any(|nth| {
            if nth > 0 {
                std::thread::yield_now();
            }
            watch.is_settled()
        })
    }

    /// Drops the registrations of memory that has changed, into `gone`. Whether none of `pages` have.
    fn apply(
        &self,
        state: &mut CacheState<R>,
        watch: &dyn Watch,
        pages: Option<&Span<usize>>,
        gone: &mut Vec<Arc<R>>,
    ) -> bool {
        if watch.published() == state.next_change {
            return true;
        }
        let mut is_stable = true;
        let from = state.next_change;
        let next = watch.changes(from, &mut |change| {
            is_stable &= !pages.is_some_and(|pages| overlap(pages, change.span()));
            let unmapped = match &change {
                Change::Unmapped(span) => Some(span),
                Change::Emptied(span) => {
                    state.empty(span.clone());
                    None
                }
            };
            for (span, old) in state.watched.take_overlapping(change.span()) {
                state.counts.invalidations += 1;
                self.unwatch(watch, &span, unmapped);
                gone.push(old);
            }
        });
        let next = next.unwrap_or_else(|| {
            // Some changes were lost, which may have been of any memory.
            is_stable = false;
            let published = watch.published();
            state.empty(0..usize::MAX);
            for (span, old) in state.watched.take_overlapping(&(0..usize::MAX)) {
                state.counts.invalidations += 1;
                self.unwatch(watch, &span, Some(&(0..usize::MAX)));
                gone.push(old);
            }
            published
        });
        state.next_change = next;
        self.applied.store(next, Ordering::Relaxed);
        is_stable
    }

    fn unwatch(&self, watch: &dyn Watch, span: &Span<usize>, unmapped: Option<&Span<usize>>) {
        if let Some(pages) = self.pages(span) {
            watch.unwatch(&pages, unmapped);
        }
    }

    /// The whole pages around a span.
    fn pages(&self, span: &Span<usize>) -> Option<Span<usize>> {
        let start = span.start - span.start % self.page;
        Some(start..span.end.checked_next_multiple_of(self.page)?)
    }

    /// The statistics.
    pub fn counts(&self) -> CacheCounts {
        let state = self.state();
        let (kept, bytes) =
            (state.ranges.kept + state.watched.kept, state.ranges.bytes + state.watched.bytes);
        CacheCounts { kept, bytes, ..state.counts }
    }
}

fn overlap(a: &Span<usize>, b: &Span<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Whether no change from number `from` on is of these pages.
fn is_unchanged(watch: &dyn Watch, from: u64, pages: &Span<usize>) -> bool {
    let mut is_stable = true;
    let next = watch.changes(from, &mut |change| is_stable &= !overlap(pages, change.span()));
    is_stable && next.is_some()
}

/// The registration of a range by one thread, until this is dropped.
struct Making<'a, R> {
    cache: &'a Cache<R>,
    id: RangeId,
    purpose: Purpose,
}

impl<R> Drop for Making<'_, R> {
    fn drop(&mut self) {
        self.cache.state().ranges.set_making(self.id, self.purpose, false);
        self.cache.made.notify_all();
    }
}

impl<R> Drop for Cache<R> {
    fn drop(&mut self) {
        let Some((watch, _)) = self.watch else { return };
        if !watch.is_here() {
            // A forked child has no right to end its parent's registrations, and the lock may be taken for ever.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(&mut state.ranges));
            std::mem::forget(std::mem::take(&mut state.watched));
            return;
        }
        let mut gone = Vec::new();
        let mut state = self.state();
        self.apply(&mut state, watch, None, &mut gone);
        for (span, old) in state.watched.take_overlapping(&(0..usize::MAX)) {
            self.unwatch(watch, &span, None);
            gone.push(old);
        }
    }
}

impl<R> CacheState<R> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records that memory was emptied.
    fn empty(&mut self, span: Span<usize>) {
        let now = Instant::now();
        self.emptied.retain(|(_, then)| now.duration_since(*then) < EMPTIED_PAUSE);
        let is_full = self.emptied.len() >= MAX_EMPTIED;
        match self.emptied.last_mut().filter(|_| is_full) {
            Some((last, then)) => {
                *last = last.start.min(span.start)..last.end.max(span.end);
                *then = now;
            }
            None => self.emptied.push((span, now)),
        }
    }

    fn was_emptied(&mut self, span: Span<usize>) -> bool {
        if self.emptied.is_empty() {
            return false;
        }
        let now = Instant::now();
        self.emptied.retain(|(_, then)| now.duration_since(*then) < EMPTIED_PAUSE);
        self.emptied.iter().any(|(emptied, _)| emptied.start < span.end && span.start < emptied.end)
    }
}
