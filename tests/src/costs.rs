//! Compares the costs of operations over a simulated device with the tables of `docs/hot-path.md`.

use std::collections::BTreeMap;

/// The costs of a number of operations: the requests of one end and the completions reported to it, and the same for
/// the other end.
pub type Counted = [usize; 4];

/// The table in the section of this title.
fn table(title: &str) -> BTreeMap<String, Counted> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hot-path.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("{title}\n");
    let section = text.split("\n## ").find(|section| section.starts_with(&begin)).unwrap();
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let numbers: Vec<usize> = cells.get(1..5)?.iter().filter_map(|cell| cell.parse().ok()).collect();
        Some((cells[0].to_string(), numbers.try_into().ok()?))
    });
    rows.collect()
}

/// Prints rows as in the table, and compares them with it.
///
/// # Panics
/// If a row exceeds the table's, or the table has no such row.
pub fn check(title: &str, measured: &[(&str, Counted)]) {
    let table = table(title);
    let mut over = Vec::new();
    for (name, now) in measured {
        println!("| {name} | {} | {} | {} | {} |", now[0], now[1], now[2], now[3]);
        let row = table.get(*name).copied();
        if row.is_none_or(|row| now.iter().zip(row).any(|(now, row)| *now > row)) {
            over.push(format!("{name}: {now:?}, the table has {row:?}"));
        }
    }
    assert!(over.is_empty() && table.len() == measured.len(), "{over:#?}");
}
