//! How the suite accesses a transport and opens the objects that a case needs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, Caps, CntrAttr, CompletionQueue, CqAttr, CqFormat, Domain,
    Endpoint, EpOption, Fabric, GetinfoFlags, Hints, Info, MrMode, Result, SHARED_CONTEXT, SharedTransmit,
    Threading, Version, WaitObj,
};

use crate::calls::Direct;
use crate::pair::Pair;
use crate::side::Side;

/// One transport and endpoint type, as the suite sees it.
pub trait Kit: Sync {
    /// Hints that select this transport and request nothing else.
    fn hints(&self) -> Hints;

    /// The default capabilities of cases, as far as this transport and endpoint type supports them.
    fn usual_caps(&self) -> Caps {
        USUAL
    }

    /// The capabilities of connected endpoints, as far as this transport supports them.
    fn connected_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }

    /// Whether endpoints may also use shared memory with peers on their host.
    fn shared_memory(&self) -> bool {
        true
    }

    /// Why it cannot run on this host, for example without a device. Cases are then reported as skipped.
    fn missing(&self) -> Option<String> {
        None
    }

    /// Whether the data path is called through [`ofi::direct`], for shared memory.
    fn direct(&self) -> bool {
        false
    }

    /// Whether a peer makes progress without calls even in manual mode, as with an adapter.
    fn moves_by_itself(&self) -> bool {
        false
    }
}

/// Registration modes of the application: all, so that every transport works.
const ANY_MR: MrMode = MrMode::VIRT_ADDR.union(MrMode::PROV_KEY).union(MrMode::ALLOCATED);

/// The default capabilities of cases.
const USUAL: Caps = Caps::MSG
    .union(Caps::TAGGED)
    .union(Caps::RMA)
    .union(Caps::SOURCE)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::TAGGED_DIRECTED_RECV);

impl dyn Kit + '_ {
    /// The transport's hints, with the capabilities and registration modes of an ordinary application.
    pub fn usual(&self) -> Hints {
        self.hints().caps(self.usual_caps()).mr_mode(ANY_MR)
    }

    /// Calls getinfo.
    ///
    /// # Errors
    /// Those of getinfo.
    pub fn getinfo(&self, hints: &Hints) -> Result<Vec<Info>> {
        ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(hints))
    }

    /// The first info for hints that must be accepted.
    ///
    /// # Panics
    /// If they are refused.
    #[track_caller]
    pub fn info(&self, hints: &Hints) -> Info {
        self.getinfo(hints).expect("getinfo").remove(0)
    }

    /// Options for an endpoint with the usual capabilities; change them before [`Opening::open`].
    pub fn opening(&self) -> Opening {
        self.opening_for(self.usual())
    }

    /// Options for an endpoint with these hints; change them before [`Opening::open`].
    pub fn opening_for(&self, hints: Hints) -> Opening {
        Opening { shared_memory: self.shared_memory(), direct: self.direct(), ..Opening::new(hints) }
    }

    /// Opens one endpoint with the usual options.
    #[track_caller]
    pub fn side(&self) -> Side {
        self.opening().open()
    }

    /// Opens two endpoints that know each other.
    #[track_caller]
    pub fn pair(&self) -> Pair {
        Pair::of(self.side(), self.side())
    }

    /// Opens two endpoints with the same options.
    #[track_caller]
    pub fn pair_with(&self, change: impl Fn(Opening) -> Opening) -> Pair {
        Pair::of(change(self.opening()).open(), change(self.opening()).open())
    }
}

/// Options for opening an endpoint.
#[derive(Clone)]
#[must_use]
pub struct Opening {
    /// The hints.
    pub hints: Hints,
    cq: CqAttr,
    av: AvAttr,
    two_queues: bool,
    given: Option<Arc<dyn CompletionQueue>>,
    selective: BindFlags,
    unbound: BindFlags,
    counters: Vec<(CntrAttr, BindFlags)>,
    name: Option<Address>,
    within: Option<(Arc<dyn Fabric>, Arc<dyn Domain>)>,
    info: Option<Info>,
    shared_memory: bool,
    direct: bool,
    vector: Option<Arc<dyn AddressVector>>,
    shared_tx: Option<Arc<dyn SharedTransmit>>,
    shared_rx: Option<Arc<dyn Endpoint>>,
}

