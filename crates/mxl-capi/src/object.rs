//! What a handle points to.

use std::sync::atomic::{AtomicU64, Ordering};

/// Says what an object is, so that a handle of one kind is not taken for one of another.
pub(crate) trait Kind {
    /// A number that hardly stands in memory by chance.
    const MAGIC: u64;
}

/// Something that C programs have a handle of.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Object<T> {
    magic: AtomicU64,
    value: T,
}

impl<T: Kind> Object<T> {
    pub fn new(value: T) -> Self {
        Self { magic: AtomicU64::new(T::MAGIC), value }
    }

    /// What the handle stands for, or `None` if it is null or of another kind.
    pub fn get<'a>(handle: *const Self) -> Option<&'a T> {
        if handle.is_null() || !handle.is_aligned() {
            return None;
        }
        // SAFETY: the C caller's promise: it is a handle that this library gave and that was not released. All of them begin
        // with this word, whatever their kind.
        let magic = unsafe { &*handle.cast::<AtomicU64>() };
        if magic.load(Ordering::Relaxed) != T::MAGIC {
            return None;
        }
        // SAFETY: as above, and of this kind.
        Some(unsafe { &(*handle).value })
    }
}

impl<T> std::ops::Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        // Who uses the handle all the same is likelier to be told.
        self.magic.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Cat;
    struct Dog;

    impl Kind for Cat {
        const MAGIC: u64 = 0x1234_5678;
    }

    impl Kind for Dog {
        const MAGIC: u64 = 0x8765_4321;
    }

    #[test]
    fn a_handle_of_another_kind_is_refused() {
        let cat = Object::new(Cat);
        assert!(Object::<Cat>::get(&raw const cat).is_some());
        assert!(Object::<Dog>::get((&raw const cat).cast()).is_none());
        assert!(Object::<Cat>::get(std::ptr::null()).is_none());
    }
}
