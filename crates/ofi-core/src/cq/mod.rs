//! Completion queues. A queue polls its sources (endpoints) into the reader's array; it stores no entries itself.
//!
//! Locks: a read holds the queue's lock and, inside it, one endpoint's lock at a time; an endpoint never takes a
//! queue's lock. So two readers of two queues that share endpoints cannot wait for each other.

mod outbox;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ofi_api::{
    CompletionQueue, CqAttr, CqBuffer, CqDataEntry, CqEntry, CqErrorEntry, CqFormat, CqMsgEntry,
    CqTaggedEntry, Errno, Error, MutexCond, Result, WaitObj,
};

pub use outbox::{Credit, Credits, Entry, Outbox};

use crate::domain_id::DomainId;
use crate::fork::Born;
use crate::lock::Lock;
use crate::source::{Arm, Source};
use crate::spin_policy::YieldHint;
use crate::wait::{WaitObject, Waitable, no_wait_object};
use crate::wake_fd::WakeFd;

struct Bound {
    source: Arc<dyn Source>,
    slot: usize,
}

impl Bound {
    /// Whether it is of the source at this address.
    fn is(&self, source: *const ()) -> bool {
        Arc::as_ptr(&self.source).cast::<()>() == source
    }
}

enum Change {
    Add(Bound),
    Remove(*const ()),
}

// SAFETY: the pointer is only compared.
unsafe impl Send for Change {}

#[derive(Default)]
struct CqReader {
    sources: Vec<Bound>,
    /// The source whose error was announced to the application.
    error_at: Option<usize>,
    /// The source with which the next read begins, so that all sources get their turn.
    turn: usize,
    /// Reads since the last error that returned other sources' entries before the error.
    held_back: usize,
}

/// Bytes of an entry in memory, at least.
const ENTRY: usize = 64;

/// Checks that a queue of `size` entries would fit into memory.
///
/// # Errors
/// `FI_EINVAL`.
pub(crate) fn holds(size: usize, subject: &str) -> Result<()> {
    if size <= isize::MAX as usize / ENTRY {
        return Ok(());
    }
    let wanted = "as many entries as there is memory for";
    Err(Error::wanted(Errno::EINVAL, subject, wanted, size.to_string(), "leave it zero"))
}

/// The core's completion queue.
pub struct Cq {
    domain: DomainId,
    born: Born,
    format: CqFormat,
    wait_obj: WaitObj,
    reader: Lock<CqReader>,
    /// Bindings added or removed since the last read, so that control calls do not wait for a read.
    changes: Mutex<Vec<Change>>,
    changed: AtomicBool,
    waiting: Option<WaitObject>,
    signaled: AtomicBool,
    /// Explains a `prov_errno`.
    text: fn(i32) -> String,
}

impl Cq {
    /// Opens a queue.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_SET` without a set; `FI_EMFILE` and the like.
    pub fn open(attr: &CqAttr, domain: DomainId, text: fn(i32) -> String) -> Result<Arc<Self>> {
        // Entries wait in their endpoints, which have room for all outstanding operations, so any valid size will do.
        holds(attr.size, "fi_cq_attr.size")?;
        let waiting = WaitObject::open(attr.wait_obj, attr.wait_set.as_ref())?;
        let format = if attr.format == CqFormat::Unspec { CqFormat::Tagged } else { attr.format };
        let queue = Arc::new(Self {
            domain,
            born: Born::here(),
            format,
            wait_obj: attr.wait_obj,
            reader: Lock::new(CqReader::default()),
            changes: Mutex::new(Vec::new()),
            changed: AtomicBool::new(false),
            waiting,
            signaled: AtomicBool::new(false),
            text,
        });
        if let Some(waiting) = &queue.waiting {
            let member: Arc<dyn Waitable> = Arc::clone(&queue) as _;
            waiting.join(Arc::downgrade(&member))?;
        }
        let (wait, format) = (attr.wait_obj, queue.format);
        tracing::debug!(target: "ofi::core::cq", %format, %wait, size = attr.size, "opened a completion queue");
        Ok(queue)
    }

