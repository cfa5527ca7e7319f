//! Compares the costs of operations over a simulated device with the tables of `docs/hot-path.md`.

use std::collections::BTreeMap;
use std::ops::Range;

/// The costs of a number of operations: the requests of one end and the completions reported to it, and the same for
/// the other end.
pub type Counted = [usize; 4];

/// The rows of the table in the section of this title, with the numbers of some columns.
fn table<const N: usize>(title: &str, columns: Range<usize>) -> BTreeMap<String, [usize; N]> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/hot-path.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("{title}\n");
    let section = text.split("\n## ").find(|section| section.starts_with(&begin)).unwrap();
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let numbers: Vec<usize> =
            cells.get(columns.clone())?.iter().filter_map(|cell| cell.parse().ok()).collect();
        Some((cells[0].to_string(), numbers.try_into().ok()?))
    });
    rows.collect()
}

/// Prints rows as in the table, and compares them with it.
///
/// # Panics
/// If a row exceeds the table's, or the table has no such row.
pub fn check(title: &str, measured: &[(&str, Counted)]) {
    let table = table::<4>(title, 1..5);
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

/// The same for how often the library copies each payload, both ends together ([`ofi_core::copy::counted`]): the fifth
/// column. Copies by a device or its driver are not counted.
///
/// # Panics
/// If a number differs from the table's. The table must be updated for fewer copies, too.
pub fn check_copies(title: &str, measured: &[(&str, usize)]) {
    if !cfg!(debug_assertions) {
        return; // such builds do not count
    }
    let table = table::<1>(title, 5..6);
    let mut wrong = Vec::new();
    for (name, now) in measured {
        let row = table.get(*name).map(|[copies]| *copies);
        if row != Some(*now) {
            wrong.push(format!("{name}: {now}, the table has {row:?}"));
        }
    }
    assert!(wrong.is_empty() && table.len() == measured.len(), "{wrong:#?}");
}
