//! Things that a process must not leave behind: files in `/dev/shm` and `/tmp`, and names of sockets.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// Places where programs leave shared memory and sockets.
const PLACES: [&str; 2] = ["/dev/shm", "/tmp"];

/// The contents at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot(BTreeSet<PathBuf>);

impl Snapshot {
    /// Takes a snapshot.
    pub fn take() -> Self {
        let entries = PLACES.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten();
        Self(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
    }

    /// New files that may belong to this library: their name contains one of `marks` (a process id, a name) or the
    /// library's own name. Other programs use these directories too.
    pub fn new_since(&self, marks: &[String]) -> Vec<PathBuf> {
        let ours = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
            name.contains("ofi-shm")
                || name.contains("fi_shm")
                || marks.iter().any(|mark| name.contains(mark))
        };
        Self::take().0.difference(&self.0).filter(|path| ours(path)).cloned().collect()
    }
}

/// Names of abstract and other UNIX sockets that contain `mark`.
pub fn sockets_named(mark: &str) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    table.lines().filter(|line| line.contains(mark)).map(str::to_string).collect()
}

/// Open files of this process.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
