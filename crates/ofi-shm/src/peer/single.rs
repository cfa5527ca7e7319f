//! A peer's state for direct copies.

use std::collections::VecDeque;
use std::time::Instant;

use ofi_api::Piece;
use ofi_core::slots::SlotId;

use crate::openings::OpenedRegion;
use crate::path::{Path, PathChoice};
use crate::token::{Sink, Token};

/// The source of a payload.
#[derive(Clone, Copy)]
pub enum Origin {
    /// A message or a write of this end.
    Op(SlotId),
    /// An operation's offer that the peer reads.
    Served(u64),
}

/// A payload whose path is decided.
pub struct Queued {
    pub token: Token,
    pub sink: Sink,
    pub len: usize,
    pub path: Path,
}

/// A payload that is being copied to this end.
pub struct Inward {
    pub token: Token,
    pub sink: Sink,
    pub len: usize,
    /// 0 before the sender was asked.
    pub ticket: u64,
    /// Bytes read, from the front.
    pub front: usize,
    /// This end is assumed to be able to read.
    pub reads: bool,
    /// The other end may write. Not for registered memory that it may not, or no longer, write.
    pub shared: bool,
    /// Keeps registered memory open to the writer.
    pub opened: Option<OpenedRegion>,
}

/// A payload that is being copied from this end.
pub struct Outward {
    pub origin: Origin,
    pub ticket: u64,
    pub len: usize,
    /// Its destination: addresses of the peer.
    pub there: Box<[Piece]>,
    /// Bytes written, from the end.
    pub written: usize,
}

// SAFETY: addresses of another process, which this one never follows.
unsafe impl Send for Outward {}

/// A peer's state for single copies, created at the first message that may be copied directly.
#[derive(Default)]
pub struct Single {
    pub may_read: Option<bool>,
    pub may_write: Option<bool>,
    pub waiting: VecDeque<Queued>,
    pub inward: Option<Inward>,
    pub outward: Option<Outward>,
    /// Tickets issued for receives and for lent payloads.
    pub tickets: u64,
    pub lends: u64,
    /// For messages and for accesses; accesses are served one at a time.
    pub choices: [PathChoice; 2],
    /// Measured payloads in flight, all on this path, and the start time of the next one.
    pub in_flight: usize,
    pub path: Option<Path>,
    pub since: Option<Instant>,
}

impl Single {
    /// Whether a copy is in flight.
    pub fn is_busy(&self) -> bool {
        self.inward.is_some() || self.outward.is_some() || !self.waiting.is_empty()
    }
}
