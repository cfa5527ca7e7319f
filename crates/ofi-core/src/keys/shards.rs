//! A map from numbers, read by many threads and rarely written: sixteen maps, each with its own lock.
//!
//! Readers of different entries mostly take different locks. A reader of one entry writes to the lock's cache line, but
//! it also counts itself in the entry, which is shared in the same way: a map without locks would save only one of the
//! two writes.

use std::collections::hash_map::Entry;
use std::sync::{PoisonError, RwLock};

use rustc_hash::FxHashMap;

const SHARD_BITS: u32 = 4;

/// On a pair of cache lines of its own, as x86 fetches them in pairs.
#[repr(align(128))]
struct Shard<V>(RwLock<FxHashMap<u64, V>>);

/// The map. Its keys are random numbers of the library or choices of the application; keys of peers are only looked up,
/// so an unkeyed hash suffices.
pub(super) struct Shards<V>([Shard<V>; 1 << SHARD_BITS]);

impl<V> Shards<V> {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| Shard(RwLock::new(FxHashMap::default()))))
    }

    /// Calls a function with an entry, under the lock.
    #[inline]
    pub fn read<R>(&self, key: u64, look: impl FnOnce(&V) -> R) -> Option<R> {
        self.shard(key).read().unwrap_or_else(PoisonError::into_inner).get(&key).map(look)
    }

    /// Adds an entry. Returns false, and adds nothing, if the key is taken.
    pub fn insert(&self, key: u64, value: V) -> bool {
        match self.shard(key).write().unwrap_or_else(PoisonError::into_inner).entry(key) {
            Entry::Occupied(_) => false,
            Entry::Vacant(room) => {
                room.insert(value);
                true
            }
        }
    }

    /// Takes an entry out.
    pub fn remove(&self, key: u64) -> Option<V> {
        self.shard(key).write().unwrap_or_else(PoisonError::into_inner).remove(&key)
    }

    /// Number of entries, shard by shard: exact only while there are no writers.
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.0.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    #[inline]
    fn shard(&self, key: u64) -> &RwLock<FxHashMap<u64, V>> {
        // The golden ratio, which spreads consecutive keys and descriptors over the shards.
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(mixed >> (64 - SHARD_BITS)) as usize].0
    }
}
