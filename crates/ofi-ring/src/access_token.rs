//! Access tokens (called `ticket` in names): two processes copy directly to and from each other's memory, and either
//! can withdraw access to its own at any time.
//!
//! A token is a nonzero number that its owner never reuses. While the memory is open to the other process, the token is
//! in a word of the owner's. Each word is stored by only one process; threads of that process may withdraw a token
//! concurrently.
//!
//! Memory that the other process writes:
//! T1. A writer stores the token in `writing` and, after a fence, finds it in `target`, before it writes ([`claim`]).
//!     It stores 0 when it has finished, or if it finds another token there.
//! T2. An owner removes the token from `target`, and after a fence waits until `writing` no longer holds it
//!     ([`is_writing`]).
//!
//! So either the writer finds the token gone and writes nothing, or the owner finds the writer and waits for it.
//!
//! Memory that the other process reads:
//! T3. An owner removes the token from `lent`, and lets the memory change only after a fence.
//! T4. A reader reads `lent` after a fence that follows its reads ([`is_still_lent`]), and discards the data if the
//!     token is gone.
//!
//! So a reader that read a byte of later contents finds the token gone. Neither side waits.
//!
//! Pairs: the fences; DONE on `writing`, [`Writing`]'s end (Release) to [`is_writing`] (Acquire): all bytes are
//! written.

use crate::sync::{AtomicU64, Ordering, fence};

/// A writer between its claim and its end. A process that dies meanwhile leaves its token in the word, so an owner must
/// also check whether the process is alive.
#[must_use = "the owner waits while it is there"]
pub struct Writing<'a>(&'a AtomicU64);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release); // DONE
    }
}

/// Begins to write under `ticket`, if it is still in `target`.
pub fn claim<'a>(writing: &'a AtomicU64, target: &AtomicU64, ticket: u64) -> Option<Writing<'a>> {
    writing.store(ticket, Ordering::SeqCst);
    let claimed = Writing(writing);
    fence(Ordering::SeqCst);
    (target.load(Ordering::SeqCst) == ticket).then_some(claimed) // T1
}

