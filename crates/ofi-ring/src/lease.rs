//! A lease: memory that other threads or processes copy from and to until it ends. Ending it waits for copies in
//! progress.
//!
//! The owner has a generation that all users can read. Each user has a word that the owner can read, which names the
//! slot through which the user is copying. Users and owner may be in several processes, and no process writes another's
//! words.
//!
//! Invariants:
//! L1. A user copies only after it stored its word and then, after a barrier, found the generation that it was given.
//! L2. The owner raises the generation, and then, after a barrier, reads the words of all users.
//!
//! So either the user finds the new generation and does not copy, or the owner finds the word and waits. Pairs: the two
//! barriers, which are [`membarrier::light`] and [`membarrier::heavy`], or a fence on both sides if either process
//! lacks membarrier(2); DONE on the word, [`copy`] (a Release fence) to [`is_copying`] (Acquire): the copy has
//! finished.

use crate::membarrier::{self, Failed};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Runs `copying` if the lease of `slot` is valid, in such a way that its owner can wait for the copy. Returns whether
/// it was valid. `generation` is the lease's. `fences`: the user's or the owner's process lacks membarrier(2).
#[inline(always)]
pub fn copy(
    word: &AtomicU64,
    (slot, generation): (u32, u32),
    current: &AtomicU32,
    fences: bool,
    copying: impl FnOnce(),
) -> bool {
    word.store(u64::from(slot) + 1, Ordering::Relaxed);
    if fences {
        fence(Ordering::SeqCst);
    } else {
        membarrier::light();
    }
    let holds = current.load(Ordering::Acquire) == generation; // L1
    if holds {
        copying();
    }
    // Not a release store: the stores of a later copy must not become visible before those of this one
    // (`FI_ORDER_WAW`).
    fence(Ordering::Release);
    word.store(0, Ordering::Relaxed); // DONE
    holds
}

/// Ends the leases of a slot. [`settle`] must follow, and then [`is_copying`] must be called for each user.
pub fn end(current: &AtomicU32) {
    current.fetch_add(1, Ordering::SeqCst);
}

/// Orders the ends of leases before the reads that follow. `light`: users may rely on [`membarrier::light`].
///
/// # Errors
/// [`Failed`] if users rely on it and the barrier fails: then a copy in progress may go unnoticed.
pub fn settle(light: bool) -> Result<(), Failed> {
    fence(Ordering::SeqCst);
    if light { membarrier::heavy() } else { Ok(()) }
}

/// Whether a user is copying through `slot`, according to its word.
pub fn is_copying(word: &AtomicU64, slot: u32) -> bool {
    word.load(Ordering::Acquire) == u64::from(slot) + 1
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, UnsafeCell};

    struct Shared {
        generation: AtomicU32,
        word: AtomicU64,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: each cell is written by one user inside a copy, and by the owner when no copy is in progress; the models
    // check that.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    /// Each user has its own word, so one user stands for all.
    fn a_copy_ends_before_the_memory_is_taken_back(fences: bool) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                generation: AtomicU32::new(7),
                word: AtomicU64::new(0),
                memory: UnsafeCell::new(0),
            });
            let user = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    copy(&shared.word, (3, 7), &shared.generation, fences, || {
                        // SAFETY: the lease holds, which loom checks.
                        shared.memory.with_mut(|cell| unsafe { *cell += 1 });
                    })
                })
            };
            end(&shared.generation);
            settle(!fences).unwrap();
            while is_copying(&shared.word, 3) {
                loom::thread::yield_now();
            }
            // SAFETY: no user copies any more, which loom checks.
            shared.memory.with_mut(|cell| unsafe { *cell = 100 });
            let copied = user.join().unwrap();
            // SAFETY: no other thread is there.
            shared.memory.with_mut(|cell| assert_eq!(unsafe { *cell }, 100, "copied: {copied}"));
        });
    }

    #[test]
    fn with_membarrier() {
        a_copy_ends_before_the_memory_is_taken_back(false);
    }

    #[test]
    fn with_fences() {
        a_copy_ends_before_the_memory_is_taken_back(true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_holds_until_it_is_ended() {
        let (word, current) = (AtomicU64::new(0), AtomicU32::new(7));
        for fences in [true, false] {
            let mut copied = false;
            assert!(copy(&word, (3, 7), &current, fences, || {
                assert!(is_copying(&word, 3) && !is_copying(&word, 2));
                copied = true;
            }));
            assert!(copied && !is_copying(&word, 3));
        }
        end(&current);
        settle(false).unwrap();
        assert!(!copy(&word, (3, 7), &current, true, || unreachable!("it is over")));
    }
}
