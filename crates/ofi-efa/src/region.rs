//! The device's registration of an application's region, through which peers access the memory without this end's
//! program.

use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{Dmabuf, Errno, Error, HmemIface, MrAccess, MrAttr, Piece, Result};

use ibv::cache::{Cache, RangeId};
use ofi_core::hmem::Dmabufs;

use crate::domain::{Domain, Withdrawn};
use crate::srd::{self, Access};

/// A region's registration with the device.
pub struct Region {
    /// `None` if this end executes peers' accesses: the region is in several pieces, or a GPU's that its driver does
    /// not export, or for no peer or only one, or the device refuses it.
    remote: Mutex<Option<Box<dyn srd::Region>>>,
    /// The device's key. Peers use it as long as the region is open, even if the device no longer knows the key.
    pub key: Option<u32>,
    cache: Arc<Cache<Box<dyn srd::Region>>>,
    ranges: Mutex<Vec<RangeId>>,
    withdrawn: Arc<Withdrawn>,
    /// The dma-buf: its first address and length.
    dmabuf: Mutex<Option<(usize, usize)>>,
    dmabufs: Arc<Dmabufs>,
}

/// Maximum number of registrations that are tried to get a key that no open registration has.
const TRIES: usize = 64;

impl Region {
    /// Registers a dma-buf with the device, for peers. Operations of this end find it as they find other registered
    /// memory ([`Dmabufs`]).
    ///
    /// # Errors
    /// `FI_ENOSYS` for a domain whose devices do not access memory by themselves, and for a registration that they may
    /// not access alone; the errors of ibv_reg_dmabuf_mr(3).
    pub fn of_dmabuf(domain: &Domain, attr: &MrAttr<'_>, dmabuf: Dmabuf<'_>) -> Result<Self> {
        let (piece, region) = for_peers(domain, attr, dmabuf, access_of(attr).unwrap_or(Access::Local))?;
        let (start, len) = (piece.addr.addr(), piece.len);
        domain.dmabufs.add(dmabuf, start, len)?;
        let mut whole = Self::of(domain, Some(region), vec![add(domain, attr, &piece)]);
        whole.dmabuf = Mutex::new(Some((start, len)));
        Ok(whole)
    }

    /// Registers a GPU's memory with the device by its dma-buf, for peers, if possible. Otherwise this end executes
    /// their accesses. Operations of this end do not name such memory: the core copies it.
    ///
    /// # Errors
    /// Over fabric `efa-direct`, where this end executes none: `FI_ENOSYS` for a registration that peers' devices may
    /// not access alone; the errors of ibv_reg_dmabuf_mr(3).
    pub fn of_device(domain: &Domain, attr: &MrAttr<'_>, dmabuf: Dmabuf<'_>) -> Result<Self> {
        let Some(access) = access_of(attr) else { return Ok(Self::new(domain, attr)) };
        match for_peers(domain, attr, dmabuf, access) {
            Ok((_, region)) => Ok(Self::of(domain, Some(region), Vec::new())),
            Err(error) if domain.direct => Err(error),
            Err(error) => {
                tracing::info!(target: "ofi::efa::mr", %error, "peers' accesses to a GPU's memory go through its owner");
                Ok(Self::new(domain, attr))
            }
        }
    }

    fn of(domain: &Domain, remote: Option<Box<dyn srd::Region>>, ranges: Vec<RangeId>) -> Self {
        Self {
            key: remote.as_ref().map(|region| region.rkey()),
            remote: Mutex::new(remote),
            cache: Arc::clone(&domain.cache),
            ranges: Mutex::new(ranges),
            withdrawn: Arc::clone(&domain.withdrawn),
            dmabuf: Mutex::default(),
            dmabufs: Arc::clone(&domain.dmabufs),
        }
    }

