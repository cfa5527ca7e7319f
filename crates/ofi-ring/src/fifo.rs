//! A plain FIFO queue of small entries, for use under a lock.
//!
//! Nothing here is atomic. Entries are `Copy`, so nothing needs to be moved out or dropped.
//!
//! Invariants (wrapping arithmetic; the number of slots is a power of two, at least one):
//! I1. `tail - head` is the number of entries, at most the number of slots.
//! I2. The slots of `head..tail`, each taken modulo the number of slots, are initialised.

use core::mem::MaybeUninit;

/// A queue of small entries, first in, first out.
#[derive(Debug)]
pub struct Fifo<T> {
    slots: Box<[MaybeUninit<T>]>,
    head: usize,
    tail: usize,
    grows: bool,
}

impl<T: Copy> Fifo<T> {
    /// A queue of fixed size for `capacity` entries, rounded up to a power of two.
    pub fn bounded(capacity: usize) -> Self {
        let slots = Box::new_uninit_slice(capacity.next_power_of_two());
        Self { slots, head: 0, tail: 0, grows: false }
    }

    /// A queue with initial room for `capacity` entries, rounded up to a power of two. It doubles when it is full.
    pub fn growable(capacity: usize) -> Self {
        Self { grows: true, ..Self::bounded(capacity) }
    }

    /// Appends `entry`.
    ///
    /// # Errors
    /// [`Full`] if the queue is bounded and full; never if it is growable.
    #[inline(always)] // so that the entry is built in place
    pub fn push(&mut self, entry: T) -> Result<(), Full> {
        if self.len() == self.slots.len() {
            self.make_room()?;
        }
        let index = self.tail & (self.slots.len() - 1);
        // SAFETY: the mask keeps `index` below the length, which is a power of two.
        unsafe { self.slots.get_unchecked_mut(index) }.write(entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Removes the oldest entry.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let entry = *self.peek()?;
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// The oldest entry, without removing it.
    #[inline]
    pub fn peek(&self) -> Option<&T> {
        if self.head == self.tail {
            return None;
        }
        let index = self.head & (self.slots.len() - 1);
        // SAFETY: as in `push`.
        let slot = unsafe { self.slots.get_unchecked(index) };
        // SAFETY: there is an entry, so by I2 this slot is initialised.
        Some(unsafe { slot.assume_init_ref() })
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Number of entries that fit without growth.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Doubles a full queue, if it may grow.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self) -> Result<(), Full> {
        if !self.grows {
            return Err(Full);
        }
        let oldest = self.head & (self.slots.len() - 1);
        let mut larger = Box::new_uninit_slice(self.slots.len() * 2);
        let (newer, older) = self.slots.split_at(oldest); // full, so every slot has an entry
        larger[..older.len()].copy_from_slice(older);
        larger[older.len()..self.slots.len()].copy_from_slice(newer);
        (self.head, self.tail) = (0, self.slots.len());
        self.slots = larger;
        Ok(())
    }
}

/// The error of a full bounded queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn a_bounded_queue_refuses_what_does_not_fit() {
        let mut fifo = Fifo::bounded(3);
        assert_eq!((fifo.capacity(), fifo.is_empty(), fifo.peek()), (4, true, None));
        assert_eq!([1, 2, 3, 4, 5].map(|n| fifo.push(n).is_ok()), [true, true, true, true, false]);
        assert_eq!(fifo.peek(), Some(&1));
        assert_eq!((fifo.pop(), fifo.len()), (Some(1), 3));
        assert_eq!(fifo.push(6), Ok(()));
        assert_eq!(core::iter::from_fn(|| fifo.pop()).collect::<Vec<_>>(), [2, 3, 4, 6]);
    }

    proptest! {
        /// `Some` pushes, `None` pops.
        #[test]
        fn it_behaves_as_a_deque(steps in vec(any::<Option<u32>>(), 0..200), start in any::<usize>()) {
            let (mut fifo, mut deque) = (Fifo::growable(1), VecDeque::new());
            (fifo.head, fifo.tail) = (start, start); // counters may wrap
            for step in steps {
                match step {
                    Some(entry) => {
                        prop_assert_eq!(fifo.push(entry), Ok(()));
                        deque.push_back(entry);
                    }
                    None => prop_assert_eq!(fifo.pop(), deque.pop_front()),
                }
                prop_assert_eq!((fifo.len(), fifo.peek()), (deque.len(), deque.front()));
            }
        }
    }
}
