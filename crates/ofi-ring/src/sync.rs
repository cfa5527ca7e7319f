//! The atomics and cells of this crate: the standard library's, or loom's under `cfg(loom)`.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// `core::cell::UnsafeCell` with loom's interface, which names the start and the end of each access.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Passes `access` a pointer to write through. The pointer is valid as long as the cell. The caller has to know
    /// that an access is free of races.
    #[inline]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Waits briefly for another thread, longer with each of `tries`, so that a thread that lost its core can get it back.
#[cold]
pub(crate) fn relax(tries: &mut u32) {
    *tries = tries.saturating_add(1);
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    match *tries {
        0..=200 => core::hint::spin_loop(),
        201..=400 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}
