//! A domain: a device, chosen by one of its addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibv::cache::{Cache, CacheLimits, KeptAs, Purpose, Watched};
use ibv::{Gid, ProtectionDomain};
use ofi_api::{AddrFormat, Address, Dmabuf, EpType, Errno, Error, Info, MrMode, Result};
use ofi_core::config::{MR_CACHE_MAX_COUNT, MR_CACHE_MAX_SIZE, MR_CACHE_MONITOR};
use ofi_core::hmem::Dmabufs;

use crate::address::Name;
use crate::completions::CompletionPool;
use crate::devices::{self, Of, Own, Port};
use crate::errors::failed;
use crate::rc::msg::Connects;
use crate::rc::ud::Datagrams;
use crate::rc::{self, Access, Device, Region, System};
use crate::{address, settings};

/// The IP address in an address of either format.
fn ip(address: &Address) -> Result<IpAddr> {
    match address.format() {
        AddrFormat::IbUd => Ok(Gid(Name::parse(address)?.gid).ip()),
        _ => Ok(address::socket(address)?.ip()),
    }
}

/// Whether endpoints of the info may have this address. Those of datagrams have the GID at the index of the setting.
fn has_format(own: &Own, info: &Info) -> bool {
    match info.addr_format {
        AddrFormat::IbUd => {
            settings::gid_index().is_ok_and(|index| index.is_none_or(|index| own.is_at(index)))
        }
        format => address::fits(SocketAddr::new(own.ip, 0), Some(format)),
    }
}

/// Opens a system device, for a domain at `ip`.
fn open_system(port: Port, ip: IpAddr, info: &Info) -> Result<System> {
    let pd = ProtectionDomain::new(port.context).map_err(|error| failed(&error))?;
    let chosen = if info.ep_attr.ep_type == EpType::Dgram {
        settings::gid_index().map_err(settings::unusable)?
    } else {
        None
    };
    let gid_index = match chosen {
        Some(index) if port.is_at(index) => index,
        // An offer for datagrams has the GID at that index.
        Some(index) => {
            let (wanted, advice) =
                ("the address whose GID is at FI_VERBS_GID_IDX", "use an info that getinfo returned");
            let found = format!("{ip}, whose GID is not at {index}");
            return Err(Error::wanted(Errno::ENODEV, "fi_info.src_addr", wanted, found, advice));
        }
        // Connections find it themselves.
        None => port.gid_index.unwrap_or_default(),
    };
    Ok(System::new(pd, ip, rc::Port { number: port.number, gid: port.gid, gid_index }))
}

/// A registration of local memory, for operations of this end or for peers that read messages.
pub type Local = Arc<Box<dyn rc::Region>>;

/// A domain: a device, chosen by one of its addresses.
pub struct Domain {
    /// The device that registers memory, and that reliable datagram endpoints open queue pairs on.
    pub device: Arc<dyn Device>,
    /// The address that the domain was opened at, and that of datagram endpoints.
    pub ip: IpAddr,
    /// All addresses of the device, that one first.
    ips: Vec<IpAddr>,
    /// Whether peers may get keys of the device. Not if the application chooses keys: it may reuse one for another
    /// registration while peers still have the device's key of the first, so the owner checks every access.
    pub native: bool,
    /// Whether keys are the device's, as in a domain for endpoints of `FI_EP_MSG`, whose peers pass them to their
    /// devices.
    pub keyed: bool,
    /// Whether peers may use the device's atomics on registered memory, in such a domain.
    pub atomics: bool,
    /// Registrations of local memory.
    pub cache: Arc<Cache<Box<dyn Region>>>,
    /// The completion queues that connected endpoints share.
    pub completions: CompletionPool,
    /// Local memory of connected endpoints that the processor does not access.
    pub dmabufs: Arc<Dmabufs>,
    /// Number of registrations that were withdrawn from peers.
    withdrawals: AtomicU64,
}

impl Domain {
    /// A registration of `len` bytes from `addr` on, which operations of this end read or write.
    ///
    /// # Errors
    /// The errors of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The memory is lent until the operation that uses the registration has ended.
    pub unsafe fn local(&self, addr: *mut u8, len: usize) -> ibv::Result<Local> {
        // SAFETY: the caller's promise.
        unsafe { self.cached(addr, len, Purpose::Local) }
    }

    /// A registration of `len` bytes from `addr` on, which a peer reads.
    ///
    /// # Errors
    /// The errors of ibv_reg_mr(3).
    ///
    /// # Safety
    /// As [`Domain::local`].
    pub unsafe fn exposed(&self, addr: *mut u8, len: usize) -> ibv::Result<Local> {
        // SAFETY: the caller's promise.
        unsafe { self.cached(addr, len, Purpose::Exposed) }
    }

