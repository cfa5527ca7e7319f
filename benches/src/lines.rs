//! Every line of the table.
//!
//! A line without a bound is shown for information.

use crate::{
    figures::Quantity,
    ours::{Job, Sleep, Test},
    peers::{
        Benchmark, Peer, PeerRun, Wire,
        mpi::{AllReduce, Over},
    },
    socket,
    targets::{Against, Bound, Line, Ours},
};

const SMALL: usize = 64;
const LARGE: usize = 1 << 20;

const fn libfabric(benchmark: Benchmark, size: usize) -> Option<Against> {
    Some(Against::Peer(PeerRun { peer: Peer::Libfabric, benchmark, size, wire: Wire::Shm }))
}

const fn ucx(benchmark: Benchmark, size: usize) -> Option<Against> {
    Some(Against::Peer(PeerRun { peer: Peer::Ucx, benchmark, size, wire: Wire::Shm }))
}

const fn loopback(wire: Wire, benchmark: Benchmark, size: usize) -> Option<Against> {
    Some(Against::Peer(PeerRun { peer: Peer::Libfabric, benchmark, size, wire }))
}

const fn ping_pong(size: usize) -> Job {
    Job::new(Test::PingPong, size, 300_000)
}

const fn tagged(posted: usize) -> Job {
    Job::new(Test::TaggedPingPong { posted }, SMALL, 300_000)
}

/// All-reduces for some tenths of a second.
const fn reductions(ranks: usize) -> u64 {
    if ranks > 2 { 5_000 } else { 300_000 }
}

const fn all_reduce(ranks: usize) -> Job {
    Job::new(Test::AllReduce { ranks }, 8, reductions(ranks))
}

const fn open_mpi(ranks: usize, over: Over) -> Option<Against> {
    Some(Against::Mpi(AllReduce { ranks, count: reductions(ranks), over }))
}

const fn large(test: Test) -> Job {
    Job::new(test, LARGE, 4_000)
}

const fn udp_ping_pong(size: usize) -> Job {
    Job::new(Test::PingPong, size, 30_000).over_udp()
}

const fn ping_pong_sealed(size: usize) -> Job {
    Job::new(Test::PingPong, size, 30_000).over_udp_sealed()
}

const fn udp_stream(size: usize, iterations: u64) -> Job {
    Job::new(Test::Stream, size, iterations).over_udp()
}

const fn tcp(test: Test, size: usize, iterations: u64) -> Job {
    Job::new(test, size, iterations).over_tcp()
}

const fn tcp_sealed(test: Test, size: usize, iterations: u64) -> Job {
    Job::new(test, size, iterations).over_tcp_sealed()
}

const fn udp_round(peers: usize) -> Job {
    Job::new(Test::Round { peers }, SMALL, 100_000).over_udp()
}

/// Memory for each message of the window, so that neither end finds it in its cache.
const fn cold(job: Job) -> Job {
    Job { buffers: job.window, ..job }
}

const fn wake(sleep: Sleep) -> Job {
    Job::new(Test::Wake(sleep), SMALL, 5_000)
}

const fn line(key: &'static str, title: &'static str, quantity: Quantity, ours: Job) -> Line {
    Line { key, title, quantity, ours: Ours::Job(ours), against: None, bound: Bound::None, goal: None }
}

/// libfabric's own program, alternately on our library and on libfabric itself.
const fn program(
    key: &'static str,
    title: &'static str,
    quantity: Quantity,
    (wire, benchmark, size): (Wire, Benchmark, usize),
) -> Line {
    let run = PeerRun { peer: Peer::Libfabric, benchmark, size, wire };
    let against = Some(Against::Peer(run));
    Line { key, title, quantity, ours: Ours::Program(run), against, bound: Bound::None, goal: None }
}

impl Line {
    const fn against(self, against: Option<Against>, bound: Bound) -> Self {
        Self { against, bound, ..self }
    }

    const fn bound_to(self, bound: Bound) -> Self {
        Self { bound, ..self }
    }

    const fn goal(self, goal: f64) -> Self {
        Self { goal: Some(goal), ..self }
    }
}

