//! Sessions that were granted to a requester that has not confirmed them yet.
//!
//! A question may be an old one that somebody else repeats. So nothing is begun with it, and nothing ended, before a
//! packet of the new session has come: only who asked can make one.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::crypto::Protection;
use crate::time::Instant;
use crate::wire::Init;

/// How many there are at most; the oldest go first.
const MOST: usize = 16_384;

/// A session that was granted.
#[derive(Debug)]
pub struct Pending {
    /// The requester.
    pub address: SocketAddr,
    /// It counts among the strangers of its host.
    pub counted: bool,
    /// What was asked.
    pub init: Init,
    /// What protects its packets.
    pub protection: Option<Box<Protection>>,
    /// What was answered: flags, and the body.
    pub accept: (u16, Vec<u8>),
}

/// See the module.
#[derive(Debug, Default)]
pub struct PendingSessions {
    by_name: BTreeMap<u64, Box<Pending>>,
    /// Names by address and name of who asked.
    by_question: BTreeMap<(SocketAddr, u64), u64>,
    /// The first one granted in front.
    order: VecDeque<(Instant, u64)>,
}

impl PendingSessions {
    /// What was granted to `address`, which calls it `name`.
    pub fn granted(&self, address: SocketAddr, name: u64) -> Option<&Pending> {
        self.by_name.get(self.by_question.get(&(address, name))?).map(|pending| &**pending)
    }

    /// The one that this end calls `name`.
    pub fn named(&mut self, name: u64) -> Option<&mut Pending> {
        self.by_name.get_mut(&name).map(|pending| &mut **pending)
    }

    /// Grants one under `name`, for so long.
    pub fn grant(&mut self, now: Instant, time: Duration, name: u64, pending: Pending) {
        self.by_question.insert((pending.address, pending.init.session), name);
        self.by_name.insert(name, Box::new(pending));
        self.order.push_back((now + time, name));
    }

    /// Takes out one that has waited for too long, or for which there is no room beside another.
    pub fn expire(&mut self, now: Instant) -> Option<Pending> {
        while self.order.front().is_some_and(|&(until, _)| until <= now || self.by_name.len() >= MOST) {
            let (_, name) = self.order.pop_front()?;
            if let Some(pending) = self.take(name) {
                return Some(pending);
            }
        }
        None
    }

    /// Takes out the one that this end calls `name`.
    pub fn take(&mut self, name: u64) -> Option<Pending> {
        let pending = *self.by_name.remove(&name)?;
        self.by_question.remove(&(pending.address, pending.init.session));
        Some(pending)
    }
}
