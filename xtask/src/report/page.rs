//! The page.

use std::fmt::Write;

use super::PLOTS;
use super::data::{Benches, Row, Sizes};
use super::plot::Over;

/// What the figures themselves do not say.
pub struct About {
    /// When.
    pub date: String,
    /// What was measured, with its version.
    pub versions: Vec<(String, String)>,
    /// How.
    pub commands: Vec<String>,
}

/// A plot over sizes or numbers, ours beside the peers'.
pub struct Sweep {
    /// Its name in the keys of `benches/src/sweeps.rs`.
    pub plot: &'static str,
    /// What its lines are, with the unit.
    pub axis: &'static str,
    /// For people who do not see it.
    title: &'static str,
    /// What it goes over.
    pub over: Over,
}

const fn sweep(plot: &'static str, axis: &'static str, title: &'static str, over: Over) -> Sweep {
    Sweep { plot, axis, title, over }
}

/// All of them, in the order of the page.
pub const SWEEPS: [Sweep; 5] = [
    sweep(
        "latency",
        "Shared memory: one way, microseconds",
        "Latency by size, over shared memory",
        Over::Sizes,
    ),
    sweep(
        "bandwidth",
        "Shared memory: bandwidth, GB/s",
        "Bandwidth by size, over shared memory",
        Over::Sizes,
    ),
    sweep("udp_latency", "Sockets: one way, microseconds", "Latency by size, over sockets", Over::Sizes),
    sweep("udp_bandwidth", "Sockets: bandwidth, GB/s", "Bandwidth by size, over sockets", Over::Sizes),
    sweep(
        "peers",
        "A message and its answer by turns, microseconds",
        "Latency by number of UDP peers",
        Over::Numbers,
    ),
];

const HEAD: &str =
    "| measurement | ours | against | theirs | times better (range) |\n|---|---|---|---|---|\n";

/// The page as Markdown.
pub fn markdown(benches: &Benches, sizes: &Sizes, about: &About) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut text, benches, sizes, about);
    text
}

fn write_page(text: &mut String, benches: &Benches, sizes: &Sizes, about: &About) -> std::fmt::Result {
    let machine = &benches.machine;
    let [server, client] = benches.cores;
    writeln!(text, "# Performance report\n\n<!-- Written by `cargo xtask report --write`. -->\n")?;
    writeln!(
        text,
        "{}. {}, {} cores, Linux {}; huge pages of private memory: {}. Server on core {server}, client on core {client}.\n",
        about.date, machine.cpu, machine.cores, machine.kernel, machine.huge_pages
    )?;
    for (what, version) in &about.versions {
        writeln!(text, "- {what}: {version}")?;
    }
    writeln!(
        text,
        "\nEach line is the median of pairs of runs, ours and theirs by turns on the same cores. More than 1 is better than the peer, whatever the \
         unit. The range is over the pairs.\n"
    )?;
    picture(text, "ratios", "How many times better than the peer, line by line")?;
    let losing: Vec<&Row> =
        benches.rows.iter().filter(|row| row.advantage().is_some_and(|times| times < 1.0)).collect();
    writeln!(text, "## Where it is slower\n")?;
    if losing.is_empty() {
        writeln!(text, "No line of this run.\n")?;
    } else {
        table(text, &losing)?;
    }
    writeln!(text, "## Every line\n")?;
    table(text, &benches.rows.iter().filter(|row| row.error().is_none()).collect::<Vec<_>>())?;
    let drawn = |sweep: &&Sweep| !benches.sweep(sweep.plot).is_empty();
    if SWEEPS.iter().any(|sweep| drawn(&sweep)) {
        writeln!(text, "## Ours and theirs by size, and by number of peers\n")?;
        SWEEPS
            .iter()
            .filter(drawn)
            .try_for_each(|sweep| picture(text, &format!("sweep-{}", sweep.plot), sweep.title))?;
    }
    writeln!(text, "## By size\n\nBetween two processes of this host, by `fi_pingpong`.\n")?;
    picture(text, "latency", "Latency by size")?;
    picture(text, "bandwidth", "Bandwidth by size")?;
    writeln!(text, "| bytes | provider | one way | messages | bandwidth |\n|---|---|---|---|---|")?;
    for transport in &sizes.transports {
        for size in &transport.rows {
            writeln!(
                text,
                "| {} | {} | {:.2} us | {:.2} M/s | {:.2} GB/s |",
                size.bytes, transport.provider, size.latency_us, size.rate_mps, size.bandwidth_gbps
            )?;
        }
    }
    let not_run = benches.not_run();
    if !not_run.is_empty() {
        writeln!(text, "\n## What did not run\n")?;
        not_run.iter().try_for_each(|what| writeln!(text, "- {what}"))?;
    }
    writeln!(text, "\n## How to repeat it\n")?;
    about.commands.iter().try_for_each(|command| writeln!(text, "- `{command}`"))
}

fn picture(text: &mut String, name: &str, title: &str) -> std::fmt::Result {
    writeln!(
        text,
        "<picture>\n<source media=\"(prefers-color-scheme: dark)\" srcset=\"{PLOTS}/{name}-dark.svg\">\n\
         <img alt=\"{title}\" src=\"{PLOTS}/{name}-light.svg\">\n</picture>\n"
    )
}

fn table(text: &mut String, rows: &[&Row]) -> std::fmt::Result {
    text.push_str(HEAD);
    for row in rows {
        let times = match (row.advantage(), row.advantages()) {
            (Some(times), Some((low, high))) => format!("{times:.2} ({low:.2} - {high:.2})"),
            _ => "-".into(),
        };
        let unsteady = if row.verdict == "unsteady" { ", unsteady" } else { "" };
        let (ours, theirs) = (row.show(row.ours), row.show(row.theirs));
        writeln!(text, "| {} | {ours} | {} | {theirs} | {times}{unsteady} |", row.title, row.against)?;
    }
    text.push('\n');
    Ok(())
}
