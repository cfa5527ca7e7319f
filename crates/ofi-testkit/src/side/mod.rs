//! One endpoint with its queues, address vector and domain, and the unread events of its queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi::raw::{
    AddressVector, CompletionQueue, Context, Counter, CqAttr, CqBuffer, CqErrorEntry, CqTaggedEntry, Domain,
    Endpoint, Errno, EventQueue, Fabric, FiAddr, HmemIface, Info, MemoryRegion, MrAccess, MrAttr, Piece,
    RemotePiece, Result,
};

pub(crate) use self::calls::Direct;
use crate::memory::{Buffers, Slice};

mod calls;

/// One event of a queue.
#[derive(Clone, Debug)]
pub enum Event {
    /// A success, and its source.
    Done(CqTaggedEntry, FiAddr),
    /// A failure.
    Failed(CqErrorEntry),
}

impl Event {
    /// The context of its operation.
    pub fn context(&self) -> usize {
        match self {
            Self::Done(entry, _) => entry.op_context.0,
            Self::Failed(error) => error.op_context.0,
        }
    }

    /// The entry of a success.
    ///
    /// # Panics
    /// If it is a failure.
    #[track_caller]
    pub fn done(self) -> CqTaggedEntry {
        match self {
            Self::Done(entry, _) => entry,
            Self::Failed(error) => panic!("a failure: {error:?}"),
        }
    }

    /// The entry of a failure.
    ///
    /// # Panics
    /// If it is a success.
    #[track_caller]
    pub fn failed(self) -> CqErrorEntry {
        match self {
            Self::Failed(error) => error,
            Self::Done(entry, _) => panic!("a success: {entry:?}"),
        }
    }
}

/// One endpoint and everything that it uses. Fields drop in order: the endpoint is closed before anything that it uses,
/// and memory goes last.
pub struct TestEndpoint {
    /// The direct objects of its data path, if these are used instead of the objects below.
    pub(crate) direct: Option<Direct>,
    /// The endpoint.
    pub ep: Arc<dyn Endpoint>,
    /// The queue of transmit completions.
    pub tx: Arc<dyn CompletionQueue>,
    /// The queue of receive completions, possibly the same one.
    pub rx: Arc<dyn CompletionQueue>,
    /// The counters that it was opened with.
    pub counters: Vec<Arc<dyn Counter>>,
    /// The event queue of a connected endpoint.
    pub eq: Option<Arc<dyn EventQueue>>,
    /// The address vector.
    pub av: Arc<dyn AddressVector>,
    /// The domain.
    pub domain: Arc<dyn Domain>,
    /// The fabric.
    pub fabric: Arc<dyn Fabric>,
    /// The info that the endpoint was opened with.
    pub info: Info,
    pub(crate) events: Mutex<VecDeque<Event>>,
    pub(crate) lent: Mutex<Vec<Slice>>,
}

