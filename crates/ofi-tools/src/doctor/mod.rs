//! `ofi doctor`: finds settings of this host that cost speed, and says what to change.
//!
//! If possible, a check tries the operation (locks memory, reads another process's memory, sends segmented datagrams),
//! since limits, sandboxes and namespaces may forbid what files under `/proc` allow. Checks are in order of effect.

mod check;
mod devices;
#[allow(unsafe_code)]
mod ethtool;
mod files;
mod gpu;
mod memory;
mod network;
mod offloads;
mod processor;
mod system;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;

pub use check::{Check, CheckState};
pub use memory::ReadMemory;

use crate::failure::Result;
use crate::output;
use files::Files;

/// Exit code when something on this host could be faster.
pub const LACKING: u8 = 2;

/// The command line.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing to change, 2 something to change, others are errors of the system."
)]
pub struct Options {
    /// Print all results as JSON
    #[arg(long)]
    json: bool,
    /// Look for the files of /sys, /proc and /dev below this directory; what can be tried is tried on this host
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Runs all checks and prints them.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(options: &Options) -> Result<ExitCode> {
    let checks = all(&Files::below(&options.root));
    let lacking = checks.iter().filter(|check| check.state == CheckState::Lacking).count();
    if options.json {
        output::print_json(&json!({ "checks": checks, "lacking": lacking }))?;
    } else {
        output::print(&text::report(&checks))?;
    }
    Ok(if lacking == 0 { ExitCode::SUCCESS } else { ExitCode::from(LACKING) })
}

/// All checks, the one with the largest effect first.
fn all(files: &Files) -> Vec<Check> {
    vec![
        devices::infiniband(files),
        devices::interfaces(files),
        gpu::direct(files),
        processor::cores(),
        memory::single_copies(files),
        network::buffers(files),
        network::segments(),
        offloads::offloads(files),
        processor::governor(files),
        system::membarrier(),
        memory::huge_pages(files),
        memory::locked(),
        system::open_files(),
        system::io_uring(),
    ]
}
