//! Single-producer, single-consumer ring of variable-length records. All messages use it. Producer and consumer may be
//! processes that do not trust each other.
//!
//! The producer only stores to the lines, and the consumer only loads from them; its process may map them read-only.
//! The consumer's position is in a word of its own memory, which the producer maps read-only. A record is a header word
//! of eight bytes and a body, in consecutive lines; it starts on a line. The low 32 bits of the header word are the
//! number of bytes of header word and body; the high 32 bits are the caller's. Zero means: nothing here yet. `SKIP`
//! means: nothing up to the end of the lines, and the next record is in line 0. Bit `TURN` of a record's length means
//! the same for the lines after that record. The meaning of a body, the validation of its bytes, and sleeping
//! ([`crate::doorbell`]) are left to the caller.
//!
//! A record costs two plain stores besides the body; a poll that finds nothing costs one load. There is no locked
//! instruction and no fence instruction on x86-64; on aarch64 there is a load barrier for each record.
//!
//! Invariants (positions count lines since the start and do not wrap, as 2^64 lines take centuries;
//! `count` lines, a power of two; the line of a position is its remainder):
//! I1. `head <= position <= tail < head + count`, where `head` is the word and `position` the consumer's own.
//! I2. Lines `head..tail` hold records and are the consumer's; the others are the producer's.
//! I3. The header word in the line of `tail` is 0 until the record there is published: publishing a record first stores
//!     0 in the line after it, which the producer owns. So a record of `n` lines needs `n + 1` free ones, and the
//!     consumer never takes stale bytes for a header word.
//! I4. Only `Consumer` stores `head`. Only `Producer` stores lines, and it loads none: a consumer's process that can
//!     write them too (`ofi-shm/pair.rs`) can corrupt only what it reads itself. A record takes at most a quarter of
//!     the lines plus one, and `SKIP` skips fewer than that, so a skip and a record always fit into an empty ring. A
//!     record takes all lines to the end (`TURN`) only if the consumer has read everything before it and it does not
//!     start in line 0; line 0 is then free for the 0 of I3.
//! I5. No value that the other side writes leads outside the lines: `current` comes from this side's own position, and
//!     a length is compared with what is left before the end.
//! Pairs: PUBLISH on the header word, `publish` (Release) to `peek` (Acquire): the body is visible, and so
//!            is the 0 in the line after it.
//!        RECYCLE on `head`, `publish_head` (Release) to `refresh_head` (Acquire): the lines before it
//!            have been read and may be overwritten.
//!
//! The acquiring side of both is a relaxed load and an acquire fence, because the memory may be mapped
//! read-only: only relaxed loads are promised to work there (`core::sync::atomic`, "Atomic accesses to
//! read-only memory"). It also keeps the barrier off the path of a poll that finds nothing.

use core::ptr::NonNull;

use crate::{
    memory::{LINE, Line, Lines},
    sync::{AtomicU64, Ordering, fence},
};

/// Bytes of the header word.
pub const HEADER: usize = 8;

/// Header word of a skip. Its low half is below the minimum length, so the check of a length finds it at no cost.
const SKIP: u64 = 1;

/// Bit in the low half of a header word, beside the length: the next record is in line 0.
const TURN: usize = 1 << 31;

/// Lines after which a record may turn, in a ring of `count` lines. In a ring of 512 lines, two messages of 4 KiB then
/// make a lap.
const fn short_lap(count: u64) -> u64 {
    count / 8 + count / 64
}

/// The number of lines ahead of the next record that the producer prefetches.
const AHEAD: usize = 4;

/// Lines of the longest record in a ring of `count` lines: a payload of a quarter of the ring, and a line for its
/// headers.
const fn max_lines(count: usize) -> usize {
    count / 4 + 1
}

/// Maximum bytes of a record's body in a ring of `count` lines.
pub const fn max_body(count: usize) -> usize {
    max_lines(count) * LINE - HEADER
}

/// The writing end. Dropping it does not change the ring.
#[derive(Debug)]
pub struct Producer {
    /// Line of `tail`.
    current: NonNull<Line>,
    tail: u64,
    /// A record that ends at or before this position fits: the end of the lines or the last position that leaves a line
    /// for the 0 of I3, whichever comes first.
    usable: u64,
    max_body: usize,
    lines: Lines,
    head: *const AtomicU64,
    seen_head: u64,
    /// Only a record that ends behind this position may [turn](Self::reserve_turning).
    turn_at: u64,
}

