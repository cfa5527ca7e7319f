//! Registrations, as applications hold them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ofi_api::{Desc, Errno, Error, MemoryRegion, MrAttr, MrMode, Result};

use crate::domain::DomainCore;
use crate::keys::{KeyChoice, Registration};
use crate::transport::Transport;

/// How long a closing registration waits for accesses under way.
const BOUND: Duration = Duration::from_secs(1);

/// The core's registration.
pub struct Mr<T: Transport> {
    domain: Arc<DomainCore<T>>,
    desc: Desc,
    key: u64,
    base: u64,
    len: usize,
    closed: AtomicBool,
}

impl<T: Transport> Mr<T> {
    /// Registers memory.
    ///
    /// # Errors
    /// See [`ofi_api::Domain::register`].
    pub(crate) fn open(domain: &Arc<DomainCore<T>>, attr: &MrAttr<'_>) -> Result<Arc<Self>> {
        let chosen = domain.info.domain_attr.mr_mode.contains(MrMode::PROV_KEY);
        let key = if chosen { KeyChoice::Random } else { KeyChoice::Requested };
        let data = T::register(&domain.transport, attr)?;
        let desc = domain.regions.register(Registration::new(attr, key, data))?;
        let granted = domain
            .regions
            .region(desc)
            .map_err(|violation| Error::with(Errno::EINVAL, violation.to_string()))?;
        let region = granted.region();
        let (key, base, len) = (region.key(), region.base_address(), region.len());
        drop(granted);
        Ok(Arc::new(Self {
            domain: Arc::clone(domain),
            desc,
            key,
            base,
            len,
            closed: AtomicBool::new(false),
        }))
    }
}

impl<T: Transport> MemoryRegion for Mr<T> {
    fn key(&self) -> u64 {
        self.key
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

    fn close(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let closing = self.domain.regions.close(self.desc)?;
        self.closed.store(true, Ordering::Release);
        let stopped = T::deregister(&self.domain, closing.region().data());
        match closing.wait(BOUND) {
            Ok(_) => stopped,
            Err(_) => Err(Error::wanted(
                Errno::EBUSY,
                "fi_close of a registration",
                "all accesses to it to end within a second",
                "one that is still running",
                "keep the memory mapped until the endpoint that runs it is closed",
            )),
        }
    }
}

impl<T: Transport> Drop for Mr<T> {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(target: "ofi::core::mr", %error, "closing a registration");
        }
    }
}
