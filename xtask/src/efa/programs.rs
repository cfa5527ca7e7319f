//! Programs of others on our `efa`, at every end: Open MPI's ranks and NIXL's agents. Once on a device that behaves, and once on one that keeps no order
//! and finds receivers without receives.

use std::path::Path;
use std::process::Command;

use super::on;
use crate::step::{Outcome, Report, not_run};
use crate::{StepResult, capi, nixl};

/// Of a hundred packets and messages, so many come late or find no receive.
const DISORDER: [(&str, &str); 2] = [("EFA_EMULATOR_REORDER", "30"), ("EFA_EMULATOR_RNR", "10")];
/// Bytes of a block, blocks, rounds: one packet, one that is as long as NIXL has it striped, one of many packets.
const SIZES: [[usize; 3]; 3] = [[4_096, 256, 3], [131_072, 32, 3], [1 << 20, 8, 3]];

/// Runs them.
pub fn test(report: &mut Report, emulator: &Path, dir: &Path) {
    for disorder in [false, true] {
        let network = if disorder { "a network without order" } else { "a quiet network" };
        let start = |command: &mut Command| {
            // Nothing else, if they would do without.
            on(command, emulator, dir).env("FI_PROVIDER", "efa");
            command.envs(disorder.then_some(DISORDER).into_iter().flatten());
            capi::patient(command)
        };
        let name = format!("Open MPI over our efa, {network}");
        report.add_retried(&name, || open_mpi(&name, start));
        let name = format!("NIXL over our efa, {network}");
        report.add_retried(&name, || agents(&name, start));
    }
}

/// Two ranks, which are two hosts to each other: messages, collectives, one-sided, many at once.
fn open_mpi(name: &str, start: impl Fn(&mut Command) -> StepResult) -> StepResult {
    if !capi::has_open_mpi() {
        return not_run(name, capi::NO_OPEN_MPI);
    }
    let library = capi::link_with(false, Some("efa"))?;
    let program = capi::stress(&library)?;
    start(capi::mpirun("2", "efa").env("LD_LIBRARY_PATH", &library).arg(program))
}

/// Two agents: every block is written with a notification, and read back with another.
fn agents(name: &str, start: impl Fn(&mut Command) -> StepResult) -> StepResult {
    let python = match nixl::python() {
        Ok(python) => python,
        Err(why) => return not_run(name, &why),
    };
    let library = capi::link_with(false, Some("efa"))?;
    for sizes in SIZES {
        start(&mut nixl::exchange(&python, &library, sizes)?).map_err(|why| format!("{sizes:?}: {why}"))?;
    }
    Ok(Outcome::Passed)
}
