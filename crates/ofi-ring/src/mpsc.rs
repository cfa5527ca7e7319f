//! Bounded queue from many threads of a process to one, for events from helper threads to an endpoint.
//!
//! Pushing is lock-free but may contend; it is meant for rare events. Checking for an event is a single load of a line
//! that changes only when there is one.
//!
//! Invariants (wrapping arithmetic; positions are even and count by two, so that the low bit is free):
//! I1. A slot whose `turn` is an even `p` is free for the push at position `p`; at `p + 1` it holds the entry of
//!     position `p`. Positions less than a lap apart have different slots.
//! I2. `tail` is the next position to push at, plus `CLOSED` once the queue is closed; after that it never changes. The
//!     push that moved `tail` on from `p` owns the free slot of `p`; the receiver owns the full slot of its `head`.
//! I3. Only `Receiver` frees slots, in order; only the owner by I2 fills one.
//! Pairs: PUBLISH on `turn`, push (Release) to pop (Acquire): the entry is visible.
//!        RECYCLE on `turn`, pop (Release) to push (Acquire): the slot may be overwritten.
//! `tail` orders nothing but itself.

use core::{fmt, mem::MaybeUninit};

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// A bit in `tail`: pushing is no longer allowed.
const CLOSED: usize = 1;

/// The distance between two positions.
const STEP: usize = 2;

struct Slot<T> {
    turn: AtomicUsize,
    entry: UnsafeCell<MaybeUninit<T>>,
}

struct Queue<T> {
    tail: CachePadded<AtomicUsize>,
    slots: Box<[Slot<T>]>,
}

// SAFETY: I2 gives each slot one owner at a time, and ownership crosses threads only over PUBLISH and RECYCLE. `T:
// Send` lets the entry itself cross.
unsafe impl<T: Send> Sync for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Queue<T> {}

impl<T> Queue<T> {
    #[inline]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[(position / STEP) & (self.slots.len() - 1)]
    }

    /// The value of `turn` after the slot of `position` is freed.
    fn next_turn(&self, position: usize) -> usize {
        position.wrapping_add(self.slots.len() * STEP)
    }
}

/// A queue for `capacity` entries, rounded up to a power of two.
pub fn queue<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let slots = (0..capacity.next_power_of_two())
        .map(|index| Slot {
            turn: AtomicUsize::new(index * STEP),
            entry: UnsafeCell::new(MaybeUninit::uninit()),
        })
        .collect();
    let queue = Arc::new(Queue { tail: CachePadded::new(AtomicUsize::new(0)), slots });
    (Sender { queue: queue.clone() }, Receiver { queue, head: 0 })
}

/// A pushing end; clone it for each thread.
pub struct Sender<T> {
    queue: Arc<Queue<T>>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<T> Sender<T> {
    /// Appends `entry`, or returns it.
    ///
    /// # Errors
    /// [`PushError::Full`] if there is no room now, [`PushError::Closed`] if there never will be.
    pub fn push(&self, entry: T) -> Result<(), PushError<T>> {
        let queue = &*self.queue;
        let mut tail = queue.tail.load(Ordering::Relaxed);
        let slot = loop {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed(entry));
            }
            let slot = queue.slot(tail);
            let turn = slot.turn.load(Ordering::Acquire); // RECYCLE
            if turn != tail {
                let now = queue.tail.load(Ordering::Relaxed);
                if now == tail {
                    return Err(PushError::Full(entry)); // still the entry of a lap ago
                }
                tail = now;
                continue;
            }
            let next = tail.wrapping_add(STEP);
            match queue.tail.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break slot,
                Err(now) => tail = now,
            }
        };
        // SAFETY: by I2 the slot is this push's until it stores `turn`.
        slot.entry.with_mut(|slot| unsafe { slot.write(MaybeUninit::new(entry)) });
        slot.turn.store(tail.wrapping_add(1), Ordering::Release); // PUBLISH
        Ok(())
    }
}

/// The popping end. Dropping it closes the queue.
pub struct Receiver<T> {
    queue: Arc<Queue<T>>,
    head: usize,
}

