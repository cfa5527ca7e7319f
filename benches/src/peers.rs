//! The peers: libfabric and UCX, measured with their own benchmarks over shared memory and over loopback.
//!
//! They come from Debian's packages ([`packages`]). A newer libfabric that somebody built is used instead where
//! [`libfabric::PREFIX`] names its prefix; nothing here builds one. Where the packages have no benchmark for a
//! line (1.17's `fi_pingpong` has no rate and no RMA), libfabric's figure is UCX's of the same moment times
//! the ratio that both had on the machine of `shared/reference/peers.md`, and its name says so.

pub mod libfabric;
pub mod packages;
pub mod ucx;

use std::sync::atomic::{AtomicU16, Ordering};

use serde::Serialize;

use crate::{Error, Figures, Result, error::tail};

/// Something that a peer's own benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Benchmark {
    /// Ping-pong of messages: one way.
    Latency,
    /// Ping-pong of tagged messages: one way.
    TaggedLatency,
    /// A stream of messages with 64 in flight.
    Stream,
    /// A stream of writes into the other side's memory.
    RmaWrite,
    /// A stream of reads from the other side's memory.
    RmaRead,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// libfabric.
    Libfabric,
    /// UCX.
    Ucx,
}

/// One benchmark of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeerRun {
    /// Whose.
    pub peer: Peer,
    /// Which.
    pub benchmark: Benchmark,
    /// Bytes of a message.
    pub size: usize,
    /// What carries it.
    pub wire: Wire,
}

/// What carries a peer's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Shared memory.
    Shm,
    /// TCP on loopback.
    Tcp,
    /// UDP on loopback: libfabric's `udp;ofi_rxd`, which UCX has no counterpart of.
    Udp,
}

/// The versions of both, as the programs that are measured tell them.
pub fn versions() -> Vec<(&'static str, String)> {
    vec![("libfabric", libfabric::version()), ("UCX", ucx::version())]
}

impl PeerRun {
    /// Who is really measured, with its version, for the table.
    pub fn name(&self) -> String {
        match self.peer {
            Peer::Libfabric => libfabric::name(self),
            Peer::Ucx => ucx::name(),
        }
    }

    /// Runs it once on `cores` (server, client).
    pub fn run(&self, cores: [usize; 2]) -> Result<Figures> {
        match self.peer {
            Peer::Libfabric => libfabric::run(self, cores),
            Peer::Ucx => ucx::run(self, cores),
        }
    }
}

/// How many operations a run of `size` bytes takes: a quarter of a second or so, to fit between two bounces.
fn iterations(size: usize) -> u64 {
    match size {
        0..=1024 => 300_000,
        1025..=16_384 => 100_000,
        16_385..=131_072 => 20_000,
        _ => 2_500,
    }
}

/// A port that no earlier run of this process used: theirs may still be in TIME_WAIT.
fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000; // below the range that Linux hands out by itself (32,768 and up)
    const COUNT: u16 = 12_000;
    let process = (std::process::id() % u32::from(COUNT)) as u16;
    FIRST + process.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT
}

fn unreadable(program: &str, wanted: &'static str, output: &str) -> Error {
    Error::Unreadable { program: program.to_owned(), wanted, output: tail(output) }
}
