//! Hash table from a key to the head of a list of slots, and the hash that places keys.
//!
//! The table stores no keys. An entry is 32 bits of the key's hash, the slot at the head of the key's list, and
//! a hint about its value; the key itself is read from that slot, which a match must read anyway. Four to eight
//! entries share a cache line, so a lookup costs one line here and one in the slab, however many keys there are.
//!
//! Invariants (linear probing; `entries.len()` is a power of two):
//! T1. At least a quarter of the entries is empty (`head == NIL`), so that every probe ends.
//! T2. Between an entry's home (`hash & mask`) and its place there is no empty entry. Removal shifts later
//!     entries back to keep it so: there are no tombstones, and a table in long use is as fast as a new one.
//! T3. An entry's list is not empty, and no two entries have the same key.

use super::slab::{NIL, Slab};
use std::hash::{BuildHasher, RandomState};

#[derive(Clone, Copy)]
struct Entry<H> {
    hash: u32,
    head: u32,
    hint: H,
}

/// What an entry remembers of the value at the head of its list, to be used before that slot has come from memory.
pub(super) trait Hint<V>: Copy + Default {
    /// That of a value.
    fn of(value: &V) -> Self;
    /// The entry is probably the one that is wanted.
    fn found(self);
}

impl<V> Hint<V> for () {
    #[inline(always)]
    fn of(_: &V) -> Self {}

    #[inline(always)]
    fn found(self) {}
}

/// Where a key is, or where it would go.
enum Probe {
    Found(usize),
    Vacant(usize),
}

/// Lists of slots by key. The slots are linked through their pair of links number `LIST`.
pub(super) struct Table<const LIST: usize, H = ()> {
    entries: Box<[Entry<H>]>,
    len: usize,
}

