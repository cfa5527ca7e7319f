//! The objects on the fabric and their scheduling; `execute.rs` has the effects of requests, `faults.rs` the failures
//! that tests ask for.

mod execute;
mod faults;
mod mute;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use ofi_core::sys;
use ofi_verbs::rc::{Access, Opcode, Post, Remote, Segment, Sizes, Status, Work, WorkCompletion};

use self::execute::place;
pub use self::execute::{device_copy, put, total};
use self::mute::Mute;
use super::events::Watcher;
use super::meeting::{CmMessage, Id, Told};
use super::ud::Ud;
use super::{Did, Logged, Plan};
use crate::mapped::Mapped;

/// A registration of the local end is missing.
pub const LOCAL_PROTECTION: Status = Status::from_raw(4);
/// The retry count that makes a sender wait for receives for ever.
const FOR_EVER: u8 = 7;

/// Outgoing bytes.
pub enum Bytes {
    /// The request contains them.
    Inline(Vec<u8>),
    /// They are read when they are sent.
    At(Vec<Segment>),
}

/// The effect of a request at the other end.
pub enum What {
    Send(Bytes, Option<u32>),
    Write(Bytes, Remote, Option<u32>),
    Read(Vec<Segment>, Remote),
    /// Changes a number and reads the old value: fetch-and-add, compare-and-swap.
    Change(Vec<Segment>, Work),
}

/// A request that has not been executed.
pub struct Request {
    pub id: u64,
    pub how: Post,
    pub what: What,
    /// Its number in its queue pair.
    number: u64,
}

/// An executed request whose completion was not reported.
struct Executed {
    due: u64,
    id: u64,
    number: u64,
    status: Status,
    quiet: bool,
    read: Option<Reading>,
}

/// The data read, its destination, and the place from which it may be read again.
type Reading = (Vec<Segment>, Vec<u8>, Option<Remote>);

/// A receive.
type Receive = (u64, Vec<Segment>);

/// The source of a queue pair's receives.
pub enum Receives {
    /// The shared receives of an endpoint.
    Of(u64),
    /// Its own receives, and their maximum number.
    Own(VecDeque<Receive>, usize),
}

/// The contents of a receive.
struct Got {
    len: usize,
    data: Option<u32>,
    /// Written to memory elsewhere.
    written: bool,
}

impl Got {
    const NOTHING: Self = Self { len: 0, data: None, written: false };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Made,
    Ready,
    /// It has failed silently: no posted request ends.
    Stuck,
    Failed,
}

/// A queue pair.
pub struct Pair {
    /// The endpoint to which completions are reported.
    pub endpoint: u64,
    receives: Receives,
    /// The maximum number of requests.
    requests: usize,
    pub other: Option<u32>,
    /// Retries of a send that finds no receive.
    pub tries: u8,
    stage: Stage,
    posted: VecDeque<Request>,
    executed: VecDeque<Executed>,
    /// A write that was reported but is not yet in memory, and the time when it will be.
    unplaced: Option<(u64, Remote, Vec<u8>)>,
    /// The numbers of the next request and of the first one that still occupies room in the queue.
    next: u64,
    freed: u64,
    /// No attempt before this time.
    wait: u64,
    tried: u8,
    /// The other end does not answer: the time when the request fails.
    given_up: Option<u64>,
    /// The number of the first request that has not left over a mute link.
    left: u64,
    /// The receive of a message in flight, which is returned at this time.
    flushing: Option<(u64, u64)>,
}

impl Pair {
    pub fn new(endpoint: u64, receives: Receives, requests: usize) -> Self {
        Self {
            endpoint,
            receives,
            requests,
            other: None,
            tries: FOR_EVER,
            stage: Stage::Made,
            posted: VecDeque::new(),
            executed: VecDeque::new(),
            unplaced: None,
            next: 0,
            freed: 0,
            wait: 0,
            tried: 0,
            given_up: None,
            left: 0,
            flushing: None,
        }
    }

    fn is_still(&self) -> bool {
        let has_left = self.posted.is_empty() && self.executed.is_empty();
        has_left && self.unplaced.is_none() && self.flushing.is_none()
    }
}

