//! The command line of `fi_pingpong`. Short options are C's.
//!
//! C starts a server if no address is given. Here a run without an address runs both sides, unless an option indicates
//! a server: `--server`, or one of C's options that both sides need (`-p`, `-e`, `-I` ...).

use clap::{Parser, ValueEnum};
use ofi::raw::EpType;
use serde::{Deserialize, Serialize};

use super::sizes;
use crate::failure::Failure;

/// The port of C's `fi_pingpong`.
pub const DEFAULT_PORT: u16 = 47_592;

/// Measure messages between two processes
///
/// Without arguments: starts a second process on another core and prints latency, rate and bandwidth by message size
/// for each transport of this host. With C's options: a server, or a client of the server at the given address.
#[derive(Debug, Parser)]
#[command(name = "fi_pingpong", version, infer_long_args = true)]
pub struct Options {
    /// Address of the server; starts a client
    #[arg(value_name = "SERVER")]
    pub address: Option<String>,
    /// Start a server; missing options take their defaults
    #[arg(long, conflicts_with_all = ["address", "both"])]
    pub server: bool,
    /// Run both sides here, even with options that would start a server
    #[arg(long = "self", conflicts_with = "address")]
    pub both: bool,

    /// Source port of the control connection [server: 47592, client: any]
    #[arg(short = 'B', value_name = "PORT")]
    pub source_port: Option<u16>,
    /// Destination port of the control connection [client: 47592]
    #[arg(short = 'P', value_name = "PORT")]
    pub dest_port: Option<u16>,
    /// Control connection over IPv6
    #[arg(short = '6')]
    pub ipv6: bool,
    /// Domain name
    #[arg(short = 'd', value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// Fabric name
    #[arg(short = 'f', value_name = "FABRIC")]
    pub fabric: Option<String>,
    /// Source address of the endpoint
    #[arg(short = 's', value_name = "ADDR")]
    pub source: Option<String>,
    /// Provider name
    #[arg(short = 'p', value_name = "PROVIDER")]
    pub provider: Option<String>,
    /// Endpoint type [default: rdm]
    #[arg(short = 'e', value_name = "TYPE", ignore_case = true)]
    pub endpoint: Option<Endpoint>,
    /// Messages each way [server and client: 1000; otherwise by time]. A server follows its client
    #[arg(short = 'I', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    pub iterations: Option<u64>,
    /// Size in bytes, or "all". A server follows its client
    #[arg(short = 'S', value_name = "SIZE", value_parser = sizes::one_or_all)]
    pub size: Option<sizes::Choice>,
    /// Kind of message [default: msg]
    #[arg(short = 'm', value_name = "KIND", ignore_case = true)]
    pub kind: Option<Kind>,
    /// Check the data in a separate pass. A server follows its client
    #[arg(short = 'c')]
    pub check: bool,
    /// Report choices and progress on standard error
    #[arg(short = 'v')]
    pub verbose: bool,

    /// Sizes in bytes, such as 64,4K,1M
    #[arg(long, value_name = "LIST", value_parser = sizes::list, conflicts_with = "size")]
    pub sizes: Option<sizes::Choice>,
    /// Spend a tenth of the time
    #[arg(long)]
    pub quick: bool,
    /// Also measure remote reads and writes
    #[arg(long, conflicts_with = "address")]
    pub rma: bool,
    /// Threading level: the program (domain) or the library (safe) serializes calls
    #[arg(long, value_name = "LEVEL", default_value = "domain")]
    pub threading: Level,
    /// Memory of the messages: the program's own or the library's
    #[arg(long, value_name = "WHOSE", default_value = "application")]
    pub memory: Memory,
    /// Cores to run on: two, or one for a server or client [default: two cores near each other, or any]
    #[arg(long, value_name = "CORE,CORE", value_delimiter = ',', num_args = 1)]
    pub cores: Vec<usize>,
    /// Print the counters of the endpoint and of the path to the peer on standard error at the end
    #[arg(long)]
    pub stats: bool,
    /// Write JSON
    #[arg(long)]
    pub json: bool,

