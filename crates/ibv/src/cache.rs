//! A cache of device registrations of local memory.
//!
//! A registration that outlives its use is valid only while the same pages stay behind its addresses, and no code here
//! watches the process's mappings: Linux gives an unprivileged process no userfaultfd that sees the kernel's own
//! accesses, a mapping has only one watcher, which the program may need itself, and each `munmap` of watched memory
//! would wait for a thread of this library. So the cache keeps only registrations of *ranges*: memory that is promised
//! to stay in place, because the application has registered it (fi_mr_reg) or the library has allocated it. Closing
//! that registration, or freeing the memory, flushes the range. All other memory is registered for one operation.
//!
//! Invariants:
//! I1. The cache keeps a registration only for a range that was added and not removed. Operations that use a
//!     registration hold it too.
//! I2. The cache keeps registrations of at most [`CacheLimits::count`] ranges and [`CacheLimits::bytes`] bytes. It
//!     evicts the least recently used one.

use std::collections::BTreeMap;
use std::ops::Range as Span;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The limits of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Maximum number of registrations.
    pub count: usize,
    /// Maximum total bytes of all registrations.
    pub bytes: usize,
}

/// Identifies a range while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeId {
    start: usize,
    number: u64,
}

struct Range<R> {
    len: usize,
    made: Option<Arc<R>>,
    /// Whether registering the range has failed. It is then not tried again.
    refused: bool,
    /// When the range was last used, by the cache's clock.
    used: u64,
}

struct Ranges<R> {
    /// Ranges by start. A lookup searches backwards from its address, at most by the length of the longest range.
    all: BTreeMap<RangeId, Range<R>>,
    longest: usize,
    next: u64,
    clock: u64,
    counts: CacheCounts,
}

/// The statistics of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Uses of a kept registration.
    pub hits: u64,
    /// Registrations that were created, both cached ones and those for one operation.
    pub misses: u64,
    /// Registrations that were evicted.
    pub evictions: u64,
    /// Number of registrations kept now.
    pub kept: usize,
    /// Total bytes of those.
    pub bytes: usize,
}

/// A registration, and the addresses that it covers.
pub type Kept<R> = (Span<usize>, Arc<R>);

/// A cache of device registrations of type `R`.
pub struct Cache<R> {
    limits: CacheLimits,
    ranges: Mutex<Ranges<R>>,
    removals: AtomicU64,
}

