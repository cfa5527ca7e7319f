//! The figures of a run, and the page that shows them.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::facts::Facts;
use super::plan::{EfaPlan, Measurement, Program, counted};
use crate::failure::{Failure, Result};
use crate::output::tell;

/// One size of one program.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub what: String,
    pub bytes: u64,
    /// The time of one transfer in one direction.
    pub micros: f64,
    pub megabytes_per_second: f64,
}

/// The figures of one program.
#[derive(Debug, Default)]
pub struct Figures {
    pub rows: Vec<Row>,
    /// The bytes that each NIC moved, with its domain.
    pub shares: Vec<(String, u64)>,
}

/// A measurement and its outcome.
struct Section {
    title: String,
    program: &'static str,
    kind: String,
    nics: String,
    memory: &'static str,
    library: String,
    figures: Figures,
}

/// The figures of all programs, in their order.
#[derive(Default)]
pub struct Page {
    sections: Vec<Section>,
    failed: Vec<String>,
}

impl Page {
    /// Adds the outcome of a measurement on this host.
    pub fn add(
        &mut self,
        measurement: &Measurement,
        facts: &Facts,
        outcome: std::result::Result<Figures, String>,
    ) {
        let ours = || format!("ofi {}", facts.text("ofi"));
        let (program, library) = match measurement.program {
            Program::OurPingpong => ("our fi_pingpong", ours()),
            Program::OurRails => ("mr-bench", ours()),
            Program::CPingpongOnOurs => ("C's fi_pingpong", format!("ours: {}", facts.text("our library"))),
            Program::CPingpong => ("C's fi_pingpong", facts.text("C's library").to_string()),
        };
        match outcome {
            Ok(figures) => self.sections.push(Section {
                title: measurement.title(),
                program,
                kind: measurement.kind.clone(),
                nics: counted(&measurement.nics),
                memory: measurement.memory,
                library,
                figures,
            }),
            Err(why) => {
                tell(&format!("{}: {why}", measurement.title()));
                self.failed.push(format!("{}: {why}", measurement.title()));
            }
        }
    }

    /// The failures.
    pub fn failures(&self) -> &[String] {
        &self.failed
    }

    /// Writes the page.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, file: &Path, hosts: &[(&str, &Facts)], plan: &EfaPlan, quick: bool) -> Result<()> {
        let failed = |error| Failure::system(format!("writing {}", file.display()), error);
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(file, self.text(hosts, plan, quick)).map_err(failed)
    }

    fn text(&self, hosts: &[(&str, &Facts)], plan: &EfaPlan, quick: bool) -> String {
        let mut page = String::from("# efa-bench\n\n");
        if hosts.iter().any(|(_, facts)| facts.is_emulated()) {
            page.push_str(
                "**On an emulated device: this shows that the programs run, and says nothing about EFA's speed.**\n\n",
            );
        } else if quick {
            page.push_str("**A few messages: the figures are not reliable.**\n\n");
        }
        for (role, facts) in hosts {
            let _ = writeln!(page, "## The {role}\n\n| | |\n|---|---|");
            facts.lines().for_each(|(name, value)| _ = writeln!(page, "| {name} | {value} |"));
            page.push('\n');
            facts.notes().iter().for_each(|note| _ = writeln!(page, "- Note: {note}."));
            page.push('\n');
        }
        if let [(_, one), (_, other)] = hosts
            && one.text("programs") != other.text("programs")
        {
            page.push_str("The programs of the two hosts are not the same files.\n\n");
        }
        page.push_str("## Figures\n\n");
        page.push_str("| program | library | what | NICs | memory | bytes | us | MB/s |\n");
        page.push_str("|---|---|---|---|---|---:|---:|---:|\n");
        for Section { program, kind, nics, memory, library, figures, .. } in &self.sections {
            for Row { what, bytes, micros, megabytes_per_second } in &figures.rows {
                let _ = writeln!(
                    page,
                    "| {program} | {library} | {kind}: {what} | {nics} | {memory} | {bytes} | {micros:.2} | {megabytes_per_second:.2} |"
                );
            }
        }
        self.shares(&mut page);
        let left_out = plan.left_out.iter().map(|note| format!("not measured: {note}"));
        let lines: Vec<String> = self.failed.iter().cloned().chain(left_out).collect();
        if !lines.is_empty() {
            let _ = writeln!(page, "\n## Failed, or not measured\n\n```\n{}\n```", lines.join("\n"));
        }
        page
    }

    /// Appends the bytes that each NIC moved.
    fn shares(&self, page: &mut String) {
        page.push_str(
            "\n## The share of each NIC\n\n| measurement | NIC | bytes | share |\n|---|---|---:|---:|\n",
        );
        for Section { title, figures, .. } in &self.sections {
            let all: u64 = figures.shares.iter().map(|(_, bytes)| bytes).sum();
            for (nic, bytes) in &figures.shares {
                let share = 100.0 * *bytes as f64 / all.max(1) as f64;
                let _ = writeln!(page, "| {title} | {nic} | {bytes} | {share:.1} % |");
            }
        }
    }
}