    /// The second process of a run by itself: its standard input is the control connection
    #[arg(long, hide = true)]
    pub peer: bool,
}

/// Endpoint types, as C names them here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Endpoint {
    /// Connected
    Msg,
    /// Reliable, without connection
    Rdm,
    /// Unreliable
    Dgram,
}

/// Kinds of message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Without tag
    #[default]
    Msg,
    /// With tag
    Tagged,
}

/// Threading levels of the endpoint. The library locks in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// FI_THREAD_DOMAIN: the program calls from one thread at a time
    Domain,
    /// FI_THREAD_SAFE: the program may call from any thread at any time
    Safe,
}

/// The owner of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// From the program's own allocator
    Application,
    /// From the library, in memory that it can share with peers
    Library,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Memory::Application => "application",
            Memory::Library => "library",
        })
    }
}

/// The role of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role<'a> {
    /// Both sides: starts the other process itself.
    Both,
    /// The process that `Both` starts.
    Peer,
    /// A server.
    Server,
    /// A client of the server at this address.
    Client(&'a str),
}

impl Options {
    /// The role of this process.
    ///
    /// # Errors
    /// The options contradict each other.
    pub fn part(&self) -> Result<Role<'_>, Failure> {
        if self.peer {
            return Ok(Role::Peer);
        }
        let part = match &self.address {
            Some(address) => Role::Client(address),
            None if self.server || (self.has_server_option() && !self.both) => Role::Server,
            None => Role::Both,
        };
        if self.rma && part != Role::Both {
            return Err(Failure::Usage(
                "--rma is part of a run of both sides: leave out --server and C's options, or add --self"
                    .into(),
            ));
        }
        let cores = if part == Role::Both { 2 } else { 1 };
        if !self.cores.is_empty() && self.cores.len() != cores {
            let found = self.cores.len();
            return Err(Failure::Usage(format!("--cores: wanted {cores} for this run, found {found}")));
        }
        Ok(part)
    }

    fn has_server_option(&self) -> bool {
        self.source_port.is_some()
            || self.dest_port.is_some()
            || self.ipv6
            || self.domain.is_some()
            || self.fabric.is_some()
            || self.source.is_some()
            || self.provider.is_some()
            || self.endpoint.is_some()
            || self.iterations.is_some()
            || self.size.is_some()
            || self.kind.is_some()
    }

    /// The endpoint type to ask for.
    pub fn ep_type(&self) -> EpType {
        match self.endpoint {
            None | Some(Endpoint::Rdm) => EpType::Rdm,
            Some(Endpoint::Msg) => EpType::Msg,
            Some(Endpoint::Dgram) => EpType::Dgram,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        Options::try_parse_from(std::iter::once("fi_pingpong").chain(line.split_whitespace())).unwrap()
    }

    #[test]
    fn nothing_means_both_sides() {
        for line in ["", "--json --quick --sizes 64,4K", "-c -v", "--self -p shm -I 5", "--rma"] {
            assert_eq!(parse(line).part().unwrap(), Role::Both, "{line}");
        }
    }

    #[test]
    fn options_of_c_start_a_server_and_an_address_a_client() {
        for line in ["--server", "-p shm", "-e rdm", "-B 4000 -c", "-I 10 -S all"] {
            assert_eq!(parse(line).part().unwrap(), Role::Server, "{line}");
        }
        assert_eq!(parse("-p shm -P 4000 localhost").part().unwrap(), Role::Client("localhost"));
    }

    #[test]
    fn what_does_not_go_together_is_told() {
        assert_eq!(parse("--server --rma").part().unwrap_err().code(), 1);
        let text = parse("--cores 1").part().unwrap_err().to_string();
        assert_eq!(text, "--cores: wanted 2 for this run, found 1");
        assert!(Options::try_parse_from(["fi_pingpong", "-e", "stream"]).is_err());
    }
}
