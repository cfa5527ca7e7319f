//! A simulated fabric of SRD devices in this process: messages arrive once, in any order, or fail in the ways of a
//! device.
//!
//! A seed determines all events: which message arrives next, how long its completion takes, and whether a receiver is
//! not ready. Only polls of endpoints drive the fabric, apart from a thread that does so for sleeping endpoints. A
//! [`SimulatedDevice::driven`] device has no such thread and a clock of its own, so that a run of one thread is
//! reproducible from its seed. The fabric says nothing about a device's speed.

mod device;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ofi_core::sys;
use ofi_efa::srd::{Access, Completion, From, Gid, Remote, Segment, Status, To};

use crate::mapped::Mapped;

pub use device::Handle;

/// The behaviour of a fabric.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Bytes of the longest message.
    pub mtu: usize,
    /// Messages per 100 that find their receiver not ready although it is.
    pub not_ready: u64,
    /// Requests per 100 that are reported late to their sender.
    pub late: u64,
    /// The maximum number of receives of a queue pair.
    pub receives: usize,
    /// Whether the device reads and writes peers' memory.
    pub rdma: bool,
    /// Whether writes with data need no receive.
    pub unsolicited: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: 1, mtu: 8760, not_ready: 0, late: 0, receives: 4096, rdma: true, unsolicited: true }
    }
}

/// The device's status for memory of this end that is not registered (rdma-core,
/// `EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY`).
const LOCAL_KEY: u32 = 5;
/// The device's status for a feature that the two ends have set differently
/// (`EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH`).
const FEATURE: u32 = 18;

/// A message in flight.
struct Flight {
    from: u16,
    /// Identifies its sender among the queue pairs that had that number.
    life: u64,
    id: u64,
    to: To,
    what: What,
    /// Its place in the order of all messages.
    number: u64,
}

/// The effect of a message at its receiver. A write is `unsolicited` as its sender's queue pair is.
enum What {
    Send(Vec<u8>, Option<u32>),
    Read { into: Segment, at: Remote },
    Write { bytes: Vec<u8>, at: Remote, data: Option<u32>, unsolicited: bool },
}

// SAFETY: the segment is of memory that the queue pair's owner lends it until the request has ended, whichever thread
// moves it.
unsafe impl Send for What {}

struct Queue {
    qkey: u32,
    /// Unique among queue pairs.
    life: u64,
    /// The maximum number of requests in flight, and their current number.
    sends: usize,
    /// The maximum number of bytes that a send carries inline.
    inline: usize,
    /// Whether writes with data consume no receive.
    unsolicited: bool,
    posted: usize,
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<Completion>,
    /// Known devices by their numbers.
    handles: Vec<Gid>,
    armed: bool,
    event: OwnedFd,
    stopped: bool,
}

// SAFETY: the segments are of memory that the queue pair's owner lends it until it is dropped, whichever thread polls.
unsafe impl Send for Queue {}

impl Queue {
    /// Flushes everything that is posted; messages in flight find the queue pair stopped.
    fn stop(&mut self) {
        self.stopped = true;
        while let Some((id, _)) = self.receives.pop_front() {
            self.push(Completion::Returned { id });
        }
    }

    fn push(&mut self, completion: Completion) {
        self.done.push_back(completion);
        if std::mem::take(&mut self.armed) {
            sys::signal_eventfd(&self.event);
        }
    }
}

struct Inner {
    draws: u64,
    queues: HashMap<u16, Queue>,
    plan: Plan,
    /// Steps since the plan began.
    steps: u64,
    clock: Duration,
    flying: Vec<Flight>,
    /// Messages that were ever sent.
    sent: u64,
    /// The newest message that each queue pair delivered to another, and the number of messages that arrived after a
    /// newer one.
    newest: HashMap<(u16, u16), u64>,
    overtaken: u64,
    /// Late completions: time, number and life of the queue pair, and result.
    late: Vec<(u64, u16, u64, Completion)>,
    /// Reads and writes in each doorbell that had any.
    accesses: Vec<usize>,
    /// Queue pairs whose links are mute.
    muted: Vec<u16>,
    /// Messages that will be reported as failed: source, destination, whether they arrive nevertheless, and the status.
    cuts: Vec<(u16, u16, bool, Status)>,
    /// The number of messages per 1,000 that are reported as unanswered.
    lost: u64,
    /// Queue pairs whose next message is delayed: source, destination.
    delays: Vec<(u16, u16)>,
    /// Messages that are delayed.
    delayed: Vec<Flight>,
    last_qpn: u16,
    /// The number of the next queue pair.
    next_qpn: Option<u16>,
    lives: u64,
    /// Registrations by key: first byte, length, and peers' rights.
    registered: HashMap<u32, (u64, usize, Access)>,
    /// The device's mappings of dma-bufs, by key.
    mapped: HashMap<u32, Mapped>,
    last_key: u32,
    /// The memory of the last request.
    last_used: usize,
    /// Whether the last message was in its request.
    last_inline: bool,
    /// Number of writes that have consumed a receive.
    solicited: usize,
    /// The retry count that the last queue pair was opened with.
    rnr_retry: Option<u8>,
}

