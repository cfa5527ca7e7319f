//! Asynchronous events of an endpoint's device: its port goes down, a queue fails, the device is removed.
//!
//! A port that goes down ends no operation, because requests have their own retry limits. The event is counted and
//! logged. If the device reports a failure ([`Failed`]), the endpoint ends the operations on the failed object, because
//! the device no longer completes them.

use std::os::fd::RawFd;
use std::time::Instant;

use ofi_api::{Result, Statistic};
use ofi_core::sys::wait_readable;
use rustc_hash::FxHashSet;

use crate::errors::failed;
use crate::rc::{AsyncEvent, Device, Events};
use crate::waiter::Waiter;

/// The object that has failed. A queue pair or a queue may be another endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The device is lost.
    Device,
    /// A queue pair, by its number.
    Pair(u32),
    /// A queue of completions or of receives, by its number.
    Queue(usize),
}

/// The device's asynchronous events, as one endpoint sees them.
pub struct Watch {
    events: Box<dyn Events>,
    /// The descriptors of the events, and others that are polled along with [`Watch::next`]. They have no epoll set of
    /// their own: Linux nests at most five, and applications nest theirs around the endpoint's.
    fds: Vec<RawFd>,
    port_errors: u64,
    port_active: u64,
    others: u64,
    /// Followed queue pairs that have returned their receives.
    drained: FxHashSet<u32>,
    /// Failures of this endpoint's queue pairs and queues, and of the device.
    pub failures: u64,
}

impl Watch {
    /// Watches the device, and the descriptors `others`.
    ///
    /// # Errors
    /// The device's error.
    pub fn new(device: &dyn Device, others: &[RawFd]) -> Result<Self> {
        let events = device.events().map_err(|error| failed(&error))?;
        let fds = [&events.fds()[..], others].concat();
        Ok(Self {
            events,
            fds,
            port_errors: 0,
            port_active: 0,
            others: 0,
            drained: FxHashSet::default(),
            failures: 0,
        })
    }

    /// The descriptors, of which at least one is readable while events are queued.
    pub fn fds(&self) -> &[RawFd] {
        &self.fds
    }

    /// Whether one of them is readable.
    pub fn is_ready(&self) -> bool {
        wait_readable(&self.fds, Some(Instant::now()))
    }

    /// Notes from now on when a queue pair has returned the receives that it took from a shared queue.
    pub fn follow(&mut self, qp: u32) {
        self.drained.remove(&qp); // an earlier one of this number
        self.events.follow(qp, true);
    }

    /// Forgets a queue pair.
    pub fn unfollow(&mut self, qp: u32) {
        self.events.follow(qp, false);
        self.drained.remove(&qp);
    }

    /// Whether a followed queue pair has returned its receives.
    pub fn has_drained(&self, qp: u32) -> bool {
        self.drained.contains(&qp)
    }

    /// Stops watching a lost device and its `queue`: descriptors that stay readable would keep waking threads.
    pub fn mute(&mut self, waiter: &Waiter, queue: RawFd) {
        let gone = self.events.fds();
        self.fds.retain(|fd| !gone.contains(fd));
        gone.into_iter().chain([queue]).for_each(|fd| waiter.forget(fd));
    }

    /// Processes queued events until the next failure.
    pub fn next(&mut self) -> Option<Failed> {
        loop {
            let event = match self.events.next() {
                Ok(event) => event?,
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::domain", %error, "cannot read events of the device");
                    return None;
                }
            };
            match event {
                AsyncEvent::PortError(port) => {
                    self.port_errors += 1;
                    tracing::warn!(target: "ofi::verbs::domain", port, "the port is down; the device retries requests for a while");
                }
                AsyncEvent::PortActive(port) => {
                    self.port_active += 1;
                    tracing::info!(target: "ofi::verbs::domain", port, "the port is up");
                }
                AsyncEvent::LastReceive(qp) => _ = self.drained.insert(qp),
                AsyncEvent::DeviceFatal => return Some(Failed::Device),
                event => {
                    if let Some(qp) = event.failed_pair() {
                        return Some(Failed::Pair(qp));
                    }
                    if let Some(queue) = event.failed_queue() {
                        return Some(Failed::Queue(queue));
                    }
                    // Events of queue pairs and queues that have not failed need no action.
                    if event.port().is_some() {
                        self.others += 1;
                        tracing::info!(target: "ofi::verbs::domain", ?event, "the port has changed");
                    }
                }
            }
        }
    }

    /// Appends the counts.
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("verbs_port_errors", self.port_errors, "times that the device's port went down");
        add("verbs_port_active", self.port_active, "times that the device's port came up");
        add(
            "verbs_port_changes",
            self.others,
            "times that the port's addresses, keys or subnet manager changed",
        );
        add(
            "verbs_device_failures",
            self.failures,
            "reported failures of the device, or of queues of this endpoint",
        );
        add(
            "verbs_events_lost",
            self.events.lost(),
            "events of the device dropped because the event queue was full",
        );
    }
}
