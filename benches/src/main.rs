//! `cargo run --release -p ofi-benches`: this stack beside libfabric and UCX, with a verdict on each line.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
#[cfg(target_arch = "x86_64")]
use ofi_benches::counts;
use ofi_benches::{
    Error, Result, bare, bounce, instructions, lines,
    machine::Machine,
    ours::Role,
    pairs::Policy,
    peers::{self, packages},
    report,
    report::Report,
    rows, scale, sweeps, table, veth, worker,
};

/// Measures this stack beside libfabric and UCX over shared memory, and prints a table with a verdict on each line.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Cores of the server and the client.
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// Pairs of runs to keep for each line.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Pairs to try at most for each line: those during which the cores moved, or something else ran, are dropped.
    #[arg(long, default_value_t = 25)]
    attempts: usize,
    /// How far the bounces of a pair may differ, in percent.
    #[arg(long, default_value_t = 10.0)]
    tolerance: f64,
    /// Drop pairs whose bounce is longer than this many nanoseconds.
    #[arg(long)]
    longest_bounce: Option<f64>,
    /// Drop pairs whose processes waited for their cores for more than this share of a run, in percent.
    #[arg(long, default_value_t = 3.0)]
    delayed: f64,
    /// Wait before each pair for the cores to be idle, at most this many seconds.
    #[arg(long, default_value_t = 20)]
    patience: u64,
    /// Only lines whose key contains this; may be given several times. Keys are in the JSON.
    #[arg(long)]
    only: Vec<String>,
    /// Measure sizes of messages and numbers of peers too, for the plots of `cargo xtask report`.
    #[arg(long)]
    sweeps: bool,
    /// Write the report as JSON into this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Fail rather than install a peer's package.
    #[arg(long)]
    no_install: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the bare cache-line bounce, ten times.
    Bounce,
    /// Counts instructions under callgrind and checks them against a budget.
    Instructions {
        /// The document with the table of budgets.
        #[arg(long, default_value = "docs/hot-path.md")]
        budget: PathBuf,
        /// Write the measured counts into the table.
        #[arg(long)]
        write: bool,
    },
    #[cfg(target_arch = "x86_64")]
    /// Counts locked instructions, system calls, allocations and clock reads of the same paths, by
    /// single-stepping.
    Counts {
        /// The document with the table.
        #[arg(long, default_value = "docs/hot-path.md")]
        budget: PathBuf,
        /// Write the measured counts into the table.
        #[arg(long)]
        write: bool,
    },
    /// One side of one of our measurements; started by other commands.
    #[command(hide = true)]
    Worker {
        /// Which side.
        #[arg(long)]
        role: Role,
        /// What to do, as JSON.
        #[arg(long)]
        job: String,
    },
    /// Measures UDP between two network namespaces joined by a veth pair of 1,500 bytes, beside bare sockets
    /// and under losses.
    Veth {
        /// Rounds: each measures everything once.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Write the figures as JSON into this file.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Set in the near namespace.
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Measures the cost of a row of packets at each end over a path of 1,500 bytes, beside bare sockets, all
    /// in one thread.
    Rows {
        /// Samples of each kind, of 8 MiB each.
        #[arg(long, default_value_t = 300)]
        samples: usize,
        /// Set in the inner namespace.
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// One side of a measurement of bare sockets; started by other commands.
    #[command(hide = true)]
    Bare {
        /// Which side.
        #[arg(long)]
        role: Role,
        /// The receiver copies the received data once more.
        #[arg(long)]
        copies: bool,
    },
    /// Measures what thousands cost: regions, sessions, flows, idle ends, streams.
    Scale {
        /// Only rows whose key contains this.
        #[arg(long)]
        only: Option<String>,
        /// Measure an earlier build of this program beside this one, by turns.
        #[arg(long)]
        beside: Option<PathBuf>,
        /// Measure one row in this process, and print its figures as JSON.
        #[arg(long, hide = true)]
        row: Option<String>,
    },
    /// One path whose instructions are counted; started under callgrind.
    #[command(hide = true)]
    Path {
        /// Its name.
        name: String,
        /// How often.
        #[arg(long)]
        count: u64,
    },
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ofi-benches: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Result<ExitCode> {
    let &[server, client] = options.cores.as_slice() else {
        return Err(Error::Stack("--cores takes two numbers".into()));
    };
    let cores = [server, client];
    match &options.command {
        None => compare(&options, cores),
        Some(Command::Bounce) => {
            for _ in 0..10 {
                println!("{:.1} ns", bounce::measure(cores)?);
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Instructions { budget, write }) => {
            let checked = instructions::check(budget, *write)?;
            for row in &checked {
                let verdict = if row.is_within() { "pass" } else { "FAIL" };
                println!(
                    "{verdict}  {:40} {:6} instructions, budget {:6}",
                    row.path, row.measured, row.budget
                );
            }
            Ok(if checked.iter().all(instructions::Checked::is_within) {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        #[cfg(target_arch = "x86_64")]
        Some(Command::Counts { budget, write }) => {
            let checked = counts::check(budget, *write)?;
            for row in &checked {
                let verdict = if row.is_within() { "pass" } else { "FAIL" };
                let [locked, calls, allocations, clock] = row.found;
                println!(
                    "{verdict}  {:60} {locked:6.2} locked, {calls:5.2} system calls, {allocations:5.2} allocations, {clock:5.2} clock reads",
                    row.path
                );
            }
            let within = checked.iter().all(counts::Checked::is_within);
            Ok(if within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Command::Worker { role, job }) => worker::main(job, *role).map(|()| ExitCode::SUCCESS),
        Some(Command::Veth { rounds, json, inside }) => {
            veth::main(*rounds, json.as_deref(), *inside, cores).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Rows { samples, inside }) => {
            rows::main(*samples, *inside, client).map(|()| ExitCode::SUCCESS)
        }
        Some(Command::Scale { row: Some(row), .. }) => scale::row(row).map(|()| ExitCode::SUCCESS),
        Some(Command::Scale { only, beside, row: None }) => {
            let are_within = scale::main(only.as_deref(), beside.as_deref())?;
            Ok(if are_within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Some(Command::Bare { role, copies }) => bare::main(*role, *copies).map(|()| ExitCode::SUCCESS),
        Some(Command::Path { name, count }) => instructions::main(name, *count).map(|()| ExitCode::SUCCESS),
    }
}

fn compare(options: &Options, cores: [usize; 2]) -> Result<ExitCode> {
    packages::ensure(!options.no_install)?;
    bounce::measure(cores)?; // missing cores are one error, not one for each line
    let policy = Policy {
        wanted: options.pairs,
        attempts: options.attempts,
        tolerance: options.tolerance / 100.0,
        delayed_share: options.delayed / 100.0,
        patience: Duration::from_secs(options.patience),
        longest_bounce_ns: options.longest_bounce,
    };
    let chosen = |key: &str| options.only.is_empty() || options.only.iter().any(|part| key.contains(part));
    let sweeps = sweeps::lines().filter(|_| options.sweeps);
    let lines: Vec<_> = lines::LINES.iter().chain(sweeps).filter(|line| chosen(line.key)).collect();
    let (machine, versions) = (Machine::read(), peers::versions());
    let mut report = Report { machine, versions, cores, rows: Vec::with_capacity(lines.len()) };
    for (at, line) in lines.iter().enumerate() {
        eprintln!("[{}/{}] {} ({})", at + 1, lines.len(), line.title, line.key);
        report.rows.push(report::measure(line, &policy, cores));
        if let Some(path) = &options.json {
            // After each line, so that an interrupted run keeps its results.
            let json =
                serde_json::to_string_pretty(&report).map_err(|error| Error::Link(error.to_string()))?;
            fs::write(path, json + "\n").map_err(Error::io(path.display().to_string()))?;
        }
    }
    println!("{}", table::render(&report));
    Ok(ExitCode::from(report.exit_code()))
}
