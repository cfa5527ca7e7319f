//! A domain: a device, chosen by an address that it has.

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
    /// Whose it is.
    pub of: Of,
}

/// A device.
#[derive(Clone)]
pub enum Of {
    /// One of the system, for endpoints of every type.
    Port(Port),
    /// One that was added ([`rc::add`]).
    Added(Arc<dyn Device>),
}

/// A port of one of the system's devices, at one of its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The device.
    pub context: Context,
    /// The port.
    pub number: u8,
    /// The GID that the address has there.
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

    /// Where it is, if the system has it.
    pub const fn port(&self) -> Option<Port> {
        match self.of {
            Of::Port(port) => Some(port),
            Of::Added(_) => None,
        }
    }
}

impl Own {
    /// What connected endpoints may have there: `None` if the device has none.
    pub fn abilities(&self) -> Option<Abilities> {
        match &self.of {
            Of::Port(port) => msg_system::abilities(port.context, port.number).ok(),
            Of::Added(device) => device.connects()?.abilities().ok(),
        }
    }
}

impl Own {
    /// The port that unreliable datagrams have there: `None` if the device has none.
    pub fn datagrams(&self) -> Option<UdPort> {
        match &self.of {
            Of::Port(port) => ud_system::port(port.context, port.number, port.gid).ok(),
            Of::Added(device) => device.datagrams()?.port(self.ip).ok(),
        }
    }

    /// Whether its GID is at that place of the port's table. A device that was added has no table.
    pub fn is_at(&self, index: u8) -> bool {
        self.port().is_none_or(|port| port.is_at(index))
    }
}

/// Where connections at an address come from: an added device that has it, or the system.
///
/// # Errors
/// What the device answers.
pub fn channel_at(ip: IpAddr) -> ibv::Result<Arc<dyn Channel>> {
    let added = rc::added();
    let mut found = added.iter().filter(|device| device.addresses().contains(&ip));
    match found.find_map(|device| device.connects()) {
        Some(device) => device.channel(),
        None => msg_system::channel(),
    }
}

impl Port {
    /// Whether its GID is at that place of the port's table.
    pub fn is_at(&self, index: u8) -> bool {
        self.context.gid_at(self.number, index).is_ok_and(|gid| gid == Some(self.gid))
    }
}

/// All of them, of ports that are up, and behind them those that were added.
///
/// # Errors
/// If there is none, what is missing on this host.
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
            "bring the interface up (`ip link set`), or look for the cable (`rdma link`)",
        ));
    }
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
    Ok(all)
}

/// The IP address in an address of either format.
fn ip(address: &Address) -> Result<IpAddr> {
    match address.format() {
        AddrFormat::IbUd => Ok(Gid(Name::parse(address)?.gid).ip()),
        _ => Ok(address::socket(address)?.ip()),
    }
}

/// One of the system's devices, for a domain at `ip`.
fn open_system(port: Port, ip: IpAddr, info: &Info) -> Result<System> {
    let pd = ProtectionDomain::new(port.context).map_err(|error| failed(&error))?;
    let chosen = if info.ep_attr.ep_type == EpType::Dgram { settings::gid_index()? } else { None };
    let gid_index = match chosen {
        Some(index) if port.is_at(index) => index,
        // An offer for datagrams has the GID of that place.
        Some(index) => {
            let (wanted, advice) =
                ("the address whose GID is at FI_VERBS_GID_IDX", "use an info that getinfo answered");
            let found = format!("{ip}, whose GID is not at {index}");
            return Err(Error::wanted(Errno::ENODEV, "fi_info.src_addr", wanted, found, advice));
        }
        None => port.context.gid_index(port.number, port.gid).map_err(|error| failed(&error))?,
    };
    Ok(System::new(pd, ip, rc::Port { number: port.number, gid: port.gid, gid_index }))
}

/// See the module.
pub struct Domain {
    /// What its memory is registered with, and whose queue pairs endpoints of reliable datagrams have.
    pub device: Arc<dyn Device>,
    /// The address that endpoints have unless they are named.
    pub ip: IpAddr,
    /// Whether peers may be given keys of the device. A key that the application chooses may mean another registration
    /// later, while peers still have the device's key of the first: then every access is looked at by the owner.
    pub native: bool,
    /// Whether keys are the device's, for peers that hand them to their devices: a domain for endpoints of `FI_EP_MSG`.
    pub keyed: bool,
    /// Whether the device changes numbers in registered memory for peers, of such a domain.
    pub atomics: bool,
    /// Registrations of local memory.
    pub cache: Arc<Cache<Box<dyn Region>>>,
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
            unsafe { self.device.register(start, len, Access::Local) }
        })
    }

    /// What connected endpoints have.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device has none.
    pub fn connects(&self) -> Result<&dyn Connects> {
        let advice = "this device has no connected endpoints (FI_EP_MSG)";
        self.device.connects().ok_or_else(|| Error::with(Errno::ENOSYS, advice))
    }

    /// What endpoints of unreliable datagrams have.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device has none.
    pub fn datagrams(&self) -> Result<&dyn Datagrams> {
        let advice = "this device has no unreliable datagrams";
        self.device.datagrams().ok_or_else(|| Error::with(Errno::ENOSYS, advice))
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
