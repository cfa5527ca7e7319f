//! Index arithmetic: where an absolute index lies in a ring, and which part of the ring is readable.
//!
//! Pure functions of integers that may come from untrusted files: they do not overflow, divide by zero or panic.

/// The oldest grain that a slot may still hold, as in the C++ SDK: clients compute this index and resume there. Its
/// slot is the next one that the writer opens, so a reader of it must check the slot's index.
pub const fn oldest_grain(head: u64, grains: u64) -> u64 {
    head.saturating_sub(grains.saturating_sub(1))
}

/// The oldest grain that remains readable until the next commit, whichever grain the writer has open. A reader that
/// fell behind resumes there.
pub const fn resume_grain(head: u64, grains: u64) -> u64 {
    head.saturating_sub(grains.saturating_sub(2))
}

/// The oldest sample index that can be read: half of the ring is reserved for the writer.
pub const fn oldest_sample(head: u64, length: u64) -> u64 {
    head.saturating_sub(length / 2)
}

/// The slot of a grain. A ring without slots has slot 0, which is never mapped.
pub const fn slot(index: u64, grains: u64) -> u64 {
    if grains == 0 { 0 } else { index % grains }
}

/// The position of a window of samples in each channel's ring: one piece, or one at the end and one at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start of the first piece, in samples.
    pub start: u64,
    /// Samples of the first piece.
    pub first: u64,
    /// Samples of the second, which begins at 0.
    pub second: u64,
}

/// The `count` samples before `index` in a ring of `length`, or `None` if they exceed the ring.
pub const fn window(index: u64, count: u64, length: u64) -> Option<Window> {
    if count > length || length == 0 {
        return None;
    }
    // `index - count` modulo `length`; the index may be less than the count.
    let (end, back) = (index % length, count % length);
    let start = if end >= back { end - back } else { length - (back - end) };
    let first = if count < length - start { count } else { length - start };
    Some(Window { start, first, second: count - first })
}

/// Decides which commits of samples wake readers: those that complete a batch, or after which the next commit would
/// exceed it.
#[derive(Clone, Debug)]
pub struct Batches {
    sync: u64,
    early: u64,
    signalled: u64,
    head: u64,
}

impl Batches {
    /// For the hints of a flow.
    pub fn new(max_commit: u32, max_sync: u32) -> Self {
        let (commit, sync) = (u64::from(max_commit.max(1)), u64::from(max_sync.max(1)));
        Self { sync, early: sync.saturating_sub(commit), signalled: 0, head: 0 }
    }

    /// Whether a commit that moves the head to `head` wakes readers. A head that moves back always does: the writer was
    /// restarted.
    pub fn completes(&mut self, head: u64) -> bool {
        let batch = head / self.sync;
        let back = head < self.head;
        self.head = head;
        if back {
            self.signalled = batch;
            return true;
        }
        if batch < self.signalled {
            return false;
        }
        if batch > self.signalled {
            self.signalled = batch;
            return true;
        }
        let close = head % self.sync > self.early;
        self.signalled += u64::from(close);
        close
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Batches, Window, oldest_grain, oldest_sample, resume_grain, slot, window};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_is_the_samples_before_its_index(
            index in prop_oneof![any::<u64>(), 0_u64..100],
            length in prop_oneof![1_u64..50, any::<u64>()],
            part in 0_u64..=1000,
        ) {
            let count = (u128::from(length) * u128::from(part) / 1000) as u64;
            let start = (i128::from(index) - i128::from(count)).rem_euclid(i128::from(length.max(1)));
            match window(index, count, length) {
                None => prop_assert!(length == 0),
                Some(Window { start: at, first, second }) => {
                    prop_assert_eq!(i128::from(at), start);
                    prop_assert_eq!(i128::from(first) + i128::from(second), i128::from(count));
                    prop_assert!(i128::from(at) + i128::from(first) <= i128::from(length));
                    prop_assert!(second == 0 || i128::from(at) + i128::from(first) == i128::from(length));
                    prop_assert!(second <= at);
                }
            }
        }

        #[test]
        fn the_oldest_indices_are_those_of_wide_arithmetic(head: u64, size: u64) {
            let back = |grains: i128| (i128::from(head) - (i128::from(size) - grains).max(0)).max(0);
            prop_assert_eq!(i128::from(oldest_grain(head, size)), back(1));
            prop_assert_eq!(i128::from(resume_grain(head, size)), back(2));
            let sample = (i128::from(head) - i128::from(size) / 2).max(0);
            prop_assert_eq!(i128::from(oldest_sample(head, size)), sample);
            prop_assert!(slot(head, size) < size.max(1));
        }

        /// At most one sync batch lies between two signals, whatever the sizes of the commits within the hint.
        #[test]
        fn no_batch_passes_without_a_signal(
            commit in 1_u32..500, times in 1_u32..8, begin in 0_u64..1_000_000,
            steps in proptest::collection::vec(1_u64..500, 1..100),
        ) {
            let sync = commit * times;
            let mut batches = Batches::new(commit, sync);
            let mut head = begin;
            let mut signalled = None;
            for step in steps {
                head += step.min(u64::from(commit));
                if batches.completes(head) {
                    signalled = Some(head);
                }
                if let Some(signalled) = signalled {
                    prop_assert!(head - signalled < u64::from(sync) + u64::from(commit));
                }
            }
        }
    }

    #[test]
    fn more_than_the_ring_is_no_window() {
        assert_eq!(window(5, 11, 10), None);
        assert_eq!(window(0, 0, 0), None);
        assert_eq!(window(5, 10, 10), Some(Window { start: 5, first: 5, second: 5 }));
        assert_eq!(window(5, 0, 10), Some(Window { start: 5, first: 0, second: 0 }));
    }

    #[test]
    fn a_head_that_goes_back_wakes_readers() {
        let mut batches = Batches::new(480, 480);
        assert!(batches.completes(480_000) && batches.completes(480_480));
        assert!(batches.completes(960));
        assert!(batches.completes(1440));
    }

    #[test]
    fn rings_of_one_and_two_slots_are_readable_at_the_head() {
        assert_eq!((oldest_grain(7, 1), oldest_grain(7, 2), oldest_grain(7, 3)), (7, 6, 5));
        assert_eq!((resume_grain(7, 1), resume_grain(7, 2), resume_grain(7, 3)), (7, 7, 6));
    }
}
