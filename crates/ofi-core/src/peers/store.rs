//! Slots for addresses: 44 bytes each, in chunks that never move.
//!
//! Invariants:
//! I1. A slot is live while `references > 0`; `live` counts those.
//! I2. Slots below `used` that are not live are in `vacant`, each once; slots from `used` on were never live.
//! I3. An address of up to [`INLINE`] bytes lies in its slot, a longer one in `long` under its index.
//! I4. A slot's generation changes exactly when its address goes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ofi_api::{Errno, Error, Result};
use rustc_hash::FxHashMap;

/// Room for `sockaddr_in6` (28 bytes) and for an EFA address (32).
const INLINE: usize = 32;

/// Slots in a chunk: 5.6 KB, so that a small address vector is small.
const CHUNK: usize = 128;

#[derive(Clone, Copy)]
struct Slot {
    bytes: [u8; INLINE],
    references: u32,
    generation: u32,
    len: u16,
}

const VACANT: Slot = Slot { bytes: [0; INLINE], references: 0, generation: 0, len: 0 };

// Together with at most 11.4 bytes in the reverse index, a peer stays below 64 bytes.
const _: () = assert!(size_of::<Slot>() == 44);

/// The slots of one table.
#[derive(Default)]
pub(super) struct Store {
    chunks: Vec<Box<[Slot]>>,
    used: u32,
    live: u32,
    vacant: BinaryHeap<Reverse<u32>>,
    /// Keyed by our own indices, so that nobody outside can make it slow.
    long: FxHashMap<u32, Box<[u8]>>,
}

impl Store {
    /// Number of live slots.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Every live index lies below this.
    pub fn end(&self) -> u32 {
        self.used
    }

    /// Whether there is an address under this index.
    #[inline]
    pub fn is_live(&self, index: u32) -> bool {
        self.slot(index).is_some_and(|slot| slot.references > 0)
    }

    /// The address of a live slot.
    #[inline]
    pub fn address(&self, index: u32) -> Option<&[u8]> {
        let slot = self.slot(index).filter(|slot| slot.references > 0)?;
        match slot.bytes.get(..usize::from(slot.len)) {
            Some(bytes) => Some(bytes),
            None => self.long.get(&index).map(|bytes| &**bytes),
        }
    }

    /// The generation of a live slot.
    #[inline]
    pub fn generation(&self, index: u32) -> Option<u32> {
        self.slot(index).filter(|slot| slot.references > 0).map(|slot| slot.generation)
    }

    /// Puts an address of at most 65,535 bytes into the lowest vacant slot, with one reference.
    pub fn occupy(&mut self, address: &[u8]) -> Result<u32> {
        let index = self.vacant.peek().map_or(self.used, |&Reverse(index)| index);
        if index == u32::MAX {
            return Err(Error::with(Errno::ENOMEM, "the address vector is full: it holds 2^32 - 1 peers"));
        }
        if index == self.used {
            if index as usize == self.chunks.len() * CHUNK {
                self.chunks.push(vec![VACANT; CHUNK].into_boxed_slice());
            }
            self.used += 1;
        } else {
            self.vacant.pop();
        }
        let slot = self.slot_mut(index);
        slot.len = address.len() as u16;
        slot.references = 1;
        match slot.bytes.get_mut(..address.len()) {
            Some(inline) => inline.copy_from_slice(address),
            None => drop(self.long.insert(index, address.into())),
        }
        self.live += 1;
        Ok(index)
    }

    /// Counts one more insertion of a live slot's address.
    pub fn retain(&mut self, index: u32) -> Result<()> {
        let slot = self.slot_mut(index);
        slot.references = slot.references.checked_add(1).ok_or_else(|| {
            Error::with(
                Errno::EOVERFLOW,
                "an address can be inserted at most 2^32 - 1 times without a removal",
            )
        })?;
        Ok(())
    }

    /// Reverts one insertion of a live slot's address. Returns how many are left; with none, the slot is vacant.
    pub fn release(&mut self, index: u32) -> u32 {
        let slot = self.slot_mut(index);
        slot.references -= 1;
        if slot.references > 0 {
            return slot.references;
        }
        slot.generation = slot.generation.wrapping_add(1);
        if usize::from(slot.len) > INLINE {
            self.long.remove(&index);
        }
        self.vacant.push(Reverse(index));
        self.live -= 1;
        0
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}
