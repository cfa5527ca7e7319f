//! `mxl-bench`: what flows cost on this machine, within one host and between two processes.

mod beat;
mod copies;
mod cores;
mod figures;
mod flows;
mod local;
mod overview;
mod pair;
mod readers;
mod stream;
mod usage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mxl::{Domain, FlowDefinition, Rational};
use ofi_progress_bar::Progress;

use self::pair::{Places, Role};
use self::readers::{Task, Way};
use crate::{Error, Provider, Result, disk, program};

/// Measures flows: the time from a commit to a reader's return, beside a bare futex between the same cores; the cost
/// of each call; and copies to another process over shm and udp, one grain at a time. Run no other load
/// meanwhile.
#[derive(Clone, Debug, Parser)]
#[command(name = "mxl-bench", version, args_override_self = true)]
struct Options {
    #[command(subcommand)]
    what: Option<What>,
    /// Directory for the benchmark's domains, which it removes afterwards.
    #[arg(short, long, value_name = "DIR", default_value = "/dev/shm", global = true)]
    domain: PathBuf,
    /// Two cores: one for writer and initiator, one for readers and target.
    #[arg(long, value_name = "A,B", value_delimiter = ',', global = true)]
    cores: Vec<usize>,
    /// Number of commits, calls and copies of each kind.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    count: u64,
    /// Microseconds between two commits.
    #[arg(long, value_name = "US", default_value_t = 2000)]
    interval: u64,
    /// Number of readers that wait at the same time, each a process.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    readers: u16,
    /// Pixels of a line.
    #[arg(long, default_value_t = 1920, global = true)]
    width: u32,
    /// Lines of a picture.
    #[arg(long, default_value_t = 1080, global = true)]
    height: u32,
    /// Pictures per second: a number, or a fraction such as 60000/1001.
    #[arg(long, value_name = "RATE", value_parser = rate, default_value = "60000/1001", global = true)]
    rate: Rational,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Show no progress on standard error, where it is a terminal.
    #[arg(short, long, global = true)]
    quiet: bool,
    #[arg(long, hide = true, global = true)]
    role: Option<Role>,
    #[arg(long, hide = true, default_value = "shm", global = true)]
    provider: Provider,
    #[arg(long, hide = true, default_value = "blocked")]
    way: Way,
    #[arg(long, hide = true, default_value_t = 0)]
    first: u64,
    #[arg(long, hide = true, default_value_t = 0)]
    commits: u64,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Sends a flow at its own rate to another process, which checks the payload: losses, delays, and CPU time.
    Stream(stream::Options),
    /// One thread reads many flows that are written at the same moments.
    Flows(flows::Options),
}

fn rate(text: &str) -> std::result::Result<Rational, String> {
    let (over, under) = text.split_once('/').unwrap_or((text, "1"));
    match (over.parse(), under.parse()) {
        (Ok(over @ 1..=1_000_000), Ok(under @ 1..=1_000_000)) => Ok(Rational::new(over, under)),
        _ => Err("a rate is a number above 0, or a fraction such as 60000/1001".into()),
    }
}

/// The command line, for its man page and completions.
pub fn command() -> clap::Command {
    <Options as clap::CommandFactory>::command()
}

/// Runs the program.
pub fn main() -> ExitCode {
    program::run("mxl-bench", run)
}

/// A domain that is removed after the measurement.
struct Folder(PathBuf);

impl Folder {
    fn new(base: &Path, name: &str) -> Result<Self> {
        let path = base.join(format!("mxl-bench-{}-{name}", std::process::id()));
        let failed = |error| Error::Argument(format!("{}: {error}", path.display()));
        // Left by a process that had the same id and was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).map_err(failed)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(options: &Options) -> Result<()> {
    let mut definition = FlowDefinition::video("mxl-bench", options.width, options.height, options.rate)?;
    let cores = cores::chosen(&options.cores)?;
    // Both processes need the same flow.
    definition.id = mxl::Uuid::from_u128(0x6d78_6c2d_6265_4e63_8000_0000_0000_0001);
    if let Some(role) = options.role {
        let domain = Domain::open(&options.domain)?;
        let core = if role == Role::Initiator { cores.0 } else { cores.1 };
        return match (&options.what, role) {
            (_, Role::Reader) => {
                let task = Task { way: options.way, first: options.first, count: options.commits };
                readers::hear(&domain, &definition, task, core)
            }
            (Some(What::Stream(stream)), _) => {
                stream.take_part(role, &domain, &definition, options.provider, core)
            }
            (_, Role::Target) => copies::receive(&domain, &definition, options.provider, core),
            (_, Role::Initiator) => copies::send(&domain, &definition, options.provider, core, options.count),
        };
    }
    disk::warn("mxl-bench", &options.domain);
    let near = Folder::new(&options.domain, "near")?;
    if let Some(What::Flows(flows)) = &options.what {
        let progress = Progress::steps(options.quiet, Some(1));
        progress.begin("flows read by one thread");
        let report = flows.measure(&Domain::open(&near.0)?, &definition, cores)?;
        drop(progress);
        report.print(options.json);
        return Ok(());
    }
    let far = Folder::new(&options.domain, "far")?;
    let places = Places { near: &near.0, far: &far.0, cores };
    match &options.what {
        Some(What::Stream(stream)) => {
            let progress = Progress::steps(options.quiet, Some(stream.runs()));
            stream.measure(&definition, places, options.json, &progress)
        }
        _ => overview::measure(options, &definition, places),
    }
}
