//! Registrations, as applications hold them.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ofi_api::{
    AV_AUTH_KEY, BindFlags, Counter, Desc, Dmabuf, Endpoint, Errno, Error, Fid, HmemIface, KEY_NOTAVAIL,
    MemoryRegion, MrAccess, MrAttr, MrMode, Piece, Result,
};

use crate::auth::{self, AuthKey};
use crate::cntr::Cntr;
use crate::domain::DomainCore;
use crate::endpoint::Ep;
use crate::hmem::{OpaqueMemory, RegisteredDevice};
use crate::keys::{Closing, KeyChoice, Region, Registration};
use crate::transport::{RegionData, Transport};

/// The maximum time that a closing registration waits for running accesses.
const BOUND: Duration = Duration::from_secs(1);

/// Rights of peers.
const REMOTE: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// The state of a registration.
enum Life {
    /// Its key opens it.
    Open,
    /// The key is gone; accesses that began before may still run.
    Closing(Closing<RegionData>),
    /// The memory is no longer accessed.
    Closed,
}

/// The core's registration.
pub struct Mr<T: Transport> {
    domain: Arc<DomainCore<T>>,
    fid: Fid,
    desc: Desc,
    base: u64,
    len: usize,
    life: Mutex<Life>,
    /// Its dma-buf, while it is open, if no driver copies that memory.
    opaque: Mutex<Option<OpaqueMemory>>,
}

impl<T: Transport> Mr<T> {
    /// Registers memory.
    ///
    /// # Errors
    /// See [`ofi_api::Domain::register`].
    pub(crate) fn open(domain: &Arc<DomainCore<T>>, attr: &MrAttr<'_>) -> Result<Arc<Self>> {
        let chosen = domain.info.domain_attr.mr_mode.expanded().contains(MrMode::PROV_KEY);
        let auth = auth_of(domain, attr)?;
        if attr.dmabuf().is_some() && !T::DMABUF {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "a dma-buf to register (FI_MR_DMABUF)",
                "a provider whose device registers it: efa, or verbs with connected endpoints (FI_EP_MSG)",
                format!("provider {}", domain.info.fabric_attr.prov_name),
                "map the dma-buf and register that memory by its address, or copy through memory of the host",
            ));
        }
        let hmem = device_of(domain, attr)?;
        let transport = &domain.part.transport;
        let exports = T::EXPORTS && attr.dmabuf().is_none();
        let exported = hmem.as_ref().filter(|_| exports && T::exports(transport, attr));
        let exported = exported.and_then(|device| device.export(attr));
        let dmabuf = exported.as_ref().map(|(fd, offset)| Dmabuf { fd: fd.as_fd(), offset: *offset });
        let data = match hmem.as_ref().filter(|_| attr.dmabuf().is_none()) {
            Some(device) => T::register_device(transport, attr, device, dmabuf)?,
            None => T::register(transport, attr)?,
        };
        let key = match T::key(&data) {
            _ if !chosen => KeyChoice::Requested,
            Some(key) => KeyChoice::Device(key),
            None => KeyChoice::Random,
        };
        let data: RegionData = Box::new(data);
        // The processor never accesses a dma-buf for a peer: only the device's own registration has those rights.
        let by_device = attr.restricted(MrAccess::all().difference(REMOTE));
        let attr = if attr.dmabuf().is_some() { &by_device } else { attr };
        let mut registration = Registration::new(attr, key, data);
        (registration.auth, registration.hmem) = (auth, hmem);
        let opaque = match (&domain.devices, attr.dmabuf(), &registration.hmem) {
            (Some(devices), Some(_), None) if attr.iface != HmemIface::System => {
                devices.register_opaque(attr)
            }
            _ => None,
        };
        registration.only = attr.peer.map(T::normalize).transpose()?;
        registration.is_enabled = !attr.disabled && !binds_endpoints(domain);
        let desc = domain.regions.register(registration)?;
        let granted = domain
            .regions
            .region(desc)
            .map_err(|violation| Error::with(Errno::EINVAL, violation.to_string()))?;
        let region = granted.region();
        let (base, len) = (region.base_address(), region.len());
        drop(granted);
        let fid = Fid::next();
        let (life, opaque) = (Mutex::new(Life::Open), Mutex::new(opaque));
        tracing::debug!(
            target: "ofi::core::mr",
            prov = domain.info.fabric_attr.prov_name,
            len, access = ?attr.access(), by_device = matches!(key, KeyChoice::Device(_)),
            "registered memory"
        );
        let region = Arc::new(Self { domain: Arc::clone(domain), fid, desc, base, len, life, opaque });
        domain.events.registered(fid, attr.context);
        Ok(region)
    }

    /// Makes the transport stop accesses that bypass this end.
    fn withdraw(&self, region: &Region<RegionData>) -> Result<()> {
        let part = &self.domain.part;
        part.data(region).map_or(Ok(()), |data| T::deregister(&part.transport, data))
    }
}

