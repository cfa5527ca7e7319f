//! Progress of the programs: on standard error, only if that is a terminal, and not with `--quiet`.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a program is. It has no thread: it draws when it is called, at most 20 times a second.
pub struct Progress(ProgressBar);

impl Progress {
    /// Expects this many steps, or with `None` an unknown number.
    pub fn new(quiet: bool, steps: Option<u64>) -> Self {
        let bar = if quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::with_draw_target(steps, ProgressDrawTarget::stderr())
        };
        let template =
            if steps.is_some() { "{bar:30} {pos}/{len} {msg}" } else { "{spinner} {pos} {msg}, {elapsed}" };
        let plain = if steps.is_some() { ProgressStyle::default_bar } else { ProgressStyle::default_spinner };
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| plain()));
        Self(bar)
    }

    /// Names the current step.
    pub fn begin(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
        self.0.tick();
    }

    /// Counts a finished step.
    pub fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
