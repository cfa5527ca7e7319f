//! `cargo xtask report`: measures beside libfabric and UCX, and writes a page with plots, losing rows in plain sight.

mod data;
mod page;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::StepResult;
use crate::step::{Outcome, cargo, command, output, root, run, target_dir};
use data::{Benches, Sizes};
use plot::Over;

/// Where the plots go, beside the page.
const PLOTS: &str = "performance";

/// What to measure, and where the page goes.
#[derive(Debug, Args)]
pub struct Options {
    /// Pairs of runs for each line.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
    /// One pair of each, and a tenth of the time by size: to see the page, not to believe it.
    #[arg(long, conflicts_with = "write")]
    quick: bool,
    /// What `ofi-benches --json` has written, instead of measuring.
    #[arg(long, value_name = "FILE", requires = "sizes")]
    from: Option<PathBuf>,
    /// What `fi_pingpong --json` has printed, with --from.
    #[arg(long, value_name = "FILE", requires = "from")]
    sizes: Option<PathBuf>,
    /// Write docs/performance.md and its plots, instead of target/report.
    #[arg(long)]
    write: bool,
}

/// The command.
///
/// # Errors
/// When a measurement cannot be started, or its figures cannot be read.
pub fn main(options: &Options) -> StepResult {
    let work = target_dir("report");
    let mut commands = Vec::new();
    let (benches, sizes) = match (&options.from, &options.sizes) {
        (Some(from), Some(sizes)) => (from.clone(), sizes.clone()),
        _ => measure(options, &work, &mut commands)?,
    };
    // When it was measured, which may have been before today.
    let date = first_line("date", &["-u", "-r", &benches.to_string_lossy(), "+%Y-%m-%d %H:%M UTC"]);
    let (benches, sizes) = (Benches::parse(&read(&benches)?)?, Sizes::parse(&read(&sizes)?)?);
    let about = page::About { date, versions: versions(), commands };
    let folder = if options.write { root().join("docs") } else { work };
    let written = write(&folder, &benches, &sizes, &about)?;
    if options.write {
        into_summary()?;
    }
    println!("{}", written.display());
    let not_run = benches.not_run();
    Ok(if not_run.is_empty() { Outcome::Passed } else { Outcome::NotRun(not_run) })
}

/// Runs both programs: where their figures are.
fn measure(options: &Options, work: &Path, commands: &mut Vec<String>) -> Result<(PathBuf, PathBuf), String> {
    fs::create_dir_all(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let (benches, sizes) = (work.join("benches.json"), work.join("sizes.json"));
    let pairs = if options.quick { "1".to_string() } else { options.pairs.to_string() };
    let arguments =
        ["run", "--release", "--package", "ofi-benches", "--", "--sweeps", "--pairs", &pairs, "--json"];
    commands.push(format!("cargo {} FILE", arguments.join(" ")));
    let _ = fs::remove_file(&benches);
    let ended = run(cargo(&arguments).arg(&benches));
    // It fails for a line that is out of its bound, too: what it wrote counts.
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
    Ok((benches, sizes))
}

/// Writes the page and its plots, and answers where the page is.
fn write(folder: &Path, benches: &Benches, sizes: &Sizes, about: &page::About) -> Result<PathBuf, String> {
    let plots = folder.join(PLOTS);
    fs::create_dir_all(&plots).map_err(|error| format!("{}: {error}", plots.display()))?;
    for theme in plot::THEMES {
        for (name, svg) in [
            ("ratios", plot::ratios(benches, theme)),
            ("latency", plot::lines("One way, microseconds", &sizes.latency(), Over::Sizes, theme)),
            ("bandwidth", plot::lines("Bandwidth, GB/s", &sizes.bandwidth(), Over::Sizes, theme)),
        ] {
            write_plot(&plots, name, &svg, theme)?;
        }
        for sweep in page::SWEEPS {
            let series = benches.sweep(sweep.plot);
            if !series.is_empty() {
                let svg = plot::lines(sweep.axis, &series, sweep.over, theme);
                write_plot(&plots, &format!("sweep-{}", sweep.plot), &svg, theme)?;
            }
        }
    }
    let page = folder.join("performance.md");
    fs::write(&page, page::markdown(benches, sizes, about))
        .map_err(|error| format!("{}: {error}", page.display()))?;
    Ok(page)
}

fn write_plot(folder: &Path, name: &str, svg: &str, theme: plot::Theme) -> Result<(), String> {
    let file = folder.join(format!("{name}-{}.svg", theme.name));
    fs::write(&file, svg).map_err(|error| format!("{}: {error}", file.display()))
}

/// Names the page in the book.
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

/// What was measured, by version.
fn versions() -> Vec<(String, String)> {
    vec![
        ("this library".into(), first_line("git", &["describe", "--always", "--dirty"])),
        ("libfabric".into(), first_line("/usr/bin/fi_info", &["--version"])),
        ("UCX".into(), first_line("ucx_info", &["-v"])),
        ("compiler".into(), first_line("rustc", &["--version"])),
    ]
}

/// The first line of what a program prints, or that it is not there.
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
        page::About {
            date: "2026-11-23 00:00 UTC".into(),
            versions: vec![("UCX".into(), "not installed".into())],
            commands: vec!["cargo run".into()],
        }
    }

    #[test]
    fn losing_rows_stand_first_and_what_did_not_run_is_named() {
        let (benches, sizes) = canned();
        let page = page::markdown(&benches, &sizes, &about());
        let (slower, all) =
            (page.find("## Where it is slower").unwrap(), page.find("## Every line").unwrap());
        assert!(slower < all, "{page}");
        let slower = &page[slower..all];
        assert!(slower.contains("1 MiB RMA write") && slower.contains("0.87"), "{slower}");
        assert!(!slower.contains("64 B message, one way"), "{slower}");
        assert!(
            page.contains("## What did not run") && page.contains("ucx_perftest is not installed"),
            "{page}"
        );
        assert_eq!(benches.not_run(), ["latency-ucx: ucx_perftest is not installed"]);
        assert!(page.contains("| 64 | shm |") && page.contains("`cargo run`"), "{page}");
    }

    #[test]
    fn plots_are_whole_in_light_and_dark_and_names_in_them_are_escaped() {
        let (benches, sizes) = canned();
        for theme in plot::THEMES {
            let ratios = plot::ratios(&benches, theme);
            assert!(ratios.starts_with("<svg ") && ratios.ends_with("</svg>\n"), "{ratios}");
            assert!(ratios.contains(theme.losing) && ratios.contains("a &lt;b&gt; &amp; c"), "{ratios}");
            let lines = plot::lines("x", &sizes.latency(), Over::Sizes, theme);
            assert_eq!(lines.matches("<polyline").count(), 2, "{lines}");
            assert!(!lines.contains("NaN") && !lines.contains("inf"), "{lines}");
        }
        let folder = std::env::temp_dir().join(format!("ofi-report-{}", std::process::id()));
        let page = write(&folder, &benches, &sizes, &about()).unwrap();
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
        let page = page::markdown(&benches, &canned().1, &about());
        assert!(page.contains("sweep-latency-light.svg") && page.contains("sweep-peers-dark.svg"), "{page}");
        assert!(!page.contains("sweep-bandwidth"), "nothing was measured for it: {page}");
    }

    #[test]
    fn figures_that_are_none_are_refused_by_name() {
        assert!(Benches::parse("{}").unwrap_err().contains("ofi-benches"));
        assert!(Sizes::parse("[1]").unwrap_err().contains("fi_pingpong"));
    }
}
