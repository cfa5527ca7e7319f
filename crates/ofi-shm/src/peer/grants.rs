//! Memory of the peer that is mapped here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi_api::Errno;
use ofi_core::hmem::MappedPeerDevice;

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
    /// The memory is a device's, and mapped by its driver.
    Device(MappedDevice),
    /// The memory cannot be mapped: the peer executes accesses.
    Refused,
}

/// A peer's device memory, mapped here.
pub struct MappedDevice {
    pub terms: Terms,
    pub memory: MappedPeerDevice,
    /// The time of its last use ([`Grants::uses`]).
    pub used: u64,
    /// Counts it among the endpoint's mappings.
    pub _counted: Arc<()>,
}

impl Terms {
    /// The offset of the peer's address `addr`, if it is not before the memory, and a write is granted.
    fn offset(&self, addr: u64, write: bool) -> Result<u64, Errno> {
        if write && !self.write {
            return Err(Errno::EACCES);
        }
        // The same errors as the owner's (`ofi_core::keys::Violation`).
        addr.checked_sub(self.base).ok_or(Errno::EACCES)
    }

    /// Whether the grant still holds.
    pub fn hold(&self, up: &Up) -> bool {
        self.slot == u32::MAX || holds(&up.parts.endpoint, self)
    }
}

impl MappedDevice {
    /// The driver's address of the peer's address `addr`, if the access is granted.
    pub fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<u64, Errno> {
        let offset = self.terms.offset(addr, write)?;
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.terms.len);
        // No sum overflows: the driver has confirmed that the mapping is that long (`MappedPeerDevice::open`).
        if is_inside { Ok(self.memory.address() + offset) } else { Err(Errno::EACCES) }
    }
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

    /// The local address of the peer's address `addr`, if the access is granted.
    pub fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<*mut u8, Errno> {
        self.at(self.terms.offset(addr, write)?, len).ok_or(Errno::EACCES)
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
    /// The number of uses of mapped device memory so far.
    pub uses: u64,
}

impl Default for Grants {
    fn default() -> Self {
        Self { known: FxHashMap::default(), limit: FEW, uses: 0 }
    }
}
