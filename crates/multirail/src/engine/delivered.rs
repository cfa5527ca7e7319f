//! The ids of notifications that were delivered, as ranges: their number is that of the gaps, whatever the distances.

use std::collections::BTreeMap;

/// A set of ids.
#[derive(Debug, Default)]
pub(super) struct Delivered {
    /// The first id of each range, and the one behind its last. No two ranges touch.
    ranges: BTreeMap<u64, u64>,
}

impl Delivered {
    pub(super) fn contains(&self, id: u64) -> bool {
        self.ranges.range(..=id).next_back().is_some_and(|(_, &end)| id < end)
    }

    /// Adds an id. `u64::MAX` has no id behind it, and is left out: no sender counts that far.
    pub(super) fn insert(&mut self, id: u64) {
        if id == u64::MAX || self.contains(id) {
            return;
        }
        let end = self.ranges.remove(&(id + 1)).unwrap_or(id + 1);
        match self.ranges.range_mut(..id).next_back() {
            Some((_, before)) if *before == id => *before = end,
            _ => {
                self.ranges.insert(id, end);
            }
        }
    }

    /// The number of gaps before and between the ids.
    pub(super) fn gaps(&self) -> usize {
        let has_first = self.ranges.first_key_value().is_some_and(|(&first, _)| first == 0);
        self.ranges.len() - usize::from(has_first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The ranges have the ids of a plain set, and as many gaps.
        #[test]
        fn ranges_are_a_set(ids in prop::collection::vec(0..40_u64, 0..60)) {
            let (mut set, mut delivered) = (BTreeSet::new(), Delivered::default());
            for id in ids {
                set.insert(id);
                delivered.insert(id);
                let gaps = set.iter().filter(|&&id| id > 0 && !set.contains(&(id - 1))).count();
                prop_assert_eq!(delivered.gaps(), gaps);
                prop_assert!((0..41).all(|id| delivered.contains(id) == set.contains(&id)));
            }
        }
    }
}
