//! Instructions per operation, counted by valgrind's callgrind.
//!
//! Counts are the same on a busy machine as on a quiet one, which is why CI checks them and not times. Only the
//! path's function is counted (`--toggle-collect`). The child runs twice, the second time with more operations:
//! what the difference took is steady state, without first-time work.

use std::{
    env, fs,
    path::Path,
    process::{self, Command, Stdio},
};

use crate::{
    Error, Result, budget,
    error::tail,
    ours::{self, run_path},
    peers::packages::on_path,
};

/// Operations of the two runs.
const COUNTS: [u64; 2] = [1_000, 3_000];

/// One path against its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Which path.
    pub path: String,
    /// Instructions that one operation may take.
    pub budget: u64,
    /// Instructions that it took, rounded up.
    pub measured: u64,
}

impl Checked {
    /// Whether it is within its budget.
    pub fn is_within(&self) -> bool {
        self.measured <= self.budget
    }
}

/// Counts every path of `document`'s table, and writes what it measured into the table if `write` says so.
///
/// # Errors
/// When valgrind is missing, the table names a path that [`ours::PATHS`] does not have or lacks one that it has, or
/// a child fails.
pub fn check(document: &Path, write: bool) -> Result<Vec<Checked>> {
    let entries = budget::read(document)?;
    if let Some(path) = ours::PATHS.iter().find(|path| !entries.iter().any(|entry| entry.path == path.name)) {
        let reason = format!("path {:?} is measured and has no budget", path.name);
        return Err(Error::Budget { path: document.to_owned(), reason });
    }
    let mut results = Vec::new();
    for entry in entries {
        let path = ours::PATHS.iter().find(|path| path.name == entry.path);
        let path = path.ok_or_else(|| Error::NotReady(format!("path {:?}", entry.path)))?;
        let measured = per_operation(path.function, |count| {
            vec!["path".into(), path.name.into(), "--count".into(), count.to_string()]
        })?;
        results.push(Checked { path: entry.path, budget: entry.budget, measured: measured.ceil() as u64 });
    }
    if write {
        let what = || Error::io(document.display().to_string());
        let text = fs::read_to_string(document).map_err(what())?;
        let text =
            results.iter().fold(text, |text, row| budget::with_measured(&text, &row.path, row.measured));
        fs::write(document, text).map_err(what())?;
    }
    Ok(results)
}

/// In the child: runs the path, under callgrind.
pub fn main(path: &str, count: u64) -> Result<()> {
    run_path(path, count)
}

/// Instructions that one more operation takes in `function` (a pattern of `--toggle-collect`), in this program
/// run with `args(count)`.
pub fn per_operation(function: &str, args: impl Fn(u64) -> Vec<String>) -> Result<f64> {
    if !on_path("valgrind") {
        return Err(Error::Missing {
            program: "valgrind".into(),
            reason: "instructions are counted with it: apt-get install valgrind".into(),
        });
    }
    let few = collected(function, &args(COUNTS[0]))?;
    let many = collected(function, &args(COUNTS[1]))?;
    if few == 0 || many <= few {
        return Err(Error::Unreadable {
            program: "valgrind --tool=callgrind".into(),
            wanted: "instructions in the path's function",
            output: format!("{function}: {few} for {} operations, {many} for {}", COUNTS[0], COUNTS[1]),
        });
    }
    Ok((many - few) as f64 / (COUNTS[1] - COUNTS[0]) as f64)
}

/// Instructions collected over one run of this program under callgrind.
fn collected(function: &str, args: &[String]) -> Result<u64> {
    let this = env::current_exe().map_err(Error::io("finding this program"))?;
    let out = env::temp_dir().join(format!("ofi-benches-callgrind.{}", process::id()));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={function}"));
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(this).args(args).stdin(Stdio::null());
    let output = command.output().map_err(Error::io("starting valgrind"))?;
    let text = fs::read_to_string(&out);
    let _ = fs::remove_file(&out); // a run that failed may have left none
    let words = || tail(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(Error::Failed { program: "valgrind".into(), status: output.status, tail: words() });
    }
    let text = text.map_err(Error::io("reading callgrind's output"))?;
    total(&text).ok_or_else(|| Error::Unreadable {
        program: "valgrind --tool=callgrind".into(),
        wanted: "a line \"totals:\"",
        output: words(),
    })
}

/// The sum over all threads and dumps: `totals: 12345`, or the older `summary:`.
fn total(text: &str) -> Option<u64> {
    let find = |key: &str| text.lines().filter_map(move |line| line.strip_prefix(key)).next_back();
    find("totals:").or_else(|| find("summary:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        assert_eq!(total("events: Ir\nfn=(1)\n1 2\ntotals: 4711\n"), Some(4711));
        assert_eq!(total("summary: 12\n"), Some(12));
        assert_eq!(total("events: Ir\n"), None);
    }
}