impl Inner {
    /// A key for a registration. Numbers are reused late, as on a device, and have 24 bits.
    fn register(&mut self, addr: u64, len: usize, access: Access) -> u32 {
        loop {
            self.last_key = (self.last_key + 1) & 0xFF_FFFF;
            let key = self.last_key;
            if key != 0 && !self.registered.contains_key(&key) {
                self.registered.insert(key, (addr, len, access));
                return key;
            }
        }
    }

    /// Whether a peer may access this place.
    fn allows(&self, at: Remote, len: usize, write: bool) -> bool {
        let Some(&(addr, size, access)) = self.registered.get(&at.rkey) else { return false };
        let right = match access {
            Access::Local | Access::LocalWrite => false,
            Access::RemoteRead => !write,
            Access::RemoteWrite => write,
            Access::RemoteReadWrite | Access::RemoteAtomic => true,
        };
        let offset = at.addr.checked_sub(addr);
        right
            && offset
                .is_some_and(|offset| offset.checked_add(len as u64).is_some_and(|end| end <= size as u64))
    }
}

impl Inner {
    /// The memory that accesses name by this place.
    fn place(&self, at: Remote) -> *mut u8 {
        match self.mapped.get(&at.rkey) {
            Some(mapped) => mapped.at(at.addr),
            None => std::ptr::with_exposed_provenance_mut(at.addr as usize),
        }
    }

    /// The memory of this end that a request names.
    fn local(&self, segment: Segment) -> *mut u8 {
        match self.mapped.get(&segment.lkey) {
            Some(mapped) => mapped.at(segment.addr.addr() as u64),
            None => segment.addr,
        }
    }

    /// Reports the result of a request to its sender, if that still exists.
    fn tell(&mut self, from: u16, life: u64, completion: Completion) {
        if let Some(sender) = self.queues.get_mut(&from).filter(|queue| queue.life == life) {
            sender.push(completion);
        }
    }

    /// Whether this end has registered all of that memory.
    fn owns(&self, segment: Segment) -> bool {
        let addr = segment.addr.addr() as u64;
        self.registered
            .get(&segment.lkey)
            .is_some_and(|&(base, len, _)| addr >= base && addr + segment.len as u64 <= base + len as u64)
    }

    /// The next number drawn (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.draws;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }
}

/// A device, which is alone on its fabric.
pub struct SimulatedDevice {
    name: String,
    /// The start of its clock; `None`: it uses the system's clock.
    began: Option<Instant>,
    inner: Mutex<Inner>,
    /// Signalled when work is pending.
    work: Condvar,
    /// Whether registrations without rights for peers are refused.
    refuses: AtomicBool,
    /// Whether requests are refused.
    full: AtomicBool,
    /// Whether messages are held back.
    held: AtomicBool,
    /// Whether the device is lost.
    dead: AtomicBool,
    /// Whether the device has no notifications.
    silent: AtomicBool,
}

