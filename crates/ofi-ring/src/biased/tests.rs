//! The lock between real threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;

/// A number that only the thread inside may access.
struct Guarded(RawLock, core::cell::UnsafeCell<u64>);

// SAFETY: the number is touched inside the lock only.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new(support: Support) -> Self {
        Self(RawLock::with(support), core::cell::UnsafeCell::new(0))
    }

    fn add(&self) {
        let _entered = self.0.enter();
        self.add_inside();
    }

    /// As [`Guarded::add`], if no thread is inside. Whether it did.
    fn add_if_free(&self) -> bool {
        let entered = self.0.try_enter();
        if entered.is_some() {
            self.add_inside();
        }
        entered.is_some()
    }

    /// For the thread inside.
    fn add_inside(&self) {
        // SAFETY: this thread is inside.
        let number = unsafe { &mut *self.1.get() };
        // Read, pause and write, so that a second thread inside is noticed.
        let before = core::hint::black_box(*number);
        core::hint::spin_loop();
        *number = before + 1;
    }

    fn sum(&self) -> u64 {
        let _entered = self.0.enter();
        // SAFETY: this thread is inside.
        unsafe { *self.1.get() }
    }
}

impl RawLock {
    fn is_biased_to(&self, me: usize) -> bool {
        // SAFETY: owners live as long as the lock.
        unsafe { (*self.bias.load(Ordering::Acquire)).thread == me }
    }
}

fn both() -> impl Iterator<Item = Support> {
    [membarrier::register_private(), Support::Missing].into_iter()
}

#[test]
fn the_first_thread_is_the_owner_until_another_comes() {
    if membarrier::register_private() == Support::Missing {
        return eprintln!("NOT RUN: a biased lock: this system has no membarrier");
    }
    let lock = RawLock::new();
    assert!(lock.is_biased_to(NOBODY));
    drop(lock.enter());
    assert!(lock.is_biased_to(thread()));
    std::thread::scope(|scope| drop(scope.spawn(|| drop(lock.enter()))));
    assert!(lock.is_biased_to(NOBODY));
    // It becomes the owner again after being alone for long: for longer after each revocation.
    for round in 0..3 {
        for _ in 0..=(ALONE << round) {
            assert!(!lock.is_biased_to(thread()));
            drop(lock.enter());
        }
        assert!(lock.is_biased_to(thread()));
        std::thread::scope(|scope| drop(scope.spawn(|| drop(lock.enter()))));
    }
}

#[test]
fn an_owner_that_has_ended_gives_way() {
    for support in both() {
        let guarded = Guarded::new(support);
        for _ in 0..3 * OWNERS {
            std::thread::scope(|scope| drop(scope.spawn(|| (0..10).for_each(|_| guarded.add()))));
        }
        assert_eq!(guarded.sum(), u64::from(30 * OWNERS));
    }
}

#[test]
fn more_threads_than_owners_take_turns() {
    for support in both() {
        let guarded = Guarded::new(support);
        let threads = OWNERS as usize + 4;
        let barrier = Barrier::new(threads);
        std::thread::scope(|scope| {
            for at in 0..threads {
                let (guarded, barrier) = (&guarded, &barrier);
                scope.spawn(move || {
                    for turn in 0..threads {
                        barrier.wait();
                        if turn == at {
                            (0..2 * ALONE).for_each(|_| guarded.add());
                        }
                    }
                });
            }
        });
        assert_eq!(guarded.sum(), threads as u64 * u64::from(2 * ALONE));
    }
}

#[test]
fn an_owner_and_guests_lose_nothing() {
    for support in both() {
        for _ in 0..20 {
            let guarded = Guarded::new(support);
            let (stop, by_owner) = (AtomicBool::new(false), AtomicU64::new(0));
            let mut by_guests = 0;
            std::thread::scope(|scope| {
                let owner = || {
                    while !stop.load(Ordering::Relaxed) {
                        guarded.add();
                        by_owner.fetch_add(1, Ordering::Relaxed);
                    }
                };
                scope.spawn(owner);
                // Some pauses are long enough for the owner to get the bias again.
                for pause in [0, 0, 10, 200, 1_000, 0] {
                    std::thread::sleep(std::time::Duration::from_micros(pause));
                    std::thread::scope(|guests| {
                        for _ in 0..2 {
                            guests.spawn(|| (0..200).for_each(|_| guarded.add()));
                        }
                    });
                    by_guests += 400;
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(guarded.sum(), by_guests + by_owner.load(Ordering::Relaxed));
        }
    }
}

#[test]
fn entering_twice_panics_and_does_not_hang() {
    for support in both() {
        let lock = RawLock::with(support);
        for _ in 0..2 {
            let entered = lock.enter();
            let twice = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| drop(lock.enter())));
            assert!(twice.is_err());
            drop(entered);
        }
        drop(lock.enter());
    }
}

#[test]
fn a_thread_that_does_not_wait_finds_the_lock_free_or_leaves_the_owner_its_bias() {
    for support in both() {
        let lock = RawLock::with(support);
        let elsewhere =
            || std::thread::scope(|scope| scope.spawn(|| lock.try_enter().is_some()).join().unwrap());
        let entered = lock.enter();
        let owner = lock.is_biased_to(thread());
        assert!(!elsewhere() && lock.try_enter().is_none(), "{support:?}: this thread is inside");
        assert_eq!(lock.is_biased_to(thread()), owner, "{support:?}");
        drop(entered);
        assert!(elsewhere(), "{support:?}: nobody is inside");
        assert!(!lock.is_biased_to(thread()), "{support:?}");
        let entered = lock.try_enter();
        assert!(entered.is_some() && !elsewhere(), "{support:?}: it has no owner");
    }
}

#[test]
fn threads_that_wait_and_threads_that_do_not_exclude_each_other() {
    const TIMES: u64 = 20_000;
    for support in both() {
        let guarded = Guarded::new(support);
        let visits = std::thread::scope(|scope| {
            let visit = |_| {
                let visits = || (0..TIMES).filter(|_| guarded.add_if_free()).count() as u64;
                scope.spawn(visits)
            };
            let visitors: Vec<_> = (0..2).map(visit).collect();
            (0..TIMES).for_each(|_| guarded.add());
            visitors.into_iter().map(|visitor| visitor.join().unwrap()).sum::<u64>()
        });
        assert_eq!(guarded.sum(), TIMES + visits, "{support:?}");
    }
}
