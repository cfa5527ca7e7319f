//! A simulated fabric of SRD devices in this process: messages arrive once, in any order, or fail as a device reports it.
//!
//! What happens is drawn from a seed: which message arrives next, how long its completion takes, and whether a receiver is for once not ready.
//! Nothing moves unless an endpoint polls, but for a thread that moves what is under way for those who sleep. Nothing that is seen here says
//! anything about a device's speed.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ofi::raw::{Errno, Error, Nic, Result};
use ofi_core::sys;
use transport_efa::srd::{
    Access, Completion, Device, From, Gid, Limits, QueuePair, Region, Remote, Segment, Status, To,
};

/// How a fabric behaves.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What everything is drawn from.
    pub seed: u64,
    /// Bytes of the longest message.
    pub mtu: usize,
    /// Of 100 messages, so many find their receiver not ready though it is.
    pub not_ready: u64,
    /// Receives that a queue pair takes.
    pub receives: usize,
    /// Whether the device reads and writes peers' memory.
    pub rdma: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: 1, mtu: 8760, not_ready: 0, receives: 4096, rdma: true }
    }
}

/// A message under way.
struct Flight {
    from: u16,
    id: u64,
    to: To,
    what: What,
}

/// What it does there.
enum What {
    Send(Vec<u8>, Option<u32>),
    Read { into: Segment, at: Remote },
    Write { bytes: Vec<u8>, at: Remote, data: Option<u32> },
}

// SAFETY: the segment is of memory that the queue pair's owner lends it until the request has ended, whichever thread moves it.
unsafe impl Send for What {}

struct Queue {
    qkey: u32,
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<Completion>,
    /// Devices that it knows, by their numbers.
    handles: Vec<Gid>,
    armed: bool,
    event: OwnedFd,
    stopped: bool,
}

// SAFETY: the segments are of memory that the queue pair's owner lends it until it is dropped, whichever thread polls.
unsafe impl Send for Queue {}

impl Queue {
    fn push(&mut self, completion: Completion) {
        self.done.push_back(completion);
        if std::mem::take(&mut self.armed) {
            sys::signal_eventfd(self.event.as_raw_fd());
        }
    }
}

struct Inner {
    draws: u64,
    queues: HashMap<u16, Queue>,
    flying: Vec<Flight>,
    last_qpn: u16,
    /// Registrations by their keys: first byte, length, and what peers may do.
    registered: HashMap<u32, (u64, usize, Access)>,
    last_key: u32,
}

impl Inner {
    /// Whether a peer may do that there.
    fn allows(&self, at: Remote, len: usize, write: bool) -> bool {
        let Some(&(addr, size, access)) = self.registered.get(&at.rkey) else { return false };
        let right = match access {
            Access::Local => false,
            Access::RemoteRead => !write,
            Access::RemoteWrite => write,
            Access::RemoteReadWrite => true,
        };
        let offset = at.addr.checked_sub(addr);
        right
            && offset
                .is_some_and(|offset| offset.checked_add(len as u64).is_some_and(|end| end <= size as u64))
    }
}

impl Inner {
    /// The next number drawn (SplitMix64).
    fn draw(&mut self) -> u64 {
        self.draws = self.draws.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.draws;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }
}

/// A device, and the fabric that it is on alone.
pub struct SimulatedDevice {
    name: String,
    plan: Plan,
    inner: Mutex<Inner>,
    /// Something is under way.
    work: Condvar,
    /// Whether memory that peers may not access is refused when it is registered.
    refuses: AtomicBool,
}