    /// The domain that it was opened in.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    fn change(&self, change: Change) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        self.changed.store(true, Ordering::Release);
    }

    /// Adds a source. Call [`Cq::remove`] before the source is dropped.
    ///
    /// # Errors
    /// Errors of adding its descriptor to the wait set.
    pub fn add(&self, source: Arc<dyn Source>, slot: usize) -> Result<()> {
        if let Some(waiting) = &self.waiting
            && let Some(fd) = source.wait_fd()
        {
            waiting.sources.add(fd)?;
        }
        self.change(Change::Add(Bound { source, slot }));
        if let Some(waiting) = &self.waiting {
            waiting.wake.signal();
        }
        Ok(())
    }

    /// Removes a source.
    pub fn remove(&self, source: &Arc<dyn Source>) {
        if let Some(waiting) = &self.waiting
            && let Some(fd) = source.wait_fd()
        {
            waiting.sources.remove(fd);
        }
        drop(self.cancel_additions(Arc::as_ptr(source).cast()));
    }

    /// Makes the next read drop a source. A binding that no read has seen yet is removed now and returned, because a
    /// queue that is never read must not keep sources alive.
    fn cancel_additions(&self, gone: *const ()) -> Vec<Bound> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_its = |change: &mut Change| matches!(change, Change::Add(bound) if bound.is(gone));
        let unseen = changes.extract_if(.., is_its);
        let unseen =
            unseen.filter_map(|change| if let Change::Add(bound) = change { Some(bound) } else { None });
        let unseen = unseen.collect();
        // One entry is enough until a read takes all of them, even if another source gets this address meanwhile.
        if !changes.iter().any(|change| matches!(change, Change::Remove(other) if *other == gone)) {
            changes.push(Change::Remove(gone));
            self.changed.store(true, Ordering::Release);
        }
        unseen
    }

    /// The wake fd that an endpoint notifies when it completes an operation outside a read of this queue.
    pub fn wake(&self) -> Option<WakeFd> {
        self.waiting.as_ref().map(|waiting| waiting.wake.clone())
    }

    #[cold]
    fn apply_changes(&self, reader: &mut CqReader) {
        self.changed.store(false, Ordering::Relaxed);
        for change in self.changes.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            match change {
                Change::Add(bound) => reader.sources.push(bound),
                Change::Remove(gone) => {
                    reader.sources.retain(|bound| !bound.is(gone));
                    (reader.error_at, reader.turn) = (None, 0);
                }
            }
        }
    }

    /// One pass over the sources; `FI_EAGAIN` if there is nothing.
    #[inline]
    fn read_once(&self, buffer: &mut CqBuffer<'_>) -> Result<usize> {
        if buffer.format() as u32 != self.format as u32 {
            return Err(self.wrong_format(buffer));
        }
        let mut guard = self.reader.lock();
        if !self.changed.load(Ordering::Acquire)
            && let CqReader { sources, error_at: None, .. } = &*guard
            && let [bound] = sources.as_slice()
        {
            // Most queues have one source.
            let polled = bound.source.poll(bound.slot, buffer, 0);
            if polled.filled > 0 {
                return Ok(polled.filled);
            }
            if let Some(hint) = polled.hint {
                drop(guard);
                hint.apply();
                return Err(Error::AGAIN);
            }
        }
        let mut hint = YieldHint::Idle;
        let outcome = self.read_many(&mut guard, buffer, &mut hint);
        drop(guard);
        hint.apply();
        outcome
    }

    /// [`Cq::read_once`] for several sources, or while an error is pending. `hint` combines the requests of all
    /// sources.
    #[inline(never)]
    fn read_many(
        &self,
        reader: &mut CqReader,
        buffer: &mut CqBuffer<'_>,
        hint: &mut YieldHint,
    ) -> Result<usize> {
        if self.changed.load(Ordering::Acquire) {
            self.apply_changes(reader);
        }
        if let Some(at) = reader.error_at {
            if reader
                .sources
                .get(at)
                .is_some_and(|bound| bound.source.poll(bound.slot, buffer, 0).hint.is_none())
            {
                return Err(Error::AVAIL);
            }
            reader.error_at = None;
        }
        let count = reader.sources.len();
        let mut filled = 0;
        // Completions of other sources are read before an error, because the end of one connection must not overtake
        // the last messages of the others; but for at most as many reads as there are sources. So after an error the
        // loop still polls every other source once (`end`), and `held_back` counts the reads that have delayed the
        // error.
        let mut error_at = None;
        let (mut step, mut end) = (0, count);
        while step < end {
            let mut at = reader.turn + step;
            while at >= count {
                at -= count;
            }
            step += 1;
            let bound = &reader.sources[at];
            let polled = bound.source.poll(bound.slot, buffer, filled);
            filled = polled.filled;
            *hint = hint.and(polled.hint.unwrap_or(YieldHint::Busy));
            if polled.hint.is_none() {
                if filled > 0 {
                    reader.turn = at;
                    return Ok(filled);
                }
                if error_at.is_none() {
                    (error_at, end) = (Some(at), step + count - 1);
                }
                if reader.held_back >= count {
                    break;
                }
            }
            if filled == buffer.capacity() && filled > 0 {
                reader.turn = if at + 1 == count { 0 } else { at + 1 };
                break;
            }
        }
        if filled > 0 {
            reader.held_back += usize::from(error_at.is_some());
            return Ok(filled);
        }
        let Some(at) = error_at else { return Err(Error::AGAIN) };
        (reader.error_at, reader.turn, reader.held_back) = (Some(at), at, 0);
        Err(Error::AVAIL)
    }

    #[cold]
    fn wrong_format(&self, buffer: &CqBuffer<'_>) -> Error {
        Error::wanted(
            Errno::EINVAL,
            "the buffer of a completion queue read",
            format!("entries of {}", self.format),
            format!("{}", buffer.format()),
            "read with the entry type of the format that the queue was opened with",
        )
    }

    /// A read of no entries: drives progress and returns whether there is an entry.
    fn probe(&self, buffer: &mut CqBuffer<'_>) -> Result<usize> {
        match self.read_once(buffer) {
            Err(error) if error.errno() == Errno::EAGAIN && !self.all_empty() => Ok(0),
            other => other,
        }
    }

    fn all_empty(&self) -> bool {
        self.reader.lock().sources.iter().all(|bound| bound.source.is_empty(bound.slot))
    }

    /// Prepares to block. A pending signal stays.
    fn prepare_to_wait(&self) -> Result<()> {
        self.born.check()?;
        let Some(waiting) = &self.waiting else { return Err(no_wait_object("fi_cq_attr.wait_obj")) };
        waiting.wake.arm();
        if self.signaled.load(Ordering::SeqCst) {
            waiting.wake.signal();
            return Err(Error::AGAIN);
        }
        let mut guard = self.reader.lock();
        if self.changed.load(Ordering::Acquire) {
            self.apply_changes(&mut guard);
        }
        let armed = guard.sources.iter().all(|bound| bound.source.arm(bound.slot) == Arm::Armed);
        if armed { Ok(()) } else { Err(Error::AGAIN) }
    }

    fn take_signal(&self) -> bool {
        self.signaled.load(Ordering::Relaxed) && self.signaled.swap(false, Ordering::SeqCst)
    }

    fn yielding_read(&self, buffer: &mut CqBuffer<'_>, deadline: Option<Instant>) -> Result<usize> {
        loop {
            match self.read(buffer) {
                Err(error) if error.errno() == Errno::EAGAIN => {}
                other => return other,
            }
            if self.take_signal() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::AGAIN);
            }
            std::thread::yield_now();
        }
    }
}

