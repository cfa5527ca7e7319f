//! A log of changes of memory, written by one thread that may neither wait nor allocate.
//!
//! Invariants:
//! - Only the thread that watches memory writes. It increments `writing` before it overwrites an entry, and `published`
//!   after that.
//! - A reader discards an entry if `writing` says that a later change overwrites it: then it has missed changes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// A change of watched memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The addresses were unmapped, or their pages moved elsewhere.
    Unmapped(Range<usize>),
    /// The pages are about to be dropped; the addresses stay mapped. This change alone is reported before it happens.
    Emptied(Range<usize>),
}

impl Change {
    /// The addresses.
    pub fn span(&self) -> &Range<usize> {
        match self {
            Self::Unmapped(span) | Self::Emptied(span) => span,
        }
    }
}

/// Number of changes that are kept for readers.
const ENTRIES: u64 = 1024;

#[derive(Default)]
struct ChangeEntry {
    start: AtomicUsize,
    end: AtomicUsize,
    empties: AtomicUsize,
}

/// The latest changes.
pub struct Changes {
    entries: Box<[ChangeEntry]>,
    writing: AtomicU64,
    published: AtomicU64,
}

impl Default for Changes {
    fn default() -> Self {
        let entries = (0..ENTRIES).map(|_| ChangeEntry::default()).collect();
        Self { entries, writing: AtomicU64::new(0), published: AtomicU64::new(0) }
    }
}

impl Changes {
    /// Number of changes so far.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Adds a change. Called by one thread.
    pub fn push(&self, change: &Change) {
        let number = self.published.load(Ordering::Relaxed);
        self.writing.store(number + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let entry = &self.entries[(number % ENTRIES) as usize];
        entry.start.store(change.span().start, Ordering::Relaxed);
        entry.end.store(change.span().end, Ordering::Relaxed);
        entry.empties.store(usize::from(matches!(change, Change::Emptied(_))), Ordering::Relaxed);
        self.published.store(number + 1, Ordering::Release);
    }

    /// Passes the changes from number `from` on to `each`, and returns the number of the next one. `None` if some of
    /// them were overwritten.
    pub fn read(&self, from: u64, each: &mut dyn FnMut(Change)) -> Option<u64> {
        let until = self.published();
        for number in from..until {
            let entry = &self.entries[(number % ENTRIES) as usize];
            let span = entry.start.load(Ordering::Relaxed)..entry.end.load(Ordering::Relaxed);
            let empties = entry.empties.load(Ordering::Relaxed) != 0;
            fence(Ordering::Acquire);
            if self.writing.load(Ordering::Relaxed) > number + ENTRIES {
                return None;
            }
            each(if empties { Change::Emptied(span) } else { Change::Unmapped(span) });
        }
        Some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_in_order_and_a_slow_reader_knows_that_it_missed_some() {
        let changes = Changes::default();
        let mut seen = Vec::new();
        changes.push(&Change::Unmapped(1..2));
        changes.push(&Change::Emptied(3..4));
        assert_eq!(changes.read(0, &mut |change| seen.push(change)), Some(2));
        assert_eq!(seen, [Change::Unmapped(1..2), Change::Emptied(3..4)]);
        assert_eq!(changes.read(2, &mut |_| unreachable!("no further change")), Some(2));
        for at in 2..ENTRIES as usize {
            changes.push(&Change::Unmapped(at..at + 1));
        }
        let mut count = 0;
        assert_eq!(changes.read(0, &mut |_| count += 1), Some(ENTRIES));
        assert_eq!(count, ENTRIES, "as many as are kept");
        changes.push(&Change::Unmapped(7..8));
        assert_eq!(changes.read(0, &mut |_| ()), None, "the first was overwritten");
    }

    /// One thread writes changes whose fields agree; another reads them meanwhile, and sees no torn one.
    #[test]
    fn a_change_that_is_overwritten_while_it_is_read_is_not_reported() {
        const COUNT: usize = 300_000;
        let changes = Changes::default();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..COUNT).for_each(|at| changes.push(&Change::Unmapped(at..2 * at + 1))));
            let (mut next, mut read) = (0, 0_usize);
            while next < COUNT as u64 {
                let mut each = |change: Change| {
                    let span = change.span();
                    assert_eq!(span.end, 2 * span.start + 1);
                    read += 1;
                };
                next = changes.read(next, &mut each).unwrap_or_else(|| changes.published().saturating_sub(9));
            }
            assert!(read > 0);
        });
    }
}