/// Removes `ticket` from a word, unless the word already holds another one. [`settle`] must follow.
pub fn void(word: &AtomicU64, ticket: u64) {
    let _ = word.compare_exchange(ticket, 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// Removes any token from a word. [`settle`] must follow.
pub fn clear(word: &AtomicU64) {
    word.store(0, Ordering::SeqCst);
}

/// Orders withdrawals before checks of writers (T2), and before changes of the memory (T3).
pub fn settle() {
    fence(Ordering::SeqCst);
}

/// Whether a writer's word says that it writes under `ticket`.
pub fn is_writing(writing: &AtomicU64, ticket: u64) -> bool {
    writing.load(Ordering::SeqCst) == ticket
}

/// Whether data read under `ticket` before this call is valid.
pub fn is_still_lent(lent: &AtomicU64, ticket: u64) -> bool {
    fence(Ordering::SeqCst); // T4
    lent.load(Ordering::Acquire) == ticket
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, UnsafeCell};

    struct Shared {
        target: AtomicU64,
        writing: AtomicU64,
        memory: UnsafeCell<u32>,
    }

    // SAFETY: the cell is written under a claim, and by the owner when no claim exists; the models check that.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}

    type Claim = for<'a> fn(&'a AtomicU64, &AtomicU64, u64) -> Option<Writing<'a>>;

    fn wait_for(shared: &Shared, ticket: u64) {
        while is_writing(&shared.writing, ticket) {
            loom::thread::yield_now();
        }
    }

    /// T1 and T2: all of a writer's stores are complete before its owner continues, and none follows.
    fn writes_are_over_when_the_memory_is_taken_back(claim: Claim, settle: fn()) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                target: AtomicU64::new(7),
                writing: AtomicU64::new(0),
                memory: UnsafeCell::new(0),
            });
            let writer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    if let Some(_writing) = claim(&shared.writing, &shared.target, 7) {
                        // SAFETY: claimed, which loom checks.
                        shared.memory.with_mut(|cell| unsafe { *cell = 1 });
                    }
                })
            };
            clear(&shared.target);
            settle();
            wait_for(&shared, 7);
            // SAFETY: no writer is active any more, which loom checks.
            shared.memory.with_mut(|cell| unsafe { *cell = 100 });
            writer.join().unwrap();
            // SAFETY: no other thread is there.
            shared.memory.with_mut(|cell| assert_eq!(unsafe { *cell }, 100));
        });
    }

    #[test]
    fn a_writer_and_an_owner() {
        writes_are_over_when_the_memory_is_taken_back(claim, settle);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_writer_without_its_fence_is_found_out() {
        writes_are_over_when_the_memory_is_taken_back(
            |writing, target, ticket| {
                writing.store(ticket, Ordering::SeqCst);
                let claimed = Writing(writing);
                (target.load(Ordering::SeqCst) == ticket).then_some(claimed)
            },
            settle,
        );
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_writer_that_looks_first_is_found_out() {
        writes_are_over_when_the_memory_is_taken_back(
            |writing, target, ticket| {
                let is_there = target.load(Ordering::SeqCst) == ticket;
                writing.store(ticket, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                let claimed = Writing(writing);
                is_there.then_some(claimed)
            },
            settle,
        );
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn an_owner_without_its_fence_is_found_out() {
        writes_are_over_when_the_memory_is_taken_back(claim, || ());
    }

    /// One thread closes a registration while another ends the operation and opens the next: each waits for the writer
    /// of the token that it withdrew, and the next token stays.
    fn two_owners(void: fn(&AtomicU64, u64)) {
        loom::model(move || {
            let shared = Arc::new(Shared {
                target: AtomicU64::new(7),
                writing: AtomicU64::new(0),
                memory: UnsafeCell::new(0),
            });
            let closes = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    void(&shared.target, 7);
                    settle();
                    wait_for(&shared, 7);
                })
            };
            clear(&shared.target);
            settle();
            wait_for(&shared, 7);
            shared.target.store(8, Ordering::Release);
            closes.join().unwrap();
            assert!(claim(&shared.writing, &shared.target, 7).is_none());
            assert!(claim(&shared.writing, &shared.target, 8).is_some(), "the next ticket is gone");
        });
    }

    #[test]
    fn two_threads_of_the_owner() {
        two_owners(void);
    }

    #[test]
    #[should_panic(expected = "the next ticket")]
    fn a_thread_that_takes_away_any_ticket_is_found_out() {
        two_owners(|word, _| clear(word));
    }

    /// T3 and T4: if the token is still valid after a read, the data is what was lent under it. The bytes are words
    /// here, because the other process reads them while they change.
    fn what_is_believed_was_lent(settle: fn(), is_still_lent: fn(&AtomicU64, u64) -> bool) {
        struct Lent {
            lent: AtomicU64,
            bytes: [AtomicU64; 2],
        }
        loom::model(move || {
            let shared =
                Arc::new(Lent { lent: AtomicU64::new(7), bytes: [AtomicU64::new(1), AtomicU64::new(1)] });
            let reader = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let read = [0, 1].map(|at: usize| shared.bytes[at].load(Ordering::Relaxed));
                    if is_still_lent(&shared.lent, 7) {
                        assert_eq!(read, [1, 1], "this is not what was lent");
                    }
                })
            };
            void(&shared.lent, 7);
            settle();
            shared.bytes.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
            shared.lent.store(7 + 256, Ordering::Relaxed); // the word is used again
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_reader_and_an_owner() {
        what_is_believed_was_lent(settle, is_still_lent);
    }

    #[test]
    #[should_panic(expected = "what was lent")]
    fn an_owner_that_changes_bytes_without_a_fence_is_found_out() {
        what_is_believed_was_lent(|| (), is_still_lent);
    }

    #[test]
    #[should_panic(expected = "what was lent")]
    fn a_reader_without_its_fence_is_found_out() {
        what_is_believed_was_lent(settle, |lent, ticket| lent.load(Ordering::Acquire) == ticket);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_until_it_is_taken_away() {
        let (target, writing) = (AtomicU64::new(7), AtomicU64::new(0));
        {
            let _writing = claim(&writing, &target, 7).unwrap();
            assert!(is_writing(&writing, 7) && !is_writing(&writing, 8));
        }
        assert!(!is_writing(&writing, 7));
        assert!(claim(&writing, &target, 6).is_none());
        assert_eq!(writing.load(Ordering::Relaxed), 0, "no owner waits for one that does not write");
        void(&target, 6);
        assert!(is_still_lent(&target, 7));
        void(&target, 7);
        settle();
        assert!(!is_still_lent(&target, 7) && claim(&writing, &target, 7).is_none());
    }
}
