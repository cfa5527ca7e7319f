//! The deferred work queue of a domain (fi_trigger(3)).

use std::sync::Arc;

use crate::{Counter, DeferredOp, Endpoint};

/// The operation of a deferred work request (`enum fi_op_type`).
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Posts an operation. No queue or counter of the endpoint reports its completion, unless its flags have
    /// `FI_COMPLETION`.
    Post {
        /// The endpoint to post to.
        endpoint: &'a Arc<dyn Endpoint>,
        /// The operation. It has its own flags; the endpoint's `op_flags` do not apply.
        op: DeferredOp<'a>,
        /// Incremented when the operation completes: its value on success, its error count on failure.
        completion: Option<&'a Arc<dyn Counter>>,
    },
    /// Sets a counter (`FI_OP_CNTR_SET`).
    SetCounter(&'a Arc<dyn Counter>, u64),
    /// Adds to a counter (`FI_OP_CNTR_ADD`).
    AddCounter(&'a Arc<dyn Counter>, u64),
}

/// Names a request of the deferred work queue, for [`crate::Domain::cancel_work`]. Never reused in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);
