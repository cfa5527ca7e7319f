//! `ofi efa-bench`: a measurement of this library beside C's, for users with two EFA instances. No figure from a real
//! device has been taken with it yet.
//!
//! One instance waits and the other connects to it: `ofi efa-bench`, and `ofi efa-bench HOST`. They exchange
//! descriptions of their hosts ([`facts`]), run the same programs one after the other ([`plan`]), and the second writes
//! the page to send back ([`page`]). The programs are those beside this one, so it works from what is installed.

mod facts;
mod libraries;
mod meeting;
mod page;
mod plan;
mod side;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use facts::Facts;
use meeting::Link;
use page::Page;
use plan::EfaPlan;
use side::{Programs, Side};

use crate::failure::{Failure, Result};
use crate::output::{print, tell};

/// The port of the control connection; the next two are for the programs.
const PORT: u16 = 47_700;
/// The exit code of `ofi` where there is no device: `FI_ENODATA`, as of `fi_info`.
const NO_DEVICE: u8 = 61;

/// What to run, and with whom.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it on one instance, and then on the other with the first one's address. See docs/efa.md."
)]
pub struct Options {
    /// The waiting instance; without it, this instance waits
    host: Option<String>,
    /// The first of three ports that are open between the two (the security group must let TCP through)
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..=65_533))]
    port: u16,
    /// How long either instance waits for the other, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    wait: u64,
    /// How long one program may run, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// A few messages of two sizes, to check that everything runs
    #[arg(long)]
    quick: bool,
    /// The page that the connecting instance writes
    #[arg(long, value_name = "FILE", default_value = "efa-bench.md")]
    output: PathBuf,
    /// The folder of our libfabric.so.1, for C's programs on it [default: lib beside the folder of this program]
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,
    /// The commit from which the programs were built, for the page; both instances must then have the same
    #[arg(long, value_name = "HASH")]
    commit: Option<String>,
}

/// The command.
///
/// # Errors
/// No device, another version at the other end, a part that could not be reached or read, or a program that failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    let programs = Programs::beside_this_one(options.library.as_deref())?;
    let facts = Facts::of_this_host(&programs, options.commit.as_deref());
    if let Some(missing) = facts.missing() {
        tell(&format!("ofi efa-bench: no EFA device: {missing}"));
        return Ok(ExitCode::from(NO_DEVICE));
    }
    facts.notes().iter().for_each(|note| tell(&format!("note: {note}")));
    let mut link = Link::meet(options.host.as_deref(), options.port, Duration::from_secs(options.wait))?;
    let theirs = Facts::of_line(&link.exchange(&facts.to_line())?)?;
    facts.check_same_build(&theirs)?;
    let plan = EfaPlan::of(&facts, &theirs, options.quick);
    plan.left_out.iter().for_each(|note| tell(&format!("note: {note}")));
    let side = Side {
        programs: &programs,
        c_program: facts.c_program(),
        own_nic: facts.nics().first().cloned().unwrap_or_default(),
        host: options.host.as_deref(),
        port: options.port + 1,
        limit: Duration::from_secs(options.limit),
    };
    let mut page = Page::default();
    for (nth, measurement) in plan.measurements.iter().enumerate() {
        tell(&format!("--- {} of {}: {}", nth + 1, plan.measurements.len(), measurement.title()));
        let result = side.run(measurement);
        // Both continue together, even after one side failed.
        let well = link.told(result.is_ok())?;
        page.add(measurement, &facts, if well { result } else { result.and(Err(OTHER_SIDE.into())) });
    }
    if options.host.is_some() {
        page.write(&options.output, &[("client", &facts), ("server", &theirs)], &plan, options.quick)?;
        let place = std::path::absolute(&options.output).unwrap_or_else(|_| options.output.clone());
        print(&format!(
            "{}\nAttach it to an issue: no figures from EFA devices exist yet.\n",
            place.display()
        ))?;
    }
    match page.failures() {
        [] => Ok(ExitCode::SUCCESS),
        failures => Err(Failure::Peer(failures.join("\n"))),
    }
}

const OTHER_SIDE: &str = "the other side failed; see its output";
