//! Hitless merge: several initiators send one flow, each on its own path, and the first copy to arrive wins.
//!
//! Each path has a [`Target`] that receives into a flow of its own, and valid data is copied from there. So no
//! initiator ever writes into the merged flow: an initiator that dies in the middle of a grain, is late, or sends a
//! torn grain cannot affect its readers. The cost is one copy of each grain, and a ring for each path.
//!
//! Slices are copied as they arrive, from whichever path has more of the grain. Samples are published in order: samples
//! after a gap wait for the path that can fill it.

mod grains;
mod line;
mod samples;
mod trust;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mxl::{Domain, FlowDefinition, Geometry, Uuid};
use ofi::raw::CompletionQueue;
use ofi_core::fork::Born;

use crate::driven::sealed::Polled;
use crate::rest::WaitFor;
use crate::target::EVENTS;
use crate::{Beside, Error, Options, Provider, Received, Result, Target, beside};
use grains::Grains;
use samples::Samples;

/// Maximum paths of a merged flow.
const PATHS: usize = 8;
/// Maximum events of one path that a poll handles before the next path.
const TURN: usize = 16;

/// The address of one path of a merged flow.
#[derive(Clone, Copy, Debug)]
pub struct MergePath<'a> {
    /// The provider. Paths may have different ones.
    pub provider: Provider,
    /// The node, as for [`Target::open`].
    pub node: Option<&'a str>,
    /// The service, as for [`Target::open`].
    pub service: Option<&'a str>,
    /// [`TargetInfo::id`](crate::TargetInfo::id), for a path that must be found again after a restart.
    pub id: Option<u64>,
    /// Options of this path, which replace the merge's.
    pub options: Option<&'a Options>,
}

/// Statistics of a merge. For a flow of samples, `published`, `lost` and `invalid` count samples, and the others count
/// batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeStats {
    /// Grains that were published whole, invalid ones included.
    pub published: u64,
    /// Copies without new data, which were dropped. Each commit of slices is a copy of its own.
    pub duplicates: u64,
    /// Copies that arrived when their slot held another grain, and were dropped.
    pub late: u64,
    /// Copies with indices that were too far from all others and lacked confirmation. They were dropped.
    pub strange: u64,
    /// Grains that no path brought complete.
    pub lost: u64,
    /// Grains that were published as invalid.
    pub invalid: u64,
    /// Invalid grains that another path replaced by valid ones.
    pub mended: u64,
    /// Events that were dropped because the program did not read them.
    pub missed: u64,
}

/// The state of both kinds of flows.
struct Told {
    events: VecDeque<Received>,
    stats: MergeStats,
}

impl Told {
    fn tell(&mut self, event: Received) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.stats.missed += 1;
        }
        self.events.push_back(event);
    }

    fn lost(&mut self, first: u64, count: u64) {
        self.stats.lost = self.stats.lost.saturating_add(count);
        self.tell(Received::Lost { first, count });
    }
}

enum Ring {
    Grains(Box<Grains>),
    Samples(Box<Samples>),
}

/// Receives one flow by several paths.
pub struct Merge {
    /// The process that publishes.
    born: Born,
    /// `None` for a path whose endpoint broke. Its flow is deleted with it.
    paths: Vec<Option<Target>>,
    ring: Ring,
    told: Told,
}

