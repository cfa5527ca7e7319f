//! The flows that NMOS receivers are connected to, as a host follows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use mxl::Uuid;

/// What a host mirrors of the flows that receivers are connected to.
pub trait Share: Send + Sync {
    /// The flows.
    fn flows(&self) -> BTreeSet<Uuid>;

    /// A flow is connected.
    fn arrives(&self, flow: Uuid) {
        let _ = flow;
    }
}

/// The flow of each receiver that is connected.
#[derive(Debug, Default)]
pub struct Wanted(Mutex<BTreeMap<Uuid, Uuid>>);

impl Wanted {
    /// Connects a receiver to a flow, or to none.
    pub fn set(&self, receiver: Uuid, flow: Option<Uuid>) {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match flow {
            Some(flow) => wanted.insert(receiver, flow),
            None => wanted.remove(&receiver),
        };
    }
}

/// All of them.
impl Share for Wanted {
    fn flows(&self) -> BTreeSet<Uuid> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
    }
}