/// The state of an endpoint.
pub struct Endpoint {
    pub sizes: Sizes,
    pub address: Option<SocketAddr>,
    pub told: VecDeque<Told>,
    pub told_fd: OwnedFd,
    /// It is disconnected from the fabric.
    pub vanished: bool,
    receives: VecDeque<Receive>,
    /// Completions, and the numbers of their requests.
    done: VecDeque<(WorkCompletion, Option<u64>)>,
    /// The completion queue has overflowed.
    overrun: bool,
    /// The completion queue has failed: nothing more is reported.
    deaf: bool,
    armed: bool,
    done_fd: OwnedFd,
    log: Vec<Logged>,
    reported: usize,
}

impl Endpoint {
    pub fn new(sizes: Sizes, done_fd: OwnedFd, told_fd: OwnedFd) -> Self {
        Self {
            sizes,
            address: None,
            told: VecDeque::new(),
            told_fd,
            vanished: false,
            receives: VecDeque::new(),
            done: VecDeque::new(),
            overrun: false,
            deaf: false,
            armed: false,
            done_fd,
            log: Vec::new(),
            reported: 0,
        }
    }

    fn push(&mut self, qp: u32, id: u64, status: Status, of: Result<Got, u64>) {
        let (opcode, Got { len, data, .. }, request) = match of {
            Ok(got) if got.written => (Opcode::WriteArrived, got, None),
            Ok(got) => (Opcode::Receive, got, None),
            Err(number) => (Opcode::Request, Got::NOTHING, Some(number)),
        };
        let entry =
            WorkCompletion { id, status, opcode, len, qp, data, source_qp: 0, lid: 0, has_route: false };
        self.put(entry, request);
    }

    fn put(&mut self, entry: WorkCompletion, request: Option<u64>) {
        if self.deaf {
            return;
        }
        self.overrun |= self.done.len() >= self.sizes.completions;
        self.reported += usize::from(request.is_some());
        self.done.push_back((entry, request));
        if std::mem::take(&mut self.armed) {
            sys::signal_eventfd(&self.done_fd);
        }
    }

    /// Adds the completion of a datagram, sent or received.
    pub fn push_entry(&mut self, entry: WorkCompletion) {
        self.put(entry, (entry.opcode == Opcode::Request).then_some(0));
    }

    /// Unread completions of receives.
    pub fn received(&self) -> usize {
        self.done.iter().filter(|(_, request)| request.is_none()).count()
    }

    /// Records a posted request.
    pub fn note(&mut self, logged: Logged) {
        self.log.push(logged);
    }

    /// The requests posted since the last call, and the number of completions reported.
    pub fn take_log(&mut self) -> (Vec<Logged>, usize) {
        (std::mem::take(&mut self.log), std::mem::take(&mut self.reported))
    }

    pub fn arm(&mut self) {
        self.armed = true;
    }

    pub fn quiet(&self) {
        sys::drain_eventfd(&self.done_fd);
    }

    pub fn tell(&mut self, told: Told) {
        self.told.push_back(told);
        sys::signal_eventfd(&self.told_fd);
    }

    /// Drops the pending events of a connection end.
    pub fn untell(&mut self, id: usize) {
        self.told.retain(|told| told.id != id);
        if self.told.is_empty() {
            sys::drain_eventfd(&self.told_fd);
        }
    }
}

/// The state of one simulated fabric: its objects, its clock and the failures that tests asked for.
pub struct Fabric {
    pub endpoints: BTreeMap<u64, Endpoint>,
    pub ids: BTreeMap<usize, Id>,
    pub pairs: BTreeMap<u32, Pair>,
    pub listening: BTreeMap<SocketAddr, u64>,
    pub messages: Vec<(u64, CmMessage)>,
    pub plan: Plan,
    pub clock: Duration,
    /// The device has been removed.
    pub removed: bool,
    /// The device has failed silently: it executes and reports nothing any more.
    pub dead: bool,
    /// Subscribers to the device's events.
    pub watchers: BTreeMap<u64, Watcher>,
    /// The last number assigned of each kind.
    pub last: Last,
    pub steps: u64,
    /// How often completion queues were polled.
    pub polls: usize,
    pub ud: Ud,
    mute: Mute,
    driven: bool,
    draws: u64,
    /// Queue pairs with pending work.
    busy: Vec<u32>,
    /// Registrations by key: first byte, length, and peers' rights.
    registered: BTreeMap<u32, (u64, usize, Access)>,
    /// The device's mappings of dma-bufs, by key.
    mapped: BTreeMap<u32, Mapped>,
    /// The maximum number of bytes of all registrations together.
    lockable: usize,
}

/// See [`Fabric::last`].
#[derive(Default)]
pub struct Last {
    pub watcher: u64,
    pub endpoint: u64,
    pub id: usize,
    pub pair: u32,
    pub port: u16,
    key: u32,
}

