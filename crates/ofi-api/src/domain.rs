//! Domains and fabrics: the objects that endpoints, queues and registrations are opened in.

use std::sync::Arc;

use crate::{
    AddressVector, Allocation, AtomicAttr, AtomicKind, AvAttr, BindFlags, CntrAttr, CollectiveAttr,
    CollectiveKind, CompletionQueue, Counter, CqAttr, Datatype, Endpoint, EqAttr, Errno, Error, EventQueue,
    FiOp, Handle, Info, MemoryRegion, MrAttr, PassiveEndpoint, Placement, PollSet, Result, RxAttr,
    SharedTransmit, Statistic, Threshold, TxAttr, WaitAttr, WaitSet, Work, WorkId,
};

/// A fabric (`fid_fabric`): a network, whose members can reach each other.
pub trait Fabric: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Opens a domain of it. Every call may come from any thread at any time, whatever level the info promises: widely
    /// used programs break the promise, and locks that one thread has to itself cost it next to nothing.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` is not this provider's.
    fn open_domain(&self, info: &Info) -> Result<Arc<dyn Domain>>;

    /// Opens an event queue, for objects of any of its domains.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a wait object that it cannot have.
    fn open_eq(&self, attr: &EqAttr) -> Result<Arc<dyn EventQueue>>;

    /// Opens a wait set.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_NONE` and `FI_WAIT_SET`; an error of creating the descriptor.
    fn open_wait_set(&self, attr: &WaitAttr) -> Result<Arc<dyn WaitSet>>;

    /// Opens a passive endpoint, which connections are asked of.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` is not this provider's, or not of `FI_EP_MSG`.
    fn open_passive(&self, info: &Info) -> Result<Arc<dyn PassiveEndpoint>>;
}

/// A domain (`fid_domain`): an adapter, and the objects opened on it.
pub trait Domain: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Opens an endpoint.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` does not belong to this domain; an error of opening its resources.
    fn open_endpoint(&self, info: &Info) -> Result<Arc<dyn Endpoint>>;

    /// Binds an event queue for the domain's endpoints that have none of their own (`fi_domain_bind`), and with
    /// [`BindFlags::REG_MR`] for its registrations: `FI_MR_COMPLETE` follows each that succeeds. A failing registration
    /// is not an event; the call returns its error.
    ///
    /// # Errors
    /// `FI_EBUSY` if it has one; `FI_EBADFLAGS` for other flags; `FI_EINVAL` for a queue of another library's making.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>, flags: BindFlags) -> Result<()>;

    /// Opens a scalable endpoint (`fi_scalable_ep`): one address for the transmit and receive contexts that are opened
    /// from it ([`Endpoint::transmit_context`], [`Endpoint::receive_context`]), as many as [`crate::EpAttr`] says. It
    /// is bound to an address vector and enabled, and has no data transfers of its own. With `FI_NAMED_RX_CTX` a
    /// message goes to the receive context that its address names. A message that names none, or any message without
    /// the capability, goes to a context that can receive it, always the same for one sender.
    ///
    /// # Errors
    /// As [`Domain::open_endpoint`]; `FI_ENOSYS` if the domain has no scalable endpoints.
    fn open_scalable(&self, info: &Info) -> Result<Arc<dyn Endpoint>> {
        let _ = info;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a transmit context that several endpoints share (`fi_stx_context`). Their attributes must be within its
    /// own. The endpoints share the room for operations in flight, [`TxAttr::size`]; everything else is each endpoint's
    /// own.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the domain has no shared contexts.
    fn open_shared_transmit(&self, attr: &TxAttr) -> Result<Arc<dyn SharedTransmit>> {
        let _ = attr;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a receive context that several endpoints share (`fi_srx_context`), whose attributes theirs are a part of:
    /// an endpoint that receives, and nothing else. A message of any endpoint that is bound to it takes the first
    /// receive that matches, and ends on that endpoint's queue. A receive that is cancelled ends on the queue of the
    /// endpoint that was bound first.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the domain has no shared contexts.
    fn open_shared_receive(&self, attr: &RxAttr) -> Result<Arc<dyn Endpoint>> {
        let _ = attr;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a completion queue.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a wait object that it cannot have.
    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn CompletionQueue>>;

    /// Opens a counter, at zero.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a wait object that it cannot have.
    fn open_counter(&self, attr: &CntrAttr) -> Result<Arc<dyn Counter>>;

    /// Statistics of the domain: the numbers of open endpoints and regions, and the sums over the endpoints and shared
    /// receive contexts. Closed objects do not count.
    fn statistics(&self) -> Vec<Statistic>;

    /// Opens a poll set.
    ///
    /// # Errors
    /// None in software.
    fn open_poll_set(&self) -> Result<Arc<dyn PollSet>>;

    /// Queues deferred work (`FI_QUEUE_WORK`) until the counter's value and failures together reach the threshold; at
    /// once if they have.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an endpoint without `FI_TRIGGER`; `FI_ENOSYS` for a multi-receive or a search; `FI_EAGAIN`
    /// if too much waits for this counter; `FI_EDOMAIN`, `FI_EINVAL` for objects of others.
    fn queue_work(&self, when: &Threshold<'_>, work: &Work<'_>) -> Result<WorkId>;

    /// Cancels work that has not started (`FI_CANCEL_WORK`). It has no completion.
    ///
    /// # Errors
    /// `FI_ENOENT` if it has started.
    fn cancel_work(&self, id: WorkId) -> Result<()>;

    /// Cancels all work that waits for `counter`, or all that has not started (`FI_FLUSH_WORK`). Returns how much it
    /// was.
    ///
    /// # Errors
    /// As `queue_work` for the counter.
    fn flush_work(&self, counter: Option<&Arc<dyn Counter>>) -> Result<usize>;

    /// Opens an address vector.
    ///
    /// # Errors
    /// `FI_ENOSYS` for attributes that it cannot have.
    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn AddressVector>>;

    /// Registers memory.
    ///
    /// # Errors
    /// `FI_ENOKEY` if the requested key is taken; `FI_EINVAL` for a length of zero or pieces over the limit.
    fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn MemoryRegion>>;

    /// Allocates memory that this domain's transport can share with peers without copying.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EINVAL` for a length of zero.
    fn alloc(&self, len: usize, placement: Placement) -> Result<Allocation>;

    /// The limits of one collective (`fi_query_collective`) on endpoints that have `FI_COLLECTIVE`. `op` matters if the
    /// collective combines values.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a combination that the domain does not have, with the reason.
    fn query_collective(&self, kind: CollectiveKind, op: FiOp, datatype: Datatype) -> Result<CollectiveAttr>;

    /// The limits of one atomic call (`fi_query_atomic`) on endpoints that have `FI_ATOMIC`.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for a combination that the domain does not have, with the reason.
    fn query_atomic(&self, kind: AtomicKind, op: FiOp, datatype: Datatype) -> Result<AtomicAttr>;
}

impl Handle {
    /// A handle to an open fabric, which does not keep it open.
    pub fn of_fabric(fabric: &Arc<dyn Fabric>) -> Handle {
        Handle::of_open(fabric)
    }

    /// A handle to an open domain, which does not keep it open.
    pub fn of_domain(domain: &Arc<dyn Domain>) -> Handle {
        Handle::of_open(domain)
    }

    /// The fabric, if it is one and open.
    pub fn fabric(&self) -> Option<Arc<dyn Fabric>> {
        self.opened()
    }

    /// The domain, if it is one and open.
    pub fn domain(&self) -> Option<Arc<dyn Domain>> {
        self.opened()
    }
}