/// The key of a registration: its own, or its domain's (fi_mr(3), "auth_key").
fn auth_of<T: Transport>(domain: &DomainCore<T>, attr: &MrAttr<'_>) -> Result<AuthKey> {
    auth::check("fi_mr_attr.auth_key", attr.auth_key.len(), attr.auth_key, T::AUTH_KEY_SIZE)?;
    match attr.auth_key {
        [] if domain.info.domain_attr.auth_key_size == AV_AUTH_KEY => Err(Error::wanted(
            Errno::EINVAL,
            "a registration in a domain opened with FI_AV_AUTH_KEY",
            "the authorization key of the endpoints that it is for (fi_mr_regattr)",
            "none",
            "give the key, or in C a struct fi_mr_auth_key with the address vector",
        )),
        [] => Ok(AuthKey::new(&domain.info.domain_attr.auth_key)),
        own => Ok(AuthKey::new(own)),
    }
}

/// The device that owns the memory, if the processor must not access it and its driver copies. Dma-bufs of any
/// interface are accepted, for the transport's device.
fn device_of<T: Transport>(domain: &DomainCore<T>, attr: &MrAttr<'_>) -> Result<Option<RegisteredDevice>> {
    if attr.iface == HmemIface::System {
        return Ok(None);
    }
    if attr.dmabuf().is_some() {
        let devices = domain.devices.as_ref().filter(|_| attr.iface == HmemIface::Cuda);
        return Ok(devices.and_then(|devices| devices.register(attr).ok()?));
    }
    let Some(devices) = &domain.devices else {
        return Err(Error::wanted(
            Errno::ENOSYS,
            "the interface of memory to register (fi_mr_attr.iface)",
            "FI_HMEM_SYSTEM: the domain was opened without FI_HMEM",
            attr.iface.to_string(),
            "ask getinfo for FI_HMEM with FI_MR_HMEM in mr_mode, or copy through memory of the host",
        ));
    };
    devices.register(attr)
}

fn binds_endpoints<T: Transport>(domain: &DomainCore<T>) -> bool {
    domain.info.domain_attr.mr_mode.contains(MrMode::ENDPOINT)
}

fn closed() -> Error {
    Error::wanted(Errno::EINVAL, "a registration", "an open one", "a closed one", "register the memory again")
}

impl<T: Transport> MemoryRegion for Mr<T> {
    fn fid(&self) -> Fid {
        self.fid
    }

    fn key(&self) -> u64 {
        if !self.domain.born.is_here() {
            return KEY_NOTAVAIL;
        }
        self.domain.regions.region(self.desc).map_or(KEY_NOTAVAIL, |granted| granted.region().key())
    }