// SAFETY: segments are of memory that its owner lends the device until the request has ended or the queue is gone,
// whichever thread moves it.
unsafe impl Send for Fabric {}

impl Fabric {
    pub fn new(plan: Plan, driven: bool) -> Self {
        Self {
            endpoints: BTreeMap::new(),
            ids: BTreeMap::new(),
            pairs: BTreeMap::new(),
            listening: BTreeMap::new(),
            messages: Vec::new(),
            plan,
            clock: Duration::ZERO,
            removed: false,
            dead: false,
            watchers: BTreeMap::new(),
            last: Last::default(),
            steps: 0,
            polls: 0,
            ud: Ud::default(),
            mute: Mute::default(),
            driven,
            draws: plan.seed,
            busy: Vec::new(),
            registered: BTreeMap::new(),
            mapped: BTreeMap::new(),
            lockable: usize::MAX,
        }
    }

    /// Registrations that exist.
    pub fn registrations(&self) -> usize {
        self.registered.len()
    }

    pub fn begin(&mut self, plan: Plan) {
        assert!(self.ud.pairs.is_empty(), "queue pairs for datagrams of before");
        assert!(self.ud.joins.is_empty(), "joins of before");
        assert!(self.watchers.is_empty(), "watchers of before");
        let left = (self.endpoints.len(), self.ids.len(), self.pairs.len(), self.registered.len());
        assert_eq!(left, (0, 0, 0, 0), "endpoints, connections, queue pairs and registrations of before");
        let clock = self.clock;
        *self = Self { clock, ..Self::new(plan, self.driven) };
    }

