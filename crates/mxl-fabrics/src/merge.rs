//! Hitless merge: several initiators send one flow, each by a path of its own, and the first whole copy of a grain
//! wins.
//!
//! Each path has a [`Target`] that receives into a flow of its own, and complete grains are copied from there. So no
//! initiator ever writes into the merged flow: an initiator that dies in the middle of a grain, is late, or sends a
//! torn grain cannot affect its readers. That costs one copy of each grain, and a ring for each path.

mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, Geometry, GrainReader, GrainWriter, Uuid, Wait};
use ofi::raw::CompletionQueue;

use crate::driven::sealed::Polled;
use crate::target::{EVENTS, NAP};
use crate::{Error, Provider, Received, Result, Target};
use window::{Verdict, Window};

/// Paths of a merged flow, at most.
const PATHS: usize = 8;
/// Events of one path that a poll takes before it looks at the next path.
const TURN: usize = 16;

/// The address of one path of a merged flow.
#[derive(Clone, Copy, Debug)]
pub struct MergePath<'a> {
    /// Paths may have different ones.
    pub provider: Provider,
    /// As at [`Target::open`].
    pub node: Option<&'a str>,
    /// As at [`Target::open`].
    pub service: Option<&'a str>,
    /// [`TargetInfo::id`](crate::TargetInfo::id), for a path that is to be found again after a restart.
    pub id: Option<u64>,
}

/// Statistics of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeStats {
    /// Grains that were published, invalid ones included.
    pub published: u64,
    /// Copies that came after another one of their grain, and were dropped.
    pub duplicates: u64,
    /// Copies that came when their slot was another grain's, and were dropped.
    pub late: u64,
    /// Grains that came by no path.
    pub lost: u64,
    /// Grains whose first copy was invalid.
    pub invalid: u64,
    /// Invalid grains that another path replaced by valid ones.
    pub mended: u64,
    /// Events that were dropped because the program did not fetch them.
    pub missed: u64,
}

/// A path. Its flow is deleted with it.
struct Path {
    target: Target,
    reader: GrainReader,
}

/// Receives one flow of grains by several paths.
pub struct Merge {
    /// `None` for one whose endpoint broke.
    paths: Vec<Option<Path>>,
    writer: GrainWriter,
    slices: u16,
    payload: Vec<u8>,
    window: Window,
    events: VecDeque<Received>,
    stats: MergeStats,
}