impl<R> Cache<R> {
    /// An empty cache.
    pub fn new(limits: CacheLimits) -> Self {
        let (all, counts) = (BTreeMap::new(), CacheCounts::default());
        let ranges = Ranges { all, longest: 0, next: 0, clock: 0, counts };
        Self { limits, ranges: Mutex::new(ranges), removals: AtomicU64::new(0) }
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges<R>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a range of memory that stays in place until the range is removed. Ranges may overlap.
    pub fn add(&self, start: usize, len: usize) -> RangeId {
        let mut ranges = self.ranges();
        let id = RangeId { start, number: ranges.next };
        ranges.next += 1;
        ranges.longest = ranges.longest.max(len);
        ranges.all.insert(id, Range { len, made: None, refused: false, used: 0 });
        id
    }

    /// Removes a range, with its cached registration: its memory may then be freed or moved.
    pub fn remove(&self, id: RangeId) {
        let mut ranges = self.ranges();
        self.removals.fetch_add(1, Ordering::Release);
        let removed = ranges.all.remove(&id);
        if let Some(Range { len, made: Some(_), .. }) = removed {
            ranges.counts.kept -= 1;
            ranges.counts.bytes -= len;
        }
        if ranges.all.is_empty() {
            ranges.longest = 0;
        }
        drop(ranges); // release the lock first: deregistering takes a system call
    }

    /// Evicts a registration. Its range remains, and is registered again when it is next used.
    pub fn retire(&self, made: &Arc<R>) {
        let mut ranges = self.ranges();
        self.removals.fetch_add(1, Ordering::Release);
        let mut its = ranges.all.values_mut();
        let found = its.find(|range| range.made.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, made)));
        let Some(range) = found else { return };
        let (len, kept) = (range.len, range.made.take());
        ranges.counts.kept -= 1;
        ranges.counts.bytes -= len;
        drop(ranges);
        drop(kept); // the caller has another
    }

    /// The number of ranges removed so far. If it has changed, a registration that was found earlier must not be used
    /// for a new operation.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Returns a registration that covers `len` bytes from `start` on: a cached one, or a new one from `make`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn get<E>(
        &self,
        start: usize,
        len: usize,
        mut make: impl FnMut(usize, usize) -> Result<R, E>,
    ) -> Result<Arc<R>, E> {
        match self.get_range(start, len, &mut make)? {
            Some((_, made)) => Ok(made),
            None => make(start, len).map(Arc::new),
        }
    }

    /// Returns the registration of an added range that contains `len` bytes from `start` on, with the addresses that it
    /// covers. `None` if there is no such range, if it is too long to be kept, or if `make` has failed for it before.
    ///
    /// # Errors
    /// The errors of `make`, which gets the whole range.
    pub fn get_range<E>(
        &self,
        start: usize,
        len: usize,
        make: impl FnOnce(usize, usize) -> Result<R, E>,
    ) -> Result<Option<Kept<R>>, E> {
        let mut ranges = self.ranges();
        ranges.clock += 1;
        let now = ranges.clock;
        let found = ranges.find(start, len);
        if let Some(id) = found
            && let Some(range) = ranges.all.get_mut(&id)
            && let Some(made) = &range.made
        {
            range.used = now;
            let kept = (id.start..id.start + range.len, Arc::clone(made));
            ranges.counts.hits += 1;
            return Ok(Some(kept));
        }
        ranges.counts.misses += 1;
        let whole = found.and_then(|id| ranges.all.get(&id).map(|range| (id, range.len)));
        let Some((id, bytes)) = whole.filter(|(_, bytes)| *bytes <= self.limits.bytes) else {
            return Ok(None);
        };
        // Under the lock, so that no other thread removes the range meanwhile, or registers it a second time.
        let made = make(id.start, bytes).map(Arc::new).inspect_err(|_| {
            if let Some(range) = ranges.all.get_mut(&id) {
                range.refused = true;
            }
        })?;
        let mut gone = Vec::new();
        while ranges.counts.kept >= self.limits.count || ranges.counts.bytes + bytes > self.limits.bytes {
            let Some(old) = ranges.evict() else { break };
            gone.push(old);
        }
        if let Some(range) = ranges.all.get_mut(&id)
            && self.limits.count > 0
        {
            (range.made, range.used) = (Some(Arc::clone(&made)), now);
            ranges.counts.kept += 1;
            ranges.counts.bytes += bytes;
        }
        drop(ranges);
        Ok(Some((id.start..id.start + bytes, made)))
    }

    /// The statistics.
    pub fn counts(&self) -> CacheCounts {
        self.ranges().counts
    }
}

impl<R> Ranges<R> {
    /// Finds a range that contains `len` bytes from `start` on and was not refused, preferably one with a registration.
    fn find(&self, start: usize, len: usize) -> Option<RangeId> {
        let end = start.checked_add(len)?;
        let last = RangeId { start, number: u64::MAX };
        let mut found = None;
        for (&id, range) in self.all.range(..=last).rev() {
            if id.start + self.longest < end {
                break;
            }
            if id.start + range.len >= end {
                if range.made.is_some() {
                    return Some(id);
                }
                if !range.refused {
                    found.get_or_insert(id);
                }
            }
        }
        found
    }