impl SimulatedDevice {
    /// One with a thread that moves what is under way, as long as the process lives.
    pub fn new(name: &str, plan: Plan) -> Arc<Self> {
        let inner = Inner {
            draws: plan.seed,
            queues: HashMap::new(),
            flying: Vec::new(),
            last_qpn: 0,
            registered: HashMap::new(),
            last_key: 0,
        };
        let (name, inner) = (name.to_string(), Mutex::new(inner));
        let device =
            Arc::new(Self { name, plan, inner, work: Condvar::new(), refuses: AtomicBool::new(false) });
        let mover = Arc::clone(&device);
        std::thread::spawn(move || {
            loop {
                let mut inner = mover.lock();
                while inner.flying.is_empty() {
                    inner = mover.work.wait(inner).unwrap_or_else(PoisonError::into_inner);
                }
                mover.step(&mut inner);
                drop(inner);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        device
    }

    /// Whether memory is refused from now on that is registered for this end's requests alone.
    pub fn refuse_local(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has some of what is under way arrive: whichever is drawn.
    fn step(&self, inner: &mut Inner) {
        let most = inner.flying.len().div_ceil(2).min(64);
        for _ in 0..most {
            let at = inner.draw() as usize % inner.flying.len();
            let flight = inner.flying.swap_remove(at);
            let unready = inner.draw() % 100 < self.plan.not_ready;
            let status = self.deliver(inner, &flight, unready);
            if let Some(sender) = inner.queues.get_mut(&flight.from) {
                sender.push(Completion::Sent { id: flight.id, status });
            }
        }
    }

    fn deliver(&self, inner: &mut Inner, flight: &Flight, unready: bool) -> Status {
        let gid = self.gid();
        // A sender that is gone reads nothing any more.
        if inner.queues.get(&flight.from).is_none_or(|queue| queue.stopped) {
            return Status::Flushed;
        }
        let (bytes, wanted) = match &flight.what {
            What::Send(bytes, _) => (bytes, None),
            What::Write { bytes, at, .. } => (bytes, Some((*at, bytes.len(), true))),
            What::Read { into, at } => (&Vec::new(), Some((*at, into.len, false))),
        };
        let is_there = |queue: &Queue| queue.qkey == flight.to.qkey && !queue.stopped;
        if !inner.queues.get(&flight.to.qpn).is_some_and(is_there) {
            return Status::NoDestination;
        }
        if let Some((at, len, write)) = wanted
            && !inner.allows(at, len, write)
        {
            return Status::BadAddress;
        }
        let Some(queue) = inner.queues.get_mut(&flight.to.qpn) else { return Status::NoDestination };
        let handle = queue.handles.iter().position(|known| *known == gid);
        let from = From { handle: handle.map(|at| at as u16), gid: Some(gid), qpn: flight.from };
        let len = bytes.len();
        match flight.what {
            What::Read { into, at } => {
                // SAFETY: registered memory of this process, of which `len` bytes are there; the segment is lent until the read has ended.
                unsafe {
                    ofi_core::copy::bytes(
                        std::ptr::with_exposed_provenance(at.addr as usize),
                        into.addr,
                        into.len,
                    )
                };
            }
            What::Write { at, data, .. } => {
                // SAFETY: registered memory of this process, of which `len` bytes are there.
                unsafe {
                    let to = std::ptr::with_exposed_provenance_mut(at.addr as usize);
                    ofi_core::copy::bytes(bytes.as_ptr(), to, len);
                };
                if let Some(data) = data {
                    queue.push(Completion::Written { id: None, len, data, from });
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
        Status::Done
    }
}

/// A registration.
struct Registered {
    device: Arc<SimulatedDevice>,
    key: u32,
}

impl Region for Registered {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.device.lock().registered.remove(&self.key);
    }
}

struct Simulated {
    device: Arc<SimulatedDevice>,
    qpn: u16,
    qkey: u32,
    event: RawFd,
}

/// A [`SimulatedDevice`] as the provider sees it.
pub struct Handle(pub Arc<SimulatedDevice>);

impl SimulatedDevice {
    fn gid(&self) -> Gid {
        let mut gid = [0xFE; 16];
        for (to, from) in gid.iter_mut().zip(self.name.bytes()) {
            *to = from;
        }
        gid
    }
}

impl Device for Handle {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn gid(&self) -> Gid {
        self.0.gid()
    }

    fn limits(&self) -> Limits {
        let (read, rdma) = (self.0.plan.rdma, if self.0.plan.rdma { 1 << 30 } else { 0 });
        let (mtu, receives) = (self.0.plan.mtu, self.0.plan.receives);
        Limits { mtu, sends: 512, receives, rdma, read, write: read, unsolicited: read }
    }

    fn nic(&self) -> Nic {
        Nic::default()
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn Region>> {
        if matches!(access, Access::Local) && self.0.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(Errno::ENOMEM));
        }
        let mut inner = self.0.lock();
        // Numbers are used again late, as on a device, and have 24 bits.
        loop {
            inner.last_key = (inner.last_key + 1) & 0xFF_FFFF;
            let key = inner.last_key;
            if key != 0 && !inner.registered.contains_key(&key) {
                inner.registered.insert(key, (addr.expose_provenance() as u64, len, access));
                return Ok(Box::new(Registered { device: Arc::clone(&self.0), key }));
            }
        }
    }

    fn open(&self, _sends: usize, _receives: usize) -> Result<Box<dyn QueuePair>> {
        let event = sys::eventfd()?;
        let fd = event.as_raw_fd();
        let mut inner = self.0.lock();
        let qkey = inner.draw() as u32 & 0x7FFF_FFFF;
        // Numbers are used again late, as on a device.
        let mut qpn = inner.last_qpn;
        loop {
            qpn = qpn.wrapping_add(1).max(1);
            if !inner.queues.contains_key(&qpn) {
                break;
            }
        }
        inner.last_qpn = qpn;
        let queue = Queue {
            qkey,
            receives: VecDeque::new(),
            done: VecDeque::new(),
            handles: Vec::new(),
            armed: false,
            event,
            stopped: false,
        };
        inner.queues.insert(qpn, queue);
        Ok(Box::new(Simulated { device: Arc::clone(&self.0), qpn, qkey, event: fd }))
    }
}

impl Simulated {
    fn with<R>(&self, act: impl FnOnce(&mut Queue) -> R) -> Result<R> {
        let mut inner = self.device.lock();
        inner.queues.get_mut(&self.qpn).map(act).ok_or_else(|| Error::new(Errno::EIO))
    }

    fn post(&self, id: u64, to: To, what: What) -> Result<()> {
        self.device.lock().flying.push(Flight { from: self.qpn, id, to, what });
        self.device.work.notify_one();
        Ok(())
    }
}

impl QueuePair for Simulated {
    fn qpn(&self) -> u16 {
        self.qpn
    }

    fn qkey(&self) -> u32 {
        self.qkey
    }

    fn attach(&mut self, gid: &Gid) -> Result<u16> {
        self.with(|queue| {
            let known = queue.handles.iter().position(|known| known == gid);
            known.unwrap_or_else(|| {
                queue.handles.push(*gid);
                queue.handles.len() - 1
            }) as u16
        })
    }

    unsafe fn send(&mut self, id: u64, to: To, from: Segment, data: Option<u32>) -> Result<()> {
        if from.len > self.device.plan.mtu {
            return Err(Error::new(Errno::EMSGSIZE));
        }
        // SAFETY: the caller lends it for reading.
        let bytes = unsafe { std::slice::from_raw_parts(from.addr, from.len) }.to_vec();
        self.post(id, to, What::Send(bytes, data))
    }

    unsafe fn read(&mut self, id: u64, of: To, into: Segment, at: Remote) -> Result<()> {
        self.post(id, of, What::Read { into, at })
    }

    unsafe fn write(&mut self, id: u64, to: To, from: Segment, at: Remote, data: Option<u32>) -> Result<()> {
        // SAFETY: the caller lends it for reading.
        let bytes = unsafe { std::slice::from_raw_parts(from.addr, from.len) }.to_vec();
        self.post(id, to, What::Write { bytes, at, data })
    }

    fn stop(&mut self) {
        let _ = self.with(|queue| queue.stopped = true);
    }

    unsafe fn receive(&mut self, id: u64, into: Segment) -> Result<()> {
        let most = self.device.plan.receives;
        self.with(|queue| {
            if queue.receives.len() == most {
                return Err(Error::AGAIN);
            }
            queue.receives.push_back((id, into));
            Ok(())
        })?
    }

    fn poll(&mut self, into: &mut VecDeque<Completion>) -> Result<usize> {
        let mut inner = self.device.lock();
        self.device.step(&mut inner);
        drop(inner);
        self.with(|queue| {
            let count = queue.done.len();
            into.append(&mut queue.done);
            count
        })
    }

    fn arm(&mut self) -> Result<()> {
        self.with(|queue| {
            sys::drain_eventfd(queue.event.as_raw_fd());
            queue.armed = true;
        })
    }

    fn fd(&self) -> RawFd {
        self.event
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.device.lock().queues.remove(&self.qpn);
    }
}
