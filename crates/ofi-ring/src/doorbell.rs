//! How a receiver that polls rings goes to sleep without losing a record, and how a sender wakes it.
//!
//! There are three words. `attention`, one for each ring, and `sleeping`, one for each receiver, lie in the receiver's
//! memory, which senders map read-only. `hint`, a byte for each ring, is writable by senders; a false hint costs no
//! more than one check of the ring. While `attention` is 0, the receiver polls the ring itself, and a record costs its
//! sender one more load, of a line that does not change. While it is 1, the sender also sets the hint, fences, and
//! checks whether to wake the receiver; the receiver may then poll the hints instead of many idle rings.
//!
//! The callers choose how to wake a sleeper (a descriptor, a futex), and whether to sweep all rings now and then in
//! case a hostile sender has cleared hints.
//!
//! Invariants:
//! I1. Only the receiver stores `attention` and `sleeping`.
//! I2. Once `settle` has returned `Ok` after `attend(attention)`, every record of that ring is either visible to the
//!     receiver or followed by its hint.
//! I3. Once `arm` has returned `Ok`, for every record of an attended ring one of two things holds: the receiver can see
//!     it (and its hint, if its sender saw `attention`), or its sender finds `sleeping` and wakes the receiver. So a
//!     receiver that finds nothing after `arm` may sleep.
//! Pairs: HINT on `hint`, `ring` (Release) to `take_hint` (Acquire): the record is visible.
//!        ATTENTION, `ring` (store record, light barrier, load `attention`) with `settle` (store `attention`, heavy
//!            barrier, load record): at least one sees the other's store. The cost lies with the receiver, which is
//!            about to sleep; `crate::membarrier` says why that is enough.
//!        SLEEP, `ring` (store record and hint, fence, load `sleeping`) with `arm` (store `sleeping`, fence, load
//!            record or hint): at least one sees the other's store.

use crate::{
    membarrier::{self, Failed, Support},
    sync::{AtomicU8, AtomicU32, Ordering, fence},
};

/// The sender's side of one ring.
#[derive(Debug)]
pub struct DoorbellSender {
    attention: *const AtomicU32,
    sleeping: *const AtomicU32,
    hint: *const AtomicU8,
}

// SAFETY: `new` promises that the memory outlives the value, whichever thread holds it; it is accessed
// atomically.
unsafe impl Send for DoorbellSender {}

/// An `attention` that is always raised, for a sender whose light barrier no heavy barrier backs: it must always use
/// real fences.
#[cfg(not(loom))]
static ALWAYS: AtomicU32 = AtomicU32::new(1);

impl DoorbellSender {
    /// The bell of one ring. `support` is this process's own ([`membarrier::register`]); without it, every record costs
    /// a fence.
    ///
    /// # Safety
    /// While the value lives, the words are aligned and stay readable, and `hint` stays writable.
    pub unsafe fn new(
        attention: *const AtomicU32,
        sleeping: *const AtomicU32,
        hint: *const AtomicU8,
        support: Support,
    ) -> Self {
        let attention = match support {
            Support::Expedited => attention,
            #[cfg(not(loom))]
            Support::Missing => &raw const ALWAYS,
            #[cfg(loom)]
            Support::Missing => unreachable!("loom has the barrier"),
        };
        Self { attention, sleeping, hint }
    }

    /// Call this after one or more records were published in the ring.
    #[inline]
    pub fn ring(&self) -> Wake {
        membarrier::light(); // ATTENTION
        // SAFETY: aligned and readable, by the promise of `new`.
        if unsafe { &*self.attention }.load(Ordering::Relaxed) == 0 {
            return Wake::Unneeded;
        }
        self.ring_attended()
    }

    #[inline(never)]
    fn ring_attended(&self) -> Wake {
        // SAFETY: writable, by the promise of `new`.
        set_hint(unsafe { &*self.hint }); // HINT
        fence(Ordering::SeqCst); // SLEEP
        // SAFETY: aligned and readable, by the promise of `new`.
        match unsafe { &*self.sleeping }.load(Ordering::Relaxed) {
            0 => Wake::Unneeded,
            _ => Wake::Needed,
        }
    }
}

/// Whether the sender must wake the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a receiver that is not woken may sleep for ever"]
pub enum Wake {
    /// Nothing: the receiver is awake and will check the ring.
    Unneeded,
    /// The receiver sleeps or is about to, and has not seen the record.
    Needed,
}

/// The receiver's side for all its rings: awake, or armed to sleep.
///
/// To sleep: [`attend`](Self::attend) to every ring that is polled, [`arm`](Self::arm), and check all rings (or, for a
/// ring that is polled by hint, its hint). Sleep only if all are empty. In either case, [`disarm`](Self::disarm)
/// afterwards. To stop polling a ring and rely on its hint: `attend`, [`settle`](Self::settle), and poll it once more.
#[derive(Debug)]
pub struct Sleeper {
    sleeping: *const AtomicU32,
    support: Support,
    /// An `attention` was raised since the last heavy barrier.
    unsettled: bool,
}

