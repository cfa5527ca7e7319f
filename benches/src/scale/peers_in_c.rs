//! Memory of an endpoint with peers beside C's: a program in C on both libraries. It needs the prefix of a libfabric
//! with its headers ([`libfabric::PREFIX`]), and our library ([`libfabric::OURS`]); without them there are no figures.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use super::{Figure, figure};
use crate::{
    Error, Result,
    c_program::CProgram,
    error::tail,
    peers::libfabric::{OURS, PREFIX},
    spawn,
};

static PROGRAM: CProgram = CProgram::on_libfabric("peers", include_str!("../../c/peers.c"));

/// Our provider, C's, and the numbers of peers. C's `shm` has 256 peers at most, and 10,000 peers over its `tcp` or
/// `udp;ofi_rxd` take minutes.
const RUNS: [(&str, &str, &[usize]); 3] =
    [("shm", "shm", &[10, 200]), ("tcp", "tcp", &[10, 1000]), ("udp", "udp;ofi_rxd", &[10, 1000])];

/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(300);

/// Ours by C's, for each provider and number of peers: at most a half. `udp` and `tcp` use sockets.
pub fn measure() -> Result<Vec<Figure>> {
    let (Some(prefix), Some(ours)) = (env::var_os(PREFIX), env::var_os(OURS)) else { return Ok(Vec::new()) };
    let (prefix, ours) = (Path::new(&prefix), Path::new(&ours));
    beside(PROGRAM.path(Some(prefix))?, prefix, ours)
}

fn beside(program: &Path, prefix: &Path, ours: &Path) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (own, theirs, peers) in RUNS {
        let own = sizes(program, ours, own, peers)?;
        let of_c = sizes(program, &prefix.join("lib"), theirs, peers)?;
        for (&peers, (own, of_c)) in peers.iter().zip(own.into_iter().zip(of_c)) {
            let what = format!("{theirs}, {peers} peers: of C's {of_c} KiB ours {own}");
            figures.push(figure(what, own / of_c, Some(0.5)));
        }
    }
    Ok(figures)
}

/// The KiB of an endpoint with so many peers each.
fn sizes(program: &Path, library: &Path, provider: &str, peers: &[usize]) -> Result<Vec<f64>> {
    let mut command = Command::new(program);
    command.arg(provider).args(peers.iter().map(usize::to_string)).env("LD_LIBRARY_PATH", library);
    command.envs(["FI_UDP_SHARED_MEMORY", "FI_TCP_SHARED_MEMORY"].map(|name| (name, "0")));
    let output = text(command)?;
    let sizes = output.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok());
    let sizes: Vec<f64> = sizes.skip(1).collect(); // the first is without peers
    if sizes.len() == peers.len() {
        return Ok(sizes);
    }
    let program = format!("{} {provider}", program.display());
    Err(Error::Unreadable { program, wanted: "a size for each number of peers", output: tail(&output) })
}

/// Runs a program to its end; its standard output.
fn text(mut command: Command) -> Result<String> {
    command.stdin(Stdio::null());
    spawn::output(command, LIMIT)
}
