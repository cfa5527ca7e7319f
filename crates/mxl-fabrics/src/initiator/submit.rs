//! Submission: checks what the program sends, and queues it for each target.

use std::time::Instant;

use mxl::{SampleReader, Wait};

use super::peer::{Job, Payload, PeerState, What};
use super::{Initiator, Source};
use crate::{Error, Result, shape};

/// Maximum transfers that wait for one target. Older ones are dropped.
const QUEUED: usize = 1024;

impl Initiator {
    /// Sends slices `start..end` of a grain to all targets; `0..0` only announces that the grain is invalid. It never
    /// waits. Transfers without room are queued, and following slices are merged with queued ones into one transfer. A
    /// target that is not connected loses the transfer.
    ///
    /// # Errors
    /// [`Error::Flow`] if the slices are not available; [`Error::Argument`] for a flow of samples, and for an empty
    /// range other than `0..0`.
    pub fn send_slices(&mut self, index: u64, start: u16, end: u16) -> Result<()> {
        self.send_slices_from(index, start, end, true)
    }

    /// Sends slices like [`send_slices`](Self::send_slices), but takes them from the slot as they are, whether or not
    /// the source's writer has published them: the caller vouches for them. A grain that is flagged invalid is sent
    /// with its flag.
    ///
    /// # Errors
    /// [`Error::Flow`] if the slot does not hold the grain; otherwise those of [`send_slices`](Self::send_slices).
    pub fn send_unpublished_slices(&mut self, index: u64, start: u16, end: u16) -> Result<()> {
        self.send_slices_from(index, start, end, false)
    }

    fn send_slices_from(&mut self, index: u64, start: u16, end: u16, published: bool) -> Result<()> {
        let Source::Grains(reader) = &self.source else {
            return Err(Error::Argument("the flow has samples, not grains".into()));
        };
        if start > end || (start == end && end != 0) {
            return Err(Error::Argument(format!("slices {start} to {end} are an invalid range")));
        }
        let grain = reader.read_slices(index, if published { end } else { 0 }, Wait::Not)?.info();
        let end = end.min(grain.total_slices);
        if start > 0 && start >= end {
            return Err(Error::Argument(format!("slice {start}: a grain has only {}", grain.total_slices)));
        }
        let payload = match grain.is_invalid() {
            _ if end == 0 => Payload::Left,
            true if published => Payload::Left,
            true => Payload::Flagged,
            false => Payload::Valid,
        };
        let what = What::Grain { start, end, payload };
        let is_part = start > 0 || end < grain.total_slices;
        self.queue(Job { index, what, posted: 0, number: None, since: Instant::now() }, is_part);
        Ok(())
    }

    /// Sends a whole grain to all targets.
    ///
    /// # Errors
    /// The errors of [`send_slices`](Self::send_slices).
    pub fn send(&mut self, index: u64) -> Result<()> {
        self.send_slices(index, 0, u16::MAX)
    }

    /// Sends the `count` samples before `index` to all targets, as [`send_slices`](Self::send_slices) does.
    ///
    /// # Errors
    /// [`Error::Flow`] if they are not available; [`Error::Argument`] for a flow of grains, no samples or too many, or
    /// more channels than one batch can carry.
    pub fn send_samples(&mut self, index: u64, count: u64) -> Result<()> {
        let reader = self.check_samples(count)?;
        if count > index {
            return Err(Error::Argument(format!("{count} samples before index {index}")));
        }
        reader.read(index, count, Wait::Not)?;
        let what = What::Samples { count, published: true };
        self.queue(Job { index, what, posted: 0, number: None, since: Instant::now() }, false);
        Ok(())
    }

    /// Sends samples like [`send_samples`](Self::send_samples), but takes them from the rings as they are, whether or
    /// not the source's writer has published them: the caller vouches for them.
    ///
    /// # Errors
    /// Those of [`send_samples`](Self::send_samples).
    pub fn send_unpublished_samples(&mut self, index: u64, count: u64) -> Result<()> {
        self.check_samples(count)?;
        let what = What::Samples { count, published: false };
        self.queue(Job { index, what, posted: 0, number: None, since: Instant::now() }, false);
        Ok(())
    }

    /// The source, if a batch may have this many samples.
    fn check_samples(&self, count: u64) -> Result<&SampleReader> {
        let Source::Samples(reader) = &self.source else {
            return Err(Error::Argument("the flow has grains, not samples".into()));
        };
        let most = reader.max_read().min(u16::MAX.into());
        if count == 0 || count > most {
            return Err(Error::Argument(format!("{count} samples; a batch has 1 to {most}")));
        }
        // In the worst case a channel's window has three pieces.
        let channels = reader.channels();
        let (spans, bytes) = (channels as usize * 3, u64::from(channels) * count * reader.word());
        let limits = self.link.write_limits();
        let parts = shape::most_parts(spans, bytes, limits);
        if self.link.writes && parts > shape::PARTS {
            return Err(Error::Argument(format!(
                "{count} samples of {channels} channels take up to {parts} writes of {} bytes, more than {}: send \
                 fewer at once",
                limits.bytes,
                shape::PARTS
            )));
        }
        Ok(reader)
    }

    /// `is_part`: a part of a grain, of which each target needs the earlier slices too.
    fn queue(&mut self, job: Job, is_part: bool) {
        for at in 0..self.peers.len() {
            let peer = &mut self.peers[at];
            let is_connected = peer.state == PeerState::Connected;
            let job = if is_part && is_connected { peer.begun.with_earlier(job) } else { job };
            if peer.extend_last(&job) {
                continue;
            }
            let gone = match peer.state {
                PeerState::Connected if peer.jobs.len() < QUEUED => {
                    peer.jobs.push_back(job);
                    continue;
                }
                // The newest transfer matters most. The front may be posted in part.
                PeerState::Connected => {
                    let oldest = peer.jobs.remove(1).map_or(job.index, |oldest| oldest.index);
                    peer.jobs.push_back(job);
                    peer.begun.forget(oldest);
                    oldest
                }
                _ => job.index,
            };
            self.lose(at, gone);
        }
        self.pump_all();
        self.queue_foreign(job, is_part, QUEUED);
    }
}