    /// Removes and returns the least recently used registration.
    fn evict(&mut self) -> Option<Arc<R>> {
        let kept = self.all.values_mut().filter(|range| range.made.is_some());
        let oldest = kept.min_by_key(|range| range.used)?;
        let (len, made) = (oldest.len, oldest.made.take());
        self.counts.kept -= 1;
        self.counts.bytes -= len;
        self.counts.evictions += 1;
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A registration that records its memory.
    fn whole(start: usize, len: usize) -> Result<(usize, usize), ()> {
        Ok((start, len))
    }

    #[test]
    fn a_range_is_registered_once_and_flushed_when_it_goes() {
        let cache = Cache::new(CacheLimits { count: 4, bytes: 1 << 20 });
        let id = cache.add(1000, 500);
        let first = cache.get(1100, 50, whole).unwrap();
        assert_eq!(*first, (1000, 500));
        assert!(Arc::ptr_eq(&first, &cache.get(1000, 500, whole).unwrap()));
        assert_eq!(*cache.get(1400, 200, whole).unwrap(), (1400, 200), "over its end: for one operation");
        cache.remove(id);
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(*cache.get(1100, 50, whole).unwrap(), (1100, 50));
        assert_eq!(cache.counts(), CacheCounts { hits: 1, misses: 3, ..CacheCounts::default() });
    }

    #[test]
    fn the_least_recently_used_goes_when_there_are_too_many_or_too_long_ones() {
        let cache = Cache::new(CacheLimits { count: 2, bytes: 100 });
        for start in [0, 100, 200] {
            cache.add(start, 40);
        }
        cache.add(1000, 101);
        let kept = |start| cache.get(start, 1, whole).map(|made| Arc::strong_count(&made) == 2).unwrap();
        assert!(kept(0) && kept(100) && kept(0) && kept(200));
        assert_eq!(cache.counts(), CacheCounts { hits: 1, misses: 3, evictions: 1, kept: 2, bytes: 80 });
        let hits = cache.counts().hits;
        assert!(kept(0) && cache.counts().hits == hits + 1, "the one that was used again stayed");
        assert!(!kept(1000), "one that is longer than all may be is not kept");
    }

    #[test]
    fn what_cannot_be_registered_is_not_kept_and_is_tried_once() {
        let cache = Cache::new(CacheLimits { count: 2, bytes: 100 });
        let id = cache.add(0, 10);
        let mut tries = 0;
        for wanted in [Err("no"), Ok(None), Ok(None)] {
            let refuse = |_: usize, _: usize| {
                tries += 1;
                Err("no")
            };
            assert_eq!(cache.get_range(2, 5, refuse), wanted);
        }
        assert_eq!(tries, 1);
        assert_eq!((cache.counts().kept, cache.counts().bytes), (0, 0));
        assert_eq!(*cache.get(2, 5, whole).unwrap(), (2, 5), "a part of it, for one operation");
        cache.remove(id);
        cache.add(0, 10);
        assert_eq!(*cache.get(2, 5, whole).unwrap(), (0, 10), "one that is there anew is tried anew");
    }

    proptest! {
        /// For any sequence of added and removed ranges, a registration covers the requested memory, belongs to one
        /// live range or to exactly that memory, and the cache respects its limits.
        #[test]
        fn registrations_cover_what_was_asked_for(
            steps in prop::collection::vec((0..4u8, 0..64usize, 1..32usize), 1..200),
            (count, bytes) in (0..5usize, 0..100usize),
        ) {
            let cache = Cache::new(CacheLimits { count, bytes });
            let mut live: Vec<(RangeId, usize, usize)> = Vec::new();
            for (what, start, len) in steps {
                match what {
                    0 => live.push((cache.add(start, len), start, len)),
                    1 if !live.is_empty() => cache.remove(live.swap_remove(start % live.len()).0),
                    _ => {
                        let (from, long) = *cache.get(start, len, whole).unwrap();
                        prop_assert!(from <= start && from + long >= start + len);
                        let is_live = live.iter().any(|&(_, s, l)| (s, l) == (from, long));
                        prop_assert!(is_live || (from, long) == (start, len));
                    }
                }
                let counts = cache.counts();
                prop_assert!(counts.kept <= count && counts.bytes <= bytes);
            }
            for (id, ..) in live {
                cache.remove(id);
            }
            prop_assert_eq!((cache.counts().kept, cache.counts().bytes), (0, 0));
        }
    }
}
