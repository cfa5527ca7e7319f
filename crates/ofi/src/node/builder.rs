//! Opening a node.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ofi_api::{
    Address, AvAttr, BindFlags, Caps, CompletionQueue, CqAttr, CqFormat, Endpoint, EqAttr, Errno, Error,
    EventQueue, GetinfoFlags, Hints, Info, MrMode, Result, SHARED_CONTEXT, WaitObj,
};
use ofi_core::lock::Lock;

use super::Node;
use super::collective::Joins;
use super::senders::Senders;
use crate::domain::Domain;
use crate::opened::OpenedDomain;
use crate::operations::{Operations, Table};
use crate::shared::{Shared, SharedReceive, SharedTransmit, Vector};
use crate::threading::{Exclusive, Level, Safe};

/// Options for opening a [`Node`]. Created by [`Node::builder`], [`Node::builder_exclusive`] or [`Domain::node`].
///
/// ```
/// use ofi::{Caps, Hints, Node, WaitObj};
/// let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::TAGGED);
/// let node = Node::builder().hints(hints).wait_obj(WaitObj::Fd).open()?;
/// assert!(node.wait_fd().is_some());
/// # Ok::<(), ofi::Error>(())
/// ```
#[must_use]
pub struct NodeBuilder<L: Level> {
    domain: Option<Domain<L>>,
    hints: Hints,
    node: Option<String>,
    service: Option<String>,
    flags: GetinfoFlags,
    name: Option<Address>,
    wait_obj: WaitObj,
    cq_size: usize,
    av_count: usize,
    rx_ctx_bits: u32,
    senders: Option<usize>,
    shared_receive: Option<Arc<Shared>>,
    shared_transmit: Option<Arc<dyn ofi_api::SharedTransmit>>,
    seat: Option<Seat>,
    _level: PhantomData<fn() -> L>,
}

/// The parts that a node of a hub shares with the hub's other nodes: the queue and the table of operations.
pub(crate) struct Seat {
    pub cq: Arc<dyn CompletionQueue>,
    pub operations: Arc<Lock<Operations>>,
    pub owner: u32,
}

impl<L: Level> fmt::Debug for NodeBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("NodeBuilder");
        debug.field("domain", &self.domain).field("hints", &self.hints).field("name", &self.name);
        debug.finish_non_exhaustive()
    }
}

impl<L: Level> NodeBuilder<L> {
    pub(super) fn new() -> Self {
        Self {
            domain: None,
            hints: Hints::new(),
            node: None,
            service: None,
            flags: GetinfoFlags::empty(),
            name: None,
            wait_obj: WaitObj::Unspec,
            cq_size: 0,
            av_count: 0,
            rx_ctx_bits: 0,
            senders: None,
            shared_receive: None,
            shared_transmit: None,
            seat: None,
            _level: PhantomData,
        }
    }

    pub(crate) fn in_domain(domain: Domain<L>) -> Self {
        Self { domain: Some(domain), ..Self::new() }
    }

    /// Requirements on the domain. They have no effect on a node that is opened in an existing domain.
    pub fn hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// The address to listen on, as names: `FI_SOURCE` of `fi_getinfo`. Like [`NodeBuilder::hints`], it has no effect
    /// in an existing domain.
    pub fn listen(self, node: &str, service: &str) -> Self {
        let flags = self.flags | GetinfoFlags::SOURCE;
        Self { node: Some(node.into()), service: Some(service.into()), flags, ..self }
    }

    /// Sets the endpoint's address (`fi_setname`). By default the transport chooses.
    #[doc(alias = "fi_setname")]
    pub fn name(self, name: Address) -> Self {
        Self { name: Some(name), ..self }
    }

    /// How threads wait in [`Node::wait`]. [`WaitObj::Unspec`], the default, sleeps. [`WaitObj::Fd`] also sleeps, and
    /// makes [`Node::wait_fd`] available. [`WaitObj::Yield`] polls and yields, which saves the time of a wake-up but
    /// keeps a core busy.
    pub fn wait_obj(self, wait_obj: WaitObj) -> Self {
        Self { wait_obj, ..self }
    }

