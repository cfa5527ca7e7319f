//! Contexts that nodes share: receives that serve any of them, and room for the operations of all of them.
//!
//! The receives of a shared context are operations of the context, not of a node. Their buffers are in the context's
//! table, and a node looks them up there when its queue reports a receive.
//!
//! A completion of one node releases a multi-receive buffer, while other nodes may not have read their messages in it:
//! queues have no order between them. So the operation stays until each of the other nodes has found its queue empty
//! after that.

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
use crate::opened::Opened;
use crate::operations::{Operations, SOLE_OWNER};
use crate::post::Desk;

/// An address vector, and how many bits of its numbers name contexts.
#[derive(Clone)]
pub(crate) struct Vector {
    pub raw: Arc<dyn AddressVector>,
    pub rx_ctx_bits: u32,
}

/// A receive context that nodes share.
pub(crate) struct Shared {
    // Fields drop in order. Closing the context ends what nodes do with the memory of its receives; nobody else has it.
    endpoint: Arc<dyn Endpoint>,
    opened: Arc<Opened>,
    /// All its nodes have one.
    vector: Mutex<Option<Vector>>,
    /// Nodes of several threads use it, at every level.
    operations: Lock<Operations>,
    members: Mutex<Members>,
    /// The number of the last multi-receive that was released, or 0 if all nodes have read theirs.
    released: AtomicU64,
}

/// The nodes, and who of them may still have completions of multi-receives that were released.
#[derive(Default)]
struct Members {
    ids: Vec<u64>,
    next: u64,
    released: Vec<Released>,
    /// How many there ever were.
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

    /// The vector of all nodes, which the first of them opens.
    pub fn vector(&self, open: impl FnOnce() -> Result<Vector>) -> Result<Vector> {
        let mut vector = self.vector.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vector) = &*vector {
            return Ok(vector.clone());
        }
        Ok(vector.insert(open()?).clone())
    }

    /// The part of a node that reads `cq`.
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

    /// A completion that node `by` has read releases a multi-receive buffer.
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

    /// Node `id` has read everything of releases up to `number`.
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

/// A node's part in a shared receive context.
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

    /// To be asked before a read, for [`Membership::has_read_all`].
    #[inline]
    pub fn released(&self) -> u64 {
        self.context.released.load(Ordering::Acquire)
    }

    /// A read found nothing: of what was released before it, the node has read its part.
    #[inline]
    pub fn has_read_all(&self, released: u64) {
        if released > 0 {
            self.context.has_read(self.id, released);
        }
    }
}

/// Reads of a queue that is about to close, at most.
const LAST_READS: usize = 64;

impl Drop for Membership {
    /// What the node has received and not read goes with the node, and not only with the context.
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
