//! An endpoint's completions. They go directly into the array of the queue read that polls the endpoint or, outside a
//! read, into a FIFO until the next read.
//!
//! The FIFO is bounded: an entry of an operation holds the credit that its post took, and unsolicited entries (remote
//! CQ data, multi-receive) are created only while [`Outbox::has_room`] permits.

use std::collections::VecDeque;

use ofi_api::{CompletionFlags, Context, CqBuffer, CqErrorEntry, CqTaggedEntry, FiAddr};
use ofi_ring::fifo::Fifo;

use crate::wake_fd::WakeFd;

/// The credit that is returned when an entry is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Credit {
    /// None: no operation was posted for this entry.
    None = 0,
    /// One of the transmit side.
    Transmit = 1,
    /// One of the receive side.
    Receive = 2,
}

/// A completion for the reader. One cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Entry {
    /// The entry for the reader.
    pub body: CqTaggedEntry,
    /// The sender.
    pub source: FiAddr,
    /// The credit that reading it returns.
    pub credit: Credit,
    /// The entry stands for the oldest of `errors`.
    pub error: bool,
}

/// The maximum number of completions that a poll collects for a queue that is not being read.
const UNREAD: usize = 64;

/// Credits left, indexed by [`Credit`]; the first is unused.
pub type Credits = [usize; 3];

/// The completions of one endpoint for one queue. Aligned so that finding one of two takes no multiplication.
#[repr(align(64))]
pub struct Outbox {
    waiting: Fifo<Entry>,
    errors: VecDeque<CqErrorEntry>,
    /// The buffer of the read that is polling. Null outside of it.
    direct: *mut CqBuffer<'static>,
    /// The number of its filled entries. Outside a read: of the entries that the poll stored for a later read.
    filled: usize,
    /// Its array, and how many of its entries may be written directly: none or all. 0 outside a read.
    entries: *mut CqTaggedEntry,
    plain: usize,
    /// `hungry` while `filled` is below this: the buffer's capacity during a read, the value of [`Outbox::begin`]
    /// outside.
    enough: usize,
    /// Beyond this many, entries without credit are refused.
    limit: usize,
    /// Rung when an entry is stored while the queue's reader may be asleep.
    wake: Option<WakeFd>,
}

// SAFETY: `direct` and `entries` are used only between `begin_direct` and `end_direct`, which stay on one thread under
// the endpoint's lock.
unsafe impl Send for Outbox {}

impl Outbox {
    /// An empty outbox. `limit`: see [`Outbox::has_room`].
    pub fn new(limit: usize) -> Self {
        Self {
            waiting: Fifo::growable(64),
            errors: VecDeque::new(),
            direct: std::ptr::null_mut(),
            filled: 0,
            entries: std::ptr::null_mut(),
            plain: 0,
            enough: 0,
            limit,
            wake: None,
        }
    }

    /// The wake fd of the queue that is reading now, if it can be waited on.
    pub fn reader(&self) -> Option<&WakeFd> {
        if self.direct.is_null() { None } else { self.wake.as_ref() }
    }

    /// The wake fd that wakes threads asleep on the queue.
    pub fn wake(&self) -> Option<&WakeFd> {
        self.wake.as_ref()
    }

    /// Sets the wake fd that wakes threads asleep on the queue.
    pub fn set_wake(&mut self, wake: WakeFd) {
        self.wake = Some(wake);
    }

    /// Moves waiting entries into `buffer`, starting at entry `filled`, up to the first error. Returns the new fill,
    /// and whether the read is complete: an error is next, or the buffer is full.
    #[inline(never)]
    pub fn drain(
        &mut self,
        credits: &mut Credits,
        buffer: &mut CqBuffer<'_>,
        mut filled: usize,
    ) -> (usize, bool) {
        let (plain, capacity) = (buffer.plain(), buffer.capacity());
        while let Some(entry) = self.waiting.peek() {
            if filled >= capacity || entry.error {
                return (filled, entry.error || filled > 0);
            }
            match plain {
                // SAFETY: `filled` is below the capacity, and a plain array has that many entries; an unaligned store
                // does not require a C caller's buffer to be aligned.
                Some(entries) => unsafe { entries.as_ptr().wrapping_add(filled).write_unaligned(entry.body) },
                None => buffer.write(filled, entry.body, entry.source),
            }
            credits[entry.credit as usize] += 1;
            self.waiting.pop();
            filled += 1;
        }
        (filled, filled == buffer.capacity() && filled > 0)
    }

    /// Makes completions go directly into `buffer`, starting at entry `filled`, until [`Outbox::end_direct`]. The FIFO
    /// must be empty.
    #[inline]
    pub fn begin_direct(&mut self, buffer: &mut CqBuffer<'_>, filled: usize) {
        debug_assert!(
            self.waiting.is_empty() || buffer.capacity() == 0,
            "an entry would pass those that wait"
        );
        (self.filled, self.enough) = (filled, buffer.capacity());
        if let Some(entries) = buffer.plain() {
            (self.entries, self.plain) = (entries.as_ptr(), self.enough);
        }
        self.direct = std::ptr::from_mut(buffer).cast();
        if self.enough == 0 {
            self.begin(); // a read of no entries drives progress like any other poll
        }
    }

    /// Ends direct mode ([`Outbox::begin_direct`]). Returns the number of entries in the buffer.
    #[inline]
    pub fn end_direct(&mut self) -> usize {
        // SAFETY: set by `begin_direct`; the buffer lives until this returns.
        let capacity = unsafe { self.direct.as_ref() }.map_or(0, CqBuffer::capacity);
        self.direct = std::ptr::null_mut();
        self.plain = 0;
        std::mem::take(&mut self.filled).min(capacity) // it exceeds the capacity only in a read of no entries
    }

