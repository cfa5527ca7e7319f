//! Hubs: a server's connections in one domain, with one completion queue and one event queue.
//!
//! `accept` opens an endpoint that is bound to the hub's queues. Its operations are entered in the hub's table, under
//! the number of the connection. `poll` reads the completion queue, then the event queue, and looks up the connection
//! of each entry.

mod connection;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{
    Address, CompletionQueue, CqAttr, CqBuffer, CqFormat, CqTaggedEntry, Errno, Error, EventKind, EventQueue,
    Fid, Hints, Result, WaitObj,
};
use ofi_core::lock::Lock;
use ofi_core::sys;

pub use connection::HubConnection;
use connection::Members;

use crate::completion::Completion;
use crate::connection::{Incoming, Listener};
use crate::domain::Domain;
use crate::node::{NodeBuilder, Seat};
use crate::operations::Operations;
use crate::threading::Safe;

/// Entries of one read of the completion queue.
const BATCH: usize = 64;
/// The number of reads of the completion queue for each read of the event queue, while there are completions; also the
/// maximum number of reads before a [`HubEvent::Closed`].
const BATCHES: u32 = 16;
/// The maximum sleep while a connection is being established: the handshake has its own timers.
const SOON: Duration = Duration::from_millis(50);
/// The maximum sleep otherwise: a bound in case a wake-up is lost.
const SELDOM: Duration = Duration::from_secs(1);

/// Something that happened at a [`Hub`].
#[derive(Debug)]
#[non_exhaustive]
pub enum HubEvent {
    /// A peer requests a connection: [`Hub::accept`] or [`Incoming::reject`] it. Dropping it rejects the request.
    Request(Incoming),
    /// An accepted connection is established. This event precedes the completions of its operations.
    Connected(HubConnection),
    /// An operation of a connection has ended, successfully or not.
    Completed {
        /// The connection of the operation. `None` for a peer's write with remote CQ data and for an inject that
        /// failed: the queue does not say which connection they came through.
        connection: Option<HubConnection>,
        /// The operation.
        completion: Completion,
    },
    /// A connection has ended, or was not established. The hub no longer holds it: it closes when the last clone
    /// is dropped.
    Closed {
        /// The connection.
        connection: HubConnection,
        /// Why the connection failed. `None` after an orderly end, and if the peer's process died.
        error: Option<Error>,
    },
}

/// A listener with all the connections that it accepts, in one domain and with one completion queue.
///
/// One thread serves many clients by [`Hub::wait`], which sleeps while nothing happens. Memory that [`Hub::domain`]
/// registers is accessible through every connection: one [`Window`](crate::Window) serves them all. If a connection
/// ends or its peer dies, an event reports it, and the others continue. [`Hub::next_event`] does the same for tasks of
/// any executor; with the feature `tokio`, `ofi::rt::tokio::HubEvents` waits on tokio's reactor.
///
/// ```
/// use std::time::Duration;
/// use ofi::{CompletionKind, Connection, Hints, Hub, HubEvent};
///
/// const LIMIT: Duration = Duration::from_secs(5);
/// let hints = Hints::new().provider("shm");
/// let hub = Hub::open(&hints)?;
/// let address = hub.name()?;
/// let client = std::thread::spawn(move || -> ofi::Result<Vec<u8>> {
///     let connection = Connection::open(&hints, &address, b"", LIMIT)?;
///     connection.recv(vec![0; 64])?;
///     connection.inject(b"question")?;
///     let answer = connection.wait(LIMIT)?.expect("within five seconds").into_result()?;
///     Ok(answer.bytes().to_vec())
/// });
/// loop {
///     match hub.wait(LIMIT)?.expect("within five seconds") {
///         HubEvent::Request(request) => {
///             hub.accept(request, b"")?.recv(vec![0; 64])?;
///         }
///         HubEvent::Completed { connection: Some(connection), completion } => {
///             if completion.kind() == CompletionKind::Receive && completion.result.is_ok() {
///                 connection.inject(&completion.bytes().to_ascii_uppercase())?;
///             }
///         }
///         HubEvent::Closed { .. } => break,
///         _ => {}
///     }
/// }
/// assert_eq!(client.join().expect("no panic")?, b"QUESTION");
/// # Ok::<(), ofi::Error>(())
/// ```
pub struct Hub {
    // Fields drop in order: the connections before the objects that they are bound to.
    ready: Mutex<Ready>,
    /// The connections that the hub holds.
    open: Mutex<HashMap<Fid, HubConnection>>,
    listener: Listener,
    center: Arc<Center>,
}

/// Events that were read but not returned yet.
#[derive(Default)]
struct Ready {
    events: VecDeque<HubEvent>,
    /// Reads of the completion queue.
    batches: u32,
}