    /// Whether waits busy-poll.
    pub(crate) fn busy_polls(&self) -> bool {
        self.wait_obj == WaitObj::Yield
    }

    /// The number of completions to make room for. Only a hint: queues do not overrun.
    pub fn cq_size(self, cq_size: usize) -> Self {
        Self { cq_size, ..self }
    }

    /// The number of expected peers.
    pub fn av_count(self, av_count: usize) -> Self {
        Self { av_count, ..self }
    }

    /// Sets how many bits of a peer's number select one of its receive contexts: see [`Node::rx_addr`]. A peer with `n`
    /// contexts needs log2(`n`) bits, rounded up.
    pub fn rx_ctx_bits(self, rx_ctx_bits: u32) -> Self {
        Self { rx_ctx_bits, ..self }
    }

    /// Inserts unknown senders when their first message or remote CQ data arrives, so that a server can reply to them:
    /// [`Completion::source`](crate::Completion::source) is then set for them too, even for a message that failed
    /// because it did not fit into its receive. At most `limit` senders are in the address vector in this way at a
    /// time; [`Node::remove`] makes room. Beyond the limit, the completion fails with `FI_EADDRNOTAVAIL` (`FI_ETRUNC`
    /// if the message did not fit), and its [`err_data`](crate::OpError::err_data) is the sender's address.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ofi::{Hints, Node};
    ///
    /// let hints = Hints::new().provider("shm");
    /// let server = Node::builder().hints(hints.clone()).insert_senders(100).open()?;
    /// let client = Node::open(&hints)?;
    /// server.recv(vec![0; 64])?;
    /// client.inject(b"question", client.insert(&server.name()?)?)?;
    /// let question = server.wait(Duration::from_secs(5))?.expect("within five seconds").into_result()?;
    /// server.inject(b"answer", question.source.expect("inserted"))?;
    /// # Ok::<(), ofi::Error>(())
    /// ```
    pub fn insert_senders(self, limit: usize) -> Self {
        Self { senders: Some(limit), ..self }
    }

    /// Receives messages with the receives of `context`, in its domain, instead of the node's own.
    pub fn shared_receive(self, context: &SharedReceive<L>) -> Self {
        let domain = self.domain.or_else(|| Some(context.domain().clone()));
        Self { domain, shared_receive: Some(Arc::clone(context.shared())), ..self }
    }

    /// Uses the transmit context `context`, in its domain, instead of the node's own.
    pub fn shared_transmit(self, context: &SharedTransmit<L>) -> Self {
        let domain = self.domain.or_else(|| Some(context.domain().clone()));
        Self { domain, shared_transmit: Some(Arc::clone(context.raw())), ..self }
    }

    /// Opens the node, ready for operations.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo); `FI_EADDRINUSE` for a name that is taken; errors of opening.
    pub fn open(self) -> Result<Node<L>> {
        let node = self.assemble(None, None)?;
        node.endpoint.enable()?;
        Ok(node)
    }

    /// Opens a connected endpoint that reports to `eq`. `info` is that of a connection request, if the endpoint accepts
    /// one. The call that connects enables the endpoint.
    pub(crate) fn open_connected(self, info: Option<&Info>, eq: &Arc<dyn EventQueue>) -> Result<Node<L>> {
        self.assemble(info, Some(eq))
    }

    /// Opens the node with a shared queue and table. Only the owner of the queue reads it.
    pub(crate) fn seat(self, seat: Seat) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// The domain of the new node.
    fn domain(&self, hints: &Hints) -> Result<Domain<L>> {
        match &self.domain {
            Some(domain) => Ok(domain.clone()),
            None => {
                let extra = if self.senders.is_some() { Senders::NEEDS } else { Caps::empty() };
                Domain::open_as(hints, extra, (self.node.as_deref(), self.service.as_deref()), self.flags)
            }
        }
    }

