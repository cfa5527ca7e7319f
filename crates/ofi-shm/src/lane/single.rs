//! What a lane has for copies from memory to memory.

use std::collections::VecDeque;
use std::time::Instant;

use ofi_api::Piece;
use ofi_core::slots::SlotId;

use crate::choice::{Choice, Path};
use crate::openings::Opened;
use crate::token::{Sink, Token};

/// What a payload comes out of.
#[derive(Clone, Copy)]
pub enum Origin {
    /// A message or a write of this end.
    Op(SlotId),
    /// What the peer reads, by its operation.
    Served(u64),
}

/// A payload of which it is decided how it comes.
pub struct Queued {
    pub token: Token,
    pub sink: Sink,
    pub len: usize,
    pub path: Path,
}

/// A payload that is being copied to here.
pub struct Inward {
    pub token: Token,
    pub sink: Sink,
    pub len: usize,
    /// 0 before the sender was asked.
    pub ticket: u64,
    /// Bytes read, from the front.
    pub front: usize,
    /// This end can read, as far as it knows.
    pub reads: bool,
    /// The other end writes, and is to: not if registered memory may not be written by it (any more).
    pub shared: bool,
    /// Keeps registered memory open to it.
    pub opened: Option<Opened>,
}

/// A payload that is being copied from here.
pub struct Outward {
    pub origin: Origin,
    pub ticket: u64,
    pub len: usize,
    /// Where it goes: addresses of the peer.
    pub there: Box<[Piece]>,
    /// Bytes written, from the end.
    pub written: usize,
}

// SAFETY: addresses of another process, which this one never follows.
unsafe impl Send for Outward {}

/// What a lane has for single copies; made at the first message that may be copied so.
#[derive(Default)]
pub struct Single {
    pub may_read: Option<bool>,
    pub may_write: Option<bool>,
    pub waiting: VecDeque<Queued>,
    pub inward: Option<Inward>,
    pub outward: Option<Outward>,
    /// Tickets given out, of receives and of payloads that are lent.
    pub tickets: u64,
    pub lends: u64,
    /// Of messages and of accesses: these are served one at a time.
    pub choices: [Choice; 2],
    /// Measured payloads under way, all of them this way, and since when the next of them is under way.
    pub in_flight: usize,
    pub path: Option<Path>,
    pub since: Option<Instant>,
}

impl Single {
    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        self.inward.is_some() || self.outward.is_some() || !self.waiting.is_empty()
    }
}
