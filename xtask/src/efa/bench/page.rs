//! The figures of a run, and the page that shows them.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use super::Facts;
use crate::StepResult;
use crate::step::Outcome;

/// One size of one program.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub what: String,
    pub bytes: u64,
    /// The time of one transfer in one direction.
    pub micros: f64,
    pub megabytes_per_second: f64,
}

/// The rows of all programs, in their order.
#[derive(Debug, Default)]
pub struct Rows {
    all: Vec<(String, Vec<Row>)>,
    failed: Vec<String>,
}

impl Rows {
    /// Adds the figures of a program.
    pub fn add(&mut self, name: &str, rows: Vec<Row>) {
        self.all.push((name.to_string(), rows));
    }

    /// Records that a program failed.
    pub fn failed(&mut self, name: &str, why: &str) {
        eprintln!("{name}: {why}");
        self.failed.push(format!("{name}: {why}"));
    }

    /// The outcome of the run.
    ///
    /// # Errors
    /// The failures.
    pub fn outcome(self) -> StepResult {
        if self.failed.is_empty() { Ok(Outcome::Passed) } else { Err(self.failed.join("\n")) }
    }
}

/// Parses the output of `fi_pingpong`, C's or ours: `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`.
///
/// # Errors
/// There is no line of figures.
pub fn rows_of_pingpong(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let figures = (words.first().copied().and_then(bytes), number(&words, 5), number(&words, 6));
        let (Some(bytes), Some(megabytes_per_second), Some(micros)) = figures else {
            return Err(format!("no line of fi_pingpong: {line:?}"));
        };
        rows.push(Row { what: "message".into(), bytes, micros, megabytes_per_second });
    }
    if rows.is_empty() { Err(format!("fi_pingpong printed no figures:\n{text}")) } else { Ok(rows) }
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

/// Parses the output of `mr-bench --json`.
///
/// # Errors
/// The text is something else.
pub fn rows_of_rails(text: &str) -> Result<Vec<Row>, String> {
    let all: Value =
        serde_json::from_str(text).map_err(|error| format!("mr-bench printed no JSON: {error}"))?;
    let rows = all.get("rows").and_then(Value::as_array).ok_or("mr-bench printed no rows")?;
    rows.iter()
        .map(|row| {
            let number =
                |path: &str| row.pointer(path).and_then(Value::as_f64).ok_or(format!("no {path} in {row}"));
            let way = row.get("way").and_then(Value::as_str).unwrap_or("?");
            Ok(Row {
                what: format!("{way}, {} blocks at a time", number("/batch")?),
                bytes: number("/size")? as u64,
                micros: number("/transfer_us/p50")?,
                megabytes_per_second: number("/gigabytes_per_second")? * 1e3,
            })
        })
        .collect()
}

/// Writes the page.
///
/// # Errors
/// The system's error.
pub fn write(file: &Path, hosts: &[(&str, &Facts)], rows: &Rows, quick: bool) -> Result<(), String> {
    let mut page = String::from("# efa-bench\n\n");
    if hosts.iter().any(|(_, facts)| facts.is_emulated()) {
        page.push_str(
            "**On an emulated device: this shows that the programs run, and says nothing about EFA's speed.**\n\n",
        );
    } else if quick {
        page.push_str("**A debug build and a few messages: the figures are not reliable.**\n\n");
    }
    for (role, facts) in hosts {
        let _ = writeln!(page, "## The {role}\n\n| | |\n|---|---|");
        facts.lines().for_each(|(name, value)| _ = writeln!(page, "| {name} | {value} |"));
        page.push('\n');
    }
    page.push_str("## Figures\n\n| program | what | bytes | us | MB/s |\n|---|---|---:|---:|---:|\n");
    for (name, rows) in &rows.all {
        for Row { what, bytes, micros, megabytes_per_second } in rows {
            let _ = writeln!(page, "| {name} | {what} | {bytes} | {micros:.2} | {megabytes_per_second:.2} |");
        }
    }
    if !rows.failed.is_empty() {
        let _ = writeln!(page, "\n## Failed\n\n```\n{}\n```", rows.failed.join("\n"));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(file, page).map_err(failed)
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
        assert_eq!(rows_of_pingpong(text).unwrap(), [row(64, 8.35, 7.67), row(1 << 20, 349.5, 3000.0)]);
        assert!(rows_of_pingpong("").is_err() && rows_of_pingpong("64 10").is_err());
        assert!(rows_of_rails("{}").is_err() && rows_of_rails("no").is_err());
    }
}
