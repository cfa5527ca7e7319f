//! A domain: a device, chosen by one of its addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibv::cache::{Cache, Limits};
use ibv::{Gid, ProtectionDomain};
use ofi_api::{AddrFormat, Address, EpType, Errno, Error, Info, MrMode, Result};

use crate::address::Name;
use crate::devices::{self, Of, Port};
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
        None => port.context.gid_index(port.number, port.gid).map_err(|error| failed(&error))?,
    };
    Ok(System::new(pd, ip, rc::Port { number: port.number, gid: port.gid, gid_index }))
}

/// A registration of local memory for operations of this end.
pub type Local = Arc<Box<dyn rc::Region>>;

/// A domain: a device, chosen by one of its addresses.
pub struct Domain {
    /// The device that registers memory, and that reliable datagram endpoints open queue pairs on.
    pub device: Arc<dyn Device>,
    /// The address of endpoints that are not given one.
    pub ip: IpAddr,
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
        self.cache.get(addr.addr(), len, |start, len| {
            let start = addr.with_addr(start);
            // SAFETY: the caller's promise; for a whole range, the promise of the code that added it, until it is
            // removed.
            unsafe { self.device.register(start, len, Access::Local) }
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

    /// Opens the device that has the info's source address.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is no such device.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = info.src_addr.as_ref().map(ip).transpose()?;
        let wanted = wanted.filter(|ip| !ip.is_unspecified());
        let all = devices::addresses()?;
        let found = all.iter().find(|own| wanted.is_none_or(|ip| ip == own.ip));
        let own = found.ok_or_else(|| {
            Error::wanted(
                Errno::ENODEV,
                "fi_info.src_addr",
                "an address of an RDMA device",
                wanted.map_or_else(String::new, |ip| ip.to_string()),
                "use an info that getinfo returned",
            )
        })?;
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
        let limits =
            Limits { count: settings::MR_CACHE_MAX_COUNT.get(), bytes: settings::MR_CACHE_MAX_SIZE.get() };
        let cache = Arc::new(Cache::new(limits));
        Ok(Self {
            device,
            ip: own.ip,
            native,
            atomics,
            keyed: info.ep_attr.ep_type == EpType::Msg,
            cache,
            withdrawals: AtomicU64::new(0),
        })
    }
}