    /// Registers memory that is no dma-buf.
    ///
    /// # Errors
    /// `FI_ENOSYS` over fabric `efa-direct` for a GPU's memory that peers are to access: no device reaches it.
    pub fn of_memory(domain: &Domain, attr: &MrAttr<'_>) -> Result<Self> {
        if domain.direct && attr.iface != HmemIface::System && access_of(attr).is_some() {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "memory to register for peers over fabric efa-direct",
                "memory of the host (FI_HMEM_SYSTEM), or one piece of a GPU's that its driver exports as a dma-buf",
                "memory of a GPU that is not exported",
                "open an info of fabric efa, whose owner copies for its peers",
            ));
        }
        Ok(Self::new(domain, attr))
    }

    /// Registers memory with the device, if possible.
    pub fn new(domain: &Domain, attr: &MrAttr<'_>) -> Self {
        // Memory without promises, such as a whole address space, is not registered with the device.
        let is_system = attr.iface == HmemIface::System && attr.promises_memory();
        let ranges = attr.pieces().iter().filter(|_| is_system);
        let ranges = ranges.map(|piece| add(domain, attr, piece)).collect();
        let plain = is_system && !attr.disabled && attr.peer.is_none() && domain.keys;
        let remote = match (attr.pieces(), access_of(attr)) {
            ([piece], Some(access)) if plain && piece.len > 0 => {
                register(domain, piece.addr, piece.len, access)
            }
            _ => None,
        };
        Self::of(domain, remote, ranges)
    }

    /// Drops the cached registrations of the memory for this end's operations.
    fn flush(&self) {
        let ranges = std::mem::take(&mut *self.ranges.lock().unwrap_or_else(PoisonError::into_inner));
        for range in ranges {
            self.cache.remove(range);
        }
        // Last: while a range is in the cache, its memory must be known to be a dma-buf's.
        if let Some((start, len)) = self.dmabuf.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.dmabufs.remove(start, len);
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

/// Adds memory of a region to the cache. One for a single peer, or that is not enabled yet, is not opened to the others
/// by a message in it.
fn add(domain: &Domain, attr: &MrAttr<'_>, piece: &Piece) -> RangeId {
    let (start, len) = (piece.addr.addr(), piece.len);
    if attr.peer.is_some() || attr.disabled {
        domain.cache.add_guarded(start, len)
    } else {
        domain.cache.add(start, len)
    }
}

/// The rights of peers; `None` if they have none.
fn access_of(attr: &MrAttr<'_>) -> Option<Access> {
    let (reads, writes) = (MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE);
    match (attr.access().contains(reads), attr.access().contains(writes)) {
        (true, true) => Some(Access::RemoteReadWrite),
        (true, false) => Some(Access::RemoteRead),
        (false, true) => Some(Access::RemoteWrite),
        (false, false) => None,
    }
}

/// A device's registration of a dma-buf that peers' devices access alone, and its piece.
fn for_peers(
    domain: &Domain,
    attr: &MrAttr<'_>,
    dmabuf: Dmabuf<'_>,
    access: Access,
) -> Result<(Piece, Box<dyn srd::Region>)> {
    let &[piece] = attr.pieces() else { return Err(Error::new(Errno::EINVAL)) };
    if !domain.keys || attr.disabled || attr.peer.is_some() {
        return Err(Error::wanted(
            Errno::ENOSYS,
            "a dma-buf to register with provider efa",
            "one that peers' devices access alone: a device with RDMA, FI_MR_VIRT_ADDR and FI_MR_PROV_KEY but no \
             FI_MR_ENDPOINT, and a registration for all peers",
            "another",
            "copy through memory of the host",
        ));
    }
    let iova = piece.addr.addr() as u64;
    let register = || domain.device.register_dmabuf(dmabuf, piece.len, iova, access);
    let region = unused_key(domain, register)?.ok_or_else(|| Error::new(Errno::ENOSPC))?;
    Ok((piece, region))
}

/// A registration whose key no open registration has; `None` if the device gives no such key.
fn unused_key(
    domain: &Domain,
    register: impl Fn() -> Result<Box<dyn srd::Region>>,
) -> Result<Option<Box<dyn srd::Region>>> {
    let mut unfit = Vec::new();
    while unfit.len() < TRIES {
        let region = domain.with_room(&register)?;
        if !domain.withdrawn.keys().contains(&region.rkey()) {
            return Ok(Some(region));
        }
        unfit.push(region);
    }
    Ok(None)
}

fn register(domain: &Domain, addr: *mut u8, len: usize, access: Access) -> Option<Box<dyn srd::Region>> {
    // SAFETY: the application promises the memory (`MrAttr::new`) until the registration is closed.
    unused_key(domain, || unsafe { domain.device.register(addr, len, access) }).unwrap_or_else(|error| {
        tracing::warn!(target: "ofi::efa::mr", %error, "peers' accesses to a registration go through its owner");
        None
    })
}
