//! A simulated fabric of devices with reliable connected queue pairs in this process, with the rdma_cm that connects
//! them, and with queue pairs for unreliable datagrams.
//!
//! A seed determines all events: which connection proceeds next, when a completion is reported, how long an event
//! takes, whether a receiver is not ready, how much of a failing connection's work was done. Within a connection
//! everything keeps its order, as on a device. Only polls of endpoints drive the fabric, apart from a thread that does
//! so for sleeping endpoints. A [`SimulatedDevice::driven`] device has no such thread and a clock of its own, so that a
//! run of one thread is reproducible from its seed. The fabric says nothing about a device's speed.

mod claim;
mod device;
mod events;
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
use ofi_verbs::rc::Timers;
pub use ud::{Fates, Forged, route_header};

/// The behaviour of a fabric.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all random decisions.
    pub seed: u64,
    /// Sends per 100 that find their receiver not ready although it is.
    pub not_ready: u64,
    /// Requests per 100 that are reported late.
    pub late: u64,
    /// Writes per 100 that are reported before they are in memory. They are in memory when anything follows on their
    /// connection.
    pub unplaced: u64,
    /// Events of connections per 100 that are late.
    pub slow: u64,
    /// Departing ends per 100 that are noticed before their acknowledgements are reported.
    pub overtaken: u64,
    /// Steps for which a device retransmits an unanswered request.
    pub patience: u64,
    /// Unreliable datagrams per 100 that are lost.
    pub lost: u64,
    /// Address handles that the device holds for a queue pair.
    pub routes: usize,
    /// The maximum number of bytes of inline data.
    pub inline: usize,
    /// Queue pairs that the device claims to support. It accepts more: endpoints need not fail without.
    pub connections: usize,
    /// The maximum number of requests of a queue pair.
    pub requests: usize,
    /// The maximum number of receives of an endpoint.
    pub receives: usize,
    /// The maximum number of entries of a completion queue.
    pub completions: usize,
    /// Whether the kernel has no option for acknowledgement times.
    pub untimed: bool,
    /// Whether destroying a queue pair removes its entries from the completion queue, as with some drivers.
    pub cleans: bool,
    /// Steps after which the receive of a message in flight is returned if its queue pair fails; every failing one has
    /// such a message. 0: at once, and only some have one.
    pub late_flush: u64,
    /// Whether the device does not report that a queue pair has returned its receives.
    pub untold: bool,
    /// Whether completion queues cannot be resized.
    pub unresizable: bool,
    /// Whether a new queue pair has the lowest free number, instead of one that none had before.
    pub reuses: bool,
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
            patience: 40,
            lost: 0,
            routes: 1 << 16,
            inline: 256,
            connections: 1 << 16,
            requests: 1024,
            receives: 4096,
            completions: 1 << 16,
            untimed: false,
            cleans: false,
            late_flush: 0,
            untold: false,
            unresizable: false,
            reuses: false,
        }
    }
}

/// The kind of a request.
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

/// A posted request, each with a doorbell of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its kind.
    pub did: Did,
    /// The local memory.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Whether the data is inline.
    pub inline: bool,
    /// Whether its success is reported.
    pub reported: bool,
}

/// A device, which is alone on its fabric.
pub struct SimulatedDevice {
    name: String,
    addresses: Claim,
    /// The start of its clock; `None`: it uses the system's clock.
    began: Option<Instant>,
    fabric: Mutex<Fabric>,
    /// Signalled when work is pending.
    work: Condvar,
}

impl SimulatedDevice {
    /// A device with a thread that drives pending work for the life of the process.
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

    /// A device that only polls drive, including its clock. Threads cannot sleep on it.
    pub fn driven(name: &str, plan: Plan) -> Arc<Self> {
        Arc::new(Self::with(name, plan, Some(Instant::now())))
    }

    fn with(name: &str, plan: Plan, began: Option<Instant>) -> Self {
        let fabric = Mutex::new(Fabric::new(plan, began.is_some()));
        Self { name: name.to_string(), addresses: Claim::new(), began, fabric, work: Condvar::new() }
    }

    /// Starts over with another plan, for endpoints that are opened from now on. Waits for registrations to go: the
    /// thread of a memory monitor may hold those of a closed domain for a moment.
    ///
    /// # Panics
    /// If an object is left: endpoints, connections, registrations.
    pub fn begin(&self, plan: Plan) {
        let began = Instant::now();
        loop {
            let mut fabric = self.lock();
            if fabric.registrations() == 0 || began.elapsed() > crate::UNREGISTERED_WITHIN {
                return fabric.begin(plan);
            }
            drop(fabric);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The addresses of its endpoints, unique among devices of all processes.
    fn addresses(&self) -> [IpAddr; 2] {
        self.addresses.both()
    }

    /// Makes the queue pair of the endpoint at `of` that is connected to the one at `to` fail: posted and in-flight
    /// work is flushed. The other end is not notified.
    pub fn fail(&self, of: SocketAddr, to: SocketAddr) {
        self.lock().fail_between(of, to);
    }

    /// Disconnects the endpoint at `of` from the fabric: nothing it sends, and nothing sent to it, arrives.
    pub fn vanish(&self, of: SocketAddr) {
        self.lock().vanish(of);
    }

    /// Makes the links of the endpoints at these addresses mute: nothing that is sent over them arrives or fails, and
    /// nothing that is under way ends. Writes that are posted leave the device, until [`SimulatedDevice::mend`].
    pub fn mute(&self, of: &[SocketAddr]) {
        self.lock().mute(of);
    }

    /// Number of writes that have left over mute links.
    pub fn late(&self) -> usize {
        self.lock().late()
    }

    /// Mends the links: writes in flight are executed at queue pairs that still exist. Returns their number.
    pub fn mend(&self) -> usize {
        let executed = self.lock().mend();
        self.work.notify_one();
        executed
    }

    /// Removes the device until the next [`SimulatedDevice::begin`]: work in flight is flushed, and connections are
    /// notified. [`SimulatedDevice::die`] does neither.
    pub fn remove(&self) {
        self.lock().remove();
        self.work.notify_one();
    }

    /// Limits locked memory (`RLIMIT_MEMLOCK`): from now on so many more bytes may be registered.
    pub fn limit_locked(&self, more: usize) {
        self.lock().limit_locked(more);
    }

    /// Lets this much time pass on the clock of a [`SimulatedDevice::driven`] device.
    pub fn pass(&self, time: Duration) {
        self.lock().clock += time;
    }

    /// Its clock, if only polls drive it.
    pub fn clock(&self) -> Duration {
        self.lock().clock
    }

    /// Whether no work is pending.
    pub fn is_still(&self) -> bool {
        self.lock().is_still()
    }

    /// Receives of the endpoint at `of` that are posted, or completed and unread.
    pub fn receives(&self, of: SocketAddr) -> usize {
        self.lock().receives(of)
    }

    /// The requests of the endpoint at `of` since the last call, and the number of completions reported to it.
    pub fn take_log(&self, of: SocketAddr) -> (Vec<Logged>, usize) {
        self.lock().take_log(of)
    }

    /// How often completion queues were polled.
    pub fn polls(&self) -> usize {
        self.lock().polls
    }

    /// The times and numbers of retries of the established connections of the endpoint at `of`.
    pub fn timers(&self, of: SocketAddr) -> Vec<Timers> {
        self.lock().timers(of)
    }

    fn now(&self) -> Instant {
        self.began.map_or_else(Instant::now, |began| began + self.lock().clock)
    }

    fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.fabric.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
