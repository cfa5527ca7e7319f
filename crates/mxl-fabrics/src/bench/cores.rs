//! The cores of the measurement.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::{Error, Result};

/// The chosen two cores, or the first two that this process may use; if it has only one, that core twice.
pub fn chosen(chosen: &[usize]) -> Result<(usize, usize)> {
    if let [first, second] = *chosen {
        return Ok((first, second));
    }
    if !chosen.is_empty() {
        return Err(Error::Argument(format!("--cores takes two cores, not {}", chosen.len())));
    }
    let allowed = sched_getaffinity(Pid::from_raw(0))
        .map_err(|error| Error::Argument(format!("cannot read the allowed cores: {error}")))?;
    let mut allowed = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false));
    let first = allowed.next().unwrap_or(0);
    Ok((first, allowed.next().unwrap_or(first)))
}

/// Keeps the calling thread on one core.
pub fn pin(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    let pinned = cores.set(core).and_then(|()| sched_setaffinity(Pid::from_raw(0), &cores));
    pinned.map_err(|error| Error::Argument(format!("core {core}: {error}; choose others with --cores")))
}