/// All lines, in the order of the table.
pub const LINES: &[Line] = &{
    use {Benchmark as B, Bound::*, Quantity::*};
    const ONE_WAY: &str = "64 B message, one way";
    const UDP_ONE_WAY: &str = "64 B message over UDP, one way";
    const UDP_RATE: &str = "64 B messages over UDP";
    const UDP_LARGE: &str = "1 MiB messages over UDP";
    const UDP_WRITE: &str = "1 MiB RMA write over UDP";
    const ONE_WAY_TAGGED: &str = "64 B tagged message, one way";
    [
        line("latency-libfabric", ONE_WAY, LatencyNs, ping_pong(SMALL))
            .against(libfabric(B::Latency, SMALL), RatioAtMost(0.5))
            .goal(80.0),
        line("latency-ucx", ONE_WAY, LatencyNs, ping_pong(SMALL))
            .against(ucx(B::Latency, SMALL), RatioAtMost(1.0))
            .goal(80.0),
        line("tagged-libfabric", ONE_WAY_TAGGED, LatencyNs, tagged(1))
            .against(libfabric(B::TaggedLatency, SMALL), RatioAtMost(0.5))
            .goal(80.0),
        line("tagged-ucx", ONE_WAY_TAGGED, LatencyNs, tagged(1))
            .against(ucx(B::TaggedLatency, SMALL), RatioAtMost(1.0))
            .goal(80.0),
        line("latency-safe", "the same, threading SAFE", LatencyNs, ping_pong(SMALL).thread_safe())
            .against(Some(Against::Ours(ping_pong(SMALL), "DOMAIN")), AtMostMore(25.0)),
        line("latency-4k", "4 KiB message, one way", LatencyNs, ping_pong(4096))
            .against(libfabric(B::Latency, 4096), None),
        line("rate-libfabric", "64 B messages", RateM, Job::new(Test::Stream, SMALL, 2_000_000))
            .against(libfabric(B::Stream, SMALL), RatioAtLeast(2.5))
            .goal(25.0),
        line("rate-ucx", "64 B messages", RateM, Job::new(Test::Stream, SMALL, 2_000_000))
            .against(ucx(B::Stream, SMALL), None),
        line(
            "rate-safe",
            "64 B messages, threading SAFE",
            RateM,
            Job::new(Test::Stream, SMALL, 2_000_000).thread_safe(),
        )
        .against(Some(Against::Ours(Job::new(Test::Stream, SMALL, 2_000_000), "DOMAIN")), None),
        line("messages-64k", "64 KiB messages", Bandwidth, Job::new(Test::Stream, 65_536, 40_000))
            .against(libfabric(B::Stream, 65_536), None),
        line("messages-app", "1 MiB messages, application memory", Bandwidth, large(Test::Stream))
            .against(libfabric(B::Stream, LARGE), RatioAtLeast(1.7)),
        line(
            "messages-huge",
            "1 MiB messages, application memory in huge pages",
            Bandwidth,
            large(Test::Stream).in_huge_pages(),
        )
        .against(Some(Against::Ours(large(Test::Stream), "4 KiB pages")), None),
        line(
            "messages-library",
            "1 MiB messages, library memory",
            Bandwidth,
            large(Test::Stream).in_library_memory(),
        )
        .against(libfabric(B::Stream, LARGE), RatioAtLeast(2.5)),
        line(
            "write-library",
            "1 MiB RMA write, library memory",
            Bandwidth,
            large(Test::RmaWrite).in_library_memory(),
        )
        .against(ucx(B::RmaWrite, LARGE), RatioAtLeast(1.0)),
        line(
            "read-library",
            "1 MiB RMA read, library memory",
            Bandwidth,
            large(Test::RmaRead).in_library_memory(),
        )
        .against(ucx(B::RmaWrite, LARGE), RatioAtLeast(1.0)),
        line("write-app", "1 MiB RMA write, application memory", Bandwidth, large(Test::RmaWrite))
            .against(libfabric(B::Stream, LARGE), RatioAtLeast(1.0)),
        line("read-app", "1 MiB RMA read, application memory", Bandwidth, large(Test::RmaRead))
            .against(libfabric(B::Stream, LARGE), RatioAtLeast(1.0)),
        line("matching", "64 B tagged, 100,000 posted, random order", LatencyNs, tagged(100_000))
            .against(Some(Against::Ours(tagged(10), "10 posted")), RatioAtMost(2.0)),
        // The application's part in the line above: it finds one of 100,000 buffers.
        line("matching-buffers", "64 B tagged, 10 posted, 100,000 buffers", LatencyNs, {
            Job { buffers: 100_000, ..tagged(10) }
        })
        .against(Some(Against::Ours(tagged(10), "10 buffers")), None),
        line(
            "fetch-add",
            "8 B fetch-add, library memory",
            LatencyNs,
            Job::new(Test::FetchAdd, 8, 300_000).in_library_memory(),
        )
        .against(Some(Against::Ours(ping_pong(SMALL), "64 B one way")), RatioAtMost(2.0)),
        line("all-reduce", "8 B all-reduce, 2 ranks", LatencyNs, all_reduce(2))
            .against(Some(Against::Ours(ping_pong(SMALL), "64 B one way")), RatioAtMost(3.0)),
        line("all-reduce-2-ob1", "8 B all-reduce, 2 ranks", LatencyNs, all_reduce(2))
            .against(open_mpi(2, Over::Ob1), RatioAtMost(1.0 / 1.2)),
        line("all-reduce-2-sm", "8 B all-reduce, 2 ranks", LatencyNs, all_reduce(2))
            .against(open_mpi(2, Over::Sm), RatioAtMost(1.0 / 1.2)),
        line("all-reduce-2-ucx", "8 B all-reduce, 2 ranks", LatencyNs, all_reduce(2))
            .against(open_mpi(2, Over::Ucx), RatioAtMost(1.0 / 1.2)),
        // Four ranks share a core: mostly the cost of switching between them.
        line("all-reduce-8-ob1", "8 B all-reduce, 8 ranks on 2 cores", LatencyNs, all_reduce(8))
            .against(open_mpi(8, Over::Ob1), RatioAtMost(1.0 / 1.2)),
        line("all-reduce-8-sm", "8 B all-reduce, 8 ranks on 2 cores", LatencyNs, all_reduce(8))
            .against(open_mpi(8, Over::Sm), RatioAtMost(1.0 / 1.2)),
        line("all-reduce-8-ucx", "8 B all-reduce, 8 ranks on 2 cores", LatencyNs, all_reduce(8))
            .against(open_mpi(8, Over::Ucx), RatioAtMost(1.0 / 1.2)),
        line("wake-sread", "wake-up of sread, round trip", LatencyNs, wake(Sleep::Sread))
            .against(Some(Against::Eventfd), RatioAtMost(1.3)),
        line("wake-epoll", "wake-up of epoll, round trip", LatencyNs, wake(Sleep::Epoll))
            .against(Some(Against::Eventfd), RatioAtMost(1.3)),
        line("wake-block-on", "wake-up of block_on, round trip", LatencyNs, wake(Sleep::BlockOn))
            .against(Some(Against::Eventfd), RatioAtMost(1.05)),
        line(
            "wake-future",
            "wake-up of a future of any executor, round trip",
            LatencyNs,
            wake(Sleep::Future),
        )
        .against(Some(Against::Eventfd), None),
        // One part in a thousand is a tick or two per second: the most that an idle process is charged.
        Line {
            bound: AtMost(0.001),
            ..line("idle", "CPU while blocked", CpuShare, Job::new(Test::Idle, SMALL, 1))
        },
        line("udp-latency-tcp", UDP_ONE_WAY, LatencyNs, udp_ping_pong(SMALL))
            .against(loopback(Wire::Tcp, B::Latency, SMALL), RatioAtMost(1.0))
            .goal(4500.0),
        line("udp-latency-rxd", UDP_ONE_WAY, LatencyNs, udp_ping_pong(SMALL))
            .against(loopback(Wire::Udp, B::Latency, SMALL), RatioAtMost(1.0 / 1.6))
            .goal(4500.0),
        line("udp-latency-socket", UDP_ONE_WAY, LatencyNs, udp_ping_pong(SMALL))
            .against(Some(Against::Socket(socket::Test::Spin)), None),
        line("udp-rate-tcp", UDP_RATE, RateM, udp_stream(SMALL, 500_000))
            .against(loopback(Wire::Tcp, B::Stream, SMALL), RatioAtLeast(10.0))
            .goal(4.0),
        line("udp-rate-rxd", UDP_RATE, RateM, udp_stream(SMALL, 500_000))
            .against(loopback(Wire::Udp, B::Stream, SMALL), RatioAtLeast(10.0))
            .goal(4.0),
        line("udp-messages-tcp", UDP_LARGE, Bandwidth, udp_stream(LARGE, 2_000))
            .against(loopback(Wire::Tcp, B::Stream, LARGE), RatioAtLeast(1.0))
            .goal(5.0),
        line("udp-messages-rxd", UDP_LARGE, Bandwidth, udp_stream(LARGE, 2_000))
            .against(loopback(Wire::Udp, B::Stream, LARGE), RatioAtLeast(10.0))
            .goal(5.0),
        line("udp-write-tcp", UDP_WRITE, Bandwidth, Job::new(Test::RmaWrite, LARGE, 2_000).over_udp())
            .against(loopback(Wire::Tcp, B::RmaWrite, LARGE), RatioAtLeast(1.0))
            .goal(5.0),
        line("udp-write-rxd", UDP_WRITE, Bandwidth, Job::new(Test::RmaWrite, LARGE, 2_000).over_udp())
            .against(loopback(Wire::Udp, B::RmaWrite, LARGE), RatioAtLeast(10.0))
            .goal(5.0),
        line(
            "near-latency",
            "64 B message, one way, by udp on one host",
            LatencyNs,
            ping_pong(SMALL).over_udp_nearby(),
        )
        .against(Some(Against::Ours(ping_pong(SMALL), "shm")), RatioAtMost(1.3)),
        line(
            "near-messages",
            "1 MiB messages by udp on one host",
            Bandwidth,
            large(Test::Stream).over_udp_nearby(),
        )
        .against(Some(Against::Ours(large(Test::Stream), "shm")), RatioAtLeast(1.0 / 1.3)),
        line(
            "near-write",
            "1 MiB RMA write by udp on one host, library memory",
            Bandwidth,
            large(Test::RmaWrite).in_library_memory().over_udp_nearby(),
        )
        .against(
            Some(Against::Ours(large(Test::RmaWrite).in_library_memory(), "shm")),
            RatioAtLeast(1.0 / 1.3),
        ),
        line("udp-messages-64k", "64 KiB messages over UDP", Bandwidth, udp_stream(65_536, 10_000))
            .against(loopback(Wire::Tcp, B::Stream, 65_536), None),
        line("udp-wake", "wake-up of sread over UDP, round trip", LatencyNs, wake(Sleep::Sread).over_udp())
            .against(Some(Against::Socket(socket::Test::Blocked)), RatioAtMost(1.3)),
        Line {
            bound: AtMost(0.01),
            ..line(
                "udp-idle",
                "CPU of idle automatic progress over UDP",
                CpuShare,
                Job::new(Test::IdleAuto, SMALL, 1).over_udp(),
            )
        },
        line(
            "udp-sealed-latency",
            "64 B message over encrypted UDP, one way",
            LatencyNs,
            ping_pong_sealed(SMALL),
        )
        .against(Some(Against::Ours(udp_ping_pong(SMALL), "in the clear")), None),
        line(
            "udp-sealed-messages",
            "1 MiB messages over encrypted UDP",
            Bandwidth,
            Job::new(Test::Stream, LARGE, 1_000).over_udp_sealed(),
        )
        .against(Some(Against::Ours(udp_stream(LARGE, 1_000), "in the clear")), None),
        line(
            "tcp-sealed-latency",
            "64 B message over TCP by TLS, one way",
            LatencyNs,
            tcp_sealed(Test::PingPong, SMALL, 30_000),
        )
        .against(Some(Against::Ours(tcp(Test::PingPong, SMALL, 30_000), "in the clear")), None),
        line(
            "tcp-sealed-latency-64k",
            "64 KiB message over TCP by TLS, one way",
            LatencyNs,
            tcp_sealed(Test::PingPong, 65_536, 6_000),
        )
        .against(Some(Against::Ours(tcp(Test::PingPong, 65_536, 6_000), "in the clear")), None),
        line(
            "tcp-sealed-messages",
            "1 MiB messages over TCP by TLS",
            Bandwidth,
            tcp_sealed(Test::Stream, LARGE, 1_000),
        )
        .against(Some(Against::Ours(tcp(Test::Stream, LARGE, 1_000), "in the clear")), None),
        line("udp-peers", "64 B message and answer, 10,000 UDP peers by turns", LatencyNs, udp_round(10_000))
            .against(Some(Against::Ours(udp_round(100), "100 peers")), RatioAtMost(1.5)),
        Line {
            bound: AtMost(1024.0),
            ..line("udp-peers-memory", "memory of each of 10,000 UDP peers", BytesEach, udp_round(10_000))
        },
        line(
            "cold-64k",
            "64 KiB messages, 64 buffers at each end",
            Bandwidth,
            cold(Job::new(Test::Stream, 65_536, 40_000)),
        )
        .against(Some(Against::Ours(Job::new(Test::Stream, 65_536, 40_000), "one buffer")), None),
        line("cold-messages", "1 MiB messages, 64 buffers at each end", Bandwidth, cold(large(Test::Stream)))
            .against(Some(Against::Ours(large(Test::Stream), "one buffer")), None),
        line("cold-write", "1 MiB RMA write, 64 buffers at each end", Bandwidth, cold(large(Test::RmaWrite)))
            .against(Some(Against::Ours(large(Test::RmaWrite), "one buffer")), None),
        line(
            "cold-udp",
            "1 MiB messages over UDP, 64 buffers at each end",
            Bandwidth,
            cold(udp_stream(LARGE, 2_000)),
        )
        .against(Some(Against::Ours(udp_stream(LARGE, 2_000), "one buffer")), None),
        program(
            "c-latency",
            "64 B message, one way, libfabric's program",
            LatencyNs,
            (Wire::Shm, B::Latency, SMALL),
        )
        .bound_to(RatioAtMost(1.0 / 2.5)),
        program(
            "c-tagged",
            "64 B tagged message, one way, libfabric's program",
            LatencyNs,
            (Wire::Shm, B::TaggedLatency, SMALL),
        )
        .bound_to(RatioAtMost(1.0 / 2.5)),
        program("c-rate", "64 B messages, libfabric's program", RateM, (Wire::Shm, B::Stream, SMALL))
            .bound_to(RatioAtLeast(3.0)),
        program(
            "c-messages",
            "1 MiB messages, libfabric's program",
            Bandwidth,
            (Wire::Shm, B::Stream, LARGE),
        )
        .bound_to(RatioAtLeast(2.5)),
        program(
            "c-write",
            "1 MiB RMA write, libfabric's program",
            Bandwidth,
            (Wire::Shm, B::RmaWrite, LARGE),
        )
        .bound_to(RatioAtLeast(2.0)),
        program("c-read", "1 MiB RMA read, libfabric's program", Bandwidth, (Wire::Shm, B::RmaRead, LARGE)),
        program(
            "c-cold-64k",
            "64 KiB messages, 64 buffers at each end, a program in C",
            Bandwidth,
            (Wire::Shm, B::ColdStream, 65_536),
        ),
        program(
            "c-cold-messages",
            "1 MiB messages, 64 buffers at each end, a program in C",
            Bandwidth,
            (Wire::Shm, B::ColdStream, LARGE),
        ),
        program(
            "c-cold-write",
            "1 MiB RMA write, 64 buffers at each end, a program in C",
            Bandwidth,
            (Wire::Shm, B::ColdWrite, LARGE),
        ),
        program(
            "c-cold-read",
            "1 MiB RMA read, 64 buffers at each end, a program in C",
            Bandwidth,
            (Wire::Shm, B::ColdRead, LARGE),
        ),
        program(
            "c-udp-latency",
            "64 B message over UDP, one way, libfabric's program",
            LatencyNs,
            (Wire::Tcp, B::Latency, SMALL),
        ),
        program(
            "c-udp-rate",
            "64 B messages over UDP, libfabric's program",
            RateM,
            (Wire::Tcp, B::Stream, SMALL),
        )
        .bound_to(RatioAtLeast(10.0)),
        program(
            "c-udp-messages",
            "1 MiB messages over UDP, libfabric's program",
            Bandwidth,
            (Wire::Tcp, B::Stream, LARGE),
        )
        .bound_to(RatioAtLeast(1.0)),
        program(
            "c-udp-write",
            "1 MiB RMA write over UDP, libfabric's program",
            Bandwidth,
            (Wire::Tcp, B::RmaWrite, LARGE),
        )
        .bound_to(RatioAtLeast(1.2)),
        program(
            "c-udp-read",
            "1 MiB RMA read over UDP, libfabric's program",
            Bandwidth,
            (Wire::Tcp, B::RmaRead, LARGE),
        )
        .bound_to(RatioAtLeast(1.2)),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique() {
        let mut keys: Vec<_> = LINES.iter().map(|line| line.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), LINES.len());
    }
}