/// Shared state of the connections, which they keep alive.
struct Center {
    domain: Domain<Safe>,
    cq: Arc<dyn CompletionQueue>,
    /// The operations of all connections. The context of a completion identifies its operation, whichever connection it
    /// came through.
    operations: Arc<Lock<Operations>>,
    members: Members,
    /// Held while the queue is read and its entries are looked up, and while a connection closes, so that the operation
    /// of an entry that was read is still in the table.
    reading: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Listens at an address that the transport chooses.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening.
    pub fn open(hints: &Hints) -> Result<Self> {
        Self::open_as(hints, None, None)
    }

    /// Listens at the address that `node` and `service` name.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening; `FI_EADDRINUSE` if another endpoint has the address.
    pub fn open_at(hints: &Hints, node: &str, service: &str) -> Result<Self> {
        Self::open_as(hints, Some(node), Some(service))
    }

    fn open_as(hints: &Hints, node: Option<&str>, service: Option<&str>) -> Result<Self> {
        let (listener, domain) = Listener::open_with_domain(hints, node, service)?;
        let attr = CqAttr { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::Fd, wait_set: None };
        let center = Center {
            cq: domain.opened().raw.open_cq(&attr)?,
            domain,
            operations: Arc::new(Lock::new(Operations::new())),
            members: Members::default(),
            reading: Mutex::new(()),
        };
        Ok(Self { ready: Mutex::default(), open: Mutex::default(), listener, center: Arc::new(center) })
    }

    /// The hub's address, for peers to connect to.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` if the transport has closed the listener.
    pub fn name(&self) -> Result<Address> {
        self.listener.name()
    }

    /// The domain of all connections: allocate, register and open windows here.
    pub fn domain(&self) -> &Domain {
        &self.center.domain
    }

    /// Sets the maximum number of unanswered requests; further ones are rejected.
    ///
    /// # Errors
    /// `FI_EINVAL` for 0.
    pub fn set_backlog(&self, requests: usize) -> Result<()> {
        self.listener.set_backlog(requests)
    }

    /// The connections that the hub holds: those that were accepted and have not closed.
    pub fn connections(&self) -> Vec<HubConnection> {
        lock(&self.open).values().cloned().collect()
    }

    /// Number of operations in flight on all connections.
    pub fn in_flight(&self) -> usize {
        self.center.operations.lock().len()
    }

    /// Starts accepting `request` and attaches `data` to the acceptance. Receives may be posted at once; sends fail
    /// until [`HubEvent::Connected`]. If the connection cannot be established, [`HubEvent::Closed`] follows instead.
    ///
    /// # Errors
    /// `FI_EINVAL` for a request of another listener, the errors of opening an endpoint, and `FI_ECONNREFUSED` if the
    /// peer is gone.
    pub fn accept(&self, request: Incoming, data: &[u8]) -> Result<HubConnection> {
        if !self.listener.is_mine(&request) {
            let (wanted, found) = ("one of this hub", "another listener's");
            let advice = "accept it where it came from";
            return Err(Error::wanted(Errno::EINVAL, "a connection request", wanted, found, advice));
        }
        let center = &self.center;
        let connection = center.members.enter(center, |id| {
            let (cq, operations) = (Arc::clone(&center.cq), Arc::clone(&center.operations));
            let builder = NodeBuilder::in_domain(center.domain.clone()).wait_obj(WaitObj::Fd);
            let builder = builder.seat(Seat { cq, operations, owner: id });
            builder.open_connected(Some(&request.info), &self.listener.eq)
        })?;
        let fid = connection.raw_endpoint().fid();
        // Before the call, so that the event of its result finds the connection.
        lock(&self.open).insert(fid, connection.clone());
        if let Err(error) = connection.raw_endpoint().accept(data) {
            lock(&self.open).remove(&fid);
            return Err(error);
        }
        Ok(connection)
    }

    /// Drives progress of all connections, and returns the next event if there is one. Completions of a connection come
    /// before its [`HubEvent::Closed`], except those of operations that the end of the connection cancelled.
    ///
    /// # Errors
    /// The error of a queue that can no longer be read. Failures of a connection or of an operation are events.
    pub fn poll(&self) -> Result<Option<HubEvent>> {
        let mut queue = lock(&self.ready);
        let Ready { events, batches } = &mut *queue;
        if events.is_empty() {
            self.read_completions(events)?;
            *batches = batches.wrapping_add(1);
            // Read the event queue even while there are completions, so that requests are not delayed indefinitely.
            if (events.is_empty() || batches.is_multiple_of(BATCHES))
                && let Some(event) = self.read_event()?
            {
                let closed = matches!(event, HubEvent::Closed { .. });
                for _ in 0..if closed { BATCHES } else { 0 } {
                    if self.read_completions(events)? == 0 {
                        break;
                    }
                }
                events.push_back(event);
            }
        }
        Ok(events.pop_front())
    }

