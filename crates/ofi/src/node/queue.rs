//! Completions: polling, and waiting for them.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ofi_api::{CompletionFlags, CqBuffer, CqErrorEntry, CqTaggedEntry, Errno, FiAddr, Result};

use super::Node;
use crate::completion::Completion;
use crate::operations::Operations;
use crate::shared::Membership;
use crate::threading::Level;

/// Entries of each read of the raw queue. They take 3.5 KiB of stack, and more are ready at once only if a program
/// falls behind.
const BATCH: usize = 64;

impl<L: Level> Node<L> {
    /// Drives progress and returns the next completion, if there is one. A failed operation is a completion too.
    ///
    /// # Errors
    /// An error of the queue itself.
    #[doc(alias = "fi_cq_read")]
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mut found = None;
        self.read_entries::<1>(1, |completion| found = Some(completion))?;
        Ok(found)
    }

    /// As [`Node::poll`], for up to `max` completions, which are appended to `into`. Returns their number.
    ///
    /// # Errors
    /// As [`Node::poll`]; `into` has the completions that were read before the error.
    pub fn poll_many(&self, into: &mut Vec<Completion>, max: usize) -> Result<usize> {
        let before = into.len();
        loop {
            let left = max - (into.len() - before);
            let count = self.read_entries::<BATCH>(left.min(BATCH), |completion| into.push(completion))?;
            if count < BATCH || left <= BATCH {
                return Ok(into.len() - before);
            }
        }
    }

    /// Reads up to `max` entries of the raw queue, at most `N`. Returns their number.
    #[inline]
    fn read_entries<const N: usize>(&self, max: usize, mut take: impl FnMut(Completion)) -> Result<usize> {
        let mut entries = [CqTaggedEntry::EMPTY; N];
        let mut sources = [FiAddr::NOTAVAIL; N];
        let _reading = self.reading.lock();
        let released = self.shared.as_ref().map_or(0, Membership::released);
        let mut buffer = CqBuffer::with_sources(&mut entries[..max], &mut sources);
        match self.cq.read(&mut buffer) {
            Ok(count) => {
                let mut operations = self.operations.lock();
                for (entry, source) in entries[..count].iter().zip(sources) {
                    self.complete(&mut operations, entry, source).into_iter().for_each(&mut take);
                }
                Ok(count)
            }
            Err(error) if error.is_again() => {
                if let Some(shared) = &self.shared {
                    shared.has_read_all(released);
                }
                Ok(0)
            }
            Err(error) if error == Errno::EAVAIL => {
                let mut error = self.cq.read_error()?;
                let admitted = self.senders.as_ref().and_then(|senders| senders.admit(&mut error, &*self.av));
                let ended = match admitted {
                    Some((entry, source)) => self.complete(&mut self.operations.lock(), &entry, source),
                    None => self.fail(error),
                };
                ended.into_iter().for_each(take);
                Ok(1)
            }
            Err(error) => Err(error),
        }
    }

    /// Converts an entry to the completion of an operation of the node or its shared context.
    #[inline]
    fn complete(
        &self,
        operations: &mut Operations,
        entry: &CqTaggedEntry,
        source: FiAddr,
    ) -> Option<Completion> {
        match &self.shared {
            Some(shared) if entry.flags.contains(CompletionFlags::RECV) => shared.complete(entry, source),
            _ => operations.complete(entry, source),
        }
    }

    /// The completion of an error entry.
    #[cold]
    fn fail(&self, error: CqErrorEntry) -> Option<Completion> {
        let text = |number| self.cq.error_text(number);
        match &self.shared {
            Some(shared) if error.flags.contains(CompletionFlags::RECV) => shared.fail(error, text),
            _ => self.operations.lock().fail(error, text),
        }
    }

    /// Waits for the next completion: sleeps, or polls if the node's [wait object](crate::NodeBuilder::wait_obj) is
    /// [`WaitObj::Yield`](crate::WaitObj::Yield). `None` if none comes within `timeout` (`None`: no limit) or before
    /// [`Node::signal`] wakes the thread.
    ///
    /// # Errors
    /// `FI_EINVAL` for a node that was opened with `FI_WAIT_NONE`; an error of the queue.
    #[doc(alias = "fi_cq_sread")]
    pub fn wait(&self, timeout: impl Into<Option<Duration>>) -> Result<Option<Completion>> {
        let deadline = timeout.into().and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if !self.wait_ready(deadline)? {
                return self.poll();
            }
        }
    }

    /// Waits until a poll may find something. `false` after the deadline or a signal.
    pub(crate) fn wait_ready(&self, deadline: Option<Instant>) -> Result<bool> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if self.yields {
            std::thread::yield_now();
            let late = left.is_some_and(|left| left.is_zero());
            return Ok(!late && !self.signaled.swap(false, Ordering::Relaxed));
        }
        // Takes no entries: a later poll does, of this thread or another.
        match self.cq.read_wait(&mut CqBuffer::new::<CqTaggedEntry>(&mut []), left) {
            Err(error) if error.is_again() => Ok(false),
            Err(error) if error != Errno::EAVAIL => Err(error),
            _ => Ok(true),
        }
    }

    /// The queue, to wake a waiting thread even after the node is closed.
    pub(crate) fn queue(&self) -> &std::sync::Arc<dyn ofi_api::CompletionQueue> {
        &self.cq
    }

    /// Wakes a thread in [`Node::wait`], or the next one that enters it (`fi_cq_signal`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a node that was opened with `FI_WAIT_NONE`.
    #[doc(alias = "fi_cq_signal")]
    pub fn signal(&self) -> Result<()> {
        self.signaled.store(true, Ordering::Relaxed);
        self.cq.signal()
    }

    /// A descriptor for `poll` and similar calls, if the node was opened with [`WaitObj::Fd`](crate::WaitObj::Fd).
    /// Block on it only after [`Node::try_wait`] returned true.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        let fd: RawFd = self.cq.wait_fd()?;
        // SAFETY: the queue keeps it open, and the queue outlives the borrow of the node.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether the caller may block on [`Node::wait_fd`] (`fi_trywait`). If so, the descriptor becomes readable when a
    /// poll may find something.
    ///
    /// # Errors
    /// `FI_EINVAL` for a node without a wait object.
    #[doc(alias = "fi_trywait")]
    pub fn try_wait(&self) -> Result<bool> {
        match self.cq.trywait() {
            Ok(()) => Ok(true),
            Err(error) if error.is_again() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
