//! The state of payloads that a device moves: transfers, the memory of requests, and accesses that the peer's device
//! has refused.

use std::collections::VecDeque;

use ibv::transfer::Step;
use ofi_api::Errno;
use ofi_core::slots::SlotId;

use crate::domain::Local;
use crate::op::Token;

/// The operation that a transfer completes.
pub enum End {
    /// A receive, whose payload is in its sender's memory.
    Receive { into: SlotId, token: Token },
    /// An access to the peer's memory.
    Access(SlotId),
    /// An access with a record for the peer. It ends when the peer has also answered; the answer may arrive first.
    Told(SlotId, Option<Result<(), Errno>>),
}

/// A transfer in flight.
pub struct Transfer {
    pub end: End,
    /// Requests that are not posted yet.
    pub todo: VecDeque<Step>,
    /// Requests in flight.
    pub posted: usize,
    pub failed: Option<Errno>,
    /// The slot that short accesses use.
    pub slot: Option<u32>,
    /// Registrations of this end's memory.
    pub regions: Vec<Local>,
}

impl Transfer {
    /// A transfer without requests to post.
    pub fn of(end: End) -> Self {
        Self { end, todo: VecDeque::new(), posted: 0, failed: None, slot: None, regions: Vec::new() }
    }
}

/// The memory of this end that a request uses until it has ended.
pub enum RequestMemory {
    /// No memory: the bytes are in the request.
    Nothing,
    /// A slot.
    Slot(u32),
    /// The application's memory.
    Region(Local),
}

impl RequestMemory {
    /// The slot.
    pub const fn slot(&self) -> Option<u32> {
        match self {
            Self::Slot(slot) => Some(*slot),
            Self::Nothing | Self::Region(_) => None,
        }
    }

    /// A transfer whose requests are posted: for a peer that has lost its connection.
    pub fn into_transfer(self, op: SlotId) -> Transfer {
        let mut transfer = Transfer::of(End::Access(op));
        match self {
            Self::Nothing => {}
            Self::Slot(slot) => transfer.slot = Some(slot),
            Self::Region(region) => transfer.regions.push(region),
        }
        transfer
    }
}

/// An access whose requests were not all executed, and its slot, if it is short.
pub struct Refused {
    pub op: SlotId,
    pub slot: Option<u32>,
}

impl Refused {
    /// Creates the entry for the access of operation `op`.
    pub const fn new(op: SlotId, slot: Option<u32>) -> Self {
        Self { op, slot }
    }

    /// Creates the entry for a transfer, if it is an access.
    pub fn of(end: &End, slot: Option<u32>) -> Option<Self> {
        match *end {
            End::Access(op) | End::Told(op, _) => Some(Self { op, slot }),
            End::Receive { .. } => None,
        }
    }
}
