//! Tracks the grains of a merged flow: how much of each has arrived, and which copies come too late.

use std::collections::BTreeMap;

use super::trust::{IndexVerdict, Seen, Trust};

/// Number of grains after which the flow gives up a grain that has only invalid copies.
const HOPE: u64 = 2;

/// A path's statement about a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub path: usize,
    pub index: u64,
    /// Number of valid slices, from the first on.
    pub slices: u16,
    /// The payload is invalid.
    pub invalid: bool,
}

/// The verdict on a copy of a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The copy has slices, from this one on, that are missing.
    New {
        /// The first of them.
        from: u16,
    },
    /// The copy is valid, and the published one is not.
    Better,
    /// The grain is invalid, as far as is known.
    Invalid,
    /// The copy is invalid, but another path may complete the grain.
    Held,
    /// The published grain has as many slices already, or more.
    Duplicate,
    /// The slot holds another grain.
    Late,
    /// The copy is far from all others and lacks confirmation.
    Strange,
}

/// The published state of a grain.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    slices: u16,
    invalid: bool,
    /// The paths whose copies are invalid, a bit for each.
    denied: u8,
}

/// The newest grain and the earlier ones that still hold their slots.
pub(super) struct Window {
    /// Length in grains.
    length: u64,
    /// Slices of a whole grain.
    slices: u16,
    head: Option<u64>,
    /// Losses below it were reported, or are from before the first grain.
    floor: u64,
    there: BTreeMap<u64, There>,
    trust: Trust,
}

impl Window {
    pub fn new(length: u64, slices: u16) -> Self {
        let trust = Trust::new(length, length);
        Self { length, slices, head: None, floor: 0, there: BTreeMap::new(), trust }
    }

    fn oldest(&self) -> u64 {
        self.head.map_or(0, |head| head.saturating_add(1).saturating_sub(self.length))
    }

    fn is_whole(&self, there: There) -> bool {
        there.invalid || there.slices == self.slices
    }

    /// Judges a copy. `now` is the index at the current time, `live` the paths that have an initiator.
    pub fn judge(&mut self, copy: Copy, now: Option<u64>, live: u8) -> Verdict {
        let Copy { path, index, slices, invalid } = copy;
        if let Some(head) = self.head {
            match self.trust.place(path, index, Seen { head, now, live }) {
                IndexVerdict::Near if index >= self.oldest() => {}
                IndexVerdict::Near => return Verdict::Late,
                IndexVerdict::Far => return if index < head { Verdict::Late } else { Verdict::Strange },
                IndexVerdict::Jump if index > head => {}
                // The source went back in time.
                IndexVerdict::Jump => (self.head, self.there) = (None, BTreeMap::new()),
            }
        }
        let Some(there) = self.there.get_mut(&index) else {
            return if invalid { Verdict::Invalid } else { Verdict::New { from: 0 } };
        };
        if there.invalid {
            let is_better = !invalid && slices == self.slices;
            return if is_better { Verdict::Better } else { Verdict::Duplicate };
        }
        if !invalid {
            let is_more = slices > there.slices;
            return if is_more { Verdict::New { from: there.slices } } else { Verdict::Duplicate };
        }
        if there.slices == self.slices {
            return Verdict::Duplicate;
        }
        there.denied |= 1 << path;
        if live & !there.denied == 0 { Verdict::Invalid } else { Verdict::Held }
    }

    /// Records that a copy's slices, or its invalidity, were published. Returns the resulting losses, as first grains
    /// and counts: grains that did not arrive complete.
    pub fn take(&mut self, copy: Copy, now: Option<u64>) -> Vec<(u64, u64)> {
        let Copy { index, slices, invalid, .. } = copy;
        if self.head.is_none() {
            self.floor = index;
        }
        self.head = self.head.max(Some(index));
        self.trust.taken(index, now);
        let there = self.there.entry(index).or_default();
        (there.slices, there.invalid) = (slices, invalid);
        let oldest = self.oldest();
        let mut lost = Vec::new();
        if self.floor < oldest {
            let mut next = self.floor;
            for (&index, &there) in self.there.range(self.floor..oldest) {
                if !self.is_whole(there) {
                    continue;
                }
                if index > next {
                    lost.push((next, index - next));
                }
                next = index + 1;
            }
            if next < oldest {
                lost.push((next, oldest - next));
            }
            self.floor = oldest;
        }
        self.there = self.there.split_off(&oldest);
        lost
    }

    /// The next grain to give up: a path has reported it as invalid, and no other has completed it since.
    pub fn hopeless(&self) -> Option<Copy> {
        let until = self.head?.checked_sub(HOPE)?;
        let is_hopeless = |there: There| there.denied != 0 && !self.is_whole(there);
        let (index, there) = self.there.range(..=until).find(|(_, there)| is_hopeless(**there))?;
        let path = there.denied.trailing_zeros() as usize;
        Some(Copy { path, index: *index, slices: self.slices, invalid: true })
    }
}

#[cfg(test)]
mod tests;
