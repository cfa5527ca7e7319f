//! The rails of an agent, and the faults of rails and agents.

use std::collections::{HashMap, HashSet};

use multirail::engine::{Access, OpId, Piece, Plan, Refused, Sink};
use multirail::wire::RegionKey;
use multirail::wire::message::LeasedKey;
use ofi::Errno;
use ofi_testkit::net::Random;

/// Probabilities of faults, in thousandths.
#[derive(Clone, Copy, Debug)]
pub struct Trouble {
    /// A step cuts a rail between two agents for a while.
    pub cut: u32,
    /// The share of the cuts in which the rail completes nothing until it works again; in the others it reports
    /// failures.
    pub mute: u32,
    /// A step kills an agent, which restarts.
    pub kill: u32,
    /// A step cancels a transfer.
    pub cancel: u32,
    /// A step ends a session.
    pub disconnect: u32,
    /// An operation takes place and is reported as failed.
    pub ambiguous: u32,
    /// A write is reported as failed, and takes place long after that.
    pub late: u32,
    /// A rail has no room for an operation.
    pub full: u32,
    /// A rail refuses an operation for good.
    pub refused: u32,
    /// A rail does not give up an access, or its owner cannot close a leased key.
    pub unwilling: u32,
}

pub const NONE: Trouble = Trouble {
    cut: 0,
    mute: 0,
    kill: 0,
    cancel: 0,
    disconnect: 0,
    ambiguous: 0,
    late: 0,
    full: 0,
    refused: 0,
    unwilling: 0,
};

/// A leased key: the session's tag, the region and the rail.
pub type Leases = HashMap<u64, (u64, u64, u8)>;

/// The remote address of the first byte of every region.
pub const BASE: u64 = 1 << 20;

/// Work that rails have taken.
pub enum Taken {
    Send { op: OpId, rail: usize, addr: u64, bytes: Vec<u8> },
    Access(Access),
}

/// The rails of an agent, while its engine works.
pub struct Rails<'a> {
    pub random: &'a mut Random,
    pub trouble: Trouble,
    pub taken: Vec<Taken>,
    /// Accesses that the rails have and that have not ended.
    pub in_flight: &'a mut HashSet<OpId>,
    /// Accesses that were given up in this call.
    pub abandoned: Vec<OpId>,
    /// The agent's keys that are leased to peers.
    pub leases: &'a mut Leases,
    pub next_key: &'a mut u64,
    pub life: u64,
    /// The rails whose devices are gone, a bit each.
    pub lost: u64,
    /// The rails on which peers get keys of the agent's memory, a bit each.
    pub keyed: &'a mut u64,
}

impl Rails<'_> {
    fn refusal(&mut self) -> Result<(), Refused> {
        if self.random.chance(self.trouble.full) {
            return Err(Refused::Full);
        }
        let is_refused = self.random.chance(self.trouble.refused);
        if is_refused { Err(Refused::Failed(Errno::EHOSTUNREACH)) } else { Ok(()) }
    }
}

impl Sink<()> for Rails<'_> {
    fn access(&mut self, access: &Access, plan: &Plan<()>, _: bool) -> Result<(), Refused> {
        let is_its = |piece: &Piece| {
            (piece.local..piece.local + piece.len).contains(&access.local) && access.len <= piece.len
        };
        assert!(plan.pieces.iter().any(is_its), "an access is a part of its plan");
        if self.lost >> access.rail & 1 == 1 {
            return Err(Refused::Failed(Errno::ENODEV));
        }
        self.refusal()?;
        self.taken.push(Taken::Access(*access));
        self.in_flight.insert(access.op);
        Ok(())
    }

    fn send(&mut self, op: OpId, rail: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        if self.lost >> rail & 1 == 1 {
            return Err((Refused::Failed(Errno::ENODEV), bytes));
        }
        match self.refusal() {
            Ok(()) => self.taken.push(Taken::Send { op, rail, addr, bytes }),
            Err(refused) => return Err((refused, bytes)),
        }
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(address.try_into().unwrap()))
    }

    fn remove(&mut self, _: usize, _: u64) {}

    fn abandon(&mut self, _: usize, op: OpId) -> Result<(), Errno> {
        if !self.in_flight.contains(&op) {
            return Err(Errno::ENOENT);
        }
        if self.random.chance(self.trouble.unwilling) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.abandoned.push(op);
        Ok(())
    }

    fn lease(&mut self, tag: u64, region: u64) -> Vec<RegionKey> {
        let key = |rail: u8| {
            let known = self.leases.iter().find(|&(_, &lease)| lease == (tag, region, rail));
            let key = known.map_or_else(
                || {
                    *self.next_key += 1;
                    *self.next_key
                },
                |(&key, _)| key,
            );
            self.leases.insert(key, (tag, region, rail));
            RegionKey { rail, key, base: BASE }
        };
        let keyed = *self.keyed;
        (0..super::world::NUMBERS as u8).filter(|rail| keyed >> rail & 1 == 1).map(key).collect()
    }

    fn renew(&mut self, _: u64) -> Vec<RegionKey> {
        let (keyed, life) = (*self.keyed, self.life);
        let rails = (0..super::world::NUMBERS as u8).filter(|rail| keyed >> rail & 1 == 1);
        rails.map(|rail| RegionKey { rail, key: life, base: BASE }).collect()
    }

    fn widen(&mut self, _: u64) -> Vec<RegionKey> {
        *self.keyed = u64::MAX;
        let key = |rail| RegionKey { rail, key: self.life, base: BASE };
        (0..super::world::RAILS as u8).map(key).collect()
    }

    fn close_leased(&mut self, tag: u64, keys: &[LeasedKey], _: &[(usize, u64)]) -> bool {
        if self.random.chance(self.trouble.unwilling) {
            return false;
        }
        for &LeasedKey { region, rail, key } in keys {
            if self.leases.get(&key) == Some(&(tag, region, rail)) {
                self.leases.remove(&key);
            }
        }
        true
    }

    fn end_leases(&mut self, tag: u64) {
        self.leases.retain(|_, lease| lease.0 != tag);
    }
}
