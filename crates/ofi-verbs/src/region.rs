//! The device's registration of an application's region, through which peers access the memory without this end's
//! program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Dmabuf, Errno, Error, HmemIface, MrAccess, MrAttr, Piece, Result};

use ibv::cache::{Cache, RangeId};
use ofi_core::hmem::Dmabufs;

use crate::domain::Domain;
use crate::errors::failed;
use crate::rc::{self, Access};

/// A region's registration with the device.
pub struct Region {
    /// `None` if this end executes peers' accesses: the region is in several pieces, or for no peer, or a GPU's that
    /// its driver does not export, or the device refuses it.
    remote: Mutex<Option<Box<dyn rc::Region>>>,
    cache: Arc<Cache<Box<dyn rc::Region>>>,
    ranges: Mutex<Vec<RangeId>>,
    /// The device's key, if it is the registration's key for peers.
    key: Option<u64>,
    /// Whether peers' accesses bypass this end.
    keyed: bool,
    /// The dma-buf: its first address and length.
    dmabuf: Mutex<Option<(usize, usize)>>,
    dmabufs: Arc<Dmabufs>,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Region {
    /// Registers memory with the device, whose key becomes the registration's key. `dmabuf`: the memory, if it is a
    /// GPU's; without it, the core copies such memory for operations of this end, and no peer accesses it.
    ///
    /// # Errors
    /// `FI_EINVAL` for several pieces, or none; `FI_ENOSYS` for a GPU's memory that peers are to access, without a
    /// dma-buf; the errors of ibv_reg_mr(3).
    pub fn keyed(domain: &Domain, attr: &MrAttr<'_>, dmabuf: Option<Dmabuf<'_>>) -> Result<Self> {
        let refused = |errno, wanted, found, advice| {
            let what = "memory to register for connected endpoints";
            Err(Error::wanted(errno, what, wanted, found, advice))
        };
        let [piece] = attr.pieces() else {
            let found = format!("{} pieces", attr.pieces().len());
            let wanted = "one piece (domain_attr.mr_iov_limit)";
            return refused(Errno::EINVAL, wanted, found, "register each piece separately");
        };
        if attr.iface != HmemIface::System && dmabuf.is_none() {
            if access(attr).is_none() {
                return Ok(Self::of(domain, None, Vec::new(), true));
            }
            let wanted =
                "memory of the host (FI_HMEM_SYSTEM), or a GPU's that its driver exports as a dma-buf";
            let advice =
                "leave out the rights of peers and copy through memory of the host, or use FI_EP_RDM";
            return refused(Errno::ENOSYS, wanted, format!("that of {}", attr.iface), advice);
        }
        if !attr.promises_memory() {
            let wanted = "memory that is mapped: the device accesses it alone, and its driver pins it";
            let found = format!("{:#x} bytes at {:p}", piece.len, piece.addr);
            return refused(
                Errno::EOPNOTSUPP,
                wanted,
                found,
                "use FI_EP_RDM, where the owner may execute accesses",
            );
        }
        if piece.len == 0 && dmabuf.is_none() {
            let advice = "leave it out, or use FI_EP_RDM";
            return refused(Errno::EINVAL, "at least one byte, as the device wants", "none".into(), advice);
        }
        let access = match access(attr) {
            Some(Access::RemoteReadWrite) if domain.atomics => Access::RemoteAtomic,
            // Receives and reads into memory that cannot be written would end the connection.
            None if attr.access().intersects(MrAccess::RECV | MrAccess::READ) => Access::LocalWrite,
            access => access.unwrap_or(Access::Local),
        };
        let region = match dmabuf {
            Some(dmabuf) => domain.cache.with_room(|| {
                domain.device.register_dmabuf(dmabuf, piece.len, piece.addr.addr() as u64, access)
            }),
            None => domain.cache.with_room(|| {
                // SAFETY: the application promises the memory (`MrAttr::new`) until the registration is closed.
                unsafe { domain.device.register(piece.addr, piece.len, access) }
            }),
        };
        let region = region.map_err(|error| failed(&error))?;
        let range = (piece.addr.addr(), piece.len);
        if let Some(dmabuf) = dmabuf {
            domain.dmabufs.add(dmabuf, range.0, range.1)?;
        }
        let mut whole = Self::of(domain, Some(region), vec![add(domain, attr, piece)], true);
        whole.dmabuf = Mutex::new(dmabuf.map(|_| range));
        Ok(whole)
    }

    /// Registers a GPU's memory that its driver has exported. If the device refuses the dma-buf, the memory is
    /// registered without it.
    ///
    /// # Errors
    /// As [`Region::keyed`].
    pub fn of_device(domain: &Domain, attr: &MrAttr<'_>, dmabuf: Dmabuf<'_>) -> Result<Self> {
        if domain.keyed {
            return Self::keyed(domain, attr, Some(dmabuf)).or_else(|error| {
                tracing::info!(target: "ofi::verbs::mr", %error, "the device does not access a GPU's memory itself");
                Self::keyed(domain, attr, None)
            });
        }
        let mut region = Self::new(domain, attr);
        let &[Piece { addr, len, .. }] = attr.pieces() else { return Ok(region) };
        if let Some(access) = access(attr).filter(|_| domain.native && len > 0) {
            let iova = addr.addr() as u64;
            let register = || domain.device.register_dmabuf(dmabuf, len, iova, access);
            match domain.cache.with_room(register) {
                Ok(registered) => region.remote = Mutex::new(Some(registered)),
                Err(error) => {
                    tracing::info!(target: "ofi::verbs::mr", %error, "peers' accesses to a GPU's memory go through its owner");
                }
            }
        }
        Ok(region)
    }

    fn of(domain: &Domain, remote: Option<Box<dyn rc::Region>>, ranges: Vec<RangeId>, keyed: bool) -> Self {
        Self {
            key: remote.as_ref().filter(|_| keyed).map(|region| region.rkey().into()),
            remote: Mutex::new(remote),
            cache: Arc::clone(&domain.cache),
            ranges: Mutex::new(ranges),
            keyed,
            dmabuf: Mutex::default(),
            dmabufs: Arc::clone(&domain.dmabufs),
        }
    }

    /// Registers memory with the device, if possible.
    pub fn new(domain: &Domain, attr: &MrAttr<'_>) -> Self {
        // Memory without promises, such as a whole address space, is not registered with the device.
        let is_system = attr.iface == HmemIface::System && attr.promises_memory();
        let ranges = attr.pieces().iter().filter(|_| is_system);
        let ranges = ranges.map(|piece| add(domain, attr, piece)).collect();
        let remote = match (attr.pieces(), access(attr)) {
            ([piece], Some(access)) if is_system && piece.len > 0 && domain.native => {
                // SAFETY: the application promises the memory (`MrAttr::new`) until the registration is closed.
                let register = || unsafe { domain.device.register(piece.addr, piece.len, access) };
                match domain.cache.with_room(register) {
                    Ok(region) => Some(region),
                    Err(error) => {
                        tracing::warn!(target: "ofi::verbs::mr", %error, "peers' accesses to a registration go through its owner");
                        None
                    }
                }
            }
            _ => None,
        };
        Self::of(domain, remote, ranges, false)
    }

    /// The registration's key, if that is the device's.
    pub const fn key(&self) -> Option<u64> {
        self.key
    }

    /// Whether peers' accesses go through this end, which can count them.
    pub const fn counts(&self) -> bool {
        !self.keyed
    }

    /// The device's registration, which does not change while the guard is held.
    pub fn remote(&self) -> MutexGuard<'_, Option<Box<dyn rc::Region>>> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub fn withdraw(&self, domain: &Domain) {
        self.flush();
        let remote = self.remote().take();
        if remote.is_some() {
            drop(remote);
            domain.withdrawn();
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
fn access(attr: &MrAttr<'_>) -> Option<Access> {
    let (reads, writes) = (MrAccess::REMOTE_READ, MrAccess::REMOTE_WRITE);
    match (attr.access().contains(reads), attr.access().contains(writes)) {
        (true, true) => Some(Access::RemoteReadWrite),
        (true, false) => Some(Access::RemoteRead),
        (false, true) => Some(Access::RemoteWrite),
        (false, false) => None,
    }
}