    /// The next number drawn (SplitMix64).
    pub fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.draws;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        percent > 0 && self.draw() % 100 < percent
    }

    pub fn is_still(&self) -> bool {
        self.dead || self.busy.is_empty() && self.messages.is_empty() && !self.has_datagrams()
    }

    /// Whether only polls drive the fabric.
    pub fn is_driven(&self) -> bool {
        self.driven
    }

    pub(super) fn endpoint_at(&self, address: SocketAddr) -> Option<u64> {
        self.endpoints.iter().find(|(_, it)| it.address == Some(address)).map(|(&number, _)| number)
    }

    /// The other end of the connected endpoint of this name.
    fn connected_at(&self, name: SocketAddr) -> Option<u64> {
        let qp = self.ids.values().filter(|id| id.own == name).find_map(|id| id.qp)?;
        self.pairs.get(&qp).map(|pair| pair.endpoint)
    }

    pub fn receives(&self, of: SocketAddr) -> usize {
        let Some(it) = self.endpoint_at(of).and_then(|number| self.endpoints.get(&number)) else { return 0 };
        it.receives.len() + it.received()
    }

    pub fn take_log(&mut self, of: SocketAddr) -> (Vec<Logged>, usize) {
        let number = self.endpoint_at(of).or_else(|| self.connected_at(of));
        let found = number.and_then(|number| self.endpoints.get_mut(&number));
        found.map_or((Vec::new(), 0), Endpoint::take_log)
    }

    /// A key for a registration; `None` if so much memory may not be locked. Numbers are reused late, as on a device,
    /// and have 24 bits.
    pub fn register(&mut self, addr: u64, len: usize, access: Access) -> Option<u32> {
        if self.locked().saturating_add(len) > self.lockable {
            return None;
        }
        loop {
            self.last.key = (self.last.key + 1) & 0xFF_FFFF;
            let key = self.last.key;
            if key != 0 && !self.registered.contains_key(&key) {
                self.registered.insert(key, (addr, len, access));
                return Some(key);
            }
        }
    }

    fn locked(&self) -> usize {
        self.registered.values().map(|(_, len, _)| len).sum()
    }

    /// Limits registrations to `more` bytes beyond the present ones.
    pub fn limit_locked(&mut self, more: usize) {
        self.lockable = self.locked().saturating_add(more);
    }

    /// Places reported writes before the memory's owner gets it back.
    pub fn deregister(&mut self, key: u32) {
        for pair in self.pairs.values_mut() {
            if pair.unplaced.as_ref().is_some_and(|(_, at, _)| at.rkey == key) {
                place(pair);
            }
        }
        self.registered.remove(&key);
        self.mapped.remove(&key);
    }

    /// As [`Fabric::register`], for memory behind a descriptor that accesses address from `addr` on.
    pub fn register_mapped(&mut self, mapped: Mapped, addr: u64, len: usize, access: Access) -> Option<u32> {
        let key = self.register(addr, len, access)?;
        self.mapped.insert(key, mapped);
        Some(key)
    }

    /// Whether a peer may access this place.
    fn allows(&self, at: Remote, len: usize, write: bool) -> bool {
        if len == 0 {
            return true; // without checking a key
        }
        let Some(&(addr, size, access)) = self.registered.get(&at.rkey) else { return false };
        let right = match access {
            Access::Local | Access::LocalWrite => false,
            Access::RemoteRead => !write,
            Access::RemoteWrite => write,
            Access::RemoteReadWrite | Access::RemoteAtomic => true,
        };
        let end = at.addr.checked_sub(addr).and_then(|offset| offset.checked_add(len as u64));
        right && end.is_some_and(|end| end <= size as u64)
    }

    /// Whether this end has registered all of that memory.
    pub fn owns(&self, segment: Segment) -> bool {
        if segment.len == 0 {
            return true;
        }
        let addr = segment.addr.addr() as u64;
        self.registered
            .get(&segment.lkey)
            .is_some_and(|&(base, len, _)| addr >= base && addr + u64::from(segment.len) <= base + len as u64)
    }

    /// Posts a receive. `false` if the queue is full.
    pub fn receive(&mut self, endpoint: u64, id: u64, into: Vec<Segment>) -> bool {
        assert!(self.owns_all(&into), "a receive into memory that is not registered");
        let Some(it) = self.endpoints.get_mut(&endpoint) else { return false };
        let fits = it.receives.len() < it.sizes.receives;
        if fits {
            it.receives.push_back((id, into));
        }
        fits
    }

    /// Posts a receive of a queue pair's own. `false` if the queue is full.
    pub fn receive_of(&mut self, qp: u32, id: u64, into: Vec<Segment>) -> bool {
        assert!(self.owns_all(&into), "a receive into memory that is not registered");
        let Some(pair) = self.pairs.get_mut(&qp) else { return false };
        let Receives::Own(posted, size) = &mut pair.receives else { return false };
        if posted.len() >= *size {
            return false;
        }
        if pair.stage != Stage::Failed {
            posted.push_back((id, into));
        } else if let Some(it) = self.endpoints.get_mut(&pair.endpoint) {
            it.push(qp, id, Status::FLUSHED, Ok(Got::NOTHING));
        }
        true
    }

    fn owns_all(&self, segments: &[Segment]) -> bool {
        segments.iter().all(|&segment| self.owns(segment))
    }

    /// Takes completions of requests and receives.
    pub fn poll(&mut self, endpoint: u64, into: &mut VecDeque<WorkCompletion>) -> usize {
        self.polls += 1;
        self.step();
        let Some(it) = self.endpoints.get_mut(&endpoint) else { return 0 };
        assert!(!it.overrun, "a completion queue of {} entries is overrun", it.sizes.completions);
        // A limited number per call, like a device's library.
        let count = it.done.len().min(32);
        for (entry, request) in it.done.drain(..count) {
            if let (Some(number), Some(pair)) = (request, self.pairs.get_mut(&entry.qp)) {
                pair.freed = pair.freed.max(number + 1);
            }
            self.ud.taken(&entry);
            into.push_back(entry);
        }
        count
    }

    /// Posts a request. `false` if the queue is full.
    pub fn post(&mut self, qp: u32, id: u64, what: What, how: Post) -> bool {
        let (did, segments) = match &what {
            What::Send(bytes, _) => (Did::Sent, bytes.segments()),
            What::Write(bytes, ..) => (Did::Wrote, bytes.segments()),
            What::Read(into, _) => (Did::Read, &into[..]),
            What::Change(into, _) => (Did::Changed, &into[..]),
        };
        assert!(self.owns_all(segments), "memory that is not registered: {segments:?}");
        let Some(pair) = self.pairs.get_mut(&qp) else { return false };
        let Some(it) = self.endpoints.get_mut(&pair.endpoint) else { return false };
        if pair.next - pair.freed >= pair.requests as u64 {
            return false;
        }
        let (addr, len) = match &what {
            What::Send(Bytes::Inline(bytes), _) | What::Write(Bytes::Inline(bytes), ..) => (0, bytes.len()),
            _ => (segments.first().map_or(0, |first| first.addr.addr()), total(segments)),
        };
        it.log.push(Logged { did, addr, len, inline: how.inline, reported: !how.quiet });
        let request = Request { id, how, what, number: pair.next };
        pair.next += 1;
        if pair.stage == Stage::Failed {
            let status = Status::FLUSHED;
            let Request { id, number, .. } = request;
            pair.executed.push_back(Executed { due: 0, id, number, status, quiet: false, read: None });
        } else {
            pair.posted.push_back(request);
        }
        self.wake(qp);
        true
    }

    fn wake(&mut self, qp: u32) {
        if !self.busy.contains(&qp) {
            self.busy.push(qp);
        }
    }

    /// Makes a queue pair usable.
    pub fn ready(&mut self, qp: u32, other: u32) {
        if let Some(pair) = self.pairs.get_mut(&qp)
            && pair.stage == Stage::Made
        {
            (pair.stage, pair.other) = (Stage::Ready, Some(other));
        }
    }

    /// Reports everything that the other end has acknowledged: acknowledgements were faster than the next event.
    pub fn report_all(&mut self, qp: u32) {
        let Some(mut pair) = self.pairs.remove(&qp) else { return };
        pair.executed.iter_mut().for_each(|executed| executed.due = 0);
        self.report(qp, &mut pair);
        self.pairs.insert(qp, pair);
    }

    /// Destroys a queue pair: the device no longer accesses memory of its requests.
    pub fn destroy(&mut self, qp: u32) {
        let Some(mut pair) = self.pairs.remove(&qp) else { return };
        place(&mut pair);
        self.busy.retain(|&other| other != qp);
        if self.plan.cleans
            && let Some(it) = self.endpoints.get_mut(&pair.endpoint)
        {
            it.done.retain(|(entry, _)| entry.qp != qp);
        }
    }

    /// Lets time pass during a call, in which other connections proceed.
    pub fn pass(&mut self) {
        if self.driven {
            self.step();
        }
    }

    /// Executes some pending work on randomly chosen connections.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.dead {
            self.clock += Duration::from_micros(200);
            return;
        }
        self.clock += Duration::from_micros(if self.is_still() { 200 } else { 10 });
        self.deliver_messages();
        self.move_datagrams();
        for _ in 0..self.busy.len().min(64) {
            if self.busy.is_empty() {
                break;
            }
            let at = self.draw() as usize % self.busy.len();
            let qp = self.busy[at];
            if !self.advance(qp) {
                self.busy.swap_remove(at);
            }
        }
    }

    /// Advances a connection. Whether work is left.
    fn advance(&mut self, qp: u32) -> bool {
        let Some(mut pair) = self.pairs.remove(&qp) else { return false };
        let most = if self.driven { 1 + self.draw() % 4 } else { 64 };
        if pair.stage == Stage::Ready && self.is_mute(&pair) {
            self.leave_over_mute(&mut pair);
            let goes_on = !pair.is_still();
            self.pairs.insert(qp, pair);
            return goes_on;
        }
        self.report(qp, &mut pair);
        for _ in 0..most {
            if !self.execute(&mut pair) {
                break;
            }
        }
        self.report(qp, &mut pair);
        if pair.unplaced.as_ref().is_some_and(|(due, ..)| *due <= self.steps) {
            place(&mut pair);
        }
        self.flush_late(qp, &mut pair);
        let goes_on = !pair.is_still();
        self.pairs.insert(qp, pair);
        goes_on
    }

    /// Reports the due completions of requests in order.
    fn report(&mut self, qp: u32, pair: &mut Pair) {
        while let Some(executed) = pair.executed.pop_front_if(|executed| executed.due <= self.steps) {
            let Executed { id, number, mut status, quiet, read, .. } = executed;
            if let Some((into, mut bytes, again)) = read {
                if let Some(at) = again.filter(|&at| self.allows(at, bytes.len(), false)) {
                    bytes = self.take(at, bytes.len());
                }
                if self.owns_all(&into) {
                    put(&self.real_all(&into), &bytes);
                } else {
                    status = LOCAL_PROTECTION;
                }
            }
            let is_bad = status != Status::SUCCESS;
            if (is_bad || !quiet)
                && let Some(it) = self.endpoints.get_mut(&pair.endpoint)
            {
                it.push(qp, id, status, Err(number));
            }
        }
    }
}

impl Bytes {
    fn segments(&self) -> &[Segment] {
        match self {
            Self::Inline(_) => &[],
            Self::At(segments) => segments,
        }
    }
}
