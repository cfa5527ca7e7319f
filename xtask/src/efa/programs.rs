//! Programs on our `efa`. With ours at both ends: Open MPI's ranks and NIXL's agents, once on an ideal device, and once
//! on one that reorders packets and finds receivers without receives. With C's `efa` at the other end: the accesses of
//! tests/capi/efa.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::on;
use crate::step::{Outcome, Report, not_run, root, run};
use crate::stock::{NO_HEADERS, Stock};
use crate::{StepResult, capi, nixl, patience, vm};

/// Packets per hundred that arrive late, and messages per hundred that find no receive.
pub const DISORDER: [(&str, &str); 2] = [("EFA_EMULATOR_REORDER", "30"), ("EFA_EMULATOR_RNR", "10")];
/// Bytes of a block, blocks, rounds: one packet, a block just long enough for NIXL to stripe it, a block of many
/// packets.
const SIZES: [[usize; 3]; 3] = [[4_096, 256, 3], [131_072, 32, 3], [1 << 20, 8, 3]];

/// Runs the programs.
pub fn test(report: &mut Report, emulator: &Path, dir: &Path) {
    for disorder in [false, true] {
        let network = if disorder { "a network without order" } else { "a network in order" };
        let start = |command: &mut Command| {
            // No other provider, so that the programs cannot fall back from `efa`.
            on(command, emulator, dir).env("FI_PROVIDER", "efa");
            command.envs(disorder.then_some(DISORDER).into_iter().flatten());
            patience::patient(command)
        };
        let name = format!("Open MPI over our efa, {network}");
        report.add_retried(&name, || open_mpi(&name, start));
        let name = format!("NIXL over our efa, {network}");
        report.add_retried(&name, || agents(&name, start));
    }
}

/// Two ranks that treat each other as separate hosts: messages, collectives, one-sided, many at once.
fn open_mpi(name: &str, start: impl Fn(&mut Command) -> StepResult) -> StepResult {
    if !capi::has_open_mpi() {
        return not_run(name, capi::NO_OPEN_MPI);
    }
    let library = capi::link(false)?;
    let program = capi::stress(&library)?;
    start(capi::mpirun("2", "efa").env("LD_LIBRARY_PATH", &library).arg(program))
}

