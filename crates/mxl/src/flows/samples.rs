//! Flows of audio samples: a ring for each channel, in one file.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Error;
use super::copy::Shared;
use super::definition::Geometry;
use super::domain::{Domain, Shape, Writer};
use super::file::{self, Mapping};
use super::flow::{Flow, describes_flow};
use super::time;
use super::wait::{self, Ended, Looks, Wait};
use crate::protocol::{self, Miss};
use crate::ring::{self, Batches, Window};

/// A sample: `f32` or `f64`, matching the flow's format.
pub trait Sample: FromBytes + IntoBytes + Immutable + Copy + Default + 'static {}
impl Sample for f32 {}
impl Sample for f64 {}

/// The rings of all channels.
#[derive(Debug)]
struct Channels {
    file: Mapping,
    channels: u32,
    length: u64,
    word: u64,
}

impl Channels {
    fn open(flow: &Flow, write: bool) -> Result<Self, Error> {
        if flow.info.is_discrete() {
            return Err(Error::argument(format!("flow {} is not audio: it has grains", flow.info.id())));
        }
        let config = flow.info.config.continuous();
        let (channels, length) = (config.channel_count, u64::from(config.buffer_length));
        let path = flow.dir().join("channels");
        let opened = file::open(&path, write)?;
        let (bytes, _) = file::size(&opened, &path)?;
        // Only the file's length reveals the width of a sample.
        let samples = u64::from(channels) * length;
        let word = bytes / samples;
        if ![4, 8].contains(&word) || bytes % samples != 0 {
            return Err(Error::file(
                &path,
                format!("{bytes} bytes for {channels} channels of {length} samples"),
            ));
        }
        let len = usize::try_from(bytes).map_err(|_| Error::file(&path, "too long for this processor"))?;
        let file = Mapping::new(opened.as_fd(), &path, len, write, flow.note(0))?;
        Ok(Self { file, channels, length, word })
    }

    /// Checks that `T` is the flow's sample type.
    fn check<T: Sample>(&self) -> Result<(), Error> {
        if size_of::<T>() as u64 == self.word {
            return Ok(());
        }
        Err(Error::argument(format!("samples of {} bytes; the flow has {}", size_of::<T>(), self.word)))
    }

    /// The two pieces of a window in a channel's ring, as byte offsets and lengths.
    fn pieces(&self, window: Window, channel: u32) -> [(usize, usize); 2] {
        let base = u64::from(channel) * self.length;
        let bytes = |samples: u64| (samples * self.word) as usize; // inside the file, whose length is a `usize`
        [(bytes(base + window.start), bytes(window.first)), (bytes(base), bytes(window.second))]
    }

    /// Checks that channel, window and buffer fit each other.
    fn fits<T>(&self, channel: u32, window: Window, buffer: &[T]) -> Result<(), Error> {
        let count = window.first + window.second;
        if channel < self.channels && buffer.len() as u64 == count {
            return Ok(());
        }
        Err(Error::argument(format!(
            "{} samples of channel {channel}; there are {count} of {} channels",
            buffer.len(),
            self.channels
        )))
    }

    fn bytes(&self) -> Shared {
        self.file.from(0)
    }
}

/// Reads a flow of samples.
#[derive(Debug)]
pub struct SampleReader {
    flow: Flow,
    ring: Channels,
}

describes_flow!(SampleReader, SampleWriter);

impl SampleReader {
    pub(crate) fn new(flow: Flow) -> Result<Self, Error> {
        let ring = Channels::open(&flow, false)?;
        Ok(Self { flow, ring })
    }

    /// Number of channels.
    pub fn channels(&self) -> u32 {
        self.ring.channels
    }

    /// Bytes of a sample.
    pub fn word(&self) -> u64 {
        self.ring.word
    }

    /// Bytes from the start of one channel's ring to the next.
    pub fn stride(&self) -> usize {
        (self.ring.length * self.ring.word) as usize
    }

    /// Maximum samples of one read.
    pub fn max_read(&self) -> u64 {
        self.ring.length / 2
    }

