//! A lock that is only there when the domain's threading level asks for one.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use ofi_api::{Serialization, Threading};

/// Guards `T` by a spinning lock, or by the application's promise to serialise its calls.
///
/// Critical sections are short (one call of the data path), so the lock spins, then yields, then sleeps for 50 us at
/// a time: a holder that lost its core gets it back. Unlocking is a plain store, which makes an uncontended pair one
/// locked instruction.
pub struct PolicyLock<T> {
    held: AtomicBool,
    real: bool,
    value: UnsafeCell<T>,
}

// SAFETY: a real lock gives one thread at a time access. Without it, `Serialization::application` promised the same.
unsafe impl<T: Send> Sync for PolicyLock<T> {}
// SAFETY: the lock owns its value.
unsafe impl<T: Send> Send for PolicyLock<T> {}

impl<T> PolicyLock<T> {
    /// A lock as `serialization` asks for.
    pub fn new(serialization: Serialization, value: T) -> Self {
        let real = !matches!(serialization.threading(), Threading::Domain | Threading::Completion);
        Self { held: AtomicBool::new(false), real, value: UnsafeCell::new(value) }
    }

    /// A lock for what several endpoints share, whose calls only `FI_THREAD_DOMAIN` keeps apart.
    pub fn between(serialization: Serialization, value: T) -> Self {
        let real = serialization.threading() != Threading::Domain;
        Self { held: AtomicBool::new(false), real, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, where there is one.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.real && self.held.swap(true, Ordering::Acquire) {
            self.contended();
        }
        Guard { lock: self }
    }

    #[cold]
    fn contended(&self) {
        let mut tries = 0u32;
        loop {
            while self.held.load(Ordering::Relaxed) {
                tries = tries.saturating_add(1);
                match tries {
                    0..=200 => std::hint::spin_loop(),
                    201..=400 => std::thread::yield_now(),
                    _ => std::thread::sleep(std::time::Duration::from_micros(50)),
                }
            }
            if !self.held.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }
}

/// Access to what a [`PolicyLock`] guards.
pub struct Guard<'a, T> {
    lock: &'a PolicyLock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one (see `Sync` above).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only one (see `Sync` above).
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.real {
            self.lock.held.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_threads_count_without_loss() {
        let lock = PolicyLock::new(Serialization::LIBRARY, 0u64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}
