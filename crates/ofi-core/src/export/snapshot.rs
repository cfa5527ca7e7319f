//! The text that a reader gets.
//!
//! The text consists of lines, and each line of fields separated by tabs. A field that a program or a peer chose is
//! escaped as in Rust source, so that it contains no tab or line end:
//!
//! - `ofi-statistics`, the version (1), the process id, the program's name: the first line
//! - `endpoint`, provider, domain, kind, address: begins the section of one endpoint
//! - a statistic's name, its value, what it counts
//! - `histogram`, its name, labels (`name=value`, separated by semicolons), the sum of the times in microseconds, their
//!   numbers by duration, separated by commas (below 1 us, then below 2, 4, 8 and so on, and the rest), and what is
//!   timed
//! - `end`: the last line. If it is missing, the text was truncated.

use std::fmt::Write;
use std::sync::Arc;

use ofi_api::Statistic;

use super::Counted;

/// Names of an endpoint or a shared receive context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The provider's name.
    pub provider: String,
    /// The domain's name.
    pub domain: String,
    /// The kind: `RDM`, `MSG`, `DGRAM`, `SRX`; `AGENT` for what the rails of an agent do together.
    pub kind: String,
    /// Its address as text; empty without one.
    pub address: String,
}

/// A histogram of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// A stable name, which ends with `_seconds`.
    pub name: &'static str,
    /// What is timed.
    pub help: &'static str,
    /// The labels that distinguish it from others of this name: names and values.
    pub labels: Vec<(&'static str, String)>,
    /// Sum of the times, in microseconds.
    pub sum_us: u64,
    /// Bucket `n` counts times below `2^n` microseconds that no earlier bucket counts; the last one counts all longer
    /// ones.
    pub buckets: Vec<u64>,
}

impl Histogram {
    fn line(&self) -> String {
        let Self { name, help, labels, sum_us, buckets } = self;
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}={}", value.escape_default())).collect();
        let buckets: Vec<String> = buckets.iter().map(u64::to_string).collect();
        format!("histogram\t{name}\t{}\t{sum_us}\t{}\t{help}", labels.join(";"), buckets.join(","))
    }
}

/// The text about `members`, in the order in which they were opened.
pub fn text(members: &[Arc<dyn Counted>]) -> String {
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "ofi-statistics\t1\t{}\t{}",
        std::process::id(),
        program.trim_end_matches('\n').escape_default()
    );
    for member in members {
        // Counters first: an endpoint that is closed meanwhile has none.
        let (counts, histograms) = (Statistic::add_up(member.counts()), member.histograms());
        let about = member.about();
        let [provider, domain, kind, address] = [about.provider, about.domain, about.kind, about.address]
            .map(|field| field.escape_default().to_string());
        let _ = writeln!(text, "endpoint\t{provider}\t{domain}\t{kind}\t{address}");
        for one in counts {
            let _ = writeln!(text, "{}\t{}\t{}", one.name, one.value, one.help);
        }
        for one in histograms {
            let _ = writeln!(text, "{}", one.line());
        }
    }
    text.push_str("end\n");
    text
}
