//! `mr-bench`: measures transfers of `multirail` between processes, in the manner of nixlbench.
//!
//! A target owns memory and drives its agent. An initiator reads or writes that memory in transfers of a batch of
//! blocks, and measures preparing, posting and the whole transfer. They connect over TCP ([`meeting`]), at given
//! addresses or at those [`listed`] in etcd. Without `--listen`, `--etcd` and an address, the program starts its own
//! targets. Several initiators are agents of one process, with rails of their own, so that they start each measurement
//! together.

mod figures;
mod initiator;
mod listed;
mod meeting;
mod memory;
mod plot;
mod target;

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use clap::Parser;
use multirail::{Agent, Members, RailList};

use self::listed::List;
use self::memory::MemoryKind;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::pingpong::sizes;

/// Measures reads and writes over one or more rails, between two processes or more.
#[derive(Debug, Parser)]
#[command(name = "mr-bench", version)]
pub(crate) struct Options {
    /// The targets' addresses, as HOST:PORT. Without an address, this program starts the targets.
    #[arg(value_name = "ADDRESS")]
    addresses: Vec<String>,
    /// Act as a target: wait at this address for the initiators of one run. Port 0 chooses a port, which is printed.
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "addresses")]
    listen: Option<String>,
    /// List and find targets in etcd: client URLs of its members (http://HOST:PORT), separated by commas. Targets are
    /// listed there while they wait, and initiators take them from the list.
    #[arg(long, value_name = "URLS", conflicts_with = "addresses")]
    etcd: Option<String>,
    /// Log in to etcd as this user; the environment variable MR_BENCH_ETCD_PASSWORD has the password.
    #[arg(long, value_name = "NAME", requires = "etcd")]
    etcd_user: Option<String>,
    /// The list in etcd that targets and initiators of one measurement use.
    #[arg(long, value_name = "NAME", default_value = "default", requires = "etcd")]
    group: String,
    /// How initiators and targets are paired.
    #[arg(long, default_value = "pairwise")]
    scheme: Scheme,
    /// Number of pairs (pairwise), targets (one-to-many) or initiators (many-to-one). Default: the number of addresses
    /// if there are several.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pairs: Option<u64>,
    /// Rails of each end: auto (one on each NIC of the best provider there), or names and patterns: `udp,udp` are two
    /// rails, and so are `udp/eth0,udp/eth1`; `efa/*` is one on each EFA device, `!eth0` is auto without eth0.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    rails: Vec<String>,
    /// What to do with the target's memory.
    #[arg(long, value_delimiter = ',', default_value = "write,read")]
    ways: Vec<Direction>,
    /// Block sizes: bytes, or with the suffix K or M.
    #[arg(long, value_delimiter = ',', default_value = "4K,64K,1M,16M,64M", value_parser = size)]
    sizes: Vec<u64>,
    /// Blocks of one transfer.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    batches: Vec<u64>,
    /// Threads that post transfers. Each uses its own part of the memory.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Transfers of each measurement and thread; fewer for large ones, so that a row moves at most 2 GiB.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// Transfers before each measurement.
    #[arg(long, default_value_t = 20)]
    warmup: u64,
    /// The initiators' memory: host, library (allocated by the library; peers of one host can share it), or cuda or
    /// cuda:N (of that CUDA device).
    #[arg(long, value_name = "KIND", default_value = "host")]
    memory: MemoryKind,
    /// The targets' memory. Default: the same kind as the initiators'.
    #[arg(long, value_name = "KIND", conflicts_with = "listen")]
    target_memory: Option<MemoryKind>,
    /// Compare every byte after each row.
    #[arg(long)]
    check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a plot (SVG) of bandwidth and median time by block size to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    Write,
    Read,
}

/// How initiators and targets are paired. All of them work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scheme {
    /// Each initiator with a target of its own.
    Pairwise,
    /// One initiator with several targets.
    OneToMany,
    /// Several initiators with one target.
    ManyToOne,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    let size = sizes::one(text)? as u64;
    (size > 0).then_some(size).ok_or_else(|| "wanted at least 1 byte".to_string())
}

