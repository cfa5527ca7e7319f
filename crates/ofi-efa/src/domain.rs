//! A domain: a device, by its name.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibv::cache::{Cache, Limits};
use ofi_api::{Errno, Error, Info, MrMode, Result};
use rustc_hash::FxHashSet;

use crate::settings;
use crate::srd::{self, Access, Device};

/// The fabric whose operations are the device's requests.
pub const DIRECT: &str = "efa-direct";

/// A registration that operations of this end use.
pub type Local = Arc<Box<dyn srd::Region>>;

/// Keys that the device has forgotten of registrations that are open: they count accesses, so their owner executes
/// them. What the device registers under such a key is registered anew.
#[derive(Default)]
pub struct Withdrawn(Mutex<FxHashSet<u32>>);

impl Withdrawn {
    /// Them.
    pub fn keys(&self) -> MutexGuard<'_, FxHashSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub struct Domain {
    /// Whose queue pairs its endpoints have.
    pub device: Arc<dyn Device>,
    /// Whether peers' devices find registrations by their keys: the device chooses keys, and addresses are what they
    /// are here.
    pub keys: bool,
    /// Registrations of local memory.
    pub cache: Arc<Cache<Box<dyn srd::Region>>>,
    /// See there.
    pub withdrawn: Arc<Withdrawn>,
}

impl Domain {
    /// Opens the device of the info's name.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is none.
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
                "use an info that getinfo answered",
            )
        })?;
        let mode = info.domain_attr.mr_mode.expanded();
        let (limits, plain) = (device.limits(), !mode.contains(MrMode::ENDPOINT));
        let can = limits.read && settings::USE_DEVICE_RDMA.get();
        let keys = can && plain && mode.contains(MrMode::PROV_KEY | MrMode::VIRT_ADDR);
        let limits =
            Limits { count: settings::MR_CACHE_MAX_COUNT.get(), bytes: settings::MR_CACHE_MAX_SIZE.get() };
        Ok(Self { device, keys, cache: Arc::new(Cache::new(limits)), withdrawn: Arc::default() })
    }

    /// A registration from which requests of this end read, or to which they write, `len` bytes from `addr` on.
    ///
    /// # Errors
    /// What the device answers.
    ///
    /// # Safety
    /// The memory is lent until the requests have ended, which give the registration back.
    pub unsafe fn local(&self, addr: *mut u8, len: usize) -> Result<Local> {
        self.cache.get(addr.addr(), len, |start, len| {
            // SAFETY: the caller's promise; of a whole range, that of whoever registered it, until it is removed.
            unsafe { self.device.register(addr.with_addr(start), len, Access::Local) }
        })
    }

    /// The same, if the memory is a part of what the application has registered, and which addresses the registration
    /// covers. `None` also if the device does not take it.
    ///
    /// # Safety
    /// As [`Domain::local`].
    pub unsafe fn registered(&self, addr: *mut u8, len: usize) -> Option<(Range<usize>, Local)> {
        let found = self.cache.get_range(addr.addr(), len, |start, len| {
            // SAFETY: the promise of whoever registered the range, until it is removed.
            unsafe { self.device.register(addr.with_addr(start), len, Access::Local) }
        });
        found.unwrap_or_else(|error| {
            tracing::debug!(target: "ofi::efa::mr", %error, "registered memory is copied");
            None
        })
    }
}

/// What C libfabric calls the domain of a device.
pub fn domain_name(device: &str) -> String {
    format!("{device}-rdm")
}