impl Opening {
    /// Options for an endpoint with these hints.
    pub fn new(hints: Hints) -> Self {
        Self {
            hints,
            cq: CqAttr::default(),
            av: AvAttr::default(),
            two_queues: false,
            given: None,
            selective: BindFlags::empty(),
            unbound: BindFlags::empty(),
            counters: Vec::new(),
            name: None,
            within: None,
            info: None,
            shared_memory: true,
            direct: false,
            vector: None,
            shared_tx: None,
            shared_rx: None,
        }
    }

    /// Changes the hints.
    pub fn hints(mut self, change: impl FnOnce(Hints) -> Hints) -> Self {
        self.hints = change(self.hints);
        self
    }

    /// Sets the wait object of its queues.
    pub fn wait_obj(mut self, wait_obj: WaitObj) -> Self {
        self.cq.wait_obj = wait_obj;
        self
    }

    /// Sets the format of its queues. Only [`CqFormat::Tagged`] can be polled through a [`Side`].
    pub fn format(mut self, format: CqFormat) -> Self {
        self.cq.format = format;
        self
    }

    /// Sets the size of its queues.
    pub fn cq_size(mut self, size: usize) -> Self {
        self.cq.size = size;
        self
    }

    /// Sets the number of bits that select receive contexts in its address vector's numbers.
    pub fn rx_ctx_bits(mut self, bits: u32) -> Self {
        self.av.rx_ctx_bits = bits;
        self
    }

    /// Opens a queue for each direction.
    pub fn two_queues(mut self) -> Self {
        self.two_queues = true;
        self
    }

    /// Uses an existing queue for both directions.
    pub fn queue(mut self, queue: &Arc<dyn CompletionQueue>) -> Self {
        self.given = Some(Arc::clone(queue));
        self
    }

    /// Binds with `FI_SELECTIVE_COMPLETION`, in these directions.
    pub fn selective(mut self, directions: BindFlags) -> Self {
        self.selective = directions;
        self
    }

    /// Binds no queue for these directions.
    pub fn without_queue(mut self, directions: BindFlags) -> Self {
        self.unbound = directions;
        self
    }

    /// Adds a counter for these kinds of operation; the side has it in [`Side::counters`].
    pub fn counter(mut self, attr: CntrAttr, flags: BindFlags) -> Self {
        self.counters.push((attr, flags));
        self
    }

    /// Sets the threading level of the hints.
    pub fn threading(mut self, threading: Threading) -> Self {
        self.hints = self.hints.threading(threading);
        self
    }

    /// Sets its address.
    pub fn name(mut self, name: &Address) -> Self {
        self.name = Some(name.clone());
        self
    }

    /// Sets the attributes of its address vector.
    pub fn av(mut self, attr: AvAttr) -> Self {
        self.av = attr;
        self
    }

    /// Opens it in the domain of another endpoint.
    pub fn beside(mut self, other: &Side) -> Self {
        self.within = Some((Arc::clone(&other.fabric), Arc::clone(&other.domain)));
        self
    }

    /// Disables shared memory, if there is another way.
    pub fn without_shared_memory(mut self) -> Self {
        self.shared_memory = false;
        self
    }

    /// Uses an existing address vector.
    pub fn vector(mut self, av: &Arc<dyn AddressVector>) -> Self {
        self.vector = Some(Arc::clone(av));
        self
    }

    /// Uses a shared transmit context.
    pub fn shared_transmit(mut self, context: &Arc<dyn SharedTransmit>) -> Self {
        self.hints = self.hints.tx_ctx_cnt(SHARED_CONTEXT);
        self.shared_tx = Some(Arc::clone(context));
        self
    }

