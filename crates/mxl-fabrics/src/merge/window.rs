//! Which grains a merged flow has, how much of each, and which copies of one come too late.

use std::collections::BTreeMap;

use super::trust::{Place, Seen, Trust};

/// Grains by which the flow goes on before a grain that only invalid copies could complete is given up.
const HOPE: u64 = 2;

/// A path's statement about a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub path: usize,
    pub index: u64,
    /// The first of them are there.
    pub slices: u16,
    /// The payload means nothing.
    pub invalid: bool,
}

/// What a copy of a grain is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has slices from this one on that are not there.
    New {
        /// The first of them.
        from: u16,
    },
    /// It is valid, and the one that is there is not.
    Better,
    /// The grain is invalid, as far as is known.
    Invalid,
    /// It is invalid, and another path may complete the grain.
    Held,
    /// As much, or more, is there.
    Duplicate,
    /// Its slot is another grain's.
    Late,
    /// It is far from all others, and nothing confirms it.
    Strange,
}

/// What is there of a grain.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    slices: u16,
    invalid: bool,
    /// The paths whose copies are invalid, a bit for each.
    denied: u8,
}

/// The newest grain and those before it whose slots are still their own.
pub(super) struct Window {
    /// Grains that it spans.
    length: u64,
    /// Slices of a whole grain.
    slices: u16,
    head: Option<u64>,
    /// Losses below it were told, or are from before the first grain.
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

    /// What a copy is good for. `now` is the index of this moment, `live` the paths that have an initiator.
    pub fn judge(&mut self, copy: Copy, now: Option<u64>, live: u8) -> Verdict {
        let Copy { path, index, slices, invalid } = copy;
        if let Some(head) = self.head {
            match self.trust.place(path, index, Seen { head, now, live }) {
                Place::Near if index >= self.oldest() => {}
                Place::Near => return Verdict::Late,
                Place::Far => return if index < head { Verdict::Late } else { Verdict::Strange },
                Place::Jump if index > head => {}
                // The source went back in time.
                Place::Jump => (self.head, self.there) = (None, BTreeMap::new()),
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

    /// The slices of a copy were published, or that it is invalid. Answers what is lost thereby, as first grains and
    /// counts: grains of which not all came.
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

    /// A grain to be given up: a path said that it is invalid, and no other has completed it until now.
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
