//! Numbers of groups, which all members of a group compute identically without communication.
//!
//! The upper 44 bits of a number are a hash of the list of members. The lower 20 bits count how often the list was
//! joined, so that an issued number can be recognized without a list of all numbers: a program that joins and leaves
//! groups for days keeps only one entry for each list. With 10,000 lists, two lists of one endpoint share a hash with a
//! probability of 3 in a million.

use rustc_hash::FxHashMap;

use super::hash;

/// The bits that count.
const COUNT: u64 = (1 << 20) - 1;

/// The group numbers that one endpoint has issued: the last one of each list of members.
#[derive(Debug, Default)]
pub struct Numbers {
    /// The last number of each hash.
    last: FxHashMap<u64, u64>,
}

impl Numbers {
    /// The number of the next group of the members whose list has the hash `names`.
    pub fn next(&mut self, names: u64) -> u64 {
        // A list that was joined a million times continues under another hash.
        let mut turn = 0u64;
        loop {
            let series = hash(names, &turn.to_le_bytes()) & !COUNT;
            let last = self.last.entry(series).or_insert(series);
            if *last & COUNT < COUNT {
                *last += 1;
                return *last;
            }
            turn += 1;
        }
    }

    /// Whether this end has ever issued this number.
    pub fn was_given(&self, number: u64) -> bool {
        self.last.get(&(number & !COUNT)).is_some_and(|&last| number <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_come_and_go_leave_one_entry_for_each_list() {
        let (mut one, mut other) = (Numbers::default(), Numbers::default());
        let mut seen = rustc_hash::FxHashSet::default();
        for _ in 0..3000 {
            for names in [7, 8] {
                let number = one.next(names);
                assert_eq!(number, other.next(names), "members count alike");
                assert!(seen.insert(number), "no number twice");
            }
        }
        assert_eq!(one.last.len(), 2);
        assert!(seen.iter().all(|&number| one.was_given(number)));
        let next = other.next(7);
        assert!(!one.was_given(next) && !one.was_given(next ^ (1 << 40)));
    }

    #[test]
    fn a_list_that_is_joined_without_end_changes_its_hash() {
        let mut numbers = Numbers::default();
        let first = numbers.next(7);
        *numbers.last.values_mut().next().unwrap() |= COUNT;
        let next = numbers.next(7);
        assert_ne!(first & !COUNT, next & !COUNT);
        assert_eq!(next & COUNT, 1);
        assert!(numbers.was_given(first) && numbers.was_given(next));
    }
}