    /// Uses a shared receive context.
    pub fn shared_receive(mut self, context: &Arc<dyn Endpoint>) -> Self {
        self.hints = self.hints.rx_ctx_cnt(SHARED_CONTEXT);
        self.shared_rx = Some(Arc::clone(context));
        self
    }

    /// Uses this info instead of getinfo's answer to the hints.
    pub fn info(mut self, info: Info) -> Self {
        self.info = Some(info);
        self
    }

    /// The info with which it will be opened.
    ///
    /// # Errors
    /// Those of getinfo.
    pub fn first_info(&self) -> Result<Info> {
        if let Some(info) = &self.info {
            return Ok(info.clone());
        }
        let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&self.hints))?;
        Ok(infos.into_iter().next().expect("getinfo answers at least one info, or an error"))
    }

    /// Opens the endpoint.
    ///
    /// # Panics
    /// If a call fails.
    #[track_caller]
    pub fn open(self) -> Side {
        self.try_open().expect("opening an endpoint")
    }

    /// Opens the endpoint.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn try_open(self) -> Result<Side> {
        if crate::connect::is_connected(&self.first_info()?) {
            return crate::connect::open_paired(self);
        }
        let side = self.open_disabled()?;
        side.ep.enable()?;
        Ok(side)
    }

    /// Opens and binds all objects, and leaves the endpoint disabled.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn open_disabled(self) -> Result<Side> {
        let info = self.first_info()?;
        let (fabric, domain) = match self.within {
            Some(within) => within,
            None => {
                let fabric = ofi::open_fabric(&info)?;
                let domain = fabric.open_domain(&info)?;
                (fabric, domain)
            }
        };
        let ep = domain.open_endpoint(&info)?;
        if !self.shared_memory {
            ep.set_option(EpOption::SharedMemoryPermitted, 0)?;
        }
        let tx = match self.given {
            Some(queue) => queue,
            None => domain.open_cq(&self.cq)?,
        };
        let rx = if self.two_queues { domain.open_cq(&self.cq)? } else { Arc::clone(&tx) };
        bind(&ep, &tx, &rx, self.selective, self.unbound)?;
        let mut counters = Vec::new();
        for (attr, flags) in &self.counters {
            let counter = domain.open_counter(attr)?;
            ep.bind_counter(&counter, *flags)?;
            counters.push(counter);
        }
        if let Some(context) = &self.shared_tx {
            ep.bind_shared_transmit(context)?;
        }
        if let Some(context) = &self.shared_rx {
            ep.bind_shared_receive(context)?;
        }
        let av = match self.vector {
            Some(av) => av,
            None => domain.open_av(&self.av)?,
        };
        let mut eq = None;
        if crate::connect::is_connected(&info) {
            let queue = crate::connect::open_eq(&fabric)?;
            ep.bind_eq(&queue)?;
            eq = Some(queue);
        } else {
            ep.bind_av(&av)?;
        }
        if let Some(name) = &self.name {
            ep.set_name(name)?;
        }
        let direct = self.direct.then(|| Direct::new(&ep, &tx, &rx)).transpose()?;
        let (events, lent) = (Mutex::new(VecDeque::new()), Mutex::new(Vec::new()));
        Ok(Side { ep, tx, rx, counters, eq, av, domain, fabric, info, direct, events, lent })
    }
}

fn bind(
    ep: &Arc<dyn Endpoint>,
    tx: &Arc<dyn CompletionQueue>,
    rx: &Arc<dyn CompletionQueue>,
    selective: BindFlags,
    unbound: BindFlags,
) -> Result<()> {
    let directions = [(tx, BindFlags::TRANSMIT), (rx, BindFlags::RECV)];
    for (queue, direction) in directions {
        if unbound.contains(direction) {
            continue;
        }
        let flag =
            if selective.contains(direction) { BindFlags::SELECTIVE_COMPLETION } else { BindFlags::empty() };
        ep.bind_cq(queue, direction | flag)?;
    }
    Ok(())
}