    /// The `count` samples before `index`, of every channel.
    ///
    /// # Errors
    /// [`Error::TooEarly`] at the end of the wait, [`Error::TooLate`], [`Error::FlowInvalid`], [`Error::Truncated`],
    /// and [`Error::Argument`] for more than [`max_read`](Self::max_read).
    pub fn read(&self, index: u64, count: u64, wait: Wait) -> Result<ReadSamples<'_>, Error> {
        let window = ring::window(index, count, self.ring.length).filter(|_| count <= self.max_read());
        let window = window.ok_or_else(|| {
            Error::argument(format!("{count} samples: one read takes at most {}", self.max_read()))
        })?;
        self.wait_for(index, count, wait)?;
        Ok(ReadSamples { reader: self, window, first: index.saturating_sub(count) })
    }

    /// Whether none of the samples that were read, from `start` to before `end`, has been overwritten so far. (For
    /// samples that were read before their commit, pass as `end` the lower of `start` and the head at that time.)
    ///
    /// A writer that jumps, ahead or back, is noticed before it overwrites anything. A jumping writer of the C++ SDK is
    /// noticed only when it commits.
    pub fn holds(&self, start: u64, end: u64) -> bool {
        let (words, jump) = (self.flow.words(), self.flow.jump());
        protocol::samples_unchanged(words, jump, (start, end), self.ring.length) && self.intact().is_ok()
    }

    /// The start of the first channel's ring. The rings of all channels follow each other, and stay mapped as long as
    /// the reader exists. Another process may write them at any time.
    pub fn base(&self) -> *const u8 {
        self.ring.bytes().as_ptr()
    }

    /// The time to sleep before the next check for samples up to `index`.
    pub(crate) fn look_after(&self, looks: &mut Looks, index: u64) -> Duration {
        looks.next(self.head(), index, self.rate(), Instant::now())
    }

    /// Waits for samples without reading them.
    pub(crate) fn wait_for(&self, index: u64, count: u64, wait: Wait) -> Result<(), Error> {
        let (words, length) = (self.flow.words(), self.ring.length);
        let attempt = || protocol::snapshot_samples(words, index, count, length);
        let mut looks = Looks::new();
        let idle = || self.look_after(&mut looks, index);
        let there = wait::until(&self.flow, wait, attempt, idle).map_err(|ended| match ended {
            // The data may be missing because a truncation wiped it.
            _ if self.intact().is_err() => self.flow.invalid(),
            Ended::Invalid => Error::FlowInvalid,
            Ended::Missed(Miss::Early) => Error::TooEarly { index },
            Ended::Missed(_) => Error::TooLate { index, oldest: ring::oldest_sample(self.head(), length) },
        });
        there.and_then(|()| self.intact())
    }
}

/// Samples that were available when they were read. They may be overwritten later: see
/// [`still_valid`](Self::still_valid).
#[derive(Clone, Copy)]
pub struct ReadSamples<'a> {
    reader: &'a SampleReader,
    window: Window,
    first: u64,
}

impl fmt::Debug for ReadSamples<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples from {}", self.len(), self.first)
    }
}

impl ReadSamples<'_> {
    /// Samples of each channel.
    pub fn len(&self) -> usize {
        (self.window.first + self.window.second) as usize
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a channel. Call [`still_valid`](Self::still_valid) afterwards.
    ///
    /// # Errors
    /// [`Error::Argument`] for a channel that does not exist, another number of samples, or another type than the
    /// flow's; [`Error::Truncated`].
    pub fn read_channel<T: Sample>(&self, channel: u32, to: &mut [T]) -> Result<(), Error> {
        let ring = &self.reader.ring;
        ring.check::<T>()?;
        ring.fits(channel, self.window, to)?;
        let mut rest = to.as_mut_bytes();
        for (offset, len) in ring.pieces(self.window, channel) {
            let (piece, tail) = rest.split_at_mut(len);
            if !ring.bytes().read(offset, piece) {
                return Err(Error::argument("a piece outside the ring"));
            }
            rest = tail;
        }
        self.reader.intact()
    }

    /// The location of a channel's samples: two pieces, each with its length in bytes, mapped as long as the reader
    /// exists. Another process may write them at any time.
    pub fn pieces(&self, channel: u32) -> [(*const u8, usize); 2] {
        let ring = &self.reader.ring;
        let channel = channel.min(ring.channels - 1);
        let base = ring.bytes().as_ptr();
        ring.pieces(self.window, channel).map(|(offset, len)| (base.wrapping_add(offset).cast_const(), len))
    }

    /// Bytes from the start of one channel's ring to the next.
    pub fn stride(&self) -> usize {
        (self.reader.ring.length * self.reader.ring.word) as usize
    }

    /// Whether all samples that were read so far are valid, and come from the flow's files rather than from a truncated
    /// one ([`Error::Truncated`]).
    ///
    /// A jumping writer of the C++ SDK is noticed only when it commits: see [`SampleReader::holds`].
    /// [`SampleReader::holds`].
    pub fn still_valid(&self) -> bool {
        self.reader.holds(self.first, self.first.saturating_add(self.len() as u64))
    }
}

/// Writes a flow of samples. Dropping the last writer of a flow, in all processes, deletes it.
#[derive(Debug)]
pub struct SampleWriter {
    flow: Flow,
    ring: Channels,
    batches: Mutex<Batches>,
    /// A jump was announced and not committed.
    is_jumping: AtomicBool,
}

impl SampleWriter {
    /// Number of channels.
    pub fn channels(&self) -> u32 {
        self.ring.channels
    }

    /// Maximum samples of one commit.
    pub fn max_write(&self) -> u64 {
        self.ring.length / 2
    }