/// The program.
pub fn main() -> ExitCode {
    match Options::try_parse() {
        Ok(options) => exit::end("mr-bench", run(&options)),
        Err(error) => exit::usage(&error),
    }
}

fn run(options: &Options) -> Result<()> {
    let list = options.members()?.map(|members| List::at(&members, &options.group)).transpose()?;
    if let Some(address) = &options.listen {
        return target::run(address, list.as_ref());
    }
    options.svg.as_deref().map_or(Ok(()), plot::try_out)?;
    let pairs = options.pairs()?;
    if !options.addresses.is_empty() {
        return initiator::run(options, pairs, &options.addresses);
    }
    let count = if options.scheme == Scheme::ManyToOne { 1 } else { pairs };
    if let Some(list) = &list {
        return initiator::run(options, pairs, &list.targets(count)?);
    }
    let mut targets = Targets::default();
    let addresses = (0..count).map(|_| targets.start()).collect::<Result<Vec<String>>>()?;
    initiator::run(options, pairs, &addresses)?;
    targets.ended()
}

impl Options {
    /// The members of etcd, and the user.
    fn members(&self) -> Result<Option<Members>> {
        let Some(urls) = &self.etcd else { return Ok(None) };
        let members = Members::at(urls);
        let Some(name) = &self.etcd_user else { return Ok(Some(members)) };
        let password = env::var("MR_BENCH_ETCD_PASSWORD")
            .map_err(|_| Failure::Usage("--etcd-user needs a password in MR_BENCH_ETCD_PASSWORD".into()))?;
        Ok(Some(members.user(name, &password)))
    }

    /// The number of pairs of an initiator and a target.
    fn pairs(&self) -> Result<usize> {
        let named = self.addresses.len();
        let asked = self.pairs.map(|pairs| pairs as usize);
        let wrong = |wanted: String| Err(Failure::Usage(wanted));
        match (self.scheme, asked) {
            (Scheme::ManyToOne, _) if named > 1 => {
                wrong(format!("many-to-one has one target; {named} addresses are given"))
            }
            (Scheme::ManyToOne, asked) => Ok(asked.unwrap_or(2)),
            (_, Some(asked)) if named > 0 && asked != named => {
                wrong(format!("--pairs {asked} needs as many addresses; {named} are given"))
            }
            (Scheme::OneToMany, None) if named == 0 => Ok(2),
            (_, asked) => Ok(asked.unwrap_or(named.max(1))),
        }
    }
}

/// Targets that this process has started. On drop, it kills those that are still running.
#[derive(Default)]
struct Targets(Vec<Child>);

impl Targets {
    /// Starts a target, and returns its address.
    fn start(&mut self) -> Result<String> {
        use std::io::BufRead;
        let system = |doing: &'static str| move |error| Failure::system(doing, error);
        let program = env::current_exe().map_err(system("finding this program"))?;
        let mut command = Command::new(program);
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(system("starting a target"))?;
        let out = child.stdout.take();
        self.0.push(child);
        let mut line = String::new();
        if let Some(out) = out {
            std::io::BufReader::new(out).read_line(&mut line).map_err(system("reading a target's output"))?;
        }
        Ok(line.trim().to_string())
    }

    /// Waits until all targets have ended, which they do after the last request.
    fn ended(mut self) -> Result<()> {
        for mut child in self.0.drain(..) {
            let ended = child.wait().map_err(|error| Failure::system("waiting for a target", error))?;
            if !ended.success() {
                return Err(Failure::Peer(format!("a target ended with {ended}")));
            }
        }
        Ok(())
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A target would otherwise wait for an initiator.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Opens an agent with these rails.
fn agent(name: &str, rails: &[String]) -> Result<Agent> {
    let list = rails.join(",").parse::<RailList>().map_err(|error| Failure::Usage(error.to_string()))?;
    Agent::builder(name).rails(list).open().map_err(Failure::stack("opening the rails"))
}
