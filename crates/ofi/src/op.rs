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

    /// The operation's slot in the table. No other operation in flight of the node has the same.
    pub(crate) const fn index(self) -> usize {
        (self.slot.to_wire() & 0xFFFF_FFFF) as usize
    }
}

/// A message that a peek has claimed: no other receive can match it. Receive it with
/// [`Node::claim`](crate::Node::claim) or discard it with [`Node::discard_claimed`](crate::Node::discard_claimed). If
/// the claim is merely dropped, the message is kept until the node is closed.
#[derive(Debug)]
#[must_use = "the message stays where it is until the claim is used"]
pub struct Claim(pub(crate) Op);
