//! Flows of grains: pictures, fields, blocks of ancillary data.

use std::cell::Cell;
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::Error;
use super::copy;
use super::definition::Geometry;
use super::domain::{Domain, Shape, Writer};
use super::file;
use super::flow::{Flow, describes_flow};
use super::grain_slots::{GrainSlot, Slots};
use super::layout::{self, GrainHeader};
use super::time;
use super::wait::{self, Ended, Wait};
use super::watcher::{Watched, Watcher};
use crate::protocol::{self, Grain, Head, INVALID, Miss};
use crate::ring;

/// Interval at which a reader records its reads, in nanoseconds.
const TOUCH_EVERY: u64 = 10_000_000;

/// A grain's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrainInfo {
    /// The grain's index.
    pub index: u64,
    /// Bit 0: the payload is invalid.
    pub flags: u32,
    /// Bytes of the payload; at most the mapped bytes.
    pub size: u32,
    /// Slices of the whole grain.
    pub total_slices: u16,
    /// Number of valid slices, from the first on.
    pub valid_slices: u16,
}

impl GrainInfo {
    /// Whether the writer flagged the payload as invalid.
    pub fn is_invalid(&self) -> bool {
        self.flags & INVALID != 0
    }

    fn new(index: u64, grain: Grain, slot: &GrainSlot) -> Self {
        Self {
            index,
            flags: grain.flags,
            size: grain.size.min(slot.payload),
            total_slices: grain.total,
            valid_slices: grain.valid,
        }
    }
}

/// Reads a flow of grains.
#[derive(Debug)]
pub struct GrainReader {
    flow: Flow,
    slots: Slots,
    /// The file that is touched to record reads. `None` in a read-only domain.
    access: Option<OwnedFd>,
    touched: AtomicU64,
}

describes_flow!(GrainReader, GrainWriter);

impl GrainReader {
    /// Maps the whole ring.
    pub(crate) fn new(flow: Flow) -> Result<Self, Error> {
        let slots = Slots::open_whole(&flow, false)?;
        Self::of(flow, slots)
    }

    /// Maps each grain when it is read first.
    pub(crate) fn on_demand(flow: Flow) -> Result<Self, Error> {
        let slots = Slots::open(&flow, false)?;
        Self::of(flow, slots)
    }

    fn of(flow: Flow, slots: Slots) -> Result<Self, Error> {
        let access = file::open(&flow.dir().join("access"), true).ok();
        Ok(Self { flow, slots, access, touched: AtomicU64::new(0) })
    }

    /// Number of grains in the ring.
    pub fn grains(&self) -> u64 {
        self.slots.len()
    }

    /// A whole grain.
    ///
    /// # Errors
    /// [`Error::TooEarly`] at the end of the wait, [`Error::TooLate`], [`Error::Skipped`], [`Error::FlowInvalid`],
    /// [`Error::Truncated`].
    pub fn read(&self, index: u64, wait: Wait) -> Result<ReadGrain<'_>, Error> {
        self.read_slices(index, u16::MAX, wait)
    }

    /// Returns a grain as soon as at least `slices` of it are valid.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_slices(&self, index: u64, slices: u16, wait: Wait) -> Result<ReadGrain<'_>, Error> {
        // Recording a read costs a system call that wakes a thread of the writer's process. A reader that has
        // to wait records it before it sleeps rather than when the data has arrived.
        let said = Cell::new(false);
        let say = || {
            said.set(true);
            self.touch();
            wait::SLICE
        };
        let slot = self.slots.get(&self.flow, index)?;
        let grain = available((&self.flow, slot, self.grains()), (index, slices), wait, say)?;
        if !said.get() {
            self.touch();
        }
        Ok(ReadGrain::new(&self.flow, slot, index, grain))
    }

    /// The grain that has replaced `index` in its slot, if `index` is the oldest one that clients of the C++ SDK
    /// compute and resume at. `None` if the slot still holds `index`, or `index` is not that oldest one.
    pub fn successor(&self, index: u64) -> Option<u64> {
        let next = index.checked_add(self.grains())?;
        let is_oldest = index == ring::oldest_grain(self.head(), self.grains());
        (is_oldest && self.is_in_slot(next)).then_some(next)
    }

    /// Whether the slot still holds the grain. If so, everything read from it so far belongs to this grain.
    pub fn holds(&self, index: u64) -> bool {
        self.is_in_slot(index) && self.intact().is_ok()
    }

    fn is_in_slot(&self, index: u64) -> bool {
        self.slots.mapped(index).is_some_and(|slot| protocol::unchanged(slot.words(), index))
    }

    /// Waits for a grain without reading it.
    pub(crate) fn wait_for(&self, index: u64, slices: u16, wait: Wait) -> Result<Grain, Error> {
        let slot = self.slots.get(&self.flow, index)?;
        available((&self.flow, slot, self.grains()), (index, slices), wait, || wait::SLICE)
    }

    /// Records a read, at a limited rate.
    fn touch(&self) {
        let Some(access) = &self.access else { return };
        record(&self.touched, |times| rustix::fs::futimens(access, times));
    }
}

