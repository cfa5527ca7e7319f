//! Operation slots: small numbers with a generation, that may be sent to a peer and checked when they come back.

/// Names a slot: index in the low 32 bits, generation in the high ones. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct SlotId(u64);

impl SlotId {
    /// The id as it is sent over the wire.
    pub const fn to_wire(self) -> u64 {
        self.0
    }
    /// An id as it was received over the wire: any bits, which [`Slots`] checks when it is used.
    pub const fn from_wire(bits: u64) -> Self {
        Self(bits)
    }
    const fn index(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }
}

struct Slot<V> {
    /// Odd while occupied, so that an id of a free slot never matches.
    generation: u32,
    value: Option<V>,
}

/// A table of values under [`SlotId`]s.
pub struct Slots<V> {
    slots: Vec<Slot<V>>,
    free: Vec<u32>,
}

impl<V> Default for Slots<V> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<V> Slots<V> {
    /// Stores `value`.
    #[inline]
    pub fn insert(&mut self, value: V) -> SlotId {
        self.insert_with(|| value)
    }

    /// Stores the result of `make` in place: a large value is not moved there.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> V) -> SlotId {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        // A free slot has no value, so that there is none to drop.
        std::mem::forget(slot.value.replace(make()));
        SlotId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Slot { generation: 0, value: None });
        (self.slots.len() - 1) as u32
    }

    fn slot(&mut self, id: SlotId) -> Option<&mut Slot<V>> {
        self.slots.get_mut(id.index()).filter(|slot| slot.generation == (id.0 >> 32) as u32)
    }

    /// The value under `id`, if it is still there.
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut V> {
        self.slot(id)?.value.as_mut()
    }

    /// The value under `id`, if it is still there.
    pub fn get(&self, id: SlotId) -> Option<&V> {
        let slot = self.slots.get(id.index())?;
        (slot.generation == (id.0 >> 32) as u32).then_some(slot.value.as_ref()).flatten()
    }

    /// Takes the value out, if it is still there.
    pub fn remove(&mut self, id: SlotId) -> Option<V> {
        let slot = self.slot(id)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index() as u32);
        Some(value)
    }

    /// The ids whose values satisfy `wanted`.
    pub fn ids(&self, mut wanted: impl FnMut(&V) -> bool) -> Vec<SlotId> {
        let occupied = self.slots.iter().enumerate();
        occupied
            .filter(|(_, slot)| slot.value.as_ref().is_some_and(&mut wanted))
            .map(|(index, slot)| SlotId(u64::from(slot.generation) << 32 | index as u64))
            .collect()
    }

    /// The values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_or_forged_id_finds_nothing() {
        let mut slots = Slots::default();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
        for forged in [0, u64::MAX, 1 << 32 | 77, 2 << 32] {
            assert_eq!(slots.get(SlotId::from_wire(forged)), None);
        }
        assert_eq!((slots.len(), slots.ids(|_| true)), (1, vec![second]));
    }
}
