//! Contexts that nodes share: receives for any of the nodes, and one limit on the operations of all of them.
//!
//! The receives of a shared context are operations of the context, not of a node. Their buffers are in the context's
//! table, where a node finds them when its queue reports a receive.
//!
//! A completion of one node may release a multi-receive buffer in which other nodes still have unread messages, because
//! there is no order between queues. So the operation stays in the table until each of the other nodes has found its
//! queue empty after the release.

mod receive;
mod transmit;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{
    AddressVector, CompletionFlags, CompletionQueue, CqBuffer, CqErrorEntry, CqTaggedEntry, Endpoint, Errno,
    FiAddr, Result,
};
use ofi_core::lock::Lock;

pub use receive::SharedReceive;
pub use transmit::SharedTransmit;

use crate::completion::Completion;
use crate::op::Op;
use crate::opened::OpenedDomain;
use crate::operations::{Operations, SOLE_OWNER};
use crate::post::Desk;

/// An address vector, and the number of bits of its numbers that select contexts.
#[derive(Clone)]
pub(crate) struct Vector {
    pub raw: Arc<dyn AddressVector>,
    pub rx_ctx_bits: u32,
}

/// A receive context that nodes share.
pub(crate) struct Shared {
    // Fields drop in order. Closing the context ends its nodes' accesses to the memory of its receives; nothing else
    // holds the context.
    endpoint: Arc<dyn Endpoint>,
    opened: Arc<OpenedDomain>,
    /// The vector of all its nodes.
    vector: Mutex<Option<Vector>>,
    /// Locked at every level, because nodes of several threads use it.
    operations: Lock<Operations>,
    members: Mutex<Members>,
    /// The number of the last multi-receive that was released, or 0 if all nodes have read their messages.
    released: AtomicU64,
}

/// The nodes, and which of them may still have completions of released multi-receives.
#[derive(Default)]
struct Members {
    ids: Vec<u64>,
    next: u64,
    released: Vec<Released>,
    /// Number of nodes created so far.
    count: u64,
}

struct Released {
    op: Op,
    /// See [`Shared::released`].
    number: u64,
    unread: Vec<u64>,
}

impl Shared {
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// The address vector of all nodes. The first node opens it.
    pub fn vector(&self, open: impl FnOnce() -> Result<Vector>) -> Result<Vector> {
        let mut vector = self.vector.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vector) = &*vector {
            return Ok(vector.clone());
        }
        Ok(vector.insert(open()?).clone())
    }

    /// Adds a node that reads `cq`.
    pub fn member(self: &Arc<Self>, cq: &Arc<dyn CompletionQueue>) -> Membership {
        let mut members = self.members();
        let id = members.next;
        members.next += 1;
        members.ids.push(id);
        Membership { context: Arc::clone(self), cq: Arc::clone(cq), id }
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a completion, read by node `by`, that releases a multi-receive buffer.
    fn release(&self, op: Op, by: u64) {
        let mut members = self.members();
        let unread: Vec<u64> = members.ids.iter().copied().filter(|&id| id != by).collect();
        if unread.is_empty() {
            drop(members);
            drop(self.operations.lock().remove(op));
            return;
        }
        members.count += 1;
        let number = members.count;
        members.released.push(Released { op, number, unread });
        self.released.store(number, Ordering::Release);
    }

    /// Notes that node `id` has read all its completions of releases up to `number`.
    fn has_read(&self, id: u64, number: u64) {
        let mut done = Vec::new();
        let mut members = self.members();
        members.released.retain_mut(|released| {
            if released.number <= number {
                released.unread.retain(|&unread| unread != id);
            }
            let keep = !released.unread.is_empty();
            if !keep {
                done.push(released.op);
            }
            keep
        });
        if members.released.is_empty() {
            self.released.store(0, Ordering::Release);
        }
        drop(members);
        if !done.is_empty() {
            let mut operations = self.operations.lock();
            let slots: Vec<_> = done.into_iter().filter_map(|op| operations.remove(op)).collect();
            drop(operations);
            drop(slots);
        }
    }

    fn desk(&self) -> Desk<'_> {
        Desk {
            endpoint: &*self.endpoint,
            operations: &self.operations,
            opened: &self.opened,
            owner: SOLE_OWNER,
        }
    }
}

/// A node's membership in a shared receive context.
pub(crate) struct Membership {
    context: Arc<Shared>,
    cq: Arc<dyn CompletionQueue>,
    id: u64,
}

impl Membership {
    pub fn complete(&self, entry: &CqTaggedEntry, source: FiAddr) -> Option<Completion> {
        let done = self.context.operations.lock().complete(entry, source);
        done.map(|done| self.shared(done))
    }

    pub fn fail(&self, error: CqErrorEntry, text: impl FnOnce(i32) -> String) -> Option<Completion> {
        let done = self.context.operations.lock().fail(error, text);
        done.map(|done| self.shared(done))
    }

    fn shared(&self, completion: Completion) -> Completion {
        if let (Some(_), Some(op)) = (&completion.released, completion.op) {
            self.context.release(op, self.id);
        }
        Completion { shared: true, ..completion }
    }

    /// Call this before a read; pass the result to [`Membership::has_read_all`].
    #[inline]
    pub fn released(&self) -> u64 {
        self.context.released.load(Ordering::Acquire)
    }

    /// Call this if a read found nothing: the node has read its completions of all earlier releases.
    #[inline]
    pub fn has_read_all(&self, released: u64) {
        if released > 0 {
            self.context.has_read(self.id, released);
        }
    }
}

/// The maximum number of reads of a queue that is about to close.
const LAST_READS: usize = 64;

impl Drop for Membership {
    /// Messages that the node has received and not read are dropped now, rather than with the context.
    fn drop(&mut self) {
        self.read_the_rest();
        self.context.members().ids.retain(|&id| id != self.id);
        self.context.has_read(self.id, u64::MAX);
    }
}

impl Membership {
    fn read_the_rest(&self) {
        for _ in 0..LAST_READS {
            let mut entries = [CqTaggedEntry::EMPTY; 64];
            let received = |entry: &&CqTaggedEntry| entry.flags.contains(CompletionFlags::RECV);
            match self.cq.read(&mut CqBuffer::new(&mut entries)) {
                Ok(count) => {
                    entries[..count].iter().filter(received).for_each(|entry| {
                        drop(self.complete(entry, FiAddr::NOTAVAIL));
                    });
                }
                Err(error) if error == Errno::EAVAIL => match self.cq.read_error() {
                    Ok(error) if error.flags.contains(CompletionFlags::RECV) => {
                        drop(self.fail(error, |_| String::new()));
                    }
                    Ok(_) => {}
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    }
}
