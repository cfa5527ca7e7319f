//! A transport's view of a domain: its own part, and the registrations, which all transports of a domain share.

use std::any::Any;
use std::sync::Arc;

use ofi_api::{Info, Result};

use crate::keys::{Region, RegionTable};
use crate::transport::Transport;

/// The data that transports keep with a region: the [`Transport::Region`] of the domain's one transport, or the pair
/// that [`crate::composite`] makes of two.
pub type RegionData = Box<dyn Any + Send + Sync>;

/// The registrations of a domain, whatever its transports: one key is valid over all of them.
pub type Regions = RegionTable<RegionData>;

/// Finds one transport's data in the data that transports keep with a region.
type Finder<R> = dyn Fn(&RegionData) -> Option<&R> + Send + Sync;

/// The registrations of a domain, as one of its transports sees them.
pub struct Registered<R> {
    /// All of them.
    pub table: Arc<Regions>,
    find: Arc<Finder<R>>,
}

impl<R: Send + Sync + 'static> Registered<R> {
    /// For a transport that is alone in the domain.
    pub(crate) fn whole(table: Arc<Regions>) -> Self {
        Self { table, find: Arc::new(|data| data.downcast_ref()) }
    }

    /// For a transport whose data is part of another's.
    pub fn part<P>(&self, of: impl Fn(&R) -> Option<&P> + Send + Sync + 'static) -> Registered<P> {
        let find = Arc::clone(&self.find);
        Registered { table: Arc::clone(&self.table), find: Arc::new(move |data| find(data).and_then(&of)) }
    }
}

/// A domain, as one of its transports sees it.
pub struct DomainPart<T: Transport> {
    /// The registrations.
    pub regions: Arc<Regions>,
    /// The transport's own.
    pub transport: T::Domain,
    find: Arc<Finder<T::Region>>,
}

impl<T: Transport> DomainPart<T> {
    /// Opens a transport's part of a domain.
    ///
    /// # Errors
    /// Those of [`Transport::open_domain`].
    pub fn open(info: &Info, registered: Registered<T::Region>) -> Result<Arc<Self>> {
        let transport = T::open_domain(info, &registered)?;
        Ok(Arc::new(Self { regions: registered.table, transport, find: registered.find }))
    }

    /// The transport's data of a region. Every region of the domain has it.
    pub fn data<'a>(&self, region: &'a Region<RegionData>) -> Option<&'a T::Region> {
        (self.find)(region.data())
    }
}
