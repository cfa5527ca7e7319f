//! The future of one operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ofi_api::{CompletionFlags, Errno, Error, FiAddr};
use ofi_core::slots::SlotId;

use super::AsyncNode;
use super::table::{Chores, Ended, Given};
use crate::any_buffer::AnyBuffer;
use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::element::Element;
use crate::threading::{Level, Safe};

/// An operation of an [`AsyncNode`]: a future of its result.
///
/// The operation starts with the call that creates this future, not with the first poll, so operations of one kind to
/// one peer start in the order of the calls. If there is no room for an operation, it waits in that order, and starts
/// when the node is driven and has room.
///
/// Dropping it while it is in flight frees nothing: the node keeps the buffer until the transport has finished with it.
/// A dropped receive is also cancelled, and a message that had already arrived for it is discarded (and
/// [counted](AsyncNode::lost)). To give up a receive without losing its message, cancel it and await the result:
///
/// ```
/// # use ofi::{AsyncNode, Errno, Hints};
/// # let node = AsyncNode::open(&Hints::new().provider("shm"))?;
/// # node.block_on(async {
/// let receive = node.recv(vec![0; 64]);
/// // ... nothing comes in time
/// receive.cancel();
/// match receive.await {
///     Ok(message) => println!("it came after all: {:?}", message.bytes()),
///     Err(failed) => assert_eq!(failed.error, Errno::ECANCELED),
/// }
/// # });
/// # Ok::<(), ofi::Error>(())
/// ```
///
/// # Panics
/// When it is polled after it was ready, as futures may.
#[must_use = "dropping it cancels a receive, and gives up the result of anything else"]
pub struct Operation<'a, T, L: Level = Safe> {
    node: &'a AsyncNode<L>,
    id: SlotId,
    finish: fn(Ended) -> T,
    over: bool,
}

impl<'a, T, L: Level> Operation<'a, T, L> {
    pub(super) fn new(node: &'a AsyncNode<L>, id: SlotId, finish: fn(Ended) -> T) -> Self {
        Self { node, id, finish, over: false }
    }

    /// Cancels the operation. A receive (`fi_cancel`) ends with its message if one has arrived, else with
    /// `FI_ECANCELED`. An operation that waits for room ends with `FI_ECANCELED`. Other operations are not affected.
    #[doc(alias = "fi_cancel")]
    pub fn cancel(&self) {
        cancel(self.node, self.id);
    }
}

/// See [`Operation::cancel`].
pub(super) fn cancel<L: Level>(node: &AsyncNode<L>, id: SlotId) {
    let mut chores = Chores::default();
    {
        let mut table = node.table();
        table.withdraw(id, &mut chores);
        if let Some(op) = table.in_flight(id) {
            // It is no error if the operation cannot be cancelled or has ended: the future returns its result.
            let _ = node.inner.node.cancel(op);
            table.rouse(&mut chores);
        }
    }
    chores.run();
}

/// Handles a future that was dropped before its operation ended.
pub(super) fn forget<L: Level>(node: &AsyncNode<L>, id: SlotId) {
    let mut chores = Chores::default();
    {
        let mut table = node.table();
        if let Some(op) = table.forget(id, &mut chores)
            && node.inner.node.cancel(op).is_ok()
        {
            // Drive now, so that the buffer is released without waiting for another turn.
            let _ = table.drive(&node.inner.node, &mut chores);
            table.rouse(&mut chores);
        }
    }
    chores.run();
}

/// Drives the node and takes an operation's next result, or registers the task to be woken for it.
pub(super) fn poll_table<L: Level>(
    node: &AsyncNode<L>,
    id: SlotId,
    context: &mut Context<'_>,
) -> Poll<Ended> {
    let (mut chores, mut is_undriven) = (Chores::default(), false);
    let ended = {
        let mut table = node.table();
        table.take(id).or_else(|| {
            // An error ends this operation too; `take` returns it.
            let _ = table.drive(&node.inner.node, &mut chores);
            table.rouse(&mut chores);
            table.take(id)
        })
    };
    let ended = ended.or_else(|| {
        // Clone the waker outside the lock: cloning runs the executor's code.
        let waker = context.waker();
        let is_known = node.table().is_waking(id, waker);
        let clone = (!is_known).then(|| waker.clone());
        let mut table = node.table();
        let ended = table.take(id); // another thread may have driven meanwhile
        if let Some(clone) = clone {
            match &ended {
                None => table.set_waker(id, clone, &mut chores),
                Some(_) => chores.later(clone),
            }
        }
        is_undriven = table.drivers == 0;
        ended
    });
    chores.run();
    match ended {
        Some(ended) => Poll::Ready(ended),
        None => {
            if is_undriven {
                node.undriven(context.waker());
            }
            Poll::Pending
        }
    }
}