impl Merge {
    /// Creates (or opens) a flow in `domain` that initiators may send by 2 to 8 paths, one initiator for each path.
    /// Each path also has a flow of its own in the same domain, with a random id and the label "LABEL (path N)". These
    /// flows are deleted with the merge; after a crash, any garbage collection of the domain removes them.
    ///
    /// # Errors
    /// [`Error::Argument`] for another number of paths; otherwise those of [`Target::open`].
    pub fn open(domain: &Domain, definition: &FlowDefinition, paths: &[MergePath<'_>]) -> Result<Self> {
        Self::open_with(domain, definition, paths, &Options::default())
    }

    /// Opens a merge like [`open`](Self::open), with options for the targets of all paths.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Error::Argument`] for options that a provider cannot fulfil.
    pub fn open_with(
        domain: &Domain,
        definition: &FlowDefinition,
        paths: &[MergePath<'_>],
        options: &Options,
    ) -> Result<Self> {
        if !(2..=PATHS).contains(&paths.len()) {
            return Err(Error::Argument(format!("{} paths; a merge has 2 to {PATHS}", paths.len())));
        }
        let mut ring = match definition.geometry() {
            Geometry::Grains { .. } => {
                Ring::Grains(Box::new(Grains::open(domain, definition, &options.batches)?))
            }
            Geometry::Samples { .. } => {
                Ring::Samples(Box::new(Samples::open(domain, definition, &options.batches)?))
            }
        };
        let open = |(at, path): (usize, &MergePath<'_>)| {
            let own = FlowDefinition {
                id: Uuid::new_v4(),
                label: format!("{} (path {at})", definition.label),
                ..definition.clone()
            };
            let place = (path.node, path.service);
            let options = path.options.unwrap_or(options);
            let target = Target::open_with(domain, &own, path.provider, place, path.id, options)?;
            match &mut ring {
                Ring::Grains(ring) => ring.paths.push(domain.read_grains(own.id)?),
                Ring::Samples(ring) => ring.paths.push(domain.read_samples(own.id)?),
            }
            Ok(Some(target))
        };
        let paths = paths.iter().enumerate().map(open).collect::<Result<_>>()?;
        let told = Told { events: VecDeque::new(), stats: MergeStats::default() };
        Ok(Self { born: Born::here(), paths, ring, told })
    }

    /// The target of a path, for its [`info`](Target::info) and [`stats`](Target::stats). `None` if there is no such
    /// path, or its endpoint broke.
    pub fn path(&self, at: usize) -> Option<&Target> {
        self.paths.get(at)?.as_ref()
    }

    /// The number of paths, as opened.
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// The merged flow.
    pub fn flow(&self) -> Uuid {
        match &self.ring {
            Ring::Grains(ring) => ring.flow(),
            Ring::Samples(ring) => ring.flow(),
        }
    }

    /// The statistics.
    pub fn stats(&self) -> MergeStats {
        self.told.stats
    }

    /// Publishes everything that has arrived on all paths, and returns the oldest event not returned before: slices of
    /// grains, in the order of their arrival, samples, and losses, once it is too late for a grain. Never blocks.
    ///
    /// # Errors
    /// [`Error::Stack`] when the endpoint of the last path broke; [`Error::Flow`] when the merged flow cannot be
    /// written.
    pub fn poll(&mut self) -> Result<Option<Received>> {
        self.turn()?;
        Ok(self.told.events.pop_front())
    }

    fn turn(&mut self) -> Result<bool> {
        // A forked child has no paths, but it has the ring.
        self.born.check().map_err(Error::stack("drive the paths"))?;
        let mut was_busy = false;
        for at in 0..self.paths.len() {
            for _ in 0..TURN {
                let Some(target) = &mut self.paths[at] else { break };
                match target.poll() {
                    Ok(Some(received)) => {
                        was_busy = true;
                        self.arrived(at, received)?;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(target: "mxl::fabrics", path = at, %error, "a path of a merged flow broke");
                        self.paths[at] = None;
                        if self.paths.iter().all(Option::is_none) {
                            return Err(error);
                        }
                        // Data that waited for this path can be published now.
                        was_busy = true;
                        self.arrived(at, Received::Disconnected)?;
                    }
                }
            }
        }
        if self.paths.iter().all(Option::is_none) {
            return Err(Error::Argument("all paths of the merged flow broke: open it again".into()));
        }
        Ok(was_busy)
    }

    /// Does the same as [`poll`](Self::poll), but sleeps until there is an event, at most until the timeout expires.
    /// Initiators must be driven meanwhile: a thread that drives them too calls [`read_beside`](Self::read_beside).
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        self.read_beside(timeout, &mut ())
    }

    /// Does the same as [`read`](Self::read), and drives other ends meanwhile, such as an initiator of this thread.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and of the other ends.
    pub fn read_beside(&mut self, timeout: Duration, others: &mut dyn Beside) -> Result<Option<Received>> {
        beside::wait(self, others, timeout, |this| !this.told.events.is_empty())?;
        Ok(self.told.events.pop_front())
    }

    /// The paths that have an initiator, a bit for each.
    fn live(&self) -> u8 {
        let is_live = |target: &Option<Target>| target.as_ref().is_some_and(Target::is_connected);
        (0..).zip(&self.paths).fold(0, |live, (at, target)| live | u8::from(is_live(target)) << at)
    }

    /// Handles an event of a path.
    fn arrived(&mut self, path: usize, received: Received) -> Result<()> {
        // An initiator that has disconnected meanwhile was live when its data arrived.
        let spoken = u8::from(!matches!(received, Received::Disconnected)) << path;
        let live = self.live() | spoken;
        match (&mut self.ring, received) {
            (Ring::Grains(ring), Received::Grain { index, slices, invalid }) => {
                ring.arrived(window::Copy { path, index, slices, invalid }, live, &mut self.told)
            }
            (Ring::Samples(ring), Received::Samples { index, count }) => {
                let part = line::SampleRange { start: index.saturating_sub(count), end: index };
                ring.arrived(path, part, live, &mut self.told)
            }
            // No path is left that could fill a gap.
            (Ring::Samples(ring), Received::Disconnected) => ring.advance(live, &mut self.told),
            _ => Ok(()),
        }
    }
}

impl Drop for Merge {
    /// Notifies all initiators before the first path closes, so that the paths wait for them at the same time.
    fn drop(&mut self) {
        self.paths.iter_mut().flatten().for_each(Target::leave);
    }
}

impl Polled for Merge {
    type Event = Received;

    fn turn(&mut self) -> Result<bool> {
        self.turn()
    }

    fn take(&mut self) -> Option<Received> {
        self.told.events.pop_front()
    }

    fn has_room(&self) -> bool {
        self.told.events.len() < EVENTS / 2
    }

    fn rest(&self) -> WaitFor {
        self.paths.iter().flatten().map(Polled::rest).fold(WaitFor::Announced, WaitFor::or)
    }

    fn queues(&self) -> Vec<Arc<dyn CompletionQueue>> {
        self.paths.iter().flatten().flat_map(Polled::queues).collect()
    }
}
