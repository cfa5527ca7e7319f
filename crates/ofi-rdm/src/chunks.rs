//! A growable array whose elements never move: a vector of vectors of fixed length. Growing copies nothing, never
//! leaves half of an allocation unused, and never needs the old allocation beside the new one.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Elements in one allocation.
const LENGTH: usize = 32;

/// A growable array whose elements never move.
#[derive(Debug)]
pub struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Chunks<T> {
    /// Creates an empty array.
    pub const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the array is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an element. Its index is the previous [`Chunks::len`].
    pub fn push(&mut self, thing: T) {
        if self.len == self.chunks.len() * LENGTH {
            self.chunks.push(Vec::with_capacity(LENGTH));
        }
        self.chunks[self.len / LENGTH].push(thing);
        self.len += 1;
    }

    /// The element at this index, if there is one.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&T> {
        self.chunks.get(number / LENGTH)?.get(number % LENGTH)
    }

    /// The element at this index, mutably.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.chunks.get_mut(number / LENGTH)?.get_mut(number % LENGTH)
    }

    /// All elements, in order of index.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }

    /// Swaps two elements.
    ///
    /// # Panics
    /// If an index is out of range, like a slice.
    pub fn swap(&mut self, one: usize, other: usize) {
        let (first, last) = (one.min(other), one.max(other));
        let (front, back) = self.chunks.split_at_mut(last / LENGTH);
        match front.get_mut(first / LENGTH) {
            Some(chunk) => core::mem::swap(&mut chunk[first % LENGTH], &mut back[0][last % LENGTH]),
            None => back[0].swap(first % LENGTH, last % LENGTH),
        }
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: usize) -> &T {
        &self.chunks[number / LENGTH][number % LENGTH]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut T {
        &mut self.chunks[number / LENGTH][number % LENGTH]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_keep_their_numbers_and_places() {
        let mut chunks = Chunks::new();
        assert!(chunks.is_empty() && chunks.get(0).is_none());
        chunks.push(0);
        let place = core::ptr::from_ref(&chunks[0]);
        (1..1_000).for_each(|number| chunks.push(number));
        assert!((0..1_000).all(|number| chunks.get(number) == Some(&number)));
        assert_eq!((chunks.len(), chunks.get(1_000), chunks.get(usize::MAX)), (1_000, None, None));
        assert!(core::ptr::eq(place, &chunks[0]), "nothing was moved");
        for (one, other) in [(3, 3), (1, 2), (31, 32), (999, 0)] {
            chunks.swap(one, other);
            assert_eq!((chunks[one], chunks[other]), (other, one));
            chunks.swap(other, one);
            assert_eq!((chunks[one], chunks[other]), (one, other));
        }
        chunks.iter_mut().for_each(|thing| *thing += 1);
        assert_eq!(chunks[999], 1_000);
    }
}