/// Waits for `slices` of a grain in its slot of a flow's ring of `grains`. `idle` is passed to [`wait::until`].
#[inline]
pub(super) fn available(
    (flow, slot, grains): (&Flow, &GrainSlot, u64),
    (index, slices): (u64, u16),
    wait: Wait,
    idle: impl Fn() -> Duration,
) -> Result<Grain, Error> {
    let (words, slot) = (flow.words(), slot.words());
    let attempt = || protocol::snapshot(words, slot, index, slices, grains);
    let grain =
        wait::until(flow, wait, attempt, idle).map_err(|ended| missing(flow, grains, index, ended))?;
    flow.intact().map(|()| grain)
}

#[cold]
fn missing(flow: &Flow, grains: u64, index: u64, ended: Ended) -> Error {
    let oldest = ring::resume_grain(flow.words().head.load(Ordering::Acquire), grains);
    match ended {
        // The data may be missing because a truncation wiped it.
        _ if flow.intact().is_err() => flow.invalid(),
        Ended::Invalid => Error::FlowInvalid,
        Ended::Missed(Miss::Early) => Error::TooEarly { index },
        Ended::Missed(Miss::Skipped) => Error::Skipped { index },
        Ended::Missed(Miss::Late) => Error::TooLate { index, oldest },
    }
}

/// Records a read, unless one was recorded just before.
pub(super) fn record(touched: &AtomicU64, set: impl Fn(&Timestamps) -> Result<(), Errno>) {
    let now = time::coarse();
    if now.wrapping_sub(touched.load(Ordering::Relaxed)) < TOUCH_EVERY {
        return;
    }
    touched.store(now, Ordering::Relaxed);
    let times = |modification| Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        last_modification: Timespec { tv_sec: 0, tv_nsec: modification },
    };
    // Only the owner of the file may change a single time of it. Other users with write access may set both times to
    // now, which the writer notices as well. In a domain that became read-only both fail, and reads are not recorded.
    if set(&times(UTIME_OMIT)) == Err(Errno::PERM) {
        let _ = set(&times(UTIME_NOW));
    }
}

/// A grain that was available when it was read. Its slot may be overwritten at any time: see
/// [`still_valid`](Self::still_valid).
#[derive(Clone, Copy)]
pub struct ReadGrain<'a> {
    flow: &'a Flow,
    slot: &'a GrainSlot,
    info: GrainInfo,
}

impl fmt::Debug for ReadGrain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl<'a> ReadGrain<'a> {
    pub(super) fn new(flow: &'a Flow, slot: &'a GrainSlot, index: u64, grain: Grain) -> Self {
        Self { flow, slot, info: GrainInfo::new(index, grain, slot) }
    }
}

