//! Operations that wait for a grant.

use std::collections::VecDeque;

use ofi_api::{Piece, RemotePiece};
use ofi_core::atomic::Executor;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{OutAtomic, Payload, RemoteData};

use crate::token::Token;

/// An operation that waits for a grant.
pub enum Parked {
    /// An access of this end.
    Rma { id: SlotId, access: Access },
    /// An atomic operation of this end.
    Atomic { id: SlotId, access: AtomicAccess },
    /// A payload to pull from the sender's library memory.
    Pull { token: Token, into: SlotId },
}

impl Parked {
    /// The access of this end, if it is one.
    pub const fn access(&self) -> Option<SlotId> {
        match self {
            Self::Rma { id, .. } | Self::Atomic { id, .. } => Some(*id),
            Self::Pull { .. } => None,
        }
    }

    /// Whether it needs a grant of this key.
    pub fn names(&self, key: u64) -> bool {
        let remote = match self {
            Self::Rma { access, .. } => &access.remote,
            Self::Atomic { access, .. } => &access.remote,
            Self::Pull { .. } => return false,
        };
        remote.iter().any(|piece| piece.key == key)
    }
}

/// An access, with all that is needed to start it later.
pub struct Access {
    pub write: bool,
    pub payload: Payload,
    pub remote: Box<[RemotePiece]>,
    pub len: usize,
    pub data: Option<RemoteData>,
}

/// An atomic operation, with all that is needed to start it later.
pub struct AtomicAccess {
    pub executor: Executor,
    /// Copies of the operands, then of the comparands.
    pub bytes: Box<[u8]>,
    pub results: Box<[Piece]>,
    pub remote: Box<[RemotePiece]>,
    pub len: usize,
}

impl AtomicAccess {
    pub fn new(out: &OutAtomic<'_>) -> Self {
        let both: Vec<Piece> = out.operands.iter().chain(out.comparands).copied().collect();
        let len = both.iter().map(|piece| piece.len).sum();
        Self {
            executor: out.executor,
            // SAFETY: the core lends the pieces of what it posts.
            bytes: unsafe { copy::copied(&both, len) },
            results: out.results.into(),
            remote: out.remote.into(),
            len: out.len,
        }
    }

    /// The operands and the comparands, each as pieces.
    pub fn parts(&self) -> [Vec<Piece>; 2] {
        let (operands, comparands) =
            if self.executor.takes_operands() { self.bytes.split_at(self.len) } else { (&[][..], &[][..]) };
        [operands, comparands].map(|part| match part {
            [] => Vec::new(),
            part => vec![Piece::new(part.as_ptr().cast_mut(), part.len())],
        })
    }
}

/// Parked operations in posting order.
#[derive(Default)]
pub struct ParkedQueue {
    pub queue: VecDeque<Parked>,
    /// Accesses of this end among them. Later operations must not overtake these.
    pub accesses: usize,
}
