//! `ofi top`: the endpoints of this host's processes and their current rates.

mod rates;
mod screen;

use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::failure::Result;
use crate::output;
use crate::stats::{self, Collected};
use rates::{Row, rows};

/// The command line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Programs export their statistics if FI_EXPORT_STATISTICS=1 is in their environment. Keys: q quits, s sorts by the next column."
)]
pub struct Options {
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Take two samples, print the rates between them, and exit
    #[arg(long)]
    once: bool,
    /// Print JSON, with --once
    #[arg(long, requires = "once")]
    json: bool,
}

/// Shows the rates until the user quits, or once.
///
/// # Errors
/// With `--once`, no process exports statistics; or the terminal cannot be used.
pub fn run(options: &Options) -> Result<ExitCode> {
    let directory = stats::directory()?;
    let interval = Duration::from_secs(options.interval);
    if !options.once {
        return screen::run(&directory, interval).map(|()| ExitCode::SUCCESS);
    }
    let (begin, first) = (Instant::now(), stats::collect(&directory));
    if first.processes.is_empty() {
        first.problems.iter().for_each(|problem| output::tell(&format!("ofi: {problem}")));
        return Err(stats::nobody());
    }
    sleep(interval);
    let second = stats::collect(&directory);
    let rows = rows(&first, &second, begin.elapsed());
    if options.json {
        output::print_json(&json!({ "endpoints": rows }))?;
    } else {
        let line = |cells: [String; Row::COLUMNS.len()]| {
            let cells: Vec<String> = cells.iter().map(|cell| format!("{cell:>12}")).collect();
            cells.join(" ") + "\n"
        };
        let mut text = line(Row::COLUMNS.map(str::to_string));
        rows.iter().for_each(|row| text.push_str(&line(row.cells())));
        output::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