impl ReadGrain<'_> {
    /// The grain's metadata.
    pub fn info(&self) -> GrainInfo {
        self.info
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.info.size as usize
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a part of the payload. Call [`still_valid`](Self::still_valid) afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range that is not inside the payload; [`Error::Truncated`].
    pub fn read_into(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        let inside = offset.checked_add(to.len()).is_some_and(|end| end <= self.len());
        if inside && self.slot.payload().read(offset, to) {
            return self.flow.intact();
        }
        Err(outside(offset, to.len(), self.len()))
    }

    /// The whole payload, if it was not overwritten while it was copied.
    ///
    /// # Errors
    /// [`Error::TooLate`] if it was; [`Error::Truncated`].
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; self.len()];
        self.read_into(0, &mut bytes)?;
        if self.still_valid() {
            return Ok(bytes);
        }
        Err(Error::TooLate { index: self.info.index, oldest: self.info.index.saturating_add(1) })
    }

    /// Whether everything read from the payload so far belongs to this grain, and comes from the flow's files rather
    /// than from a truncated one ([`Error::Truncated`]).
    ///
    /// The check does not detect a writer that opens the *same* grain again and rewrites it.
    pub fn still_valid(&self) -> bool {
        protocol::unchanged(self.slot.words(), self.info.index) && self.flow.intact().is_ok()
    }

    /// Address of the payload: [`len`](Self::len) bytes, mapped as long as the reader exists. Another process may write
    /// them at any time, so use volatile or atomic reads, or code that tolerates races.
    pub fn as_ptr(&self) -> *const u8 {
        self.slot.payload().as_ptr()
    }

    /// The header as stored in the file, including reserved bytes.
    pub fn header(&self) -> GrainHeader {
        header(self.slot, self.info)
    }

    /// Copies the [`header`](Self::header) into the caller's memory.
    pub fn header_into(&self, to: &mut MaybeUninit<GrainHeader>) {
        header_into(self.slot, self.info, to);
    }
}

fn header(slot: &GrainSlot, info: GrainInfo) -> GrainHeader {
    let mut header = MaybeUninit::uninit();
    *header_into(slot, info, &mut header)
}

/// Copies a header, of which the 4 KiB are copied only once.
#[inline]
fn header_into<'a>(
    slot: &GrainSlot,
    info: GrainInfo,
    to: &'a mut MaybeUninit<GrainHeader>,
) -> &'a mut GrainHeader {
    // The file's length was checked.
    let header = slot.header().read_value(0, to).expect("a slot has a header");
    header.version = layout::GRAIN_VERSION;
    header.size = size_of::<GrainHeader>() as u32;
    header.index = info.index;
    header.flags = info.flags;
    header.grain_size = info.size;
    header.total_slices = info.total_slices;
    header.valid_slices = info.valid_slices;
    header
}

#[cold]
fn outside(offset: usize, len: usize, size: usize) -> Error {
    Error::argument(format!("{len} bytes at {offset} are not inside a payload of {size}"))
}

/// Writes a flow of grains. Dropping the last writer of a flow, in all processes, deletes it.
#[derive(Debug)]
pub struct GrainWriter {
    // Dropped in this order: the watch before the flow that it refers to.
    _watched: Option<Watched>,
    flow: Arc<Flow>,
    slots: Slots,
    open: Vec<AtomicBool>,
    /// For each slot: whether the reserved part of its header was zero at the last access since `begin`.
    blank: Vec<AtomicBool>,
}

impl GrainWriter {
    /// Number of grains in the ring.
    pub fn grains(&self) -> u64 {
        self.slots.len()
    }

