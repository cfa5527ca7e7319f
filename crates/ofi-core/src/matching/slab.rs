//! Slots with generations, and the lists that run through them.
//!
//! A slot keeps links, key and value together and starts on a cache line, so that a match touches as few lines as
//! possible. A slot can be in `LISTS` lists at once, one for each pair of links.
//!
//! Invariants of a list, which is named by the index of its first slot (`NIL` if it is empty):
//! L1. `next` leads from the first slot to the last; the last slot's `next` is `NIL`.
//! L2. `prev` leads back; the first slot's `prev` is the last slot. So a list of one costs no line but its
//!     own, and a table of lists keeps one index for each.
//! Invariants of the slab:
//! S1. A slot is empty and in the free list, or full and not. Free slots are linked through `links[0].next`.
//! S2. `generation` grows by one when the slot is filled and when it is emptied, so an id that outlives its value never
//!     names another one. It is odd while the slot is full, and `value` is initialised exactly then.

use std::mem::MaybeUninit;

pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    next: u32,
    prev: u32,
}

#[repr(align(64))]
struct Slot<K, V, const LISTS: usize> {
    links: [Links; LISTS],
    generation: u32,
    key: K, // of no meaning in an empty slot; apart from the value so that comparing keys need not ask
    value: MaybeUninit<V>,
}

impl<K, V, const LISTS: usize> Slot<K, V, LISTS> {
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.generation & 1 == 1
    }

    #[inline(always)]
    fn value(&self) -> &V {
        assert!(self.is_full(), "{FULL}");
        // SAFETY: the slot is full, so by S2 the value is initialised.
        unsafe { self.value.assume_init_ref() }
    }
}

pub(super) struct Slab<K, V, const LISTS: usize> {
    slots: Vec<Slot<K, V, LISTS>>,
    free: u32,
    len: usize,
}

impl<K: Copy + Default, V, const LISTS: usize> Slab<K, V, LISTS> {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: NIL, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Fills a slot, by choice the one emptied last, whose lines are still in the cache.
    #[inline]
    pub(super) fn insert(&mut self, key: K, value: V) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        self.len += 1;
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        debug_assert!(!slot.is_full(), "S1");
        self.free = slot.links[0].next;
        slot.generation = slot.generation.wrapping_add(1);
        slot.key = key;
        slot.value.write(value);
        index
    }

    /// Adds an empty slot. Takes no value, so that `insert` can write one in place without a copy in memory.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let index = self.slots.len();
        assert!(index < NIL as usize, "more than 2^32 slots");
        if index == self.slots.capacity() {
            // Into memory that was never touched, so that it can come in huge pages: with a hundred thousand
            // receives, half of a random match's misses are those of address translation.
            let mut larger = Vec::with_capacity((index * 2).max(16));
            crate::sys::advise_huge(larger.spare_capacity_mut());
            larger.append(&mut self.slots);
            self.slots = larger;
        }
        let links = [Links { next: NIL, prev: NIL }; LISTS];
        self.slots.push(Slot { links, generation: 0, key: K::default(), value: MaybeUninit::uninit() });
        self.free = index as u32;
    }

    /// Empties a slot that is in no list.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) -> V {
        let slot = &mut self.slots[index as usize];
        assert!(slot.is_full(), "{FULL}");
        // SAFETY: the slot is full, so by S2 the value is initialised, and it counts as moved out from here on.
        let value = unsafe { slot.value.assume_init_read() };
        slot.generation = slot.generation.wrapping_add(1);
        slot.links[0].next = self.free;
        self.free = index;
        self.len -= 1;
        value
    }

    /// Takes the first slot, `head`, out of its only list, and empties it; returns the list's new head.
    #[inline(always)]
    pub(super) fn discard_first<const LIST: usize>(&mut self, head: u32) -> u32 {
        let slot = &mut self.slots[head as usize];
        assert!(slot.is_full(), "{FULL}");
        // SAFETY: the slot is full, so by S2 the value is initialised, and it counts as dropped from here on.
        unsafe { slot.value.assume_init_drop() };
        slot.generation = slot.generation.wrapping_add(1);
        let Links { next, prev } = slot.links[LIST];
        slot.links[0].next = self.free;
        self.free = head;
        self.len -= 1;
        if next != NIL {
            self.slots[next as usize].links[LIST].prev = prev;
        }
        next
    }

    #[inline]
    pub(super) fn key(&self, index: u32) -> &K {
        &self.slots[index as usize].key
    }

    #[inline]
    pub(super) fn at(&self, index: u32) -> &V {
        self.slots[index as usize].value()
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: u32) -> &mut V {
        let slot = &mut self.slots[index as usize];
        assert!(slot.is_full(), "{FULL}");
        // SAFETY: the slot is full, so by S2 the value is initialised.
        unsafe { slot.value.assume_init_mut() }
    }

    /// Of a slot that is full.
    #[inline]
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.slots[index as usize].generation
    }

    /// Whether the slot still holds the value it held when it had this generation.
    #[inline]
    pub(super) fn holds(&self, index: u32, generation: u32) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| slot.generation == generation && slot.is_full())
    }

    /// All full slots, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &K, &V)> {
        let full = |slot: &&Slot<K, V, LISTS>| slot.is_full();
        let slots = (0..).zip(&self.slots).filter(move |(_, slot)| full(slot));
        slots.map(|(index, slot)| (index, &slot.key, slot.value()))
    }

    /// The slot after `index` in list `LIST`, or `NIL`.
    #[inline]
    pub(super) fn next<const LIST: usize>(&self, index: u32) -> u32 {
        self.slots[index as usize].links[LIST].next
    }

    /// Appends `index` to the list that begins with `head`; returns the list's new head.
    #[inline]
    pub(super) fn push<const LIST: usize>(&mut self, head: u32, index: u32) -> u32 {
        if head == NIL {
            self.slots[index as usize].links[LIST] = Links { next: NIL, prev: index };
            return index;
        }
        let first = &mut self.slots[head as usize].links[LIST];
        let last = std::mem::replace(&mut first.prev, index);
        self.slots[last as usize].links[LIST].next = index;
        self.slots[index as usize].links[LIST] = Links { next: NIL, prev: last };
        head
    }

    /// Takes the first slot, `head`, out of its list; returns the list's new head.
    #[inline]
    pub(super) fn pop<const LIST: usize>(&mut self, head: u32) -> u32 {
        let Links { next, prev } = self.slots[head as usize].links[LIST];
        if next != NIL {
            self.slots[next as usize].links[LIST].prev = prev;
        }
        next
    }

    /// Takes `index` out of the list that begins with `head`; returns the list's new head.
    #[inline]
    pub(super) fn unlink<const LIST: usize>(&mut self, head: u32, index: u32) -> u32 {
        if index == head {
            return self.pop::<LIST>(head);
        }
        let Links { next, prev } = self.slots[index as usize].links[LIST];
        self.slots[prev as usize].links[LIST].next = next;
        let after = if next == NIL { head } else { next };
        self.slots[after as usize].links[LIST].prev = prev;
        head
    }

    /// The slots of a list, first to last.
    pub(super) fn list<const LIST: usize>(&self, head: u32) -> impl Iterator<Item = u32> {
        let some = |index: u32| (index != NIL).then_some(index);
        std::iter::successors(some(head), move |&index| some(self.next::<LIST>(index)))
    }
}