impl CompletionQueue for Cq {
    fn read(&self, buffer: &mut CqBuffer<'_>) -> Result<usize> {
        self.born.check()?;
        if buffer.capacity() == 0 { self.probe(buffer) } else { self.read_once(buffer) }
    }

    fn read_wait(&self, buffer: &mut CqBuffer<'_>, timeout: Option<Duration>) -> Result<usize> {
        self.born.check()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let Some(waiting) = self.waiting.as_ref().filter(|_| self.wait_obj != WaitObj::Set) else {
            return if self.wait_obj == WaitObj::Yield {
                self.yielding_read(buffer, deadline)
            } else {
                Err(no_wait_object("fi_cq_attr.wait_obj"))
            };
        };
        loop {
            match self.read(buffer) {
                Err(error) if error.errno() == Errno::EAGAIN => {}
                other => return other,
            }
            if self.take_signal() {
                return Err(Error::AGAIN);
            }
            // Checked in each round, in case a source always has work that leads to no completion.
            let sleep = || self.prepare_to_wait().is_ok() && waiting.sources.wait_readable(deadline);
            let woken = waiting.wake.asleep(sleep);
            if !woken {
                let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                if late && !self.signaled.load(Ordering::Relaxed) {
                    return self.read(buffer);
                }
            }
        }
    }

