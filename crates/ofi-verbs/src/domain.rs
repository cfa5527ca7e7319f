//! A domain: a device, chosen by one of its addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibv::cache::{Cache, Limits};
use ibv::{Context, Gid, ProtectionDomain};
use ofi_api::{AddrFormat, Address, EpType, Errno, Error, Info, MrMode, Result};

use crate::datagram::Name;
use crate::rc::msg::{Abilities, Channel, Connects};
use crate::rc::ud::{Datagrams, UdPort};
use crate::rc::{self, Access, Device, Region, System, msg_system, ud_system};
use crate::region::Local;
use crate::{address, failed, settings};

/// An address of a device of this host.
#[derive(Clone)]
pub struct Own {
    /// The address.
    pub ip: IpAddr,
    /// The device that has it.
    pub of: Of,
}

/// A device.
#[derive(Clone)]
pub enum Of {
    /// A device of the system, for endpoints of every type.
    Port(Port),
    /// A device that was added ([`rc::add`]).
    Added(Arc<dyn Device>),
}

/// A port of a system device, at one of its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The device.
    pub context: Context,
    /// The port.
    pub number: u8,
    /// The port's GID for the address.
    pub gid: Gid,
}

impl Own {
    /// The device's name.
    pub fn name(&self) -> String {
        match &self.of {
            Of::Port(port) => port.context.name(),
            Of::Added(device) => device.name(),
        }
    }

    /// The port, if the system has the device.
    pub const fn port(&self) -> Option<Port> {
        match self.of {
            Of::Port(port) => Some(port),
            Of::Added(_) => None,
        }
    }
}

impl Own {
    /// The limits of connected endpoints there; `None` if the device has none.
    pub fn abilities(&self) -> Option<Abilities> {
        match &self.of {
            Of::Port(port) => msg_system::abilities(port.context, port.number).ok(),
            Of::Added(device) => device.connects()?.abilities().ok(),
        }
    }
}

impl Own {
    /// The port's unreliable datagrams; `None` if the device has none.
    pub fn datagrams(&self) -> Option<UdPort> {
        match &self.of {
            Of::Port(port) => ud_system::port(port.context, port.number, port.gid).ok(),
            Of::Added(device) => device.datagrams()?.port(self.ip).ok(),
        }
    }

    /// Whether its GID is at this index of the port's table. A device that was added has no table.
    pub fn is_at(&self, index: u8) -> bool {
        self.port().is_none_or(|port| port.is_at(index))
    }
}

/// The source of connections at an address: an added device that has it, or the system.
///
/// # Errors
/// The device's error.
pub fn channel_at(ip: IpAddr) -> ibv::Result<Arc<dyn Channel>> {
    let added = rc::added();
    let mut found = added.iter().filter(|device| device.addresses().contains(&ip));
    match found.find_map(|device| device.connects()) {
        Some(device) => device.channel(),
        None => msg_system::channel(),
    }
}

impl Port {
    /// Whether its GID is at this index of the port's table.
    pub fn is_at(&self, index: u8) -> bool {
        self.context.gid_at(self.number, index).is_ok_and(|gid| gid == Some(self.gid))
    }
}

/// All addresses of ports that are up, followed by those that were added.
///
/// # Errors
/// An error that says what this host lacks, if there is no address.
pub fn addresses() -> Result<Vec<Own>> {
    let mut added = Vec::new();
    for device in rc::added() {
        let of = |ip| Own { ip, of: Of::Added(Arc::clone(&device)) };
        added.extend(device.addresses().into_iter().map(of));
    }
    match of_the_system() {
        Ok(all) => Ok([all, added].concat()),
        Err(why) if added.is_empty() => Err(why),
        Err(_) => Ok(added),
    }
}

fn of_the_system() -> Result<Vec<Own>> {
    let (mut all, mut down) = (Vec::new(), Vec::new());
    let (name, iface) = (settings::DEVICE_NAME.get(), settings::IFACE.get());
    // An empty list takes all interfaces, also those of other network namespaces, which have no name here.
    let takes_interface = |interface: Option<String>| settings::takes(&iface, &interface.unwrap_or_default());
    for &context in ibv::contexts().map_err(|error| failed(&error))? {
        if !settings::takes(&name, &context.name()) {
            continue;
        }
        let ports = match context.query() {
            Ok(info) => info.ports,
            // This device was removed; the others still work.
            Err(error) => {
                down.push(format!("{}, which does not respond ({error})", context.name()));
                continue;
            }
        };
        for port in 1..=ports {
            let active = context.port(port).is_ok_and(|port| port.active);
            for gid in context.gids(port).unwrap_or_default() {
                let local = matches!(gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
                // A link-local address is ambiguous without its interface.
                if local || !takes_interface(context.interface(port, gid)) {
                    continue;
                }
                match active {
                    true => {
                        let of = Of::Port(Port { context, number: port, gid });
                        all.push(Own { ip: gid.ip(), of });
                    }
                    false => {
                        down.push(format!("{} of {}, whose port {port} is down", gid.ip(), context.name()))
                    }
                }
            }
        }
    }
    if !down.is_empty() && all.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose port is up",
            down.join("; "),
            "bring the interface up (`ip link set`), or check the cable (`rdma link`)",
        ));
    }
    if all.is_empty() {
        return Err(Error::wanted(
            Errno::ENODEV,
            "RDMA devices",
            "one whose interface has an IP address",
            format!(
                "none that FI_VERBS_DEVICE_NAME={name:?} and FI_VERBS_IFACE={iface:?} allow (empty: all)"
            ),
            "give the interface an address (`ip addr add`), or set FI_VERBS_DEVICE_NAME or FI_VERBS_IFACE",
        ));
    }
    Ok(all)
}

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
    let chosen = if info.ep_attr.ep_type == EpType::Dgram { settings::gid_index()? } else { None };
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

/// See the module.
pub struct Domain {
    /// The device that registers memory, and that reliable datagram endpoints open queue pairs on.
    pub device: Arc<dyn Device>,
    /// The address of endpoints that are not given one.
    pub ip: IpAddr,
    /// Whether peers may get keys of the device. If the application chooses keys, it may reuse one for another
    /// registration while peers still have the device's key of the first: then the owner checks every access.
    pub native: bool,
    /// Whether keys are the device's, for peers that pass them to their devices: in a domain for endpoints of
    /// `FI_EP_MSG`.
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

    /// Counts a withdrawn registration: endpoints tell the peers that know its key.
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
        let all = addresses()?;
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
