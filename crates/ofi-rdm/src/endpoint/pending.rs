//! Sessions that this end has granted and the requester has not confirmed.
//!
//! An Init may be a replay. So it neither begins nor ends a session until a packet of the new session arrives, which
//! only a live requester can send.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::crypto::Protection;
use crate::time::Instant;
use crate::wire::Init;

/// Maximum sessions awaiting confirmation. Beyond it, the oldest is dropped.
const MAX_PENDING: usize = 16_384;

/// A granted session.
#[derive(Debug)]
pub struct Pending {
    /// The requester.
    pub address: SocketAddr,
    /// Whether it counts against its host's limit of peers (`max_of_host`).
    pub counted: bool,
    /// The request.
    pub init: Init,
    /// The cipher suite of its packets.
    pub suite: u8,
    /// The keys of its packets.
    pub protection: Option<Box<Protection>>,
    /// The answer: flags and body.
    pub accept: (u16, Vec<u8>),
}

/// An endpoint's unconfirmed sessions.
#[derive(Debug, Default)]
pub struct PendingSessions {
    by_name: BTreeMap<u64, Box<Pending>>,
    /// This end's names, by the requester's address and its own name for the session.
    by_question: BTreeMap<(SocketAddr, u64), u64>,
    /// Expiry times and names, in the order of the grants.
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

    /// Grants a session that this end calls `name`. It expires after `time` unless confirmed.
    pub fn grant(&mut self, now: Instant, time: Duration, name: u64, pending: Pending) {
        self.by_question.insert((pending.address, pending.init.session), name);
        self.by_name.insert(name, Box::new(pending));
        self.order.push_back((now + time, name));
    }

    /// Removes one session that has expired or must make room for another. Call it until it returns `None`.
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