/// Locks a mutex that a failed test may have poisoned.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestEndpoint {
    /// Reads both queues and all counters, and keeps their events for [`TestEndpoint::next`].
    ///
    /// # Panics
    /// If a queue returns an unexpected error.
    #[track_caller]
    pub fn poll(&self) {
        self.poll_queue(true);
        if !self.is_one_queue() {
            self.poll_queue(false);
        }
        for counter in &self.counters {
            counter.read();
        }
    }

    /// The event queue.
    ///
    /// # Panics
    /// If the endpoint is not a connected one.
    #[track_caller]
    pub fn eq(&self) -> &Arc<dyn EventQueue> {
        self.eq.as_ref().expect("a connected endpoint")
    }

    /// A context of its domain as a side, in order to post to it. Its own queue never has an event.
    ///
    /// # Panics
    /// If no queue can be opened.
    #[track_caller]
    pub fn context(&self, ep: Arc<dyn Endpoint>) -> TestEndpoint {
        let queue = self.domain.open_cq(&CqAttr::default()).expect("a queue");
        self.context_with(ep, queue)
    }

    /// The same with a queue that is bound to it.
    pub fn context_with(&self, ep: Arc<dyn Endpoint>, queue: Arc<dyn CompletionQueue>) -> TestEndpoint {
        TestEndpoint {
            ep,
            tx: Arc::clone(&queue),
            rx: queue,
            counters: Vec::new(),
            eq: None,
            av: Arc::clone(&self.av),
            domain: Arc::clone(&self.domain),
            fabric: Arc::clone(&self.fabric),
            info: self.info.clone(),
            direct: None, // a context is not an endpoint of its own
            events: Mutex::default(),
            lent: Mutex::default(),
        }
    }

    /// Whether both directions use the same queue.
    pub fn is_one_queue(&self) -> bool {
        Arc::ptr_eq(&self.tx, &self.rx)
    }

    #[track_caller]
    fn poll_queue(&self, transmit: bool) {
        let mut entries = [CqTaggedEntry::EMPTY; 16];
        let mut sources = [FiAddr::NOTAVAIL; 16];
        loop {
            let read = self.read_queue(transmit, &mut CqBuffer::with_sources(&mut entries, &mut sources));
            match read {
                Ok(count) => {
                    let read = entries.iter().zip(&sources).take(count);
                    lock(&self.events).extend(read.map(|(&entry, &source)| Event::Done(entry, source)));
                    if count < entries.len() {
                        return;
                    }
                }
                Err(error) if error.errno() == Errno::EAVAIL => {
                    let error = self.read_queue_error(transmit).expect("FI_EAVAIL promised an error entry");
                    lock(&self.events).push_back(Event::Failed(error));
                }
                Err(error) if error.is_again() => return,
                Err(error) => panic!("reading a queue: {error}"),
            }
        }
    }

    /// The oldest unread event.
    pub fn next(&self) -> Option<Event> {
        lock(&self.events).pop_front()
    }

    /// The oldest unread event with this context.
    pub fn next_of(&self, context: usize) -> Option<Event> {
        let mut events = lock(&self.events);
        let at = events.iter().position(|event| event.context() == context)?;
        events.remove(at)
    }

    /// Number of unread events.
    pub fn pending(&self) -> usize {
        lock(&self.events).len()
    }

    /// Keeps `buffers` alive until the endpoint is closed.
    pub(crate) fn keep(&self, buffers: &Buffers) {
        lock(&self.lent).extend_from_slice(&buffers.0);
    }

    /// Registers memory.
    ///
    /// # Errors
    /// Those of [`Domain::register`].
    pub fn register(&self, buffers: impl Into<Buffers>, access: MrAccess) -> Result<Arc<dyn MemoryRegion>> {
        self.register_with(buffers, access, 0, 0)
    }

    /// Registers memory under a key and at an offset.
    ///
    /// # Errors
    /// Those of [`Domain::register`].
    pub fn register_with(
        &self,
        buffers: impl Into<Buffers>,
        access: MrAccess,
        key: u64,
        offset: u64,
    ) -> Result<Arc<dyn MemoryRegion>> {
        let buffers = buffers.into();
        let pieces: Vec<Piece> = buffers.0.iter().map(Slice::piece).collect();
        self.keep(&buffers);
        // SAFETY: the memory is kept until this side is gone, and tests access it only through raw pointers.
        let mut attr = unsafe { MrAttr::new(&pieces, access) };
        (attr.requested_key, attr.offset) = (key, offset);
        if buffers.0.iter().any(Slice::is_of_device) {
            attr.iface = HmemIface::Cuda;
        }
        self.domain.register(&attr)
    }

    /// Its address.
    ///
    /// # Panics
    /// If it has none.
    #[track_caller]
    pub fn name(&self) -> ofi::raw::Address {
        self.ep.name().expect("the name of an enabled endpoint")
    }

    /// Inserts the address of `peer`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn insert(&self, peer: &TestEndpoint) -> FiAddr {
        self.insert_address(&peer.name())
    }

    /// Inserts an address.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn insert_address(&self, address: &ofi::raw::Address) -> FiAddr {
        let mut inserted = self.av.insert(std::slice::from_ref(address));
        inserted.remove(0).expect("insertion of a good address")
    }

    /// The value of a statistic, or 0 if there is none of that name.
    pub fn statistic(&self, name: &str) -> u64 {
        self.ep.statistics().iter().find(|statistic| statistic.name == name).map_or(0, |found| found.value)
    }

    /// Its counters and unread events, for the message of a failed wait.
    pub fn report(&self) -> String {
        let counters: Vec<String> = self
            .ep
            .statistics()
            .iter()
            .filter(|statistic| statistic.value > 0)
            .map(|statistic| format!("{}={}", statistic.name, statistic.value))
            .collect();
        let events: Vec<Event> = lock(&self.events).iter().take(8).cloned().collect();
        format!("  {}\n  events {events:?}", counters.join(" "))
    }

    /// Cancels an operation.
    ///
    /// # Errors
    /// Those of [`Endpoint::cancel`].
    pub fn cancel(&self, context: usize) -> Result<()> {
        self.ep.cancel(Context(context))
    }
}

/// All of a registration, as a peer addresses it.
pub fn remote(region: &Arc<dyn MemoryRegion>) -> RemotePiece {
    remote_at(region, 0, region.len())
}

/// `len` bytes of a registration from `offset` on.
pub fn remote_at(region: &Arc<dyn MemoryRegion>, offset: usize, len: usize) -> RemotePiece {
    RemotePiece { addr: region.base().wrapping_add(offset as u64), len, key: region.key() }
}
