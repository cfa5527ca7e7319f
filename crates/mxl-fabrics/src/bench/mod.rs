//! `mxl-bench`: what flows cost on this machine, within one host and between two processes.

mod figures;
mod hosts;
mod local;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use mxl::{Domain, FlowDefinition, Geometry, Rational};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use serde_json::json;

use self::figures::Figures;
use self::local::{Local, Plan, nanoseconds};
use crate::{Error, Provider, Result};

/// Measures flows: a commit to a reader's return beside a bare futex between the same cores, the calls, and copies to another
/// process over shm and udp with one grain in flight. Nothing else should run meanwhile.
#[derive(Clone, Debug, Parser)]
#[command(name = "mxl-bench", version)]
struct Options {
    /// Where domains are made, and removed afterwards.
    #[arg(short, long, value_name = "DIR", default_value = "/dev/shm")]
    domain: PathBuf,
    /// Two cores: of the writer and initiator, and of the readers and target.
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..)]
    cores: Vec<usize>,
    /// Commits, calls and copies of each kind.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    count: u64,
    /// Microseconds between two commits.
    #[arg(long, value_name = "US", default_value_t = 2000)]
    interval: u64,
    /// Readers that wait at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    readers: u16,
    /// Pixels of a line.
    #[arg(long, default_value_t = 1920)]
    width: u32,
    /// Lines of a picture.
    #[arg(long, default_value_t = 1080)]
    height: u32,
    /// For programs: JSON.
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    role: Option<String>,
    #[arg(long, hide = true, default_value = "shm")]
    provider: Provider,
}

/// The program.
pub fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // A closed standard output cannot be helped here.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mxl-bench: {error}");
            ExitCode::from(1)
        }
    }
}

/// A domain that goes with the measurement.
struct Folder(PathBuf);

