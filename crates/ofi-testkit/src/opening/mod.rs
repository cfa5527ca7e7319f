//! How a case opens an endpoint with the objects that it needs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ofi::raw::{
    Address, AddressVector, AvAttr, BindFlags, CntrAttr, CompletionQueue, CqAttr, CqFormat, Domain, Endpoint,
    EpOption, Fabric, GetinfoFlags, Hints, Info, Result, SHARED_CONTEXT, SharedTransmit, Threading, Version,
    WaitObj,
};

pub use self::connected::connect;
use crate::connection::{is_connected, open_eq};
use crate::side::{Direct, TestEndpoint};

mod connected;

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

    /// Sets the format of its queues. Only [`CqFormat::Tagged`] can be polled through a [`TestEndpoint`].
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

    /// Adds a counter for these kinds of operation; the side has it in [`TestEndpoint::counters`].
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
    pub fn beside(mut self, other: &TestEndpoint) -> Self {
        self.within = Some((Arc::clone(&other.fabric), Arc::clone(&other.domain)));
        self
    }

    /// Disables shared memory, if there is another way.
    pub fn without_shared_memory(self) -> Self {
        self.shared_memory(false)
    }

    /// Sets whether it may also use shared memory with peers on its host.
    pub(crate) fn shared_memory(mut self, allowed: bool) -> Self {
        self.shared_memory = allowed;
        self
    }

    /// Sets whether its data path is called through [`ofi::direct`].
    pub(crate) fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
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
    pub fn open(self) -> TestEndpoint {
        self.try_open().expect("opening an endpoint")
    }

    /// Opens the endpoint.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn try_open(self) -> Result<TestEndpoint> {
        if is_connected(&self.first_info()?) {
            return connected::open_paired(self);
        }
        let side = self.open_disabled()?;
        side.ep.enable()?;
        Ok(side)
    }

    /// Opens and binds all objects, and leaves the endpoint disabled.
    ///
    /// # Errors
    /// Those of the calls involved.
    pub fn open_disabled(self) -> Result<TestEndpoint> {
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
        if is_connected(&info) {
            let queue = open_eq(&fabric)?;
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
        Ok(TestEndpoint { ep, tx, rx, counters, eq, av, domain, fabric, info, direct, events, lent })
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
