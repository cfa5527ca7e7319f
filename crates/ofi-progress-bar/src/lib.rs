//! The progress bar of this repository's programs.
//!
//! It is drawn on standard error, and only if that is a terminal: a program whose output is read by another one shows
//! none. It has no thread: it draws when it is called, at most 20 times a second, so that it takes no time from a
//! measurement.
#![forbid(unsafe_code)]

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a program is. Dropping it removes the bar.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Counts this many steps, or with `None` an unknown number. With `quiet` nothing is drawn.
    pub fn steps(quiet: bool, steps: Option<u64>) -> Self {
        let template =
            if steps.is_some() { "{bar:30} {pos}/{len} {msg}" } else { "{spinner} {pos} {msg}, {elapsed}" };
        Self::styled(quiet, steps, template)
    }

    /// Counts this many of `what`, and shows how many there are a second.
    pub fn rate(quiet: bool, count: u64, what: &'static str) -> Self {
        let progress = Self::styled(quiet, Some(count), "{bar:30} {pos}/{len} {msg}, {per_sec}");
        progress.0.set_message(what);
        progress
    }

    /// Counts bytes, and shows their rate and the time that is left. Their number [grows](Self::grow) as it becomes
    /// known.
    pub fn bytes(quiet: bool) -> Self {
        Self::styled(quiet, Some(0), "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// Draws nothing, for a function that wants a bar.
    pub fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    fn styled(quiet: bool, len: Option<u64>, template: &str) -> Self {
        let bar = if quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr())
        };
        // The templates are valid constants.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        Self(bar)
    }

    /// Names the current step.
    pub fn begin(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// Counts a finished step.
    pub fn done(&self) {
        self.advance(1);
    }

    /// Counts what is finished.
    pub fn advance(&self, count: u64) {
        self.0.inc(count);
    }

    /// Expects this much more.
    pub fn grow(&self, count: u64) {
        self.0.inc_length(count);
    }

    /// Counts what was finished by an earlier run: it does not count for the rate.
    pub fn resume(&self, count: u64) {
        self.0.inc(count);
        self.0.reset_eta();
    }

    /// Runs `write` with the bar hidden, for output between its lines.
    pub fn aside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
