//! The merged flow of grains: slices are copied into it from the flows of the paths.

use mxl::{BatchHints, Domain, FlowDefinition, Geometry, GrainReader, GrainWriter, Uuid, Wait};

use super::Told;
use super::window::{Copy, Verdict, Window};
use crate::{Received, Result, shape};

/// The rings, and their state.
pub(super) struct Grains {
    /// A reader of each path's flow.
    pub paths: Vec<GrainReader>,
    writer: GrainWriter,
    geometry: Geometry,
    slices: u16,
    payload: Vec<u8>,
    window: Window,
}

impl Grains {
    pub fn open(domain: &Domain, definition: &FlowDefinition, batches: &BatchHints) -> Result<Self> {
        let writer = domain.create_grains(definition, batches)?.writer;
        let geometry = definition.geometry();
        let (payload, slices) = match geometry {
            Geometry::Grains { payload, slices, .. } => (payload as usize, slices),
            Geometry::Samples { .. } => (0, 0),
        };
        // The oldest slots do not count: the next grains take them first.
        let window = Window::new(writer.grains().saturating_sub(2).max(1), slices);
        Ok(Self { paths: Vec::new(), writer, geometry, slices, payload: vec![0; payload], window })
    }

    pub fn flow(&self) -> Uuid {
        self.writer.id()
    }

    /// Handles a path's copy of a grain: its slices, or the report that the grain is invalid.
    pub fn arrived(&mut self, copy: Copy, live: u8, told: &mut Told) -> Result<()> {
        let now = mxl::time::current_index(self.writer.rate());
        match self.window.judge(copy, now, live) {
            Verdict::New { from } => {
                self.publish(copy, from, now, told)?;
            }
            Verdict::Better => {
                if self.publish(copy, 0, now, told)? {
                    told.stats.mended += 1;
                    // The grain was counted when it was published as invalid.
                    told.stats.published -= 1;
                }
            }
            Verdict::Invalid => self.publish_invalid(copy, now, told)?,
            Verdict::Held => {}
            Verdict::Duplicate => told.stats.duplicates += 1,
            Verdict::Late => told.stats.late += 1,
            Verdict::Strange => told.stats.strange += 1,
        }
        while let Some(hopeless) = self.window.hopeless() {
            self.publish_invalid(hopeless, now, told)?;
        }
        Ok(())
    }

    /// Copies slices from the first missing one. Returns whether the path still had them: its target may be a ring
    /// ahead already, after a long time without a poll.
    fn publish(&mut self, copy: Copy, from: u16, now: Option<u64>, told: &mut Told) -> Result<bool> {
        let Copy { path, index, slices, .. } = copy;
        let spans = shape::slices(&self.geometry, from, slices);
        let copied = self.paths[path].read_slices(index, slices, Wait::Not).and_then(|grain| {
            for span in &spans {
                let (start, len) = (span.from as usize, span.len as usize);
                grain.read_into(start, &mut self.payload[start..start + len])?;
            }
            Ok(grain.still_valid() && grain.info().valid_slices >= slices)
        });
        if !matches!(copied, Ok(true)) {
            told.stats.late += 1;
            return Ok(false);
        }
        let mut grain = self.writer.open(index)?;
        for span in &spans {
            let (start, len) = (span.from as usize, span.len as usize);
            grain.write(start, &self.payload[start..start + len])?;
        }
        if slices == self.slices {
            grain.commit()?;
            told.stats.published += 1;
        } else {
            grain.commit_slices(slices)?;
            drop(grain);
        }
        self.took(copy, now, told);
        Ok(true)
    }

    fn publish_invalid(&mut self, copy: Copy, now: Option<u64>, told: &mut Told) -> Result<()> {
        self.writer.open(copy.index)?.commit_invalid()?;
        told.stats.published += 1;
        told.stats.invalid += 1;
        self.took(Copy { slices: self.slices, ..copy }, now, told);
        Ok(())
    }

    fn took(&mut self, copy: Copy, now: Option<u64>, told: &mut Told) {
        for (first, count) in self.window.take(copy, now) {
            told.lost(first, count);
        }
        let Copy { index, slices, invalid, .. } = copy;
        told.tell(Received::Grain { index, slices, invalid });
    }
}