// SAFETY: `new` promises that the memory outlives the value, whichever thread holds it, and that there is
// one producer; I2 then keeps its accesses apart from the consumer's.
unsafe impl Send for Producer {}

impl Producer {
    /// The writing end of a new ring. `lines` and the word `head` are all zero; other content is sound, but the
    /// consumer will see invalid data.
    ///
    /// # Safety
    /// While the value lives, `lines` are also writable, and in this process only this value and at most one
    /// [`Consumer`] access them; `head` is aligned and stays readable.
    pub unsafe fn new(lines: Lines, head: *const AtomicU64) -> Self {
        Self {
            current: lines.at(0),
            tail: 0,
            usable: lines.count() as u64 - 1,
            max_body: max_body(lines.count()),
            lines,
            head,
            seen_head: 0,
            turn_at: short_lap(lines.count() as u64),
        }
    }

    /// Uses `head` as the consumer's word from now on. Until then, a ring whose consumer is not known yet uses a word
    /// that stays 0.
    ///
    /// # Safety
    /// `head` is aligned and stays readable while the value lives.
    pub unsafe fn attach(&mut self, head: *const AtomicU64) {
        self.head = head;
    }

    /// Finds room for a record with a body of `body_len` bytes. Wait-free; reads the consumer's cache line only when
    /// the ring looks full. The consumer sees no record until the slot is published.
    ///
    /// # Errors
    /// [`ReserveError::TooBig`] for a body of more than [`max_body`] bytes, [`ReserveError::Full`] until the consumer
    /// has moved on, [`ReserveError::Corrupt`] if the consumer claims an impossible position.
    #[inline(always)]
    pub fn reserve(&mut self, body_len: usize) -> Result<Slot<'_>, ReserveError> {
        if body_len > self.max_body {
            return Err(ReserveError::TooBig);
        }
        self.reserve_short(body_len)
    }

    /// As [`reserve`](Self::reserve), for a caller that knows that the body has at most [`max_body`] bytes. The
    /// consumer refuses a longer one as corrupt.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    #[inline(always)]
    pub fn reserve_short(&mut self, body_len: usize) -> Result<Slot<'_>, ReserveError> {
        debug_assert!(body_len <= self.max_body, "{body_len} bytes in one record");
        let total = HEADER + body_len;
        let lines = lines_of(total);
        let mut end = self.tail + lines;
        if end > self.usable {
            self.make_room(lines)?;
            end = self.tail + lines;
        }
        Ok(Slot { line: self.current, end, total, producer: self })
    }

    /// As [`reserve`](Self::reserve). If a short lap is over and the consumer has read all earlier records, the record
    /// *turns*: the one after it is in line 0. So a ping-pong uses a part of the ring that stays in the first-level
    /// caches. For long records between near cores: it reads the consumer's cache line, though rarely while the
    /// consumer lags behind.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_turning(&mut self, body_len: usize) -> Result<Slot<'_>, ReserveError> {
        if body_len <= self.max_body && self.tail + lines_of(HEADER + body_len) > self.turn_at {
            let (lines, count) = (lines_of(HEADER + body_len), self.lines.count() as u64);
            let wrap = self.tail + self.lines.after(self.tail); // the position that is line 0 again
            let start = wrap - count;
            self.refresh_head()?;
            if self.seen_head != self.tail {
                self.turn_at = self.tail + lines + count / 2;
            } else if self.tail == start || self.tail + lines > wrap {
                self.turn_at = start + short_lap(count);
            } else {
                self.turn_at = wrap + short_lap(count);
                // `publish` prefetches the lines after these.
                for line in 1..AHEAD as u64 {
                    prefetch_to_write::<0>(self.lines.at(wrap + line).as_ptr());
                }
                let total = (HEADER + body_len) | TURN;
                return Ok(Slot { line: self.current, end: wrap, total, producer: self });
            }
        }
        self.reserve(body_len)
    }

    /// Whether the consumer has published that it has read everything; see [`Consumer::flush`]. A false claim is not
    /// detected.
    pub fn is_drained(&self) -> bool {
        self.load_head() == self.tail
    }

    /// Lines written so far, including skipped ones: the position of the next record.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Raises `usable` until `lines` more lines fit at `tail`, after a skip to line 0 if necessary.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, lines: u64) -> Result<(), ReserveError> {
        let count = self.lines.count() as u64;
        let mut wrap = self.tail + self.lines.after(self.tail); // the position that is line 0 again
        let skips = self.tail + lines > wrap;
        let wanted = if skips { wrap + lines } else { self.tail + lines };
        if wanted >= self.seen_head + count {
            self.refresh_head()?;
        }
        let limit = self.seen_head + count - 1; // the last position that leaves a line for the 0
        if skips {
            if wrap > limit {
                return Err(ReserveError::Full);
            }
            self.publish(self.current, wrap, SKIP);
            wrap += count;
        }
        self.usable = wrap.min(limit);
        if wanted > self.usable { Err(ReserveError::Full) } else { Ok(()) }
    }

    /// Reads the consumer's word and accepts it only if I1 allows it.
    fn refresh_head(&mut self) -> Result<(), ReserveError> {
        let head = self.load_head();
        // `seen_head <= tail < seen_head + count` held before, so this is all of I1.
        if head < self.seen_head || head > self.tail {
            return Err(ReserveError::Corrupt);
        }
        self.seen_head = head;
        Ok(())
    }

    fn load_head(&self) -> u64 {
        // SAFETY: aligned and readable, by the promise of `new`; other processes write it atomically.
        let head = unsafe { &*self.head }.load(Ordering::Relaxed);
        fence(Ordering::Acquire); // RECYCLE
        head
    }

    /// Publishes the record in `line`, which is `current`, up to `end`, under `word`.
    #[inline(always)]
    fn publish(&mut self, line: NonNull<Line>, end: u64, word: u64) {
        let next = self.lines.at(end);
        // SAFETY: in the lines, by I5, and free, as `end` leaves a line for this (I3); writable, by `new`.
        unsafe { next.as_ref() }.header().store(0, Ordering::Relaxed);
        crate::crash_point!("ring.publish");
        // SAFETY: as above, and free as the line of `tail` is.
        unsafe { line.as_ref() }.header().store(word, Ordering::Release); // PUBLISH
        crate::crash_point!("ring.published");
        // The consumer read these lines a lap ago. The next records write them, if only to clear a header word; owning
        // them by then saves a tenth of the latency of one line, a fifth of that of two. Fetching a line takes longer
        // than writing a record, so the prefetch runs two records of two lines ahead. Compared with the lines just
        // behind `next`, that is a quarter more messages of 64 bytes in a stream, at the same latency (measured between
        // two cores of an EPYC). `next` itself stays with the consumer, which polls it.
        prefetch_to_write::<{ AHEAD * LINE }>(next.as_ptr());
        prefetch_to_write::<{ (AHEAD + 1) * LINE }>(next.as_ptr());
        self.current = next;
        self.tail = end;
    }
}

