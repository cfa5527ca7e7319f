//! The peers: libfabric and UCX, measured with their own benchmarks over shared memory and over loopback.
//!
//! They come from Debian's packages ([`packages`]). [`libfabric::PREFIX`] may name the prefix of a newer libfabric to
//! use instead; this package never builds one. If the packages have no benchmark for a line (1.17's `fi_pingpong` has
//! no rate and no RMA), libfabric's figure is UCX's of the same moment times the ratio of both on the machine of
//! `shared/reference/peers.md`, and its name says so.

mod buffers;
pub mod libfabric;
pub mod mpi;
pub mod packages;
pub mod ucx;

use std::sync::atomic::{AtomicU16, Ordering};

use serde::Serialize;

use crate::{Error, Figures, Result, error::tail};

/// A quantity that a peer's own benchmark measures.
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
    /// As [`Benchmark::Stream`], over 64 buffers at each end.
    ColdStream,
    /// As [`Benchmark::RmaWrite`], over 64 buffers at each end.
    ColdWrite,
    /// As [`Benchmark::RmaRead`], over 64 buffers at each end.
    ColdRead,
}

/// The peer.
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
    /// The peer.
    pub peer: Peer,
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Bytes of a message.
    pub size: usize,
    /// The transport.
    pub wire: Wire,
}

/// The transport of a peer's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// Shared memory.
    Shm,
    /// TCP on loopback.
    Tcp,
    /// UDP on loopback: libfabric's `udp;ofi_rxd`, which has no counterpart in UCX.
    Udp,
}

/// The commit and the compiler of this library, which `cargo xtask report` knows.
const TREE: &str = "OFI_BENCH_TREE";

/// The versions of both peers, as reported by their programs, and this library's if it is known.
pub fn versions() -> Vec<(&'static str, String)> {
    let own = std::env::var(TREE).ok().map(|tree| ("this library", tree));
    own.into_iter().chain([("libfabric", libfabric::version()), ("UCX", ucx::version())]).collect()
}

impl PeerRun {
    /// The actually measured peer with its version, for the table.
    pub fn name(&self) -> String {
        match self.peer {
            Peer::Libfabric => libfabric::name(self),
            Peer::Ucx => ucx::name(),
        }
    }

    /// Runs the benchmark once on `cores` (server, client).
    pub fn run(&self, cores: [usize; 2]) -> Result<Figures> {
        match self.peer {
            Peer::Libfabric => libfabric::run(self, cores),
            Peer::Ucx => ucx::run(self, cores),
        }
    }
}

/// Operations of a run with `size` bytes: about a quarter of a second, to fit between two bounces.
fn iterations(size: usize) -> u64 {
    match size {
        0..=1024 => 300_000,
        1025..=16_384 => 100_000,
        16_385..=131_072 => 20_000,
        131_073..=1_048_576 => 2_500,
        _ => 400,
    }
}

/// A port that no earlier run of this process used: theirs may still be in TIME_WAIT.
fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000; // below the range that Linux assigns by itself (32,768 and up)
    const COUNT: u16 = 12_000;
    let process = (std::process::id() % u32::from(COUNT)) as u16;
    FIRST + process.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT
}

fn unreadable(program: &str, wanted: &'static str, output: &str) -> Error {
    Error::Unreadable { program: program.to_owned(), wanted, output: tail(output) }
}
