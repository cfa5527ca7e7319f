//! Operations that start when a counter reaches a threshold (fi_trigger(3)).

use std::sync::Arc;

use crate::{AtomicOp, Counter, ReceiveOp, RmaOp, SendOp, TagMatch};

/// When to start (`struct fi_trigger_threshold`): as soon as the counter is at the threshold or above.
///
/// Operations that wait for one counter start in the order of their thresholds, even if the counter skips several;
/// those with equal thresholds start in the order of the calls.
#[derive(Clone, Copy, Debug)]
pub struct Threshold<'a> {
    /// The counter, which must belong to the same domain.
    pub counter: &'a Arc<dyn Counter>,
    /// Its value.
    pub value: u64,
}

/// An operation to start later. Its memory and peer are checked when it starts, unless stated otherwise.
#[derive(Clone, Copy, Debug)]
pub enum DeferredOp<'a> {
    /// [`crate::Endpoint::send`].
    Send(SendOp<'a>),
    /// [`crate::Endpoint::send_tagged`].
    SendTagged(SendOp<'a>, u64),
    /// [`crate::Endpoint::receive`].
    Receive(ReceiveOp<'a>),
    /// [`crate::Endpoint::receive_tagged`].
    ReceiveTagged(ReceiveOp<'a>, TagMatch),
    /// [`crate::Endpoint::write`].
    Write(RmaOp<'a>),
    /// [`crate::Endpoint::read`].
    Read(RmaOp<'a>),
    /// [`crate::Endpoint::atomic`].
    Atomic(AtomicOp<'a>),
}