    /// Sleeps until the next event. `None` if there is no event within `limit`; without a limit, it waits until there
    /// is one.
    ///
    /// # Errors
    /// The errors of [`Hub::poll`].
    pub fn wait(&self, limit: impl Into<Option<Duration>>) -> Result<Option<HubEvent>> {
        let deadline = limit.into().and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(event) = self.poll()? {
                return Ok(Some(event));
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(None);
            }
            if !self.try_wait()? {
                std::thread::yield_now();
                continue;
            }
            let bound = now + self.longest_sleep();
            let until = deadline.map_or(bound, |deadline| deadline.min(bound));
            sys::wait_readable(&self.fds(), Some(until));
        }
    }

    /// Whether the caller may sleep until one of [`Hub::fds`] is readable, for at most [`Hub::longest_sleep`].
    pub(crate) fn try_wait(&self) -> Result<bool> {
        Ok(may_sleep(self.center.cq.trywait())? && may_sleep(self.listener.eq.trywait())?)
    }

    pub(crate) fn fds(&self) -> Vec<RawFd> {
        [self.center.cq.wait_fd(), self.listener.eq.wait_fd()].into_iter().flatten().collect()
    }

    pub(crate) fn queues(&self) -> (&Arc<dyn CompletionQueue>, &Arc<dyn EventQueue>) {
        (&self.center.cq, &self.listener.eq)
    }

    pub(crate) fn is_establishing(&self) -> bool {
        lock(&self.open).values().any(|connection| !connection.is_established())
    }

    pub(crate) fn longest_sleep(&self) -> Duration {
        if self.is_establishing() { SOON } else { SELDOM }
    }

    /// Reads some completions into `ready`. Returns the number of entries.
    fn read_completions(&self, ready: &mut VecDeque<HubEvent>) -> Result<usize> {
        let center = &*self.center;
        let mut entries = [CqTaggedEntry::EMPTY; BATCH];
        let mut found: Vec<(u32, Completion)> = Vec::new();
        let reading = lock(&center.reading);
        let count = match center.cq.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => {
                let mut operations = center.operations.lock();
                for entry in &entries[..count] {
                    let done = operations.complete(entry, ofi_api::FiAddr::NOTAVAIL);
                    found.extend(done.map(|done| (done.op.map_or(0, |op| operations.owner(op)), done)));
                }
                count
            }
            Err(error) if error.is_again() => 0,
            Err(error) if error == Errno::EAVAIL => {
                let error = center.cq.read_error()?;
                let mut operations = center.operations.lock();
                let done = operations.fail(error, |number| center.cq.error_text(number));
                found.extend(done.map(|done| (done.op.map_or(0, |op| operations.owner(op)), done)));
                1
            }
            Err(error) => return Err(error),
        };
        drop(reading); // dropping the last clone of a connection, below, takes this lock
        for (owner, completion) in found {
            let connection = center.members.find(owner);
            // A completion proves that its connection is established, even if the event has not been read yet.
            if let Some(connection) = &connection
                && completion.result.is_ok()
                && connection.establish()
            {
                ready.push_back(HubEvent::Connected(connection.clone()));
            }
            if connection.is_some() || completion.op.is_none() {
                ready.push_back(HubEvent::Completed { connection, completion });
            }
        }
        Ok(count)
    }

    fn read_event(&self) -> Result<Option<HubEvent>> {
        let eq = &self.listener.eq;
        loop {
            match eq.read() {
                Ok(event) => {
                    let fid = event.fid;
                    let told = match event.kind {
                        EventKind::ConnReq => self.listener.incoming(event).map(HubEvent::Request),
                        EventKind::Connected => {
                            let connection = lock(&self.open).get(&fid).cloned();
                            connection.filter(HubConnection::establish).map(HubEvent::Connected)
                        }
                        EventKind::Shutdown => self.closed(fid, None),
                        _ => None,
                    };
                    if told.is_some() {
                        return Ok(told);
                    }
                }
                Err(error) if error.is_again() => return Ok(None),
                Err(error) if error == Errno::EAVAIL => match eq.read_error() {
                    Ok(entry) => {
                        let error = Error::with(entry.err, eq.error_text(entry.prov_errno));
                        let told = self.closed(entry.fid, Some(error));
                        if told.is_some() {
                            return Ok(told);
                        }
                    }
                    Err(error) if error.is_again() => {} // another thread has it
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        }
    }

    fn closed(&self, fid: Fid, error: Option<Error>) -> Option<HubEvent> {
        let connection = lock(&self.open).remove(&fid)?;
        Some(HubEvent::Closed { connection, error })
    }
}

/// Whether the caller may sleep on a queue that returned `ready`.
fn may_sleep(ready: Result<()>) -> Result<bool> {
    match ready {
        Ok(()) => Ok(true),
        Err(error) if error.is_again() => Ok(false),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Hub");
        if let Ok(name) = self.name() {
            debug.field("name", &name);
        }
        debug.field("connections", &lock(&self.open).len()).finish_non_exhaustive()
    }
}
