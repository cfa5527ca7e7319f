//! The device's registration of an application's region. Through it, peers access the memory without this end.

use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{HmemIface, MrAccess, MrAttr};

use ibv::cache::{Cache, RangeId};

use crate::domain::{Domain, Withdrawn};
use crate::srd::{self, Access};

/// See the module.
pub struct Region {
    /// `None` if this end executes peers' accesses: the region is in several pieces, or not system memory, or for no
    /// peer or only one, or the device refuses it.
    remote: Mutex<Option<Box<dyn srd::Region>>>,
    /// The device's key. Peers use it as long as the region is open, even if the device no longer knows the key.
    pub key: Option<u32>,
    cache: Arc<Cache<Box<dyn srd::Region>>>,
    ranges: Mutex<Vec<RangeId>>,
    withdrawn: Arc<Withdrawn>,
}

/// Most registrations that are tried to get a key that no open registration has.
const TRIES: usize = 64;

impl Region {
    /// Registers memory with the device, if possible.
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
        let plain = is_system && !attr.disabled && attr.peer.is_none() && domain.keys;
        let remote = match (attr.pieces(), access) {
            ([piece], Some(access)) if plain && piece.len > 0 => {
                register(domain, piece.addr, piece.len, access)
            }
            _ => None,
        };
        Self {
            key: remote.as_ref().map(|region| region.rkey()),
            remote: Mutex::new(remote),
            cache: Arc::clone(&domain.cache),
            ranges: Mutex::new(ranges),
            withdrawn: Arc::clone(&domain.withdrawn),
        }
    }

    /// Drops the cached registrations of the memory for this end's operations.
    fn flush(&self) {
        let ranges = std::mem::take(&mut *self.ranges.lock().unwrap_or_else(PoisonError::into_inner));
        for range in ranges {
            self.cache.remove(range);
        }
    }

    /// Makes the device refuse peers' accesses from now on.
    pub fn withdraw(&self) {
        self.flush();
        let remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(region) = remote {
            // Before the device can assign the key to another registration.
            self.withdrawn.keys().insert(region.rkey());
            drop(region);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.flush();
        if let Some(key) = self.key {
            self.withdrawn.keys().remove(&key);
        }
    }
}

fn register(domain: &Domain, addr: *mut u8, len: usize, access: Access) -> Option<Box<dyn srd::Region>> {
    let mut unfit = Vec::new();
    while unfit.len() < TRIES {
        // SAFETY: the application promises the memory (`MrAttr::new`) until the registration is closed.
        match unsafe { domain.device.register(addr, len, access) } {
            Ok(region) if domain.withdrawn.keys().contains(&region.rkey()) => unfit.push(region),
            Ok(region) => return Some(region),
            Err(error) => {
                tracing::warn!(target: "ofi::efa::mr", %error, "peers' accesses to a registration go through its owner");
                return None;
            }
        }
    }
    None
}
