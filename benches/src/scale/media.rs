//! Media: readers of many flows, idle ends that one thread drives, streams that wait.

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use mxl::{BatchHints, Domain, FlowDefinition, GrainWriter, Rational, Wait};
use mxl_fabrics::{Driven, Engine, Provider, Target};

use super::{Figure, figure};
use crate::{Error, Result, sys};

/// Flows of pictures, and readers of them.
const FLOWS: usize = 20;
const READERS: usize = 10_000;
/// Ends, if the process may have their descriptors.
const ENDS: usize = 10_000;
/// Descriptors that the rest of the process may use.
const SPARE: u64 = 200;
/// Time over which the cost of idle ends is measured, once they sleep as long as they do.
const WINDOW: Duration = Duration::from_secs(4);
/// Windows, of which the one with the least cost counts.
const WINDOWS: usize = 6;
/// Streams that wait, and grains that are announced.
const STREAMS: [usize; 2] = [10, 1000];
const GRAINS: usize = 2000;
/// Interval at which the tasks of streams that wait look.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A domain of its own, which is removed.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("ofi-benches-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(Error::io("making a domain"))?;
        Ok(Self(folder))
    }

    fn domain(&self) -> Result<Domain> {
        Domain::open(&self.0).map_err(flow)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn flow(error: mxl::Error) -> Error {
    Error::Stack(error.to_string())
}

fn end(error: mxl_fabrics::Error) -> Error {
    Error::Stack(error.to_string())
}

/// Small pictures, in rings of eleven.
fn camera(number: usize) -> Result<FlowDefinition> {
    FlowDefinition::video(&format!("camera {number}"), 48, 4, Rational::new(60_000, 1001)).map_err(flow)
}

fn writers(domain: &Domain, count: usize) -> Result<Vec<GrainWriter>> {
    let create = |number| {
        let created = domain.create_grains(&camera(number)?, &BatchHints::default());
        created.map(|created| created.writer).map_err(flow)
    };
    (0..count).map(create).collect()
}

fn commit(writer: &GrainWriter, index: u64) -> Result<()> {
    writer.open(index).and_then(|grain| grain.commit()).map_err(flow)
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Resident KiB of this process without mappings of files in this folder.
fn resident_beside(folder: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let (mut is_ring, mut sum) = (false, 0);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib = rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            sum += if is_ring { 0 } else { kib };
        } else if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            is_ring = line.contains(&*folder.to_string_lossy());
        }
    }
    sum
}

/// Mappings of readers that read all grains of their flows by turns.
pub(super) fn flows() -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let domain = folder.domain()?;
    let writers = writers(&domain, FLOWS)?;
    let (before, open) = (mappings(), descriptors());
    let windows = (0..READERS).map(|at| domain.read_grain_window(writers[at % FLOWS].id(), 3));
    let mut windows = windows.collect::<std::result::Result<Vec<_>, _>>().map_err(flow)?;
    for index in 1..=5 {
        writers.iter().try_for_each(|writer| commit(writer, index))?;
        for window in &mut windows {
            window.read(index, Wait::Not).map_err(flow)?;
        }
    }
    let grains = writers[0].grains();
    Ok(vec![
        figure(
            format!("mappings of {READERS} readers of {grains} grains"),
            (mappings() - before) as f64,
            Some(65_530.0),
        ),
        figure("their descriptors", (descriptors() - open) as f64, None),
    ])
}

/// The processor time of the threads of this name, and their number.
fn threads(name: &str) -> (f64, usize) {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let mut found = (0.0, 0);
    for task in tasks {
        let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        if comm.trim_end() == name {
            let ran: f64 = stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
            found = (found.0 + ran / 1e9, found.1 + 1);
        }
    }
    found
}

