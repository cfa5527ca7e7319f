//! Replies that wait.

use std::collections::VecDeque;

/// The maximum number of results in one reply: they fill a line of its ring.
pub const DONES: usize = 7;

/// Executed operations of the peer, reported together.
#[derive(Default)]
pub struct Dones {
    pub ops: [u64; DONES],
    pub count: usize,
    /// Commands are being processed, so more results may follow.
    pub gathers: bool,
}

/// A reply that found its ring full.
pub struct Reply {
    pub high: u32,
    pub words: [u64; 3],
}

/// Replies that the peer has not received.
#[derive(Default)]
pub struct Replies {
    /// Replies that found their ring full, in order.
    pub backlog: VecDeque<Reply>,
    pub dones: Dones,
}