/// Room for one record. Write the body, then publish it. Dropping it sends nothing; if the record was to turn, this lap
/// goes on to the end of the lines.
#[derive(Debug)]
#[must_use = "nothing is sent until the slot is published"]
pub struct Slot<'a> {
    producer: &'a mut Producer,
    /// `current` and the position after the record: copies that the compiler need not reload after the body is written.
    line: NonNull<Line>,
    end: u64,
    /// The low half of the header word: bytes, and perhaps `TURN`.
    total: usize,
}

impl Slot<'_> {
    /// The destination of the body: writable for the reserved length, aligned to eight bytes, in memory that the
    /// consumer may already read. Valid until the slot is published.
    #[cfg(not(loom))]
    #[inline]
    pub fn body(&mut self) -> *mut u8 {
        crate::memory::body_of(self.line)
    }

    /// Bytes in the body.
    #[inline]
    pub fn body_len(&self) -> usize {
        (self.total & !TURN) - HEADER
    }

    /// Passes the record to the consumer, with `high` as the caller's half of the header word.
    #[inline]
    pub fn publish(self, high: u32) {
        let word = u64::from(high) << 32 | self.total as u64;
        self.producer.publish(self.line, self.end, word);
    }
}

/// The reading end. Dropping it publishes nothing; see [`flush`](Self::flush).
#[derive(Debug)]
pub struct Consumer {
    /// Line of `position`.
    current: NonNull<Line>,
    position: u64,
    /// When `position` reaches this, the word `head` is published: `quantum` lines after the last time.
    publish_at: u64,
    quantum: u64,
    max_body: u32,
    /// The end of the lines.
    end: NonNull<Line>,
    lines: Lines,
    head: *const AtomicU64,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// The reading end of a new ring in `lines`, with the word `head`, which is 0.
    ///
    /// # Safety
    /// While the value lives, in this process only this value and at most one [`Producer`] access `lines`; `head` is
    /// aligned and stays writable, and nothing else in this process stores to it.
    pub unsafe fn new(lines: Lines, head: *const AtomicU64) -> Self {
        let quantum = (lines.count() as u64 / 8).max(1);
        Self {
            current: lines.at(0),
            position: 0,
            publish_at: quantum,
            quantum,
            max_body: max_body(lines.count()) as u32, // below 2^31, by `MAX_LINES`
            end: lines.end(),
            lines,
            head,
        }
    }

