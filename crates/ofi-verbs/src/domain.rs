//! A domain: a device, chosen by an address that it has.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibv::cache::{Cache, Limits};
use ibv::{Access, Context, Gid, MemoryRegion, ProtectionDomain};
use ofi_api::{AddrFormat, Address, EpType, Errno, Error, Info, MrMode, Result};

use crate::datagram::Name;
use crate::region::Local;
use crate::{address, failed, settings};

/// An address of a device of this host.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The device.
    pub context: Context,
    /// Its port.
    pub port: u8,
    /// The GID that this address has there.
    pub gid: Gid,
}

impl Own {
    /// Whether its GID is at that place of the port's table.
    pub fn is_at(&self, index: u8) -> bool {
        self.context.gid_at(self.port, index).is_ok_and(|gid| gid == Some(self.gid))
    }
}

/// All of them, global ones of ports that are up first.
///
/// # Errors
/// What is missing on this host.
pub fn addresses() -> Result<Vec<Own>> {
    let mut all = Vec::new();
    let (name, iface) = (settings::DEVICE_NAME.get(), settings::IFACE.get());
    // An empty list takes all, also those of other network namespaces, which have no name here.
    let takes_interface = |interface: Option<String>| settings::takes(&iface, &interface.unwrap_or_default());
    for &context in ibv::contexts().map_err(|error| failed(&error))? {
        if !settings::takes(&name, &context.name()) {
            continue;
        }
        let ports = context.query().map_err(|error| failed(&error))?.ports;
        for port in 1..=ports {
            let active = context.port(port).is_ok_and(|port| port.active);
            for gid in context.gids(port).unwrap_or_default() {
                let local = matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
                // A link-local address says nothing without its interface.
                if !local && takes_interface(context.interface(port, gid)) {
                    all.push((!active, Own { ip: gid.ip(), context, port, gid }));
                }
            }
        }
    }
    all.sort_by_key(|(down, _)| *down);
    if all.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose interface has an IP address",
            format!(
                "none, of names that FI_VERBS_DEVICE_NAME={name:?} and FI_VERBS_IFACE={iface:?} take (empty: all)"
            ),
            "give the interface an address (`ip addr add`), or set FI_VERBS_DEVICE_NAME or FI_VERBS_IFACE",
        ));
    }
    Ok(all.into_iter().map(|(_, own)| own).collect())
}

/// The IP address in an address of either format.
fn ip(address: &Address) -> Result<IpAddr> {
    match address.format() {
        AddrFormat::IbUd => Ok(Gid(Name::parse(address)?.gid).ip()),
        _ => Ok(address::socket(address)?.ip()),
    }
}

/// See the module.
pub struct Domain {
    /// Whose memory its queue pairs use.
    pub pd: Arc<ProtectionDomain>,
    /// The address that endpoints have unless they are named.
    pub ip: IpAddr,
    /// The device's port, the address's GID, and where that is in the port's table.
    pub port: u8,
    pub gid: Gid,
    pub gid_index: u8,
    /// Whether peers may be given keys of the device. A key that the application chooses may mean another registration later, while
    /// peers still have the device's key of the first: then every access is looked at by the owner.
    pub native: bool,
    /// Whether keys are the device's, for peers that hand them to their devices: a domain for endpoints of `FI_EP_MSG`.
    pub keyed: bool,
    /// Registrations of local memory.
    pub cache: Arc<Cache<MemoryRegion>>,
    /// Counts registrations that were withdrawn from peers.
    withdrawals: AtomicU64,
}

impl Domain {
    /// A registration from which operations of this end read, or to which they write, `len` bytes from `addr` on.
    ///
    /// # Errors
    /// Those of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The memory is lent until the operation has ended, which gives the registration back.
    pub unsafe fn local(&self, addr: *mut u8, len: usize) -> ibv::Result<Local> {
        self.cache.get(addr.addr(), len, |start, len| {
            let start = addr.with_addr(start);
            // SAFETY: the caller's promise; of a whole range, that of whoever added it, until it is removed.
            unsafe { MemoryRegion::new(&self.pd, start, len, Access::Local) }
        })
    }

    /// A registration was withdrawn: endpoints tell the peers that know its key.
    pub fn withdrawn(&self) {
        self.withdrawals.fetch_add(1, Ordering::Release);
    }

    /// How many were.
    pub fn withdrawals(&self) -> u64 {
        self.withdrawals.load(Ordering::Acquire)
    }

    /// Opens the device that has the info's source address.
    ///
    /// # Errors
    /// `FI_ENODEV` if there is none.
    pub fn open(info: &Info) -> Result<Self> {
        let wanted = info.src_addr.as_ref().map(ip).transpose()?;
        let wanted = wanted.filter(|ip| !ip.is_unspecified());
        let all = addresses()?;
        let found = all.iter().find(|own| wanted.is_none_or(|ip| ip == own.ip));
        let own = found.ok_or_else(|| {
            Error::wanted(
                Errno::ENODEV,
                "fi_info.src_addr",
                "an address of an RDMA device",
                wanted.map_or_else(String::new, |ip| ip.to_string()),
                "use an info that getinfo answered",
            )
        })?;
        let pd = ProtectionDomain::new(own.context).map_err(|error| failed(&error))?;
        let native = info.domain_attr.mr_mode.expanded().contains(MrMode::PROV_KEY);
        let limits =
            Limits { count: settings::MR_CACHE_MAX_COUNT.get(), bytes: settings::MR_CACHE_MAX_SIZE.get() };
        let cache = Arc::new(Cache::new(limits));
        let chosen = if info.ep_attr.ep_type == EpType::Dgram { settings::gid_index()? } else { None };
        let gid_index = match chosen {
            Some(index) if own.is_at(index) => index,
            // An offer for datagrams has the GID of that place.
            Some(index) => {
                let (wanted, advice) =
                    ("the address whose GID is at FI_VERBS_GID_IDX", "use an info that getinfo answered");
                let found = format!("{}, whose GID is not at {index}", own.ip);
                return Err(Error::wanted(Errno::ENODEV, "fi_info.src_addr", wanted, found, advice));
            }
            None => own.context.gid_index(own.port, own.gid).map_err(|error| failed(&error))?,
        };
        Ok(Self {
            pd,
            ip: own.ip,
            port: own.port,
            gid: own.gid,
            gid_index,
            native,
            keyed: info.ep_attr.ep_type == EpType::Msg,
            cache,
            withdrawals: AtomicU64::new(0),
        })
    }
}
