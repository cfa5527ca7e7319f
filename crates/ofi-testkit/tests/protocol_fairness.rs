//! How flows share a link whose queue drops what it has no room for: with each other, and with one that does as TCP does. Queues from
//! those of a switch with shallow buffers (20 us of the link) to those of a router (5 ms).

use std::time::Duration;

use ofi_rdm::Stream;
use ofi_rdm::congestion::Congestion;
use ofi_testkit::net::{Link, Net};

/// Time that a full queue takes to drain, and nanoseconds that a byte takes: 1 GB/s, and less where queues are long.
const QUEUES: [(Duration, u64); 5] = [
    (Duration::from_micros(20), 1),
    (Duration::from_micros(60), 1),
    (Duration::from_micros(200), 1),
    (Duration::from_millis(1), 8),
    (Duration::from_millis(5), 80),
];

/// Jain's index of some shares: 1 where all are alike, and 1 / n where one has all.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

/// Bytes a second of `flows` flows to one host, the TCP-like one behind them if there is one, once they have settled.
fn shares((queue, byte_time): (Duration, u64), flows: usize, rival: bool) -> Vec<f64> {
    let link = Link {
        byte_time,
        queue: queue.as_nanos() as u64 / byte_time,
        delay: Duration::from_micros(50),
        jitter: Duration::from_micros(2),
        longest: 1472,
        ..Link::default()
    };
    let mut net = Net::new(7, flows + 1, link, Congestion::Reno);
    net.grant(1 << 22); // so that windows alone bound the flows
    for flow in 1..=flows {
        net.record(flow, 0, Stream::Commands, 10);
    }
    net.run(Duration::from_secs(1)); // sessions, packet sizes
    let ids: Vec<u64> = (1..=flows)
        .map(|flow| {
            net.run(Duration::from_micros(137)); // not all at once
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
    let before = bytes(&net);
    net.run(time * 2);
    let after = bytes(&net);
    after
        .iter()
        .zip(before)
        .map(|(after, before)| (after - before) as f64 / (time * 2).as_secs_f64())
        .collect()
}

/// The index is never below `least`, and the link is used.
fn check(flows: usize, rival: bool, least: f64) {
    for (queue, byte_time) in QUEUES {
        let shares = shares((queue, byte_time), flows, rival);
        let (index, sum) = (jain(&shares), shares.iter().sum::<f64>() * byte_time as f64 / 1e9);
        let each: Vec<u64> = shares.iter().map(|share| *share as u64 / 100_000).collect();
        println!(
            "{flows} flows, rival: {rival}, a queue of {queue:?}: index {index:.3}, {sum:.2} of the link, {each:?} in 0.1 MB/s"
        );
        assert!(index >= least, "{flows} flows, rival: {rival}, a queue of {queue:?}: {each:?} in 0.1 MB/s");
        assert!(sum > 0.8, "{sum:.2} of the link");
    }
}

#[test]
fn eight_flows_have_equal_shares() {
    check(8, false, 0.9);
}

/// One against one over a queue of some packets, the flow whose packets come in rows loses them together, and gives way once: it has up to
/// 2.7 times as much. With halves for every loss it still had 2.2 times as much.
#[test]
fn one_flow_leaves_tcp_its_share() {
    check(1, true, 0.8);
}

#[test]
fn seven_flows_and_tcp_have_equal_shares() {
    check(7, true, 0.9);
}
