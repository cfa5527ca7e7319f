//! The requests that wait for one counter, ordered by threshold.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Item;
use crate::lock::Lock;

/// The requests that wait for one counter. The lock is a leaf: nothing is called while it is held.
pub struct TriggerLine {
    first: AtomicU64,
    items: Lock<VecDeque<Item>>,
    /// The domain knows that requests may wait here.
    pub enlisted: AtomicBool,
}

impl TriggerLine {
    /// An empty list.
    pub fn empty() -> Self {
        Self {
            first: AtomicU64::new(u64::MAX),
            items: Lock::new(VecDeque::new()),
            enlisted: AtomicBool::new(false),
        }
    }

    /// Whether a request may be due at a counter whose numbers add up to `sum`.
    #[inline]
    pub fn concerns(&self, sum: u64) -> bool {
        let first = self.first.load(Ordering::SeqCst);
        first <= sum && first != u64::MAX
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.load(Ordering::SeqCst) == u64::MAX
    }

    /// If `order` lets the store be delayed, a removal causes one useless check, whereas an addition could be missed.
    #[inline]
    fn set_first(&self, items: &VecDeque<Item>, order: Ordering) {
        // `u64::MAX` stands for none, so a threshold of `u64::MAX` is stored as one less; see `take_first`.
        let first = items.front().map_or(u64::MAX, |item| item.threshold.min(u64::MAX - 1));
        self.first.store(first, order);
    }

    /// Adds a request after the requests with the same threshold. Returns `false` if `limit` requests wait already.
    #[inline]
    pub fn add(&self, item: Item, limit: usize) -> bool {
        let mut items = self.items.lock();
        if items.len() >= limit {
            return false;
        }
        if items.back().is_none_or(|last| last.threshold <= item.threshold) {
            items.push_back(item);
        } else {
            let at = items.partition_point(|earlier| earlier.threshold <= item.threshold);
            items.insert(at, item);
        }
        self.set_first(&items, Ordering::SeqCst); // I1
        true
    }

    /// Removes the first request that is due at these numbers.
    #[inline]
    pub fn take_first(&self, value: u64, errors: u64) -> Option<Item> {
        let mut items = self.items.lock();
        if !items.front()?.is_due(value, errors) {
            drop(items);
            return self.take_behind(value, errors);
        }
        let item = items.pop_front();
        self.set_first(&items, Ordering::Release);
        item
    }

    /// The first request that is due after one that does not count failures and still waits.
    #[cold]
    fn take_behind(&self, value: u64, errors: u64) -> Option<Item> {
        let mut items = self.items.lock();
        let sum = value.saturating_add(errors);
        let mut reached = items.iter().take_while(|item| item.threshold <= sum);
        let at = reached.position(|item| item.is_due(value, errors))?;
        let item = items.remove(at);
        self.set_first(&items, Ordering::Release);
        item
    }

    /// Moves requests that are due at these numbers to `due`, in order.
    pub fn take_due(&self, value: u64, errors: u64, due: &mut VecDeque<Item>) {
        due.extend(std::iter::from_fn(|| self.take_first(value, errors)));
    }

    /// Takes out what `wanted` names.
    pub fn withdraw(&self, wanted: impl FnMut(&Item) -> bool) -> Vec<Item> {
        let mut items = self.items.lock();
        let gone = take(&mut items, wanted);
        self.set_first(&items, Ordering::Release);
        gone
    }
}

/// Removes and returns the items that `wanted` selects. Both the removed and the remaining ones keep their order.
pub fn take(items: &mut VecDeque<Item>, mut wanted: impl FnMut(&Item) -> bool) -> Vec<Item> {
    let mut gone = Vec::new();
    for _ in 0..items.len() {
        if let Some(item) = items.pop_front() {
            if wanted(&item) {
                gone.push(item);
            } else {
                items.push_back(item);
            }
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Weak;

    use proptest::prelude::*;

    use super::*;
    use crate::cntr::trigger::Deed;

    fn item(id: u64, threshold: u64) -> Item {
        Item { id, threshold, deed: Deed::Set(Weak::new(), 0) }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64),
        Due(u64, u64),
        Withdraw(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few thresholds, so that many are equal; the largest one is among them.
        let threshold = prop_oneof![0..6u64, Just(u64::MAX), Just(u64::MAX - 1)];
        prop_oneof![
            3 => threshold.clone().prop_map(Step::Add),
            2 => (threshold, 0..3u64).prop_map(|(value, errors)| Step::Due(value, errors)),
            1 => (0..40u64).prop_map(Step::Withdraw),
        ]
    }

    proptest! {
        /// Compared with a list that is sorted each time: due requests come out by threshold, then in the order of
        /// calls.
        #[test]
        fn a_line_is_a_stable_sort(steps in prop::collection::vec(step(), 0..60)) {
            let line = TriggerLine::empty();
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let number = number as u64;
                match step {
                    Step::Add(threshold) => {
                        prop_assert!(line.add(item(number, threshold), usize::MAX));
                        model.push((threshold, number));
                    }
                    Step::Due(value, errors) => {
                        let mut due = VecDeque::new();
                        line.take_due(value, errors, &mut due);
                        let sum = value.saturating_add(errors);
                        model.sort_by_key(|&(threshold, number)| (threshold, number));
                        let wanted: Vec<u64> =
                            model.iter().filter(|(threshold, _)| *threshold <= sum).map(|item| item.1).collect();
                        model.retain(|(threshold, _)| *threshold > sum);
                        prop_assert_eq!(due.iter().map(|item| item.id).collect::<Vec<_>>(), wanted);
                    }
                    Step::Withdraw(id) => {
                        let gone = line.withdraw(|item| item.id == id).len();
                        let before = model.len();
                        model.retain(|(_, number)| *number != id);
                        prop_assert_eq!(gone, before - model.len());
                    }
                }
                prop_assert_eq!(line.is_empty(), model.is_empty());
                for sum in [0, 3, u64::MAX - 1, u64::MAX] {
                    let due = model.iter().any(|(threshold, _)| *threshold <= sum);
                    prop_assert!(line.concerns(sum) || !due, "what is due at {} would be missed", sum);
                }
            }
        }
    }

    #[test]
    fn a_full_line_takes_no_more() {
        let line = TriggerLine::empty();
        assert!(line.add(item(1, 5), 1));
        assert!(!line.add(item(2, 5), 1));
    }
}
