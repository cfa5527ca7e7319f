//! Opening a node.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ofi_api::{
    Address, AvAttr, BindFlags, Caps, CqAttr, CqFormat, EqAttr, Errno, Error, EventQueue, GetinfoFlags,
    Hints, Info, MrMode, Result, WaitObj,
};
use ofi_core::lock::PolicyLock;

use super::Node;
use super::collective::Joins;
use crate::asynchronous::AsyncNode;
use crate::domain::Domain;
use crate::operations::Operations;
use crate::threading::Level;

/// How to open a [`Node`]. Begins with [`Node::builder`], [`Node::builder_completion`] or [`Domain::node`].
///
/// ```
/// use ofi::{Caps, Hints, Node, WaitObj};
/// let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::TAGGED);
/// let node = Node::builder().hints(hints).wait_obj(WaitObj::Fd).open()?;
/// assert!(node.wait_fd().is_some());
/// # Ok::<(), ofi::Error>(())
/// ```
#[derive(Debug)]
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
    _level: PhantomData<fn() -> L>,
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
            wait_obj: WaitObj::Yield,
            cq_size: 0,
            av_count: 0,
            _level: PhantomData,
        }
    }

    pub(crate) fn in_domain(domain: Domain<L>) -> Self {
        Self { domain: Some(domain), ..Self::new() }
    }

    /// What the domain must be like. Without effect on a node that is opened in a domain that is there.
    pub fn hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// The address to listen on, as names: `FI_SOURCE` of `fi_getinfo`. Without effect as [`NodeBuilder::hints`] says.
    pub fn listen(self, node: &str, service: &str) -> Self {
        let flags = self.flags | GetinfoFlags::SOURCE;
        Self { node: Some(node.into()), service: Some(service.into()), flags, ..self }
    }

    /// The address to have (`fi_setname`). Otherwise the transport chooses.
    pub fn name(self, name: Address) -> Self {
        Self { name: Some(name), ..self }
    }

    /// How threads wait in [`Node::wait`]: [`WaitObj::Yield`] polls and yields, and is what one gets unasked;
    /// [`WaitObj::Unspec`] sleeps; [`WaitObj::Fd`] sleeps, and has a [`Node::wait_fd`].
    pub fn wait_obj(self, wait_obj: WaitObj) -> Self {
        Self { wait_obj, ..self }
    }

    /// How many completions to make room for. A hint: queues do not overrun.
    pub fn cq_size(self, cq_size: usize) -> Self {
        Self { cq_size, ..self }
    }

    /// How many peers to expect.
    pub fn av_count(self, av_count: usize) -> Self {
        Self { av_count, ..self }
    }

    /// Opens it with operations that are futures. The wait object is [`WaitObj::Fd`], whatever was chosen.
    ///
    /// # Errors
    /// As [`NodeBuilder::open`].
    pub fn open_async(self) -> Result<AsyncNode<L>> {
        self.wait_obj(WaitObj::Fd).open().map(AsyncNode::new)
    }

    /// Opens it, ready for operations.
    ///
    /// # Errors
    /// Those of [`getinfo`](crate::getinfo); `FI_EADDRINUSE` for a name that another has; what opening answers.
    pub fn open(self) -> Result<Node<L>> {
        let node = self.assemble(None, None)?;
        node.endpoint.enable()?;
        Ok(node)
    }

    /// Opens a connected endpoint that reports to `eq`, for a connection request if `info` is one's, and leaves
    /// enabling to the call that connects.
    pub(crate) fn open_connected(self, info: Option<&Info>, eq: &Arc<dyn EventQueue>) -> Result<Node<L>> {
        self.assemble(info, Some(eq))
    }

    fn assemble(self, info: Option<&Info>, eq: Option<&Arc<dyn EventQueue>>) -> Result<Node<L>> {
        let domain = match self.domain {
            Some(domain) => domain,
            None => Domain::open_as(&self.hints, self.node.as_deref(), self.service.as_deref(), self.flags)?,
        };
        let opened = domain.opened();
        let info = info.unwrap_or(&opened.info);
        // A mode that this layer does not serve must not have been asked for.
        let served = MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY | MrMode::LOCAL | MrMode::BASIC;
        if !info.mode.is_empty() || !served.contains(info.domain_attr.mr_mode) {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "fi_info.mode and domain_attr.mr_mode",
                format!("no mode, and of mr_mode {served}"),
                format!("[ {} ] and [ {} ]", info.mode, info.domain_attr.mr_mode),
                "leave the others out of the hints, or use the raw layer",
            ));
        }
        let endpoint = opened.raw.open_endpoint(info)?;
        let attr =
            CqAttr { size: self.cq_size, format: CqFormat::Tagged, wait_obj: self.wait_obj, wait_set: None };
        let cq = opened.raw.open_cq(&attr)?;
        let av = opened.raw.open_av(&AvAttr {
            av_type: info.domain_attr.av_type,
            count: self.av_count,
            ..AvAttr::default()
        })?;
        endpoint.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV)?;
        match eq {
            Some(eq) => endpoint.bind_eq(eq)?,
            None => endpoint.bind_av(&av)?,
        }
        if let Some(name) = &self.name {
            endpoint.set_name(name)?;
        }
        let joins = if eq.is_none() && info.caps.contains(Caps::COLLECTIVE) {
            let queue = opened.fabric().open_eq(&EqAttr::default())?;
            endpoint.bind_eq(&queue)?;
            Some(Joins::new(queue))
        } else {
            None
        };
        Ok(Node {
            endpoint,
            cq,
            av,
            joins,
            reading: PolicyLock::new(L::serialization(), ()),
            operations: PolicyLock::new(L::serialization(), Operations::new()),
            domain,
            yields: self.wait_obj == WaitObj::Yield,
            signaled: AtomicBool::new(false),
            _level: PhantomData,
        })
    }
}
