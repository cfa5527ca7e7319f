//! The glossary has one meaning for each term, and few terms.

use std::collections::BTreeSet;
use std::path::Path;

/// The most terms: a reader must be able to read all of them.
const TERMS: usize = 60;
/// Cells of a row: the term, its meaning, and the words of libfabric, UCX and QUIC.
const CELLS: usize = 5;

/// The rows of the table, without its head.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let lines = text.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    cells.skip(1).collect()
}

/// What is wrong with a glossary.
fn faults(text: &str) -> Vec<String> {
    let rows = rows(text);
    let mut faults = Vec::new();
    if rows.len() > TERMS {
        faults.push(format!("{} terms, at most {TERMS}", rows.len()));
    }
    let (mut terms, mut last) = (BTreeSet::new(), String::new());
    for row in &rows {
        let term = row[0].to_lowercase();
        if row.len() != CELLS || row.iter().any(|cell| cell.is_empty()) {
            faults.push(format!("{term}: {CELLS} cells, none of them empty"));
        }
        if term < last {
            faults.push(format!("{term}: stands after {last}"));
        }
        for word in term.split(", ") {
            if !terms.insert(word.split(" (").next().unwrap_or_default().to_string()) {
                faults.push(format!("{word}: stands twice"));
            }
        }
        last = term;
    }
    faults
}

#[test]
fn each_term_has_one_meaning() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/glossary.md");
    let text = std::fs::read_to_string(page).unwrap();
    assert!(rows(&text).len() > 30);
    assert_eq!(faults(&text), [""; 0]);
}

#[test]
fn a_term_that_stands_twice_is_found() {
    let table = |rows: &str| format!("| term | meaning | a | b | c |\n|---|---|---|---|---|\n{rows}");
    assert_eq!(faults(&table("| a | x | - | - | - |\n| b, c | y | - | - | - |\n")), [""; 0]);
    assert_eq!(
        faults(&table("| a (one) | x | - | - | - |\n| a (two) | y | - | - | - |\n")),
        ["a (two): stands twice"]
    );
    assert_eq!(faults(&table("| b | x | - | - | - |\n| a | y | - | - | - |\n")), ["a: stands after b"]);
    assert_eq!(faults(&table("| a | x | - | | - |\n")), ["a: 5 cells, none of them empty"]);
    let many: String = (0..61).map(|at| format!("| t{at:02} | x | - | - | - |\n")).collect();
    assert_eq!(faults(&table(&many)), ["61 terms, at most 60"]);
}
