//! A simulated fabric of devices with reliable connected queue pairs in this process, and the rdma_cm that connects
//! them; and with queue pairs for unreliable datagrams.
//!
//! What happens is drawn from a seed: which connection moves next, when an end is reported, how long an event takes,
//! whether a receiver is for once not ready, how much of what a connection had under way was done when it failed.
//! Within a connection everything keeps its order, as on a device. Nothing moves unless an endpoint polls, but for a
//! thread that moves what is under way for those who sleep. A [`SimulatedDevice::driven`] one has no such thread and a
//! time of its own, so that a run of one thread is the same for the same seed. Nothing that is seen here says anything
//! about a device's speed.

mod claim;
mod device;
mod fabric;
mod meeting;
mod msg;
mod ud;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use claim::Claim;
pub use device::Handle;
use fabric::Fabric;
pub use ud::{Fates, Forged, route_header};

/// How a fabric behaves.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What everything is drawn from.
    pub seed: u64,
    /// Of 100 sends, so many find their receiver not ready though it is.
    pub not_ready: u64,
    /// Of 100 requests, so many are reported late.
    pub late: u64,
    /// Of 100 writes, so many are reported before they are in memory. They are when anything follows on their
    /// connection.
    pub unplaced: u64,
    /// Of 100 events of connections, so many are late.
    pub slow: u64,
    /// Of 100 ends that go, so many are heard of before what they have acknowledged is reported.
    pub overtaken: u64,
    /// Of 100 unreliable datagrams, so many are lost.
    pub lost: u64,
    /// Address handles that the device holds for a queue pair.
    pub routes: usize,
    /// Bytes that a request carries itself, at most.
    pub inline: usize,
    /// Queue pairs that the device says it holds. It takes more: endpoints are not asked to fail without.
    pub connections: usize,
    /// Requests that a queue pair takes, at most.
    pub requests: usize,
    /// Receives that an endpoint takes, at most.
    pub receives: usize,
    /// Entries of a completion queue, at most.
    pub completions: usize,
    /// Whether what is in a completion queue goes with the queue pair that it is about, as with some drivers.
    pub cleans: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: 1,
            not_ready: 0,
            late: 0,
            unplaced: 0,
            slow: 0,
            overtaken: 0,
            lost: 0,
            routes: 1 << 16,
            inline: 256,
            connections: 1 << 16,
            requests: 1024,
            receives: 4096,
            completions: 1 << 16,
            cleans: false,
        }
    }
}

/// What a request was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// A send.
    Sent,
    /// A write to a peer's memory.
    Wrote,
    /// A read of a peer's memory.
    Read,
    /// A change of a number in a peer's memory.
    Changed,
}

/// A request as it was posted, each with a doorbell of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// What it was to do.
    pub did: Did,
    /// The memory of this end.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Whether the request carries them.
    pub inline: bool,
    /// Whether its success is reported.
    pub reported: bool,
}

/// A device, and the fabric that it is on alone.
pub struct SimulatedDevice {
    name: String,
    addresses: Claim,
    /// When its time began; `None`: it has the system's.
    began: Option<Instant>,
    fabric: Mutex<Fabric>,
    /// Something is under way.
    work: Condvar,
}

impl SimulatedDevice {
    /// One with a thread that moves what is under way, as long as the process lives.
    pub fn new(name: &str, plan: Plan) -> Arc<Self> {
        let device = Arc::new(Self::with(name, plan, None));
        let mover = Arc::clone(&device);
        std::thread::spawn(move || {
            loop {
                let mut fabric = mover.lock();
                while fabric.is_still() {
                    fabric = mover.work.wait(fabric).unwrap_or_else(PoisonError::into_inner);
                }
                fabric.step();
                drop(fabric);
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        device
    }

    /// One where nothing moves but by polls, time neither. Nobody can sleep on it.
    pub fn driven(name: &str, plan: Plan) -> Arc<Self> {
        Arc::new(Self::with(name, plan, Some(Instant::now())))
    }

    fn with(name: &str, plan: Plan, began: Option<Instant>) -> Self {
        let fabric = Mutex::new(Fabric::new(plan, began.is_some()));
        Self { name: name.to_string(), addresses: Claim::new(), began, fabric, work: Condvar::new() }
    }

    /// Begins anew by another plan, for endpoints that are opened from now on.
    ///
    /// # Panics
    /// If anything of before is left: endpoints, connections, registrations.
    pub fn begin(&self, plan: Plan) {
        self.lock().begin(plan);
    }

    /// The addresses of its endpoints, which no other device has, of another process either.
    fn addresses(&self) -> [IpAddr; 2] {
        self.addresses.both()
    }

    /// Has the queue pair of the endpoint at `of` that is connected to the one at `to` fail: what is under way and what
    /// is posted comes back. The other end is told nothing.
    pub fn fail(&self, of: SocketAddr, to: SocketAddr) {
        self.lock().fail_between(of, to);
    }

    /// The endpoint at `of` is cut off: what it sends and what is sent to it goes nowhere.
    pub fn vanish(&self, of: SocketAddr) {
        self.lock().vanish(of);
    }

    /// The device goes away, until the next [`SimulatedDevice::begin`].
    pub fn remove(&self) {
        self.lock().remove();
        self.work.notify_one();
    }

    /// Whether nothing is under way.
    pub fn is_still(&self) -> bool {
        self.lock().is_still()
    }

    /// Receives of the endpoint at `of` that are posted, or have ended and were not looked at.
    pub fn receives(&self, of: SocketAddr) -> usize {
        self.lock().receives(of)
    }

    /// The requests of the endpoint at `of` since the last call, and how many ends of requests were reported to it.
    pub fn take_log(&self, of: SocketAddr) -> (Vec<Logged>, usize) {
        self.lock().take_log(of)
    }

    fn now(&self) -> Instant {
        self.began.map_or_else(Instant::now, |began| began + self.lock().clock)
    }

    fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
