//! Files of the kernel, below a root that tests can choose.

use std::fs;
use std::path::{Path, PathBuf};

/// `/sys`, `/proc` and `/dev`.
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// The files below `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The location of an absolute path.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The trimmed content; `None` if the file does not exist or is unreadable.
    pub fn text(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_string())
    }

    /// The content as a number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The sorted names in a directory; empty if it is unreadable.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}