impl<T, L: Level> Future for Operation<'_, T, L> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        assert!(!self.over, "an operation was polled after it was ready");
        let Poll::Ready(ended) = poll_table(self.node, self.id, context) else { return Poll::Pending };
        self.over = true;
        Poll::Ready((self.finish)(ended))
    }
}

impl<T, L: Level> Drop for Operation<'_, T, L> {
    fn drop(&mut self) {
        if !self.over {
            forget(self.node, self.id);
        }
    }
}

impl<T, L: Level> fmt::Debug for Operation<'_, T, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("over", &self.over).finish_non_exhaustive()
    }
}

/// A successful operation, with its buffer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Done<B> {
    /// The whole buffer that was passed in.
    pub buffer: B,
    /// Bytes received, sent, read or written.
    pub len: usize,
    /// The kind of operation, and its properties.
    pub flags: CompletionFlags,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The tag, of a tagged receive.
    pub tag: Option<u64>,
    /// The sender, with `FI_SOURCE`, if it is in the node's address vector.
    pub source: Option<FiAddr>,
    start: usize,
}

impl<B: AsRef<[u8]>> Done<B> {
    /// The bytes received, sent, read or written.
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.buffer.as_ref().get(self.start..).unwrap_or_default();
        &bytes[..self.len.min(bytes.len())]
    }
}

/// An operation that failed. `?` in a function with [`Result`](crate::Result) drops the buffer.
#[non_exhaustive]
pub struct Failed<B> {
    /// The reason.
    pub error: Error,
    /// The buffer. `None` if the node's queue can no longer be read: the node then keeps the buffer, which may still be
    /// in use.
    pub buffer: Option<B>,
    /// The bytes of a message that a receive stored before it failed.
    pub len: usize,
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> std::error::Error for Failed<B> {}

/// The result of an operation with a buffer.
pub type Transferred<B> = Result<Done<B>, Failed<B>>;

fn typed<B: Buffer>(buffer: Option<AnyBuffer>) -> Option<B> {
    buffer.and_then(|buffer| buffer.downcast().ok())
}

fn given_back(given: Given) -> Option<AnyBuffer> {
    if let Given::Buffer(buffer) = given { Some(buffer) } else { None }
}

/// Converts the result of an operation that was given a `B`.
pub(super) fn transferred<B: Buffer>(ended: Ended) -> Transferred<B> {
    let failed = |error, buffer, len| Err(Failed { error, buffer: typed(buffer), len });
    match ended {
        Ended::Refused(error, given) => failed(error, given_back(given), 0),
        Ended::Lost(error) => failed(error, None, 0),
        Ended::Done(mut done) => {
            let buffer = done.buffer.take();
            match (done.result, typed(buffer)) {
                (Ok(()), Some(buffer)) => {
                    let Completion { len, flags, data, tag, source, start, .. } = done;
                    Ok(Done { buffer, len, flags, data, tag, source, start })
                }
                (Err(error), buffer) => Err(Failed { error: error.into(), buffer, len: done.len }),
                (Ok(()), None) => failed(Error::new(Errno::EOTHER), None, 0), // operations with a buffer return it
            }
        }
    }
}

/// Converts the result of an operation without a buffer.
pub(super) fn completed(ended: Ended) -> ofi_api::Result<Completion> {
    match ended {
        Ended::Refused(error, _) | Ended::Lost(error) => Err(error),
        Ended::Done(done) => Ok(done.into_result()?),
    }
}

/// The number that an atomic operation fetched.
pub(super) fn fetched<T: Element>(ended: Ended) -> ofi_api::Result<T> {
    completed(ended)?.value().ok_or_else(|| Error::new(Errno::EOTHER))
}