    /// The next record, if there is one. It remains the next one until [`advance`](Self::advance).
    ///
    /// # Errors
    /// [`Corrupt`] for a header word that a correct producer of this ring cannot have written. Later calls may return
    /// the error again, and the ring yields no more records.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Record>, Corrupt> {
        let word = self.load_header();
        if word == 0 { Ok(None) } else { self.accept(word) }
    }

    /// Whether there is something at the next position: one load, which says nothing about its validity.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.load_header() != 0
    }

    /// The position of the next record, in lines since the ring began.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The caller's half of the next header word, unchecked: for choosing a path before [`peek`](Self::peek). 0 if
    /// there is none.
    #[inline(always)]
    pub fn next_high(&self) -> u32 {
        (self.load_header() >> 32) as u32
    }

    /// Consumes `record`, which `peek` returned last. Lines read are published once they amount to an eighth of the
    /// ring, or by [`flush`](Self::flush).
    #[inline]
    pub fn advance(&mut self, record: &Record) {
        self.step(record.lines);
    }

    /// Publishes all lines read so far. Call it when the ring is found empty after a record. Without it nothing gets
    /// stuck, but the producer does not see that the ring is drained.
    #[inline]
    pub fn flush(&mut self) {
        if self.position + self.quantum != self.publish_at {
            self.publish_head();
        }
    }

    /// Prefetches the second line of the next record.
    ///
    /// Do not call it in every turn of a loop that waits: there it takes the line from a producer that is writing it.
    /// Half a round trip of 120-byte bodies takes 118 ns without it, and 149 ns with it in the loop (measured between
    /// two cores of an EPYC). It is for a consumer that knows the record to be there, for example because it lags
    /// behind.
    #[inline(always)]
    pub fn prefetch_next(&self) {
        prefetch(self.current.as_ptr().wrapping_add(1));
    }

    #[inline(always)]
    fn load_header(&self) -> u64 {
        // SAFETY: in the lines, by I5, which are readable by the promise of `Lines::new`.
        unsafe { self.current.as_ref() }.header().load(Ordering::Relaxed)
    }

    /// Makes a record of a header word. Only this function and the three below interpret header words, each from a
    /// copy.
    #[inline(always)]
    fn accept(&mut self, word: u64) -> Result<Option<Record>, Corrupt> {
        fence(Ordering::Acquire); // PUBLISH
        if body_len(word) > self.max_body {
            return self.accept_other(word);
        }
        self.record(word).map(Some)
    }

    /// The record at `position`, by a header word with a possible length.
    #[inline(always)]
    fn record(&self, word: u64) -> Result<Record, Corrupt> {
        let total = body_len(word) as usize + HEADER;
        if self.current.addr().get() + total > self.end.addr().get() {
            return Err(Corrupt);
        }
        Ok(Record {
            high: (word >> 32) as u32,
            body_len: body_len(word) as usize,
            #[cfg(not(loom))]
            body: crate::memory::body_of(self.current),
            lines: lines_of(total),
        })
    }

    /// Handles a header word that is no plain length: a record that turns, or a skip and the record in line 0.
    #[cold]
    #[inline(never)]
    fn accept_other(&mut self, mut word: u64) -> Result<Option<Record>, Corrupt> {
        if word & TURN as u64 == 0 {
            word = self.take_skip(word)?;
        }
        let length = word & !(TURN as u64);
        if word == 0 {
            return Ok(None);
        }
        // No record in line 0 turns (I4): it would be its own successor.
        let is_endless = word != length && self.position.is_multiple_of(self.lines.count() as u64);
        if body_len(length) > self.max_body || is_endless {
            return Err(Corrupt);
        }
        let record = self.record(length)?;
        let lines = if word == length { record.lines } else { self.lines.after(self.position) };
        Ok(Some(Record { lines, ..record }))
    }

    /// Handles `word`, which must be a skip. Returns the header word in line 0.
    fn take_skip(&mut self, word: u64) -> Result<u64, Corrupt> {
        let skipped = self.lines.after(self.position);
        // A producer skips only before a record that does not fit (I4). So there are never two skips in a row, and a
        // hostile producer cannot keep the consumer busy.
        if word != SKIP || skipped >= max_lines(self.lines.count()) as u64 {
            return Err(Corrupt);
        }
        self.step(skipped);
        let word = self.load_header();
        fence(Ordering::Acquire); // PUBLISH
        Ok(word)
    }

    #[inline(always)]
    fn step(&mut self, lines: u64) {
        self.position += lines;
        self.current = self.lines.at(self.position);
        if self.position >= self.publish_at {
            self.publish_head();
        }
    }

    #[inline(always)]
    fn publish_head(&mut self) {
        crate::crash_point!("ring.recycle");
        // SAFETY: aligned and writable, by the promise of `new`.
        unsafe { &*self.head }.store(self.position, Ordering::Release); // RECYCLE
        self.publish_at = self.position + self.quantum;
    }
}

