//! The budget table of `docs/hot-path.md`.
//!
//! ```text
//! | path | budget | measured | locked | system calls | allocations | clock reads |
//! |---|---:|---:|---:|---:|---:|---:|
//! | send 64 B | 180 | 163 | 0 | 0 | 0 | 0 |
//! ```
//!
//! `path` is a name of [`crate::ours::PATHS`], `budget` the most instructions that one operation may take, and
//! `measured` the number when the table was last written ([`with_measured`] writes it; it is never read). The other
//! columns are the most that [`crate::counts`] may find.

use std::{fs, path::Path};

use crate::{Error, Result, markdown};

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path.
    pub path: String,
    /// Instructions that one operation may take.
    pub budget: u64,
    /// The cells of the counts, in the head's order.
    pub counts: [String; 4],
}

/// The table's head.
pub const HEAD: [&str; 7] =
    ["path", "budget", "measured", "locked", "system calls", "allocations", "clock reads"];

/// Reads the table from the document at `path`.
///
/// # Errors
/// The document or the table is missing, a path occurs twice, or a budget is not a number.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = fs::read_to_string(path).map_err(Error::io(path.display().to_string()))?;
    parse(&text).map_err(|reason| Error::Budget { path: path.to_owned(), reason })
}

/// Reads the table of a document's text.
///
/// # Errors
/// As [`read`]'s.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for [path, budget, _, counts @ ..] in markdown::rows(text, HEAD) {
        let budget = budget.replace(',', "");
        let budget =
            budget.parse().map_err(|_| format!("the budget of {path:?} is not a number: {budget:?}"))?;
        if entries.iter().any(|entry| entry.path == path) {
            return Err(format!("path {path:?} occurs twice in the table"));
        }
        entries.push(Entry { path: path.to_owned(), budget, counts: counts.map(str::to_owned) });
    }
    if entries.is_empty() {
        return Err(format!("no table with the head | {} | and a row", HEAD.join(" | ")));
    }
    Ok(entries)
}

/// `text` with the third column of `path`'s row set to `measured`.
pub fn with_measured(text: &str, path: &str, measured: u64) -> String {
    with_cells(text, path, 2, &[&measured.to_string()])
}

/// `text` with the last columns of `path`'s row set to `counts`.
pub fn with_counts(text: &str, path: &str, counts: &[String; 4]) -> String {
    with_cells(text, path, 3, &counts.each_ref().map(String::as_str))
}

/// `text` with the cells of `path`'s row from column `first` on replaced.
fn with_cells(text: &str, path: &str, first: usize, cells: &[&str]) -> String {
    let Some(mut row) = markdown::rows(text, HEAD).find(|[name, ..]| *name == path) else {
        return text.to_string();
    };
    row[first..first + cells.len()].copy_from_slice(cells);
    markdown::with_row(text, HEAD, row)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Hot path\n\n| a | b | c |\n|---|---|---|\n| send 64 B | 1 | 1 |\n\n\
        | path | budget | measured | locked | system calls | allocations | clock reads |\n\
        |---|---:|---:|---:|---:|---:|---:|\n\
        | send 64 B | 1,180 | | 0 | 1 | 0 | 0.03 |\n| recv 64 B | 200 | 7 | | | | |\n\nText.\n";

    #[test]
    fn the_right_table_is_read() {
        let entries = parse(DOCUMENT).unwrap();
        let pairs: Vec<_> = entries.iter().map(|entry| (entry.path.as_str(), entry.budget)).collect();
        assert_eq!(pairs, [("send 64 B", 1180), ("recv 64 B", 200)]);
    }

    #[test]
    fn a_missing_or_broken_table_says_so() {
        assert!(parse("| path | budget |").unwrap_err().contains("no table"));
        assert!(parse(&DOCUMENT.replace("200", "few")).unwrap_err().contains("few"));
        assert!(parse(&DOCUMENT.replace("recv", "send")).unwrap_err().contains("twice"));
    }

    #[test]
    fn measured_is_written_into_its_row_alone() {
        let written = with_measured(DOCUMENT, "send 64 B", 163);
        assert!(written.contains("| send 64 B | 1,180 | 163 | 0 | 1 | 0 | 0.03 |"));
        assert!(written.contains("| send 64 B | 1 | 1 |"), "the other table is left alone");
        assert_eq!(with_measured(&written, "no such path", 1), written);
    }

    #[test]
    fn counts_are_read_and_written_beside_the_instructions() {
        let counts = |text: &str, row: usize| parse(text).unwrap()[row].counts.clone();
        assert_eq!(counts(DOCUMENT, 0), ["0", "1", "0", "0.03"]);
        let new = ["2", "0", "0", "1"].map(str::to_owned);
        let written = with_counts(DOCUMENT, "recv 64 B", &new);
        assert!(written.contains("| recv 64 B | 200 | 7 | 2 | 0 | 0 | 1 |"), "{written}");
        assert_eq!([counts(&written, 0), counts(&written, 1)], [counts(DOCUMENT, 0), new]);
    }
}
