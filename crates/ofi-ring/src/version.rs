//! The state of a slot whose contents are read without a lock, by a copy that is checked afterwards (a sequence lock).
//!
//! Invariants:
//! V1. The word is odd while the slot is occupied, and changes whenever contents are stored or removed. A value recurs
//!     only after 2^31 occupations, longer than any reader takes to copy.
//! V2. Writers have a lock. Contents are written while the word is even.
//! V3. A reader that copied contents and finds the word unchanged has copied the contents that belong to it.
//! Pairs: COME, `occupy` (Release) to `begin` (Acquire): a reader that sees an odd word sees its contents.
//!        GO, the fence in `occupy` (Release) to the fence in `is_still` (Acquire): a reader that copied anything of
//!        newer contents sees that the older word is gone. Without it, a weakly ordered machine could show new contents
//!        under the old word.

use crate::sync::{AtomicU32, Ordering, fence};

/// The sequence word of one slot.
#[derive(Debug)]
#[repr(transparent)]
pub struct Version(AtomicU32);

impl Default for Version {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Version {
    /// The current word.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// The word, if the slot is occupied: its contents may be copied.
    #[inline]
    pub fn begin(&self) -> Option<u32> {
        Some(self.get()).filter(|word| word & 1 == 1)
    }

    /// Whether contents copied since [`Version::begin`] returned `before` belong to that word.
    #[inline]
    pub fn is_still(&self, before: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == before
    }

    /// Occupies a vacant slot with the contents that `write` stores. The caller has the lock.
    pub fn occupy(&self, write: impl FnOnce()) {
        fence(Ordering::Release); // GO: after it the contents, before it the last `vacate`, maybe of another process
        write();
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1) | 1, Ordering::Release);
    }

    /// Vacates the slot. The caller has the lock.
    pub fn vacate(&self) {
        self.0.store((self.0.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, AtomicU64};

    #[derive(Default)]
    struct Slot {
        version: Version,
        contents: [AtomicU64; 2],
    }

    impl Slot {
        fn write(&self, value: u64) {
            self.version
                .occupy(|| self.contents.iter().for_each(|word| word.store(value, Ordering::Relaxed)));
        }

        fn read(&self) -> Option<u64> {
            let before = self.version.begin()?;
            let [one, other] = [0, 1].map(|at| self.contents[at].load(Ordering::Relaxed));
            if !self.version.is_still(before) {
                return None;
            }
            assert_eq!(one, other, "a torn read");
            Some(one)
        }
    }

    #[test]
    fn a_slot_that_changes_hands_is_never_read_torn() {
        loom::model(|| {
            let slot = Arc::new(Slot::default());
            slot.write(1);
            let writer = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || {
                    slot.version.vacate();
                    slot.write(2);
                })
            };
            assert!(slot.read().is_none_or(|value| value == 1 || value == 2));
            writer.join().unwrap();
            assert_eq!(slot.read(), Some(2));
        });
    }

    #[test]
    fn two_writers_under_a_lock_leave_one_s_contents() {
        loom::model(|| {
            let slot = Arc::new((loom::sync::Mutex::new(()), Slot::default()));
            slot.1.write(1);
            let vacates = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || {
                    let _lock = slot.0.lock().unwrap();
                    slot.1.version.vacate();
                })
            };
            let occupies = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || {
                    let _lock = slot.0.lock().unwrap();
                    if slot.1.version.begin().is_none() {
                        slot.1.write(2);
                    }
                })
            };
            slot.1.read();
            vacates.join().unwrap();
            occupies.join().unwrap();
        });
    }
}
