//! Asynchronous events of devices: state changes and failures of devices, ports and queues that belong to no request.
//!
//! The kernel has one queue of events per process and device, and an event can be read only once. Every part of the
//! process that needs events has its own [`AsyncEvents`]. Whichever polls first reads the kernel's queue, and passes
//! the events to all.
//!
//! Invariants:
//! - An event is acknowledged as soon as it has been read and copied. Destroying an object waits until its events are
//!   acknowledged, so an object whose event was read exists until then.
//! - It is queued for every [`AsyncEvents`] before that, so what is queued about a new queue pair's number is about
//!   earlier ones. [`AsyncEvents::follow`] is called then, before the pair is connected and can fail.
//! - The loss of a device is remembered, and also reported to each [`AsyncEvents`] created later.

use std::collections::{BTreeSet, VecDeque};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::abi::*;
use crate::cq::set_nonblocking;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::verbs;

/// Maximum number of events that are queued for one [`AsyncEvents`].
const MAX_QUEUED_EVENTS: usize = 256;
/// Maximum number of events that are read at once.
const BATCH: usize = 64;

/// An event and its object: a queue pair by its number on the device ([`crate::QueuePair::number`]), a completion queue
/// or shared receive queue by [`crate::CompletionQueue::number`] or [`crate::SharedReceiveQueue::number`], a port by
/// its number, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The device is lost, and completes no more operations.
    DeviceFatal,
    /// The port is up.
    PortActive(u8),
    /// The port is down.
    PortError(u8),
    /// The port has another LID.
    LidChanged(u8),
    /// The port has other partition keys.
    KeysChanged(u8),
    /// The port has other GIDs.
    GidsChanged(u8),
    /// The port has another subnet manager.
    ManagerChanged(u8),
    /// The subnet manager has lost all registrations, including multicast groups.
    ClientReregister(u8),
    /// The queue pair has failed, and executes no more requests.
    PairFatal(u32),
    /// The queue pair has failed because of a peer's invalid request.
    PairRequest(u32),
    /// The queue pair has failed because a peer attempted a forbidden access.
    PairAccess(u32),
    /// The queue pair uses its alternate path.
    PathMigrated(u32),
    /// The queue pair could not use its alternate path.
    PathFailed(u32),
    /// A completion queue has overflowed or failed. It reports no more completions.
    QueueError(usize),
    /// A shared receive queue has failed.
    SharedError(usize),
    /// A shared receive queue has fewer receives than the limit of [`crate::SharedReceiveQueue::alert_below`].
    SharedLimit(usize),
    /// A queue pair in error uses the shared receive queue no more: it has returned the receives that it had taken.
    /// Only who follows it ([`AsyncEvents::follow`]) is told.
    LastReceive(u32),
    /// Any other event, by its number in `enum ibv_event_type`. Routine connection events are not reported.
    Other(i32),
}

impl AsyncEvent {
    /// The port that the event is about.
    pub const fn port(self) -> Option<u8> {
        match self {
            Self::PortActive(port)
            | Self::PortError(port)
            | Self::LidChanged(port)
            | Self::KeysChanged(port)
            | Self::GidsChanged(port)
            | Self::ManagerChanged(port)
            | Self::ClientReregister(port) => Some(port),
            _ => None,
        }
    }

    /// The queue pair that has failed.
    pub const fn failed_pair(self) -> Option<u32> {
        match self {
            Self::PairFatal(qp) | Self::PairRequest(qp) | Self::PairAccess(qp) => Some(qp),
            _ => None,
        }
    }

    /// The queue pair that the event is about.
    pub const fn pair(self) -> Option<u32> {
        match self {
            Self::PathMigrated(qp) | Self::PathFailed(qp) | Self::LastReceive(qp) => Some(qp),
            event => event.failed_pair(),
        }
    }

    /// The completion queue or shared receive queue that has failed.
    pub const fn failed_queue(self) -> Option<usize> {
        match self {
            Self::QueueError(queue) | Self::SharedError(queue) => Some(queue),
            _ => None,
        }
    }

