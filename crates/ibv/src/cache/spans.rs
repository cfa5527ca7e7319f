//! Memory by address, with its registrations.

use std::collections::BTreeMap;
use std::ops::Range as Span;
use std::sync::Arc;

use super::{CacheLimits, Kept, Purpose};

/// Identifies a range while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeId {
    pub(super) start: usize,
    number: u64,
}

/// The registrations of a range, by [`Purpose`].
type Registrations<R> = [Option<KeptRegistration<R>>; 2];

struct KeptRegistration<R> {
    made: Arc<R>,
    /// When it was last used, by the cache's clock.
    used: u64,
}

struct Range<R> {
    len: usize,
    made: Registrations<R>,
    /// Whether registering the range has failed, by [`Purpose`]. It is not tried again.
    refused: [bool; 2],
    /// Whether a thread is registering the range, by [`Purpose`].
    making: [bool; 2],
    /// Whether not all peers may access the range.
    is_guarded: bool,
}

impl<R> Range<R> {
    fn span(&self, id: RangeId) -> Span<usize> {
        id.start..id.start + self.len
    }
}

/// Ranges of memory, which may overlap.
pub struct Spans<R> {
    /// Ranges by start. A lookup searches backwards from its address, by the length of the longest range at most.
    all: BTreeMap<RangeId, Range<R>>,
    longest: usize,
    next: u64,
    /// Number of guarded ranges.
    guarded: usize,
    /// Number of registrations.
    pub kept: usize,
    /// Total bytes of the registrations.
    pub bytes: usize,
}

impl<R> Default for Spans<R> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), longest: 0, next: 0, guarded: 0, kept: 0, bytes: 0 }
    }
}

impl<R> Spans<R> {
    pub fn add(&mut self, start: usize, len: usize) -> RangeId {
        self.insert(start, len, false)
    }

    /// Adds a range that not all peers may access.
    pub fn add_guarded(&mut self, start: usize, len: usize) -> RangeId {
        self.guarded += 1;
        self.insert(start, len, true)
    }

    fn insert(&mut self, start: usize, len: usize, is_guarded: bool) -> RangeId {
        let id = RangeId { start, number: self.next };
        self.next += 1;
        self.longest = self.longest.max(len);
        self.all.insert(
            id,
            Range { len, made: [None, None], refused: [false; 2], making: [false; 2], is_guarded },
        );
        id
    }

    /// Removes a range, and returns its registrations.
    pub fn remove(&mut self, id: RangeId) -> impl Iterator<Item = Arc<R>> + use<R> {
        let removed = self.all.remove(&id);
        if self.all.is_empty() {
            self.longest = 0;
        }
        self.guarded -= usize::from(removed.as_ref().is_some_and(|range| range.is_guarded));
        let (len, made) = removed.map_or((0, [None, None]), |range| (range.len, range.made));
        let count = made.iter().flatten().count();
        self.kept -= count;
        self.bytes -= count * len;
        made.into_iter().flatten().map(|registration| registration.made)
    }

    /// Removes a registration, and its range if it has no other.
    pub fn drop_one(&mut self, id: RangeId, purpose: Purpose) -> Option<Kept<R>> {
        let range = self.all.get_mut(&id)?;
        let (span, taken) = (range.span(id), range.made[purpose as usize].take()?);
        self.kept -= 1;
        self.bytes -= span.len();
        if range.made.iter().all(Option::is_none) {
            drop(self.remove(id));
        }
        Some((span, taken.made))
    }

    /// Removes a registration, but not its range.
    pub fn take(&mut self, made: &Arc<R>) -> Option<(RangeId, Kept<R>)> {
        let (id, range, purpose) = self.all.iter_mut().find_map(|(id, range)| {
            let is_it = |kept: &Option<KeptRegistration<R>>| {
                kept.as_ref().is_some_and(|kept| Arc::ptr_eq(&kept.made, made))
            };
            let purpose = range.made.iter().position(is_it)?;
            Some((*id, range, purpose))
        })?;
        let taken = range.made[purpose].take()?;
        let span = range.span(id);
        self.kept -= 1;
        self.bytes -= span.len();
        Some((id, (span, taken.made)))
    }

    /// A range that contains `len` bytes from `start` on and was not refused, if possible one with a registration.
    pub fn find(&self, purpose: Purpose, start: usize, len: usize) -> Option<RangeId> {
        let end = start.checked_add(len)?;
        let last = RangeId { start, number: u64::MAX };
        let mut found = None;
        for (&id, range) in self.all.range(..=last).rev() {
            if id.start + self.longest < end {
                break;
            }
            if id.start + range.len >= end {
                if range.made[purpose as usize].is_some() {
                    return Some(id);
                }
                if !range.refused[purpose as usize] {
                    found.get_or_insert(id);
                }
            }
        }
        found
    }

    pub fn len_of(&self, id: RangeId) -> usize {
        self.all.get(&id).map_or(0, |range| range.len)
    }

    /// Uses a registration, if there is one.
    pub fn touch(&mut self, id: RangeId, purpose: Purpose, now: u64) -> Option<Kept<R>> {
        let range = self.all.get_mut(&id)?;
        let span = range.span(id);
        let registration = range.made[purpose as usize].as_mut()?;
        registration.used = now;
        Some((span, Arc::clone(&registration.made)))
    }