    fn read_error(&self) -> Result<CqErrorEntry> {
        self.born.check()?;
        let mut guard = self.reader.lock();
        let reader = &mut *guard;
        if self.changed.load(Ordering::Acquire) {
            self.apply_changes(reader);
        }
        let told = reader.error_at.take();
        let order = told.into_iter().chain(0..reader.sources.len());
        for at in order {
            if let Some(bound) = reader.sources.get(at)
                && let Some(error) = bound.source.take_error(bound.slot)
            {
                return Ok(error);
            }
        }
        Err(Error::AGAIN)
    }

    fn signal(&self) -> Result<()> {
        self.born.check()?;
        if let Some(waiting) = &self.waiting {
            self.signaled.store(true, Ordering::SeqCst);
            waiting.wake.signal();
        } else if self.wait_obj == WaitObj::Yield {
            self.signaled.store(true, Ordering::SeqCst);
        } else {
            return Err(no_wait_object("fi_cq_attr.wait_obj"));
        }
        Ok(())
    }

    fn error_text(&self, prov_errno: i32) -> String {
        (self.text)(prov_errno)
    }

    fn trywait(&self) -> Result<()> {
        self.waiting.iter().for_each(WaitObject::prepare);
        let outcome = self.prepare_to_wait();
        // Taken here, because no blocking read may ever come to take it: a signal wakes the descriptor's waiter once.
        let is_external = match self.wait_obj {
            WaitObj::Fd | WaitObj::Pollfd => true,
            WaitObj::Unspec => self.waiting.as_ref().is_some_and(|waiting| waiting.wake.is_shown()),
            _ => false,
        };
        if outcome.is_err() && is_external {
            self.take_signal();
        }
        outcome
    }
    fn wait_fd(&self) -> Option<std::os::fd::RawFd> {
        self.waiting.as_ref().and_then(|waiting| waiting.shown_fd(self.wait_obj))
    }

    fn wait_fds(&self) -> Vec<std::os::fd::RawFd> {
        let Some(waiting) = &self.waiting else { return Vec::new() };
        if self.wait_obj != WaitObj::Unspec {
            return self.wait_fd().into_iter().collect();
        }
        waiting.wake.show();
        let mut guard = self.reader.lock();
        if self.changed.load(Ordering::Acquire) {
            self.apply_changes(&mut guard);
        }
        let mut fds = vec![waiting.wake.fd()];
        for fd in guard.sources.iter().filter_map(|bound| bound.source.wait_fd()) {
            if !fds.contains(&fd) {
                fds.push(fd);
            }
        }
        fds
    }

    fn mutex_cond(&self) -> Option<MutexCond> {
        self.waiting.as_ref().and_then(WaitObject::mutex_cond)
    }

    fn format(&self) -> CqFormat {
        self.format
    }
}

impl Waitable for Cq {
    fn has_something(&self) -> bool {
        let found = match self.format {
            CqFormat::Context => self.probe(&mut CqBuffer::new::<CqEntry>(&mut [])),
            CqFormat::Msg => self.probe(&mut CqBuffer::new::<CqMsgEntry>(&mut [])),
            CqFormat::Data => self.probe(&mut CqBuffer::new::<CqDataEntry>(&mut [])),
            CqFormat::Tagged | CqFormat::Unspec => self.probe(&mut CqBuffer::new::<CqTaggedEntry>(&mut [])),
        };
        found.map_or_else(|error| error.errno() == Errno::EAVAIL, |_| true)
    }

    fn prepare(&self) -> Result<()> {
        self.trywait()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The sets of descriptors are shared with the parent, and its threads do not exist here, so do not wait for
            // them.
            std::mem::forget(self.waiting.take());
        }
    }
}

#[cfg(test)]
mod tests;
