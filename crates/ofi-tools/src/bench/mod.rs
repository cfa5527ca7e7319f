//! `mr-bench`: how fast transfers of `multirail` are between two processes, in the manner of nixlbench.
//!
//! One process is the target: it owns memory and drives its agent. The other reads or writes it, in transfers of a batch of blocks, and
//! measures preparing, posting and the whole. They meet by TCP ([`meeting`]). Without `--listen` and without an address, the program
//! starts its own target.

mod figures;
mod meeting;
mod plot;
mod target;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use multirail::engine::{Histogram, Latencies};
use multirail::{Agent, Local, Region, Remote, Way};
use ofi::Hints;
use serde_json::json;

use crate::failure::{self, Failure, Result};
use crate::output;
use crate::pingpong::sizes;
use crate::progress::Progress;
use figures::{Figures, Row};
use meeting::{Meeting, Request};

/// Longest that one transfer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Measures reads and writes over one or more rails, between two processes.
#[derive(Debug, Parser)]
#[command(name = "mr-bench", version)]
pub(crate) struct Options {
    /// The target's address, as HOST:PORT. Without it a target is started here.
    address: Option<String>,
    /// Be the target: wait for one initiator at this address (port 0 chooses one, which is printed).
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "address")]
    listen: Option<String>,
    /// Providers, one for each rail: `udp,udp` are two rails.
    #[arg(long, value_delimiter = ',', default_value = "shm")]
    rails: Vec<String>,
    /// What to do with the target's memory.
    #[arg(long, value_delimiter = ',', default_value = "write,read")]
    ways: Vec<Direction>,
    /// Block sizes: bytes, or with the suffix K or M.
    #[arg(long, value_delimiter = ',', default_value = "4K,64K,1M,16M", value_parser = size)]
    sizes: Vec<u64>,
    /// Blocks of one transfer.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    batches: Vec<u64>,
    /// Threads that post, each to a part of the memory of its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Transfers of each measurement and thread; fewer for large ones, so that a row moves at most 2 GiB.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Transfers before each measurement.
    #[arg(long, default_value_t = 20)]
    warmup: u64,
    /// Use memory that the library allocated, which peers of one host can share.
    #[arg(long)]
    library_memory: bool,
    /// Compare every byte after each row.
    #[arg(long)]
    check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a plot (SVG) of bandwidth and median time by block size to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Write,
    Read,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    let size = sizes::one(text)? as u64;
    (size > 0).then_some(size).ok_or_else(|| "wanted at least a byte".to_string())
}