    /// Opens a grain for writing. Several may be open, in different slots. Committed slices of the same grain remain
    /// valid.
    ///
    /// # Errors
    /// [`Error::AlreadyOpen`]; [`Error::Truncated`].
    pub fn open(&self, index: u64) -> Result<OpenGrain<'_>, Error> {
        let at = ring::slot(index, self.grains()) as usize;
        if self.open[at].swap(true, Ordering::Acquire) {
            return Err(Error::AlreadyOpen(index));
        }
        let opened = self.begin_in_slot(index);
        if opened.is_err() {
            self.open[at].store(false, Ordering::Release);
        }
        opened.map(|(info, slot)| OpenGrain { writer: self, slot, info })
    }

    /// Assigns a slot to grain `index`. Returns the slot's current state and the address of its payload. Part of the
    /// raw layer, for callers that keep track of open grains themselves. The slot is mapped when it is used first, and
    /// stays so.
    ///
    /// # Errors
    /// [`Error::Truncated`]; of a slot that is used first, also [`Error::FlowInvalid`] if the flow is gone, and errors
    /// of the system.
    pub fn begin(&self, index: u64) -> Result<(GrainInfo, *mut u8), Error> {
        self.begin_in_slot(index).map(|(info, slot)| (info, slot.payload().as_ptr()))
    }

    fn slot(&self, index: u64) -> Result<&GrainSlot, Error> {
        self.slots.get(&self.flow, index)
    }

    fn begin_in_slot(&self, index: u64) -> Result<(GrainInfo, &GrainSlot), Error> {
        let slot = self.slot(index)?;
        // Another writer may have filled the header since it was read last.
        self.blank(index).store(false, Ordering::Relaxed);
        let grain = protocol::open(slot.words(), index, slot.slices);
        self.intact()?;
        Ok((GrainInfo::new(index, grain, slot), slot))
    }

    /// Writes bytes of a grain's payload: the raw layer, like [`begin`](Self::begin).
    ///
    /// # Errors
    /// [`Error::Argument`] if they do not fit into the payload; [`Error::Truncated`].
    pub fn write_slot(&self, index: u64, offset: usize, from: &[u8]) -> Result<(), Error> {
        let slot = self.slot(index)?;
        let size = slot.payload as usize;
        let inside = offset.checked_add(from.len()).is_some_and(|end| end <= size);
        if inside && slot.payload().write(offset, from) {
            return self.intact();
        }
        Err(outside(offset, from.len(), size))
    }

    /// Writes bytes of a grain's payload from memory that others may write meanwhile: the raw layer, like
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// Those of [`write_slot`](Self::write_slot).
    ///
    /// # Safety
    /// `from` is mapped for `len` bytes, outside of this flow's files.
    #[allow(unsafe_code)]
    pub unsafe fn write_slot_from(
        &self,
        index: u64,
        offset: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), Error> {
        let slot = self.slot(index)?;
        let size = slot.payload as usize;
        let inside = offset.checked_add(len).is_some_and(|end| end <= size);
        // SAFETY: the caller's promise.
        if inside && unsafe { slot.payload().write_from(offset, from, len) } {
            return self.intact();
        }
        Err(outside(offset, len, size))
    }

    /// Publishes the content of a grain's slot and makes it the head: the raw layer, like [`begin`](Self::begin).
    ///
    /// # Errors
    /// [`Error::TooLate`] if the slot was opened for another grain since: nothing is published then.
    /// [`Error::Truncated`]: data written to a truncated file is not published. If a file is truncated during this
    /// call, readers may have seen the head move.
    pub fn publish(&self, info: GrainInfo) -> Result<(), Error> {
        self.commit(info, Head::Set)
    }

    /// The header of a grain's slot, as stored in the file.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub fn slot_header(&self, index: u64) -> Result<GrainHeader, Error> {
        let (slot, info) = self.stored(index)?;
        Ok(header(slot, info))
    }

    /// Copies the [`slot_header`](Self::slot_header) into the caller's memory.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin): none, once it has succeeded for this index.
    pub fn slot_header_into(&self, index: u64, to: &mut MaybeUninit<GrainHeader>) -> Result<(), Error> {
        let (slot, info) = self.stored(index)?;
        let header = header_into(slot, info, to);
        self.blank(index).store(copy::is_zero(&header.reserved), Ordering::Relaxed);
        Ok(())
    }

    fn blank(&self, index: u64) -> &AtomicBool {
        &self.blank[ring::slot(index, self.grains()) as usize]
    }

    fn stored(&self, index: u64) -> Result<(&GrainSlot, GrainInfo), Error> {
        let slot = self.slot(index)?;
        let words = slot.words();
        let slices = words.slices.load(Ordering::Acquire);
        let grain = Grain {
            flags: words.flags.load(Ordering::Relaxed),
            size: words.size.load(Ordering::Relaxed),
            total: slices as u16,
            valid: (slices >> 16) as u16,
        };
        Ok((slot, GrainInfo::new(words.index.load(Ordering::Relaxed), grain, slot)))
    }

    /// Writes the reserved part of a grain's header. It stores only changed bytes, because readers have the header in
    /// their caches. Zeros over a header that was zero when it was read or written since [`begin`](Self::begin) cost
    /// no look at the slot: bytes that another writer stored after that stay. Nothing is written into a slot that
    /// [`begin`](Self::begin) has never opened.
    pub fn set_reserved(&self, index: u64, reserved: &[u8; 4068]) {
        let (is_zero, blank) = (copy::is_zero(reserved), self.blank(index));
        if is_zero && blank.load(Ordering::Relaxed) {
            return;
        }
        blank.store(is_zero, Ordering::Relaxed);
        if let Some(slot) = self.slots.mapped(index) {
            // Inside the header, whose length was checked.
            let _ = slot.header().write_changes(28, reserved);
        }
    }

    fn commit(&self, info: GrainInfo, head: Head) -> Result<(), Error> {
        self.intact()?;
        let grain =
            Grain { flags: info.flags, size: info.size, total: info.total_slices, valid: info.valid_slices };
        let slot = self.slot(info.index)?.words();
        if !protocol::publish(self.flow.words(), slot, info.index, grain, head, time::now()) {
            self.intact()?;
            let (index, oldest) = (info.index, ring::resume_grain(self.head(), self.grains()));
            return Err(Error::TooLate { index, oldest });
        }
        self.flow.wake();
        self.intact()
    }
}

