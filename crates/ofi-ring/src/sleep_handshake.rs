//! How a helper thread sleeps while the application polls the sources that the helper is responsible for.
//!
//! The helper arms a source and sleeps. A poll by the application disarms the source, and the application becomes
//! responsible for it. If the application then stops polling, the helper must be awake again.
//!
//! Invariants:
//! S1. The helper announces that it is about to sleep before it arms a source, under the source's lock.
//! S2. The application counts its poll inside the section, under that lock, which disarms the source.
//!
//! Of two sections under one lock, one comes first. If it is the helper's, the poll finds the helper asleep and wakes
//! it. If it is the poll's, the helper arms again, and nothing stays disarmed. The lock provides all the ordering that
//! this needs. A poll must not be counted before its section: the helper could arm in between.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// The state that a helper thread and the application's polls share.
#[derive(Debug)]
pub struct SleepHandshake {
    /// The helper sleeps or is about to.
    asleep: AtomicBool,
    /// Approximate number of polls by the application: two at once may count as one.
    polls: AtomicU64,
}

impl Default for SleepHandshake {
    fn default() -> Self {
        Self { asleep: AtomicBool::new(false), polls: AtomicU64::new(0) }
    }
}

impl SleepHandshake {
    /// Counts a poll (S2). Returns whether the helper must be woken.
    #[inline]
    #[must_use]
    pub fn polled(&self) -> bool {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.asleep.load(Ordering::Relaxed)
    }

    /// Approximate number of polls by the application.
    pub fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The helper is about to arm its sources and to sleep (S1).
    pub fn begin(&self) {
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The helper is awake.
    pub fn end(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Mutex;

    use super::*;
    use crate::sync::{Arc, AtomicU32};
    use crate::wake_state::WakeState;

    /// A source under its lock, the helper's wake state, and its descriptor.
    #[derive(Default)]
    struct Shared {
        slumber: SleepHandshake,
        is_armed: Mutex<bool>,
        wake: WakeState,
        event: AtomicU32,
    }

    impl Shared {
        /// A poll disarms the source.
        fn poll(&self) {
            let mut armed = self.is_armed.lock().unwrap();
            if self.slumber.polled() && self.wake.is_armed() && self.wake.notify() {
                self.event.store(1, Ordering::SeqCst);
            }
            *armed = false;
        }

        /// The helper arms the source; afterwards it sleeps at its descriptor.
        fn arm(&self) {
            if self.wake.arm() {
                self.event.store(0, Ordering::SeqCst);
            }
            self.slumber.begin();
            *self.is_armed.lock().unwrap() = true;
        }
    }

    fn sleeps_armed_or_is_woken(polls: usize) {
        loom::model(move || {
            let shared = Arc::new(Shared::default());
            let threads: Vec<_> = (0..polls)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || shared.poll())
                })
                .collect();
            shared.arm();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let armed = *shared.is_armed.lock().unwrap();
            assert!(
                armed || shared.event.load(Ordering::SeqCst) == 1,
                "asleep at a source that is not armed"
            );
        });
    }

    #[test]
    fn a_poll_wakes_the_helper_or_leaves_it_armed() {
        sleeps_armed_or_is_woken(1);
    }

    #[test]
    fn two_polls_wake_the_helper_or_leave_it_armed() {
        sleeps_armed_or_is_woken(2);
    }
}