    /// # Safety
    /// The event was read and is not acknowledged yet.
    unsafe fn new(event: &ibv_async_event) -> Self {
        let kind = event.event_type;
        let port = || {
            // SAFETY: the member for events of ports; ports have numbers of one byte.
            (unsafe { event.element.port_num }) as u8
        };
        let qp = || {
            // SAFETY: the member for events of queue pairs.
            let qp = unsafe { event.element.qp };
            // SAFETY: the queue pair exists as long as the event is not acknowledged.
            unsafe { (*qp).qp_num }
        };
        // SAFETY: the members for queues are pointers, too.
        let queue = || (unsafe { event.element.cq }) as usize;
        match kind {
            IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            IBV_EVENT_PORT_ACTIVE => Self::PortActive(port()),
            IBV_EVENT_PORT_ERR => Self::PortError(port()),
            IBV_EVENT_LID_CHANGE => Self::LidChanged(port()),
            IBV_EVENT_PKEY_CHANGE => Self::KeysChanged(port()),
            IBV_EVENT_GID_CHANGE => Self::GidsChanged(port()),
            IBV_EVENT_SM_CHANGE => Self::ManagerChanged(port()),
            IBV_EVENT_CLIENT_REREGISTER => Self::ClientReregister(port()),
            IBV_EVENT_QP_FATAL => Self::PairFatal(qp()),
            IBV_EVENT_QP_REQ_ERR => Self::PairRequest(qp()),
            IBV_EVENT_QP_ACCESS_ERR => Self::PairAccess(qp()),
            IBV_EVENT_PATH_MIG => Self::PathMigrated(qp()),
            IBV_EVENT_PATH_MIG_ERR => Self::PathFailed(qp()),
            IBV_EVENT_CQ_ERR => Self::QueueError(queue()),
            IBV_EVENT_SRQ_ERR => Self::SharedError(queue()),
            IBV_EVENT_SRQ_LIMIT_REACHED => Self::SharedLimit(queue()),
            IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastReceive(qp()),
            other => Self::Other(other),
        }
    }

    /// Whether the event is reported. The excluded events are raised whenever a connection starts or ends, which
    /// rdma_cm reports too.
    const fn is_news(self) -> bool {
        !matches!(self, Self::Other(IBV_EVENT_COMM_EST | IBV_EVENT_SQ_DRAINED))
    }

    const fn is_failure(self) -> bool {
        self.failed_pair().is_some() || self.failed_queue().is_some()
    }
}

/// The events that are queued for one [`AsyncEvents`].
#[derive(Default)]
struct Waiting {
    events: VecDeque<AsyncEvent>,
    lost: u64,
    /// Queue pairs whose [`AsyncEvent::LastReceive`] is wanted.
    followed: BTreeSet<u32>,
}

/// The hub's part of an [`AsyncEvents`].
struct Watcher {
    waiting: Mutex<Waiting>,
    /// Readable while events are queued.
    fd: OwnedFd,
}

