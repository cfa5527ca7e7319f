//! Many flows with one reading thread: grains of all flows are written at the same moment, and the thread sleeps until
//! the first one arrives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use mxl::{BatchHints, Domain, FlowDefinition, GrainReader, GrainWriter, Uuid, Wait, wait_any};
use serde_json::json;

use super::beat::{Schedule, sleep_until};
use super::cores::pin;
use super::figures::Figures;
use super::local::nanoseconds;
use super::usage::Usage;
use crate::{Error, Result};

/// Time for which a reader waits for a commit before it gives up.
const LONG: Duration = Duration::from_secs(10);
/// The index of the first grain.
const FIRST: u64 = 1000;

#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Number of flows.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    flows: u16,
    /// Duration in seconds.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
}

pub struct Report {
    flows: u16,
    /// Nanoseconds from each commit until the reader has the grain.
    heard: Figures,
    /// Grains that were overwritten before the reader reached them.
    missed: u64,
    /// The reading thread's share of a core.
    busy: f64,
}

impl Options {
    /// Measures.
    ///
    /// # Errors
    /// A core that does not exist, flows that cannot be created (a limit of files or maps), a reader that sees no
    /// commit for ten seconds.
    pub fn measure(
        &self,
        domain: &Domain,
        definition: &FlowDefinition,
        cores: (usize, usize),
    ) -> Result<Report> {
        let beat = Schedule::new(definition.geometry().rate(), 1, self.seconds)?;
        let rounds = beat.rounds;
        let mut writers = Vec::new();
        for flow in 0..self.flows {
            let mut definition = definition.clone();
            definition.id = Uuid::from_u128(definition.id.as_u128() + 1 + u128::from(flow));
            writers.push(domain.create_grains(&definition, &BatchHints::default())?.writer);
        }
        let readers = writers.iter().map(|writer| domain.read_grains(writer.id()));
        let readers = readers.collect::<Result<Vec<_>, _>>()?;
        let begin = Instant::now();
        let committed: Vec<AtomicU64> =
            (0..rounds * u64::from(self.flows)).map(|_| AtomicU64::new(0)).collect();
        let (heard, missed, busy) = std::thread::scope(|scope| {
            let reading = scope.spawn(|| read(&readers, rounds, cores.1, begin, &committed));
            let written = write(&writers, beat, cores.0, begin, &committed);
            let panicked = |_| Error::Argument("the reader panicked".into());
            let read = reading.join().map_err(panicked)?;
            written.and(read)
        })?;
        Ok(Report { flows: self.flows, heard: Figures::new(heard), missed, busy })
    }
}

fn write(
    writers: &[GrainWriter],
    beat: Schedule,
    core: usize,
    begin: Instant,
    committed: &[AtomicU64],
) -> Result<()> {
    pin(core)?;
    let start = Instant::now();
    for (round, committed) in (0..).zip(committed.chunks(writers.len())) {
        sleep_until(beat.due(start, round + 1, 0.0));
        for (writer, committed) in writers.iter().zip(committed) {
            let grain = writer.open(FIRST + round)?;
            committed.store(nanoseconds(begin.elapsed()), Ordering::Relaxed);
            grain.commit()?;
        }
    }
    Ok(())
}

/// Latencies from each commit, the number of missed grains, and the thread's share of a core.
fn read(
    readers: &[GrainReader],
    rounds: u64,
    core: usize,
    begin: Instant,
    committed: &[AtomicU64],
) -> Result<(Vec<u64>, u64, f64)> {
    pin(core)?;
    let (mut times, mut missed) = (Vec::with_capacity(committed.len()), 0);
    let mut next = vec![0; readers.len()];
    let usage = Usage::of_this_thread();
    while next.iter().any(|next| *next < rounds) {
        let watches: Vec<_> = readers.iter().map(GrainReader::watch).collect();
        for (flow, (reader, next)) in readers.iter().zip(&mut next).enumerate() {
            while *next < rounds {
                match reader.read(FIRST + *next, Wait::Not) {
                    Ok(_) => {
                        let at = *next as usize * readers.len() + flow;
                        let since = committed[at].load(Ordering::Relaxed);
                        times.push(nanoseconds(begin.elapsed()).saturating_sub(since));
                    }
                    Err(mxl::Error::TooLate { .. }) => missed += 1,
                    Err(mxl::Error::TooEarly { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
                *next += 1;
            }
        }
        let is_over = next.iter().all(|next| *next == rounds);
        if !is_over && !wait_any(&watches, Wait::For(LONG)) {
            return Err(Error::Argument("the writer stopped".into()));
        }
    }
    Ok((times, missed, usage.share()))
}

impl Report {
    pub fn print(&self, as_json: bool) {
        let Self { flows, heard, missed, busy } = self;
        if as_json {
            let said = json!({ "flows": flows, "ns": heard.to_json(), "missed": missed, "core": busy });
            println!("{said}");
            return;
        }
        let [p50, p99, p999, max] = heard.shown().map(|time| time as f64 / 1e3);
        println!("{flows} flows, one thread: {} grains read, {missed} missed", heard.len());
        println!("commit to the reader, us: p50 {p50:.1}, p99 {p99:.1}, p99.9 {p999:.1}, max {max:.1}");
        println!("the reader's share of its core: {:.1} %", busy * 100.0);
    }
}
