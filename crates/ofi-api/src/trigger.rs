//! Operations that start when a counter reaches a threshold (fi_trigger(3)).

use std::sync::Arc;

use crate::{AtomicOp, Counter, Endpoint, ReceiveOp, RmaOp, SendOp, TagMatch};

/// When to start (`struct fi_trigger_threshold`): as soon as the counter is at the threshold or above.
///
/// Operations that wait for one counter start in the order of their thresholds, and in the order of the calls for equal
/// thresholds, even if the counter skips several.
#[derive(Clone, Copy, Debug)]
pub struct Threshold<'a> {
    /// The counter; one of the same domain.
    pub counter: &'a Arc<dyn Counter>,
    /// Its value.
    pub value: u64,
}

/// An operation to start later. Its memory and peers are checked when it starts, unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub enum DeferredOp<'a> {
    /// [`Endpoint::send`].
    Send(SendOp<'a>),
    /// [`Endpoint::send_tagged`].
    SendTagged(SendOp<'a>, u64),
    /// [`Endpoint::receive`].
    Receive(ReceiveOp<'a>),
    /// [`Endpoint::receive_tagged`].
    ReceiveTagged(ReceiveOp<'a>, TagMatch),
    /// [`Endpoint::write`].
    Write(RmaOp<'a>),
    /// [`Endpoint::read`].
    Read(RmaOp<'a>),
    /// [`Endpoint::atomic`].
    Atomic(AtomicOp<'a>),
}

/// The operation of a deferred work request (`enum fi_op_type`).
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Posts an operation. No queue and no counter of the endpoint is told of its end, unless its flags have
    /// `FI_COMPLETION`.
    Post {
        /// Where.
        endpoint: &'a Arc<dyn Endpoint>,
        /// The operation. It has its own flags; the endpoint's `op_flags` do not apply.
        op: DeferredOp<'a>,
        /// Counts its completion: one, success or failure.
        completion: Option<&'a Arc<dyn Counter>>,
    },
    /// Sets a counter (`FI_OP_CNTR_SET`).
    SetCounter(&'a Arc<dyn Counter>, u64),
    /// Adds to a counter (`FI_OP_CNTR_ADD`).
    AddCounter(&'a Arc<dyn Counter>, u64),
}

/// Names a request of the deferred work queue, for [`crate::Domain::cancel_work`]. Never used twice in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);
