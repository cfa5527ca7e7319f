//! Within one host: the latency from a commit to its readers, and the cost of the calls.
//!
//! Readers are processes, all pinned to one core. The bare futex is one word of shared memory between the same cores,
//! measured alternately with the flow: a disturbance of the machine affects both.

use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, GrainWriter, Wait, time};
use ofi_progress_bar::Progress;

use super::cores::pin;
use super::figures::Figures;
use super::readers::{Readers, Task, Way, Word};
use crate::Result;

/// How often futex, flow and polling alternate.
const ROUNDS: u64 = 10;
/// Steps of progress: three in each round, and the calls.
pub const STEPS: u64 = ROUNDS * 3 + 1;

/// The parameters of the measurement.
pub struct Plan {
    pub domain: Domain,
    pub definition: FlowDefinition,
    /// The cores of the writer and of the readers.
    pub cores: (usize, usize),
    pub readers: usize,
    /// Commits of each kind.
    pub count: u64,
    /// Time between two commits.
    pub interval: Duration,
}

/// Nanoseconds, of each kind.
pub struct Local {
    pub futex: Figures,
    pub blocked: Figures,
    pub polling: Figures,
    pub commit: Figures,
    pub commit_filled: Figures,
    pub read: Figures,
    /// Grains that were overwritten before a reader reached them: its core was taken away for longer than the ring
    /// lasts.
    pub missed: u64,
}

/// The readers' results for some commits: the latency of each in nanoseconds, and the overwritten grains.
#[derive(Default)]
struct Heard {
    times: Vec<u64>,
    missed: u64,
}

impl Heard {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.missed += other.missed;
    }
}

impl Plan {
    /// Measures everything.
    ///
    /// # Errors
    /// A core that does not exist, a flow that cannot be created, a reader that sees no commit for ten seconds.
    pub fn run(&self, progress: &Progress) -> Result<Local> {
        let writer = self.domain.create_grains(&self.definition, &BatchHints::default())?.writer;
        let mut next = 1000;
        let mut heard: [Heard; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (way, heard) in [Way::Futex, Way::Blocked, Way::Polling].into_iter().zip(&mut heard) {
                progress.begin(match way {
                    Way::Futex => "a bare futex",
                    Way::Blocked => "blocked readers",
                    Way::Polling => "polling readers",
                });
                let count = self.count.div_ceil(ROUNDS);
                heard.add(self.wakes(&writer, way, next, count)?);
                next += count;
                progress.done();
            }
        }
        let missed = heard.iter().map(|heard| heard.missed).sum();
        let [futex, blocked, polling] = heard.map(|heard| Figures::new(heard.times));
        progress.begin("the calls");
        pin(self.cores.0)?;
        let commit = self.commits(&writer, next, None)?;
        next += self.count;
        let filled = vec![0x40; writer.open(next)?.len()];
        let commit_filled = self.commits(&writer, next, Some(&filled))?;
        let reader = self.domain.read_grains(self.definition.id)?;
        let head = reader.head();
        let read = (0..self.count).map(|_| {
            let begin = Instant::now();
            let grain = reader.read(head, Wait::Not)?;
            std::hint::black_box(grain.as_ptr());
            Ok(nanoseconds(begin.elapsed()))
        });
        let read = Figures::new(read.collect::<Result<_>>()?);
        progress.done();
        Ok(Local { futex, blocked, polling, commit, commit_filled, read, missed })
    }

    /// The duration of `count` commits, with a payload or without.
    fn commits(&self, writer: &GrainWriter, first: u64, payload: Option<&[u8]>) -> Result<Figures> {
        let times = (first..first + self.count).map(|index| {
            let begin = Instant::now();
            let mut grain = writer.open(index)?;
            if let Some(payload) = payload {
                grain.write(0, payload)?;
            }
            grain.commit()?;
            Ok(nanoseconds(begin.elapsed()))
        });
        Ok(Figures::new(times.collect::<Result<_>>()?))
    }

    /// The time from each of `count` commits to each reader's return.
    fn wakes(&self, writer: &GrainWriter, way: Way, first: u64, count: u64) -> Result<Heard> {
        let word = Word::open(self.domain.path())?;
        word.set(0);
        let task = Task { way, first, count };
        let readers = Readers::start(self.domain.path(), self.cores, task, self.readers)?;
        pin(self.cores.0)?;
        let mut committed = Vec::with_capacity(count as usize);
        for at in 0..count {
            std::thread::sleep(self.interval);
            if way == Way::Futex {
                committed.push(time::now());
                word.set(at as u32 + 1);
            } else {
                let grain = writer.open(first + at)?;
                committed.push(time::now());
                grain.commit()?;
            }
        }
        let mut heard = Heard::default();
        for returned in readers.end()? {
            let late =
                returned.iter().zip(&committed).filter_map(|(at, from)| Some((*at)?.saturating_sub(*from)));
            let times: Vec<u64> = late.collect();
            heard.missed += count.saturating_sub(times.len() as u64);
            heard.times.extend(times);
        }
        Ok(heard)
    }
}

pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
