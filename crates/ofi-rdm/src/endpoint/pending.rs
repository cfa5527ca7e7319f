//! Sessions that were granted but that the requester has not confirmed.
//!
//! A question may be a replay. So it neither begins nor ends a session until a packet of the new session arrives, which
//! only the requester can produce.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::crypto::Protection;
use crate::time::Instant;
use crate::wire::Init;

/// The maximum number of granted sessions; the oldest are dropped first.
const MAX_PENDING: usize = 16_384;

/// A session that was granted.
#[derive(Debug)]
pub struct Pending {
    /// The requester.
    pub address: SocketAddr,
    /// Whether it counts among the strangers of its host.
    pub counted: bool,
    /// The request.
    pub init: Init,
    /// How its packets are protected.
    pub suite: u8,
    /// The keys of its packets.
    pub protection: Option<Box<Protection>>,
    /// The answer: flags and body.
    pub accept: (u16, Vec<u8>),
}

/// The sessions of one endpoint that were granted but not confirmed.
#[derive(Debug, Default)]
pub struct PendingSessions {
    by_name: BTreeMap<u64, Box<Pending>>,
    /// Names by address and by the requester's name.
    by_question: BTreeMap<(SocketAddr, u64), u64>,
    /// In the order of the grants.
    order: VecDeque<(Instant, u64)>,
}

impl PendingSessions {
    /// The session granted to `address`, which calls it `name`.
    pub fn granted(&self, address: SocketAddr, name: u64) -> Option<&Pending> {
        self.by_name.get(self.by_question.get(&(address, name))?).map(|pending| &**pending)
    }

    /// The session that this end calls `name`.
    pub fn named(&mut self, name: u64) -> Option<&mut Pending> {
        self.by_name.get_mut(&name).map(|pending| &mut **pending)
    }

    /// Grants a session under `name`, valid for `time`.
    pub fn grant(&mut self, now: Instant, time: Duration, name: u64, pending: Pending) {
        self.by_question.insert((pending.address, pending.init.session), name);
        self.by_name.insert(name, Box::new(pending));
        self.order.push_back((now + time, name));
    }

    /// Removes a session that has expired, or that exceeds the limit.
    pub fn expire(&mut self, now: Instant) -> Option<Pending> {
        while self.order.front().is_some_and(|&(until, _)| until <= now || self.by_name.len() >= MAX_PENDING)
        {
            let (_, name) = self.order.pop_front()?;
            if let Some(pending) = self.take(name) {
                return Some(pending);
            }
        }
        None
    }

    /// Removes the session that this end calls `name`.
    pub fn take(&mut self, name: u64) -> Option<Pending> {
        let pending = *self.by_name.remove(&name)?;
        self.by_question.remove(&(pending.address, pending.init.session));
        Some(pending)
    }
}