/// A record in the ring. Only its bounds have been checked: `body_len` bytes at `body` lie in the lines. A hostile
/// producer may change them at any time: copy, then check.
#[derive(Debug)]
#[non_exhaustive]
pub struct Record {
    /// The caller's half of the header word.
    pub high: u32,
    /// Bytes in the body.
    pub body_len: usize,
    /// The body, aligned to eight bytes. A correct producer does not change it until [`Consumer::advance`].
    #[cfg(not(loom))]
    pub body: *const u8,
    lines: u64,
}

#[cfg(not(loom))]
impl Record {
    /// Prefetches the body into the second-level cache, for a body that its writer left in no cache.
    pub fn prefetch(&self) {
        for at in (0..self.body_len).step_by(LINE) {
            prefetch_near(self.body.wrapping_add(at));
        }
    }
}

/// The reason why [`Producer::reserve`] found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The consumer has not read enough yet.
    #[error("the ring is full")]
    Full,
    /// The body is longer than [`max_body`]; it will never fit.
    #[error("the record is longer than a quarter of the ring and a line")]
    TooBig,
    /// The consumer published an impossible position.
    #[error("the consumer's position is impossible")]
    Corrupt,
}

/// The producer wrote an invalid header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a header word in the ring is impossible")]
pub struct Corrupt;

/// Lines of a record of `total` bytes, which is far from overflow.
#[inline(always)]
#[expect(clippy::manual_div_ceil, reason = "`div_ceil` allows for overflow, which costs two instructions")]
fn lines_of(total: usize) -> u64 {
    ((total + (LINE - 1)) / LINE) as u64
}

/// Bytes of body according to a header word. For a word that is not a record's length, the result is too large.
#[inline(always)]
fn body_len(word: u64) -> u32 {
    (word as u32).wrapping_sub(HEADER as u32)
}

/// Prefetches the line at `line`, which need not be mapped.
#[inline(always)]
fn prefetch(line: *const Line) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: a hint, harmless for any address; it changes neither registers nor flags.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
    }
    let _ = line;
}

/// Prefetches the line of `at`, which need not be mapped, into the second-level cache.
#[cfg(not(loom))]
#[inline(always)]
fn prefetch_near(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as in `prefetch`.
    unsafe {
        core::arch::asm!("prefetcht1 [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as in `prefetch`.
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{}]", in(reg) at, options(nostack, readonly, preserves_flags));
    }
    let _ = at;
}

/// Prefetches the line `OFFSET` bytes after `line`, which need not be mapped, for exclusive ownership by this core.
/// (`prefetchw` has no effect on x86-64 processors that do not know it; the compiler's intrinsic would require it.)
#[inline(always)]
fn prefetch_to_write<const OFFSET: usize>(line: *const Line) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: as in `prefetch`.
    unsafe {
        core::arch::asm!(
            "prefetchw [{} + {}]", in(reg) line, const OFFSET,
            options(nostack, readonly, preserves_flags),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    // SAFETY: as in `prefetch`.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}, #{}]", in(reg) line, const OFFSET,
            options(nostack, readonly, preserves_flags),
        );
    }
    let _ = line;
}

#[cfg(all(test, loom))]
mod models;
