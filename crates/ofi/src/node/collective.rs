//! Groups of nodes, and collective operations.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{
    AvSetAttr, CollectiveGroup, CollectiveKind, CollectiveOp, Context, Errno, Error, EventKind, EventQueue,
    FiAddr, FiOp, Fid, Lent, Piece, Result,
};

use super::Node;
use crate::buffer::BufferMut;
use crate::element::{Element, bytes_of};
use crate::op::Op;
use crate::request::{Part, PostError};
use crate::threading::Level;

/// The event queue of joins.
pub(super) struct Joins {
    pub queue: Arc<dyn EventQueue>,
    /// Outcomes of other joins, read while waiting for one.
    ended: Mutex<Vec<(Fid, Result<()>)>>,
}

impl Joins {
    pub fn new(queue: Arc<dyn EventQueue>) -> Self {
        Self { queue, ended: Mutex::default() }
    }

    /// The outcome of a join, if it has arrived.
    fn end_of(&self, fid: Fid) -> Option<Result<()>> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        match self.queue.read() {
            Ok(event) if event.kind == EventKind::JoinComplete => ended.push((event.fid, Ok(()))),
            Err(error) if error == Errno::EAVAIL => {
                if let Ok(entry) = self.queue.read_error() {
                    ended.push((entry.fid, Err(Error::new(entry.err))));
                }
            }
            _ => {}
        }
        let at = ended.iter().position(|(other, _)| *other == fid)?;
        Some(ended.swap_remove(at).1)
    }
}

/// A group of nodes that a node has joined with [`Node::join`]. Dropping it leaves the group: operations in progress in
/// the group fail at all members.
pub struct Group {
    raw: Arc<dyn CollectiveGroup>,
    members: Vec<FiAddr>,
}

impl Group {
    /// This node's place among the members.
    pub fn rank(&self) -> usize {
        self.raw.rank()
    }

    /// Number of members.
    pub fn ranks(&self) -> usize {
        self.members.len()
    }

    /// A member's address.
    pub fn member(&self, rank: usize) -> Option<FiAddr> {
        self.members.get(rank).copied()
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.ranks())
    }
}

/// A collective on numbers, and the number of results at this rank.
struct Together<'a, T> {
    kind: CollectiveKind,
    group: &'a Group,
    op: FiOp,
    root: usize,
    count: usize,
    input: &'a [T],
    outcome: usize,
}