    fn desc(&self) -> Desc {
        self.desc
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn len(&self) -> usize {
        self.len
    }

    fn bind_counter(&self, counter: &Arc<dyn Counter>, flags: BindFlags) -> Result<()> {
        self.domain.born.check()?;
        let counter = Cntr::of(counter, self.domain.id())?;
        let kinds = BindFlags::REMOTE_READ | BindFlags::REMOTE_WRITE;
        if flags.is_empty() || !kinds.contains(flags) {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "the flags of fi_mr_bind with a counter",
                "FI_REMOTE_WRITE, FI_REMOTE_READ or both",
                format!("{flags:?}"),
                "bind counters of local operations to the endpoint",
            ));
        }
        let granted = self.domain.regions.region(self.desc).map_err(|_| closed())?;
        if self.domain.part.data(granted.region()).is_some_and(|data| !T::counts(data)) {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_mr_bind with a counter",
                "a registration whose accesses its owner executes",
                "one that peers' devices access without the owner",
                "have the peer send a message, or write with remote CQ data",
            ));
        }
        self.domain.regions.bind(self.desc, &counter, flags)?;
        self.domain.registry.watch(&counter)?;
        self.withdraw(granted.region())
    }

    fn bind_endpoint(&self, endpoint: &Arc<dyn Endpoint>) -> Result<()> {
        self.domain.born.check()?;
        let granted = self.domain.regions.region(self.desc).map_err(|_| closed())?;
        if binds_endpoints(&self.domain) && granted.region().is_enabled() {
            return Err(Error::wanted(
                Errno::EOPBADSTATE,
                "fi_mr_bind",
                "a region before fi_mr_enable",
                "an enabled one",
                "bind first",
            ));
        }
        let any: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(endpoint) as _;
        match any.downcast::<Ep<T>>() {
            Ok(own) if own.is_of(&self.domain) => Ok(()),
            _ => Err(Error::wanted(
                Errno::EDOMAIN,
                "the endpoint of fi_mr_bind",
                "one of the region's domain",
                "another",
                "register the memory in the endpoint's domain",
            )),
        }
    }

    fn enable(&self) -> Result<()> {
        self.domain.born.check()?;
        self.domain.regions.enable(self.desc)
    }

    fn refresh(&self, pieces: &[Piece]) -> Result<()> {
        self.domain.born.check()?;
        let granted = self.domain.regions.region(self.desc).map_err(|_| closed())?;
        let inside = |part: &Piece, whole: &Piece| {
            part.addr >= whole.addr
                && part
                    .addr
                    .addr()
                    .checked_add(part.len)
                    .is_some_and(|end| end <= whole.addr.addr() + whole.len)
        };
        // Every access goes through the owner's page table, so it always reaches the currently mapped pages.
        match pieces.iter().find(|part| !granted.region().pieces().iter().any(|whole| inside(part, whole))) {
            None => Ok(()),
            Some(part) => Err(Error::wanted(
                Errno::EINVAL,
                "the memory of fi_mr_refresh",
                "memory of the region",
                format!("{} bytes at {:p}, which are not", part.len, part.addr),
                "register that memory on its own",
            )),
        }
    }

    fn close(&self) -> Result<()> {
        if !self.domain.born.is_here() {
            return Ok(()); // it belongs to the parent
        }
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let closing = match std::mem::replace(&mut *life, Life::Closed) {
            Life::Open => match self.domain.regions.close(self.desc) {
                Ok(closing) => closing,
                Err(error) => {
                    *life = Life::Open;
                    return Err(error);
                }
            },
            Life::Closing(closing) => closing,
            Life::Closed => return Ok(()),
        };
        drop(self.opaque.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (prov, len, in_use) =
            (self.domain.info.fabric_attr.prov_name.as_str(), self.len, closing.in_use());
        tracing::debug!(target: "ofi::core::mr", prov, len, in_use, "closes a registration");
        if let Err(error) = self.withdraw(closing.region()) {
            *life = Life::Closing(closing);
            return Err(error);
        }
        if closing.in_use() > 0 {
            self.domain.registry.give_back();
        }
        let Err(closing) = closing.wait(BOUND) else { return Ok(()) };
        *life = Life::Closing(closing);
        Err(Error::wanted(
            Errno::EBUSY,
            "fi_close of a registration",
            "all accesses to it to end within a second",
            "one that is still running",
            "keep the memory and close the registration again, or close the endpoint that runs it",
        ))
    }
}

impl<T: Transport> Drop for Mr<T> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(target: "ofi::core::mr", %error, "closing a registration");
        }
    }
}
