//! Domains and fabrics: the objects that endpoints, queues and registrations are opened in.

use std::sync::Arc;

use crate::{
    AddressVector, Allocation, AtomicAttr, AtomicKind, AvAttr, BindFlags, CntrAttr, CollectiveAttr,
    CollectiveKind, CompletionQueue, Counter, CqAttr, Datatype, Endpoint, EqAttr, Errno, Error, EventQueue,
    FiOp, Handle, Info, MemoryRegion, MrAttr, PassiveEndpoint, Placement, PollSet, Result, RxAttr,
    SharedTransmit, Statistic, Threshold, TxAttr, WaitAttr, WaitSet, Work, WorkId,
};

/// A fabric (`fid_fabric`): a network, all members of which can reach each other.
pub trait Fabric: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Opens a domain of the fabric. Its calls may come from any thread at any time, whatever threading level `info`
    /// promises: widely used programs break that promise, and an uncontended lock costs next to nothing.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` is not from this provider.
    fn open_domain(&self, info: &Info) -> Result<Arc<dyn Domain>>;

    /// Opens an event queue for objects of any domain of the fabric.
    ///
    /// # Errors
    /// `FI_ENOSYS` for an unsupported wait object.
    fn open_eq(&self, attr: &EqAttr) -> Result<Arc<dyn EventQueue>>;

    /// Opens a wait set.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_NONE` and `FI_WAIT_SET`; the system's error if the descriptor cannot be created.
    fn open_wait_set(&self, attr: &WaitAttr) -> Result<Arc<dyn WaitSet>>;

    /// Opens a passive endpoint, which listens for connection requests.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` is not from this provider, or not of type `FI_EP_MSG`.
    fn open_passive(&self, info: &Info) -> Result<Arc<dyn PassiveEndpoint>>;
}

/// A domain (`fid_domain`): an adapter, and the objects opened on it.
pub trait Domain: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Opens an endpoint.
    ///
    /// # Errors
    /// `FI_EINVAL` if `info` does not belong to this domain; the system's or device's error if a resource is missing.
    fn open_endpoint(&self, info: &Info) -> Result<Arc<dyn Endpoint>>;

    /// Binds the event queue of the domain's endpoints that have none of their own (`fi_domain_bind`). With
    /// [`BindFlags::REG_MR`] it also serves the domain's registrations: `FI_MR_COMPLETE` follows each successful one. A
    /// failed registration is not an event; the call returns its error.
    ///
    /// # Errors
    /// `FI_EBUSY` if a queue is already bound; `FI_EBADFLAGS` for other flags; `FI_EINVAL` for a queue of another
    /// library.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>, flags: BindFlags) -> Result<()>;

    /// Opens a scalable endpoint (`fi_scalable_ep`): one address shared by several transmit and receive contexts, as
    /// many as [`crate::EpAttr`] says, which are opened from it ([`Endpoint::transmit_context`],
    /// [`Endpoint::receive_context`]). It is bound to an address vector and enabled, and transfers no data itself. With
    /// `FI_NAMED_RX_CTX`, a message goes to the receive context that its address names. A message that names none, or
    /// any message without the capability, goes to a context that can receive it, always the same one for each sender.
    ///
    /// # Errors
    /// As [`Domain::open_endpoint`]; `FI_ENOSYS` if the domain has no scalable endpoints.
    fn open_scalable(&self, info: &Info) -> Result<Arc<dyn Endpoint>> {
        let _ = info;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a transmit context that several endpoints share (`fi_stx_context`). The attributes of each endpoint must
    /// be within those of the context. The endpoints share only the limit on operations in flight, [`TxAttr::size`].
    ///
    /// # Errors
    /// `FI_ENOSYS` if the domain has no shared contexts.
    fn open_shared_transmit(&self, attr: &TxAttr) -> Result<Arc<dyn SharedTransmit>> {
        let _ = attr;
        Err(Error::new(Errno::ENOSYS))
    }

    /// Opens a receive context that several endpoints share (`fi_srx_context`): an endpoint that can only receive. The
    /// attributes of each endpoint must be within those of the context. A message to any endpoint bound to it takes the
    /// first matching receive, and completes on that endpoint's queue. A cancelled receive completes on the queue of
    /// the endpoint that was bound first.
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
    /// `FI_ENOSYS` for an unsupported wait object.
    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn CompletionQueue>>;

    /// Opens a counter, at zero.
    ///
    /// # Errors
    /// `FI_ENOSYS` for an unsupported wait object.
    fn open_counter(&self, attr: &CntrAttr) -> Result<Arc<dyn Counter>>;

    /// Statistics of the domain: the numbers of open endpoints and regions, and sums over the open endpoints and shared
    /// receive contexts.
    fn statistics(&self) -> Vec<Statistic>;

    /// Opens a poll set.
    ///
    /// # Errors
    /// None in software.
    fn open_poll_set(&self) -> Result<Arc<dyn PollSet>>;

    /// Queues deferred work (`FI_QUEUE_WORK`) until the sum of the counter's value and failures reaches the threshold.
    /// It starts at once if the sum already has.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an endpoint without `FI_TRIGGER`; `FI_ENOSYS` for a multi-receive or a search; `FI_EAGAIN`
    /// if too many requests wait for this counter; `FI_EDOMAIN` for objects of another domain, `FI_EINVAL` for objects
    /// of another library.
    fn queue_work(&self, when: &Threshold<'_>, work: &Work<'_>) -> Result<WorkId>;

    /// Cancels work that has not started (`FI_CANCEL_WORK`). Cancelled work has no completion.
    ///
    /// # Errors
    /// `FI_ENOENT` if it has started.
    fn cancel_work(&self, id: WorkId) -> Result<()>;

    /// Cancels all work that waits for `counter`, or, with `None`, all work that has not started (`FI_FLUSH_WORK`).
    /// Returns the number of cancelled requests.
    ///
    /// # Errors
    /// For `counter`, those of `queue_work`.
    fn flush_work(&self, counter: Option<&Arc<dyn Counter>>) -> Result<usize>;

    /// Opens an address vector.
    ///
    /// # Errors
    /// `FI_ENOSYS` for unsupported attributes.
    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn AddressVector>>;

    /// Registers memory.
    ///
    /// # Errors
    /// `FI_ENOKEY` if the requested key is taken; `FI_EINVAL` for a length of zero or too many pieces.
    fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn MemoryRegion>>;

    /// Allocates memory that this domain's transport can share with peers, so that transfers need not copy.
    ///
    /// # Errors
    /// `FI_ENOMEM`, `FI_EINVAL` for a length of zero.
    fn alloc(&self, len: usize, placement: Placement) -> Result<Allocation>;

    /// The limits of one collective (`fi_query_collective`) on endpoints that have `FI_COLLECTIVE`. `op` is ignored for
    /// kinds that combine no values.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an unsupported combination, with the reason.
    fn query_collective(&self, kind: CollectiveKind, op: FiOp, datatype: Datatype) -> Result<CollectiveAttr>;

    /// The limits of one atomic call (`fi_query_atomic`) on endpoints that have `FI_ATOMIC`.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an unsupported combination, with the reason.
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

    /// The fabric, if the handle names one that is still open.
    pub fn fabric(&self) -> Option<Arc<dyn Fabric>> {
        self.opened()
    }

    /// The domain, if the handle names one that is still open.
    pub fn domain(&self) -> Option<Arc<dyn Domain>> {
        self.opened()
    }
}
