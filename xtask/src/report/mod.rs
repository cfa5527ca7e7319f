//! `cargo xtask report`: measures beside libfabric and UCX, and writes a page with plots that shows losing rows
//! prominently.

mod data;
mod page;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::StepResult;
use crate::capi;
use crate::step::{Outcome, cargo, command, output, root, run, target_dir};
use data::{Benches, Sizes, Veth};
use plot::Over;

/// The folder of the plots, beside the page.
const PLOTS: &str = "performance";

/// What to measure, and where the page goes.
#[derive(Debug, Args)]
pub struct Options {
    /// Pairs of runs for each line.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
    /// One pair of runs for each line, and a tenth of the time by size: shows the layout, not reliable figures.
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// Read this output of `ofi-benches --json` instead of measuring. Several files become one report: a
    /// later run's lines take the place of an earlier one's.
    #[arg(long, value_name = "FILE", requires = "sizes")]
    from: Vec<PathBuf>,
    /// With --from: the output of `fi_pingpong --json`.
    #[arg(long, value_name = "FILE", requires = "from")]
    sizes: Option<PathBuf>,
    /// With --from: the output of `ofi-benches veth --json`.
    #[arg(long, value_name = "FILE", requires = "from")]
    veth: Option<PathBuf>,
    /// Write docs/performance.md and its plots, instead of target/report.
    #[arg(long)]
    write: bool,
}

/// The command.
///
/// # Errors
/// A measurement cannot be started, or its figures cannot be read.
pub fn main(options: &Options) -> StepResult {
    let work = target_dir("report");
    let mut commands = Vec::new();
    let mut not_run = Vec::new();
    let Files { benches, sizes, veth } = match &options.sizes {
        Some(sizes) => {
            commands.extend(HOW.map(Into::into));
            Files { benches: options.from.clone(), sizes: sizes.clone(), veth: options.veth.clone() }
        }
        None => measure(options, &work, &mut commands, &mut not_run)?,
    };
    let [first, others @ ..] = &benches[..] else { return Err("no figures of ofi-benches".into()) };
    // The date of the measurement, which may be earlier than today.
    let date = first_line("date", &["-u", "-r", &first.to_string_lossy(), "+%Y-%m-%d %H:%M UTC"]);
    let mut benches = Benches::parse(&read(first)?)?;
    for other in others {
        benches.add(Benches::parse(&read(other)?)?)?;
    }
    let sizes = Sizes::parse(&read(&sizes)?)?;
    let veth = veth.map(|file| Veth::parse(&read(&file)?)).transpose()?;
    let about = page::About { date, commands };
    let folder = if options.write { root().join("docs") } else { work };
    let written = write(&folder, &benches, &sizes, veth.as_ref(), &about)?;
    if options.write {
        into_summary()?;
    }
    println!("{}", written.display());
    not_run.extend(benches.not_run());
    Ok(if not_run.is_empty() { Outcome::Passed } else { Outcome::NotRun(not_run) })
}

/// The files with the figures.
struct Files {
    benches: Vec<PathBuf>,
    sizes: PathBuf,
    veth: Option<PathBuf>,
}

/// The commands that may have produced existing figures.
const HOW: [&str; 3] = [
    "cargo xtask bench --sweeps --json FILE",
    "cargo run --release --bin fi_pingpong -- --json",
    "cargo run --release --package ofi-benches -- veth --json FILE",
];

