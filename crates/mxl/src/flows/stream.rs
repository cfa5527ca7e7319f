//! Flows as streams, for programs with an executor (feature `stream`).

mod sleeper;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::{FusedStream, Stream};

use super::grains::{GrainInfo, GrainReader};
use super::samples::SampleReader;
use super::wait::{Looks, SLICE, Wait};
use crate::Error;
use sleeper::SleeperEntry;

/// The whole grains of a flow, each index once. [`GrainReader::stream`] creates it.
///
/// An item announces a grain; [`GrainReader::read`] with its index returns the payload. A missed grain is an error,
/// after which the stream continues with the oldest available grain. The stream ends after [`Error::FlowInvalid`],
/// [`Error::Truncated`] or a system error.
#[derive(Debug)]
pub struct Grains {
    reader: Arc<GrainReader>,
    next: u64,
    place: SleeperEntry,
    is_over: bool,
}

impl GrainReader {
    /// A stream of the grains from index `first` on.
    pub fn stream(self: &Arc<Self>, first: u64) -> Grains {
        Grains { reader: self.clone(), next: first, place: SleeperEntry::default(), is_over: false }
    }
}

impl Grains {
    /// The reader, for reading payloads.
    pub fn reader(&self) -> &Arc<GrainReader> {
        &self.reader
    }
}

impl Stream for Grains {
    type Item = Result<GrainInfo, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        // The counter is read before the check, so a write in between ends the wait at once.
        let seen = this.reader.watch().seen();
        let item = match this.reader.read(this.next, Wait::Not) {
            Ok(grain) => {
                this.next = this.next.saturating_add(1);
                Ok(grain.info())
            }
            Err(Error::TooEarly { .. }) => {
                match this.place.wait(this.reader.clone(), seen, SLICE, context.waker()) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => Err(error),
                }
            }
            Err(error @ Error::Skipped { .. }) => {
                this.next = this.next.saturating_add(1);
                return Poll::Ready(Some(Err(error)));
            }
            Err(Error::TooLate { index, oldest }) => {
                this.next = oldest.max(this.next.saturating_add(1));
                return Poll::Ready(Some(Err(Error::TooLate { index, oldest })));
            }
            Err(error) => Err(error),
        };
        if item.is_err() {
            this.is_over = true;
            this.place = SleeperEntry::default(); // leaves its group
        }
        Poll::Ready(Some(item))
    }
}

impl FusedStream for Grains {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

/// Samples of every channel: the `count` samples before `index`, as for [`SampleReader::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The index after the last sample.
    pub index: u64,
    /// Number of samples.
    pub count: u64,
}

/// The samples of a flow in batches of one size, each sample once. [`SampleReader::stream`] creates it.
///
/// An item announces a batch; [`SampleReader::read`] with its index and count returns the samples. Missed samples are
/// an error, after which the stream continues with the oldest available batch. Batches begin at the first index plus a
/// multiple of their size. The stream ends after [`Error::FlowInvalid`], [`Error::Truncated`] or a system error.
///
/// A writer signals batches of its own size (`BatchHints`, 10 ms by default). The stream polls for smaller ones when
/// they are due by the flow's rate: it announces them half a millisecond late or, if the writer is later than that, at
/// most twice as late as the writer.
#[derive(Debug)]
pub struct Batches {
    reader: Arc<SampleReader>,
    next: Batch,
    looks: Looks,
    place: SleeperEntry,
    is_over: bool,
}

impl SampleReader {
    /// A stream of the samples from `first` on, `count` at a time.
    ///
    /// # Errors
    /// [`Error::Argument`] for a `count` of 0 or more than [`max_read`](Self::max_read).
    pub fn stream(self: &Arc<Self>, first: u64, count: u64) -> Result<Batches, Error> {
        if !(1..=self.max_read()).contains(&count) {
            return Err(Error::argument(format!("batches of {count} samples; 1 to {}", self.max_read())));
        }
        let next = Batch { index: first.saturating_add(count), count };
        Ok(Batches {
            reader: self.clone(),
            next,
            looks: Looks::new(),
            place: SleeperEntry::default(),
            is_over: false,
        })
    }
}

impl Batches {
    /// The reader, for reading samples.
    pub fn reader(&self) -> &Arc<SampleReader> {
        &self.reader
    }
}

impl Stream for Batches {
    type Item = Result<Batch, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        // The counter is read before the check, as with grains.
        let seen = this.reader.watch().seen();
        let Batch { index, count } = this.next;
        let item = match this.reader.read(index, count, Wait::Not) {
            Ok(_) => {
                this.next.index = index.saturating_add(count);
                Ok(Batch { index, count })
            }
            Err(Error::TooEarly { .. }) => {
                let limit = this.reader.look_after(&mut this.looks, index);
                match this.place.wait(this.reader.clone(), seen, limit, context.waker()) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => Err(error),
                }
            }
            Err(Error::TooLate { oldest, .. }) => {
                // The first batch that begins at or after the oldest sample.
                let missed = oldest.saturating_sub(index.saturating_sub(count)).div_ceil(count).max(1);
                this.next.index = index.saturating_add(missed.saturating_mul(count));
                return Poll::Ready(Some(Err(Error::TooLate { index, oldest })));
            }
            Err(error) => Err(error),
        };
        if item.is_err() {
            this.is_over = true;
            this.place = SleeperEntry::default(); // leaves its group
        }
        Poll::Ready(Some(item))
    }
}

impl FusedStream for Batches {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}
