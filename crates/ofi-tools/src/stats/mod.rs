//! `ofi stats`: the counters of this host's endpoints, for people, scripts and Prometheus.

mod collect;
mod histogram;
mod parse;
mod prometheus;

use std::io;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

pub use collect::{Collected, collect, directory};
pub use histogram::Histogram;

use crate::failure::{Failure, Result};
use crate::output;

/// A process that exports its statistics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// Its name, with control characters escaped.
    pub program: String,
    /// Its open endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// An endpoint, or a shared receive context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Its provider.
    pub provider: String,
    /// Its domain.
    pub domain: String,
    /// `RDM`, `MSG`, `DGRAM` or `SRX`.
    pub kind: String,
    /// Its address; empty without one.
    pub address: String,
    /// Its counters.
    pub statistics: Vec<Statistic>,
    /// Its histograms of durations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub histograms: Vec<Histogram>,
}

impl Endpoint {
    /// The counter of this name; 0 if there is none.
    pub fn value(&self, name: &str) -> u64 {
        self.statistics.iter().find(|one| one.name == name).map_or(0, |one| one.value)
    }
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistic {
    /// A stable name.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// A description.
    pub help: String,
}

/// The command line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Programs export their statistics if FI_EXPORT_STATISTICS=1 is in their environment.")]
pub struct Options {
    /// Show only this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print Prometheus's text format, as node_exporter's textfile collector reads it
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Prints the statistics once.
///
/// # Errors
/// No process exports statistics, or standard output cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut collected = collect(&directory()?);
    collected.processes.retain(|process| options.pid.is_none_or(|pid| pid == process.pid));
    collected.problems.iter().for_each(|problem| output::tell(&format!("ofi: {problem}")));
    if collected.processes.is_empty() {
        return Err(nobody());
    }
    if options.json {
        output::print_json(&json!({ "processes": collected.processes }))?;
    } else if options.prometheus {
        output::print(&prometheus::text(&collected.processes))?;
    } else {
        output::print(&text(&collected.processes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The failure if no process exports statistics.
pub fn nobody() -> Failure {
    let error = io::Error::from_raw_os_error(libc::ENODATA);
    Failure::system(
        "no process of this user exports its statistics (start it with FI_EXPORT_STATISTICS=1)",
        error,
    )
}

/// For people.
fn text(processes: &[Process]) -> String {
    let mut text = String::new();
    for process in processes {
        text.push_str(&format!("{} {}\n", process.pid, process.program));
        for endpoint in &process.endpoints {
            let Endpoint { provider, domain, kind, address, .. } = endpoint;
            text.push_str(&format!("  {provider} {domain} {kind} {address}\n"));
            for one in endpoint.statistics.iter().filter(|one| one.value > 0) {
                text.push_str(&format!("    {:<26} {:>16}  {}\n", one.name, one.value, one.help));
            }
            for one in &endpoint.histograms {
                text.push_str(&format!("    {one}\n"));
            }
        }
    }
    text
}
