//! A domain for one test. Tests of other crates include this file too.
#![allow(dead_code, reason = "each test uses a part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use mxl::Domain;

/// A directory that is removed after the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        Self::below(&if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() })
    }

    pub fn below(base: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("mxl-test-{}-{count}", std::process::id()));
        // Left by a process that had the same id and was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn domain(&self) -> Domain {
        Domain::open(&self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
