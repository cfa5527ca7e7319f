//! A program in C of our own, for what libfabric's programs cannot do: messages, writes and reads over many buffers at
//! each end. It runs on libfabric and on our `libfabric.so.1`.

use std::{path::Path, process::Command};

use super::{Benchmark, PeerRun, fresh_port, iterations};
use crate::{Result, c_program::CProgram};

static PROGRAM: CProgram = CProgram::on_libfabric("buffers", include_str!("../../c/buffers.c"));
/// Buffers at each end, as many as operations in flight. All others are used before the turn of one comes again: no
/// cache smaller than all of them still has it. Those of 64 KiB are 4 MiB, which fit in many a third-level cache.
const BUFFERS: usize = 64;

/// Server and client of the benchmark, compiled against the headers of this prefix or of the system, and the port at
/// which the server listens.
///
/// # Errors
/// There is no compiler, or there are no headers.
pub(super) fn commands(
    run: &PeerRun,
    provider: &str,
    prefix: Option<&Path>,
) -> Result<(Command, Command, u16)> {
    let work = match run.benchmark {
        Benchmark::ColdWrite => "write",
        Benchmark::ColdRead => "read",
        _ => "messages",
    };
    let (program, port) = (PROGRAM.path(prefix)?, fresh_port());
    let command = || {
        let mut command = Command::new(program);
        command.args([work, provider, &run.size.to_string(), &iterations(run.size).to_string()]);
        command.args([BUFFERS.to_string(), port.to_string()]);
        command
    };
    let mut client = command();
    client.arg("127.0.0.1");
    Ok((command(), client, port))
}