impl Writer for GrainWriter {
    fn open(flow: Flow, domain: &Domain) -> Result<Self, Error> {
        let slots = Slots::open(&flow, true)?;
        let flow = Arc::new(flow);
        let open = (0..slots.len()).map(|_| AtomicBool::new(false)).collect();
        let watched = Watcher::shared(domain.path()).and_then(|watcher| watcher.add(&flow));
        let blank = (0..slots.len()).map(|_| AtomicBool::new(false)).collect();
        Ok(Self { _watched: watched, flow, slots, open, blank })
    }

    fn shape(&self) -> Shape {
        let slice_sizes = self.flow.info.config.discrete().slice_sizes;
        let (payload, slices) = self.slots.shape();
        let geometry = Geometry::Grains { rate: self.rate(), payload, slices, slice_sizes };
        Shape { format: self.flow.info.config.common.format, geometry }
    }

    fn flow(&self) -> &Flow {
        &self.flow
    }
}

impl Drop for GrainWriter {
    fn drop(&mut self) {
        self._watched = None;
        self.flow.release();
    }
}

/// A grain that is being written. Dropping it without a commit abandons it: readers see the previously committed state.
pub struct OpenGrain<'a> {
    writer: &'a GrainWriter,
    slot: &'a GrainSlot,
    info: GrainInfo,
}

impl fmt::Debug for OpenGrain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

impl OpenGrain<'_> {
    /// The grain's metadata.
    pub fn info(&self) -> GrainInfo {
        self.info
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.info.size as usize
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a slice in each plane: plane after plane, each with all slices.
    pub fn slice_sizes(&self) -> [u32; 4] {
        self.writer.flow.info.config.discrete().slice_sizes
    }

    /// Copies into the payload.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range that is not inside the payload; [`Error::Truncated`].
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let inside = offset.checked_add(from.len()).is_some_and(|end| end <= self.len());
        if inside && self.slot.payload().write(offset, from) {
            return self.writer.intact();
        }
        Err(outside(offset, from.len(), self.len()))
    }

    /// Address of the payload: [`len`](Self::len) bytes, mapped as long as the writer exists. Readers and other writers
    /// may access it at any time.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.slot.payload().as_ptr()
    }

    /// Publishes the first `valid` slices, and keeps the grain open.
    ///
    /// # Errors
    /// [`Error::Argument`] for more slices than the grain has; [`Error::Truncated`].
    pub fn commit_slices(&mut self, valid: u16) -> Result<(), Error> {
        if valid > self.info.total_slices {
            return Err(Error::argument(format!("{valid} slices of {}", self.info.total_slices)));
        }
        self.info.valid_slices = valid;
        self.commit_now()
    }

    /// Publishes the whole grain.
    ///
    /// # Errors
    /// [`Error::Truncated`], as for [`GrainWriter::publish`].
    pub fn commit(mut self) -> Result<(), Error> {
        self.info.flags &= !INVALID;
        self.info.valid_slices = self.info.total_slices;
        self.commit_now()
    }

    /// Publishes that the grain does not exist, so that readers need not wait for it.
    ///
    /// # Errors
    /// [`Error::Truncated`], as for [`GrainWriter::publish`].
    pub fn commit_invalid(mut self) -> Result<(), Error> {
        self.info.flags |= INVALID;
        self.info.valid_slices = self.info.total_slices;
        self.commit_now()
    }

    fn commit_now(&self) -> Result<(), Error> {
        self.writer.commit(self.info, Head::Keep { grains: self.writer.grains() })
    }
}

impl Drop for OpenGrain<'_> {
    fn drop(&mut self) {
        let at = ring::slot(self.info.index, self.writer.grains()) as usize;
        self.writer.open[at].store(false, Ordering::Release);
    }
}
