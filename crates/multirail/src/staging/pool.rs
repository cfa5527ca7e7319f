//! The pool: pinned host memory for chunks of our own devices' memory.
//!
//! A mute rail may read a place long after its chunk has moved to another rail (`engine/fence.rs`). Such a place is
//! *lent* until the rail reports the end. If all places are lent, the pool is replaced; the old region stays as long as
//! engine transfers use it.

use std::sync::Arc;

use ofi::Errno;

use super::{NO_REGION, PLACE, PLACES, log};
use crate::memory::Device;
use crate::near::Domains;
use crate::region::Inner as Region;

/// The pool of pinned host memory: its region, and its free and lent places.
#[derive(Default)]
pub(super) struct Pool {
    region: Option<Arc<Region>>,
    free: Vec<u64>,
    lent: usize,
}

/// A chunk's place.
#[derive(Clone)]
pub(super) struct Pooled {
    pub(super) region: Arc<Region>,
    offset: u64,
}

impl Pooled {
    /// The address of its first byte.
    pub(super) fn address(&self) -> u64 {
        self.region.address() + self.offset
    }
}

impl Pool {
    /// Creates the pool if there is none.
    ///
    /// # Errors
    /// The device pins no memory.
    pub(super) fn make(&mut self, device: &Arc<dyn Device>, domains: &Arc<Domains>) -> Result<(), Errno> {
        if self.region.is_none() {
            let pinned = device.pinned(PLACES * PLACE as usize).map_err(|error| log(&error))?;
            self.region = Some(Arc::new(Region::pinned(NO_REGION, pinned, domains)));
            self.free = (0..PLACES as u64).map(|nth| nth * PLACE).collect();
        }
        Ok(())
    }

    /// Whether no place is free.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a place, if one is free.
    pub(super) fn take(&mut self) -> Option<Pooled> {
        let region = Arc::clone(self.region.as_ref()?);
        self.free.pop().map(|offset| Pooled { region, offset })
    }

    fn is_its(&self, pooled: &Pooled) -> bool {
        self.region.as_ref().is_some_and(|region| Arc::ptr_eq(region, &pooled.region))
    }

    /// Marks the place of an ended chunk as lent, because a rail still reads it.
    pub(super) fn lend(&mut self, pooled: &Pooled) {
        if self.is_its(pooled) {
            self.lent += 1;
            if self.lent == PLACES {
                *self = Self::default();
            }
        }
    }

    /// Returns a place to the pool, whether it was lent or not.
    pub(super) fn give_back(&mut self, pooled: &Pooled, was_lent: bool) {
        if self.is_its(pooled) {
            self.lent -= usize::from(was_lent);
            self.free.push(pooled.offset);
        }
    }
}
