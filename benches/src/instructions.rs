//! Instructions per operation, counted by valgrind's callgrind.
//!
//! Counts do not depend on the load of the machine, which is why CI checks them rather than times. Only the path's
//! function is counted (`--toggle-collect`). The child runs twice, the second time with more operations: the difference
//! is the steady state, without first-time work.

use std::{
    env, fs,
    hint::black_box,
    path::Path,
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, Result, budget, error::tail, ours, peers::packages::on_path, side_by_side::on_each_core};

/// Operations of the two runs.
const COUNTS: [u64; 2] = [1_000, 3_000];

/// A path and its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The path.
    pub path: String,
    /// Instructions that one operation may take.
    pub budget: u64,
    /// Measured instructions, rounded up.
    pub measured: u64,
}

impl Checked {
    /// Whether it is within its budget.
    pub fn is_within(&self) -> bool {
        self.measured <= self.budget
    }
}

/// Counts every path of `document`'s table, and if `write` is set writes the counts into the table.
///
/// # Errors
/// valgrind is missing, the table and [`ours::PATHS`] name different paths, or a child fails.
pub fn check(document: &Path, write: bool) -> Result<Vec<Checked>> {
    let entries = budget::read(document)?;
    if let Some(path) = ours::PATHS.iter().find(|path| !entries.iter().any(|entry| entry.path == path.name)) {
        let reason = format!("path {:?} is measured and has no budget", path.name);
        return Err(Error::Budget { path: document.to_owned(), reason });
    }
    let this = env::current_exe().map_err(Error::io("finding this program"))?;
    let results = on_each_core(&entries, |entry| {
        let path = ours::PATHS.iter().find(|path| path.name == entry.path);
        let path = path.ok_or_else(|| Error::NotReady(format!("path {:?}", entry.path)))?;
        let measured = per_operation(&this, path)?;
        Ok(Checked { path: entry.path.clone(), budget: entry.budget, measured: measured.ceil() as u64 })
    })?;
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
    if path != CALIBRATION.name {
        return ours::run_path(path, count);
    }
    (0..count).for_each(|_| calibration());
    Ok(())
}

/// A path with a known count, to test the counting itself: a thousand turns of a loop that cannot be shorter than two
/// instructions.
pub const CALIBRATION: ours::Path =
    ours::Path { name: "calibration", function: "*ofi_benches*instructions*calibration*" };

#[inline(never)]
fn calibration() {
    for turn in 0..1000_u32 {
        black_box(turn);
    }
}

/// Instructions per operation of `path` in `program`, which is this one.
pub fn per_operation(program: &Path, path: &ours::Path) -> Result<f64> {
    if !on_path("valgrind") {
        return Err(Error::Missing {
            program: "valgrind".into(),
            reason: "instructions are counted with it: apt-get install valgrind".into(),
        });
    }
    let [few, many] = COUNTS;
    let (less, more) = (collected(program, path, few)?, collected(program, path, many)?);
    if less == 0 || more <= less {
        return Err(Error::Unreadable {
            program: "valgrind --tool=callgrind".into(),
            wanted: "instructions in the path's function",
            output: format!("{}: {less} for {few} operations, {more} for {many}", path.function),
        });
    }
    Ok((more - less) as f64 / (many - few) as f64)
}

/// Instructions collected over one run of `count` operations under callgrind.
fn collected(program: &Path, path: &ours::Path, count: u64) -> Result<u64> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let out = env::temp_dir().join(format!("ofi-benches-callgrind.{}.{run}", process::id()));
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--fair-sched=yes", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={}", path.function));
    // Its entry while counting is on switches counting off until its return.
    command.args(path.apart().map(|function| format!("--toggle-collect={function}")));
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program).args(["path", path.name, "--count", &count.to_string()]).stdin(Stdio::null());
    let output = command.output().map_err(Error::io("starting valgrind"))?;
    let text = fs::read_to_string(&out);
    let _ = fs::remove_file(&out); // a failed run may not have created it
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
