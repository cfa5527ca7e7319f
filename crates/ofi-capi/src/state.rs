//! The state behind handles of fabrics, domains and endpoints, which the modules of all other objects use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ofi_api::{AddrFormat, Address, Call, Domain, Endpoint, Fabric, Info, OpFlags, Result, Version};

use crate::abi::{Abi, fid_domain, fid_fabric};
use crate::directory;
use crate::info::opened::Open;
use crate::object::{self, Hold, Users};
use crate::profile::Profiles;

/// The state of a fabric.
pub(crate) struct FabricBody {
    pub fabric: Arc<dyn Fabric>,
    /// The interface version of the program, as far as known.
    pub api: Version,
    /// The program's name for the provider, and this library's. They differ in a plug-in.
    pub names: (String, String),
    pub users: Users,
    /// Makes getinfo report the fabric as open.
    pub told: Mutex<Option<Open>>,
}

impl FabricBody {
    /// Translates the provider's name in a program's info.
    pub(crate) fn translate(&self, info: &mut Info) {
        if info.fabric_attr.prov_name == self.names.0 {
            info.fabric_attr.prov_name.clone_from(&self.names.1);
        }
    }

    /// The version of the program's structures.
    pub(crate) fn abi(&self) -> Abi {
        Abi::of(self.api)
    }
}

/// The fabric behind a handle, for opening objects in it.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn fabric<'a>(fabric: *mut fid_fabric) -> Result<&'a FabricBody> {
    // SAFETY: the same promise.
    unsafe { object::body(fabric) }
}

/// The state of a domain.
pub(crate) struct DomainBody {
    pub domain: Arc<dyn Domain>,
    pub info: Info,
    /// The version of the program's structures.
    pub abi: Abi,
    pub users: Users,
    /// Its profiles.
    pub profiles: Profiles,
    /// Makes getinfo report the domain as open.
    pub told: Mutex<Option<Open>>,
    /// Keeps the event queue that is bound to the domain open.
    pub eq: Mutex<Option<Hold>>,
    /// Keeps the fabric open.
    _fabric: Hold,
}

impl DomainBody {
    /// The state of a new domain. `fabric` keeps the fabric open.
    pub(crate) fn new(domain: Arc<dyn Domain>, info: Info, abi: Abi, fabric: Hold) -> Self {
        Self {
            domain,
            info,
            abi,
            users: Users::default(),
            profiles: Profiles::default(),
            told: Mutex::default(),
            eq: Mutex::default(),
            _fabric: fabric,
        }
    }
}

/// The domain behind a handle, for objects that are opened in it.
///
/// # Safety
/// The C caller's promise.
pub(crate) unsafe fn domain<'a>(domain: *mut fid_domain) -> Result<&'a DomainBody> {
    // SAFETY: the same promise.
    unsafe { object::body(domain) }
}

/// The number of ranks of each group, by the group's address, because C's calls do not pass it.
pub(crate) type Groups = Mutex<HashMap<u64, usize>>;

/// The flags of calls without a flags argument.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    pub flags: OpFlags,
    pub call: Call,
}

impl Defaults {
    /// The endpoint's own flags.
    const OWN: Self = Self { flags: OpFlags::empty(), call: Call::Plain };

    /// Different flags: those of an alias, or flags set later.
    pub(crate) const fn of(flags: OpFlags) -> Self {
        Self { flags, call: Call::Msg }
    }
}

/// The state of an endpoint.
pub(crate) struct EpBody {
    pub endpoint: Arc<dyn Endpoint>,
    pub tx: Defaults,
    pub rx: Defaults,
    pub addr_format: AddrFormat,
    /// The version of the program's structures.
    pub abi: Abi,
    /// The peer to connect to if the call names none.
    pub dest_addr: Option<Address>,
    /// The groups that the endpoint has joined.
    pub groups: Arc<Groups>,
    /// The profiles of this handle.
    pub profiles: Profiles,
    /// The flags that `FI_GETOPSFLAG` returns.
    pub op_flags: (OpFlags, OpFlags),
    /// Aliases, contexts, and endpoints that this one is bound to.
    pub users: Users,
    /// Keeps the domain, the queues and the vector open.
    pub holds: Mutex<Vec<Hold>>,
    pub entry: Mutex<Option<directory::Entry>>,
}

impl EpBody {
    /// The state of a new endpoint. `hold` keeps the parent open.
    pub(crate) fn new(
        endpoint: Arc<dyn Endpoint>,
        addr_format: AddrFormat,
        op_flags: (OpFlags, OpFlags),
        hold: Hold,
    ) -> Self {
        Self {
            endpoint,
            tx: Defaults::OWN,
            rx: Defaults::OWN,
            addr_format,
            abi: Abi::NEWEST,
            dest_addr: None,
            groups: Arc::default(),
            profiles: Profiles::default(),
            op_flags,
            users: Users::default(),
            holds: Mutex::new(vec![hold]),
            entry: Mutex::default(),
        }
    }
}
