//! The output of `-v` and `-vv`, on standard error: standard output is for addresses and results.

use std::time::Instant;

use crate::output;

/// The printer of steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    level: u8,
    begin: Instant,
}

impl Steps {
    /// Prints nothing at level 0, steps with page indices from 1 on, and each page from 2 on.
    pub fn new(level: u8) -> Self {
        Self { level, begin: Instant::now() }
    }

    /// Prints a step of an end, such as `reader, NIC 0`.
    pub fn step(&self, who: impl std::fmt::Display, what: impl FnOnce() -> String) {
        if self.level >= 1 {
            self.line(who, &what());
        }
    }

    /// Prints a write or an arrival of one page.
    pub fn page(&self, who: impl std::fmt::Display, what: impl FnOnce() -> String) {
        if self.level >= 2 {
            self.line(who, &what());
        }
    }

    #[cold]
    fn line(&self, who: impl std::fmt::Display, what: &str) {
        output::tell(&format!("[{:11.6}] {who}: {what}", self.begin.elapsed().as_secs_f64()));
    }
}

/// One of the writer's or the reader's NICs, in lines.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    /// The role.
    pub role: &'static str,
    /// The number of the NIC.
    pub nic: usize,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, NIC {}", self.role, self.nic)
    }
}

/// Page indices, separated by spaces.
pub fn indices(pages: &[u32]) -> String {
    pages.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
