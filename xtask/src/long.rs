//! `cargo xtask nightly`: checks that take too long for a commit, and the table of their results, target/nightly.md.

use std::fmt::Write as _;
use std::fs;

use clap::ValueEnum;

use crate::step::{Outcome, Report, Row, command, output, target_dir};
use crate::{StepResult, checks, mpi, nightly, nixl, vm};

/// The parts and their amounts.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Run only these parts; the table keeps the rows of the others.
    #[arg(value_enum)]
    parts: Vec<Part>,
    #[command(flatten)]
    amount: Amount,
}

/// The amount of each part.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Amount {
    /// Cases of each property of the protocol.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// Hours of virtual time.
    #[arg(long, default_value_t = 24)]
    hours: u64,
    /// Processes that are killed at random.
    #[arg(long, default_value_t = 1_000)]
    kills: u64,
    /// Peers of one endpoint, over sockets, and of one of verbs on the simulated device.
    #[arg(long, default_value_t = 10_000)]
    peers: u64,
    /// Connected peers of one endpoint of verbs, on the simulated device: five descriptors each.
    #[arg(long, default_value_t = 3_900)]
    connections: u64,
    /// Runs of transfers over rails, with processes killed and rails cut at random.
    #[arg(long, default_value_t = 200)]
    storms: u64,
    /// Minutes of mixed operations.
    #[arg(long, default_value_t = 60)]
    soak: u64,
    /// Seconds for each fuzz target.
    #[arg(long, default_value_t = 3600)]
    fuzz: u32,
    /// Runs of NIXL for each size of blocks, through shared memory and through sockets.
    #[arg(long, default_value_t = 200)]
    nixl: usize,
}

/// A part of the nightly run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Simulate,
    Kills,
    Deaths,
    Peers,
    Connections,
    Storms,
    SoftRoce,
    Soak,
    Nixl,
    Mpi,
    Fuzz,
}

impl Part {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
    }

    /// The amount of a part, as options of the command.
    fn amount(self, amount: &Amount) -> String {
        let Amount { seeds, hours, kills, peers, connections, storms, soak, fuzz, nixl } = amount;
        match self {
            Self::Simulate => format!("`--seeds {seeds} --hours {hours}`"),
            Self::Kills => format!("`--kills {kills}`"),
            Self::Deaths => "every step".to_string(),
            Self::SoftRoce => "modules of the suite".to_string(),
            Self::Peers => format!("`--peers {peers}`"),
            Self::Connections => format!("`--connections {connections}`"),
            Self::Storms => format!("`--storms {storms}`"),
            Self::Soak => format!("`--soak {soak}`"),
            Self::Nixl => format!("`--nixl {nixl}`"),
            Self::Mpi => "mpi4py's own tests".to_string(),
            Self::Fuzz => format!("`--fuzz {fuzz}`"),
        }
    }

    fn run(self, report: &mut Report, amount: &Amount) {
        let Amount { seeds, hours, kills, peers, connections, storms, soak, fuzz, nixl } = *amount;
        match self {
            Self::Simulate => checks::simulate(report, seeds, hours),
            Self::Kills => report.add("peers killed at random", || checks::kills(kills)),
            Self::Deaths => report.add("deaths at every step, of two transports", checks::deaths),
            Self::Peers => report.add("peers of one endpoint, over sockets", || checks::peers(peers)),
            Self::Connections => {
                report.add("connected peers of verbs, simulated", || checks::connections(connections));
                report.add("connections of one endpoint of verbs, simulated", || checks::peers_of_one(peers));
            }
            Self::Storms => report.add("storms over rails", || checks::storms(storms)),
            Self::SoftRoce => vm::suite::nightly(report),
            Self::Soak => report.add("minutes of soak", || checks::soak(soak)),
            Self::Nixl => nixl::test(report, Some(nixl)),
            Self::Mpi => mpi::test(report, true),
            Self::Fuzz => {
                nightly::fuzz(report, &nightly::Fuzz { seconds: fuzz, no_run: false, target: None });
            }
        }
    }
}

