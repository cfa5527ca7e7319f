//! Fabrics and domains: what endpoints, queues, vectors and registrations are opened in.

mod events;
mod limits;
mod part;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ofi_api::{
    AddressVector, Allocation, AtomicAttr, AtomicKind, AvAttr, BindFlags, CntrAttr, CollectiveAttr,
    CollectiveKind, CompletionQueue, Counter, CqAttr, Datatype, Domain, Endpoint, EpType, EqAttr, Errno,
    Error, EventQueue, Fabric, FiOp, Info, MemoryRegion, MrAttr, MrMode, PassiveEndpoint, Placement, PollSet,
    Result, RxAttr, Serialization, SharedTransmit, Statistic, Threshold, TxAttr, WaitAttr, WaitSet, Work,
    WorkId,
};

use crate::atomic::Executor;
use crate::auth;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::endpoint::{Ep, Sep, SharedTx, Srx};
use crate::eq::EqCore;
use crate::fork::Born;
use crate::keys::{Addressing, RegionTable};
use crate::mr::Mr;
use crate::opened;
use crate::progress::Progress;
use crate::roster::Roster;
use crate::transport::Transport;
use crate::trigger::{Works, deed};
use crate::wait::{Polls, Waits};

pub use events::DomainEvents;
pub use part::{DomainPart, RegionData, Regions, Registered};

/// A domain, shared by everything that is open in it.
pub struct DomainCore<T: Transport> {
    id: DomainId,
    /// As it was opened.
    pub info: Info,
    /// What is registered.
    pub regions: Arc<Regions>,
    /// What the transport has of it.
    pub part: Arc<DomainPart<T>>,
    /// Who drives it.
    pub progress: Progress,
    /// The process that it was opened in.
    pub born: Born,
    /// What waits for counters, and is due.
    pub works: Arc<Works>,
    /// What is enabled in it.
    pub roster: Roster,
    /// Its event queue.
    pub events: DomainEvents,
}

/// Tells domains of a process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainId(u64);

impl DomainId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl<T: Transport> DomainCore<T> {
    /// Which domain this is.
    pub fn id(&self) -> DomainId {
        self.id
    }
}

struct DomainHandle<T: Transport>(Arc<DomainCore<T>>);

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

    fn open_domain(&self, info: &Info, _serialization: Serialization) -> Result<Arc<dyn Domain>> {
        if info.fabric_attr.prov_name != self.provider {
            return Err(foreign_info("a domain", &self.provider, &info.fabric_attr.prov_name));
        }
        auth::check_domain::<T>(info)?;
        let mr_mode = info.domain_attr.mr_mode;
        let virtual_addresses = mr_mode.expanded().contains(MrMode::VIRT_ADDR);
        let addressing = if virtual_addresses { Addressing::Virtual } else { Addressing::Offset };
        let automatic = info.domain_attr.progress == ofi_api::Progress::Auto;
        let regions = Arc::new(RegionTable::new(addressing, info.domain_attr.mr_iov_limit.max(1)));
        let part = DomainPart::open(info, Registered::whole(Arc::clone(&regions)))?;
        let domain: Arc<dyn Domain> = Arc::new(DomainHandle(Arc::new(DomainCore::<T> {
            id: DomainId::next(),
            info: info.clone(),
            regions,
            part,
            progress: if automatic { Progress::automatic()? } else { Progress::manual() },
            born: Born::here(),
            works: Arc::new(Works::empty()),
            roster: Roster::default(),
            events: DomainEvents::default(),
        })));
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
        auth::check_domain::<T>(info)?;
        crate::cm::open_passive::<T>(&auth::resolve::<T>(info, &info.domain_attr)?)
    }
}

impl<T: Transport> DomainHandle<T> {
    /// Checks that an endpoint's info is one of this domain's.
    fn own(&self, info: &Info) -> Result<()> {
        if info.ep_attr.ep_type == EpType::Unspec || info.domain_attr.name != self.0.info.domain_attr.name {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the info that an endpoint is opened with",
                format!("FI_EP_MSG, FI_EP_DGRAM or FI_EP_RDM of domain {:?}", self.0.info.domain_attr.name),
                format!("{} of domain {:?}", info.ep_attr.ep_type, info.domain_attr.name),
                "use an info that getinfo answered for this domain",
            ));
        }
        limits::check(info)
    }
}

impl<T: Transport> Domain for DomainHandle<T> {
    fn name(&self) -> &str {
        &self.0.info.domain_attr.name
    }