impl<L: Level> Node<L> {
    /// Joins a group whose ranks are `members`, including this node. All members must make this call with the same
    /// nodes in the same order. It returns when all have done so, or after `limit`. The node must have `FI_COLLECTIVE`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ofi::{Caps, FiOp, Hints, Node};
    ///
    /// let limit = Duration::from_secs(10);
    /// let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::COLLECTIVE);
    /// let nodes = [Node::open(&hints)?, Node::open(&hints)?, Node::open(&hints)?];
    /// let names = [nodes[0].name()?, nodes[1].name()?, nodes[2].name()?];
    /// std::thread::scope(|scope| {
    ///     for node in &nodes {
    ///         scope.spawn(|| {
    ///             let members: Vec<_> = names.iter().map(|name| node.insert(name).unwrap()).collect();
    ///             let group = node.join(&members, limit).unwrap();
    ///             node.allreduce(&group, FiOp::Sum, &[1u64, group.rank() as u64]).unwrap();
    ///             let sum = node.wait(limit).unwrap().unwrap().into_result().unwrap();
    ///             assert_eq!(sum.values::<u64>().collect::<Vec<_>>(), [3, 0 + 1 + 2]);
    ///             node.barrier(&group).unwrap(); // so that no node leaves while others are still computing
    ///             node.wait(limit).unwrap().unwrap().into_result().unwrap();
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` without the capability; `FI_EINVAL` if `members` lacks this node or names a peer that is not in
    /// its address vector; `FI_ETIMEDOUT`; the error of a member that failed.
    pub fn join(&self, members: &[FiAddr], limit: Duration) -> Result<Group> {
        let set = Arc::clone(&self.av).set(&AvSetAttr::default())?;
        set.replace(members)?;
        let raw = self.endpoint.join_collective(set.addr(), &*set, Context::NULL)?;
        let Some(joins) = &self.joins else { return Err(Error::new(Errno::ENOEQ)) };
        let deadline = Instant::now().checked_add(limit);
        loop {
            if let Some(end) = joins.end_of(raw.fid()) {
                return end.map(|()| Group { raw, members: members.to_vec() });
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err(Error::wanted(
                    Errno::ETIMEDOUT,
                    "joining a group",
                    format!("all {} members within {limit:?}", members.len()),
                    "some that did not join",
                    "give the same members in the same order everywhere",
                ));
            }
            std::thread::yield_now();
        }
    }

    /// Completes when all members of the group have called it (`fi_barrier`).
    ///
    /// # Errors
    /// As [`Node::send`]; for a failed group, the error that it failed with.
    #[doc(alias = "fi_barrier")]
    pub fn barrier(&self, group: &Group) -> Result<Op> {
        let op = |context| CollectiveOp::new(CollectiveKind::Barrier, group.raw.addr(), context);
        self.desk().search(false, |endpoint, context| endpoint.collective(&op(context)))
    }

    /// Sends the root's buffer to all members (`fi_broadcast`). The others receive it into theirs, which must have the
    /// same length.
    ///
    /// # Errors
    /// As [`Node::barrier`]; `FI_EINVAL` for a root that is not a rank.
    #[doc(alias = "fi_broadcast")]
    pub fn broadcast<B: BufferMut>(&self, group: &Group, root: usize, buffer: B) -> Result<Op, PostError<B>> {
        let address = group.member(root).unwrap_or(FiAddr::NOTAVAIL);
        // SAFETY: one broadcast from or into the memory of a `BufferMut`, with one completion.
        unsafe {
            self.desk().transfer(buffer, Part::ALL, |endpoint, lent, context| {
                let mut op = CollectiveOp::new(CollectiveKind::Broadcast, group.raw.addr(), context);
                (op.buf, op.count, op.root) = (lent, lent.len(), address);
                endpoint.collective(&op)
            })
        }
    }

    /// Combines the numbers of all ranks element by element (`fi_allreduce`). The result is the completion's
    /// [values](crate::Completion::values).
    ///
    /// # Errors
    /// As [`Node::barrier`]; `FI_EOPNOTSUPP` for an operation that does not combine numbers of this type.
    #[doc(alias = "fi_allreduce")]
    pub fn allreduce<T: Element>(&self, group: &Group, op: FiOp, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::Allreduce, numbers.len());
        self.together(Together { kind, group, op, root: 0, count, input: numbers, outcome: count })
    }

    /// As [`Node::allreduce`], but only the root gets the result (`fi_reduce`).
    ///
    /// # Errors
    /// Those of [`Node::allreduce`]; `FI_EINVAL` for a root that is not a rank.
    #[doc(alias = "fi_reduce")]
    pub fn reduce<T: Element>(&self, group: &Group, root: usize, op: FiOp, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::Reduce, numbers.len());
        let outcome = if group.rank() == root { count } else { 0 };
        self.together(Together { kind, group, op, root, count, input: numbers, outcome })
    }

    /// As [`Node::allreduce`], but each rank gets its part of the result (`fi_reduce_scatter`). All parts have the same
    /// length.
    ///
    /// # Errors
    /// Those of [`Node::allreduce`]; `FI_EINVAL` for a count that is not a multiple of the number of ranks.
    #[doc(alias = "fi_reduce_scatter")]
    pub fn reduce_scatter<T: Element>(&self, group: &Group, op: FiOp, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::ReduceScatter, part(group, numbers.len())?);
        self.together(Together { kind, group, op, root: 0, count, input: numbers, outcome: count })
    }

    /// Gives every rank the numbers of all ranks, in order of rank (`fi_allgather`).
    ///
    /// # Errors
    /// As [`Node::barrier`].
    #[doc(alias = "fi_allgather")]
    pub fn allgather<T: Element>(&self, group: &Group, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::Allgather, numbers.len());
        let outcome = count.saturating_mul(group.ranks());
        self.together(Together { kind, group, op: FiOp::Noop, root: 0, count, input: numbers, outcome })
    }

    /// As [`Node::allgather`], but only the root gets the numbers (`fi_gather`).
    ///
    /// # Errors
    /// Those of [`Node::allgather`]; `FI_EINVAL` for a root that is not a rank.
    #[doc(alias = "fi_gather")]
    pub fn gather<T: Element>(&self, group: &Group, root: usize, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::Gather, numbers.len());
        let outcome = if group.rank() == root { count.saturating_mul(group.ranks()) } else { 0 };
        self.together(Together { kind, group, op: FiOp::Noop, root, count, input: numbers, outcome })
    }

    /// Gives each rank its part of the root's numbers, `count` of them (`fi_scatter`). The `numbers` of other ranks are
    /// ignored.
    ///
    /// # Errors
    /// As [`Node::gather`]; `FI_EINVAL` if the root does not have `count` for each rank.
    #[doc(alias = "fi_scatter")]
    pub fn scatter<T: Element>(&self, group: &Group, root: usize, count: usize, numbers: &[T]) -> Result<Op> {
        let kind = CollectiveKind::Scatter;
        let input = if group.rank() == root { numbers } else { &[] };
        self.together(Together { kind, group, op: FiOp::Noop, root, count, input, outcome: count })
    }

    /// Gives rank `i` part `i` of every rank's numbers, in order of rank (`fi_alltoall`).
    ///
    /// # Errors
    /// As [`Node::reduce_scatter`].
    #[doc(alias = "fi_alltoall")]
    pub fn alltoall<T: Element>(&self, group: &Group, numbers: &[T]) -> Result<Op> {
        let (kind, count) = (CollectiveKind::Alltoall, part(group, numbers.len())?);
        let outcome = numbers.len();
        self.together(Together { kind, group, op: FiOp::Noop, root: 0, count, input: numbers, outcome })
    }

    fn together<T: Element>(&self, what: Together<'_, T>) -> Result<Op> {
        let Together { kind, group, op, root, count, input, outcome } = what;
        let input = bytes_of(input);
        let (mut buffer, outcome) = room::<T>(outcome, input.len())?;
        buffer.resize(outcome, 0);
        buffer.extend_from_slice(input);
        let address = group.member(root).unwrap_or(FiAddr::NOTAVAIL);
        let post = |endpoint: &dyn ofi_api::Endpoint, lent: Lent<'_>, context: Context| {
            let first = lent.pieces().first().map_or(std::ptr::null_mut(), |piece| piece.addr);
            let behind = [Piece::new(first.wrapping_add(outcome), input.len())];
            // SAFETY: the vector is at least this long, and is kept until the operation ends.
            let numbers = unsafe { Lent::new(&behind, &[]) };
            let mut together = CollectiveOp::new(kind, group.raw.addr(), context);
            together = together.data(T::DATATYPE, count, numbers, lent);
            (together.op, together.root) = (op, address);
            endpoint.collective(&together)
        };
        // SAFETY: one collective that writes the first part of a vector and reads the second, with one completion.
        let posted = unsafe { self.desk().transfer(buffer, Part::new(&(..outcome)), post) };
        Ok(posted?)
    }
}

/// Allocates one buffer for the result, which the completion shows, followed by the input. Also returns the length of
/// the result in bytes.
fn room<T>(outcome: usize, input: usize) -> Result<(Vec<u8>, usize)> {
    let bytes = outcome.saturating_mul(size_of::<T>());
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes.saturating_add(input)).map_err(|_| {
        Error::wanted(
            Errno::EMSGSIZE,
            "the outcome of a collective",
            "numbers that fit into memory",
            format!("{outcome} of {} bytes", size_of::<T>()),
            "ask for fewer numbers at a time",
        )
    })?;
    Ok((buffer, bytes))
}

/// The count of numbers per rank.
fn part(group: &Group, all: usize) -> Result<usize> {
    if all.is_multiple_of(group.ranks()) {
        return Ok(all / group.ranks());
    }
    Err(Error::wanted(
        Errno::EINVAL,
        "the numbers for a group",
        format!("as many for each of {} ranks", group.ranks()),
        format!("{all} in all"),
        "fill up the last part",
    ))
}