    fn open_cq(&self, opened: &OpenedDomain) -> Result<Arc<dyn CompletionQueue>> {
        if let Some(seat) = &self.seat {
            return Ok(Arc::clone(&seat.cq));
        }
        let attr =
            CqAttr { size: self.cq_size, format: CqFormat::Tagged, wait_obj: self.wait_obj, wait_set: None };
        opened.raw.open_cq(&attr)
    }

    fn open_av(&self, opened: &OpenedDomain) -> Result<Vector> {
        let attr = AvAttr {
            av_type: opened.info.domain_attr.av_type,
            count: self.av_count,
            rx_ctx_bits: self.rx_ctx_bits,
            ..AvAttr::default()
        };
        Ok(Vector { raw: opened.raw.open_av(&attr)?, rx_ctx_bits: self.rx_ctx_bits })
    }

    fn assemble(self, info: Option<&Info>, eq: Option<&Arc<dyn EventQueue>>) -> Result<Node<L>> {
        let domain = self.domain(&self.hints)?;
        let opened = domain.opened();
        let mut info = info.unwrap_or(&opened.info).clone();
        check_modes(&info)?;
        if self.shared_receive.is_some() {
            info.ep_attr.rx_ctx_cnt = SHARED_CONTEXT;
        }
        if self.shared_transmit.is_some() {
            info.ep_attr.tx_ctx_cnt = SHARED_CONTEXT;
        }
        let endpoint = opened.raw.open_endpoint(&info)?;
        // First, so that a context's vector belongs to its domain.
        if let Some(context) = &self.shared_receive {
            endpoint.bind_shared_receive(context.endpoint())?;
        }
        if let Some(context) = &self.shared_transmit {
            endpoint.bind_shared_transmit(context)?;
        }
        let cq = self.open_cq(opened)?;
        let vector = match &self.shared_receive {
            Some(context) => context.vector(|| self.open_av(opened))?,
            None => self.open_av(opened)?,
        };
        endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV)?;
        match eq {
            Some(eq) => endpoint.bind_eq(eq)?,
            None => endpoint.bind_av(&vector.raw)?,
        }
        if let Some(name) = &self.name {
            endpoint.set_name(name)?;
        }
        let joins = if eq.is_none() && info.caps.contains(Caps::COLLECTIVE) {
            let queue = opened.fabric.open_eq(&EqAttr::default())?;
            endpoint.bind_eq(&queue)?;
            Some(Joins::new(queue))
        } else {
            None
        };
        let shared = self.shared_receive.as_ref().map(|context| context.member(&cq));
        Ok(Node { joins, shared, ..self.node(domain, (endpoint, None), cq, vector)? })
    }

    /// Builds a node from an endpoint and, if different, the object that receives are posted to.
    fn node(
        &self,
        domain: Domain<L>,
        (endpoint, receiver): (Arc<dyn Endpoint>, Option<Arc<dyn Endpoint>>),
        cq: Arc<dyn CompletionQueue>,
        vector: Vector,
    ) -> Result<Node<L>> {
        let senders = self.senders.map(|limit| Senders::new(limit, &domain.opened().info)).transpose()?;
        Ok(Node {
            shared: None,
            endpoint,
            receiver,
            cq,
            av: vector.raw,
            senders,
            rx_ctx_bits: vector.rx_ctx_bits,
            joins: None,
            reading: Lock::new(()),
            operations: self
                .seat
                .as_ref()
                .map_or_else(Table::new, |seat| Table::shared(&seat.operations, seat.owner)),
            domain,
            yields: self.wait_obj == WaitObj::Yield,
            signaled: AtomicBool::new(false),
            _level: PhantomData,
        })
    }
}

impl Node<Safe> {
    /// Opens the first endpoint that getinfo offers for `hints`, in a domain of its own. [`Node::wait`] sleeps.
    /// [`Domain::open`] lists the hints that may be left open.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening.
    pub fn open(hints: &Hints) -> Result<Self> {
        Self::builder().hints(hints.clone()).open()
    }