// SAFETY: as for `DoorbellSender`.
unsafe impl Send for Sleeper {}

impl Sleeper {
    /// An awake receiver. `support` is this process's own ([`membarrier::register`]); without it, each `attention` must
    /// be 1 from before its sender first sees it.
    ///
    /// # Safety
    /// While the value lives, `sleeping` is aligned and stays writable, and nothing else stores to it.
    pub unsafe fn new(sleeping: *const AtomicU32, support: Support) -> Self {
        Self { sleeping, support, unsettled: false }
    }

    /// Asks the sender of one ring to set hints and to check `sleeping`. Takes effect with the next
    /// [`settle`](Self::settle) or [`arm`](Self::arm).
    #[inline]
    pub fn attend(&mut self, attention: &AtomicU32) {
        if attention.load(Ordering::Relaxed) == 0 {
            attention.store(1, Ordering::Relaxed);
            self.unsettled = true;
        }
    }

    /// Tells the sender of one ring that the ring is polled and the receiver is not about to sleep. Does nothing if the
    /// barrier that is needed to undo this is missing.
    #[inline]
    pub fn unattend(&mut self, attention: &AtomicU32) {
        // A sender that has not seen this yet does more than necessary, so there is nothing to order.
        if self.support == Support::Expedited {
            attention.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until every [`attend`](Self::attend) has taken effect. The first call after an `attend` is a system call;
    /// others do nothing.
    ///
    /// # Errors
    /// [`Failed`] if the barrier has become forbidden. Then a record may still arrive without a bell: keep polling, or
    /// sleep only for a short time.
    pub fn settle(&mut self) -> Result<(), Failed> {
        if self.unsettled {
            membarrier::heavy()?; // ATTENTION
            self.unsettled = false;
        }
        Ok(())
    }

    /// Asks to be woken. If a check of every ring, or of its hint, then finds nothing, the receiver may sleep (I3).
    ///
    /// # Errors
    /// As for [`settle`](Self::settle); the receiver is then not armed.
    pub fn arm(&mut self) -> Result<(), Failed> {
        self.settle()?;
        self.store_sleeping(1);
        fence(Ordering::SeqCst); // SLEEP
        Ok(())
    }

    /// Asks not to be woken any more. A wake-up in progress may still arrive.
    #[inline]
    pub fn disarm(&mut self) {
        self.store_sleeping(0);
    }

    fn store_sleeping(&self, value: u32) {
        // SAFETY: aligned and writable, by the promise of `new`.
        unsafe { &*self.sleeping }.store(value, Ordering::Relaxed);
    }
}

/// Sets the hint. It overwrites the previous value, whatever that is.
#[inline(always)]
fn set_hint(hint: &AtomicU8) {
    #[cfg(not(loom))]
    hint.store(1, Ordering::Release);
    // Loom lets a store come between the load and the store of the swap in `take_hint`, which no machine does. It does
    // keep two swaps apart, and a swap whose result is ignored is equivalent to a store.
    #[cfg(loom)]
    hint.swap(1, Ordering::Release);
}

/// Takes the hint of one ring. Returns whether its sender, if honest, has published records since the last call.
/// Check the ring after this call, not before. One load if there is no hint.
#[inline]
pub fn take_hint(hint: &AtomicU8) -> bool {
    // A read-modify-write, so that a hint set at the same time either is taken, together with its record, or stays.
    hint.load(Ordering::Relaxed) != 0 && hint.swap(0, Ordering::Acquire) != 0 // HINT
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The words of one receiver with one ring, and both sides of it.
    struct Words {
        attention: AtomicU32,
        sleeping: AtomicU32,
        hint: AtomicU8,
    }

    fn words(attention: u32) -> Words {
        Words { attention: attention.into(), sleeping: 0.into(), hint: 0.into() }
    }

    fn bell(words: &Words, support: Support) -> DoorbellSender {
        // SAFETY: the tests keep the words longer than the bell.
        unsafe { DoorbellSender::new(&words.attention, &words.sleeping, &words.hint, support) }
    }

    #[test]
    fn a_bell_does_only_what_the_receiver_asked_for() {
        let support = membarrier::register();
        let words = words(u32::from(support == Support::Missing));
        let bell = bell(&words, support);
        // SAFETY: `words` outlives it.
        let mut sleeper = unsafe { Sleeper::new(&words.sleeping, support) };
        assert_eq!(bell.ring(), Wake::Unneeded);
        assert_eq!(take_hint(&words.hint), support == Support::Missing);
        sleeper.attend(&words.attention);
        sleeper.settle().unwrap();
        assert_eq!((bell.ring(), take_hint(&words.hint)), (Wake::Unneeded, true));
        sleeper.arm().unwrap();
        assert_eq!((bell.ring(), take_hint(&words.hint)), (Wake::Needed, true));
        sleeper.disarm();
        assert_eq!((bell.ring(), take_hint(&words.hint)), (Wake::Unneeded, true));
        sleeper.unattend(&words.attention);
        assert_eq!(bell.ring(), Wake::Unneeded);
        assert_eq!(take_hint(&words.hint), support == Support::Missing);
    }

    #[test]
    fn a_sender_without_the_barrier_always_rings_in_full() {
        let words = words(0);
        words.sleeping.store(1, Ordering::Relaxed);
        assert_eq!(bell(&words, Support::Missing).ring(), Wake::Needed);
        assert!(take_hint(&words.hint) && !take_hint(&words.hint));
    }

    #[test]
    fn a_receiver_without_the_barrier_keeps_attention_up() {
        let words = words(1);
        // SAFETY: `words` outlives it.
        let mut sleeper = unsafe { Sleeper::new(&words.sleeping, Support::Missing) };
        sleeper.unattend(&words.attention);
        sleeper.attend(&words.attention);
        assert_eq!(sleeper.arm(), Ok(()));
        assert_eq!(words.attention.load(Ordering::Relaxed), 1);
    }
}

/// In every interleaving, a receiver that goes to sleep has seen every record or is woken. A counter stands for the
/// ring: its records are the numbers up to its value.
#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sync::Arc;

    struct Words {
        ring: AtomicU32,
        attention: AtomicU32,
        sleeping: AtomicU32,
        hint: AtomicU8,
    }

    /// Starts a sender of `records` records; its thread returns whether it had to wake the receiver after the last.
    /// Also returns the receiver and the words. `attention` is the initial value for the ring.
    fn start(records: u32, attention: u32) -> (thread::JoinHandle<bool>, Sleeper, Arc<Words>) {
        let words = Arc::new(Words {
            ring: AtomicU32::new(0),
            attention: AtomicU32::new(attention),
            sleeping: AtomicU32::new(0),
            hint: AtomicU8::new(0),
        });
        // SAFETY: the caller holds the words until it drops the sleeper.
        let sleeper = unsafe { Sleeper::new(&words.sleeping, Support::Expedited) };
        let theirs = words.clone();
        let sender = thread::spawn(move || {
            // SAFETY: `theirs` outlives it.
            let bell = unsafe {
                DoorbellSender::new(&theirs.attention, &theirs.sleeping, &theirs.hint, Support::Expedited)
            };
            let mut last = Wake::Unneeded;
            for record in 1..=records {
                theirs.ring.store(record, Ordering::Release); // PUBLISH
                last = bell.ring();
            }
            last == Wake::Needed
        });
        (sender, sleeper, words)
    }

    fn seen(words: &Words) -> u32 {
        words.ring.load(Ordering::Acquire)
    }

    #[test]
    fn a_receiver_that_polls_the_ring_is_woken() {
        loom::model(|| {
            let (sender, mut sleeper, words) = start(2, 0);
            sleeper.attend(&words.attention);
            sleeper.arm().unwrap();
            let found = seen(&words);
            assert!(sender.join().unwrap() || found == 2);
        });
    }

    /// The second sleep needs no heavy barrier.
    #[test]
    fn a_receiver_that_slept_before_is_woken() {
        loom::model(|| {
            let (sender, mut sleeper, words) = start(2, 0);
            sleeper.attend(&words.attention);
            sleeper.arm().unwrap();
            sleeper.disarm();
            sleeper.attend(&words.attention);
            sleeper.arm().unwrap();
            let found = seen(&words);
            assert!(sender.join().unwrap() || found == 2);
        });
    }

    /// After attention was lowered and raised again, the barrier is needed again.
    #[test]
    fn a_receiver_that_was_busy_in_between_is_woken() {
        loom::model(|| {
            let (sender, mut sleeper, words) = start(2, 1);
            sleeper.unattend(&words.attention);
            sleeper.attend(&words.attention);
            sleeper.arm().unwrap();
            let found = seen(&words);
            assert!(sender.join().unwrap() || found == 2);
        });
    }

    /// The receiver checks the ring only when there is a hint.
    #[test]
    fn a_receiver_that_polls_the_hint_is_woken() {
        loom::model(|| {
            let (sender, mut sleeper, words) = start(2, 1);
            let mut found = 0;
            if take_hint(&words.hint) {
                found = seen(&words);
                assert_ne!(found, 0);
            }
            sleeper.arm().unwrap();
            if take_hint(&words.hint) {
                found = seen(&words);
            }
            assert!(sender.join().unwrap() || found == 2);
        });
    }

    /// A receiver changes from polling the ring to polling the hint: a record that its last check of the ring misses
    /// has a hint.
    #[test]
    fn a_ring_that_is_polled_no_more_has_a_hint() {
        loom::model(|| {
            let (sender, mut sleeper, words) = start(2, 0);
            sleeper.attend(&words.attention);
            sleeper.settle().unwrap();
            let mut found = seen(&words);
            sender.join().unwrap();
            if take_hint(&words.hint) {
                found = seen(&words);
            }
            assert_eq!(found, 2);
        });
    }
}