/// Two agents: every block is written with a notification, and read back with another.
fn agents(name: &str, start: impl Fn(&mut Command) -> StepResult) -> StepResult {
    let python = match nixl::python() {
        Ok(python) => python,
        Err(why) => return not_run(name, &why),
    };
    let library = capi::link(false)?;
    for sizes in SIZES {
        start(&mut nixl::exchange(&python, &library, sizes)?).map_err(|why| format!("{sizes:?}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// A program of two processes, each on one of two libraries.
struct Pair<'a> {
    stock: &'a Stock,
    program: PathBuf,
    /// The folder in which C's programs find our library.
    library: PathBuf,
    /// The folder in which the two find each other.
    meeting: PathBuf,
    emulator: &'a Path,
    dir: &'a Path,
}

impl<'a> Pair<'a> {
    /// Compiles tests/capi/efa/NAME.c with C's headers. `None`: there are none.
    fn new(stock: &'a Stock, name: &str, emulator: &'a Path, dir: &'a Path) -> Result<Option<Self>, String> {
        if !stock.compiles("#include <rdma/fabric.h>") {
            return Ok(None);
        }
        let library = capi::link(false)?;
        let source = root().join("tests/capi/efa").join(name).with_extension("c");
        let program = stock.output(&library, &source);
        stock.program(&[&source], &program, &[])?;
        let meeting = library.join(format!("{name}-{}", std::process::id()));
        Ok(Some(Self { stock, program, library, meeting, emulator, dir }))
    }

    /// A process of it, on our library or on C's.
    fn side(&self, role: &str, ours: bool) -> Command {
        let Self { stock, program, library, .. } = self;
        let mut side = if ours { stock.command_on(library, program) } else { stock.command(program) };
        on(&mut side, self.emulator, self.dir).arg(role).arg(&self.meeting);
        side
    }

    /// Runs both to their ends.
    fn run(&self, case: &str, first: &mut Command, second: &mut Command) -> Result<(), String> {
        let mut first = first.spawn().map_err(|error| format!("{case}: {error}"))?;
        let outcome = patience::patient(second);
        if outcome.is_err() {
            let _ = first.kill();
        }
        let ended = first.wait().map_err(|error| format!("{case}: {error}"))?;
        let _ = std::fs::remove_file(&self.meeting);
        outcome.map_err(|why| format!("{case}: {why}"))?;
        if ended.success() { Ok(()) } else { Err(format!("{case}: the other side ended with {ended}")) }
    }
}

/// The name of an end in reports.
fn who(ours: bool) -> &'static str {
    if ours { "ours" } else { "C's" }
}

/// Every kind of access, from C's library to ours and from ours to C's.
pub fn accesses(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    let Some(pair) = Pair::new(stock, "accesses", emulator, dir)? else { return not_run(name, NO_HEADERS) };
    let orders = [None, Some(DISORDER)];
    let ends = [(true, false), (false, true), (true, true)];
    for (disorder, (owns, accesses)) in orders.into_iter().flat_map(|order| ends.map(|ends| (order, ends))) {
        let network = if disorder.is_some() { ", on a network without order" } else { "" };
        let case = format!("{} accesses memory of {}{network}", who(accesses), who(owns));
        let side = |role, ours| {
            let mut side = pair.side(role, ours);
            side.envs(disorder.into_iter().flatten());
            side
        };
        pair.run(&case, &mut side("own", owns), &mut side("access", accesses))?;
    }
    Ok(Outcome::Passed)
}

/// Long messages to receivers whose device takes no more registrations: they cannot read the messages, and report an
/// error.
pub fn unreadable(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    /// Maximum registrations of the device: those that endpoints need themselves, and some more.
    const REGIONS: &str = "64";
    /// Texts in the logs of our ends about such a message.
    const RECEIVER: &str = "a payload cannot be read";
    const SENDER: &str = "the peer cannot read a payload";
    let Some(pair) = Pair::new(stock, "unreadable", emulator, dir)? else { return not_run(name, NO_HEADERS) };
    for (receives, sends) in [(true, false), (false, true), (true, true)] {
        let case = format!("{} sends to {}", who(sends), who(receives));
        let log = pair.meeting.with_extension("log");
        let side = |role: &str, ours: bool| {
            let mut side = pair.side(role, ours);
            side.env("EFA_EMULATOR_REGIONS", REGIONS);
            if ours {
                let location = log.with_extension(role);
                let _ = std::fs::remove_file(&location);
                side.envs([("FI_LOG_LEVEL", "debug"), ("FI_LOG_SUBSYS", "ep_data")]);
                side.env("FI_LOG_LOCATION", location);
            }
            side
        };
        pair.run(&case, &mut side("receive", receives), &mut side("send", sends))?;
        for (role, ours, said) in [("receive", receives, RECEIVER), ("send", sends, SENDER)] {
            let location = log.with_extension(role);
            let text = std::fs::read_to_string(&location).unwrap_or_default();
            let _ = std::fs::remove_file(&location);
            if ours && !text.contains(said) {
                return Err(format!("{case}: nothing was refused: no {said:?} in the log:\n{text}"));
            }
        }
    }
    Ok(Outcome::Passed)
}

/// The C program for memory of CUDA devices, without and with dma-bufs of it; the latter the device accesses.
pub fn device_memory(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    let library = capi::link(false)?;
    for exported in ["0", "1"] {
        let Some(mut program) = capi::device_memory_of(&library, stock)? else {
            return not_run(name, NO_HEADERS);
        };
        program.arg("efa").env("CUDA_EMULATOR_DMABUF", exported);
        patience::patient(on(&mut program, emulator, dir))?;
    }
    Ok(Outcome::Passed)
}

/// The options of C's endpoints on either library.
pub fn options(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.compiles("#include <rdma/fabric.h>") {
        return not_run(name, NO_HEADERS);
    }
    let library = capi::link(false)?;
    let source = root().join("tests/capi/efa/options.c");
    let program = stock.output(&library, &source);
    stock.program(&[&source], &program, &[])?;
    for (who, mut side) in [("C's", stock.command(&program)), ("ours", stock.command_on(&library, &program))]
    {
        run(on(&mut side, emulator, dir)).map_err(|why| format!("{who}: {why}"))?;
    }
    Ok(Outcome::Passed)
}

/// Messages to C's endpoints that receive in place, and to ours with the same options, which do not.
pub fn in_place(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    let Some(pair) = Pair::new(stock, "in_place", emulator, dir)? else { return not_run(name, NO_HEADERS) };
    let side = |role: &str, ours: bool| {
        let mut side = pair.side(role, ours);
        side.args((!ours).then_some("in-place"));
        side
    };
    for (receives, sends) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("{} sends to {}", who(sends), who(receives));
        pair.run(&case, &mut side("receive", receives), &mut side("send", sends))?;
    }
    Ok(Outcome::Passed)
}

/// Kills a peer that runs this library.
pub fn death(emulator: &Path, dir: &Path) -> StepResult {
    let mut test = Command::new(vm::suite::program("ofi-tests", "devices", None)?);
    run(on(test.args(["--include-ignored", "for_a_peer_that_dies"]), emulator, dir))
}

/// Requests that the device reports as failed.
pub fn losses(emulator: &Path, dir: &Path) -> StepResult {
    let mut test = Command::new(vm::suite::program("ofi-tests", "devices", None)?);
    run(on(test.args(["--include-ignored", "efa_losses::"]), emulator, dir))
}

/// Two endpoints of a process.
pub fn neighbours(emulator: &Path, dir: &Path) -> StepResult {
    let mut test = Command::new(vm::suite::program("ofi-tests", "devices", None)?);
    run(on(test.args(["--include-ignored", "efa_neighbours::"]), emulator, dir))
}

/// Kills a peer that runs C's library.
pub fn death_of_c(stock: &Stock, name: &str, emulator: &Path, dir: &Path) -> StepResult {
    if !stock.compiles("#include <rdma/fabric.h>") {
        return not_run(name, NO_HEADERS);
    }
    let library = capi::link(false)?;
    let source = root().join("tests/capi/efa/victim.c");
    let program = stock.output(&library, &source);
    stock.program(&[&source], &program, &[])?;
    let victim = stock.command(&program);
    let libraries = victim.get_envs().find(|(name, _)| *name == "LD_LIBRARY_PATH");
    let libraries = libraries.and_then(|(_, folders)| folders).unwrap_or_default();
    let words = [libraries, victim.get_program()].into_iter().chain(victim.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let mut test = Command::new(vm::suite::program("ofi-tests", "devices", None)?);
    test.args(["--include-ignored", "a_dead_peer_of_c_s"]).env("EFA_VICTIM", words.join("\n"));
    run(on(&mut test, emulator, dir))
}