impl Watcher {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, event: AsyncEvent) {
        let mut waiting = self.waiting();
        if !waiting.wants(event) {
            return;
        }
        waiting.put(event);
        // SAFETY: a word to write; an eventfd that does not block.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const ONE).cast(), size_of::<u64>()) };
    }

    /// No events are queued any more.
    fn quiet(&self) {
        let mut count = 0u64;
        // SAFETY: room for a word; an eventfd that does not block.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

static ONE: u64 = 1;

impl Waiting {
    fn wants(&mut self, event: AsyncEvent) -> bool {
        match event {
            AsyncEvent::LastReceive(qp) => self.followed.remove(&qp),
            _ => true,
        }
    }

    /// See [`AsyncEvents::follow`].
    fn follow(&mut self, qp: u32, follow: bool) {
        if follow {
            self.events.retain(|event| event.pair() != Some(qp));
            self.followed.insert(qp);
        } else {
            self.followed.remove(&qp);
        }
    }

    /// Adds an event. A full queue drops the oldest event that is not a failure, else the oldest failure, but never the
    /// loss of the device.
    fn put(&mut self, event: AsyncEvent) {
        if self.events.len() >= MAX_QUEUED_EVENTS {
            let oldest = |may_go: fn(AsyncEvent) -> bool| self.events.iter().position(|&event| may_go(event));
            let goes = oldest(|event| event != AsyncEvent::DeviceFatal && !event.is_failure())
                .or_else(|| oldest(|event| event != AsyncEvent::DeviceFatal));
            self.events.remove(goes.unwrap_or(0));
            self.lost += 1;
        }
        self.events.push_back(event);
    }
}

/// The events of one device, for all of its watchers.
struct Hub {
    context: Context,
    watchers: Mutex<Watchers>,
}

#[derive(Default)]
struct Watchers {
    all: Vec<Weak<Watcher>>,
    /// The device is lost.
    gone: bool,
}

/// The hubs of all devices: there are few, and their contexts stay open.
static HUBS: Mutex<Vec<Arc<Hub>>> = Mutex::new(Vec::new());

impl Hub {
    fn of(context: Context) -> Result<Arc<Self>> {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hubs.iter().find(|hub| hub.context == context) {
            return Ok(Arc::clone(hub));
        }
        set_nonblocking(context.async_fd())?;
        let hub = Arc::new(Self { context, watchers: Mutex::default() });
        hubs.push(Arc::clone(&hub));
        Ok(hub)
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the queued events, for all watchers.
    fn read(&self) -> Result<()> {
        let verbs = verbs()?;
        let mut watchers = self.watchers();
        for _ in 0..BATCH {
            if watchers.gone {
                return Ok(()); // the descriptor of a removed device stays readable
            }
            // SAFETY: all zeros are null pointers and numbers.
            let mut event: ibv_async_event = unsafe { zeroed() };
            // SAFETY: an open context, whose descriptor does not block; the structure is that of the interface.
            if unsafe { (verbs.ibv_get_async_event)(self.context.as_ptr(), &mut event) } != 0 {
                let error = Error::last("ibv_get_async_event");
                match error.errno {
                    libc::EAGAIN | libc::EINTR => return Ok(()),
                    // The kernel returns this error for a removed device.
                    libc::EIO | libc::ENODEV => watchers.tell(AsyncEvent::DeviceFatal),
                    _ => return Err(error),
                }
                return Ok(());
            }
            // SAFETY: it was read above, and is acknowledged below.
            let seen = unsafe { AsyncEvent::new(&event) };
            if seen.is_news() {
                watchers.tell(seen);
            }
            // SAFETY: it was read above; nothing refers to its object any more.
            unsafe { (verbs.ibv_ack_async_event)(&mut event) };
        }
        Ok(())
    }
}

impl Watchers {
    fn tell(&mut self, event: AsyncEvent) {
        self.gone |= event == AsyncEvent::DeviceFatal;
        self.all.retain(|watcher| {
            let watcher = watcher.upgrade();
            if let Some(watcher) = &watcher {
                watcher.put(event);
            }
            watcher.is_some()
        });
    }
}

/// The events of a device from now on, read from librdmacm's context of the device. Other code in the process must not
/// read that context's events: it would consume them, and since the descriptor is non-blocking, its reads would not
/// block. Each `AsyncEvents` of a process gets all events after its creation, and an earlier loss of the device.
pub struct AsyncEvents {
    hub: Arc<Hub>,
    watcher: Arc<Watcher>,
}

impl AsyncEvents {
    /// Watches a device.
    ///
    /// # Errors
    /// The errors of eventfd(2) and fcntl(2).
    pub fn new(context: Context) -> Result<Self> {
        let hub = Hub::of(context)?;
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last("eventfd"));
        }
        // SAFETY: a descriptor that was just made, and that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let waiting = Mutex::default();
        let watcher = Arc::new(Watcher { waiting, fd });
        let _ = hub.read(); // earlier events go to the existing watchers only
        let mut watchers = hub.watchers();
        if watchers.gone {
            watcher.put(AsyncEvent::DeviceFatal);
        }
        watchers.all.push(Arc::downgrade(&watcher));
        drop(watchers);
        Ok(Self { hub, watcher })
    }

    /// Two descriptors. While an event is queued, at least one of them is readable.
    ///
    /// The first is the device's: if another `AsyncEvents` empties it, the second becomes readable. Once the device is
    /// lost, the first stays readable, so stop waiting for it.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.hub.context.async_fd(), self.watcher.fd.as_raw_fd()]
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// The errors of ibv_get_async_event(3).
    pub fn next(&self) -> Result<Option<AsyncEvent>> {
        let mut waiting = self.watcher.waiting();
        if waiting.events.is_empty() {
            drop(waiting); // the hub's lock comes first
            self.hub.read()?;
            waiting = self.watcher.waiting();
        }
        let event = waiting.events.pop_front();
        if event.is_some() && waiting.events.is_empty() {
            self.watcher.quiet();
        }
        Ok(event)
    }

    /// Reports the next [`AsyncEvent::LastReceive`] of a new queue pair. What is queued about its number is dropped, as
    /// it is about an earlier one: call this before the queue pair is connected. With `false`, no longer.
    pub fn follow(&self, qp: u32, follow: bool) {
        let mut waiting = self.watcher.waiting();
        waiting.follow(qp, follow);
        if waiting.events.is_empty() {
            self.watcher.quiet();
        }
    }

    /// Number of events that were dropped because too many were queued.
    pub fn lost(&self) -> u64 {
        self.watcher.waiting().lost
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    fn event(kind: c_int, element: ibv_async_element) -> AsyncEvent {
        // SAFETY: the element is the one of the event's kind.
        unsafe { AsyncEvent::new(&ibv_async_event { element, event_type: kind }) }
    }

    #[test]
    fn events_are_told_apart_and_name_their_objects() {
        // SAFETY: all zeros are null pointers and numbers.
        let mut qp: ibv_qp = unsafe { zeroed() };
        qp.qp_num = 17;
        let of_pair = ibv_async_element { qp: &mut qp };
        let cq = std::ptr::without_provenance_mut(0x40);
        let (of_queue, of_port) = (ibv_async_element { cq }, ibv_async_element { port_num: 2 });
        let made = [
            (0, of_queue, AsyncEvent::QueueError(0x40)),
            (1, of_pair, AsyncEvent::PairFatal(17)),
            (2, of_pair, AsyncEvent::PairRequest(17)),
            (3, of_pair, AsyncEvent::PairAccess(17)),
            (4, of_pair, AsyncEvent::Other(4)),
            (5, of_pair, AsyncEvent::Other(5)),
            (6, of_pair, AsyncEvent::PathMigrated(17)),
            (7, of_pair, AsyncEvent::PathFailed(17)),
            (8, of_port, AsyncEvent::DeviceFatal),
            (9, of_port, AsyncEvent::PortActive(2)),
            (10, of_port, AsyncEvent::PortError(2)),
            (11, of_port, AsyncEvent::LidChanged(2)),
            (12, of_port, AsyncEvent::KeysChanged(2)),
            (13, of_port, AsyncEvent::ManagerChanged(2)),
            (14, of_queue, AsyncEvent::SharedError(0x40)),
            (15, of_queue, AsyncEvent::SharedLimit(0x40)),
            (16, of_pair, AsyncEvent::LastReceive(17)),
            (17, of_port, AsyncEvent::ClientReregister(2)),
            (18, of_port, AsyncEvent::GidsChanged(2)),
            (99, of_port, AsyncEvent::Other(99)),
        ];
        for (kind, element, expected) in made {
            assert_eq!(event(kind, element), expected, "{kind}");
        }
        assert_eq!(AsyncEvent::PairAccess(3).failed_pair(), Some(3));
        assert_eq!(AsyncEvent::PathFailed(3).failed_pair(), None);
        assert_eq!(AsyncEvent::SharedLimit(3).failed_queue(), None);
        assert_eq!(AsyncEvent::GidsChanged(3).port(), Some(3));
    }

    #[test]
    fn of_too_many_events_failures_stay_longest_and_the_device_s_end_for_ever() {
        let mut waiting = Waiting::default();
        waiting.put(AsyncEvent::DeviceFatal);
        waiting.put(AsyncEvent::QueueError(1));
        for port in 0..MAX_QUEUED_EVENTS {
            waiting.put(AsyncEvent::PortError(port as u8));
        }
        assert_eq!((waiting.events.len(), waiting.lost), (MAX_QUEUED_EVENTS, 2));
        let kept = [AsyncEvent::DeviceFatal, AsyncEvent::QueueError(1), AsyncEvent::PortError(2)];
        assert_eq!([0, 1, 2].map(|at| waiting.events[at]), kept);
        for qp in 0..=MAX_QUEUED_EVENTS as u32 {
            waiting.put(AsyncEvent::PairFatal(qp));
        }
        let failures = MAX_QUEUED_EVENTS as u32 - 1;
        assert_eq!(waiting.events.len(), MAX_QUEUED_EVENTS);
        assert_eq!(waiting.events[0], AsyncEvent::DeviceFatal);
        assert_eq!(waiting.events[1], AsyncEvent::PairFatal(MAX_QUEUED_EVENTS as u32 + 1 - failures));
        let news = [4, 5, 99].map(|kind| AsyncEvent::Other(kind).is_news());
        assert_eq!(news, [false, false, true]);
    }

    #[test]
    fn the_last_receive_of_a_queue_pair_is_told_once_to_who_follows_it() {
        let mut waiting = Waiting::default();
        waiting.followed.extend([7, 8]);
        let wants = [6, 7, 7, 8].map(|qp| waiting.wants(AsyncEvent::LastReceive(qp)));
        assert_eq!(wants, [false, true, false, true]);
        assert!(waiting.wants(AsyncEvent::PairFatal(6)));
    }

    /// Regression test: a new queue pair counted as drained, or as failed, by an event of an earlier one of its number.
    #[test]
    fn a_followed_queue_pair_gets_no_event_of_an_earlier_one_of_its_number() {
        let mut waiting = Waiting::default();
        waiting.follow(7, true);
        let others = [AsyncEvent::PairFatal(8), AsyncEvent::PortError(7), AsyncEvent::QueueError(7)];
        let of_pair = [AsyncEvent::LastReceive(7), AsyncEvent::PairFatal(7), AsyncEvent::PathFailed(7)];
        for event in of_pair.into_iter().chain(others) {
            if waiting.wants(event) {
                waiting.put(event);
            }
        }
        waiting.follow(7, false);
        assert_eq!(waiting.events.len(), 6, "it ends with its events unread");
        waiting.follow(7, true);
        assert_eq!(Vec::from(waiting.events.clone()), others);
        assert!(waiting.wants(AsyncEvent::LastReceive(7)));
    }
}
