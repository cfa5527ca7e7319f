//! The protocol's 32-bit numbers of operations and transfers in flight: 20 bits of index, 12 of generation.

/// A table of values by such numbers. The number 0 is never used.
pub struct Ids<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

const INDEX: u32 = 20;
const MASK: u32 = (1 << INDEX) - 1;

impl<T> Default for Ids<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Ids<T> {
    /// Stores a value. `None` if the table has a million values already.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() <= MASK as usize => {
                self.slots.push((0, None));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (generation, slot) = &mut self.slots[index as usize];
        *generation = ((*generation + 1) & (u32::MAX >> INDEX)).max(1);
        *slot = Some(value);
        Some(*generation << INDEX | index)
    }

    /// Number of stored values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, value)| value.as_ref())
    }

    fn slot(&mut self, id: u32) -> Option<&mut Option<T>> {
        let (generation, slot) = self.slots.get_mut((id & MASK) as usize)?;
        (*generation == id >> INDEX).then_some(slot)
    }

    /// The value under a number, if it is still stored.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slot(id)?.as_mut()
    }

    /// Takes a value out.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.slot(id)?.take()?;
        self.free.push(id & MASK);
        Some(value)
    }

    /// Puts back what [`Ids::remove`] took out, before anything else is stored.
    pub fn put_back(&mut self, id: u32, value: T) {
        debug_assert_eq!(self.free.last(), Some(&(id & MASK)));
        self.free.pop();
        self.slots[(id & MASK) as usize].1 = Some(value);
    }

    /// Takes out the values that satisfy `which`.
    pub fn take(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for (index, (_, slot)) in self.slots.iter_mut().enumerate() {
            if let Some(value) = slot.take_if(|value| which(value)) {
                taken.push(value);
                self.free.push(index as u32);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_forged_numbers_find_nothing() {
        let mut ids = Ids::default();
        let first = ids.insert('a').unwrap();
        assert_eq!(ids.remove(first), Some('a'));
        let second = ids.insert('b').unwrap();
        assert_eq!((ids.get_mut(first).copied(), ids.get_mut(second).copied()), (None, Some('b')));
        for forged in [0, 1, u32::MAX, second + 1] {
            assert_eq!(ids.remove(forged), None);
        }
        assert_eq!(ids.take(|_| true), ['b']);
        for _ in 0..10_000 {
            let id = ids.insert('c').unwrap();
            assert!(id != 0 && ids.remove(id).is_some());
        }
    }
}
