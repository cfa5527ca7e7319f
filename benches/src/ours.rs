//! Our own side: what a worker process measures with the library's API.
//!
//! This is the one module that knows the library. Everything around it is plumbing: the parent starts two pinned
//! workers ([`crate::worker`]), each is given the same [`Job`], its [`Role`] and a [`Link`] to the other, and the
//! client's [`Figures`] are the result.
//!
//! Rules that make the figures comparable with the peers':
//! - warm up with a twentieth of the iterations; touch every buffer before the clock starts;
//! - meet at [`Link::barrier`] before the clock starts, and touch the link no more until it stops;
//! - ping-pong: half of the mean round trip; stream: from the first post to the last completion *at the receiver's
//!   acknowledgement*, so that buffered messages are not counted before they arrived.

mod bare_efa;
mod crowd;
mod node;
mod paths;
mod paths_in_c;
mod paths_of_efa;
mod paths_of_memory;
mod paths_of_rails;
mod run;
mod threads;

use serde::{Deserialize, Serialize};

use crate::{Figures, Result, link::Link};

/// One measurement of our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What is done.
    pub test: Test,
    /// Bytes of one message.
    pub size: usize,
    /// How often, after the warm-up.
    pub iterations: u64,
    /// Messages in flight, and receives posted ahead.
    pub window: usize,
    /// Buffers that the window's messages use by turns.
    pub buffers: usize,
    /// Whose memory the payload lies in.
    pub memory: Memory,
    /// Threading level that the domain is opened with.
    pub threading: Threading,
    /// What carries it.
    pub provider: Provider,
}

impl Job {
    /// A job with the defaults of the issue: window 64, application memory, threading DOMAIN.
    pub const fn new(test: Test, size: usize, iterations: u64) -> Self {
        Self {
            test,
            size,
            iterations,
            window: 64,
            buffers: 1,
            memory: Memory::Application,
            threading: Threading::Domain,
            provider: Provider::Shm,
        }
    }

    /// The same in application memory with huge pages.
    pub const fn in_huge_pages(self) -> Self {
        Self { memory: Memory::Huge, ..self }
    }

    /// The same over UDP sockets on loopback.
    pub const fn over_udp(self) -> Self {
        Self { provider: Provider::Udp, ..self }
    }

    /// The same over UDP sockets on loopback, with encrypted packets.
    pub const fn over_udp_sealed(self) -> Self {
        Self { provider: Provider::UdpSealed, ..self }
    }

    /// The same by the udp provider, which uses shared memory between processes of one host.
    pub const fn over_udp_nearby(self) -> Self {
        Self { provider: Provider::UdpNearby, ..self }
    }

    /// The same with the payload in memory that the library allocated.
    pub const fn in_library_memory(self) -> Self {
        Self { memory: Memory::Library, ..self }
    }

    /// Receives that must be posted at once.
    const fn posted(&self) -> usize {
        match self.test {
            Test::TaggedPingPong { posted } => posted,
            _ => self.window,
        }
    }

    /// The same with threading SAFE.
    pub const fn thread_safe(self) -> Self {
        Self { threading: Threading::Safe, ..self }
    }
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Messages to and fro; latency is one way.
    PingPong,
    /// Tagged messages to and fro, with as many receives posted as `posted` says, whose tags are matched in random
    /// order; latency is one way.
    TaggedPingPong {
        /// Receives in the queue throughout.
        posted: usize,
    },
    /// As [`Test::PingPong`], and each round is timed: its percentiles are the result too.
    EachRound,
    /// Messages one way, `window` in flight.
    Stream,
    /// Messages one way by several threads of each side at once, each with an endpoint and a domain of its own; the
    /// rate is that of all.
    Threads {
        /// Of either side.
        count: usize,
    },
    /// Writes into the server's memory, `window` in flight.
    RmaWrite,
    /// Reads from the server's memory, `window` in flight.
    RmaRead,
    /// Fetch-adds of eight bytes in the server's memory, one after the other; latency is that of one.
    FetchAdd,
    /// All-reduces of both sides' eight bytes, one after the other; latency is that of one.
    AllReduce,
    /// Both sides asleep until the other's message; latency is the **round trip**.
    Wake(Sleep),
    /// One side asleep for a second with nobody sending; `cpu_share` is the result.
    Idle,
    /// An endpoint with automatic progress that has talked, and that its application does not look at for a second;
    /// `cpu_share` is the result.
    IdleAuto,
    /// Messages to so many peers by turns, each of which sends back what it gets; latency is the time for each message
    /// and its answer, and `bytes_each` the memory of a peer at rest.
    Round {
        /// Peers of the one endpoint.
        peers: usize,
    },
}

/// How a side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sleep {
    /// A blocking read of the completion queue.
    Sread,
    /// `epoll_wait` on the completion queue's descriptor.
    Epoll,
}

/// Where the payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// A page-aligned heap allocation of the program.
    Application,
    /// The same in transparent huge pages, where the system gives them to who asks (`madvise`).
    Huge,
    /// Memory that the domain allocated.
    Library,
}

/// The two threading levels that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Threading {
    /// `FI_THREAD_DOMAIN`.
    Domain,
    /// `FI_THREAD_SAFE`.
    Safe,
}

/// What carries a job's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Shared memory.
    Shm,
    /// UDP sockets on loopback.
    Udp,
    /// The same with an authorization key, so with encrypted packets.
    UdpSealed,
    /// The same endpoints in the clear, with shared memory.
    UdpNearby,
}

/// Which side of a pair this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Answers, receives, or owns the memory.
    Server,
    /// Asks, sends, or initiates; holds the clock.
    Client,
}

/// Does `job` as `role`; the client's figures are the result of the pair, the server's are not looked at.
pub fn run(job: &Job, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    run::run(job, role, link)
}

/// A stretch of code whose instructions are counted.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// As in the first column of the budget table.
    pub name: &'static str,
    /// Function that does one operation, for valgrind's `--toggle-collect`: `*` matches anything. It must be
    /// `#[inline(never)]`, must not call itself, and instructions outside it are not counted.
    pub function: &'static str,
}

impl Path {
    /// A function that the path's calls and that is not counted: what stands in for a device, of a path that ends at
    /// the doorbell of one.
    pub fn apart(&self) -> Option<&'static str> {
        self.name.ends_with(", to the doorbell").then_some("*bare_efa*Pair*QueuePair*post*")
    }
}

pub(crate) use node::Node;
pub use paths::PATHS;

/// Calls the function of the path named `name`, `count` times after a warm-up, in one thread of this process.
pub fn run_path(name: &str, count: u64) -> Result<()> {
    paths::run(name, count)
}