    /// Opens the `count` samples before `index`, of every channel.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than [`max_write`](Self::max_write).
    pub fn open(&mut self, index: u64, count: u64) -> Result<OpenSamples<'_>, Error> {
        let (window, _) = self.begin(index, count)?;
        Ok(OpenSamples { writer: self, window, index, _one: PhantomData })
    }

    /// Opens samples as [`open`](Self::open) does. Returns the window of every channel, and the start of the first
    /// channel's ring. Part of the raw layer, for callers that keep track of open windows themselves.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn begin(&self, index: u64, count: u64) -> Result<(Window, *mut u8), Error> {
        let window = ring::window(index, count, self.ring.length).filter(|_| count <= self.max_write());
        let window = window.ok_or_else(|| {
            Error::argument(format!("{count} samples: one commit takes at most {}", self.max_write()))
        })?;
        let (words, jump) = (self.flow.words(), self.flow.jump());
        let is_jumping = self.is_jumping.load(Ordering::Relaxed);
        if protocol::open_samples(words, jump, (index, count), is_jumping) != is_jumping {
            self.is_jumping.store(true, Ordering::Relaxed);
        }
        Ok((window, self.ring.bytes().as_ptr()))
    }

    /// Writes bytes of the channels' rings, which follow each other: the raw layer, like [`begin`](Self::begin).
    ///
    /// # Errors
    /// [`Error::Argument`] if they do not fit into the rings; [`Error::Truncated`].
    pub fn write_rings(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        if self.ring.bytes().write(offset, from) {
            return self.intact();
        }
        Err(Error::argument(format!("{} bytes at {offset} are not inside the rings", from.len())))
    }

    /// Writes bytes of the channels' rings from memory that others may write meanwhile: the raw layer, like
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// Those of [`write_rings`](Self::write_rings).
    ///
    /// # Safety
    /// `from` is mapped for `len` bytes, outside of this flow's files.
    #[allow(unsafe_code)]
    pub unsafe fn write_rings_from(&self, offset: usize, from: *const u8, len: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        if unsafe { self.ring.bytes().write_from(offset, from, len) } {
            return self.intact();
        }
        Err(Error::argument(format!("{len} bytes at {offset} are not inside the rings")))
    }

    /// Bytes of a sample, and bytes from the start of one channel's ring to the next.
    pub fn strides(&self) -> (usize, usize) {
        (self.ring.word as usize, (self.ring.length * self.ring.word) as usize)
    }

    /// Publishes samples up to `index`: the raw layer, like [`begin`](Self::begin).
    ///
    /// # Errors
    /// [`Error::Truncated`]: data written to a truncated file is not published. If a file is truncated during this
    /// call, readers may have seen the head move.
    pub fn publish(&self, index: u64) -> Result<(), Error> {
        self.intact()?;
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let signal = batches.completes(index);
        let jumped = self.is_jumping.load(Ordering::Relaxed);
        let (words, jump) = (self.flow.words(), self.flow.jump());
        protocol::publish_samples(words, jump, index, (signal, jumped), time::now());
        if jumped {
            self.is_jumping.store(false, Ordering::Relaxed);
        }
        if signal {
            self.flow.wake();
        }
        self.intact()
    }
}

impl Writer for SampleWriter {
    fn open(flow: Flow, _: &Domain) -> Result<Self, Error> {
        let ring = Channels::open(&flow, true)?;
        let common = flow.info.config.common;
        let batches = Mutex::new(Batches::new(common.max_commit_batch, common.max_sync_batch));
        Ok(Self { flow, ring, batches, is_jumping: AtomicBool::new(false) })
    }

    fn shape(&self) -> Shape {
        let (rate, channels, word) = (self.rate(), self.ring.channels, self.ring.word as u32);
        let geometry = Geometry::Samples { rate, channels, word };
        Shape { format: self.flow.info.config.common.format, geometry }
    }

    fn flow(&self) -> &Flow {
        &self.flow
    }
}

impl Drop for SampleWriter {
    fn drop(&mut self) {
        self.flow.release();
    }
}

/// Samples that are being written. Dropped without a commit, they are not published.
pub struct OpenSamples<'a> {
    writer: &'a SampleWriter,
    window: Window,
    index: u64,
    _one: PhantomData<&'a mut ()>,
}

impl fmt::Debug for OpenSamples<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} samples before {}", self.len(), self.index)
    }
}

impl OpenSamples<'_> {
    /// Samples of each channel.
    pub fn len(&self) -> usize {
        (self.window.first + self.window.second) as usize
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies a channel's samples into the ring.
    ///
    /// # Errors
    /// [`Error::Argument`] for a channel that does not exist, another number of samples, or another type than the
    /// flow's; [`Error::Truncated`].
    pub fn write_channel<T: Sample>(&mut self, channel: u32, from: &[T]) -> Result<(), Error> {
        let ring = &self.writer.ring;
        ring.check::<T>()?;
        ring.fits(channel, self.window, from)?;
        let mut rest = from.as_bytes();
        for (offset, len) in ring.pieces(self.window, channel) {
            let (piece, tail) = rest.split_at(len);
            if !ring.bytes().write(offset, piece) {
                return Err(Error::argument("a piece outside the ring"));
            }
            rest = tail;
        }
        self.writer.intact()
    }

    /// Publishes the samples. Sleeping readers are woken when a batch is complete, according to the flow's hints.
    ///
    /// # Errors
    /// [`Error::Truncated`], as for [`SampleWriter::publish`].
    pub fn commit(self) -> Result<(), Error> {
        self.writer.publish(self.index)
    }
}
