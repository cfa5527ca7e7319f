//! The page.

use std::fmt::Write;

use super::PLOTS;
use super::data::{Benches, PERCENTILES, Row, Veth};
use super::plot::Over;

/// Information that the figures do not contain.
pub struct About {
    /// The date.
    pub date: String,
    /// The commands.
    pub commands: Vec<String>,
}

/// A plot over sizes or numbers, ours beside the peers'.
pub struct Sweep {
    /// Its name in the keys of `benches/src/sweeps.rs`.
    pub plot: &'static str,
    /// The quantity of its lines, with the unit.
    pub axis: &'static str,
    /// Alternative text.
    title: &'static str,
    /// The horizontal axis.
    pub over: Over,
}

const fn sweep(plot: &'static str, axis: &'static str, title: &'static str, over: Over) -> Sweep {
    Sweep { plot, axis, title, over }
}

/// All of them, in the order of the page.
pub const SWEEPS: [Sweep; 6] = [
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
    sweep(
        "threads",
        "64 B messages over shared memory, M/s, by threads at each end",
        "Message rate by number of threads",
        Over::Few,
    ),
];

const HEAD: &str =
    "| measurement | ours | against | theirs | times better (range) |\n|---|---|---|---|---|\n";

/// The page as Markdown.
pub fn markdown(benches: &Benches, veth: Option<&Veth>, about: &About) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut text, benches, veth, about);
    text
}

fn write_page(text: &mut String, benches: &Benches, veth: Option<&Veth>, about: &About) -> std::fmt::Result {
    let machine = &benches.machine;
    let [server, client] = benches.cores;
    writeln!(text, "# Performance report\n\n<!-- Written by `cargo xtask report --write`. -->\n")?;
    writeln!(
        text,
        "{}. {}, {} cores, Linux {}; huge pages of private memory: {}.\nServer on core {server}, client on core {client}.\n",
        about.date, machine.cpu, machine.cores, machine.kernel, machine.huge_pages
    )?;
    for (what, version) in &benches.versions {
        writeln!(text, "- {what}: {version}")?;
    }
    writeln!(
        text,
        "\nEach line is the median of pairs of runs, ours and theirs by turns on the same cores. More than 1 is better than \
         the\npeer, whatever the unit. The range is over the pairs. Lines \"64 buffers at each end\" are of memory that is \
         not in the\ncache; all others use one buffer again and again, as the peers' programs do.\n"
    )?;
    picture(text, "ratios", "How many times better than the peer, line by line")?;
    let (losing, others): (Vec<&Row>, Vec<&Row>) =
        benches.rows.iter().partition(|row| row.advantage().is_some_and(|times| times < 1.0));
    writeln!(text, "## Where it is slower\n")?;
    if losing.is_empty() {
        writeln!(text, "No line of this run.\n")?;
    } else {
        table(text, &losing)?;
    }
    distribution(text, benches)?;
    if let Some(veth) = veth {
        losses(text, veth)?;
    }
    writeln!(text, "## Every other line\n")?;
    table(text, &others.into_iter().filter(|row| row.error().is_none()).collect::<Vec<_>>())?;
    let drawn = |sweep: &&Sweep| !benches.sweep(sweep.plot).is_empty();
    if SWEEPS.iter().any(|sweep| drawn(&sweep)) {
        writeln!(text, "## Ours and theirs by size, and ours by number of peers and of threads\n")?;
        SWEEPS
            .iter()
            .filter(drawn)
            .try_for_each(|sweep| picture(text, &format!("sweep-{}", sweep.plot), sweep.title))?;
    }
    writeln!(
        text,
        "## By size\n\nBetween two processes of this host, by `fi_pingpong`. Its option `--json` prints the figures.\n"
    )?;
    picture(text, "latency", "Latency by size")?;
    picture(text, "bandwidth", "Bandwidth by size")?;
    let not_run = benches.not_run();
    if !not_run.is_empty() {
        writeln!(text, "\n## What did not run\n")?;
        not_run.iter().try_for_each(|what| writeln!(text, "- {what}"))?;
    }
    writeln!(text, "\n## How to repeat it\n")?;
    about.commands.iter().try_for_each(|command| writeln!(text, "- `{command}`"))
}

/// The distribution of slow rounds.
fn distribution(text: &mut String, benches: &Benches) -> std::fmt::Result {
    let rows: Vec<_> = benches.rows.iter().filter_map(|row| Some((row, row.percentiles()?))).collect();
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "## Distribution of latency\n\nEach round of a ping-pong is timed; a time is half of a round, in microseconds. The \
         programs of libfabric and UCX\nhave no such figures.\n"
    )?;
    picture(text, "tails", "The time that one of so many rounds takes longer than")?;
    let heads = PERCENTILES.map(|share| if share < 100.0 { format!("{share} %") } else { "slowest".into() });
    writeln!(text, "| measurement | {} |\n|---|{}", heads.join(" | "), "---|".repeat(heads.len()))?;
    for (row, times) in rows {
        writeln!(text, "| {} | {} |", row.title, times.map(|time| format!("{time:.2}")).join(" | "))?;
    }
    text.push('\n');
    Ok(())
}

/// The results of `ofi-benches veth`.
fn losses(text: &mut String, veth: &Veth) -> std::fmt::Result {
    writeln!(
        text,
        "## Losses\n\n`udp` between two network namespaces, joined by a veth pair of 1,500 bytes; packets are dropped at \
         random at either end.\n\n| 64 KiB ping-pong | one way | of the rate without loss | bound |\n|---|---|---|---|"
    )?;
    for row in &veth.losses {
        let bound = row.bound.map_or("-".into(), |bound| format!("{:.0} %", 100.0 * bound));
        let failed = if row.bound.is_some_and(|bound| row.kept < bound) { ", **below**" } else { "" };
        let (lost, kept) = (row.lost_percent, 100.0 * row.kept);
        writeln!(text, "| {lost} % lost | {:.1} us | {kept:.0} %{failed} | {bound} |", row.one_way_us)?;
    }
    writeln!(text, "\n| without loss | bandwidth | of bare sockets |\n|---|---|---|")?;
    for row in &veth.bulk {
        writeln!(text, "| {} | {:.2} GB/s | {:.0} % |", row.name, row.rate, 100.0 * row.of_bare)?;
    }
    text.push('\n');
    Ok(())
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
        let mut times = match (row.advantage(), row.advantages()) {
            (Some(times), Some((low, high))) => format!("{times:.2} ({low:.2} - {high:.2})"),
            _ => "-".into(),
        };
        if row.verdict == "unsteady" {
            times = if times == "-" { "unsteady".into() } else { times + ", unsteady" };
        }
        let (ours, theirs) = (row.show(row.ours), row.show(row.theirs));
        writeln!(text, "| {} | {ours} | {} | {theirs} | {times} |", row.title, row.against)?;
    }
    text.push('\n');
    Ok(())
}
