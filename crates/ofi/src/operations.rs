//! Operations in flight: a table of slots. Each slot owns the resources of its operation. The transport's context holds
//! the slot's number and generation, so a duplicate, late or forged context matches no slot.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ofi_api::{CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, FiAddr};
use ofi_core::lock::Lock;
use ofi_core::slots::{SlotId, Slots};

use crate::any_buffer::AnyBuffer;
use crate::completion::{Completion, OpError};
use crate::multi_recv::MultiRecvBuffer;
use crate::op::{Claim, Op};

/// The resources of an operation in flight.
pub enum Slot {
    /// A send, a receive, a read or a write.
    Transfer { buffer: AnyBuffer, part: Range<usize> },
    /// A multi-receive buffer.
    Multi(MultiRecvBuffer),
    /// A search for a message.
    Search { claim: bool },
    /// Empty: reserved for a [`Claim`], whose next operation uses the same context.
    Claimed,
}

/// The operations in flight of one node.
pub struct Operations {
    node: u64,
    slots: Slots<Slot>,
    /// Whether released multi-receives remain until they are [removed](Operations::remove), because some of their
    /// completions may still be unread.
    keeps_released: bool,
    /// The current or last owner of each slot, in tables of several endpoints.
    owners: Vec<u32>,
}

/// The owner in a table that belongs to one node.
pub const SOLE_OWNER: u32 = 0;

