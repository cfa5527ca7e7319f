//! A domain, as the objects inside it see it. Applications hold a handle to it ([`crate::fabric`]).

mod events;

use std::sync::Arc;

use ofi_api::{Caps, Info, MrMode, Result};

use crate::cntr::trigger::Works;
use crate::domain_id::DomainId;
use crate::endpoint_registry::EndpointRegistry;
use crate::fork::Born;
use crate::hmem::Devices;
use crate::keys::{Addressing, RegionTable};
use crate::progress::Progress;
use crate::transport::Transport;

pub use crate::transport::{DomainPart, RegionData, Regions, Registered};
pub use events::DomainEvents;

/// A domain, shared by everything that is open in it.
pub struct DomainCore<T: Transport> {
    id: DomainId,
    /// As it was opened.
    pub info: Info,
    /// The registrations.
    pub regions: Arc<Regions>,
    /// The device memory that is registered, if the domain was opened with `FI_HMEM`.
    pub devices: Option<Arc<Devices>>,
    /// The transport's part.
    pub part: Arc<DomainPart<T>>,
    /// Its progress model.
    pub progress: Progress,
    /// The process that it was opened in.
    pub born: Born,
    /// Requests that wait for counters, and due ones.
    pub works: Arc<Works>,
    /// The enabled endpoints.
    pub registry: EndpointRegistry,
    /// Its event queue.
    pub events: DomainEvents,
}

impl<T: Transport> Drop for DomainCore<T> {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The device's objects are shared with the parent: closing them here would take them from it.
            std::mem::forget(Arc::clone(&self.part));
        }
    }
}

impl<T: Transport> DomainCore<T> {
    /// Opens a domain.
    ///
    /// # Errors
    /// Those of [`Transport::open_domain`], and of starting a thread for automatic progress.
    pub fn open(info: &Info) -> Result<Arc<Self>> {
        let mr_mode = info.domain_attr.mr_mode;
        let virtual_addresses = mr_mode.expanded().contains(MrMode::VIRT_ADDR);
        let addressing = if virtual_addresses { Addressing::Virtual } else { Addressing::Offset };
        let automatic = info.domain_attr.progress == ofi_api::Progress::Auto;
        let regions = Arc::new(RegionTable::new(addressing, info.domain_attr.mr_iov_limit.max(1)));
        let part = DomainPart::open(info, Registered::whole(Arc::clone(&regions)))?;
        let attr = &info.domain_attr;
        tracing::info!(
            target: "ofi::core::domain",
            prov = info.fabric_attr.prov_name,
            name = attr.name,
            threading = %attr.threading,
            progress = %attr.progress,
            mr_mode = %attr.mr_mode,
            "opened a domain"
        );
        Ok(Arc::new(Self {
            id: DomainId::next(),
            info: info.clone(),
            regions,
            devices: info.caps.contains(Caps::HMEM).then(Arc::default),
            part,
            progress: if automatic { Progress::automatic()? } else { Progress::manual() },
            born: Born::here(),
            works: Arc::new(Works::empty()),
            registry: EndpointRegistry::default(),
            events: DomainEvents::default(),
        }))
    }

    /// Which domain this is.
    pub fn id(&self) -> DomainId {
        self.id
    }
}