    /// Begins a poll outside a read. It collects at most `UNREAD` completions, because it is part of a call with
    /// another purpose. The number of completions that already wait does not matter, because answers to sends of this
    /// end may be queued behind unread messages: posts bound the entries with credit, and [`Outbox::has_room`] the
    /// others.
    #[inline]
    pub fn begin(&mut self) {
        (self.filled, self.enough) = (0, UNREAD);
    }

    /// Adds a successful completion.
    #[inline(always)]
    pub fn push(&mut self, credits: &mut Credits, body: CqTaggedEntry, source: FiAddr, credit: Credit) {
        if self.filled < self.plain {
            // SAFETY: `begin_direct` set it, and `end_direct` resets `plain`; one function calls both around this poll,
            // while the array lives and under the endpoint's lock; `filled` is below its length. An unaligned store
            // does not require a C caller's buffer to be aligned.
            unsafe { self.entries.wrapping_add(self.filled).write_unaligned(body) };
            self.filled += 1;
            credits[credit as usize] += 1;
        } else {
            // Passed in pairs, which go through registers. An entry passed by address would be built in memory from
            // words, and the wider loads that copy it would stall until those stores have retired.
            let CqTaggedEntry { op_context, flags, len, buf, data, tag } = body;
            self.push_otherwise(credits, (op_context, flags), (len, buf), (data, tag), source, credit);
        }
    }

    /// Adds a completion to an array that takes more than plain entries, or to the FIFO for the next read.
    #[inline(never)]
    fn push_otherwise(
        &mut self,
        credits: &mut Credits,
        (op_context, flags): (Context, CompletionFlags),
        (len, buf): (usize, *mut u8),
        (data, tag): (u64, u64),
        source: FiAddr,
        credit: Credit,
    ) {
        let body = CqTaggedEntry { op_context, flags, len, buf, data, tag };
        // SAFETY: null, or as in `push`.
        let buffer = unsafe { self.direct.as_mut() };
        // Entries that follow a waiting entry, which may be an error, are read after it.
        match buffer.filter(|buffer| self.waiting.is_empty() && self.filled < buffer.capacity()) {
            Some(buffer) => {
                buffer.write(self.filled, body, source);
                self.filled += 1;
                credits[credit as usize] += 1;
            }
            None => {
                // SAFETY: as above.
                let is_read = unsafe { self.direct.as_ref() }.is_some_and(|buffer| buffer.capacity() > 0);
                self.filled += usize::from(!is_read);
                self.wait(Entry { body, source, credit, error: false });
            }
        }
    }

    /// Adds an entry to the FIFO for the next read.
    #[inline(always)]
    pub fn wait(&mut self, entry: Entry) {
        let stored = self.waiting.push(entry);
        debug_assert!(stored.is_ok(), "a growable queue has room");
        if let Some(wake) = &self.wake {
            wake.notify();
        }
    }

    /// Adds a failed completion.
    #[cold]
    pub fn push_error(&mut self, error: CqErrorEntry, credit: Credit) {
        let source = error.src_addr;
        self.errors.push_back(error);
        // Later entries are read after it.
        (self.plain, self.enough) = (0, self.filled);
        self.wait(Entry { body: CqTaggedEntry::EMPTY, source, credit, error: true });
    }

    /// Whether the next entry is an error.
    #[inline]
    pub fn error_is_next(&self) -> bool {
        self.waiting.peek().is_some_and(|entry| entry.error)
    }

    /// Takes the error that is next.
    pub fn take_error(&mut self, credits: &mut Credits) -> Option<CqErrorEntry> {
        if !self.error_is_next() {
            return None;
        }
        let entry = self.waiting.pop()?;
        credits[entry.credit as usize] += 1;
        self.errors.pop_front()
    }

    /// Whether there is nothing to read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an unsolicited entry may be added.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < self.limit
    }

    /// Whether a poll should continue to take messages: its reader's array has room or, outside a read, it has
    /// collected few.
    #[inline(always)]
    pub fn hungry(&self) -> bool {
        self.filled < self.enough
    }
}

#[cfg(test)]
mod tests {
    use ofi_api::Errno;

    use super::*;

    #[test]
    fn a_poll_outside_of_a_read_is_bounded_however_many_entries_wait() {
        let (mut outbox, mut credits) = (Outbox::new(8), [0; 3]);
        for poll in 1..=4 {
            outbox.begin();
            let mut collected = 0;
            while outbox.hungry() {
                outbox.push(&mut credits, CqTaggedEntry::EMPTY, FiAddr::NOTAVAIL, Credit::Receive);
                collected += 1;
                assert!(collected <= UNREAD, "poll {poll}");
            }
            assert_eq!((collected, outbox.waiting.len()), (UNREAD, poll * UNREAD));
            assert!(!outbox.has_room(), "entries that nobody posted for are refused");
        }
        assert_eq!(credits, [0; 3], "nothing was read");
    }

    #[test]
    fn an_error_ends_a_poll() {
        let (mut outbox, mut credits) = (Outbox::new(8), [0; 3]);
        outbox.begin();
        let error = CqErrorEntry::new(Context(1), CompletionFlags::RECV, Errno::ETRUNC);
        outbox.push_error(error, Credit::Receive);
        assert!(!outbox.hungry() && outbox.error_is_next());
        assert!(outbox.take_error(&mut credits).is_some());
        assert_eq!(credits[Credit::Receive as usize], 1);
    }
}
