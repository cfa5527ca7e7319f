//! Sets of numbers stored as runs: packets received, bytes acknowledged, bytes lost.

use alloc::collections::VecDeque;
use core::ops::Range;

/// A set of `u64`, kept as sorted, disjoint runs that do not touch.
#[derive(Clone, Debug, Default)]
pub struct RangeSet(VecDeque<Range<u64>>);

impl RangeSet {
    /// An empty set.
    pub const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// The runs, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Range<u64>> + ExactSizeIterator {
        self.0.iter()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The lowest run.
    pub fn first(&self) -> Option<&Range<u64>> {
        self.0.front()
    }

    /// The highest run.
    pub fn last(&self) -> Option<&Range<u64>> {
        self.0.back()
    }

    /// Whether `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let at = self.0.partition_point(|run| run.end <= number);
        self.0.get(at).is_some_and(|run| run.start <= number)
    }

    /// Whether a run overlaps or adjoins the set. If so, adding it does not increase the number of runs.
    pub fn touches(&self, run: &Range<u64>) -> bool {
        let at = self.0.partition_point(|other| other.end < run.start);
        self.0.get(at).is_some_and(|other| other.start <= run.end)
    }

    /// The runs that overlap `range`, lowest first.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = &Range<u64>> {
        let from = self.0.partition_point(|run| run.end <= range.start);
        let end = range.end;
        self.0.range(from..).take_while(move |run| run.start < end)
    }

    /// Adds a run.
    pub fn insert(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        if let Some(last) = self.0.back_mut()
            && last.end == run.start
        {
            last.end = run.end; // the usual case: the next number
            return;
        }
        let from = self.0.partition_point(|other| other.end < run.start);
        let to = self.0.partition_point(|other| other.start <= run.end);
        if from == to {
            self.0.insert(from, run);
            return;
        }
        let merged = run.start.min(self.0[from].start)..run.end.max(self.0[to - 1].end);
        self.0[from] = merged;
        self.0.drain(from + 1..to);
    }

    /// Removes a run.
    pub fn remove(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        let from = self.0.partition_point(|other| other.end <= run.start);
        let to = self.0.partition_point(|other| other.start < run.end);
        if from >= to {
            return;
        }
        let (head, tail) = (self.0[from].start..run.start, run.end..self.0[to - 1].end);
        self.0.drain(from..to);
        if !tail.is_empty() {
            self.0.insert(from, tail);
        }
        if !head.is_empty() {
            self.0.insert(from, head);
        }
    }

    /// Removes the lowest numbers: one run of at most `most`.
    pub fn pop(&mut self, most: u64) -> Option<Range<u64>> {
        let first = self.0.front_mut()?;
        if first.end - first.start > most {
            let taken = first.start..first.start + most;
            first.start += most;
            return (!taken.is_empty()).then_some(taken);
        }
        self.0.pop_front()
    }

    /// Releases unused memory.
    pub fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Removes the lowest run.
    pub fn forget_first(&mut self) -> Option<Range<u64>> {
        self.0.pop_front()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_does_what_a_set_of_numbers_does() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for _ in 0..60 {
                let start = random(64);
                let run = start..start + random(9);
                let near = model.range(run.start.saturating_sub(1)..=run.end).next().is_some();
                assert_eq!(set.touches(&run), near);
                let within: std::vec::Vec<u64> = set
                    .within(&run)
                    .flat_map(|found| found.start.max(run.start)..found.end.min(run.end))
                    .collect();
                assert!(within.iter().eq(model.range(run.clone())));
                match random(4) {
                    0 => {
                        set.remove(run.clone());
                        run.for_each(|number| _ = model.remove(&number));
                    }
                    1 => {
                        let most = 1 + random(5);
                        let taken = set.pop(most);
                        assert_eq!(taken.is_none(), model.is_empty());
                        let taken = taken.unwrap_or(0..0);
                        assert!(taken.end - taken.start <= most);
                        for number in taken {
                            assert_eq!(model.pop_first(), Some(number));
                        }
                    }
                    _ => {
                        set.insert(run.clone());
                        model.extend(run);
                    }
                }
                let all: BTreeSet<u64> = set.iter().cloned().flatten().collect();
                assert_eq!(all, model);
                assert!((0..80).all(|number| set.contains(number) == model.contains(&number)));
                let runs: std::vec::Vec<_> = set.iter().cloned().collect();
                assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "{runs:?}");
            }
        }
    }
}
