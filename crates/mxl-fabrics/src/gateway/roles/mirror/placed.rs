//! The flows that a registry has placed at one host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mxl::Uuid;

use super::wanted::{Share, Wanted};

/// The flows that were placed at a host, of which it mirrors those that receivers are connected to.
pub struct Placed {
    receivers: Arc<Wanted>,
    flows: Mutex<BTreeMap<Uuid, Seen>>,
}

/// When a flow was placed, or was last connected.
struct Seen {
    at: Instant,
    was_connected: bool,
}

impl Placed {
    /// No flows yet.
    pub fn new(receivers: Arc<Wanted>) -> Self {
        Self { receivers, flows: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, Seen>> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places a flow there.
    pub fn add(&self, flow: Uuid) {
        self.lock().insert(flow, Seen { at: Instant::now(), was_connected: false });
    }

    /// Takes a flow from there.
    pub fn remove(&self, flow: Uuid) {
        self.lock().remove(&flow);
    }

    /// Whether no flow is placed there.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Whether a flow was ever connected, and the time since it was, or since it was placed.
    pub fn seen(&self, flow: Uuid) -> (bool, Duration) {
        self.lock().get(&flow).map_or_else(Default::default, |seen| (seen.was_connected, seen.at.elapsed()))
    }
}

impl Share for Placed {
    /// A flow that no receiver is connected to any more ends at once, also while the registry is asked.
    fn flows(&self) -> BTreeSet<Uuid> {
        let wanted = self.receivers.flows();
        self.lock().keys().filter(|flow| wanted.contains(flow)).copied().collect()
    }

    fn arrives(&self, flow: Uuid) {
        if let Some(seen) = self.lock().get_mut(&flow) {
            *seen = Seen { at: Instant::now(), was_connected: true };
        }
    }
}
