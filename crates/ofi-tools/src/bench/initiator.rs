//! The initiator: the process that reads, writes and measures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use multirail::engine::{Histogram, Latencies};
use multirail::{Agent, Local, Remote, Way};
use ofi_progress_bar::Progress;
use serde_json::json;

use super::figures::{Figures, Row};
use super::meeting::{BenchRequest, Meeting, Opening};
use super::memory::{Memory, fill, wrong};
use super::{Direction, Options, Scheme, agent, plot};
use crate::failure::{Failure, Result};
use crate::output;

/// Time limit of one transfer.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum memory of all pairs together, in bytes.
const MAX_TOTAL_BYTES: u64 = 8 << 30;

/// One pair: an initiator's agent, and its view of a target.
struct Pair {
    agent: Arc<Agent>,
    memory: Memory,
    meeting: Meeting,
    target: Arc<str>,
    region: u64,
}

/// The kind of transfers to measure next.
#[derive(Clone, Copy)]
struct Shape {
    way: Direction,
    size: u64,
    batch: u64,
}

/// Runs all measurements that the options request.
pub(super) fn run(options: &Options, pairs: usize, addresses: &[String]) -> Result<()> {
    let most = options.sizes.iter().max().zip(options.batches.iter().max());
    let len = most.and_then(|(size, batch)| size.checked_mul(*batch)?.checked_mul(options.threads));
    let len = len
        .filter(|len| len.checked_mul(pairs as u64).is_some_and(|all| (1..=MAX_TOTAL_BYTES).contains(&all)))
        .ok_or_else(|| {
            Failure::Usage("size x batch x threads x pairs must be 1 byte to 8 GiB".to_string())
        })?;
    let mut all = open(options, pairs, addresses, len)?;
    let steps = options.ways.len() * options.sizes.len() * options.batches.len();
    let progress = Progress::steps(false, Some(steps as u64));
    let mut rows = Vec::new();
    for &way in &options.ways {
        for &size in &options.sizes {
            for &batch in &options.batches {
                progress.begin(format!("{way:?}, {batch} x {size} bytes"));
                let shape = Shape { way, size, batch };
                let seed = rows.len() as u64 + 1;
                prepare(options, &mut all, shape, seed)?;
                rows.push(measure(options, &all, shape)?);
                check(options, &mut all, shape, seed)?;
                if !options.json {
                    let heading = if rows.len() == 1 { Row::HEADING } else { "" };
                    progress.aside(|| output::print(&format!("{heading}{}", rows[rows.len() - 1])))?;
                }
                progress.done();
            }
        }
    }
    drop(progress);
    all.iter_mut().try_for_each(|pair| pair.meeting.say(&BenchRequest::End))?;
    if let Some(file) = &options.svg {
        plot::write(file, &rows)?;
    }
    if options.json {
        output::print_json(&json!({
            "rails": options.rails, "memory": options.memory,
            "target_memory": options.target_memory.unwrap_or(options.memory), "threads": options.threads, "pairs": pairs, "rows": rows, "paths": paths(&all)?,
            "latencies": latencies(&all),
        }))?;
    }
    Ok(())
}

/// Opens the agents of this process, and connects to the targets.
fn open(options: &Options, pairs: usize, addresses: &[String], len: u64) -> Result<Vec<Pair>> {
    let stack = Failure::stack;
    let mut all: Vec<Pair> = Vec::new();
    for nth in 0..pairs {
        let agent = match all.first() {
            Some(first) if options.scheme == Scheme::OneToMany => Arc::clone(&first.agent),
            _ => Arc::new(agent(&format!("mr-bench-initiator-{nth}"), &options.rails)?),
        };
        let memory = Memory::new(&agent, len, options.memory)?;
        let address =
            addresses.get(nth).or(addresses.last()).ok_or_else(|| Failure::Usage("no target".into()))?;
        let mut meeting = Meeting::join(address)?;
        let of_one = options.scheme == Scheme::ManyToOne;
        let name = format!("mr-bench-target-{}", if of_one { 0 } else { nth });
        let (rails, initiators) = (options.rails.clone(), if of_one { pairs } else { 1 });
        meeting.say(&BenchRequest::Open(Opening {
            name,
            rails,
            len,
            memory: options.target_memory.unwrap_or(options.memory),
            initiators,
        }))?;
        let target = agent.load(&meeting.hear_bytes()?).map_err(stack("the target's metadata"))?;
        let regions = agent.regions(&target).map_err(stack("the target's regions"))?;
        // The newest region belongs to this initiator.
        let region = regions.iter().map(|(region, _)| *region).max();
        let region = region.ok_or_else(|| Failure::Peer("the target has no region".to_string()))?;
        meeting.say_bytes(&agent.metadata().map_err(stack("metadata"))?)?;
        all.push(Pair { agent, memory, meeting, target, region });
    }
    Ok(all)
}