/// The program.
pub fn main() -> ExitCode {
    match Options::try_parse() {
        Ok(options) => failure::end("mr-bench", run(&options)),
        Err(error) => failure::usage(&error),
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(address) = &options.listen {
        return target::run(address);
    }
    if let Some(file) = &options.svg {
        plot::reserve(file)?;
    }
    match &options.address {
        Some(address) => initiate(options, address),
        None => {
            let (mut child, address) = own_target()?;
            let result = initiate(options, &address);
            if result.is_err() {
                // It would wait for an initiator; its end is awaited below.
                let _ = child.kill();
            }
            let ended = child.wait().map_err(|error| Failure::system("waiting for the target", error))?;
            result?;
            if ended.success() {
                Ok(())
            } else {
                Err(Failure::Peer(format!("the target ended with {ended}")))
            }
        }
    }
}

/// Starts a target, and hears where it is.
fn own_target() -> Result<(Child, String)> {
    let system = |doing: &'static str| move |error| Failure::system(doing, error);
    let program = std::env::current_exe().map_err(system("finding this program"))?;
    let mut command = Command::new(program);
    command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(system("starting the target"))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.as_mut() {
        use std::io::BufRead;
        std::io::BufReader::new(out).read_line(&mut line).map_err(system("hearing the target"))?;
    }
    Ok((child, line.trim().to_string()))
}

/// Opens an agent with a rail for each provider.
fn agent(name: &str, rails: &[String]) -> Result<Agent> {
    let builder = Agent::builder(name);
    let builder =
        rails.iter().fold(builder, |builder, rail| builder.rail(Hints::new().provider(rail.as_str())));
    builder.open().map_err(Failure::stack("opening the rails"))
}

/// Memory of either kind.
enum Memory {
    Application(Region<Vec<u8>>),
    Library(Region),
}

impl Memory {
    fn new(agent: &Agent, len: u64, library: bool) -> Result<Self> {
        let stack = Failure::stack("registering memory");
        Ok(match library {
            true => Self::Library(agent.alloc(len as usize).map_err(stack)?),
            false => Self::Application(agent.register(vec![0_u8; len as usize]).map_err(stack)?),
        })
    }

    fn slice(&self, start: u64, len: u64) -> ofi::Result<Local> {
        match self {
            Self::Application(region) => region.slice(start..start + len),
            Self::Library(region) => region.slice(start..start + len),
        }
    }

    fn fill(&self, at: u64, bytes: &[u8]) -> ofi::Result<()> {
        match self {
            Self::Application(region) => region.write_from(at as usize, bytes),
            Self::Library(region) => region.write_from(at as usize, bytes),
        }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> ofi::Result<()> {
        match self {
            Self::Application(region) => region.read_into(at as usize, bytes),
            Self::Library(region) => region.read_into(at as usize, bytes),
        }
    }
}

/// What byte `at` is after a row with `seed`.
fn byte(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 7) as u8 ^ seed as u8
}

/// Pieces in which memory is filled and compared.
const PIECE: usize = 1 << 20;

fn fill(memory: &Memory, len: u64, seed: u64) -> ofi::Result<()> {
    for start in (0..len).step_by(PIECE) {
        let piece: Vec<u8> = (start..len.min(start + PIECE as u64)).map(|at| byte(seed, at)).collect();
        memory.fill(start, &piece)?;
    }
    Ok(())
}

/// The first wrong byte.
fn wrong(memory: &Memory, len: u64, seed: u64) -> ofi::Result<Option<u64>> {
    for start in (0..len).step_by(PIECE) {
        let mut piece = vec![0; (len - start).min(PIECE as u64) as usize];
        memory.read(start, &mut piece)?;
        let bad = piece.iter().zip(start..).find(|&(&found, at)| found != byte(seed, at));
        if let Some((_, at)) = bad {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

fn initiate(options: &Options, address: &str) -> Result<()> {
    let most = options.sizes.iter().max().zip(options.batches.iter().max());
    let len = most.and_then(|(size, batch)| size.checked_mul(*batch)?.checked_mul(options.threads));
    let len = len
        .filter(|len| (1..=8 << 30).contains(len))
        .ok_or_else(|| Failure::Usage("size x batch x threads must be 1 byte to 8 GiB".to_string()))?;
    let stack = Failure::stack;
    let agent = agent("mr-bench-initiator", &options.rails)?;
    let memory = Memory::new(&agent, len, options.library_memory)?;
    let mut meeting = Meeting::join(address)?;
    meeting.say(&Request::Open { rails: options.rails.clone(), len, library: options.library_memory })?;
    let target = agent.load(&meeting.hear_bytes()?).map_err(stack("the target's metadata"))?;
    let (region, _) = *agent
        .regions(&target)
        .map_err(stack("the target's regions"))?
        .first()
        .ok_or_else(|| Failure::Peer("the target has no region".to_string()))?;
    meeting.say_bytes(&agent.metadata().map_err(stack("metadata"))?)?;

    let progress = Progress::new(options.ways.len() * options.sizes.len() * options.batches.len());
    let mut rows = Vec::new();
    let mut seed = 0;
    for &way in &options.ways {
        for &size in &options.sizes {
            for &batch in &options.batches {
                seed += 1;
                progress.begin(format!("{way:?}, {batch} x {size} bytes"));
                let used = size * batch * options.threads;
                if options.check {
                    match way {
                        Direction::Write => fill(&memory, used, seed).map_err(stack("filling memory"))?,
                        Direction::Read => meeting.ask(&Request::Fill { len: used, seed })?,
                    }
                }
                rows.push(measure(options, &agent, &target, &memory, region, (way, size, batch))?);
                if options.check {
                    match way {
                        Direction::Write => meeting.ask(&Request::Check { len: used, seed })?,
                        Direction::Read => {
                            if let Some(at) = wrong(&memory, used, seed).map_err(stack("reading memory"))? {
                                return Err(Failure::Data(format!(
                                    "byte {at} of a read of {size} x {batch}"
                                )));
                            }
                        }
                    }
                }
                if !options.json {
                    let heading = if rows.len() == 1 { Row::HEADING } else { "" };
                    progress.aside(|| output::print(&format!("{heading}{}", rows[rows.len() - 1])))?;
                }
                progress.done();
            }
        }
    }
    drop(progress);
    meeting.say(&Request::End)?;
    if let Some(file) = &options.svg {
        plot::write(file, &rows)?;
    }
    if options.json {
        let paths = agent.paths(&target).map_err(stack("paths"))?;
        let paths: Vec<_> = paths
            .iter()
            .map(|path| json!({ "rail": path.rail, "remote": path.remote, "bytes": path.moved, "failures": path.failures }))
            .collect();
        output::print_json(&json!({
            "rails": options.rails, "threads": options.threads, "rows": rows, "paths": paths, "latencies": latencies(&agent),
        }))?;
    }
    Ok(())
}

/// For each rail and class of lengths: how many accesses there were, and bounds of how long they took.
fn latencies(agent: &Agent) -> Vec<serde_json::Value> {
    let us = |time: Option<Duration>| time.map(|time| time.as_micros() as u64);
    let of_rail = |(rail, latencies): (usize, &Latencies)| {
        let classes = latencies.classes().filter(|(_, times)| times.count() > 0);
        let row = |(longest, times): (Option<u64>, &Histogram)| {
            json!({
                "rail": rail, "longest": longest, "accesses": times.count(),
                "p50_us_at_most": us(times.at_most(50)), "p99_us_at_most": us(times.at_most(99)),
            })
        };
        classes.map(row).collect::<Vec<_>>()
    };
    agent.latencies().iter().enumerate().flat_map(of_rail).collect()
}

fn measure(
    options: &Options,
    agent: &Agent,
    target: &str,
    memory: &Memory,
    region: u64,
    (way, size, batch): (Direction, u64, u64),
) -> Result<Row> {
    let share = size * batch;
    let iterations = options.iterations.min(((2 << 30) / (share * options.threads)).max(1));
    let one = |thread: u64| -> Result<Figures> {
        let stack = Failure::stack("a transfer");
        let mut figures = Figures::default();
        let begin = thread * share;
        for round in 0..options.warmup.min(iterations) + iterations {
            let start = Instant::now();
            let local = (0..batch).map(|nth| memory.slice(begin + nth * size, size));
            let local = local.collect::<ofi::Result<Vec<Local>>>().map_err(&stack)?;
            let remote: Vec<Remote> =
                (0..batch).map(|nth| Remote { region, offset: begin + nth * size, len: size }).collect();
            let way = if way == Direction::Write { Way::Write } else { Way::Read };
            let plan = agent.prepare(target, way, &local, &remote).map_err(&stack)?;
            let prepared = start.elapsed();
            let start = Instant::now();
            let transfer = plan.post(LIMIT).map_err(&stack)?;
            let posted = start.elapsed();
            transfer.wait().map_err(&stack)?;
            if round >= options.warmup.min(iterations) {
                figures.add(prepared, posted, start.elapsed());
            }
        }
        Ok(figures)
    };
    let each: Vec<Result<Figures>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let gone = |_| Err(Failure::Peer("a measuring thread panicked".to_string()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    });
    let mut all = Figures::default();
    for figures in each {
        all.merge(figures?);
    }
    Ok(all.row(way == Direction::Write, size, batch, options.threads))
}
