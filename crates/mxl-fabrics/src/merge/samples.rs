//! The merged flow of samples: copied into it from the flows of the paths, in order and without gaps.

use mxl::{BatchHints, Domain, Error, FlowDefinition, Sample, SampleReader, SampleWriter, Uuid, Wait};

use super::Told;
use super::line::{Line, SampleRange, Step, Worth};
use crate::target::silence;
use crate::{Received, Result};

/// The rings, and their state.
pub(super) struct Samples {
    /// A reader of each path's flow.
    pub paths: Vec<SampleReader>,
    writer: SampleWriter,
    line: Line,
}

impl Samples {
    pub fn open(domain: &Domain, definition: &FlowDefinition, batches: &BatchHints) -> Result<Self> {
        let writer = domain.create_samples(definition, batches)?.writer;
        let line = Line::new(writer.max_write());
        Ok(Self { paths: Vec::new(), writer, line })
    }

    pub fn flow(&self) -> Uuid {
        self.writer.id()
    }

    /// Handles samples that a path has received.
    pub fn arrived(&mut self, path: usize, part: SampleRange, live: u8, told: &mut Told) -> Result<()> {
        let now = mxl::time::current_index(self.writer.rate());
        match self.line.arrived(path, part, now, live) {
            Worth::New => {}
            Worth::Anew(gap) => {
                // The whole ring: its old content belongs to other indices.
                let half = self.writer.max_write();
                silence(&mut self.writer, part.start, half)?;
                silence(&mut self.writer, part.start.saturating_sub(half), half)?;
                self.writer.publish(part.start)?;
                if gap.start < gap.end {
                    told.lost(gap.start, gap.end - gap.start);
                }
            }
            Worth::Duplicate => told.stats.duplicates += 1,
            Worth::Strange => told.stats.strange += 1,
        }
        self.advance(live, told)
    }

    /// Publishes all samples up to the next gap.
    pub fn advance(&mut self, live: u8, told: &mut Told) -> Result<()> {
        let most = self.writer.max_write();
        loop {
            match self.line.step(most, live) {
                Step::Wait => return Ok(()),
                Step::Copy { path, part } => {
                    if self.copy(path, part)? {
                        self.line.done(part.end);
                        let count = part.end - part.start;
                        told.stats.published += count;
                        told.tell(Received::Samples { index: part.end, count });
                    } else {
                        // After a long time without a poll, the path's ring has overwritten them.
                        told.stats.late += 1;
                        self.line.gone(path, part.end);
                    }
                }
                Step::Lost(SampleRange { start, end }) => {
                    let count = end - start;
                    silence(&mut self.writer, end, count.min(most))?;
                    self.writer.publish(end)?;
                    self.line.done(end);
                    told.lost(start, count);
                }
            }
        }
    }

    /// Copies samples from a path's flow. Returns whether they were still there.
    fn copy(&mut self, path: usize, part: SampleRange) -> Result<bool> {
        let Self { paths, writer, .. } = self;
        let copied = match writer.strides() {
            (4, _) => copy_as::<f32>(&paths[path], writer, part),
            _ => copy_as::<f64>(&paths[path], writer, part),
        };
        Ok(copied?)
    }
}

/// Copies samples of each channel. Errors are those of the merged flow: a path's flow that cannot be read
/// gives `false`.
fn copy_as<T: Sample>(from: &SampleReader, to: &mut SampleWriter, part: SampleRange) -> Result<bool, Error> {
    let (channels, count) = (to.channels(), part.end - part.start);
    let mut buffer = vec![T::default(); count as usize];
    let Ok(there) = from.read(part.end, count, Wait::Not) else { return Ok(false) };
    let mut open = to.open(part.end, count)?;
    for channel in 0..channels {
        if there.read_channel(channel, &mut buffer).is_err() {
            return Ok(false);
        }
        open.write_channel(channel, &buffer)?;
    }
    // Uncommitted samples are written again before they are committed.
    if !there.still_valid() {
        return Ok(false);
    }
    open.commit()?;
    Ok(true)
}