/// Runs the programs.
fn measure(
    options: &Options,
    work: &Path,
    commands: &mut Vec<String>,
    not_run: &mut Vec<String>,
) -> Result<Files, String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let [benches, sizes, veth] = ["benches.json", "sizes.json", "veth.json"].map(|name| work.join(name));
    let pairs = if options.quick { "1".to_string() } else { options.pairs.to_string() };
    let arguments =
        ["run", "--release", "--package", "ofi-benches", "--", "--sweeps", "--pairs", &pairs, "--json"];
    commands.push(format!("cargo {} FILE", arguments.join(" ")));
    // Remove the results of an earlier run.
    let _ = (fs::remove_file(&benches), fs::remove_file(&veth));
    // For the rows that run libfabric's own programs on it.
    let library = capi::link(true)?;
    let mut program = cargo(&arguments);
    let ended = run(program.arg(&benches).env("OFI_BENCH_LIBRARY", library).env("OFI_BENCH_TREE", tree()));
    // It also fails for a row outside its bound: its output counts nevertheless.
    if !benches.exists() {
        ended?;
    }
    let mut arguments = vec!["run", "--release", "--quiet", "--bin", "fi_pingpong", "--", "--json"];
    if options.quick {
        arguments.push("--quick");
    }
    commands.push(format!("cargo {}", arguments.join(" ")));
    let text = output(&mut cargo(&arguments))?;
    fs::write(&sizes, text).map_err(|error| format!("{}: {error}", sizes.display()))?;
    let rounds = if options.quick { "1" } else { "3" };
    let arguments = [
        "run",
        "--release",
        "--quiet",
        "--package",
        "ofi-benches",
        "--",
        "veth",
        "--rounds",
        rounds,
        "--json",
    ];
    commands.push(format!("cargo {} FILE", arguments.join(" ")));
    // It needs namespaces and nftables, which not every host permits.
    let measured =
        run(cargo(&arguments).arg(&veth)).map_err(|why| not_run.push(format!("losses: {why}"))).is_ok();
    Ok(Files { benches: vec![benches], sizes, veth: measured.then_some(veth) })
}

/// Writes the page and its plots. Returns the path of the page.
fn write(
    folder: &Path,
    benches: &Benches,
    sizes: &Sizes,
    veth: Option<&Veth>,
    about: &page::About,
) -> Result<PathBuf, String> {
    let plots = folder.join(PLOTS);
    fs::create_dir_all(&plots).map_err(|error| format!("{}: {error}", plots.display()))?;
    for theme in plot::THEMES {
        for (name, svg) in [
            ("ratios", plot::ratios(benches, theme)?),
            ("latency", plot::lines("One way, microseconds", &sizes.latency(), Over::Sizes, theme)?),
            ("bandwidth", plot::lines("Bandwidth, GB/s", &sizes.bandwidth(), Over::Sizes, theme)?),
        ] {
            write_plot(&plots, name, &svg, theme)?;
        }
        let tails = benches.tails();
        if !tails.is_empty() {
            let title = "One way, microseconds: one of so many rounds takes longer";
            write_plot(&plots, "tails", &plot::lines(title, &tails, Over::Numbers, theme)?, theme)?;
        }
        for sweep in page::SWEEPS {
            let series = benches.sweep(sweep.plot);
            if !series.is_empty() {
                let svg = plot::lines(sweep.axis, &series, sweep.over, theme)?;
                write_plot(&plots, &format!("sweep-{}", sweep.plot), &svg, theme)?;
            }
        }
    }
    let page = folder.join("performance.md");
    fs::write(&page, page::markdown(benches, veth, about))
        .map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(page)
}

fn write_plot(folder: &Path, name: &str, svg: &str, theme: plot::Theme) -> Result<(), String> {
    let file = folder.join(format!("{name}-{}.svg", theme.name));
    fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))
}

