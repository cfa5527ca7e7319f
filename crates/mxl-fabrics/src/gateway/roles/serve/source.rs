//! A flow that is sent: a reader that follows it, and an initiator with all of its targets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mxl::{Domain, Geometry, GrainReader, SampleReader, Uuid, Wait, Watch};

use crate::gateway::roles::web::Counts;
use crate::{Driven, Engine, Error, Initiator, Options, Provider, Result, lateness, program};

/// Batches of one turn, so that one flow cannot keep the others waiting.
const BATCHES: usize = 32;

/// How initiators are opened.
#[derive(Debug)]
pub struct Way {
    /// Their provider.
    pub provider: Provider,
    /// Options of all of them.
    pub options: Options,
    /// The thread that drives them.
    pub engine: Engine,
}

/// What was sent of a flow, in grains or samples. It outlives the initiators, which come and go with their targets.
#[derive(Debug, Default)]
pub struct Tally(Mutex<Counts>);

impl Tally {
    /// Changes the counts as a whole: whoever reads them sees all of a change, or nothing.
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn sent(&self, count: u64, bytes: u64, is_late: bool) {
        let late = if is_late { count } else { 0 };
        let sent = Counts { forwarded: count, late, bytes, ..Counts::default() };
        self.count(|counts| *counts = counts.plus(sent));
    }

    fn lost(&self, count: u64) {
        self.count(|counts| counts.lost = counts.lost.saturating_add(count));
    }

    /// Counts a connection of a target after its first one.
    pub fn reconnected(&self) {
        self.count(|counts| counts.reconnections += 1);
    }

    /// All of it at this moment.
    pub fn counts(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow that is sent.
pub struct Source {
    reader: Reader,
    geometry: Geometry,
    /// What was sent of it, by this value and by others.
    pub tally: Arc<Tally>,
    /// The targets.
    pub initiator: Driven<Initiator>,
    position: Mutex<Position>,
    is_broken: AtomicBool,
}

enum Reader {
    Grains(GrainReader),
    /// With the most samples of one batch.
    Samples(SampleReader, u64),
}

/// What is sent next.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Grains: the index. Samples: the index after the last one that was sent.
    index: u64,
    /// Slices of that grain that were sent.
    slices: u16,
}

/// The outcome of one attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sent,
    Nothing,
    /// The writer has overwritten it, or never wrote it.
    Gone,
}

impl Source {
    /// Opens a flow for sending, from its newest data on.
    ///
    /// # Errors
    /// Those of [`Initiator::open_with`].
    pub fn open(domain: &Domain, id: Uuid, node: Option<&str>, way: &Way, tally: Arc<Tally>) -> Result<Self> {
        // Before the initiator: if the flow is created again in between, the reader has the older one, and tells.
        let geometry = domain.definition(id)?.geometry();
        let (reader, index) = match geometry {
            Geometry::Grains { .. } => {
                let reader = domain.read_grains(id)?;
                let index = reader.head().max(1);
                (Reader::Grains(reader), index)
            }
            Geometry::Samples { rate, .. } => {
                let reader = domain.read_samples(id)?;
                let (most, index) = (program::batch(rate).min(reader.max_read()), reader.head());
                (Reader::Samples(reader, most), index)
            }
        };
        let initiator = Initiator::open_with(domain, id, way.provider, (node, None), &way.options)?;
        let initiator = Driven::start_on(&way.engine, initiator)?;
        let position = Mutex::new(Position { index, slices: 0 });
        Ok(Self { reader, geometry, tally, initiator, position, is_broken: AtomicBool::new(false) })
    }

    /// Whether the flow is still the one with its name, and can be sent.
    pub fn is_current(&self) -> bool {
        let is_current = match &self.reader {
            Reader::Grains(reader) => reader.is_current(),
            Reader::Samples(reader, _) => reader.is_current(),
        };
        is_current && !self.is_broken.load(Ordering::Relaxed)
    }