    /// Returns a builder with more choices.
    pub fn builder() -> NodeBuilder<Safe> {
        NodeBuilder::new()
    }
}

impl Node<Exclusive> {
    /// As [`Node::open`], for one thread at a time: see [`threading::Exclusive`](crate::threading::Exclusive).
    ///
    /// # Errors
    /// As `open`.
    pub fn open_exclusive(hints: &Hints) -> Result<Self> {
        Self::builder_exclusive().hints(hints.clone()).open()
    }

    /// As [`Node::builder`], for [`Node::open_exclusive`].
    pub fn builder_exclusive() -> NodeBuilder<Exclusive> {
        NodeBuilder::new()
    }
}

impl<L: Level> Domain<L> {
    /// Returns a builder for a node in this domain.
    pub fn node(&self) -> NodeBuilder<L> {
        NodeBuilder::in_domain(self.clone())
    }
}

/// Scalable endpoints.
impl<L: Level> NodeBuilder<L> {
    /// Opens a scalable endpoint (`fi_scalable_ep`) with `count` contexts, each as a node: transmit context `i`,
    /// receive context `i`, and a queue of its own. All nodes have one address, so that a peer sees one source, and
    /// share one address vector: a peer that one node inserts has the same index on all.
    ///
    /// If the hints have `FI_NAMED_RX_CTX`, a message goes to the context that its sender names ([`Node::rx_addr`]);
    /// otherwise all messages of one sender go to the same context. There are no collectives. The endpoint closes with
    /// its last context.
    ///
    /// # Errors
    /// As [`NodeBuilder::open`]; `FI_ENODATA` or `FI_EINVAL` for more contexts than the provider has, and for shared
    /// ones.
    #[doc(alias = "fi_scalable_ep")]
    pub fn open_contexts(self, count: usize) -> Result<Vec<Node<L>>> {
        let shares = self.shared_receive.is_some() || self.shared_transmit.is_some();
        if shares || count == 0 {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the contexts of a scalable endpoint",
                "one or more of its own",
                if shares { "a shared one" } else { "none" },
                "share contexts between nodes that are opened one by one",
            ));
        }
        let domain = self.domain(&self.hints.clone().tx_ctx_cnt(count).rx_ctx_cnt(count))?;
        let opened = domain.opened();
        let mut info = opened.info.clone();
        check_modes(&info)?;
        (info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt) = (count, count);
        for caps in [&mut info.caps, &mut info.tx_attr.caps, &mut info.rx_attr.caps] {
            *caps -= Caps::COLLECTIVE;
        }
        let hub = opened.raw.open_scalable(&info)?;
        let vector = self.open_av(opened)?;
        hub.bind_av(&vector.raw)?;
        if let Some(name) = &self.name {
            hub.set_name(name)?;
        }
        let nodes = (0..count).map(|index| {
            let (tx, _) = hub.transmit_context(index, None)?;
            let (rx, _) = hub.receive_context(index, None)?;
            let cq = self.open_cq(opened)?;
            tx.bind_cq(&cq, BindFlags::TRANSMIT)?;
            rx.bind_cq(&cq, BindFlags::RECV)?;
            tx.enable()?;
            rx.enable()?;
            self.node(domain.clone(), (tx, Some(rx)), cq, vector.clone())
        });
        let nodes = nodes.collect::<Result<_>>()?;
        hub.enable()?;
        Ok(nodes)
    }
}

/// Refuses an info with modes that this layer does not support, which the hints should not have offered.
fn check_modes(info: &Info) -> Result<()> {
    let served = MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY | MrMode::LOCAL | MrMode::BASIC;
    if info.mode.is_empty() && served.contains(info.domain_attr.mr_mode) {
        return Ok(());
    }
    Err(Error::wanted(
        Errno::ENOSYS,
        "fi_info.mode and domain_attr.mr_mode",
        format!("no mode, and of mr_mode {served}"),
        format!("[ {} ] and [ {} ]", info.mode, info.domain_attr.mr_mode),
        "leave the others out of the hints, or use the raw layer",
    ))
}