impl<T> Receiver<T> {
    /// Whether [`pop`](Self::pop) would find nothing: one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let turn = self.queue.slot(self.head).turn.load(Ordering::Relaxed);
        turn != self.head.wrapping_add(1)
    }

    /// Removes the oldest entry. An entry whose push is still in progress is not visible yet, and hides later entries.
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.queue.slot(self.head);
        if slot.turn.load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None; // PUBLISH has not happened
        }
        // SAFETY: by I1 the slot holds an entry, and by I2 the receiver owns it until it stores `turn`.
        let entry = slot.entry.with_mut(|slot| unsafe { slot.read() });
        slot.turn.store(self.queue.next_turn(self.head), Ordering::Release); // RECYCLE
        self.head = self.head.wrapping_add(STEP);
        // SAFETY: it was initialised, and it leaves the queue only here.
        Some(unsafe { entry.assume_init() })
    }

    /// Makes every later push fail with its entry. Entries pushed before can still be popped. An entry whose push is in
    /// progress becomes visible when that push returns, or is dropped with the queue.
    pub fn close(&self) {
        self.queue.tail.fetch_or(CLOSED, Ordering::Relaxed);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            // No other user is left, and `Arc` has ordered their accesses before this.
            if slot.turn.load(Ordering::Relaxed) % STEP == 1 {
                // SAFETY: by I1 the slot holds an entry, and `self` is the only owner.
                slot.entry.with_mut(|slot| unsafe { slot.cast::<T>().drop_in_place() });
            }
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// Why an entry was not accepted; the entry is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// There is no room now.
    #[error("the queue is full")]
    Full(T),
    /// The receiver has closed the queue.
    #[error("the queue is closed")]
    Closed(T),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_and_a_closed_one_hand_entries_back() {
        let (tx, mut rx) = queue(2);
        assert!(rx.is_empty());
        assert_eq!([1, 2, 3].map(|n| tx.push(n)), [Ok(()), Ok(()), Err(PushError::Full(3))]);
        assert!(!rx.is_empty());
        assert_eq!((rx.pop(), tx.push(4)), (Some(1), Ok(())));
        rx.close();
        assert_eq!(tx.push(5), Err(PushError::Closed(5)));
        assert_eq!([rx.pop(), rx.pop(), rx.pop()], [Some(2), Some(4), None]);
        assert!(rx.is_empty());
    }

    #[test]
    fn one_slot_is_enough_and_positions_wrap() {
        let (tx, mut rx) = queue(1);
        for lap in 0..5 {
            assert_eq!((tx.push(lap), tx.push(9)), (Ok(()), Err(PushError::Full(9))));
            assert_eq!((rx.pop(), rx.pop()), (Some(lap), None));
        }
    }

    #[test]
    fn entries_that_nobody_popped_are_dropped_once() {
        let entry = Arc::new(());
        let (tx, mut rx) = queue(4);
        for _ in 0..3 {
            tx.push(entry.clone()).unwrap();
        }
        drop(rx.pop());
        drop(rx);
        assert!(matches!(tx.push(entry.clone()), Err(PushError::Closed(_))));
        assert_eq!(Arc::strong_count(&entry), 3);
        drop(tx);
        assert_eq!(Arc::strong_count(&entry), 1);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::thread;

    use super::*;

    /// In every interleaving, accepted entries arrive once, and each sender's in order. Two slots and three pushes make
    /// positions wrap and the queue full.
    #[test]
    fn entries_arrive_once_and_in_order() {
        loom::model(|| {
            let (tx, mut rx) = queue(2);
            let other = tx.clone();
            let one = thread::spawn(move || [10, 11].map(|id| tx.push(id).is_ok()));
            let two = thread::spawn(move || other.push(20).is_ok());
            let mut seen = Vec::new();
            seen.extend(rx.pop()); // races with the pushes
            let accepted = one.join().unwrap();
            let also = two.join().unwrap();
            seen.extend(core::iter::from_fn(|| rx.pop()));
            let (twenties, tens): (Vec<i32>, Vec<i32>) = seen.into_iter().partition(|&id| id == 20);
            let wanted = [10, 11].into_iter().zip(accepted).filter_map(|(id, ok)| ok.then_some(id));
            assert_eq!(tens, wanted.collect::<Vec<_>>());
            assert_eq!(twenties.len(), usize::from(also));
        });
    }

    /// A push beside a close is either popped or returned, never both and never neither.
    #[test]
    fn a_push_beside_a_close_is_popped_or_handed_back() {
        loom::model(|| {
            let (tx, mut rx) = queue(2);
            let other = tx.clone();
            let one = thread::spawn(move || tx.push(1));
            let two = thread::spawn(move || other.push(2));
            rx.close();
            let mut popped: Vec<_> = rx.pop().into_iter().collect();
            let results = [(1, one.join().unwrap()), (2, two.join().unwrap())];
            popped.extend(core::iter::from_fn(|| rx.pop()));
            for (id, result) in results {
                match result {
                    Ok(()) => assert_eq!(popped.iter().filter(|&&popped| popped == id).count(), 1),
                    Err(error) => {
                        assert_eq!(error, PushError::Closed(id));
                        assert!(!popped.contains(&id));
                    }
                }
            }
        });
    }

    /// An entry that was accepted and never popped is dropped once (loom reports a leak of its `Arc`).
    #[test]
    fn entries_left_behind_are_dropped() {
        loom::model(|| {
            let (tx, rx) = queue(1);
            let entry = Arc::new(());
            let pusher = thread::spawn(move || drop(tx.push(entry)));
            drop(rx);
            pusher.join().unwrap();
        });
    }
}
