//! Our side: the measurements of a worker process with the library's API.
//!
//! Only this module uses the library. Everything around it is plumbing: the parent starts two pinned workers
//! ([`crate::worker`]), each gets the same [`Job`], its [`Role`] and a [`Link`] to the other, and the client's
//! [`Figures`] are the result.
//!
//! Rules that make the figures comparable with the peers':
//! - warm up with a twentieth of the iterations; touch every buffer before the clock starts;
//! - meet at [`Link::barrier`] before the clock starts, and do not use the link until it stops;
//! - ping-pong: half of the mean round trip; stream: from the first post to the completion of *the receiver's
//!   acknowledgement*, so that buffered messages are not counted before they arrive.

mod bare_efa;
mod bare_verbs;
mod bare_verbs_msg;
mod bare_verbs_ud;
mod crowd;
mod futures;
mod node;
mod paths;
mod paths_in_c;
mod paths_of_efa;
mod paths_of_long;
mod paths_of_memory;
mod paths_of_rails;
mod paths_of_verbs;
mod ranks;
mod run;
mod threads;

use serde::{Deserialize, Serialize};

use crate::{Figures, Result, link::Link};

/// One measurement of our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The task.
    pub test: Test,
    /// Bytes of one message.
    pub size: usize,
    /// Repetitions after the warm-up.
    pub iterations: u64,
    /// Messages in flight, and receives posted ahead.
    pub window: usize,
    /// Buffers that the window's messages use in turn, and tagged ping-pongs in random order if they are more than the
    /// posted receives.
    pub buffers: usize,
    /// The owner of the payload's memory.
    pub memory: Memory,
    /// Threading level of the domain.
    pub threading: Threading,
    /// The provider.
    pub provider: Provider,
}

impl Job {
    /// A job with the defaults: window 64, application memory, threading DOMAIN.
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

    /// The same over TCP on loopback.
    pub const fn over_tcp(self) -> Self {
        Self { provider: Provider::Tcp, ..self }
    }

    /// The same over TCP on loopback, by TLS.
    pub const fn over_tcp_sealed(self) -> Self {
        Self { provider: Provider::TcpSealed, ..self }
    }

    /// The same by the udp provider, which uses shared memory between processes of one host.
    pub const fn over_udp_nearby(self) -> Self {
        Self { provider: Provider::UdpNearby, ..self }
    }

    /// The same with the payload in memory that the library allocated.
    pub const fn in_library_memory(self) -> Self {
        Self { memory: Memory::Library, ..self }
    }

    /// Receives that are posted at the same time.
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

/// The task of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Messages back and forth; latency is one way.
    PingPong,
    /// Tagged messages back and forth, with `posted` receives in the queue whose tags are matched in random order;
    /// latency is one way.
    TaggedPingPong {
        /// Receives in the queue throughout.
        posted: usize,
    },
    /// As [`Test::PingPong`], with each round timed: its percentiles are also a result.
    EachRound,
    /// Messages one way, `window` in flight.
    Stream,
    /// Messages one way by several threads on each side at once, each with an endpoint and a domain of its own; the
    /// rate is the total.
    Threads {
        /// Threads per side.
        count: usize,
    },
    /// Writes into the server's memory, `window` in flight.
    RmaWrite,
    /// Reads from the server's memory, `window` in flight.
    RmaRead,
    /// Fetch-adds of eight bytes in the server's memory, one after the other; latency is that of one.
    FetchAdd,
    /// All-reduces of all ranks' eight bytes, one after the other; latency is that of one.
    AllReduce {
        /// Processes, half of them on each side's core.
        ranks: usize,
    },
    /// Both sides asleep until the other's message; latency is the **round trip**.
    Wake(Sleep),
    /// One side asleep for a second without any message; `cpu_share` is the result.
    Idle,
    /// An endpoint with automatic progress that has communicated and is not polled for a second; `cpu_share` is the
    /// result.
    IdleAuto,
    /// Messages to `peers` peers in turn, each of which echoes them; latency is the time per message and its answer,
    /// and `bytes_each` the memory of an idle peer.
    Round {
        /// Peers of the one endpoint.
        peers: usize,
    },
}

/// The way in which a side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sleep {
    /// A blocking read of the completion queue.
    Sread,
    /// `epoll_wait` on the completion queue's descriptor.
    Epoll,
    /// A future that `AsyncNode::block_on` runs.
    BlockOn,
    /// A future of an executor without a driver of its own: the library's thread drives it.
    Future,
}

/// The location of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// A page-aligned heap allocation of the program.
    Application,
    /// The same in transparent huge pages, if the system grants them on request (`madvise`).
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

/// The transport of a job's messages.
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
    /// TCP on loopback.
    Tcp,
    /// The same with an authorization key, so by TLS.
    TcpSealed,
}

/// The side of a pair that this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Answers, receives, or owns the memory.
    Server,
    /// Asks, sends, or initiates; has the clock.
    Client,
}

/// Runs `job` as `role`; the client's figures are the result of the pair, the server's are ignored.
pub fn run(job: &Job, role: Role, link: &mut Link) -> Result<Option<Figures>> {
    run::run(job, role, link)
}

/// A stretch of code whose instructions are counted.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// The name in the first column of the budget table.
    pub name: &'static str,
    /// The function that does one operation, for valgrind's `--toggle-collect`: `*` matches anything. It must be
    /// `#[inline(never)]` and must not call itself; instructions outside it are not counted.
    pub function: &'static str,
}

impl Path {
    /// A function called by the path that is not counted: the stand-in for a device, in a path that ends at the
    /// device's doorbell.
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