impl SimulatedDevice {
    /// A device with a thread that drives pending work for the life of the process.
    pub fn new(name: &str, plan: Plan) -> Arc<Self> {
        let device = Arc::new(Self::with(name, plan, None));
        let mover = Arc::clone(&device);
        std::thread::spawn(move || {
            loop {
                let mut inner = mover.lock();
                while inner.flying.is_empty() && inner.late.is_empty() {
                    inner = mover.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
                }
                mover.step(&mut inner);
                drop(inner);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        device
    }

    /// A device that only polls drive, including its clock. Threads cannot sleep on it.
    pub fn driven(name: &str, plan: Plan) -> Arc<Self> {
        Arc::new(Self::with(name, plan, Some(Instant::now())))
    }

    fn with(name: &str, plan: Plan, began: Option<Instant>) -> Self {
        let inner = Inner {
            draws: plan.seed,
            queues: HashMap::new(),
            plan,
            steps: 0,
            clock: Duration::ZERO,
            flying: Vec::new(),
            sent: 0,
            newest: HashMap::new(),
            overtaken: 0,
            late: Vec::new(),
            accesses: Vec::new(),
            muted: Vec::new(),
            cuts: Vec::new(),
            lost: 0,
            delays: Vec::new(),
            delayed: Vec::new(),
            last_qpn: 0,
            next_qpn: None,
            lives: 0,
            registered: HashMap::new(),
            mapped: HashMap::new(),
            last_key: 0,
            last_used: 0,
            last_inline: false,
            solicited: 0,
            rnr_retry: None,
        };
        Self {
            name: name.to_string(),
            began,
            inner: Mutex::new(inner),
            work: Condvar::new(),
            refuses: AtomicBool::new(false),
            full: AtomicBool::new(false),
            held: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        }
    }

    /// Starts over with another plan, for endpoints that are opened from now on. Waits for registrations to go: the
    /// thread of a memory monitor may hold those of a closed domain for a moment.
    ///
    /// # Panics
    /// If an object is left: queue pairs, registrations, messages in flight.
    pub fn begin(&self, plan: Plan) {
        let began = Instant::now();
        while !self.lock().registered.is_empty() && began.elapsed() < crate::UNREGISTERED_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut inner = self.lock();
        let left = (inner.queues.len(), inner.registered.len());
        assert_eq!(left, (0, 0), "queue pairs and registrations of before");
        inner.flying.clear();
        inner.muted.clear();
        inner.late.clear();
        inner.cuts.clear();
        inner.lost = 0;
        inner.delays.clear();
        inner.delayed.clear();
        (inner.draws, inner.plan, inner.steps) = (plan.seed, plan, 0);
        (inner.last_qpn, inner.last_key) = (0, 0);
    }

    /// Makes a queue pair fail: posted and in-flight work is flushed.
    pub fn stop(&self, qpn: u16) {
        if let Some(queue) = self.lock().queues.get_mut(&qpn) {
            queue.stop();
        }
    }

    /// Reports the next message or access between two queue pairs as failed, whether it arrives or not.
    pub fn cut(&self, from: u16, to: u16, arrives: bool) {
        self.fail(from, to, arrives, Status::Unresponsive);
    }

    /// The same, with this status.
    pub fn fail(&self, from: u16, to: u16, arrives: bool, status: Status) {
        self.lock().cuts.push((from, to, arrives, status));
    }

    /// Withdraws the planned reports that no message has received yet.
    pub fn mend_cuts(&self) {
        self.lock().cuts.clear();
    }

    /// Sets how many messages per 1,000 are reported as unanswered; half of these arrive nevertheless.
    pub fn lose(&self, per_mille: u64) {
        self.lock().lost = per_mille;
    }

    /// Delays the next message or access between two queue pairs until [`SimulatedDevice::release`], as a device does
    /// that sends a packet again and again. Later ones overtake it.
    pub fn delay(&self, from: u16, to: u16) {
        self.lock().delays.push((from, to));
    }

    /// Sends delayed messages.
    pub fn release(&self) {
        let mut inner = self.lock();
        inner.delays.clear();
        let delayed = std::mem::take(&mut inner.delayed);
        inner.flying.extend(delayed);
        drop(inner);
        self.work.notify_one();
    }

    /// Makes the links of these queue pairs mute: data in either direction neither arrives nor fails until
    /// [`SimulatedDevice::mend`].
    pub fn mute(&self, qpns: &[u16]) {
        self.lock().muted.extend(qpns);
    }

    /// Mends the links: data in flight arrives.
    pub fn mend(&self) {
        self.lock().muted.clear();
        self.work.notify_one();
    }

    /// Assigns this number to the next queue pair, if it is free.
    pub fn reuse(&self, qpn: u16) {
        self.lock().next_qpn = Some(qpn);
    }

    /// The number of reads and writes that each doorbell since the last call has announced to the device. Doorbells
    /// without any are omitted.
    pub fn take_accesses(&self) -> Vec<usize> {
        std::mem::take(&mut self.lock().accesses)
    }

    /// The address of the newest request's memory.
    pub fn last_used(&self) -> usize {
        self.lock().last_used
    }

    /// Whether the last message that was posted was copied into its request.
    pub fn last_inline(&self) -> bool {
        self.lock().last_inline
    }

    /// The receiver-not-ready retry count of the queue pair that was opened last, if it was set. Here receivers are
    /// asked once.
    pub fn rnr_retry(&self) -> Option<u8> {
        self.lock().rnr_retry
    }

    /// Number of writes with data that have consumed a receive.
    pub fn solicited(&self) -> usize {
        self.lock().solicited
    }

    /// Number of requests in flight.
    pub fn flying(&self) -> usize {
        let inner = self.lock();
        inner.flying.len() + inner.late.len()
    }

    /// Number of messages and accesses that were delivered after a later one of the same two queue pairs.
    pub fn overtaken(&self) -> u64 {
        self.lock().overtaken
    }

    /// Checks that used memory is registered, if whole endpoints are driven.
    fn check(&self, inner: &Inner, segment: Segment) {
        assert!(self.began.is_none() || inner.owns(segment), "not registered: {segment:?}");
    }

    fn now(&self) -> Instant {
        self.began.map_or_else(Instant::now, |began| began + self.lock().clock)
    }

    /// Unique among the devices of all processes, since endpoints of one host find each other by it.
    fn gid(&self) -> Gid {
        let mut gid = [0xFE; 16];
        for (to, from) in gid[..12].iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        gid[12..].copy_from_slice(&std::process::id().to_be_bytes());
        gid
    }

    /// Sets whether registrations for this end's requests alone are refused.
    pub fn refuse_local(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    /// Sets whether queue pairs refuse requests, as if they were full.
    pub fn refuse_requests(&self, refuses: bool) {
        self.full.store(refuses, Ordering::Relaxed);
    }

    /// Sets whether messages in flight are held back.
    pub fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Makes the device lost: nothing moves any more, and nothing completes.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.hold(true);
    }

    /// Takes the notifications away.
    pub fn be_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Number of registrations.
    pub fn registrations(&self) -> usize {
        self.lock().registered.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers some randomly chosen messages in flight.
    fn step(&self, inner: &mut Inner) {
        if self.held.load(Ordering::Relaxed) {
            return;
        }
        inner.steps += 1;
        let quiet = inner.flying.is_empty() && inner.late.is_empty();
        inner.clock += if quiet { Duration::from_micros(200) } else { Duration::from_micros(1) };
        let is_mute =
            |flight: &Flight| inner.muted.contains(&flight.from) || inner.muted.contains(&flight.to.qpn);
        let (held, flying): (Vec<_>, _) = std::mem::take(&mut inner.flying).into_iter().partition(is_mute);
        inner.flying = flying;
        self.move_some(inner);
        inner.flying.extend(held);
        let steps = inner.steps;
        let due: Vec<_> = inner.late.extract_if(.., |late| late.0 <= steps).collect();
        for (_, from, life, completion) in due {
            inner.tell(from, life, completion);
        }
    }

    /// Delivers some randomly chosen messages.
    fn move_some(&self, inner: &mut Inner) {
        let mut most = inner.flying.len().div_ceil(2).min(64);
        if self.began.is_some() && most > 1 {
            most = inner.draw() as usize % most + 1;
        }
        for _ in 0..most {
            let at = inner.draw() as usize % inner.flying.len();
            let flight = inner.flying.swap_remove(at);
            let newest = inner.newest.entry((flight.from, flight.to.qpn)).or_default();
            let is_late = flight.number < *newest;
            *newest = flight.number.max(*newest);
            inner.overtaken += u64::from(is_late);
            let unready = inner.draw() % 100 < inner.plan.not_ready;
            let status = self.deliver(inner, &flight, unready);
            let completion = Completion::Sent { id: flight.id, status };
            if inner.draw() % 100 < inner.plan.late {
                let due = inner.steps + inner.draw() % 500;
                inner.late.push((due, flight.from, flight.life, completion));
            } else {
                inner.tell(flight.from, flight.life, completion);
            }
        }
    }

    /// The result of a request, regardless of a cut link and the state of its own queue pair.
    fn deliver(&self, inner: &mut Inner, flight: &Flight, unready: bool) -> Status {
        let cut = inner.cuts.iter().position(|cut| (cut.0, cut.1) == (flight.from, flight.to.qpn));
        let mut cut = cut.map(|at| inner.cuts.swap_remove(at));
        if cut.is_none() && inner.lost > 0 && inner.draw() % 1000 < inner.lost {
            let arrives = inner.draw().is_multiple_of(2);
            cut = Some((flight.from, flight.to.qpn, arrives, Status::Unresponsive));
        }
        if let Some((_, _, arrives, status)) = cut {
            if arrives {
                self.arrive(inner, flight, unready);
            }
            return status;
        }
        let own = inner.queues.get(&flight.from).filter(|queue| queue.life == flight.life);
        if own.is_some_and(|queue| !queue.stopped) {
            return self.arrive(inner, flight, unready);
        }
        // A sender that is gone reads nothing any more; messages it has sent may arrive.
        if !matches!(flight.what, What::Read { .. }) && inner.draw().is_multiple_of(2) {
            self.arrive(inner, flight, unready);
        }
        Status::Flushed
    }

    fn arrive(&self, inner: &mut Inner, flight: &Flight, unready: bool) -> Status {
        let gid = self.gid();
        let (bytes, wanted) = match &flight.what {
            What::Send(bytes, _) => (bytes, None),
            What::Write { bytes, at, .. } => (bytes, Some((*at, bytes.len(), true))),
            What::Read { into, at } => (&Vec::new(), Some((*at, into.len, false))),
        };
        let is_there = |queue: &Queue| queue.qkey == flight.to.qkey && !queue.stopped;
        if !inner.queues.get(&flight.to.qpn).is_some_and(is_there) {
            let silent = self.began.is_some() && inner.draw().is_multiple_of(4);
            return if silent { Status::Unresponsive } else { Status::NoDestination };
        }
        if let Some((at, len, write)) = wanted {
            if !inner.queues.get(&flight.to.qpn).is_some_and(|queue| queue.handles.contains(&gid)) {
                return Status::UnknownPeer;
            }
            if !inner.allows(at, len, write) {
                return Status::BadAddress;
            }
        }
        if let What::Read { into, .. } = flight.what {
            self.check(inner, into);
            if !inner.owns(into) {
                return Status::Failed(LOCAL_KEY); // its registration has ended since it was posted
            }
        }
        let into = match flight.what {
            What::Read { into, .. } => inner.local(into),
            _ => std::ptr::null_mut(),
        };
        let place = match flight.what {
            What::Read { at, .. } | What::Write { at, .. } => inner.place(at),
            What::Send(..) => std::ptr::null_mut(),
        };
        let Some(queue) = inner.queues.get_mut(&flight.to.qpn) else { return Status::NoDestination };
        let handle = queue.handles.iter().position(|known| *known == gid);
        let from = From { handle: handle.map(|at| at as u16), gid: Some(gid), qpn: flight.from };
        let len = bytes.len();
        let mut solicited = 0;
        match flight.what {
            What::Read { into: Segment { len, .. }, .. } => {
                // SAFETY: registered memory of at least `len` bytes; the segment is lent until the read has ended.
                unsafe { ofi_core::copy::bytes(place, into, len) };
            }
            What::Write { data: Some(_), unsolicited, .. } if unsolicited != queue.unsolicited => {
                return Status::Failed(FEATURE);
            }
            What::Write { data, .. } => {
                let id = match data {
                    Some(_) if !queue.unsolicited => {
                        if unready {
                            return Status::NotReady;
                        }
                        let Some((id, _)) = queue.receives.pop_front() else { return Status::NotReady };
                        solicited += 1;
                        Some(id)
                    }
                    _ => None,
                };
                // SAFETY: registered memory of at least `len` bytes.
                unsafe { ofi_core::copy::bytes(bytes.as_ptr(), place, len) };
                if let Some(data) = data {
                    queue.push(Completion::Written { id, len, data, from });
                }
            }
            What::Send(_, data) => {
                if unready {
                    return Status::NotReady;
                }
                let Some((id, into)) = queue.receives.pop_front() else { return Status::NotReady };
                if len > into.len {
                    queue.receives.push_front((id, into));
                    return Status::Failed(11);
                }
                // SAFETY: the segment is the queue's until its completion is taken, and was just found long enough.
                unsafe { ofi_core::copy::bytes(bytes.as_ptr(), into.addr, len) };
                queue.push(Completion::Received { id, len, data, from });
            }
        }
        inner.solicited += solicited;
        Status::Done
    }
}
