//! Which parts of a payload have arrived: in any order, and more than once if a sender repeats a part whose arrival its
//! device could not confirm.

use std::collections::BTreeMap;

/// A part does not fit the earlier parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit;

/// Maximum number of gaps between the parts. Devices deliver packets out of order, but all parts that a sender has
/// under way at once are fewer.
const MAX_GAPS: usize = 1 << 15;

/// The parts of a payload, or of a sequence of numbers, that have arrived.
#[derive(Default)]
pub struct Ranges {
    /// Everything before this has arrived.
    upto: usize,
    /// The parts behind the first gap: their ends by their beginnings. No two of them touch.
    ahead: BTreeMap<usize, usize>,
}

impl Ranges {
    /// Everything before `upto` has arrived.
    pub fn before(upto: usize) -> Self {
        Self { upto, ahead: BTreeMap::new() }
    }

    /// Records the part from `start` to `end`, and returns whether it is new.
    ///
    /// # Errors
    /// If it is neither new nor within what has arrived, or there are too many gaps.
    pub fn add(&mut self, start: usize, end: usize) -> Result<bool, Misfit> {
        if end <= self.upto {
            return Ok(false);
        }
        if start < self.upto {
            return Err(Misfit);
        }
        let before = self.ahead.range(..=start).next_back().map(|(&from, &to)| (from, to));
        if let Some((_, to)) = before
            && to > start
        {
            return if end <= to { Ok(false) } else { Err(Misfit) };
        }
        let after = self.ahead.range(start..).next().map(|(&from, &to)| (from, to));
        if after.is_some_and(|(from, _)| from < end) {
            return Err(Misfit);
        }
        let end = match after {
            Some((from, to)) if from == end => {
                self.ahead.remove(&from);
                to
            }
            _ => end,
        };
        match before {
            _ if start == self.upto => self.upto = end,
            Some((from, to)) if to == start => _ = self.ahead.insert(from, end),
            _ if self.ahead.len() >= MAX_GAPS => return Err(Misfit),
            _ => _ = self.ahead.insert(start, end),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a bit for each byte: parts in any order, each up to three times.
        #[test]
        fn a_part_is_new_once(
            lens in prop::collection::vec(1usize..9, 1..40),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let mut ranges = Ranges::default();
            let mut parts = Vec::new();
            let mut at = 0;
            for len in lens {
                parts.push((at, at + len));
                at += len;
            }
            let mut seen = vec![false; parts.len()];
            let all: Vec<usize> = order.iter().map(|index| index.index(parts.len())).chain(0..parts.len()).collect();
            for nth in all {
                let (start, end) = parts[nth];
                prop_assert_eq!(ranges.add(start, end), Ok(!std::mem::replace(&mut seen[nth], true)));
            }
            prop_assert_eq!((ranges.upto, ranges.ahead.len()), (at, 0));
        }
    }

    #[test]
    fn parts_that_overlap_others_in_part_are_refused() {
        let mut ranges = Ranges::before(10);
        assert_eq!(ranges.add(20, 30), Ok(true));
        for (start, end) in [(9, 11), (19, 21), (15, 35), (29, 31), (15, 30)] {
            assert_eq!(ranges.add(start, end), Err(Misfit), "{start}..{end}");
        }
        assert_eq!((ranges.add(0, 10), ranges.add(22, 28)), (Ok(false), Ok(false)));
        assert_eq!(ranges.add(10, 20), Ok(true));
        assert_eq!((ranges.upto, ranges.ahead.len()), (30, 0));
    }

    #[test]
    fn the_number_of_gaps_is_limited() {
        let mut ranges = Ranges::default();
        for nth in 1..=MAX_GAPS {
            assert_eq!(ranges.add(2 * nth, 2 * nth + 1), Ok(true));
        }
        assert_eq!(ranges.add(2 * MAX_GAPS + 2, 2 * MAX_GAPS + 3), Err(Misfit));
        assert_eq!(ranges.add(0, 2), Ok(true), "what closes a gap");
    }
}
