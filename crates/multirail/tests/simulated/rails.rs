//! The rails of an agent, and the faults of rails and agents.

use multirail::engine::{Access, OpId, Piece, Plan, Refused, Sink};
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
    /// A rail has no room for an operation.
    pub full: u32,
    /// A rail refuses an operation for good.
    pub refused: u32,
}

pub const NONE: Trouble =
    Trouble { cut: 0, mute: 0, kill: 0, cancel: 0, disconnect: 0, ambiguous: 0, full: 0, refused: 0 };

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
        self.refusal()?;
        self.taken.push(Taken::Access(*access));
        Ok(())
    }

    fn send(&mut self, op: OpId, rail: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
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
}
