//! An item that a thread checks later if it is still due then: two flags, which many threads set and clear.
//!
//! Invariants:
//! O1. Only a caller that gets `true` from [`DeferredCheck::begin`] puts the item on the list of items to pass to
//!     [`DeferredCheck::look`] later. So the item is on the list at most once, however often it becomes due.
//! O2. If the item is due and has not [ended](DeferredCheck::end), a later `look` sees it. Pairs: LISTED on `listed`,
//!     `begin` with `look`, both swaps: if `begin` finds the item listed, the swap of that look comes after, and the
//!     look sees that it is due. If it finds the item not listed, O1 leads to another look.

use crate::sync::{AtomicU8, Ordering};

/// The two flags of one item that is checked later: it is due, and it is on the list.
#[derive(Debug)]
pub struct DeferredCheck {
    due: AtomicU8,
    listed: AtomicU8,
}

impl Default for DeferredCheck {
    fn default() -> Self {
        Self { due: AtomicU8::new(0), listed: AtomicU8::new(0) }
    }
}

impl DeferredCheck {
    /// Marks the item due. Returns whether the caller must put it on the list (O1).
    #[must_use]
    pub fn begin(&self) -> bool {
        self.due.store(1, Ordering::Relaxed);
        self.listed.swap(1, Ordering::AcqRel) == 0 // LISTED
    }

    /// Called by a looker that wants to check the item again. Returns whether it must put the item back on its list; if
    /// not, another thread has done so after [`DeferredCheck::begin`] (O1).
    #[must_use]
    pub fn keep(&self) -> bool {
        self.listed.swap(1, Ordering::AcqRel) == 0 // LISTED
    }

    /// The item is no longer due.
    pub fn end(&self) {
        self.due.store(0, Ordering::Relaxed);
    }

    /// Whether the item is due.
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// Records that the looker has taken the item off its list. Returns whether the item is due.
    #[must_use]
    pub fn look(&self) -> bool {
        self.listed.swap(0, Ordering::AcqRel); // LISTED
        self.is_due()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_listed_once_until_it_is_looked_at() {
        let overdue = DeferredCheck::default();
        assert!(overdue.begin() && !overdue.begin());
        overdue.end();
        assert!(!overdue.begin(), "it is still on the list");
        assert!(overdue.is_due() && overdue.look());
        assert!(overdue.keep() && !overdue.begin(), "the looker has listed it");
        overdue.end();
        assert!(!overdue.look());
        assert!(overdue.begin() && !overdue.keep());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, AtomicU32};

    /// Two threads make the item due while a third looks: in every interleaving, the look sees it or it is on the list
    /// again.
    #[test]
    fn what_is_due_is_seen_by_a_look_to_come() {
        loom::model(|| {
            let overdue = Arc::new(DeferredCheck::default());
            let list = Arc::new(AtomicU32::new(1));
            assert!(overdue.begin(), "the first is listed");
            overdue.end();
            let begins: Vec<_> = (0..2)
                .map(|_| {
                    let (overdue, list) = (Arc::clone(&overdue), Arc::clone(&list));
                    loom::thread::spawn(move || {
                        if overdue.begin() {
                            list.fetch_add(1, Ordering::AcqRel);
                        }
                    })
                })
                .collect();
            list.fetch_sub(1, Ordering::AcqRel);
            let seen = overdue.look();
            if seen && overdue.keep() {
                list.fetch_add(1, Ordering::AcqRel);
            }
            begins.into_iter().for_each(|thread| thread.join().unwrap());
            let listed = list.load(Ordering::Acquire);
            assert!(listed <= 1, "listed {listed} times");
            assert!(seen || listed == 1, "due, and never looked at");
        });
    }
}
