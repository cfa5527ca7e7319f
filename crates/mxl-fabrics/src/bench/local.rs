//! Within one host: how long after a commit a reader knows, and what the calls cost.
//!
//! Writer and readers are threads, each with maps of its own and pinned to its core. The bare futex is one word of
//! shared memory between the same cores, in turns with the flow: what the machine does at some moment, it does to both.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, GrainReader, GrainWriter, Wait};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::thread::{Timespec, futex};

use super::figures::Figures;
use crate::{Error, Result};

/// A reader that hears nothing for so long gives up.
const LONG: Duration = Duration::from_secs(10);
/// How often futex, flow and polling take turns.
const ROUNDS: u64 = 10;

/// What is measured, and where.
pub struct Plan {
    pub domain: Domain,
    pub definition: FlowDefinition,
    /// Of the writer, and of the readers.
    pub cores: (usize, usize),
    pub readers: usize,
    /// Commits of each kind.
    pub count: u64,
    /// Between two commits.
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
    /// Grains that were overwritten before a reader came to them: its core was taken away for longer than the ring
    /// lasts.
    pub missed: u64,
}

/// Keeps the calling thread on one core.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    let pinned = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
    pinned.map_err(|error| Error::Argument(format!("core {core}: {error}; choose others by --cores")))
}

/// Of the readers of some commits: how late each learnt of each, in nanoseconds, and what was overwritten before.
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

/// A word of memory that processes could share.
struct Word(*mut AtomicU32);

// SAFETY: an atomic in a map that lives as long as this.
unsafe impl Sync for Word {}

impl Word {
    fn new() -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new map, which concerns nothing else.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), 4096, access, flags) };
        let map = map.map_err(|error| Error::Argument(format!("no page of shared memory: {error}")))?;
        Ok(Self(map.cast()))
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the map is there as long as this, begins with zeroes, and is used as this atomic only.
        unsafe { &*self.0 }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // SAFETY: the map of `new`; nothing refers to it any more.
        let _ = unsafe { munmap(self.0.cast(), 4096) };
    }
}

#[derive(Clone, Copy)]
enum Way {
    Futex,
    Blocked,
    Polling,
}

impl Plan {
    /// Measures everything.
    ///
    /// # Errors
    /// A core that is not there, a flow that cannot be made, a reader that hears nothing for ten seconds.
    pub fn run(&self) -> Result<Local> {
        let writer = self.domain.create_grains(&self.definition, &BatchHints::default())?.writer;
        let mut next = 1000;
        let mut heard: [Heard; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (way, heard) in [Way::Futex, Way::Blocked, Way::Polling].into_iter().zip(&mut heard) {
                let count = self.count.div_ceil(ROUNDS);
                heard.add(self.wakes(&writer, way, next, count)?);
                next += count;
            }
        }
        let missed = heard.iter().map(|heard| heard.missed).sum();
        let [futex, blocked, polling] = heard.map(|heard| Figures::new(heard.times));
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
        Ok(Local { futex, blocked, polling, commit, commit_filled, read, missed })
    }

    /// How long `count` commits take, with a payload or without.
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
        let word = Word::new()?;
        let begin = Instant::now();
        let committed: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
        let open = || self.domain.read_grains(self.definition.id);
        let readers = (0..self.readers).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        let ready = Barrier::new(self.readers + 1);
        let listen = |reader: GrainReader| -> Result<Heard> {
            let pinned = pin(self.cores.1);
            ready.wait();
            pinned?;
            let mut heard = Heard::default();
            for (at, committed) in (0..).zip(&committed) {
                let read = |wait| reader.read(first + u64::from(at), wait).map(drop);
                let returned = match way {
                    Way::Futex => {
                        wait_beyond(word.word(), at)?;
                        Ok(())
                    }
                    Way::Blocked => read(Wait::For(LONG)),
                    Way::Polling => read(Wait::Busy(LONG)),
                };
                let now = nanoseconds(begin.elapsed());
                match returned {
                    Ok(()) => heard.times.push(now.saturating_sub(committed.load(Ordering::Relaxed))),
                    Err(mxl::Error::TooLate { .. }) => heard.missed += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(heard)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = readers.into_iter().map(|reader| scope.spawn(|| listen(reader))).collect();
            let pinned = pin(self.cores.0);
            ready.wait();
            for (index, committed) in (first..).zip(&committed) {
                std::thread::sleep(self.interval);
                let now = || committed.store(nanoseconds(begin.elapsed()), Ordering::Relaxed);
                if let Way::Futex = way {
                    now();
                    word.word().fetch_add(1, Ordering::Release);
                    // It fails for no word of ours; a reader that was not woken says so itself.
                    let _ = futex::wake(word.word(), futex::Flags::empty(), i32::MAX as u32);
                } else {
                    let grain = writer.open(index)?;
                    now();
                    grain.commit()?;
                }
            }
            pinned?;
            let mut heard = Heard::default();
            for thread in threads {
                let panicked = |_| Error::Argument("a reader panicked".into());
                heard.add(thread.join().map_err(panicked)??);
            }
            Ok(heard)
        })
    }
}

fn wait_beyond(word: &AtomicU32, seen: u32) -> Result<()> {
    let (end, limit) = (Instant::now() + LONG, Timespec { tv_sec: 1, tv_nsec: 0 });
    loop {
        let there = word.load(Ordering::Acquire);
        if there > seen {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(Error::Argument("the writer stopped".into()));
        }
        // It returns for many reasons, and the word is looked at again after each.
        let _ = futex::wait(word, futex::Flags::empty(), there, Some(&limit));
    }
}

pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