/// Fills all memory to be moved with values that depend on their place.
fn prepare(options: &Options, all: &mut [Pair], shape: Shape, seed: u64) -> Result<()> {
    let used = shape.size * shape.batch * options.threads;
    for (pair, nth) in all.iter_mut().zip(0..).filter(|_| options.check) {
        let seed = seed + nth;
        match shape.way {
            Direction::Write => fill(&pair.memory, used, seed).map_err(Failure::stack("filling memory"))?,
            Direction::Read => pair.meeting.ask(&BenchRequest::Fill { len: used, seed })?,
        }
    }
    Ok(())
}

/// Compares the memory that was moved.
fn check(options: &Options, all: &mut [Pair], shape: Shape, seed: u64) -> Result<()> {
    let Shape { way, size, batch } = shape;
    let used = size * batch * options.threads;
    for (pair, nth) in all.iter_mut().zip(0..).filter(|_| options.check) {
        let seed = seed + nth;
        match way {
            Direction::Write => pair.meeting.ask(&BenchRequest::Check { len: used, seed })?,
            Direction::Read => {
                if let Some(at) = wrong(&pair.memory, used, seed).map_err(Failure::stack("reading memory"))? {
                    return Err(Failure::Data(format!(
                        "byte {at} of a read of {size} x {batch} by pair {nth}"
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Measures with all pairs and threads at once.
fn measure(options: &Options, all: &[Pair], shape: Shape) -> Result<Row> {
    let parallel = options.threads * all.len() as u64;
    let iterations = options.iterations.min(((2 << 30) / (shape.size * shape.batch * parallel)).max(1));
    let warmup = options.warmup.min(iterations);
    let each: Vec<Result<Figures>> = std::thread::scope(|scope| {
        let ones = all.iter().flat_map(|pair| (0..options.threads).map(move |thread| (pair, thread)));
        let threads: Vec<_> = ones
            .map(|(pair, thread)| scope.spawn(move || transfers(pair, shape, thread, (warmup, iterations))))
            .collect();
        let gone = |_| Err(Failure::Peer("a measuring thread panicked".to_string()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    });
    let mut sum = Figures::default();
    for figures in each {
        sum.merge(figures?);
    }
    Ok(sum.row(shape.way == Direction::Write, shape.size, shape.batch, parallel))
}

/// Runs one thread's transfers of one pair, on its own part of the memory.
fn transfers(pair: &Pair, shape: Shape, thread: u64, (warmup, iterations): (u64, u64)) -> Result<Figures> {
    let Shape { way, size, batch } = shape;
    let Pair { agent, memory, target, region, .. } = pair;
    let stack = Failure::stack("a transfer");
    let way = if way == Direction::Write { Way::Write } else { Way::Read };
    let mut figures = Figures::default();
    let begin = thread * size * batch;
    for round in 0..warmup + iterations {
        let start = Instant::now();
        let local = (0..batch).map(|nth| memory.slice(begin + nth * size, size));
        let local = local.collect::<ofi::Result<Vec<Local>>>().map_err(&stack)?;
        let remote: Vec<Remote> =
            (0..batch).map(|nth| Remote { region: *region, offset: begin + nth * size, len: size }).collect();
        let plan = agent.prepare(target, way, &local, &remote).map_err(&stack)?;
        let prepared = start.elapsed();
        let start = Instant::now();
        let transfer = plan.post(LIMIT).map_err(&stack)?;
        let posted = start.elapsed();
        transfer.wait().map_err(&stack)?;
        if round >= warmup {
            figures.add(prepared, posted, start.elapsed());
        }
    }
    Ok(figures)
}

/// The bytes and accesses of each rail.
fn paths(all: &[Pair]) -> Result<Vec<serde_json::Value>> {
    let mut rows = Vec::new();
    for (nth, pair) in all.iter().enumerate() {
        let paths = pair.agent.paths(&pair.target).map_err(Failure::stack("paths"))?;
        rows.extend(paths.iter().map(|path| {
            json!({ "pair": nth, "rail": path.rail, "remote": path.remote, "bytes": path.moved, "failures": path.failures })
        }));
    }
    Ok(rows)
}

/// For each agent, rail and size class: the number of accesses, and bounds of their times.
fn latencies(all: &[Pair]) -> Vec<serde_json::Value> {
    let us = |time: Option<Duration>| time.map(|time| time.as_micros() as u64);
    let of_rail = |agent: usize, rail: usize, latencies: &Latencies| {
        let classes = latencies.classes().filter(|(_, times)| times.count() > 0);
        let row = |(longest, times): (Option<u64>, &Histogram)| {
            json!({
                "agent": agent, "rail": rail, "longest": longest, "accesses": times.count(),
                "p50_us_at_most": us(times.at_most(50)), "p99_us_at_most": us(times.at_most(99)),
            })
        };
        classes.map(row).collect::<Vec<_>>()
    };
    let first = |nth: usize| !all[..nth].iter().any(|other| Arc::ptr_eq(&other.agent, &all[nth].agent));
    let agents = all.iter().enumerate().filter(|(nth, _)| first(*nth));
    agents
        .flat_map(|(nth, pair)| {
            let rails = pair.agent.latencies();
            rails
                .iter()
                .enumerate()
                .flat_map(|(rail, latencies)| of_rail(nth, rail, latencies))
                .collect::<Vec<_>>()
        })
        .collect()
}