impl Operations {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let node = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { node, slots: Slots::default(), keeps_released: false, owners: Vec::new() }
    }

    /// The table of a context whose completions are read from several queues, in no particular order.
    pub fn of_several_queues() -> Self {
        Self { keeps_released: true, ..Self::new() }
    }

    #[inline]
    pub fn insert(&mut self, slot: Slot) -> Op {
        Op { node: self.node, slot: self.slots.insert(slot) }
    }

    /// As [`Operations::insert`], for one of several endpoints that share the table.
    #[inline]
    pub fn insert_for(&mut self, owner: u32, slot: Slot) -> Op {
        let op = self.insert(slot);
        if owner != SOLE_OWNER {
            if self.owners.len() <= op.index() {
                self.owners.resize(op.index() + 1, SOLE_OWNER);
            }
            self.owners[op.index()] = owner;
        }
        op
    }

    /// The owner of an operation that was in flight when the lock was taken.
    pub fn owner(&self, op: Op) -> u32 {
        self.owners.get(op.index()).copied().unwrap_or(SOLE_OWNER)
    }

    /// Removes the operations of an owner whose endpoint is closed: their memory is no longer in use.
    fn remove_all_of(&mut self, owner: u32) -> Vec<Slot> {
        let ids = self.slots.ids(|_| true).into_iter();
        let mut ids: Vec<_> = ids.map(|slot| Op { node: self.node, slot }).collect();
        ids.retain(|&op| self.owner(op) == owner);
        ids.into_iter().filter_map(|op| self.remove(op)).collect()
    }

    /// Removes an operation that was not posted.
    pub fn remove(&mut self, op: Op) -> Option<Slot> {
        if op.node == self.node { self.slots.remove(op.slot) } else { None }
    }

    /// Whether the operation is in flight here.
    pub fn contains(&self, op: Op) -> bool {
        op.node == self.node && self.slots.get(op.slot).is_some()
    }

    /// Puts the next operation on a claimed message into its slot. Returns `next` if the claim is unknown.
    pub fn claimed(&mut self, claim: &Claim, next: Slot) -> Result<(), Slot> {
        if claim.0.node == self.node
            && let Some(slot @ Slot::Claimed) = self.slots.get_mut(claim.0.slot)
        {
            *slot = next;
            return Ok(());
        }
        Err(next)
    }

    /// Undoes [`Operations::claimed`].
    pub fn unclaimed(&mut self, claim: &Claim) -> Option<Slot> {
        let slot = self.slots.get_mut(claim.0.slot)?;
        Some(std::mem::replace(slot, Slot::Claimed))
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Removes all operations: their memory is no longer in use.
    pub fn drain(&mut self) -> Vec<AnyBuffer> {
        let ids = self.slots.ids(|_| true);
        let slots = ids.into_iter().filter_map(|id| self.slots.remove(id));
        slots
            .filter_map(|slot| if let Slot::Transfer { buffer, .. } = slot { Some(buffer) } else { None })
            .collect()
    }

    /// Converts an entry to a completion. `None`, after logging an error, if the entry belongs to no operation.
    #[inline]
    pub fn complete(&mut self, entry: &CqTaggedEntry, source: FiAddr) -> Option<Completion> {
        let mut done = Completion::new(entry.flags, entry.len);
        done.data = entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA).then_some(entry.data);
        done.tag = entry.flags.contains(RECEIVED_TAGGED).then_some(entry.tag);
        done.source = (source != FiAddr::NOTAVAIL).then_some(source);
        self.finish(done, entry.op_context, entry.buf as usize)
    }

    /// The completion of an error entry.
    #[cold]
    pub fn fail(&mut self, entry: CqErrorEntry, text: impl FnOnce(i32) -> String) -> Option<Completion> {
        let mut done = Completion::new(entry.flags, entry.len);
        done.data = entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA).then_some(entry.data);
        done.tag = entry.flags.contains(RECEIVED_TAGGED).then_some(entry.tag);
        done.source = (entry.src_addr != FiAddr::NOTAVAIL).then_some(entry.src_addr);
        let (context, addr) = (entry.op_context, entry.buf);
        done.result = Err(OpError::new(entry, text));
        self.finish(done, context, addr)
    }

    #[inline]
    fn finish(&mut self, mut done: Completion, context: Context, addr: usize) -> Option<Completion> {
        if context.is_null() {
            return Some(done); // no operation of the node: remote CQ data, or an inject that failed
        }
        let id = SlotId::from_wire(context.0 as u64);
        done.op = Some(Op { node: self.node, slot: id });
        match self.slots.get_mut(id) {
            Some(Slot::Transfer { .. }) => {
                if let Some(Slot::Transfer { buffer, part }) = self.slots.remove(id) {
                    (done.buffer, done.start) = (Some(buffer), part.start);
                    if !done.flags.intersects(CompletionFlags::RECV) && done.result.is_ok() {
                        done.len = part.len();
                    }
                }
            }
            Some(Slot::Multi(buffer)) => {
                done.range = if addr == 0 { None } else { buffer.part(addr, done.len) };
                done.goes_on = !done.flags.contains(CompletionFlags::MULTI_RECV);
                if done.flags.contains(CompletionFlags::MULTI_RECV) {
                    done.released = Some(buffer.share());
                    if !self.keeps_released {
                        self.slots.remove(id);
                    }
                }
            }
            Some(slot @ Slot::Search { claim: true }) if done.result.is_ok() => {
                *slot = Slot::Claimed;
                done.claim = Some(Claim(Op { node: self.node, slot: id }));
            }
            Some(Slot::Search { .. }) => drop(self.slots.remove(id)),
            Some(Slot::Claimed) | None => return stale(context),
        }
        Some(done)
    }
}

/// A node's table: its own, or one shared by the nodes of one queue.
pub struct Table {
    operations: Arc<Lock<Operations>>,
    /// The owner under which the node's operations are entered.
    pub owner: u32,
}

impl Table {
    /// A table for one node.
    pub fn new() -> Self {
        Self { operations: Arc::new(Lock::new(Operations::new())), owner: SOLE_OWNER }
    }

    /// A node's part of a shared table. The caller closes the endpoint before it drops this.
    pub fn shared(operations: &Arc<Lock<Operations>>, owner: u32) -> Self {
        Self { operations: Arc::clone(operations), owner }
    }
}

impl Deref for Table {
    type Target = Lock<Operations>;

    #[inline]
    fn deref(&self) -> &Lock<Operations> {
        &self.operations
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.owner != SOLE_OWNER {
            let ended = self.operations.lock().remove_all_of(self.owner);
            drop(ended); // after the lock is released
        }
    }
}

const RECEIVED_TAGGED: CompletionFlags = CompletionFlags::RECV.union(CompletionFlags::TAGGED);