impl<const LIST: usize, H: Copy + Default> Table<LIST, H> {
    pub(super) fn new() -> Self {
        Self { entries: empty(MIN_ENTRIES), len: 0 }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first slot of a key's list, and the place of the list for `unlink`. `is_key` compares the key with
    /// that of a slot.
    #[inline]
    pub(super) fn first<K: Copy + Default, V, const LISTS: usize>(
        &self,
        slab: &Slab<K, V, LISTS>,
        hash: u32,
        is_key: impl Fn(&Slab<K, V, LISTS>, u32) -> bool,
    ) -> Option<(usize, u32)>
    where
        H: Hint<V>,
    {
        let is_wanted = |entry: &Entry<H>| {
            entry.hint.found();
            is_key(slab, entry.head)
        };
        match self.probe(hash, is_wanted) {
            Probe::Found(at) => Some((at, self.entries[at].head)),
            Probe::Vacant(_) => None,
        }
    }

    /// Appends slot `index` to its key's list, which may be new.
    #[inline]
    pub(super) fn append<K: Copy + Default, V, const LISTS: usize>(
        &mut self,
        slab: &mut Slab<K, V, LISTS>,
        hash: u32,
        is_key: impl Fn(&Slab<K, V, LISTS>, u32) -> bool,
        index: u32,
    ) where
        H: Hint<V>,
    {
        if self.len >= self.entries.len() / 4 * 3 {
            self.grow();
        }
        match self.probe(hash, |entry| is_key(slab, entry.head)) {
            Probe::Found(at) => {
                slab.push::<LIST>(self.entries[at].head, index);
            }
            Probe::Vacant(at) => {
                let hint = H::of(slab.at(index));
                self.entries[at] = Entry { hash, head: slab.push::<LIST>(NIL, index), hint };
                self.len += 1;
            }
        }
    }

    /// Takes the first slot out of the list at `place`, and with its last slot the list out of the table.
    #[inline]
    pub(super) fn pop<K: Copy + Default, V, const LISTS: usize>(
        &mut self,
        slab: &mut Slab<K, V, LISTS>,
        place: usize,
    ) where
        H: Hint<V>,
    {
        match slab.pop::<LIST>(self.entries[place].head) {
            NIL => self.remove(place),
            head => self.set_head(slab, place, head),
        }
    }

    /// As `pop`, and empties the slot.
    #[inline]
    pub(super) fn discard_first<K: Copy + Default, V, const LISTS: usize>(
        &mut self,
        slab: &mut Slab<K, V, LISTS>,
        place: usize,
    ) where
        H: Hint<V>,
    {
        match slab.discard_first::<LIST>(self.entries[place].head) {
            NIL => self.remove(place),
            head => self.set_head(slab, place, head),
        }
    }

    /// Takes slot `index` out of the list at `place`, and with its last slot the list out of the table.
    #[inline]
    pub(super) fn unlink<K: Copy + Default, V, const LISTS: usize>(
        &mut self,
        slab: &mut Slab<K, V, LISTS>,
        place: usize,
        index: u32,
    ) where
        H: Hint<V>,
    {
        match slab.unlink::<LIST>(self.entries[place].head, index) {
            NIL => self.remove(place),
            head => self.set_head(slab, place, head),
        }
    }

    #[inline]
    fn set_head<K: Copy + Default, V, const LISTS: usize>(
        &mut self,
        slab: &Slab<K, V, LISTS>,
        place: usize,
        head: u32,
    ) where
        H: Hint<V>,
    {
        let entry = &mut self.entries[place];
        entry.head = head;
        entry.hint = H::of(slab.at(head));
    }

    #[inline]
    fn probe(&self, hash: u32, mut is_key: impl FnMut(&Entry<H>) -> bool) -> Probe {
        let mask = self.entries.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let entry = &self.entries[at];
            if entry.head == NIL {
                return Probe::Vacant(at);
            }
            if entry.hash == hash && is_key(entry) {
                return Probe::Found(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes the entry at `at` and moves later ones back over the hole (T2).
    #[inline]
    fn remove(&mut self, at: usize) {
        let mask = self.entries.len() - 1;
        let mut hole = at;
        let mut next = (at + 1) & mask;
        loop {
            let entry = self.entries[next];
            if entry.head == NIL {
                break;
            }
            let from_home = next.wrapping_sub(entry.hash as usize) & mask;
            let from_hole = next.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.entries[hole] = entry;
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[hole].head = NIL;
        self.len -= 1;
    }

    /// Doubles the table. The stored hashes suffice: no slot is read.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let larger = empty(self.entries.len() * 2);
        let old = std::mem::replace(&mut self.entries, larger);
        let mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|entry| entry.head != NIL) {
            let mut at = entry.hash as usize & mask;
            while self.entries[at].head != NIL {
                at = (at + 1) & mask;
            }
            self.entries[at] = entry;
        }
    }
}

/// Hash of tags and sources under a random secret.
///
/// Peers choose the tags, so with a fixed hash a peer could make every lookup a scan. Without knowing the secret, it
/// cannot choose tags that collide. Multiplying to 128 bits and folding once is not enough: regular patterns of tags
/// stay regular, and for one secret in twenty, linear probing then takes ten to five hundred steps. Doing so twice
/// removes the pattern (measured: 2.5 steps in a table three quarters full, as for a random function, for each of 400
/// secrets and nine patterns).
#[derive(Clone, Copy)]
pub(super) struct KeyHash {
    mask: u64,
    factors: [u64; 2],
    source_factor: u64,
}

impl KeyHash {
    /// With a secret of its own, or with one made from `seed` for runs that must repeat to the instruction.
    pub(super) fn new(seed: Option<u64>) -> Self {
        let secret = RandomState::new();
        let word = |n: u64| match seed {
            // The finalizer of SplitMix64 (Steele, Lea, Flood 2014) makes any seed into random-looking words.
            Some(seed) => {
                let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            None => secret.hash_one(n),
        };
        Self { mask: word(1), factors: [word(2) | 1, word(3) | 1], source_factor: word(4) | 1 }
    }

    #[inline]
    pub(super) fn tag(&self, tag: u64) -> u32 {
        fold(fold(tag ^ self.mask, self.factors[0]), self.factors[1]) as u32
    }

    #[inline]
    pub(super) fn source_tag(&self, peer: u32, tag: u64) -> u32 {
        self.tag(tag ^ u64::from(peer).wrapping_mul(self.source_factor))
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// So many empty entries.
fn empty<H: Copy + Default>(count: usize) -> Box<[Entry<H>]> {
    vec![Entry { hash: 0, head: NIL, hint: H::default() }; count].into()
}

/// Two cache lines, or four; a table that is never used costs no more.
const MIN_ENTRIES: usize = 16;

#[cfg(test)]
impl<const LIST: usize, H> Table<LIST, H> {
    /// Checks T1 and T2 and yields the hash and head of every list.
    pub(super) fn check(&self) -> Vec<(u32, u32)> {
        let mask = self.entries.len() - 1;
        let full: Vec<usize> = (0..=mask).filter(|&at| self.entries[at].head != NIL).collect();
        assert_eq!(full.len(), self.len);
        assert!(self.len <= self.entries.len() / 4 * 3);
        for &at in &full {
            let mut step = self.entries[at].hash as usize & mask;
            while step != at {
                assert_ne!(self.entries[step].head, NIL, "a hole before an entry");
                step = (step + 1) & mask;
            }
        }
        full.into_iter().map(|at| (self.entries[at].hash, self.entries[at].head)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn removal_leaves_no_tombstones_and_loses_no_key() {
        let mut slab: Slab<u32, (), 1> = Slab::new();
        let mut table: Table<0> = Table::new();
        let mut model = BTreeMap::new(); // key -> (hash, slot); few distinct homes make long runs that wrap
        for round in 0u32..20_000 {
            let key = round.wrapping_mul(2_654_435_761) % 97;
            let hash = [0, 1, 13, 14, 15, 16, u32::MAX][key as usize % 7].wrapping_add(key / 7 * 1024);
            let first = table.first(&slab, hash, |slab, head| *slab.key(head) == key);
            match model.remove(&key) {
                Some((_, index)) => {
                    let (place, head) = first.expect("the key is there");
                    assert_eq!(head, index);
                    table.unlink(&mut slab, place, index);
                    slab.remove(index);
                }
                None => {
                    assert!(first.is_none());
                    let index = slab.insert(key, ());
                    table.append(&mut slab, hash, |slab, head| *slab.key(head) == key, index);
                    model.insert(key, (hash, index));
                }
            }
            let mut lists = table.check();
            lists.sort_unstable_by_key(|&(_, head)| *slab.key(head));
            assert_eq!(lists, model.values().copied().collect::<Vec<_>>());
        }
        assert!(table.entries.len() <= 256);
    }

    #[test]
    fn tags_in_a_regular_pattern_spread_under_any_secret() {
        for shift in [0, 8, 16, 24, 32, 40, 47].repeat(10) {
            let hash = KeyHash::new(None);
            let mut used = vec![0u32; 1 << 16];
            for tag in 0u64..1 << 16 {
                used[hash.tag(tag << shift) as usize & 0xffff] += 1;
            }
            // A random function leaves 1/e of the places empty (24,109, deviation 79) and puts nine into one.
            let empty = used.iter().filter(|&&n| n == 0).count();
            assert!(empty.abs_diff(24_109) < 1_000, "shift {shift}: {empty} of 65536 places are empty");
            assert!(*used.iter().max().unwrap() < 32, "shift {shift}");
        }
    }

    #[test]
    fn two_matchers_have_different_secrets() {
        let (a, b) = (KeyHash::new(None), KeyHash::new(None));
        assert!((0..64).any(|tag| a.tag(tag) != b.tag(tag)));
    }
}