impl<K, V, const LISTS: usize> Drop for Slab<K, V, LISTS> {
    fn drop(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.is_full()) {
            // SAFETY: the slot is full, so by S2 the value is initialised, and nobody looks at it again.
            unsafe { slot.value.assume_init_drop() };
        }
    }
}

const FULL: &str = "a linked slot is full";

#[cfg(test)]
impl<K: Copy + Default, V, const LISTS: usize> Slab<K, V, LISTS> {
    /// Checks L1 and L2 and yields the list.
    pub(super) fn check_list<const LIST: usize>(&self, head: u32) -> Vec<u32> {
        let list: Vec<u32> = self.list::<LIST>(head).collect();
        for (n, &index) in list.iter().enumerate() {
            let prev = list[(n + list.len() - 1) % list.len()];
            assert_eq!(self.slots[index as usize].links[LIST].prev, prev);
            assert!(self.slots[index as usize].is_full());
        }
        list
    }

    pub(super) const SLOT_BYTES: usize = size_of::<Slot<K, V, LISTS>>();

    /// The number of slots, full or not.
    pub(super) fn capacity(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_keeps_order_whichever_slot_leaves() {
        for leaves in 0..4 {
            let mut slab: Slab<(), u32, 1> = Slab::new();
            let mut head = NIL;
            let all: Vec<u32> = (0..4).map(|n| slab.insert((), n)).collect();
            for &index in &all {
                head = slab.push::<0>(head, index);
            }
            head = slab.unlink::<0>(head, all[leaves]);
            slab.remove(all[leaves]);
            let rest: Vec<u32> =
                slab.check_list::<0>(head).into_iter().map(|index| *slab.at(index)).collect();
            assert_eq!(rest, (0..4).filter(|&n| n != leaves as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_old_id_does_not_name_a_new_value() {
        let mut slab: Slab<(), &str, 1> = Slab::new();
        let index = slab.insert((), "old");
        let generation = slab.generation(index);
        assert!(slab.holds(index, generation));
        slab.remove(index);
        assert!(!slab.holds(index, generation));
        assert_eq!(slab.insert((), "new"), index, "the slot is used again");
        assert_eq!(*slab.at(index), "new");
        assert!(!slab.holds(index, generation));
    }
}
