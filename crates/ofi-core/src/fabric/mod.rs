//! The application's handles of fabrics and domains, through which everything else is opened.

mod domain;
mod limits;

use std::sync::Arc;

use ofi_api::{
    Domain, EqAttr, Errno, Error, EventQueue, Fabric, Info, PassiveEndpoint, Result, WaitAttr, WaitSet,
};

use self::domain::DomainHandle;
use crate::domain::DomainCore;
use crate::eq::EqCore;
use crate::transport::Transport;
use crate::wait::Waits;
use crate::{auth, cm, opened};

/// The core's fabric.
pub struct FabricCore<T: Transport> {
    name: String,
    provider: String,
    transport: std::marker::PhantomData<fn() -> T>,
}

impl<T: Transport> FabricCore<T> {
    /// The fabric that `info` names.
    pub fn open(info: &Info) -> Arc<dyn Fabric> {
        let fabric: Arc<dyn Fabric> = Arc::new(Self {
            name: info.fabric_attr.name.clone(),
            provider: info.fabric_attr.prov_name.clone(),
            transport: std::marker::PhantomData,
        });
        let (prov, name) = (info.fabric_attr.prov_name.as_str(), info.fabric_attr.name.as_str());
        tracing::info!(target: "ofi::core::fabric", prov, name, "opened a fabric");
        opened::fabric(&info.fabric_attr.prov_name, &fabric);
        fabric
    }
}

fn foreign_info(what: &str, wanted: &str, found: &str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        format!("the info that {what} is opened with"),
        format!("one of provider {wanted}"),
        format!("one of {found:?}"),
        "open the fabric and what belongs to it with the same info",
    )
}

impl<T: Transport> Fabric for FabricCore<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn open_domain(&self, info: &Info) -> Result<Arc<dyn Domain>> {
        if info.fabric_attr.prov_name != self.provider {
            return Err(foreign_info("a domain", &self.provider, &info.fabric_attr.prov_name));
        }
        auth::check_domain(info, T::AUTH_KEY_SIZE)?;
        let domain: Arc<dyn Domain> = Arc::new(DomainHandle(DomainCore::<T>::open(info)?));
        opened::domain(&self.provider, &domain);
        Ok(domain)
    }

    fn open_wait_set(&self, attr: &WaitAttr) -> Result<Arc<dyn WaitSet>> {
        Ok(Waits::open(attr)?)
    }

    fn open_eq(&self, attr: &EqAttr) -> Result<Arc<dyn EventQueue>> {
        Ok(EqCore::open(attr)?)
    }

    fn open_passive(&self, info: &Info) -> Result<Arc<dyn PassiveEndpoint>> {
        if info.fabric_attr.prov_name != self.provider {
            return Err(foreign_info("a passive endpoint", &self.provider, &info.fabric_attr.prov_name));
        }
        auth::check_domain(info, T::AUTH_KEY_SIZE)?;
        cm::open_passive::<T>(&auth::resolve(info, &info.domain_attr, T::AUTH_KEY_SIZE)?)
    }
}
