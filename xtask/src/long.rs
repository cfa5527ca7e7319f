//! `cargo xtask nightly`: what takes longer than a commit may wait, and a table of it for `docs/nightly.md`.

use std::fmt::Write as _;

use crate::step::{Report, Row, output, root};
use crate::{checks, nightly, nixl};

/// How much of each.
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
    /// Runs of transfers over rails, with processes that are killed and rails that are cut at random.
    #[arg(long, default_value_t = 200)]
    storms: u64,
    /// Minutes of mixed operations.
    #[arg(long, default_value_t = 60)]
    soak: u64,
    /// Seconds for each fuzz target.
    #[arg(long, default_value_t = 600)]
    fuzz: u32,
    /// Runs of NIXL for each size of blocks, through shared memory and through sockets.
    #[arg(long, default_value_t = 200)]
    nixl: usize,
}

/// Runs all of it, prints the table, and writes it to `docs/nightly.md`.
pub fn run(report: &mut Report, amount: Amount) {
    let Amount { seeds, hours, kills, storms, soak, fuzz, nixl } = amount;
    checks::simulate(report, seeds, hours);
    report.add(&format!("{kills} kills"), || checks::kills(kills));
    report.add("deaths at every step, of two transports", checks::deaths);
    report.add("10,000 peers of one endpoint, over sockets", || checks::peers(10_000));
    report.add(&format!("{storms} storms over rails"), || checks::storms(storms));
    report.add(&format!("soak of {soak} minutes"), || checks::soak(soak));
    nixl::test(report, Some(nixl));
    nightly::fuzz(report, &nightly::Fuzz { seconds: fuzz, no_run: false, target: None });
    let text = document(&amount, report.rows());
    print!("{text}");
    let path = root().join("docs/nightly.md");
    report.add("docs/nightly.md", || {
        std::fs::write(&path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(crate::step::Outcome::Passed)
    });
}

fn document(amount: &Amount, rows: &[Row]) -> String {
    let said = |program: &str, args: &[&str]| {
        output(crate::step::command(program).args(args))
            .map_or_else(|_| "unknown".into(), |text| text.trim().to_string())
    };
    let (tree, date) =
        (said("git", &["rev-parse", "--short", "HEAD"]), said("date", &["-u", "+%Y-%m-%d %H:%M"]));
    let Amount { seeds, hours, kills, storms, soak, fuzz, nixl } = amount;
    let mut text = format!(
        "# The last nightly run\n\n<!-- Written by `cargo xtask nightly`. -->\n\n\
         On the tree of {tree}, ended {date} UTC, with `--seeds {seeds} --hours {hours} --kills {kills} --storms {storms} --soak {soak} --fuzz {fuzz} --nixl {nixl}`.\n\n\
         | step | outcome | seconds |\n|---|---|---|\n"
    );
    for Row { name, outcome, seconds } in rows {
        let _ = writeln!(text, "| {name} | {outcome} | {seconds:.0} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_step() {
        let amount = Amount { seeds: 5, hours: 1, kills: 2, storms: 7, soak: 3, fuzz: 4, nixl: 6 };
        let rows = [Row { name: "2 kills".into(), outcome: "passed".into(), seconds: 1.4 }];
        let text = document(&amount, &rows);
        assert!(
            text.contains("--seeds 5 --hours 1 --kills 2 --storms 7 --soak 3 --fuzz 4 --nixl 6"),
            "{text}"
        );
        assert!(text.ends_with("|---|---|---|\n| 2 kills | passed | 1 |\n"), "{text}");
    }
}