    /// # Safety
    /// As [`Domain::local`].
    unsafe fn cached(&self, addr: *mut u8, len: usize, purpose: Purpose) -> ibv::Result<Local> {
        self.cache.get(purpose, addr.addr(), len, |start, len, memory| {
            let start = addr.with_addr(start);
            let access = match (purpose, memory) {
                (Purpose::Exposed, _) => Access::RemoteRead,
                // A registration that requests may only read would be kept after the memory has become writable.
                (Purpose::Local, KeptAs::Watched) => Access::LocalWrite,
                (Purpose::Local, KeptAs::Range | KeptAs::Lent) => Access::Local,
            };
            let iova = start.addr() as u64;
            let of_dmabuf = |dmabuf: Dmabuf<'_>| self.device.register_dmabuf(dmabuf, len, iova, access);
            if let Some(made) = self.dmabufs.register(start.addr(), len, of_dmabuf) {
                return made;
            }
            // SAFETY: the caller's promise; for a whole range, the promise of the code that added it, until it is
            // removed; for other memory around, the cache drops the registration when its pages are replaced.
            unsafe { self.device.register(start, len, access) }
        })
    }

    /// The device's connected endpoints.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device has none.
    pub fn connects(&self) -> Result<&dyn Connects> {
        let advice = "this device has no connected endpoints (FI_EP_MSG)";
        self.device.connects().ok_or_else(|| Error::with(Errno::ENOSYS, advice))
    }

    /// The device's unreliable datagrams.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device has none.
    pub fn datagrams(&self) -> Result<&dyn Datagrams> {
        let advice = "this device has no unreliable datagrams";
        self.device.datagrams().ok_or_else(|| Error::with(Errno::ENOSYS, advice))
    }

    /// Counts a withdrawn registration, which endpoints report to the peers that know its key.
    pub fn withdrawn(&self) {
        self.withdrawals.fetch_add(1, Ordering::Release);
    }

    /// Number of withdrawn registrations.
    pub fn withdrawals(&self) -> u64 {
        self.withdrawals.load(Ordering::Acquire)
    }

    /// The local address of an endpoint: the given one, or, where that leaves a choice, one of its device in `format`.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` if the device has none in this format; `FI_EINVAL` for an address of another kind.
    pub fn source(&self, given: Option<&Address>, format: AddrFormat) -> Result<SocketAddr> {
        let given = given.map(address::socket).transpose()?;
        if let Some(source) = given.filter(|source| !source.ip().is_unspecified()) {
            return Ok(source);
        }
        let port = given.map_or(0, |given| given.port());
        let mut sources = self.ips.iter().map(|&ip| SocketAddr::new(ip, port));
        sources.find(|&source| address::fits(source, Some(format))).ok_or_else(|| {
            let has: Vec<String> = self.ips.iter().map(IpAddr::to_string).collect();
            let found = format!("{} with {}", self.device.name(), has.join(", "));
            let wanted = format!("a device with an address of {format}, the info's addr_format");
            let advice = "give the interface such an address, or use an info that getinfo returned";
            Error::wanted(Errno::EADDRNOTAVAIL, "an endpoint without a source address", wanted, found, advice)
        })
    }

    /// Opens the device of the info, by its name and at the source address, if they are given.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is no such device.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = info.src_addr.as_ref().map(ip).transpose()?;
        let wanted = wanted.filter(|ip| !ip.is_unspecified());
        let all = devices::of_info(info)?;
        let own = match wanted {
            Some(ip) => all.iter().find(|own| own.ip == ip),
            None => all.iter().find(|own| has_format(own, info)).or_else(|| all.first()),
        };
        let own = own.ok_or_else(|| {
            Error::wanted(
                Errno::ENODEV,
                "fi_info.src_addr",
                match info.domain_attr.name.as_str() {
                    "" => "an address of an RDMA device".to_owned(),
                    name => format!("an address of RDMA device {name}"),
                },
                wanted.map_or_else(String::new, |ip| ip.to_string()),
                "use an info that getinfo returned",
            )
        })?;
        let others = all.iter().filter(|other| other.name() == own.name() && other.ip != own.ip);
        let ips = std::iter::once(own.ip).chain(others.map(|other| other.ip)).collect();
        let device: Arc<dyn Device> = match &own.of {
            Of::Added(device) => Arc::clone(device),
            Of::Port(port) => Arc::new(open_system(*port, own.ip, info)?),
        };
        let atomics = device.connects().is_some_and(|of| of.abilities().is_ok_and(|has| has.atomics));
        let native = info.domain_attr.mr_mode.expanded().contains(MrMode::PROV_KEY);
        tracing::info!(
            target: "ofi::verbs::domain",
            device = own.name(), ip = %own.ip,
            accesses = if native { "by the device" } else { "by their owner's process" },
            device_atomics = atomics,
            "opened a device"
        );
        let limits = CacheLimits {
            count: settings::MR_CACHE_MAX_COUNT.get(),
            bytes: settings::MR_CACHE_MAX_SIZE.get(),
        };
        let cache = Arc::new(Cache::with(limits, watched()));
        Ok(Self {
            device,
            ip: own.ip,
            ips,
            native,
            atomics,
            keyed: info.ep_attr.ep_type == EpType::Msg,
            cache,
            completions: CompletionPool::default(),
            dmabufs: Arc::default(),
            withdrawals: AtomicU64::new(0),
        })
    }
}

/// The monitor of memory that the application has not registered, and its limits.
fn watched() -> Option<Watched> {
    let limits = CacheLimits { count: MR_CACHE_MAX_COUNT.get(), bytes: MR_CACHE_MAX_SIZE.get() };
    ibv::cache::watched(&MR_CACHE_MONITOR.get(), limits, |why| {
        tracing::warn!(target: "ofi::verbs::mr", why, "unregistered memory is registered for each operation");
    })
}
