//! A program in C of our own, for what libfabric's programs cannot do: messages, writes and reads over many buffers at
//! each end. It is compiled when it is needed first, and runs on libfabric and on our `libfabric.so.1`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use super::{Benchmark, PeerRun, fresh_port, iterations};
use crate::{Error, Result};

const SOURCE: &str = include_str!("../../c/buffers.c");
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
    let (program, port) = (program(prefix)?, fresh_port());
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

/// The compiled program.
fn program(prefix: Option<&Path>) -> Result<&'static Path> {
    static PROGRAM: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| compile(prefix));
    let missing = |reason: &String| Error::Missing { program: "buffers.c".into(), reason: reason.clone() };
    compiled.as_deref().map_err(missing)
}

/// Compiles the program beside this one. Any libfabric serves to link it: its functions are found when it starts.
fn compile(prefix: Option<&Path>) -> std::result::Result<PathBuf, String> {
    let this = env::current_exe().map_err(|error| format!("this program's folder: {error}"))?;
    let told = |error: std::io::Error| format!("{}: {error}", this.display());
    let (source, program) = (this.with_file_name("buffers.c"), this.with_file_name("buffers"));
    fs::write(&source, SOURCE).map_err(told)?;
    let new = this.with_file_name(format!("buffers.{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&new).arg(&source);
    if let Some(prefix) = prefix {
        cc.arg("-isystem").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    }
    let output = cc.arg("-lfabric").output().map_err(|error| format!("no C compiler: cc: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let first = errors.lines().find(|line| line.contains("error")).unwrap_or_default();
        return Err(format!("cc cannot compile it; libfabric's headers are in libfabric-dev: {first}"));
    }
    fs::rename(&new, &program).map_err(told)?;
    Ok(program)
}