    /// Whether a thread is registering a range, for this purpose or, with `None`, for any.
    pub fn is_making(&self, id: RangeId, purpose: Option<Purpose>) -> bool {
        let making = self.all.get(&id).map_or([false; 2], |range| range.making);
        purpose.map_or(making != [false; 2], |purpose| making[purpose as usize])
    }

    /// Records whether a thread is registering a range.
    pub fn set_making(&mut self, id: RangeId, purpose: Purpose, making: bool) {
        if let Some(range) = self.all.get_mut(&id) {
            range.making[purpose as usize] = making;
        }
    }

    pub fn refuse(&mut self, id: RangeId, purpose: Purpose) {
        if let Some(range) = self.all.get_mut(&id) {
            range.refused[purpose as usize] = true;
        }
    }

    pub fn keep(&mut self, id: RangeId, purpose: Purpose, made: Arc<R>, now: u64) {
        if let Some(range) = self.all.get_mut(&id) {
            range.made[purpose as usize] = Some(KeptRegistration { made, used: now });
            self.kept += 1;
            self.bytes += range.len;
        }
    }

    /// The smallest span that contains `span` and the ranges that overlap it and have a registration.
    pub fn union(&self, purpose: Purpose, span: &Span<usize>) -> Span<usize> {
        self.overlapping(span)
            .filter(|(_, range)| range.made[purpose as usize].is_some())
            .map(|(id, range)| range.span(*id))
            .fold(span.clone(), |whole, span| whole.start.min(span.start)..whole.end.max(span.end))
    }

    /// Whether a part of this memory is in a guarded range.
    pub fn is_guarded(&self, start: usize, len: usize) -> bool {
        self.guarded > 0
            && self.overlapping(&(start..start.saturating_add(len))).any(|(_, range)| range.is_guarded)
    }

    fn overlapping(&self, span: &Span<usize>) -> impl Iterator<Item = (&RangeId, &Range<R>)> {
        let last = RangeId { start: span.end, number: 0 };
        let (start, longest) = (span.start, self.longest);
        let backwards = self.all.range(..last).rev();
        let near = backwards.take_while(move |(id, _)| id.start + longest > start);
        near.filter(move |(id, range)| id.start + range.len > start)
    }

    /// The ranges inside a span that have a registration.
    pub fn inside(&self, purpose: Purpose, span: &Span<usize>) -> Vec<RangeId> {
        let is_inside = |id: &RangeId, range: &Range<R>| {
            range.made[purpose as usize].is_some()
                && id.start >= span.start
                && id.start + range.len <= span.end
        };
        self.overlapping(span).filter(|(id, range)| is_inside(id, range)).map(|(id, _)| *id).collect()
    }

    /// Removes the ranges that overlap a span.
    pub fn take_overlapping(&mut self, span: &Span<usize>) -> Vec<Kept<R>> {
        let ids: Vec<(RangeId, Span<usize>)> =
            self.overlapping(span).map(|(id, range)| (*id, range.span(*id))).collect();
        self.take_all(ids)
    }

    /// Removes the ranges whose registrations have no other holder.
    pub fn take_unused(&mut self) -> Vec<Kept<R>> {
        let is_unused = |made: &Registrations<R>| {
            let mut all = made.iter().flatten();
            all.all(|registration| Arc::strong_count(&registration.made) == 1)
        };
        let ids = self.all.iter().filter(|(_, range)| is_unused(&range.made));
        let ids: Vec<(RangeId, Span<usize>)> = ids.map(|(id, range)| (*id, range.span(*id))).collect();
        self.take_all(ids)
    }

    fn take_all(&mut self, ids: Vec<(RangeId, Span<usize>)>) -> Vec<Kept<R>> {
        let mut taken = Vec::new();
        for (id, span) in ids {
            taken.extend(self.remove(id).map(|made| (span.clone(), made)));
        }
        taken
    }

    /// Evicts registrations until there is room for another of `bytes`, and returns those.
    pub fn make_room(&mut self, bytes: usize, limits: CacheLimits) -> Vec<(RangeId, Kept<R>)> {
        let mut gone = Vec::new();
        while self.kept >= limits.count || self.bytes + bytes > limits.bytes {
            let Some(oldest) = self.evict() else { break };
            gone.push(oldest);
        }
        gone
    }

    /// Removes and returns the least recently used registration. Its range stays.
    fn evict(&mut self) -> Option<(RangeId, Kept<R>)> {
        let all = self.all.iter().flat_map(|(id, range)| {
            let used = |nth: usize| range.made[nth].as_ref().map(|registration| (registration.used, nth));
            [used(0), used(1)].into_iter().flatten().map(move |(used, nth)| (used, *id, nth))
        });
        let (_, id, nth) = all.min()?;
        let range = self.all.get_mut(&id)?;
        let (span, taken) = (range.span(id), range.made[nth].take()?);
        self.kept -= 1;
        self.bytes -= span.len();
        Some((id, (span, taken.made)))
    }

    /// Removes a range without a registration.
    pub fn forget(&mut self, id: RangeId) {
        if self.all.get(&id).is_some_and(|range| range.made.iter().all(Option::is_none)) {
            drop(self.remove(id));
        }
    }
}