    fn statistics(&self) -> Vec<Statistic> {
        if !self.0.born.is_here() {
            return Vec::new();
        }
        let stat = |name, value: usize, help| Statistic { name, value: value as u64, help };
        let members = self.0.roster.counted();
        let open = [
            stat("endpoints", members.len(), "endpoints and shared receive contexts that are open"),
            stat("memory_regions", self.0.regions.len(), "registrations that are open"),
        ];
        Statistic::add_up(open.into_iter().chain(members.iter().flat_map(|member| member.counts())))
    }

    fn bind_eq(&self, eq: &Arc<dyn EventQueue>, flags: BindFlags) -> Result<()> {
        self.0.born.check()?;
        self.0.events.bind(EqCore::of(eq)?, flags)
    }

    fn open_endpoint(&self, info: &Info) -> Result<Arc<dyn Endpoint>> {
        self.0.born.check()?;
        self.own(info)?;
        Ok(Ep::open(&self.0, info)?)
    }

    fn open_scalable(&self, info: &Info) -> Result<Arc<dyn Endpoint>> {
        self.0.born.check()?;
        self.own(info)?;
        Ok(Sep::open(&self.0, info)?)
    }

    fn open_shared_transmit(&self, attr: &TxAttr) -> Result<Arc<dyn SharedTransmit>> {
        self.0.born.check()?;
        limits::check_tx(attr)?;
        Ok(Arc::new(SharedTx::new(&self.0, attr)))
    }

    fn open_shared_receive(&self, attr: &RxAttr) -> Result<Arc<dyn Endpoint>> {
        self.0.born.check()?;
        limits::check_rx(attr)?;
        Ok(Srx::open(&self.0, attr)?)
    }

    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn CompletionQueue>> {
        self.0.born.check()?;
        Ok(Cq::open(attr, self.0.id)?)
    }

    fn open_counter(&self, attr: &CntrAttr) -> Result<Arc<dyn Counter>> {
        self.0.born.check()?;
        Ok(Cntr::open(attr, self.0.id, &self.0.works)?)
    }

    fn open_poll_set(&self) -> Result<Arc<dyn PollSet>> {
        self.0.born.check()?;
        Ok(Arc::new(Polls::default()))
    }

    fn queue_work(&self, when: &Threshold<'_>, work: &Work<'_>) -> Result<WorkId> {
        self.0.born.check()?;
        let deed = deed(work, self.0.id, |endpoint, op| Ep::<T>::target_of(&self.0, endpoint, op))?;
        // Whoever waits for what the work counts must move on what the work waits for, whichever endpoint that is.
        if let Work::Post { completion: Some(told), .. }
        | Work::SetCounter(told, _)
        | Work::AddCounter(told, _) = work
        {
            self.0.roster.watch(&Cntr::of(told, self.0.id)?)?;
        }
        self.0.works.queue(when, self.0.id, deed)
    }

    fn cancel_work(&self, id: WorkId) -> Result<()> {
        self.0.born.check()?;
        self.0.works.cancel(id)
    }

    fn flush_work(&self, counter: Option<&Arc<dyn Counter>>) -> Result<usize> {
        self.0.born.check()?;
        let counter = counter.map(|counter| Cntr::of(counter, self.0.id)).transpose()?;
        Ok(self.0.works.flush(counter.as_deref()))
    }

    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn AddressVector>> {
        self.0.born.check()?;
        Ok(Av::open::<T>(attr, &self.0.info, self.0.id)?)
    }

    fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn MemoryRegion>> {
        self.0.born.check()?;
        Ok(Mr::open(&self.0, attr)?)
    }

    fn alloc(&self, len: usize, placement: Placement) -> Result<Allocation> {
        self.0.born.check()?;
        if len == 0 {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the length of library memory",
                "at least one byte",
                "0",
                "ask for as many bytes as you need",
            ));
        }
        T::alloc(&self.0.part, len, placement)
    }

    fn query_collective(&self, kind: CollectiveKind, op: FiOp, datatype: Datatype) -> Result<CollectiveAttr> {
        self.0.born.check()?;
        if T::note_size() == 0 {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_query_collective",
                "a provider with FI_COLLECTIVE",
                self.0.info.fabric_attr.prov_name.clone(),
                "do it with messages",
            ));
        }
        crate::endpoint::collective::attributes(kind, op, datatype)
    }

    fn query_atomic(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<AtomicAttr> {
        self.0.born.check()?;
        let size = Executor::find(kind, op, datatype)?.size();
        match T::atomic_size() / size {
            0 => Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_query_atomic",
                "a provider with FI_ATOMIC",
                self.0.info.fabric_attr.prov_name.clone(),
                "do it with messages",
            )),
            count => Ok(AtomicAttr { count, size }),
        }
    }
}
