//! Names of operations in flight.

use ofi_api::Context;
use ofi_core::slots::SlotId;

const _: () = assert!(size_of::<usize>() == 8, "a context holds a slot's number and generation");

/// Identifies an operation of a node while it is in flight, and its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Op {
    pub(crate) node: u64,
    pub(crate) slot: SlotId,
}

impl Op {
    /// The context under which the transport knows the operation.
    pub(crate) fn context(self) -> Context {
        Context(self.slot.to_wire() as usize)
    }

    /// The operation's place in the table. No other operation of the node in flight has the same.
    pub(crate) const fn index(self) -> usize {
        (self.slot.to_wire() & 0xFFFF_FFFF) as usize
    }
}

/// A message that a search claimed: no other receive can match it. Receive it with [`Node::claim`](crate::Node::claim)
/// or drop it with [`Node::discard_claimed`](crate::Node::discard_claimed); a claim that is only dropped keeps its
/// message until the node is closed.
#[derive(Debug)]
#[must_use = "the message stays where it is until the claim is used"]
pub struct Claim(pub(crate) Op);
