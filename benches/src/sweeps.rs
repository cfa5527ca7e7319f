//! Lines over message sizes and over numbers of peers and threads, for the plots of `cargo xtask report`, and lines
//! whose rounds are timed one by one. None has a bound.
//!
//! A key is `sweep-PLOT-PEER-X`, or `rounds-WIRE`.

use crate::{
    figures::Quantity,
    ours::{Job, Test},
    peers::{Benchmark, Peer, PeerRun, Wire},
    targets::{Against, Bound, Line, Ours},
};

/// The number of messages for a run of some tenths of a second.
const fn messages(size: usize, wire: Wire) -> u64 {
    let over_shm = match size {
        0..=4096 => 200_000,
        4097..=65_536 => 20_000,
        65_537..=1_048_576 => 2_000,
        _ => 400,
    };
    if matches!(wire, Wire::Shm) { over_shm } else { over_shm / 4 }
}

const fn line(
    key: &'static str,
    title: &'static str,
    benchmark: Benchmark,
    (peer, wire, size): (Peer, Wire, usize),
) -> Line {
    let (quantity, test) = match benchmark {
        Benchmark::Stream => (Quantity::Bandwidth, Test::Stream),
        _ => (Quantity::LatencyNs, Test::PingPong),
    };
    let job = Job::new(test, size, messages(size, wire));
    let ours = Ours::Job(if matches!(wire, Wire::Shm) { job } else { job.over_udp() });
    let against = Some(Against::Peer(PeerRun { peer, benchmark, size, wire }));
    Line { key, title, quantity, ours, against, bound: Bound::None, goal: None }
}

const fn peers(key: &'static str, title: &'static str, peers: usize) -> Line {
    alone(key, title, Quantity::LatencyNs, Job::new(Test::Round { peers }, 64, 100_000).over_udp())
}

const fn alone(key: &'static str, title: &'static str, quantity: Quantity, job: Job) -> Line {
    Line { key, title, quantity, ours: Ours::Job(job), against: None, bound: Bound::None, goal: None }
}

const fn threads(key: &'static str, title: &'static str, count: usize) -> Line {
    alone(key, title, Quantity::RateM, Job::new(Test::Threads { count }, 64, 500_000))
}

/// A line for each size: `sizes!(plot, peer, "what", benchmark, wire)`.
macro_rules! sizes {
    ($plot:literal, $name:literal, $what:literal, $benchmark:ident, $peer:ident, Shm) => {
        sizes!(@ $plot, $name, $what, $benchmark, $peer, Shm;
            8, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576,
            4194304, 16777216)
    };
    ($plot:literal, $name:literal, $what:literal, $benchmark:ident, $peer:ident, $wire:ident) => {
        sizes!(@ $plot, $name, $what, $benchmark, $peer, $wire;
            8, 64, 512, 4096, 16384, 65536, 262144, 1048576)
    };
    (@ $plot:literal, $name:literal, $what:literal, $benchmark:ident, $peer:ident, $wire:ident; $($size:literal),*) => {
        [$(line(
            concat!("sweep-", $plot, "-", $name, "-", $size),
            concat!($size, " B ", $what),
            Benchmark::$benchmark,
            (Peer::$peer, Wire::$wire, $size),
        )),*]
    };
}

/// All lines.
pub fn lines() -> impl Iterator<Item = &'static Line> {
    const LATENCY: [Line; 18] = sizes!("latency", "libfabric", "message, one way", Latency, Libfabric, Shm);
    const LATENCY_UCX: [Line; 18] = sizes!("latency", "ucx", "message, one way", Latency, Ucx, Shm);
    const BANDWIDTH: [Line; 18] = sizes!("bandwidth", "libfabric", "messages", Stream, Libfabric, Shm);
    const BANDWIDTH_UCX: [Line; 18] = sizes!("bandwidth", "ucx", "messages", Stream, Ucx, Shm);
    const UDP_LATENCY: [Line; 8] =
        sizes!("udp_latency", "libfabric", "message over UDP, one way", Latency, Libfabric, Tcp);
    const UDP_BANDWIDTH: [Line; 8] =
        sizes!("udp_bandwidth", "libfabric", "messages over UDP", Stream, Libfabric, Tcp);
    const PEERS: [Line; 4] = [
        peers("sweep-peers-none-10", "64 B message and answer, 10 UDP peers by turns", 10),
        peers("sweep-peers-none-100", "64 B message and answer, 100 UDP peers by turns", 100),
        peers("sweep-peers-none-1000", "64 B message and answer, 1,000 UDP peers by turns", 1000),
        peers("sweep-peers-none-10000", "64 B message and answer, 10,000 UDP peers by turns", 10_000),
    ];
    const THREADS: [Line; 3] = [
        threads("sweep-threads-none-1", "64 B messages, one thread at each end", 1),
        threads("sweep-threads-none-2", "64 B messages, two threads at each end", 2),
        threads("sweep-threads-none-4", "64 B messages, four threads at each end", 4),
    ];
    // The peers' programs do not report percentiles.
    const ROUNDS: [Line; 2] = [
        alone(
            "rounds-shm",
            "64 B message, one way, shared memory",
            Quantity::LatencyNs,
            Job::new(Test::EachRound, 64, 300_000),
        ),
        alone(
            "rounds-udp",
            "64 B message, one way, sockets",
            Quantity::LatencyNs,
            Job::new(Test::EachRound, 64, 30_000).over_udp(),
        ),
    ];
    static ALL: [&[Line]; 9] = [
        &LATENCY,
        &LATENCY_UCX,
        &BANDWIDTH,
        &BANDWIDTH_UCX,
        &UDP_LATENCY,
        &UDP_BANDWIDTH,
        &PEERS,
        &THREADS,
        &ROUNDS,
    ];
    ALL.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_plot_peer_and_place() {
        let mut keys: Vec<_> = lines().map(|line| line.key).collect();
        for key in keys.iter().filter(|key| !key.starts_with("rounds-")) {
            let parts: Vec<_> = key.split('-').collect();
            assert!(parts.len() == 4 && parts[0] == "sweep" && parts[3].parse::<usize>().is_ok(), "{key}");
        }
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }
}