#[cold]
fn stale(context: Context) -> Option<Completion> {
    tracing::error!(target: "ofi::core::cq", ?context, "dropped a completion without an operation");
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_api::Errno;

    fn entry(op: Op, flags: CompletionFlags, buf: usize, len: usize) -> CqTaggedEntry {
        CqTaggedEntry { op_context: op.context(), flags, len, buf: buf as *mut u8, data: 0, tag: 0 }
    }

    fn transfer(bytes: &[u8]) -> Slot {
        Slot::Transfer { buffer: bytes.to_vec().into(), part: 0..bytes.len() }
    }

    #[test]
    fn a_context_that_comes_twice_late_or_forged_finds_nothing() {
        let mut operations = Operations::new();
        let first = operations.insert(transfer(b"first"));
        let done = entry(first, CompletionFlags::SEND, 0, 0);
        assert_eq!(operations.complete(&done, FiAddr::NOTAVAIL).unwrap().bytes(), b"first");
        assert!(operations.complete(&done, FiAddr::NOTAVAIL).is_none());
        let second = operations.insert(transfer(b"second")); // in the same slot
        assert!(operations.complete(&done, FiAddr::NOTAVAIL).is_none());
        assert!(
            operations
                .fail(CqErrorEntry::new(first.context(), CompletionFlags::SEND, Errno::EIO), |_| String::new(
                ))
                .is_none()
        );
        assert!(operations.remove(first).is_none() && !operations.contains(first));
        for forged in [1, 1 << 32 | 9, usize::MAX] {
            let forged = CqTaggedEntry { op_context: Context(forged), ..CqTaggedEntry::EMPTY };
            assert!(operations.complete(&forged, FiAddr::NOTAVAIL).is_none());
        }
        assert!(operations.contains(second));
        assert_eq!(operations.len(), 1);
    }

    #[test]
    fn another_nodes_operation_and_claim_are_not_ours() {
        let (mut here, mut there) = (Operations::new(), Operations::new());
        let (ours, theirs) = (here.insert(transfer(b"")), there.insert(transfer(b"")));
        assert_eq!(ours.context(), theirs.context());
        assert!(!here.contains(theirs) && here.remove(theirs).is_none());
        here.remove(ours);
        let search = here.insert(Slot::Search { claim: true });
        let found = here.complete(&entry(search, CompletionFlags::RECV, 0, 5), FiAddr(1)).unwrap();
        let claim = found.claim.unwrap();
        assert!(there.claimed(&claim, Slot::Search { claim: false }).is_err());
        // A completion must not match the operation that the claim has not posted yet.
        assert!(here.complete(&entry(search, CompletionFlags::RECV, 0, 5), FiAddr(1)).is_none());
        assert!(here.claimed(&claim, Slot::Search { claim: false }).is_ok());
        assert!(here.complete(&entry(search, CompletionFlags::RECV, 0, 5), FiAddr(1)).is_some());
        assert!(here.claimed(&claim, Slot::Search { claim: false }).is_err());
    }

    #[test]
    fn a_multi_receive_slot_stays_until_it_is_released_and_parts_are_checked() {
        let mut operations = Operations::new();
        let buffer = MultiRecvBuffer::new(vec![7u8; 100]);
        let base = buffer.buffer().raw().addr() as usize;
        let op = operations.insert(Slot::Multi(buffer));
        let mut complete =
            |flags, buf, len| operations.complete(&entry(op, flags, buf, len), FiAddr::NOTAVAIL);
        let first = complete(CompletionFlags::RECV, base, 10).unwrap();
        assert_eq!((first.bytes(), first.released.is_some()), (&[7u8; 10][..], false));
        for (buf, len) in [(base + 91, 10), (base - 1, 1), (base, usize::MAX)] {
            assert!(complete(CompletionFlags::RECV, buf, len).unwrap().range.is_none());
        }
        let mut last = complete(CompletionFlags::RECV | CompletionFlags::MULTI_RECV, base + 10, 90).unwrap();
        let mut buffer = last.released.take().unwrap();
        assert!(!buffer.is_unused());
        let range = last.range.take().unwrap();
        drop((first, last));
        let buffer = buffer.into_inner::<Vec<u8>>().unwrap_err();
        assert_eq!((range.range(), range.len()), (10..100, 90));
        drop(range);
        assert_eq!(buffer.into_inner::<Vec<u8>>().unwrap().len(), 100);
        assert!(complete(CompletionFlags::RECV, base, 1).is_none());
    }
}
