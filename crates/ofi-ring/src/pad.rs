//! Keeps a value away from its neighbours in memory.

use core::ops::{Deref, DerefMut};

/// A value with cache lines of its own, so that writes to it do not slow down accesses to its
/// neighbours. 128 bytes on x86-64, whose adjacent-line prefetcher fetches lines in pairs, and on
/// aarch64, which has cores with lines of 128 bytes; 64 elsewhere.
#[derive(Debug, Default)]
#[cfg_attr(any(target_arch = "x86_64", target_arch = "aarch64"), repr(align(128)))]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), repr(align(64)))]
pub struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    /// Pads `value`.
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for CachePadded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::CachePadded;

    #[test]
    fn neighbours_lie_at_least_a_line_apart() {
        let mut pair = [CachePadded::new(1_u8), CachePadded::new(2)];
        *pair[1] += 1;
        let distance = (&raw const pair[1]).addr() - (&raw const pair[0]).addr();
        assert!(distance >= 64 && distance == align_of::<CachePadded<u8>>());
        assert_eq!((*pair[0], *pair[1]), (1, 3));
    }
}
