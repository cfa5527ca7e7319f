//! `ofi cp`: copies a file or a directory from another host, over any provider.
//!
//! `ofi cp serve DIR` serves the regular files below a directory. `ofi cp get ADDRESS FILE` fetches one over several
//! parallel connections ([`job`]), or with `--recursive` everything below a directory ([`tree`]). A file is sent in
//! blocks, each with its BLAKE3 hash ([`wire`]). Received blocks are written beside the destination, with a journal
//! ([`partial`]), so that an interrupted copy can be resumed by the same process or a later one.

mod get;
mod job;
mod keep;
mod link;
mod partial;
mod place;
mod root;
mod serve;
mod tree;
mod wire;

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use ofi::raw::{Address, Hints};

use crate::failure::{Failure, Result};

/// The command line.
#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the files below a directory
    Serve(serve::Options),
    /// Fetch a file or a directory; run it again to resume an interrupted copy
    Get(get::Options),
}

/// The provider, and access control.
#[derive(Debug, clap::Args)]
struct Net {
    /// Provider of the connections
    #[arg(short, long, value_name = "PROV", default_value = "udp")]
    provider: String,
    /// File with a secret (at least 16 bytes) that both ends share: encrypts the traffic and rejects everyone else
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl Net {
    fn hints(&self) -> Result<Hints> {
        let hints = Hints::new().provider(&self.provider);
        let Some(path) = &self.key else { return Ok(hints) };
        Ok(hints.auth_key(read_key(path)?))
    }
}

fn read_key(path: &Path) -> Result<Vec<u8>> {
    let key =
        std::fs::read(path).map_err(|error| Failure::system(format!("reading {}", path.display()), error))?;
    let key = key.trim_ascii();
    if key.len() < 16 {
        let (path, len) = (path.display(), key.len());
        return Err(Failure::Usage(format!("{path}: a key has 16 bytes at least, this one {len}")));
    }
    // The hash has the length that the provider requires.
    Ok(blake3::hash(key).as_bytes().to_vec())
}

/// Parses an address as users write it: `host:port`, or the provider's own form (`fi_sockaddr_in://…`, `fi_shm://…`).
fn address(text: &str) -> Result<Address> {
    if text.contains("://") {
        return text.parse().map_err(Failure::stack("the address"));
    }
    let found =
        text.to_socket_addrs().map_err(|error| Failure::system(format!("the address {text:?}"), error))?;
    let first = found.into_iter().next();
    first.map(Address::from).ok_or_else(|| Failure::Usage(format!("{text:?} has no address")))
}

/// Runs the command.
///
/// # Errors
/// The reason why the copy failed.
pub fn run(options: &Options) -> Result<ExitCode> {
    match &options.command {
        Command::Serve(options) => serve::run(options)?,
        Command::Get(options) => get::run(options)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A reason from the server, with control characters escaped.
fn told(why: &str) -> Failure {
    Failure::Peer(format!("the server: {}", why.escape_debug()))
}
