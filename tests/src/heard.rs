//! Captures the library's log in this process, for tests of its texts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_core::log::{Entry, Level, Sink, take_over};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Heard;

impl Sink for Heard {
    fn enabled(&self, _provider: &str, _subsystem: &str, _level: Level) -> Option<bool> {
        Some(true)
    }

    fn log(&self, entry: &Entry) -> bool {
        let Entry { provider, subsystem, level, text, .. } = entry;
        lines().push(format!("{provider}:{subsystem}<{}> {text}", level.name()));
        true
    }
}

fn lines() -> MutexGuard<'static, Vec<String>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts to capture log entries of every level.
pub fn listen() {
    assert!(take_over(Arc::new(Heard)), "this process has a log of its own");
}

/// Number of lines with all of these words.
pub fn count(words: &[&str]) -> usize {
    lines().iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Fails unless some line has all of these words.
#[track_caller]
pub fn says(words: &[&str]) {
    assert!(count(words) > 0, "no line with {words:?} in\n{}", lines().join("\n"));
}
