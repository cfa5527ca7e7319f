//! Whether a thread that waits at a descriptor must be woken: three states in one byte.
//!
//! Invariants:
//! A1. A thread that is about to sleep arms the state, and then checks for what it waits for.
//! A2. A thread that has news publishes it, and then checks whether the state is armed. The two stores and the two
//!     loads are `SeqCst` (or the news is under a lock that both threads take), so one of the two sees the other.
//! A3. The descriptor is readable in state NOTIFIED. During a change to or from NOTIFIED it is about to become
//!     readable, or to be emptied.

use crate::sync::{AtomicU8, Ordering};

/// No thread sleeps.
const IDLE: u8 = 0;
/// A thread found nothing, and sleeps or is about to.
const ARMED: u8 = 1;
/// The descriptor is readable.
const NOTIFIED: u8 = 2;

/// The state of one descriptor at which a thread waits: idle, armed or notified.
#[derive(Debug)]
pub struct WakeState(AtomicU8);

impl Default for WakeState {
    fn default() -> Self {
        Self(AtomicU8::new(IDLE))
    }
}

impl WakeState {
    /// Arms the state (A1). Returns whether the descriptor must be emptied before the caller checks.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.0.swap(ARMED, Ordering::SeqCst) == NOTIFIED
    }

    /// Whether a sleeping thread must be notified (A2).
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.0.load(Ordering::SeqCst) == ARMED
    }

    /// Notifies a thread that sleeps or is about to. Returns whether the descriptor must be made readable.
    #[must_use]
    pub fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::SeqCst) != NOTIFIED
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, AtomicU32, AtomicU64, fence};

    /// What a sleeper waits for, and its descriptor: the number of times that it was made readable.
    #[derive(Default)]
    struct Shared {
        wake: WakeState,
        number: AtomicU64,
        event: AtomicU32,
    }

    impl Shared {
        /// Publishes news, like `Cntr`.
        fn raise(&self) {
            self.number.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst); // loom takes `SeqCst` accesses as `AcqRel`
            if self.wake.is_armed() && self.wake.notify() {
                self.event.store(1, Ordering::SeqCst);
            }
        }

        /// Prepares to sleep. Returns the amount of news.
        fn arm(&self) -> u64 {
            if self.wake.arm() {
                self.event.store(0, Ordering::SeqCst);
            }
            fence(Ordering::SeqCst);
            self.number.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn what_is_not_seen_wakes() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let raises = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.raise())
            };
            let seen = shared.arm();
            raises.join().unwrap();
            assert!(seen == 1 || shared.event.load(Ordering::SeqCst) == 1, "a lost wake-up");
        });
    }

    #[test]
    fn of_two_that_raise_the_last_is_seen_or_wakes() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let raises: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || shared.raise())
                })
                .collect();
            let seen = shared.arm();
            raises.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(seen == 2 || shared.event.load(Ordering::SeqCst) == 1, "a lost wake-up");
        });
    }
}