impl Folder {
    fn new(base: &Path, name: &str) -> Result<Self> {
        let path = base.join(format!("mxl-bench-{}-{name}", std::process::id()));
        let failed = |error| Error::Argument(format!("{}: {error}", path.display()));
        std::fs::create_dir(&path).map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The cores that were chosen, or the first two that this process may use; one, if it has no more.
fn cores(chosen: &[usize]) -> Result<(usize, usize)> {
    if let [first, second] = *chosen {
        return Ok((first, second));
    }
    if !chosen.is_empty() {
        return Err(Error::Argument(format!("--cores takes two cores, not {}", chosen.len())));
    }
    let allowed = sched_getaffinity(Pid::from_raw(0))
        .map_err(|error| Error::Argument(format!("which cores there are: {error}")))?;
    let mut allowed = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    let first = allowed.next().unwrap_or(0);
    Ok((first, allowed.next().unwrap_or(first)))
}

fn run(options: &Options) -> Result<()> {
    let rate = Rational::new(60_000, 1001);
    let mut definition = FlowDefinition::video("mxl-bench", options.width, options.height, rate)?;
    let cores = cores(&options.cores)?;
    // Both processes need the same flow.
    definition.id = mxl::Uuid::from_u128(0x6d78_6c2d_6265_4e63_8000_0000_0000_0001);
    match options.role.as_deref() {
        None => measure(options, &definition, cores),
        Some(role) => {
            let domain = Domain::open(&options.domain)?;
            match role {
                "target" => hosts::receive(&domain, &definition, options.provider, cores.1),
                _ => hosts::send(&domain, &definition, options.provider, cores.0, options.count),
            }
        }
    }
}

/// What was measured between processes, of one provider.
struct Copied {
    provider: Provider,
    grains: Figures,
}

fn measure(options: &Options, definition: &FlowDefinition, cores: (usize, usize)) -> Result<()> {
    let base = &options.domain;
    let (near, far) = (Folder::new(base, "near")?, Folder::new(base, "far")?);
    let plan = Plan {
        domain: Domain::open(&near.0)?,
        definition: definition.clone(),
        cores,
        readers: options.readers.into(),
        count: options.count,
        interval: Duration::from_micros(options.interval),
    };
    let local = plan.run()?;
    let Geometry::Grains { payload, .. } = definition.geometry() else { return Ok(()) };
    let arguments = |folder: &Folder| {
        let folder = folder.0.display().to_string();
        let (width, height) = (options.width.to_string(), options.height.to_string());
        let (cores, count) = (format!("{},{}", cores.0, cores.1), options.count.to_string());
        let given = ["-d", &folder, "--cores", &cores, "-n", &count, "--width", &width, "--height", &height];
        given.map(str::to_owned).to_vec()
    };
    let mut copied = Vec::new();
    for provider in [Provider::Shm, Provider::Udp] {
        let grains = hosts::measure(provider, &arguments(&far), &arguments(&near))?;
        copied.push(Copied { provider, grains });
    }
    let memcpy = [1, RING].map(|pictures| memcpy(payload, pictures));
    let report = Report { cores, payload, readers: options.readers, memcpy, local, copied };
    if options.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// Pictures of a ring whose copies find nothing in a cache: 88 MB of 1080p.
const RING: usize = 16;

/// Bytes a second that one core copies, from each picture of a ring of `pictures` into the same of another.
fn memcpy(payload: u32, pictures: usize) -> f64 {
    let picture = payload as usize;
    let (from, mut to) = (vec![1_u8; picture * pictures], vec![2_u8; picture * pictures]);
    let times = (0..100).map(|index| {
        let at = index % pictures * picture;
        let begin = Instant::now();
        to[at..at + picture].copy_from_slice(std::hint::black_box(&from[at..at + picture]));
        std::hint::black_box(&mut to);
        nanoseconds(begin.elapsed())
    });
    f64::from(payload) * 1e9 / Figures::new(times.collect()).at(500).max(1) as f64
}

struct Report {
    cores: (usize, usize),
    payload: u32,
    readers: u16,
    /// Bytes a second: within caches, and from ring to ring.
    memcpy: [f64; 2],
    local: Local,
    copied: Vec<Copied>,
}

impl Report {
    fn rows(&self) -> [(&'static str, &'static str, &Figures); 6] {
        let Local { futex, blocked, polling, commit, commit_filled, read, missed: _ } = &self.local;
        [
            ("futex", "bare futex to its waiter's return", futex),
            ("blocked", "commit to a blocked reader's return", blocked),
            ("polling", "commit to a polling reader's return", polling),
            ("commit", "open and commit", commit),
            ("commit_filled", "open, fill and commit", commit_filled),
            ("read", "read of a grain that is there", read),
        ]
    }

    fn to_json(&self) -> String {
        let times: serde_json::Map<_, _> =
            self.rows().into_iter().map(|(key, _, figures)| (key.into(), figures.to_json())).collect();
        let copied = |Copied { provider, grains }: &Copied| {
            let rate = grains.rate();
            let value = json!({ "grains_per_s": rate, "bytes_per_s": rate * f64::from(self.payload), "ns": grains.to_json() });
            (provider.name().to_owned(), value)
        };
        let copies: serde_json::Map<_, _> = self.copied.iter().map(copied).collect();
        json!({
            "cores": [self.cores.0, self.cores.1],
            "readers": self.readers,
            "grain_bytes": self.payload,
            "ns": times,
            "missed": self.local.missed,
            "memcpy_bytes_per_s": self.memcpy[0],
            "memcpy_ring_bytes_per_s": self.memcpy[1],
            "one_in_flight": copies,
        })
        .to_string()
    }

    fn table(&self) -> String {
        let mut text = format!(
            "grains of {} bytes, cores {} and {}, readers: {}\n\n{:40} {:>10} {:>10} {:>10} {:>10}\n",
            self.payload, self.cores.0, self.cores.1, self.readers, "us", "p50", "p99", "p99.9", "max"
        );
        let mut line = |name: &str, figures: &Figures| {
            let [a, b, c, d] = figures.shown().map(|time| time as f64 / 1e3);
            // A `String` takes everything.
            let _ = writeln!(text, "{name:40} {a:>10.2} {b:>10.2} {c:>10.2} {d:>10.2}");
        };
        self.rows().iter().for_each(|(_, name, figures)| line(name, figures));
        for Copied { provider, grains } in &self.copied {
            line(&format!("a grain to another process over {provider}"), grains);
        }
        text.push('\n');
        let gigabytes = |rate: f64| rate * f64::from(self.payload) / 1e9;
        for Copied { provider, grains } in &self.copied {
            let rate = grains.rate();
            let _ = writeln!(text, "{provider}: {rate:.0} grains a second, {:.2} GB/s", gigabytes(rate));
        }
        let [hot, ring] = self.memcpy.map(|rate| rate / 1e9);
        let _ = writeln!(
            text,
            "memcpy: {ring:.2} GB/s from ring to ring, {hot:.2} GB/s of one picture again and again"
        );
        if self.local.missed > 0 {
            let _ = writeln!(
                text,
                "{} grains were overwritten before a reader came to them: let nothing else run, or take fewer readers",
                self.local.missed
            );
        }
        text
    }
}
