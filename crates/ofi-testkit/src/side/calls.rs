//! How a side's data path is called: through objects of any transport, or directly through types of one transport
//! ([`ofi::direct`]).

use std::sync::Arc;

use ofi::direct::{self, Shm};
use ofi::raw::{
    AtomicOp, CompletionQueue, CqBuffer, CqErrorEntry, Endpoint, ReceiveOp, Result, RmaOp, SendOp, TagMatch,
};

use super::TestEndpoint;

/// The direct objects of a shared-memory endpoint and its queues.
pub(crate) struct Direct {
    ep: direct::Endpoint<Shm>,
    tx: direct::CompletionQueue,
    rx: direct::CompletionQueue,
}

impl Direct {
    /// Wraps objects that were opened as usual.
    ///
    /// # Errors
    /// `FI_EINVAL` for an endpoint of another transport.
    pub fn new(
        ep: &Arc<dyn Endpoint>,
        tx: &Arc<dyn CompletionQueue>,
        rx: &Arc<dyn CompletionQueue>,
    ) -> Result<Self> {
        let queue = |queue: &Arc<dyn CompletionQueue>| direct::CompletionQueue::new(Arc::clone(queue));
        Ok(Self { ep: direct::Endpoint::new(Arc::clone(ep))?, tx: queue(tx)?, rx: queue(rx)? })
    }
}

/// Calls the endpoint directly if there is a direct one.
macro_rules! call {
    ($side:expr, $call:ident($($arg:expr),*)) => {
        match &$side.direct {
            Some(direct) => direct.ep.$call($($arg),*),
            None => $side.ep.$call($($arg),*),
        }
    };
}

/// The data path, as this crate's operations and waits use it.
impl TestEndpoint {
    pub(crate) fn send_op(&self, op: &SendOp<'_>, tag: Option<u64>) -> Result<()> {
        match tag {
            Some(tag) => call!(self, send_tagged(op, tag)),
            None => call!(self, send(op)),
        }
    }

    pub(crate) fn receive_op(&self, op: &ReceiveOp<'_>, tag: Option<TagMatch>) -> Result<()> {
        match tag {
            Some(tag) => call!(self, receive_tagged(op, tag)),
            None => call!(self, receive(op)),
        }
    }

    pub(crate) fn rma_op(&self, op: &RmaOp<'_>, write: bool) -> Result<()> {
        if write { call!(self, write(op)) } else { call!(self, read(op)) }
    }

    pub(crate) fn atomic_op(&self, op: &AtomicOp<'_>) -> Result<()> {
        call!(self, atomic(op))
    }

    /// Reads the queue of one direction.
    pub(crate) fn read_queue(&self, transmit: bool, buffer: &mut CqBuffer<'_>) -> Result<usize> {
        match (&self.direct, transmit) {
            (Some(direct), true) => direct.tx.read(buffer),
            (Some(direct), false) => direct.rx.read(buffer),
            (None, true) => self.tx.read(buffer),
            (None, false) => self.rx.read(buffer),
        }
    }

    /// Reads the error of one direction's queue.
    pub(crate) fn read_queue_error(&self, transmit: bool) -> Result<CqErrorEntry> {
        match (&self.direct, transmit) {
            (Some(direct), true) => direct.tx.read_error(),
            (Some(direct), false) => direct.rx.read_error(),
            (None, true) => self.tx.read_error(),
            (None, false) => self.rx.read_error(),
        }
    }
}
