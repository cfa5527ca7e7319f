//! Which grains a merged flow has, and which copies of one come too late.

use std::collections::BTreeMap;

/// What a copy of a grain is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There is none yet.
    First,
    /// It is valid, and the one that is there is not.
    Better,
    /// There is one as good.
    Duplicate,
    /// Its slot is another grain's.
    Late,
}

/// The newest grain and those before it whose slots are still their own.
pub(super) struct Window {
    /// Grains that it spans.
    length: u64,
    head: Option<u64>,
    /// Losses below it were told, or are from before the first grain.
    floor: u64,
    /// The grains that are there, and whether they are invalid.
    there: BTreeMap<u64, bool>,
    /// Late copies since the last that was taken.
    late: u64,
}

impl Window {
    pub fn new(length: u64) -> Self {
        Self { length, head: None, floor: 0, there: BTreeMap::new(), late: 0 }
    }

    fn oldest(&self) -> u64 {
        self.head.map_or(0, |head| head.saturating_add(1).saturating_sub(self.length))
    }

    /// What a copy is good for. After a whole window of late copies and no other, the source went back in time (or one
    /// path sent an index from the far future), and the next copy begins anew.
    pub fn judge(&mut self, index: u64, invalid: bool) -> Verdict {
        if index < self.oldest() {
            self.late += 1;
            if self.late <= self.length {
                return Verdict::Late;
            }
            *self = Self::new(self.length);
        }
        match self.there.get(&index) {
            None => Verdict::First,
            Some(true) if !invalid => Verdict::Better,
            Some(_) => Verdict::Duplicate,
        }
    }

    /// A copy was published. Answers what is lost thereby: first grains and counts.
    pub fn take(&mut self, index: u64, invalid: bool) -> Vec<(u64, u64)> {
        if self.head.is_none() {
            self.floor = index;
        }
        self.late = 0;
        self.head = self.head.max(Some(index));
        self.there.insert(index, invalid);
        let oldest = self.oldest();
        let mut lost = Vec::new();
        if self.floor < oldest {
            let mut next = self.floor;
            for (&there, _) in self.there.range(self.floor..oldest) {
                if there > next {
                    lost.push((next, there - next));
                }
                next = there + 1;
            }
            if next < oldest {
                lost.push((next, oldest - next));
            }
            self.floor = oldest;
        }
        self.there = self.there.split_off(&oldest);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_valid_copy_replaces_an_invalid_one_and_never_the_other_way_round() {
        let mut window = Window::new(4);
        assert_eq!(window.judge(7, true), Verdict::First);
        window.take(7, true);
        assert_eq!(window.judge(7, true), Verdict::Duplicate);
        assert_eq!(window.judge(7, false), Verdict::Better);
        window.take(7, false);
        assert_eq!(window.judge(7, true), Verdict::Duplicate);
        assert_eq!(window.judge(7, false), Verdict::Duplicate);
    }

    #[test]
    fn one_index_from_the_far_future_does_not_end_the_flow() {
        let mut window = Window::new(4);
        window.take(10, false);
        assert_eq!(window.take(u64::MAX, false), [(11, u64::MAX - 4 - 11)]);
        for index in 11..15 {
            assert_eq!(window.judge(index, false), Verdict::Late);
        }
        assert_eq!(window.judge(15, false), Verdict::First);
        assert_eq!(window.take(15, false), []);
        assert_eq!(window.judge(16, false), Verdict::First);
    }

    proptest! {
        /// Against a set of all that was ever taken.
        #[test]
        fn each_grain_is_taken_once_or_told_as_lost(steps in proptest::collection::vec(0_u64..12, 1..200)) {
            let mut window = Window::new(6);
            let (mut taken, mut lost) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
            let (mut head, mut first, mut late) = (1000_u64, None, 0);
            for step in steps {
                let index = head + step - 8;
                let is_late = first.is_some() && index + 6 <= head;
                match window.judge(index, false) {
                    Verdict::First => {
                        if is_late {
                            // The source went back.
                            prop_assert_eq!(late, 6);
                            (first, taken, lost) = Default::default();
                        }
                        late = 0;
                        prop_assert!(taken.insert(index));
                    }
                    Verdict::Duplicate => { prop_assert!(taken.contains(&index)); continue }
                    Verdict::Late => { prop_assert!(is_late); late += 1; continue }
                    Verdict::Better => prop_assert!(false, "nothing is invalid"),
                }
                prop_assert!(!lost.contains(&index));
                for (from, count) in window.take(index, false) {
                    prop_assert!(count > 0);
                    for gone in from..from + count {
                        prop_assert!(!taken.contains(&gone) && lost.insert(gone));
                    }
                }
                head = if first.is_none() { index } else { head.max(index) };
                let first = *first.get_or_insert(index);
                for settled in first..(head + 1).saturating_sub(6) {
                    prop_assert!(taken.contains(&settled) || lost.contains(&settled), "{settled} at {head}");
                }
            }
        }
    }
}
