//! A description of this machine for the head of the table.

use std::fs;

use serde::Serialize;

/// The facts that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor, as in `/proc/cpuinfo`.
    pub cpu: String,
    /// Number of cores.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Whether private memory gets huge pages: `always`, `madvise` or `never`.
    pub huge_pages: String,
    /// Whether shared memory gets huge pages.
    pub shared_huge_pages: String,
}

impl Machine {
    /// Reads `/proc` and `/sys`; unknown facts are `?`.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let model = text("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name").and_then(|rest| rest.split_once(": ")))
            .map(|(_, name)| name.to_owned());
        let huge = |name: &str| chosen(&text(&format!("/sys/kernel/mm/transparent_hugepage/{name}")));
        Self {
            cpu: model.unwrap_or_else(|| "?".into()),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            huge_pages: huge("enabled"),
            shared_huge_pages: huge("shmem_enabled"),
        }
    }
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(choices: &str) -> String {
    let inner = choices.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or("?", |(choice, _)| choice).to_owned()
}
