//! Work that any thread may submit and that one thread at a time executes.
//!
//! A thread that submits work puts it into a queue under a lock, announces it, and tries to begin a run. One thread
//! executes the queue. Another thread that submits work meanwhile returns at once, and the first one finds that work.
//!
//! Invariants:
//! E1. Work is announced under the queue's lock, before or while it is put there.
//! E2. A run begins by clearing the announcement, and then empties the queue.
//! E3. A thread that ends a run checks for an announcement afterwards. Both ends of a run are read-modify-write
//!     operations on one word: a thread that finds the word taken has made its announcement before, so the runner sees
//!     it at the end of its run (ORDER).
//! Pairs: ORDER on `running`: `begin` (AcqRel) that finds it taken, to `end` (AcqRel) of the run that had it.

use crate::sync::{AtomicBool, Ordering};

/// The flags that make one thread at a time execute a queue of work.
#[derive(Debug)]
pub struct SingleRunner {
    /// Work is in the queue, or about to be.
    due: AtomicBool,
    running: AtomicBool,
}

impl Default for SingleRunner {
    fn default() -> Self {
        Self { due: AtomicBool::new(false), running: AtomicBool::new(false) }
    }
}

impl SingleRunner {
    /// Whether work was announced and no thread has begun to execute it.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// Announces work (E1).
    #[inline]
    pub fn announce(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Becomes the runner if there is none, without clearing announcements.
    #[inline]
    #[must_use]
    pub fn take(&self) -> bool {
        !self.running.swap(true, Ordering::AcqRel)
    }

    /// Begins a run (E2), unless another thread is running: that thread will check again.
    #[inline]
    #[must_use]
    pub fn begin(&self) -> bool {
        let taken = self.take();
        if taken {
            self.due.store(false, Ordering::Relaxed);
        }
        taken
    }

    /// Ends a run. Returns whether more work was announced meanwhile (E3).
    #[inline]
    pub fn end(&self) -> bool {
        self.running.swap(false, Ordering::AcqRel);
        self.is_due()
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Mutex;

    use super::*;
    use crate::sync::{Arc, AtomicU32};

    #[derive(Default)]
    struct Shared {
        runner: SingleRunner,
        queue: Mutex<u32>,
        done: AtomicU32,
        inside: AtomicU32,
    }

    impl Shared {
        fn bring(&self) {
            {
                let mut queue = self.queue.lock().unwrap();
                self.runner.announce();
                *queue += 1;
            }
            self.run();
        }

        /// Executes the caller's own work without the queue, if the queue is empty.
        fn start(&self) {
            if self.runner.is_due() || !self.runner.take() {
                return self.bring();
            }
            assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
            self.done.fetch_add(1, Ordering::Relaxed);
            self.inside.fetch_sub(1, Ordering::Relaxed);
            if self.runner.end() {
                self.run();
            }
        }

        fn run(&self) {
            while self.runner.begin() {
                assert_eq!(self.inside.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
                while self.pop() {
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                self.inside.fetch_sub(1, Ordering::Relaxed);
                if !self.runner.end() {
                    return;
                }
            }
        }

        fn pop(&self) -> bool {
            let mut queue = self.queue.lock().unwrap();
            let some = *queue > 0;
            *queue = queue.saturating_sub(1);
            some
        }
    }

    fn nothing_is_left(threads: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new(Shared::default());
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    loom::thread::spawn(move || shared.bring())
                })
                .collect();
            shared.bring();
            others.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(shared.done.load(Ordering::Relaxed) as usize, threads, "work was left behind");
        });
    }

    #[test]
    fn what_two_threads_bring_is_done() {
        nothing_is_left(2);
    }

    #[test]
    fn what_comes_beside_a_run_past_the_queue_is_done() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let other = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.bring())
            };
            shared.start();
            other.join().unwrap();
            assert_eq!(shared.done.load(Ordering::Relaxed), 2, "work was left behind");
        });
    }

    #[test]
    fn what_three_threads_bring_is_done() {
        nothing_is_left(3);
    }
}
