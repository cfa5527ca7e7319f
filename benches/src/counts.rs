//! Counts what the paths do beyond plain instructions: locked instructions, system calls, allocations, reads of the
//! clock.
//!
//! Each path runs in a traced child and, once it is warm, is single-stepped (x86-64 only). So the numbers are exact,
//! and do not depend on the load of the machine. The limits are the last columns of [`budget`]'s table. On average over
//! [`FOLLOWED`] calls (fewer for a long path), a path may not exceed its row.

mod decode;
mod symbols;
mod tracee;

use std::path::Path;

use crate::side_by_side::on_each_core;
use crate::{Error, Result, budget, ours};
pub use tracee::Seen;
use tracee::Tracee;

/// Calls before the first one that is single-stepped. By then tables have grown and locks are biased, even those that a
/// connection's thread entered twice at the start, which are biased after 1,024 entries (`ofi-ring/biased`).
const WARM: u64 = 3_000;
/// Single-stepped calls. A poll reads the clock once in 32 calls.
pub const FOLLOWED: u64 = 32;
/// Runs of a path that exceeds its row, of which the least counts: a preempted thread yields its core, which is an
/// additional system call (`ofi-os/spin_policy.rs`).
const ATTEMPTS: usize = 3;

/// A path and its row.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The path.
    pub path: String,
    /// The limits in its row, in the head's order.
    pub allowed: [f64; 4],
    /// The average counts of a call.
    pub found: [f64; 4],
}

impl Checked {
    /// Whether it stays within its row.
    pub fn is_within(&self) -> bool {
        // The row has two decimals.
        self.found.iter().zip(self.allowed).all(|(found, allowed)| *found <= allowed + 0.005)
    }
}

/// Follows every path of `document`'s table, and if `write` is set writes the counts into the table.
///
/// # Errors
/// The table and [`ours::PATHS`] name different paths, a number is invalid, or a child cannot be traced.
pub fn check(document: &Path, write: bool) -> Result<Vec<Checked>> {
    let what = || document.display().to_string();
    let mut text = std::fs::read_to_string(document).map_err(Error::io(what()))?;
    let bad = |reason: String| Error::Budget { path: document.to_owned(), reason };
    let rows = budget::parse(&text).map_err(bad)?;
    if let Some(path) = ours::PATHS.iter().find(|path| !rows.iter().any(|row| row.path == path.name)) {
        return Err(bad(format!("path {:?} has no row in the table of budgets", path.name)));
    }
    let this = std::env::current_exe().map_err(Error::io("finding this program"))?;
    let results = on_each_core(&rows, |row| {
        let path = ours::PATHS.iter().find(|path| path.name == row.path);
        let path = path.ok_or_else(|| Error::NotReady(format!("path {:?}", row.path)))?;
        let allowed = allowed(row, write).map_err(bad)?;
        let mut checked = Checked { path: row.path.clone(), allowed, found: per_call(&follow(&this, path)?) };
        for _ in 1..ATTEMPTS {
            if checked.is_within() {
                break;
            }
            let again = per_call(&follow(&this, path)?);
            checked.found = std::array::from_fn(|count| checked.found[count].min(again[count]));
        }
        Ok(checked)
    })?;
    if write {
        for Checked { path, found, .. } in &results {
            text = budget::with_counts(&text, path, &(*found).map(written));
        }
        std::fs::write(document, text).map_err(Error::io(what()))?;
    }
    Ok(results)
}

/// The limits in the row's cells. If `write` is set, an empty cell is still to be written, and has none.
fn allowed(row: &budget::Entry, write: bool) -> std::result::Result<[f64; 4], String> {
    let mut allowed = [f64::INFINITY; 4];
    for (limit, cell) in allowed.iter_mut().zip(&row.counts) {
        if !(cell.is_empty() && write) {
            let bad = |_| format!("{cell:?} in the row of {:?} is not a number", row.path);
            *limit = cell.parse().map_err(bad)?;
        }
    }
    Ok(allowed)
}

/// Follows `path` in `program`, which is this one.
///
/// # Errors
/// The child cannot be started or traced, or ends early.
pub fn follow(program: &Path, path: &ours::Path) -> Result<Seen> {
    let count = (WARM + FOLLOWED + 8).to_string();
    let mut tracee = Tracee::start(program, &["path", path.name, "--count", &count], path.function)?;
    tracee.skip(WARM)?;
    tracee.follow(FOLLOWED)
}

fn per_call(seen: &Seen) -> [f64; 4] {
    let each = |count: u64| count as f64 / seen.calls.max(1) as f64;
    [each(seen.locked), each(seen.system_calls), each(seen.allocations), each(seen.clock_reads)]
}

/// At most two decimals, without trailing zeros.
fn written(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_short_as_they_are() {
        assert_eq!([0.0, 2.0, 0.03125, 10.5].map(written), ["0", "2", "0.03", "10.5"]);
    }

    #[test]
    fn a_row_is_a_bound_for_each_of_its_numbers() {
        let row = |found| Checked { path: String::new(), allowed: [0.0, 1.0, 0.0, 0.03], found };
        assert!(row([0.0, 1.0, 0.0, 0.03125]).is_within());
        assert!(!row([1.0, 0.0, 0.0, 0.0]).is_within());
        assert!(!row([0.0, 0.0, 0.0, 0.05]).is_within());
    }
}
