//! Atomic changes of peers' memory.

use ofi_api::{AtomicKind, AtomicOp, Call, Context, FiAddr, FiOp, Lent, OpFlags, Piece, RemotePiece, Result};

use super::Node;
use crate::buffer::BufferMut;
use crate::element::{Element, bytes_of};
use crate::op::Op;
use crate::remote::RemoteWindow;
use crate::request::{Part, PostError};
use crate::threading::Level;

impl<L: Level> Node<L> {
    /// Adds to a number in a peer's memory and fetches the old value (`fi_fetch_atomic` with `FI_SUM`), which is the
    /// completion's [value](crate::Completion::value). `remote` is exactly one number.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ofi::{Caps, Hints, MrAccess, Node};
    ///
    /// let hints = Hints::new().provider("shm").caps(Caps::MSG | Caps::RMA | Caps::ATOMIC);
    /// let (counter, visitor) = (Node::open(&hints)?, Node::open(&hints)?);
    /// let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    /// let window = counter.domain().alloc_window(8, rights)?;
    /// let peer = visitor.insert(&counter.name()?)?;
    /// for visits in 0..3u64 {
    ///     visitor.fetch_add(1u64, peer, window.remote())?;
    ///     let done = loop {
    ///         counter.poll()?; // the owner may first have to answer whether it shares the memory
    ///         if let Some(done) = visitor.poll()? {
    ///             break done.into_result()?;
    ///         }
    ///     };
    ///     assert_eq!(done.value::<u64>(), Some(visits));
    /// }
    /// assert_eq!(window.load_u64(0)?, 3);
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Node::fetch_atomic`].
    pub fn fetch_add<T: Element>(&self, value: T, peer: FiAddr, remote: RemoteWindow) -> Result<Op> {
        Ok(self.fetch_atomic(FiOp::Sum, &[value], vec![0; size_of::<T>()], peer, remote)?)
    }

    /// Replaces a number in a peer's memory if it equals `expected`, and fetches the old value (`fi_compare_atomic`
    /// with `FI_CSWAP`).
    ///
    /// # Errors
    /// As [`Node::fetch_atomic`].
    pub fn compare_swap<T: Element>(
        &self,
        expected: T,
        new: T,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op> {
        let result = vec![0; size_of::<T>()];
        Ok(self.compare_atomic(FiOp::Cswap, &[new], &[expected], result, peer, remote)?)
    }

    /// The maximum number of elements of type `T` that one call changes (`fi_atomicvalid` and the like).
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` for an unsupported operation, with the reason.
    pub fn atomic_valid<T: Element>(&self, kind: AtomicKind, op: FiOp) -> Result<usize> {
        self.endpoint.atomic_valid(kind, op, T::DATATYPE)
    }

    /// Changes numbers in a peer's memory (`fi_atomic`), each of them atomically. `remote` is as long as `operands`,
    /// which may be reused at once.
    ///
    /// # Errors
    /// As [`Node::send`]; `FI_EINVAL` if the lengths differ, `FI_EMSGSIZE` for more than [`Node::atomic_valid`]
    /// numbers, `FI_EOPNOTSUPP` for an unsupported operation, and without `FI_ATOMIC`. If the peer refuses the access,
    /// the operation fails.
    #[doc(alias = "fi_atomic")]
    pub fn atomic<T: Element>(
        &self,
        op: FiOp,
        operands: &[T],
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op> {
        self.desk().search(false, |endpoint, context| {
            Change { op, operands, compare: &[], peer, remote, call: Call::Plain }
                .post(context, None, |op| endpoint.atomic(op))
        })
    }

    /// As [`Node::atomic`], without a completion (`fi_inject_atomic`).
    ///
    /// # Errors
    /// Those of [`Node::atomic`].
    #[doc(alias = "fi_inject_atomic")]
    pub fn inject_atomic<T: Element>(
        &self,
        op: FiOp,
        operands: &[T],
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<()> {
        Change { op, operands, compare: &[], peer, remote, call: Call::Inject }.post(
            Context::NULL,
            None,
            |op| self.endpoint.atomic(op),
        )
    }

    /// Changes numbers and fetches the old values into `result` (`fi_fetch_atomic`), which is as long as `remote`.
    /// `FI_ATOMIC_READ` takes no operands.
    ///
    /// # Errors
    /// As [`Node::atomic`].
    #[doc(alias = "fi_fetch_atomic")]
    pub fn fetch_atomic<T: Element, B: BufferMut>(
        &self,
        op: FiOp,
        operands: &[T],
        result: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op, PostError<B>> {
        let change = Change { op, operands, compare: &[], peer, remote, call: Call::Plain };
        // SAFETY: one operation that writes its results to the memory of a `BufferMut`, with one completion.
        unsafe {
            self.desk().transfer(result, Part::ALL, |endpoint, lent, context| {
                change.post(context, Some(lent), |op| endpoint.atomic(op))
            })
        }
    }

    /// Changes the numbers for which a comparison with `compare` holds, and fetches the old values
    /// (`fi_compare_atomic`).
    ///
    /// # Errors
    /// As [`Node::atomic`].
    #[doc(alias = "fi_compare_atomic")]
    pub fn compare_atomic<T: Element, B: BufferMut>(
        &self,
        op: FiOp,
        operands: &[T],
        compare: &[T],
        result: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op, PostError<B>> {
        let change = Change { op, operands, compare, peer, remote, call: Call::Plain };
        // SAFETY: as above.
        unsafe {
            self.desk().transfer(result, Part::ALL, |endpoint, lent, context| {
                change.post(context, Some(lent), |op| endpoint.atomic(op))
            })
        }
    }
}

/// The arguments of an atomic operation, except the memory for its results.
struct Change<'a, T> {
    op: FiOp,
    operands: &'a [T],
    compare: &'a [T],
    peer: FiAddr,
    remote: RemoteWindow,
    call: Call,
}

impl<T: Element> Change<'_, T> {
    fn post(
        self,
        context: Context,
        result: Option<Lent<'_>>,
        post: impl FnOnce(&AtomicOp<'_>) -> Result<()>,
    ) -> Result<()> {
        let pieces = [self.operands, self.compare].map(|numbers| {
            let bytes = bytes_of(numbers);
            [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())]
        });
        // SAFETY: the operation is injected: operands are only read, and only until the call returns.
        let [operands, compare] = pieces.each_ref().map(|pieces| unsafe { Lent::new(pieces, &[]) });
        let remote: [RemotePiece; 1] = [self.remote.piece()?];
        let mut op = AtomicOp::new(self.op, T::DATATYPE, operands, &remote, self.peer, context);
        (op.call, op.flags) = (self.call, OpFlags::INJECT);
        post(&match result {
            None => op,
            Some(result) if self.compare.is_empty() => op.fetch(result),
            Some(result) => op.compare(compare, result),
        })
    }
}