/// Runs the parts. After each it updates target/nightly.md and keeps the rows of parts that did not run. The whole
/// takes hours, so an interrupted run still has its table.
pub fn run(report: &mut Report, options: &Options) {
    let parts = if options.parts.is_empty() { Part::value_variants() } else { &options.parts };
    for &part in parts {
        let before = report.rows().len();
        part.run(report, &options.amount);
        let lines: Vec<String> =
            report.rows()[before..].iter().map(|row| line(part, &options.amount, row)).collect();
        lines.iter().for_each(|line| println!("{line}"));
        report.add("the table of results", || write(part, &lines));
    }
}

/// Replaces a part's rows in the page.
fn write(part: Part, lines: &[String]) -> StepResult {
    let path = target_dir("nightly.md");
    // Before the first run it does not exist.
    let old = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, page(&old, part, lines)).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Outcome::Passed)
}

fn line(part: Part, amount: &Amount, Row { name, outcome, seconds }: &Row) -> String {
    let said = |program: &str, args: &[&str]| {
        output(command(program).args(args)).map(|text| text.trim().to_string())
    };
    let tree = said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(|_| "unknown".into());
    let date = said("date", &["-u", "+%Y-%m-%d %H:%M"]).unwrap_or_else(|_| "unknown".into());
    let (part, amount) = (part.name(), part.amount(amount));
    format!("| {part} | {name} | {amount} | {outcome} | {seconds:.0} | {tree} | {date} |")
}

fn page(old: &str, ran: Part, lines: &[String]) -> String {
    let mut text = "# The last nightly run\n\n\
                    Each part with its amount, what became of it, how long it took, the tree that it ran on and when it \
                    ended.\n\n\
                    | part | step | amount | outcome | seconds | tree | ended, UTC |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_string();
    let mut never = Vec::new();
    for &part in Part::value_variants() {
        let begin = format!("| {} |", part.name());
        let kept = old.lines().filter(|line| part != ran && line.starts_with(&begin));
        let new = lines.iter().filter(|_| part == ran).map(String::as_str);
        let lines: Vec<&str> = kept.chain(new).collect();
        if lines.is_empty() {
            never.push(part.name());
        }
        for line in lines {
            let _ = writeln!(text, "{line}");
        }
    }
    if !never.is_empty() {
        let _ = writeln!(
            text,
            "\nNo run of these parts is recorded here; `cargo xtask nightly kills` runs the first and writes its row, and so on:\n{}.",
            never.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMOUNT: Amount = Amount {
        seeds: 5,
        hours: 1,
        kills: 2,
        peers: 8,
        connections: 9,
        storms: 7,
        soak: 3,
        fuzz: 4,
        nixl: 6,
    };

    #[test]
    fn a_part_that_runs_again_replaces_its_rows_and_no_others() {
        let row = |seconds| Row { name: "peers killed at random".into(), outcome: "passed".into(), seconds };
        let [first, second] = [1.4, 9.6].map(|seconds| line(Part::Kills, &AMOUNT, &row(seconds)));
        assert!(
            first.starts_with("| kills | peers killed at random | `--kills 2` | passed | 1 | "),
            "{first}"
        );
        let page_1 = page("", Part::Kills, std::slice::from_ref(&first));
        let soak = "| soak | minutes of soak | `--soak 3` | passed | 180 | abc | 2026 |".to_string();
        let page_2 = page(&page_1, Part::Soak, std::slice::from_ref(&soak));
        assert!(page_2.contains(&format!("|---|\n{first}\n{soak}\n\nNo run of these parts")), "{page_2}");
        assert!(
            page_2.contains("\n`simulate`, `deaths`, ") && page_2.ends_with("`nixl`, `mpi`, `fuzz`.\n"),
            "{page_2}"
        );
        let page_3 = page(&page_2, Part::Kills, std::slice::from_ref(&second));
        assert!(page_3.contains(&format!("|---|\n{second}\n{soak}\n\n")), "{page_3}");
    }
}
