//! Other processes of this program (readers, an initiator and a target) and the results of the latter two.
//!
//! Each is started with the arguments of the measurement and its role. A target prints its info first; the
//! rest of the output of both is results.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;

use super::cores::pin;
use crate::{Error, Provider, Result, TargetInfo};

/// Time without an event after which either end gives up.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    Target,
    Initiator,
    Reader,
}

/// The locations of both ends.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The initiator's domain.
    pub near: &'a Path,
    /// The target's domain.
    pub far: &'a Path,
    /// The cores of the initiator and of the target.
    pub cores: (usize, usize),
}

/// The results of both processes.
#[derive(Debug)]
pub struct Said {
    pub target: Value,
    pub initiator: Value,
}

/// A process that ends with the measurement.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Adds the name of the failed operation.
pub fn system(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Argument(format!("{doing}: {error}"))
}

/// Starts this program in another role, with the arguments of this process and the given ones.
///
/// # Errors
/// A program that does not start.
pub fn start(
    role: Role,
    domain: &Path,
    cores: (usize, usize),
    arguments: &[&str],
) -> Result<(Running, BufReader<ChildStdout>)> {
    let program = std::env::current_exe().map_err(system("find this program"))?;
    let mut command = Command::new(program);
    let name = match role {
        Role::Target => "target",
        Role::Initiator => "initiator",
        Role::Reader => "reader",
    };
    let cores = format!("{},{}", cores.0, cores.1);
    // Of an option that is given twice, the last one counts.
    command.args(std::env::args_os().skip(1));
    command.args(["--role", name, "--cores", &cores]).args(arguments);
    command.args([OsString::from("--domain"), domain.into()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // The measurement is of sockets. Without this, two processes of one host would use shared memory.
    command.env("FI_UDP_SHARED_MEMORY", "0").env("FI_TCP_SHARED_MEMORY", "0");
    let mut running = command.spawn().map(Running).map_err(system("start this program again"))?;
    let out = running.0.stdout.take().ok_or_else(|| Error::Argument("no standard output".into()))?;
    Ok((running, BufReader::new(out)))
}

/// Runs both until they end.
///
/// # Errors
/// A process that does not start, or that printed no result: it has printed the reason itself.
pub fn run(provider: Provider, places: Places<'_>) -> Result<Said> {
    let over = ["--provider", provider.name()];
    let (_receiving, mut received) = start(Role::Target, places.far, places.cores, &over)?;
    let mut info = String::new();
    received.read_line(&mut info).map_err(system("read the target's info"))?;
    let (mut sending, mut sent) = start(Role::Initiator, places.near, places.cores, &over)?;
    if let Some(mut stdin) = sending.0.stdin.take() {
        stdin.write_all(info.as_bytes()).map_err(system("hand over the target's info"))?;
    }
    let result = |out: &mut BufReader<ChildStdout>| {
        let mut said = String::new();
        out.read_to_string(&mut said).map_err(system("read the results"))?;
        let unclear = |_| Error::Argument(format!("no results over {provider}: see the lines above"));
        serde_json::from_str(&said).map_err(unclear)
    };
    let initiator = result(&mut sent)?;
    Ok(Said { initiator, target: result(&mut received)? })
}

/// The addresses of an end of a pair: two processes of this host.
pub fn place(provider: Provider) -> (Option<&'static str>, Option<&'static str>) {
    (Some("127.0.0.1").filter(|_| provider != Provider::Shm), None)
}

/// Starts an initiator's process: pins it to its core, and reads the target's info.
///
/// # Errors
/// A core that does not exist, or an invalid info.
pub fn begin(core: usize) -> Result<TargetInfo> {
    pin(core)?;
    let mut info = String::new();
    std::io::stdin().read_line(&mut info).map_err(system("read the target's info"))?;
    TargetInfo::parse(&info)
}