/// Adds the page to the book.
fn into_summary() -> Result<(), String> {
    const LINE: &str = "- [Performance report](performance.md)\n";
    const BEFORE: &str = "- [Security](threat-model.md)\n";
    let path = root().join("docs/SUMMARY.md");
    let text = read(&path)?;
    if text.contains(LINE) {
        return Ok(());
    }
    if !text.contains(BEFORE) {
        return Err(format!("docs/SUMMARY.md has no {BEFORE:?} to put the report before"));
    }
    fs::write(&path, text.replace(BEFORE, &format!("{LINE}{BEFORE}"))).map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Versions that the figures do not contain; those of the peers are in the figures.
/// The measured commit and its compiler. They go into the figures, which may become a page much later.
fn tree() -> String {
    let commit = first_line("git", &["describe", "--always", "--dirty"]);
    format!("{commit}, {}", first_line("rustc", &["--version"]))
}

/// The first line of a program's output, or a note that the program is missing.
fn first_line(program: &str, arguments: &[&str]) -> String {
    let text = command(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines()
        .next()
        .map_or_else(|| "not installed".into(), |line| line.trim_start_matches("# ").trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canned() -> (Benches, Sizes) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report");
        let text = |name| read(&folder.join(name)).unwrap();
        (Benches::parse(&text("benches.json")).unwrap(), Sizes::parse(&text("sizes.json")).unwrap())
    }

    fn about() -> page::About {
        page::About { date: "2026-11-23 00:00 UTC".into(), commands: vec!["cargo run".into()] }
    }

    #[test]
    fn losing_rows_stand_first_and_what_did_not_run_is_named() {
        let (benches, _) = canned();
        let page = page::markdown(&benches, None, &about());
        let (slower, all) =
            (page.find("## Where it is slower").unwrap(), page.find("## Every other line").unwrap());
        assert!(slower < all, "{page}");
        let (slower, others) = (&page[slower..all], &page[all..]);
        assert!(slower.contains("1 MiB RMA write") && slower.contains("0.87"), "{slower}");
        assert!(!slower.contains("64 B message, one way"), "{slower}");
        assert!(others.contains("64 B message, one way") && !others.contains("0.87"), "{others}");
        assert!(
            page.contains("## What did not run") && page.contains("ucx_perftest is not installed"),
            "{page}"
        );
        assert_eq!(benches.not_run(), ["latency-ucx: ucx_perftest is not installed"]);
        assert!(page.contains("`cargo run`"), "{page}");
    }

    #[test]
    fn plots_are_whole_in_light_and_dark_and_names_in_them_are_escaped() {
        let (benches, sizes) = canned();
        for theme in plot::THEMES {
            let ratios = plot::ratios(&benches, theme).unwrap();
            assert!(ratios.starts_with("<svg ") && ratios.ends_with("</svg>\n"), "{ratios}");
            let losing = format!("#{:02X}{:02X}{:02X}", theme.losing.0, theme.losing.1, theme.losing.2);
            assert!(ratios.contains(&losing) && ratios.contains("a &lt;b&gt; &amp; c"), "{ratios}");
            let lines = plot::lines("x", &sizes.latency(), Over::Sizes, theme).unwrap();
            // A line, and its key, for each provider.
            let drawn = lines.split("<polyline ").skip(1).filter(|line| line.contains("stroke-width=\"2\""));
            assert_eq!(drawn.count(), 4, "{lines}");
            assert!(!lines.contains("NaN") && !lines.contains("inf"), "{lines}");
        }
        let folder = std::env::temp_dir().join(format!("ofi-report-{}", std::process::id()));
        let page = write(&folder, &benches, &sizes, None, &about()).unwrap();
        let page = read(&page).unwrap();
        for link in page.split(['"', ' ']).filter(|part| part.ends_with(".svg")) {
            assert!(folder.join(link).exists(), "{link}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn points_of_ours_and_theirs_become_lines_of_one_plot() {
        let row = |key: &str, against: &str, ours: &str, theirs: &str| {
            format!(
                r#"{{"key":"{key}","title":"t","quantity":"latency_ns","against":"{against}","ours":{ours},"theirs":{theirs},"ratio":null,"ratio_range":null,"verdict":"shown"}}"#
            )
        };
        let rows = [
            row("sweep-latency-libfabric-8", "libfabric", "100", "300"),
            row("sweep-latency-libfabric-64", "libfabric", "110", "310"),
            row("sweep-latency-ucx-8", "UCX", "120", "null"),
            row("sweep-peers-none-10", "", "900", "null"),
            row("latency-ucx", "UCX", "1", "1"),
        ];
        let machine = r#"{"cpu":"c","cores":2,"kernel":"k","huge_pages":"never"}"#;
        let text = format!(r#"{{"machine":{machine},"cores":[0,1],"rows":[{}]}}"#, rows.join(","));
        let benches = Benches::parse(&text).unwrap();
        assert_eq!(
            benches.sweep("latency"),
            [
                ("ofi".to_string(), vec![(8.0, 0.1), (64.0, 0.11)]),
                ("libfabric".into(), vec![(8.0, 0.3), (64.0, 0.31)])
            ]
        );
        assert_eq!(benches.sweep("peers"), [("ofi".to_string(), vec![(10.0, 0.9)])]);
        let page = page::markdown(&benches, None, &about());
        assert!(page.contains("sweep-latency-light.svg") && page.contains("sweep-peers-dark.svg"), "{page}");
        assert!(!page.contains("sweep-bandwidth"), "nothing was measured for it: {page}");
    }

    fn parsed(rows: &[&str], versions: &str) -> Benches {
        let machine = r#"{"cpu":"c","cores":2,"kernel":"k","huge_pages":"never"}"#;
        let rows = rows.join(",");
        let text = format!(r#"{{"machine":{machine},"versions":{versions},"cores":[0,1],"rows":[{rows}]}}"#);
        Benches::parse(&text).unwrap()
    }

    /// A row with these pairs: whether each counts, and its percentiles.
    fn with_pairs(key: &str, ours: f64, pairs: &[(&str, [f64; 6])]) -> String {
        let pair = |(fate, times): &(&str, [f64; 6])| {
            format!(r#"{{"fate":"{fate}","ours":{{"percentiles_us":{times:?}}}}}"#)
        };
        let pairs: Vec<_> = pairs.iter().map(pair).collect();
        format!(
            r#"{{"key":"{key}","title":"t of {key}","quantity":"latency_ns","against":"","ours":{ours},"theirs":null,"ratio":null,"ratio_range":null,"verdict":"shown","pairs":[{}]}}"#,
            pairs.join(",")
        )
    }

    #[test]
    fn the_distribution_is_of_pairs_that_count_and_is_drawn() {
        let line = with_pairs(
            "rounds-shm",
            1.0,
            &[
                ("kept", [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]),
                ("moved", [100.0; 6]),
                ("kept", [3.0, 4.0, 5.0, 6.0, 7.0, 30.0]),
                ("kept", [2.0, 3.0, 4.0, 5.0, 6.0, 20.0]),
            ],
        );
        let benches = parsed(&[&line], "[]");
        let page = page::markdown(&benches, None, &about());
        assert!(page.contains("| t of rounds-shm | 2.00 | 3.00 | 4.00 | 5.00 | 6.00 | 20.00 |"), "{page}");
        assert!(page.contains("| 99.99 % | slowest |") && page.contains("tails-dark.svg"), "{page}");
        let tails = benches.tails();
        assert_eq!(tails[0].0, "shm", "a short name fits beside the plot");
        assert_eq!(tails[0].1.len(), 5, "the slowest of them has no share");
        assert_eq!((tails[0].1[0], tails[0].1[1]), ((2.0, 2.0), (10.0, 3.0)));
        assert!(!page::markdown(&canned().0, None, &about()).contains("Distribution"));
    }

    #[test]
    fn losses_have_a_section_and_what_is_below_its_bound_is_marked() {
        let text = r#"{"bulk":[{"name":"1 MiB messages","rate":2.0,"of_bare":0.8}],"losses":[
            {"lost_percent":0,"one_way_us":50,"kept":1,"bound":null},
            {"lost_percent":0.1,"one_way_us":100,"kept":0.5,"bound":0.8},
            {"lost_percent":1,"one_way_us":80,"kept":0.6,"bound":0.5}]}"#;
        let (benches, _) = canned();
        let page = page::markdown(&benches, Some(&Veth::parse(text).unwrap()), &about());
        assert!(page.contains("| 0.1 % lost | 100.0 us | 50 %, **below** | 80 % |"), "{page}");
        assert!(page.contains("| 1 % lost | 80.0 us | 60 % | 50 % |"), "{page}");
        assert!(page.contains("| 1 MiB messages | 2.00 GB/s | 80 % |"), "{page}");
    }

    #[test]
    fn the_measured_versions_are_named() {
        let benches = parsed(&[&with_pairs("cold-write", 1.0, &[])], r#"[["libfabric","2.1.0"]]"#);
        let page = page::markdown(&benches, None, &about());
        assert!(page.contains("- libfabric: 2.1.0") && page.contains("t of cold-write"), "{page}");
    }

    #[test]
    fn runs_of_one_machine_and_version_become_one_report() {
        let mut all =
            parsed(&[&with_pairs("a", 1.0, &[]), &with_pairs("b", 2.0, &[])], r#"[["libfabric","2.1"]]"#);
        all.add(parsed(
            &[&with_pairs("b", 3.0, &[]), &with_pairs("c", 4.0, &[])],
            r#"[["libfabric","2.1"]]"#,
        ))
        .unwrap();
        let found: Vec<_> = all.rows.iter().map(|row| (row.key.as_str(), row.ours)).collect();
        assert_eq!(found, [("a", Some(1.0)), ("b", Some(3.0)), ("c", Some(4.0))]);
        let other = parsed(&[], r#"[["libfabric","1.17"]]"#);
        assert!(all.add(other).unwrap_err().contains("versions"));
    }

    #[test]
    fn figures_that_are_none_are_refused_by_name() {
        assert!(Benches::parse("{}").unwrap_err().contains("ofi-benches"));
        assert!(Sizes::parse("[1]").unwrap_err().contains("fi_pingpong"));
    }
}
