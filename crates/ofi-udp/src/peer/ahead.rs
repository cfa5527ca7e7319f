//! A payload that arrives ahead of a request for it.

use ofi_core::slots::SlotId;

use crate::op::Token;

/// A message of the peer whose parts follow on the stream of commands.
pub struct Ahead {
    pub token: Token,
    pub got: usize,
    pub len: usize,
    /// The receive that takes it, and how many bytes; none if they are dropped.
    pub into: Option<(SlotId, usize)>,
}

impl Ahead {
    /// Whether this message is operation `op` of the peer.
    pub fn is(&self, op: u64) -> bool {
        self.token.op == op
    }

    /// The receive that takes the bytes, the offset of the next byte, the number of missing bytes, and how many of them
    /// fit.
    pub fn missing(&self) -> Option<(SlotId, usize, usize, usize)> {
        let (into, wanted) = self.into?;
        Some((into, self.got, self.len - self.got, wanted.saturating_sub(self.got)))
    }
}
