//! The lock of endpoints, queues, contexts and works. It is used at every threading level, so an application that
//! breaks its promise about threads only loses time.
//!
//! It is biased ([`ofi_ring::biased`]): if only one thread uses it, entering and leaving take about ten instructions,
//! none of them locked. Critical sections are short (one call of the data path), so contending threads spin, then
//! yield, then sleep for 50 µs at a time.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use ofi_ring::biased::{Entered, RawLock};

/// Guards a `T`.
#[derive(Default)]
pub struct Lock<T> {
    raw: RawLock,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Guards `value`.
    pub fn new(value: T) -> Self {
        Self { raw: RawLock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// If the calling thread holds it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        Guard { _entered: self.raw.enter(), value: &self.value }
    }
}

impl<T> Lock<T> {
    /// The lock, if no thread holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        Some(Guard { _entered: self.raw.try_enter()?, value: &self.value })
    }
}

/// Access to the value that a [`Lock`] guards.
pub struct Guard<'a, T> {
    value: &'a UnsafeCell<T>,
    _entered: Entered<'a>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is the only one (see `Sync` above).
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is the only one (see `Sync` above).
        unsafe { &mut *self.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_threads_count_without_loss() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for() {
        let lock = Lock::new(7);
        let elsewhere =
            || std::thread::scope(|scope| scope.spawn(|| lock.try_lock().map(|guard| *guard)).join());
        let guard = lock.lock();
        assert_eq!(elsewhere().unwrap(), None);
        drop(guard);
        assert_eq!(elsewhere().unwrap(), Some(7));
    }
}