impl Merge {
    /// Makes (or opens) a flow in `domain` that initiators may send by 2 to 8 paths, one initiator for each path. Each
    /// path has a flow in the same domain besides, of a random id and of the label "LABEL (path N)". They are deleted
    /// with the merge; after a crash they are garbage, which any garbage collection of the domain removes.
    ///
    /// # Errors
    /// [`Error::Argument`] for another number of paths, and for a flow of samples, which are not merged; otherwise as
    /// [`Target::open`].
    pub fn open(domain: &Domain, definition: &FlowDefinition, paths: &[MergePath<'_>]) -> Result<Self> {
        if !(2..=PATHS).contains(&paths.len()) {
            return Err(Error::Argument(format!("{} paths; a merge has 2 to {PATHS}", paths.len())));
        }
        let Geometry::Grains { payload, slices, .. } = definition.geometry() else {
            let id = definition.id;
            return Err(Error::Argument(format!("flow {id} has samples; only grains can be merged")));
        };
        let writer = domain.create_grains(definition, &BatchHints::default())?.writer;
        let open = |(at, path): (usize, &MergePath<'_>)| {
            let own = FlowDefinition {
                id: Uuid::new_v4(),
                label: format!("{} (path {at})", definition.label),
                ..definition.clone()
            };
            let target = Target::open(domain, &own, path.provider, (path.node, path.service), path.id)?;
            Ok(Some(Path { target, reader: domain.read_grains(own.id)? }))
        };
        let paths = paths.iter().enumerate().map(open).collect::<Result<_>>()?;
        // The oldest slots are left out: they are the first that the next grains take.
        let window = Window::new(writer.grains().saturating_sub(2).max(1));
        Ok(Self {
            paths,
            writer,
            slices,
            payload: vec![0; payload as usize],
            window,
            events: VecDeque::new(),
            stats: MergeStats::default(),
        })
    }

    /// The target of a path, for its [`info`](Target::info) and [`stats`](Target::stats). `None` if there is no such
    /// path, or its endpoint broke.
    pub fn path(&self, at: usize) -> Option<&Target> {
        self.paths.get(at)?.as_ref().map(|path| &path.target)
    }

    /// The merged flow.
    pub fn flow(&self) -> Uuid {
        self.writer.id()
    }

    /// The statistics.
    pub fn stats(&self) -> MergeStats {
        self.stats
    }

    /// Publishes everything that has arrived on all paths, and returns the oldest event not returned before: grains,
    /// only complete ones, in the order of their arrival, and losses, once it is too late for a grain. Never blocks.
    ///
    /// # Errors
    /// [`Error::Stack`] when the endpoint of the last path broke; [`Error::Flow`] when the merged flow cannot be
    /// written.
    pub fn poll(&mut self) -> Result<Option<Received>> {
        self.turn()?;
        Ok(self.events.pop_front())
    }

    fn turn(&mut self) -> Result<bool> {
        let mut was_busy = false;
        for at in 0..self.paths.len() {
            for _ in 0..TURN {
                let Some(path) = &mut self.paths[at] else { break };
                let polled = path.target.poll();
                was_busy |= matches!(polled, Ok(Some(_)));
                match polled {
                    Ok(Some(Received::Grain { index, slices, invalid })) if slices == self.slices => {
                        self.arrived(at, index, invalid)?;
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(target: "mxl::fabrics", path = at, %error, "a path of a merged flow broke");
                        self.paths[at] = None;
                        if self.paths.iter().all(Option::is_none) {
                            return Err(error);
                        }
                    }
                }
            }
        }
        if self.paths.iter().all(Option::is_none) {
            return Err(Error::Argument("all paths of the merged flow broke: open it again".into()));
        }
        Ok(was_busy)
    }

    /// As [`poll`](Self::poll), but waits for an event until the timeout expires, polling every 50 us.
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        let begin = Instant::now();
        loop {
            let received = self.poll()?;
            if received.is_some() || begin.elapsed() >= timeout {
                return Ok(received);
            }
            std::thread::sleep(NAP);
        }
    }

    /// A path has a whole grain.
    fn arrived(&mut self, at: usize, index: u64, invalid: bool) -> Result<()> {
        let verdict = self.window.judge(index, invalid);
        match verdict {
            Verdict::First | Verdict::Better => {}
            Verdict::Duplicate => {
                self.stats.duplicates += 1;
                return Ok(());
            }
            Verdict::Late => {
                self.stats.late += 1;
                return Ok(());
            }
        }
        if invalid {
            self.writer.open(index)?.commit_invalid()?;
        } else {
            let Some(path) = &self.paths[at] else { return Ok(()) };
            // Its target may be ahead by a ring already, if nobody polled for long.
            let copied = path.reader.read(index, Wait::Not).and_then(|grain| {
                grain.read_into(0, &mut self.payload)?;
                Ok(grain.still_valid() && !grain.info().is_invalid())
            });
            if !matches!(copied, Ok(true)) {
                self.stats.late += 1;
                return Ok(());
            }
            let mut grain = self.writer.open(index)?;
            grain.write(0, &self.payload)?;
            grain.commit()?;
        }
        if verdict == Verdict::Better {
            self.stats.mended += 1;
        } else {
            self.stats.published += 1;
            self.stats.invalid += u64::from(invalid);
        }
        for (first, count) in self.window.take(index, invalid) {
            self.stats.lost = self.stats.lost.saturating_add(count);
            self.tell(Received::Lost { first, count });
        }
        self.tell(Received::Grain { index, slices: self.slices, invalid });
        Ok(())
    }

    fn tell(&mut self, event: Received) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.stats.missed += 1;
        }
        self.events.push_back(event);
    }
}

impl Polled for Merge {
    type Event = Received;

    fn turn(&mut self) -> Result<bool> {
        self.turn()
    }

    fn take(&mut self) -> Option<Received> {
        self.events.pop_front()
    }

    fn has_more(&self) -> bool {
        self.paths.iter().flatten().any(|path| path.target.has_more())
    }

    fn queues(&self) -> Vec<Arc<dyn CompletionQueue>> {
        self.paths.iter().flatten().flat_map(|path| path.target.queues()).collect()
    }
}
