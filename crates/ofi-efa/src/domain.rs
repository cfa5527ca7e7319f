//! A domain: one device, found by name.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibv::cache::{Cache, CacheLimits, KeptAs, Purpose, RegisterError, Watched, is_shortage};
use ofi_api::{Dmabuf, Errno, Error, Info, MrMode, Piece, Result};
use ofi_core::config::{MR_CACHE_MAX_COUNT, MR_CACHE_MAX_SIZE, MR_CACHE_MONITOR};
use ofi_core::hmem::Dmabufs;
use rustc_hash::FxHashSet;

use crate::settings;
use crate::srd::{self, Access, Device};

/// Name of the fabric whose operations are single requests of the device.
pub const DIRECT: &str = "efa-direct";

/// A registration of local memory, for operations of this end or for peers that read messages.
pub type Local = Arc<Box<dyn srd::Region>>;

/// Keys of open registrations that were deregistered from the device. These registrations count accesses, so their
/// owner executes the accesses. If the device assigns such a key to a new registration, that memory is registered again
/// for another key.
#[derive(Default)]
pub struct Withdrawn(Mutex<FxHashSet<u32>>);

impl Withdrawn {
    /// The withdrawn keys.
    pub fn keys(&self) -> MutexGuard<'_, FxHashSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registration's error, for the cache.
struct Unregistered(Error);

impl RegisterError for Unregistered {
    fn is_shortage(&self) -> bool {
        is_shortage(self.0.errno().get())
    }
}

/// A domain: one device, and its registrations.
pub struct Domain {
    /// The device of its endpoints' queue pairs.
    pub device: Arc<dyn Device>,
    /// Whether peers' devices find registrations by their keys: the device chooses the keys, and remote addresses are
    /// virtual addresses of this process.
    pub keys: bool,
    /// Fabric [`DIRECT`], where no owner executes accesses of its peers.
    pub direct: bool,
    /// Registrations of local memory.
    pub cache: Arc<Cache<Box<dyn srd::Region>>>,
    /// See [`Withdrawn`].
    pub withdrawn: Arc<Withdrawn>,
    /// Local memory that the processor does not access.
    pub dmabufs: Arc<Dmabufs>,
}

impl Domain {
    /// Opens the device that the info names.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is no such device.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = &info.domain_attr.name;
        let all = srd::devices().unwrap_or_default();
        let found = all.iter().find(|device| domain_name(device.name()) == *wanted);
        let device = found.cloned().ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|device| domain_name(device.name())).collect();
            Error::wanted(
                Errno::ENODEV,
                "fi_info.domain_attr.name",
                format!("one of {}", names.join(", ")),
                wanted.clone(),
                "use an info that getinfo returned",
            )
        })?;
        let mode = info.domain_attr.mr_mode.expanded();
        let (limits, plain) = (device.limits(), !mode.contains(MrMode::ENDPOINT));
        let can = limits.read && settings::USE_DEVICE_RDMA.get();
        let keys = can && plain && mode.contains(MrMode::PROV_KEY | MrMode::VIRT_ADDR);
        let caches = settings::MR_CACHE_ENABLE.get();
        let limits = CacheLimits {
            count: if caches { settings::MR_CACHE_MAX_COUNT.get() } else { 0 },
            bytes: settings::MR_CACHE_MAX_SIZE.get(),
        };
        tracing::info!(
            target: "ofi::efa::domain",
            device = device.name(),
            accesses = if keys { "by the device" } else { "by their owner's process" },
            "opened a device"
        );
        let (withdrawn, dmabufs) = Default::default();
        let cache = Arc::new(Cache::with(limits, if caches { watched() } else { None }));
        let direct = info.fabric_attr.name == DIRECT;
        Ok(Self { device, keys, direct, cache, withdrawn, dmabufs })
    }

    /// A registration of `len` bytes from `addr` on, which requests of this end read or write.
    ///
    /// # Errors
    /// The device's error.
    ///
    /// # Safety
    /// The memory is lent until the requests that use the registration have ended.
    pub unsafe fn local(&self, addr: *mut u8, len: usize) -> Result<Local> {
        // SAFETY: the caller's promise.
        unsafe { self.cached(addr, len, Purpose::Local) }
    }

    /// A registration of `len` bytes from `addr` on, which a peer reads.
    ///
    /// # Errors
    /// The device's error.
    ///
    /// # Safety
    /// As [`Domain::local`].
    pub unsafe fn exposed(&self, addr: *mut u8, len: usize) -> Result<Local> {
        // SAFETY: the caller's promise.
        unsafe { self.cached(addr, len, Purpose::Exposed) }
    }

    /// # Safety
    /// As [`Domain::local`].
    unsafe fn cached(&self, addr: *mut u8, len: usize, purpose: Purpose) -> Result<Local> {
        let made = self.cache.get(purpose, addr.addr(), len, |start, len, memory| {
            // SAFETY: the caller's promise; for a whole range, the promise of the code that registered it, until it is
            // removed; for other memory around, the cache drops the registration when its pages are replaced.
            unsafe { self.make(addr.with_addr(start), len, purpose, memory) }.map_err(Unregistered)
        });
        made.map_err(|Unregistered(error)| error)
    }

    /// # Safety
    /// The memory stays in place until the registration is dropped.
    unsafe fn make(
        &self,
        addr: *mut u8,
        len: usize,
        purpose: Purpose,
        memory: KeptAs,
    ) -> Result<Box<dyn srd::Region>> {
        let access = match (purpose, memory) {
            (Purpose::Exposed, _) => Access::RemoteRead,
            // A registration that requests may only read would be kept after the memory has become writable.
            (Purpose::Local, KeptAs::Watched) => Access::LocalWrite,
            (Purpose::Local, KeptAs::Range | KeptAs::Lent) => Access::Local,
        };
        let iova = addr.addr() as u64;
        let of_dmabuf = |dmabuf: Dmabuf<'_>| self.device.register_dmabuf(dmabuf, len, iova, access);
        if let Some(made) = self.dmabufs.register(addr.addr(), len, of_dmabuf) {
            return made;
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.register(addr, len, access) }
    }

    /// Refuses memory that the processor would have to copy and must not access.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if a piece lies in a dma-buf.
    #[inline]
    pub fn refuse_dmabufs(&self, pieces: &[Piece]) -> Result<()> {
        self.dmabufs.refuse(
            pieces,
            "an access that both devices do alone: RDMA at either end, one piece, and a key that the peer's device \
             knows",
        )
    }

    /// Calls `make`, and once more if kept registrations leave no room ([`Cache::with_room`]).
    ///
    /// # Errors
    /// Those of `make`.
    pub fn with_room<T>(&self, mut make: impl FnMut() -> Result<T>) -> Result<T> {
        self.cache.with_room(|| make().map_err(Unregistered)).map_err(|Unregistered(error)| error)
    }

    /// As [`Domain::local`], for memory that the application has registered. Also returns the addresses that the
    /// registration covers. `None` for other memory, and if the device refuses the memory.
    ///
    /// # Safety
    /// As [`Domain::local`].
    pub unsafe fn registered(&self, addr: *mut u8, len: usize) -> Option<(Range<usize>, Local)> {
        let found = self.cache.get_range(Purpose::Local, addr.addr(), len, |start, len, memory| {
            // SAFETY: the promise of the code that registered the range, until it is removed.
            unsafe { self.make(addr.with_addr(start), len, Purpose::Local, memory) }.map_err(Unregistered)
        });
        found.unwrap_or_else(|Unregistered(error)| {
            tracing::debug!(target: "ofi::efa::mr", %error, "registered memory is copied");
            None
        })
    }
}

/// C libfabric's name of a device's domain.
pub fn domain_name(device: &str) -> String {
    format!("{device}-rdm")
}

/// The monitor of memory that the application has not registered, and its limits.
fn watched() -> Option<Watched> {
    let limits = CacheLimits { count: MR_CACHE_MAX_COUNT.get(), bytes: MR_CACHE_MAX_SIZE.get() };
    ibv::cache::watched(&MR_CACHE_MONITOR.get(), limits, |why| {
        tracing::warn!(target: "ofi::efa::mr", why, "unregistered memory is registered for each operation");
    })
}
