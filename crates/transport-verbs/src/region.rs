//! What the device knows of a registration of the application, so that peers reach its memory without this end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibv::{Access, MemoryRegion};
use ofi_api::{HmemIface, MrAccess, MrAttr};

use crate::domain::Domain;
use ibv::cache::{Cache, RangeId};

/// See the module.
pub struct Region {
    /// `None` where peers' accesses are executed by this end: it is in several pieces, or not the system's memory, or for no peer,
    /// or the device does not take it.
    remote: Mutex<Option<MemoryRegion>>,
    cache: Arc<Cache<MemoryRegion>>,
    ranges: Mutex<Vec<RangeId>>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Region {
    /// Registers memory with the device, as far as that is possible.
    pub fn new(domain: &Domain, attr: &MrAttr<'_>) -> Self {
        let is_system = attr.iface == HmemIface::System;
        let ranges = attr.pieces().iter().filter(|_| is_system);
        let ranges = ranges.map(|piece| domain.cache.add(piece.addr.addr(), piece.len)).collect();
        let (reads, writes) = (MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE);
        let access = match (attr.access().contains(reads), attr.access().contains(writes)) {
            (true, true) => Some(Access::RemoteReadWrite),
            (true, false) => Some(Access::RemoteRead),
            (false, true) => Some(Access::RemoteWrite),
            (false, false) => None,
        };
        let remote = match (attr.pieces(), access) {
            ([piece], Some(access)) if is_system && piece.len > 0 && domain.native => {
                // SAFETY: the memory is the application's promise (`MrAttr::new`), until the registration is closed.
                match unsafe { MemoryRegion::new(&domain.pd, piece.addr, piece.len, access) } {
                    Ok(region) => Some(region),
                    Err(error) => {
                        tracing::warn!(target: "ofi::verbs::mr", %error, "peers' accesses to a registration go through its owner");
                        None
                    }
                }
            }
            _ => None,
        };
        Self { remote: Mutex::new(remote), cache: Arc::clone(&domain.cache), ranges: Mutex::new(ranges) }
    }

    /// The device's registration, which stays as it is while this is held.
    pub fn remote(&self) -> MutexGuard<'_, Option<MemoryRegion>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has nothing kept of the memory for this end's operations.
    fn flush(&self) {
        let ranges = std::mem::take(&mut *self.ranges.lock().unwrap_or_else(PoisonError::into_inner));
        for range in ranges {
            self.cache.remove(range);
        }
    }

    /// Has the device refuse peers from now on.
    pub fn withdraw(&self, domain: &Domain) {
        self.flush();
        let remote = self.remote().take();
        if remote.is_some() {
            drop(remote);
            domain.withdrawn();
        }
    }
}

/// A registration that operations of this end use.
pub type Local = Arc<MemoryRegion>;
