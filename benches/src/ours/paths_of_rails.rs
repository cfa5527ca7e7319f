//! Transfers of `multirail`, to compare with the bare accesses that they consist of: the difference is the engine's
//! cost.
//!
//! Both ends are in one process and the memory is the library's, so a write completes when it is posted, and the target
//! has nothing to do.

use std::time::Duration;

use multirail::{Agent, Local, Prepared, Remote, Way};
use ofi::Hints;

use super::paths::stack;
use crate::{Error, Result};

/// The paths that [`run`] knows.
pub const NAMES: &[&str] = &[
    "rails: transfer of 64 writes of 64 B, waited for",
    "rails: transfer of 64 writes of 32 and 96 B by turns, waited for",
    "rails: transfer of one write of 64 B, waited for",
    "rails: progress that finds nothing",
];

/// Descriptors of the long transfer.
const DESCRIPTORS: u64 = 64;
/// Bytes of each.
const LEN: u64 = 64;
/// Time limit of a transfer, far more than it takes.
const LIMIT: Duration = Duration::from_secs(60);

#[inline(never)]
fn transfer_and_wait(plan: &Prepared) -> Result<()> {
    plan.post(LIMIT).and_then(|transfer| transfer.wait()).map_err(stack)
}

#[inline(never)]
fn progress_nothing(agent: &Agent) -> Result<bool> {
    agent.progress().map_err(stack)
}

/// Runs a path `count` times.
pub fn run(name: &str, count: u64) -> Result<()> {
    let open = |name| Agent::builder(name).rail(Hints::new().provider("shm")).open().map_err(stack);
    let (here, there) = (open("initiator")?, open("target")?);
    let source = here.alloc((DESCRIPTORS * LEN) as usize).map_err(stack)?;
    let target = there.alloc((DESCRIPTORS * LEN) as usize).map_err(stack)?;
    here.load(&there.metadata().map_err(stack)?).map_err(stack)?;
    let ranges = |descriptors: u64| {
        let local = (0..descriptors).map(|nth| source.slice(nth * LEN..(nth + 1) * LEN));
        let local = local.collect::<ofi::raw::Result<Vec<Local>>>().map_err(stack)?;
        let remote: Vec<_> =
            (0..descriptors).map(|nth| Remote { region: target.id(), offset: nth * LEN, len: LEN }).collect();
        here.prepare("target", Way::Write, &local, &remote).map_err(stack)
    };
    let (one, many) = (ranges(1)?, ranges(DESCRIPTORS)?);
    let mixed = {
        // Pairs whose total length is that of two others.
        let bounds = (0..DESCRIPTORS).map(|nth| match nth % 2 {
            0 => nth * LEN..nth * LEN + LEN / 2,
            _ => nth * LEN - LEN / 2..(nth + 1) * LEN,
        });
        let bounds: Vec<_> = bounds.collect();
        let local = bounds.iter().map(|range| source.slice(range.clone()));
        let local = local.collect::<ofi::raw::Result<Vec<Local>>>().map_err(stack)?;
        let remote = bounds.iter().map(|range| Remote {
            region: target.id(),
            offset: range.start,
            len: range.end - range.start,
        });
        here.prepare("target", Way::Write, &local, &remote.collect::<Vec<_>>()).map_err(stack)?
    };
    // Outside the counted functions: the two connect.
    let first = one.post(LIMIT).map_err(stack)?;
    while first.poll().map_err(stack)?.outcome.is_none() {
        there.progress().map_err(stack)?;
    }
    match name {
        "rails: transfer of 64 writes of 64 B, waited for" => {
            (0..count).try_for_each(|_| transfer_and_wait(&many))
        }
        "rails: transfer of 64 writes of 32 and 96 B by turns, waited for" => {
            (0..count).try_for_each(|_| transfer_and_wait(&mixed))
        }
        "rails: transfer of one write of 64 B, waited for" => {
            (0..count).try_for_each(|_| transfer_and_wait(&one))
        }
        "rails: progress that finds nothing" => {
            (0..count).try_for_each(|_| progress_nothing(&here).map(drop))
        }
        _ => Err(Error::NotReady(format!("path {name:?}"))),
    }
}
