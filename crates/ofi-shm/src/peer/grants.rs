//! Memory of the peer that is mapped here.

use std::sync::atomic::{AtomicU32, Ordering};

use ofi_api::Errno;

use rustc_hash::FxHashMap;

use super::link::Up;
use crate::control::Terms;
use crate::layout::endpoint;
use crate::sys::Mapping;

/// The number of grants of one peer below which no cleanup runs, and of repeatable answers that are remembered.
pub const FEW: usize = 64;
pub const MANY: usize = 4096;

/// This end's state of a peer's key.
pub enum KeyState {
    /// The peer was asked, and has not answered.
    Asked,
    /// The memory is mapped.
    Mapped(MappedRegion),
    /// The memory cannot be mapped: the peer executes accesses.
    Refused,
}

/// A peer's memory, mapped here.
pub struct MappedRegion {
    pub terms: Terms,
    pub memory: Mapping,
}

impl MappedRegion {
    /// The address of byte `offset`, if `len` bytes from there are granted.
    pub fn at(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let end = offset.checked_add(len as u64)?;
        (end <= self.terms.len && end <= self.memory.len() as u64)
            .then(|| self.memory.base().as_ptr().wrapping_add(offset as usize))
    }

    /// Whether it is still valid.
    pub fn holds(&self, up: &Up) -> bool {
        self.terms.slot == u32::MAX || holds(&up.parts.endpoint, &self.terms)
    }

    /// The local address of the peer's address `addr`, if the access is granted.
    pub fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<*mut u8, Errno> {
        if write && !self.terms.write {
            return Err(Errno::EACCES);
        }
        // The same errors as the owner's (`ofi_core::keys::Violation`).
        let offset = addr.checked_sub(self.terms.base).ok_or(Errno::EACCES)?;
        self.at(offset, len).ok_or(Errno::EACCES)
    }
}

/// The generation of a grant's slot, in the endpoint memory of the peer that granted it.
pub fn current<'a>(peer: &'a Mapping, terms: &Terms) -> &'a AtomicU32 {
    let slot = terms.slot as usize % endpoint::GRANT_SLOTS;
    // SAFETY: `word` checks place and alignment; mapped while `peer` lives and accessed atomically.
    unsafe { &*peer.word(endpoint::GRANTS + 4 * slot) }
}

/// Whether a grant still holds.
pub fn holds(peer: &Mapping, terms: &Terms) -> bool {
    current(peer, terms).load(Ordering::Acquire) == terms.generation
}

/// The known keys of the peer.
pub struct Grants {
    pub known: FxHashMap<u64, KeyState>,
    /// The number of keys at which void ones are removed.
    pub limit: usize,
}

impl Default for Grants {
    fn default() -> Self {
        Self { known: FxHashMap::default(), limit: FEW }
    }
}