/// Targets without initiators, which one thread drives.
pub(super) fn idle_ends() -> Result<Vec<Figure>> {
    let allowed = sys::raise_descriptors().map_err(Error::io("asking for descriptors"))?;
    let folder = Folder::new()?;
    let domain = folder.domain()?;
    let sound = FlowDefinition::audio("microphone", 2, Rational::new(48_000, 1)).map_err(flow)?;
    let engine = Engine::start().map_err(end)?;
    let open_for = |definition: &FlowDefinition| {
        let target = Target::open(&domain, definition, Provider::Shm, (None, None), None).map_err(end)?;
        Driven::start_on(&engine, target).map_err(end)
    };
    let open = |_| open_for(&sound);
    // What the first ones bring for the whole process is not counted.
    let first = (0..10).map(open).collect::<Result<Vec<_>>>()?;
    let (had, was, mapped) = (descriptors(), resident_beside(&folder.0), mappings());
    let one = open(0)?;
    let (each, each_mapped) = (descriptors() - had, mappings() - mapped);
    let mapped_before = mappings();
    let picture = open_for(&camera(0)?)?;
    let each_picture = mappings() - mapped_before;
    drop(picture);
    let by_descriptors = allowed.saturating_sub(SPARE) as usize / each.max(1);
    let by_mappings = 65_530_usize.saturating_sub(mapped + SPARE as usize) / each_mapped.max(1);
    let count = ENDS.min(by_descriptors).min(by_mappings).max(1);
    let ends = (1..count).map(open).collect::<Result<Vec<_>>>()?;
    let memory = resident_beside(&folder.0).saturating_sub(was) as f64 / count as f64;
    let mut least = f64::INFINITY;
    let mut before = threads("mxl-engine").0;
    for _ in 0..WINDOWS {
        std::thread::sleep(WINDOW);
        let after = threads("mxl-engine").0;
        least = least.min((after - before) / WINDOW.as_secs_f64() * 100.0);
        before = after;
    }
    let (_, number) = threads("mxl-engine");
    drop((ends, one, first));
    Ok(vec![
        figure(
            "idle ends (10,000, or what the limits of descriptors and mappings permit)",
            count as f64,
            None,
        ),
        figure("descriptors of each", each as f64, None),
        figure("mappings of each", each_mapped as f64, None),
        figure("mappings of an end of a flow of 11 grains", each_picture as f64, None),
        figure("processor time, percent of a core", least, Some(1.0)),
        figure("threads", number as f64, Some(1.0)),
        figure("KiB of each, beside its ring", memory, Some(64.0)),
    ])
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future in this thread.
fn block_on<T>(mut future: impl Future<Output = T> + Unpin) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park_timeout(Duration::from_secs(1));
    }
}

/// The processor time of the threads that wait, for each grain of one of many streams.
fn stream(domain: &Domain, writers: &[GrainWriter], count: usize) -> Result<f64> {
    let open = |at: usize| {
        let reader = domain.read_grains(writers[at % writers.len()].id()).map_err(flow)?;
        Ok(Arc::new(reader).stream(1_000_000))
    };
    // The first one's flow has a writer of its own.
    let mut streams = (0..count).map(|at| open(if at == 0 { 0 } else { 1 + at % (writers.len() - 1) }));
    let mut streams = streams.by_ref().collect::<Result<Vec<_>>>()?;
    let first = domain.read_grains(writers[0].id()).map_err(flow)?;
    let mut active = Arc::new(first).stream(2_000_000 * count as u64);
    // All of them wait once.
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    for stream in &mut streams[1..] {
        if Pin::new(stream).poll_next(&mut Context::from_waker(&waker)).is_ready() {
            return Err(Error::Stack("a grain that nobody wrote".into()));
        }
    }
    let (before, begin) = (threads("mxl-streams").0, Instant::now());
    let mut polled = begin;
    for nth in 0..GRAINS as u64 {
        let index = 2_000_000 * count as u64 + nth;
        let pending = Pin::new(&mut active).poll_next(&mut Context::from_waker(&waker)).is_pending();
        commit(&writers[0], index)?;
        if pending {
            let item = block_on(poll_fn(|context| Pin::new(&mut active).poll_next(context)));
            item.ok_or_else(|| Error::Stack("a stream ended".into()))?.map_err(flow)?;
        }
        if polled.elapsed() > LOOK_AGAIN {
            // The tasks of the others look when their time is over.
            polled = Instant::now();
            for stream in &mut streams[1..] {
                let _ = Pin::new(stream).poll_next(&mut Context::from_waker(&waker));
            }
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Ok((threads("mxl-streams").0 - before) * 1e6 / (nth + 1) as f64);
        }
    }
    Ok((threads("mxl-streams").0 - before) * 1e6 / GRAINS as f64)
}

/// Grains of one stream while others wait.
pub(super) fn streams() -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let domain = folder.domain()?;
    let writers = writers(&domain, FLOWS)?;
    let mut figures = Vec::new();
    for count in STREAMS {
        let each = stream(&domain, &writers, count)?;
        figures.push(figure(
            format!("a grain of one of {count} streams, processor time of the threads that wait, us"),
            each,
            None,
        ));
    }
    Ok(figures)
}
