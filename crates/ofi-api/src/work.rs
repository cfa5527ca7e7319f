//! The deferred work queue of a domain (fi_trigger(3)).

use std::sync::Arc;

use crate::{Counter, DeferredOp, Endpoint};

/// The operation of a deferred work request (`enum fi_op_type`).
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// Posts an operation. Its end is reported to no queue and no counter of the endpoint, unless its flags have
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