/// Parses the output of `fi_pingpong`, C's or ours: `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`.
///
/// # Errors
/// There is no line of figures.
pub fn figures_of_pingpong(text: &str) -> std::result::Result<Figures, String> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let figures = (words.first().copied().and_then(bytes), number(&words, 5), number(&words, 6));
        let (Some(bytes), Some(megabytes_per_second), Some(micros)) = figures else {
            return Err(format!("no line of fi_pingpong: {line:?}"));
        };
        rows.push(Row { what: "message".into(), bytes, micros, megabytes_per_second });
    }
    match rows.is_empty() {
        true => Err(format!("fi_pingpong printed no figures:\n{text}")),
        false => Ok(Figures { rows, shares: Vec::new() }),
    }
}

/// Parses a size in C's notation: 64, 4k, 1m.
fn bytes(word: &str) -> Option<u64> {
    let (digits, unit) = match word.as_bytes().last()? {
        b'k' => (&word[..word.len() - 1], 1 << 10),
        b'm' => (&word[..word.len() - 1], 1 << 20),
        _ => (word, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn number(words: &[&str], at: usize) -> Option<f64> {
    words.get(at)?.parse().ok()
}

/// Parses the output of `mr-bench --json` with a rail for each of `nics`.
///
/// # Errors
/// The text is something else.
pub fn figures_of_rails(text: &str, nics: &[String]) -> std::result::Result<Figures, String> {
    let all: Value =
        serde_json::from_str(text).map_err(|error| format!("mr-bench printed no JSON: {error}"))?;
    let rows = all.get("rows").and_then(Value::as_array).ok_or("mr-bench printed no rows")?;
    let rows = rows.iter().map(|row| {
        let number =
            |path: &str| row.pointer(path).and_then(Value::as_f64).ok_or(format!("no {path} in {row}"));
        let way = row.get("way").and_then(Value::as_str).unwrap_or("?");
        Ok(Row {
            what: match number("/batch")? {
                1.0 => format!("{way}, 1 block at a time"),
                batch => format!("{way}, {batch} blocks at a time"),
            },
            bytes: number("/size")? as u64,
            micros: number("/transfer_us/p50")?,
            megabytes_per_second: number("/gigabytes_per_second")? * 1e3,
        })
    });
    let rows = rows.collect::<std::result::Result<_, String>>()?;
    let mut shares: Vec<(String, u64)> = nics.iter().map(|nic| (nic.clone(), 0)).collect();
    for path in all.get("paths").and_then(Value::as_array).into_iter().flatten() {
        let field = |name: &str| path.get(name).and_then(Value::as_u64);
        if let (Some(rail), Some(bytes)) = (field("rail"), field("bytes"))
            && let Some((_, sum)) = shares.get_mut(rail as usize)
        {
            *sum += bytes;
        }
    }
    Ok(Figures { rows, shares })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pingpongs_are_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64      10      =10      1.2k        0.00s      7.67       8.35       0.12\n\
                    1m      10      =10      20m         0.01s   3000.00     349.50       0.00\n";
        let row = |bytes, micros, megabytes_per_second| Row {
            what: "message".into(),
            bytes,
            micros,
            megabytes_per_second,
        };
        assert_eq!(
            figures_of_pingpong(text).unwrap().rows,
            [row(64, 8.35, 7.67), row(1 << 20, 349.5, 3000.0)]
        );
        assert!(figures_of_pingpong("").is_err() && figures_of_pingpong("64 10").is_err());
        assert!(figures_of_rails("{}", &[]).is_err() && figures_of_rails("no", &[]).is_err());
    }

    #[test]
    fn a_page_says_which_nic_and_library_a_row_is_of() {
        let nics = ["a".to_string(), "b".to_string()];
        let printed = r#"{"rows": [{"way": "write", "size": 65536, "batch": 1, "gigabytes_per_second": 1.5,
            "transfer_us": {"p50": 40.0}}], "paths": [{"pair": 0, "rail": 0, "remote": 0, "bytes": 300},
            {"pair": 0, "rail": 1, "remote": 1, "bytes": 100}]}"#;
        let figures = figures_of_rails(printed, &nics).unwrap();
        assert_eq!(figures.shares, [("a".to_string(), 300), ("b".to_string(), 100)]);
        let facts = Facts::of_line(r#"{"ofi": "0.1.0", "nics": ["a", "b"]}"#).unwrap();
        let measurement = Measurement {
            program: Program::OurRails,
            kind: "remote memory, 1 thread".into(),
            nics: nics.into(),
            memory: "cuda",
            args: Vec::new(),
        };
        let mut page = Page::default();
        page.add(&measurement, &facts, Ok(figures));
        page.add(&measurement, &facts, Err("it broke".into()));
        let plan = EfaPlan { left_out: vec!["C's program".into()], ..EfaPlan::default() };
        let text = page.text(&[("client", &facts)], &plan, false);
        for wanted in [
            "| mr-bench | ofi 0.1.0 | remote memory, 1 thread: write, 1 block at a time | 2 NICs | cuda | 65536 | 40.00 | 1500.00 |",
            "| a | 300 | 75.0 % |",
            "| b | 100 | 25.0 % |",
            "it broke",
            "not measured: C's program",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
        assert_eq!(page.failures().len(), 1);
    }
}
