//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, ValueEnum};

use super::message::Arrival;
use crate::pingpong::sizes;

/// Maximum number of NICs.
pub const MOST_NICS: u64 = 64;

/// Writes random pages into another process's memory, and checks them there.
///
/// Without an address: the writer, which prints its address and serves requests. With an address: the reader, which
/// offers two regions, requests pages and compares every byte. Works with the C++ demo 16_write_cpu over provider efa.
#[derive(Clone, Debug, Parser)]
#[command(name = "fi_write_demo", version)]
pub struct Options {
    /// The writer's address, as it printed it; several NICs are separated by commas
    pub address: Option<String>,
    /// As --page-size; the C++ demo has it in this place
    #[arg(value_name = "PAGE_SIZE", value_parser = size, conflicts_with = "page_size")]
    second: Option<u64>,
    /// As --pages; the C++ demo has it in this place
    #[arg(value_name = "PAGES", value_parser = pages(), conflicts_with = "pages")]
    third: Option<u64>,

    /// Bytes of a page, a multiple of 8, with suffix K or M
    #[arg(long, default_value = "1M", value_parser = size)]
    pub page_size: u64,
    /// Pages to write in each region
    #[arg(long, default_value_t = 8, value_parser = pages())]
    pub pages: u64,
    /// Provider. Default: that of the writer's address; else efa where there is an EFA device, or else udp. Standard
    /// error says which was taken, and why
    #[arg(short = 'p', long = "provider", value_name = "PROVIDER")]
    pub asked: Option<String>,
    /// The provider that was taken.
    #[arg(skip)]
    pub provider: String,
    /// NICs to use at once, with an endpoint on each; beyond those of the host they are taken in turn. Default: all of
    /// the provider, of udp and tcp one for all addresses; with an address, as many as it has. The C++ demo knows one
    #[arg(long = "nics", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=MOST_NICS))]
    pub asked_nics: Option<u64>,
    /// The number that was taken.
    #[arg(skip = 1_u64)]
    pub nics: u64,
    /// Threads that drive the NICs; each NIC belongs to one of them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub threads: u64,
    /// Keep each thread on a core of its own
    #[arg(long)]
    pub pin: bool,
    /// Longest silence, in seconds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the configuration, each step, and page indices on standard error; twice: each write and arrival too
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    #[command(flatten)]
    pub reading: Reading,
    #[command(flatten)]
    pub writing: Writing,

    /// Run both processes here, enable one optimization after the other, and print the gain of each
    #[arg(long, conflicts_with = "address")]
    pub ladder: bool,
    /// Write the ladder's plot (SVG) to this file
    #[arg(long, value_name = "FILE", requires = "ladder")]
    pub svg: Option<PathBuf>,
}

/// The reader's requests.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Reader")]
pub struct Reading {
    /// How the reader detects that all pages have arrived
    #[arg(long, value_enum, default_value_t = Arrival::Last)]
    pub arrival: Arrival,
    /// Times that the writer writes all pages before the reader checks them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Number of requests, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub repeat: u64,
    /// Bytes of each of the two regions
    #[arg(long, default_value = "16M", value_parser = size)]
    pub region: u64,
}

/// The writer's options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Writer")]
pub struct Writing {
    /// End once every NIC has served this many requests
    #[arg(long, value_name = "COUNT")]
    pub requests: Option<u64>,
    /// Writes to post before the queue is polled
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub batch: u64,
    /// What to do when the endpoint has no room for a write
    #[arg(long, value_enum, default_value_t = OnFull::Queue)]
    pub on_full: OnFull,
    /// Where the threads keep their progress counters
    #[arg(long, value_enum, default_value_t = Counters::Own)]
    pub counters: Counters,
    /// Post only after a poll of the queue, as many writes as there is room for
    #[arg(long)]
    pub lazy: bool,
    /// Write every page once before the measurement
    #[arg(long)]
    pub warm_up: bool,
}

/// The reaction to an endpoint without room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFull {
    /// Sleep 1 ms, then 2, then 4, up to ten times.
    Sleep,
    /// Poll the queue, and try again after that.
    Queue,
}

/// The counters of threads' writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Counters {
    /// In one word that all threads write.
    Shared,
    /// In a cache line for each thread; the display adds them up.
    Own,
}

impl Options {
    /// Parses the command line.
    ///
    /// # Errors
    /// The error or help text of clap.
    pub fn from_command_line() -> Result<Self, clap::Error> {
        let mut options = Self::try_parse()?;
        options.page_size = options.second.unwrap_or(options.page_size);
        options.pages = options.third.unwrap_or(options.pages);
        Ok(options)
    }

    /// The longest silence.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// More pages do not fit into a request.
fn pages() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=2038)
}

fn size(text: &str) -> Result<u64, String> {
    let size = sizes::one(text)? as u64;
    let fits = size > 0 && size.is_multiple_of(8);
    fits.then_some(size).ok_or_else(|| format!("wanted a multiple of 8, found {size}"))
}