    /// The flow's state, to sleep until it changes.
    pub fn watch(&self) -> Watch<'_> {
        match &self.reader {
            Reader::Grains(reader) => reader.watch(),
            Reader::Samples(reader, _) => reader.watch(),
        }
    }

    /// Sends what is there. Returns whether there may be more.
    pub fn send(&self) -> bool {
        if self.is_broken.load(Ordering::Relaxed) {
            return false;
        }
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..BATCHES {
            match self.send_next(&mut position) {
                Ok(Outcome::Sent | Outcome::Gone) => {}
                Ok(Outcome::Nothing) => return false,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a flow can no longer be sent");
                    self.is_broken.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
        true
    }

    fn send_next(&self, position: &mut Position) -> Result<Outcome> {
        match &self.reader {
            Reader::Grains(reader) => self.send_slices(reader, position),
            Reader::Samples(reader, most) => self.send_samples(reader, *most, position),
        }
    }

    /// Sends the slices that have been added to a grain.
    fn send_slices(&self, reader: &GrainReader, position: &mut Position) -> Result<Outcome> {
        let Position { index, slices } = *position;
        let wanted = slices.saturating_add(1);
        let grain = reader.read_slices(index, wanted, Wait::Not).map(|grain| grain.info());
        let outcome = match grain {
            Ok(grain) if grain.is_invalid() || grain.valid_slices >= grain.total_slices => {
                let start = if grain.is_invalid() { 0 } else { slices };
                let sent =
                    self.initiator.with(|initiator| initiator.send_slices(index, start, grain.total_slices));
                if is_done(sent)? {
                    let Geometry::Grains { payload, .. } = self.geometry else { return Ok(Outcome::Sent) };
                    self.tally.sent(1, payload.into(), lateness::is_late(&self.geometry, index));
                    *position = Position { index: index + 1, slices: 0 };
                    Outcome::Sent
                } else {
                    Outcome::Gone
                }
            }
            Ok(grain) => {
                let end = grain.valid_slices;
                let sent = self.initiator.with(|initiator| initiator.send_slices(index, slices, end));
                if is_done(sent)? {
                    position.slices = end;
                    Outcome::Sent
                } else {
                    Outcome::Gone
                }
            }
            Err(mxl::Error::TooEarly { .. }) => {
                let head = reader.head();
                if head.saturating_add(1) < index {
                    // The writer's clock was set back.
                    *position = Position { index: head.max(1), slices: 0 };
                    return Ok(Outcome::Sent);
                }
                // Its writer has begun two others since: this one remains as it is.
                if head > index.saturating_add(1) { Outcome::Gone } else { Outcome::Nothing }
            }
            Err(mxl::Error::TooLate { .. } | mxl::Error::Skipped { .. }) => Outcome::Gone,
            Err(error) => return Err(error.into()),
        };
        if outcome == Outcome::Gone {
            // Past what the writer may overwrite at any moment.
            let oldest = reader.head().saturating_sub(reader.grains() / 2);
            *position = Position { index: (index + 1).max(oldest), slices: 0 };
            self.tally.lost(position.index - index);
        }
        Ok(outcome)
    }

    fn send_samples(&self, reader: &SampleReader, most: u64, position: &mut Position) -> Result<Outcome> {
        let (head, index) = (reader.head(), position.index);
        // Also when the writer's clock was set back.
        let is_far = head < index || head - index > reader.max_read();
        if is_far {
            self.tally.lost(head.saturating_sub(index));
            position.index = head;
            return Ok(Outcome::Nothing);
        }
        let count = (head - index).min(most);
        if count == 0 {
            return Ok(Outcome::Nothing);
        }
        let sent = self.initiator.with(|initiator| initiator.send_samples(index + count, count));
        if is_done(sent)? {
            let Geometry::Samples { channels, word, .. } = self.geometry else { return Ok(Outcome::Sent) };
            let bytes = count.saturating_mul(u64::from(channels) * u64::from(word));
            self.tally.sent(count, bytes, lateness::is_late(&self.geometry, index + count));
            position.index = index + count;
        } else {
            self.tally.lost(head - index);
            position.index = head;
        }
        Ok(Outcome::Sent)
    }
}

/// Whether data was still there when it was sent.
fn is_done(sent: Result<()>) -> Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(Error::Flow(
            mxl::Error::TooLate { .. } | mxl::Error::TooEarly { .. } | mxl::Error::Skipped { .. },
        )) => Ok(false),
        Err(error) => Err(error),
    }
}
