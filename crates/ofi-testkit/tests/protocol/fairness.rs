//! How flows share a link whose queue drops packets beyond its capacity: with each other, and with a flow that behaves
//! like TCP. Queues range from those of a switch with shallow buffers (20 us of the link) to those of a router (5 ms).

use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::{Stream, suites};
use ofi_testkit::net::{Net, NetworkLink};

/// Time that a full queue takes to drain, and nanoseconds per byte: 1 GB/s, and less for long queues.
const QUEUES: [(Duration, u64); 5] = [
    (Duration::from_micros(20), 1),
    (Duration::from_micros(60), 1),
    (Duration::from_micros(200), 1),
    (Duration::from_millis(1), 8),
    (Duration::from_millis(5), 80),
];

/// Jain's index of the shares: 1 if all are equal, and 1 / n if one flow has everything.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

/// The treatment of packets when the queue is long.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Full {
    Dropped,
    /// Marked from a third of the queue on; dropped beyond its end.
    Marked,
}

/// The results of flows to one host in the steady state.
struct Shared {
    /// Bytes per second, with the TCP-like flow last if there is one.
    shares: Vec<f64>,
    /// Lost packets of our flows.
    lost: u64,
}

/// Runs `flows` flows to one host, with a TCP-like one if `rival`.
fn shares((queue, byte_time): (Duration, u64), full: Full, flows: usize, rival: bool) -> Shared {
    let room = queue.as_nanos() as u64 / byte_time;
    let link = NetworkLink {
        byte_time,
        queue: room,
        marking: if full == Full::Marked { room / 3 } else { u64::MAX },
        delay: Duration::from_micros(50),
        jitter: Duration::from_micros(2),
        longest: 1472,
        ..NetworkLink::default()
    };
    let mut net = Net::new(7, flows + 1, link, Congestion::Reno);
    // In the clear: to encrypt would take half of this test's time.
    net.security.fill((suites::CLEAR, b""));
    net.grant(1 << 22); // so that only the congestion windows limit the flows
    for flow in 1..=flows {
        net.record(flow, 0, Stream::Commands, 10);
    }
    net.run(Duration::from_secs(1)); // sessions, packet sizes
    let ids: Vec<u64> = (1..=flows)
        .map(|flow| {
            net.run(Duration::from_micros(137)); // so that they do not start at the same time
            net.payload(flow, 0, Stream::Bulk, 1 << 32)
        })
        .collect();
    if rival {
        net.rival(0);
    }
    let time = Duration::from_millis(40 * byte_time);
    net.run(time);
    let bytes = |net: &Net| -> Vec<u64> {
        let ours = ids.iter().zip(1..).map(|(id, flow)| net.model(0, flow).unwrap().payloads[id]);
        ours.chain(rival.then(|| net.rival_bytes())).collect()
    };
    let lost = |net: &Net| -> u64 {
        let ours = net.hosts[1..].iter().filter_map(|host| host.endpoint.as_ref()?.peer_statistics(0));
        ours.map(|stats| stats.lost).sum()
    };
    let (before, lost_before) = (bytes(&net), lost(&net));
    net.run(time * 2);
    let shares = bytes(&net)
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) as f64 / (time * 2).as_secs_f64())
        .collect();
    Shared { shares, lost: lost(&net) - lost_before }
}

/// Checks that the index is never below `least` and that the link is used. Returns the number of packets lost at each
/// queue.
fn check(full: Full, flows: usize, rival: bool, least: f64) -> Vec<u64> {
    let each = QUEUES.into_iter().map(|(queue, byte_time)| {
        let Shared { shares, lost } = shares((queue, byte_time), full, flows, rival);
        let (index, sum) = (jain(&shares), shares.iter().sum::<f64>() * byte_time as f64 / 1e9);
        let each: Vec<u64> = shares.iter().map(|share| *share as u64 / 100_000).collect();
        println!(
            "{flows} flows, rival: {rival}, a queue of {queue:?}, {full:?}: index {index:.3}, {sum:.2} of the link, {lost} lost, \
             {each:?} in 0.1 MB/s"
        );
        assert!(index >= least, "{flows} flows, rival: {rival}, a queue of {queue:?}: {each:?} in 0.1 MB/s");
        assert!(sum > 0.8, "{sum:.2} of the link");
        lost
    });
    each.collect()
}

#[test]
fn eight_flows_have_equal_shares() {
    check(Full::Dropped, 8, false, 0.9);
}

/// One flow against another, over a queue of a few packets: the flow with bursts loses several packets at once and
/// reduces its rate only once, so it gets up to 2.7 times as much. With a halving for every loss it still got 2.2 times
/// as much.
#[test]
fn one_flow_leaves_tcp_its_share() {
    check(Full::Dropped, 1, true, 0.8);
}

#[test]
fn seven_flows_and_tcp_have_equal_shares() {
    check(Full::Dropped, 7, true, 0.9);
}

/// A queue that marks packets: a flow that gets the marks in time loses nothing.
#[test]
fn marks_keep_queues_short_and_shares_equal() {
    for (flows, rival, least) in [(1, false, 1.0), (8, false, 0.9), (1, true, 0.8), (7, true, 0.9)] {
        assert_eq!(check(Full::Marked, flows, rival, least), [0; QUEUES.len()]);
    }
}
