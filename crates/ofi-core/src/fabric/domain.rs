//! A domain's handle: opens objects in the domain, and answers queries about it.

use std::sync::Arc;

use ofi_api::{
    AddressVector, Allocation, AtomicAttr, AtomicKind, AvAttr, BindFlags, CntrAttr, CollectiveAttr,
    CollectiveKind, CompletionQueue, Counter, CqAttr, Datatype, Domain, Endpoint, EpType, Errno, Error,
    EventQueue, FiOp, Info, MemoryRegion, MrAttr, Placement, PollSet, Result, RxAttr, SharedTransmit,
    Statistic, Threshold, TxAttr, Work, WorkId,
};

use super::limits;
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cntr::trigger::deed;
use crate::cq::Cq;
use crate::domain::DomainCore;
use crate::endpoint::{self, Ep, Sep, SharedTx, Srx, collective};
use crate::eq::EqCore;
use crate::mr::Mr;
use crate::poll_set::Polls;
use crate::transport::Transport;

/// The application's handle of a domain.
pub struct DomainHandle<T: Transport>(pub Arc<DomainCore<T>>);

impl<T: Transport> DomainHandle<T> {
    /// Checks that an endpoint's info belongs to this domain.
    fn own(&self, info: &Info) -> Result<()> {
        if info.ep_attr.ep_type == EpType::Unspec || info.domain_attr.name != self.0.info.domain_attr.name {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the info that an endpoint is opened with",
                format!("FI_EP_MSG, FI_EP_DGRAM or FI_EP_RDM of domain {:?}", self.0.info.domain_attr.name),
                format!("{} of domain {:?}", info.ep_attr.ep_type, info.domain_attr.name),
                "use an info that getinfo returned for this domain",
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
        let members = self.0.registry.counted();
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
        Ok(Cq::open(attr, self.0.id(), T::error_text(&self.0.part.transport))?)
    }

    fn open_counter(&self, attr: &CntrAttr) -> Result<Arc<dyn Counter>> {
        self.0.born.check()?;
        Ok(Cntr::open(attr, self.0.id(), &self.0.works)?)
    }

    fn open_poll_set(&self) -> Result<Arc<dyn PollSet>> {
        self.0.born.check()?;
        Ok(Arc::new(Polls::default()))
    }

    fn queue_work(&self, when: &Threshold<'_>, work: &Work<'_>) -> Result<WorkId> {
        self.0.born.check()?;
        let deed = deed(work, self.0.id(), |endpoint, op| Ep::<T>::target_of(&self.0, endpoint, op))?;
        // A thread that waits for the work's counter must drive whatever the work waits for, at any endpoint.
        if let Work::Post { completion: Some(told), .. }
        | Work::SetCounter(told, _)
        | Work::AddCounter(told, _) = work
        {
            self.0.registry.watch(&Cntr::of(told, self.0.id())?)?;
        }
        self.0.works.queue(when, self.0.id(), deed)
    }

    fn cancel_work(&self, id: WorkId) -> Result<()> {
        self.0.born.check()?;
        self.0.works.cancel(id)
    }

    fn flush_work(&self, counter: Option<&Arc<dyn Counter>>) -> Result<usize> {
        self.0.born.check()?;
        let counter = counter.map(|counter| Cntr::of(counter, self.0.id())).transpose()?;
        Ok(self.0.works.flush(counter.as_deref()))
    }

    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn AddressVector>> {
        self.0.born.check()?;
        Ok(Av::open::<T>(attr, &self.0.info, self.0.id())?)
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
        collective::attributes(kind, op, datatype)
    }

    fn query_atomic(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<AtomicAttr> {
        self.0.born.check()?;
        let ep = self.0.info.ep_attr.ep_type;
        let size = endpoint::find_atomic::<T>(ep, kind, op, datatype)?.size();
        match T::atomic_size(ep) / size {
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
