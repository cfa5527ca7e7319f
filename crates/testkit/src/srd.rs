//! A simulated fabric of SRD devices in this process: messages arrive once, in any order, or fail as a device reports it.
//!
//! What happens is drawn from a seed: which message arrives next, how long its completion takes, and whether a receiver is for once not ready.
//! Nothing moves unless an endpoint polls, but for a thread that moves what is under way for those who sleep. Nothing that is seen here says
//! anything about a device's speed.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ofi::raw::{Errno, Error, Nic, Result};
use ofi_core::sys;
use transport_efa::srd::{Completion, Device, From, Gid, Limits, QueuePair, Region, Segment, Status, To};

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
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: 1, mtu: 8760, not_ready: 0, receives: 4096 }
    }
}

/// A message under way.
struct Flight {
    from: u16,
    id: u64,
    to: To,
    bytes: Vec<u8>,
}

struct Queue {
    qkey: u32,
    receives: VecDeque<(u64, Segment)>,
    done: VecDeque<Completion>,
    /// Devices that it knows, by their numbers.
    handles: Vec<Gid>,
    armed: bool,
    event: OwnedFd,
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
}

impl SimulatedDevice {
    /// One with a thread that moves what is under way, as long as the process lives.
    pub fn new(name: &str, plan: Plan) -> Arc<Self> {
        let inner = Inner { draws: plan.seed, queues: HashMap::new(), flying: Vec::new(), last_qpn: 0 };
        let (name, inner) = (name.to_string(), Mutex::new(inner));
        let device = Arc::new(Self { name, plan, inner, work: Condvar::new() });
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
        let Some(queue) = inner.queues.get_mut(&flight.to.qpn).filter(|queue| queue.qkey == flight.to.qkey)
        else {
            return Status::NoDestination;
        };
        if unready {
            return Status::NotReady;
        }
        let Some((id, into)) = queue.receives.pop_front() else { return Status::NotReady };
        let len = flight.bytes.len();
        if len > into.len {
            queue.receives.push_front((id, into));
            return Status::Failed(11);
        }
        // SAFETY: the segment is the queue's until its completion is taken, and was just found long enough.
        unsafe { ofi_core::copy::bytes(flight.bytes.as_ptr(), into.addr, len) };
        let handle = queue.handles.iter().position(|known| *known == gid);
        let from = From { handle: handle.map(|at| at as u16), gid: Some(gid), qpn: flight.from };
        queue.push(Completion::Received { id, len, from });
        Status::Done
    }
}

/// Registrations say nothing here.
struct Anything;

impl Region for Anything {
    fn lkey(&self) -> u32 {
        1
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
        Limits { mtu: self.0.plan.mtu, sends: 512, receives: self.0.plan.receives }
    }

    fn nic(&self) -> Nic {
        Nic::default()
    }

    unsafe fn register(&self, _addr: *mut u8, _len: usize) -> Result<Box<dyn Region>> {
        Ok(Box::new(Anything))
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

    unsafe fn send(&mut self, id: u64, to: To, from: Segment) -> Result<()> {
        if from.len > self.device.plan.mtu {
            return Err(Error::new(Errno::EMSGSIZE));
        }
        // SAFETY: the caller lends it for reading.
        let bytes = unsafe { std::slice::from_raw_parts(from.addr, from.len) }.to_vec();
        self.device.lock().flying.push(Flight { from: self.qpn, id, to, bytes });
        self.device.work.notify_one();
        Ok(())
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
