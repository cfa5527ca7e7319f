//! Paths of `ofi-rdm` under the simulated network: the cost of losses, queues, packet lengths and pauses.

use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::{Sign, Stream};
use ofi_testkit::net::{Net, NetworkLink, all_acked};

/// Runs one bulk transfer from each sender. Returns bytes per second of virtual time.
fn goodput(link: NetworkLink, senders: usize, bytes: u64) -> f64 {
    let mut net = Net::new(4, senders + 1, link, Congestion::Reno);
    for sender in 1..=senders {
        net.record(sender, 0, Stream::Commands, 10);
    }
    net.run(Duration::from_secs(2)); // sessions, packet sizes
    let start = net.now;
    for sender in 1..=senders {
        net.payload(sender, 0, Stream::Bulk, bytes);
    }
    for _ in 0..2_000_000 {
        net.run(Duration::from_micros(100));
        if (1..=senders).all(|sender| all_acked(net.model(sender, 0))) {
            return (bytes * senders as u64) as f64 / net.now.since(start).as_secs_f64();
        }
    }
    panic!("transfers that do not end");
}

/// Packets that one sender loses, and the time it takes, for some megabytes over a path.
fn lost_on(link: &NetworkLink, congestion: Congestion, bytes: u64) -> (u64, Duration) {
    let (mut lost, mut time) = (0, Duration::ZERO);
    for seed in 0..5 {
        let mut net = Net::new(seed, 2, link.clone(), congestion);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        let begin = net.now;
        net.payload(0, 1, Stream::Bulk, bytes);
        while !all_acked(net.model(0, 1)) {
            net.run(Duration::from_millis(5));
            assert!(net.now.since(begin) < Duration::from_secs(60), "the transfer takes too long");
        }
        time += net.now.since(begin);
        lost += net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0).unwrap().lost;
    }
    (lost, time)
}

/// Bytes per second of a payload that arrive within some time.
fn rate(net: &mut Net, id: u64, time: Duration) -> f64 {
    let bytes = |net: &Net| net.model(1, 0).and_then(|model| model.payloads.get(&id).copied()).unwrap_or(0);
    let before = bytes(net);
    net.run(time);
    (bytes(net) - before) as f64 / time.as_secs_f64()
}

#[test]
fn many_senders_share_a_receiver_s_link() {
    // 1 GB/s, 1,500-byte packets, a queue of 200 KB.
    let link = NetworkLink { byte_time: 1, queue: 200_000, longest: 1472, ..NetworkLink::default() };
    let one = goodput(link.clone(), 1, 8_000_000);
    assert!(one > 0.5e9, "one sender alone: {one:.0} bytes/s");
    let many = goodput(link, 16, 1_000_000);
    assert!(many > 0.8 * one, "16 senders: {many:.0} bytes/s, one: {one:.0}");
}

/// Beside a TCP-like flow with the same round-trip time, each gets about half of a link, whatever its queue.
#[test]
fn a_link_is_shared_with_tcp() {
    for queue in [20_000, 60_000, 120_000] {
        // 12.5 MB/s, 5 ms round trip.
        let delay = Duration::from_micros(2_500);
        let link = NetworkLink { byte_time: 80, queue, delay, longest: 1472, ..NetworkLink::default() };
        let mut net = Net::new(4, 2, link, Congestion::Reno);
        net.record(1, 0, Stream::Commands, 10);
        net.run(Duration::from_secs(2));
        net.rival(0);
        let id = net.payload(1, 0, Stream::Bulk, 1 << 30);
        net.run(Duration::from_secs(2));
        let bytes = |net: &Net| (net.model(0, 1).unwrap().payloads[&id], net.rival_bytes());
        let before = bytes(&net);
        net.run(Duration::from_secs(10));
        let after = bytes(&net);
        let (ours, theirs) = ((after.0 - before.0) as f64 / 10e6, (after.1 - before.1) as f64 / 10e6);
        println!("queue of {queue} bytes: {ours:.1} and {theirs:.1} MB/s");
        assert!(ours + theirs > 0.85 * 12.5, "together {ours:.1} and {theirs:.1} MB/s");
        assert!((0.5..2.0).contains(&(ours / theirs)), "{ours:.1} MB/s, beside {theirs:.1}");
    }
}

#[test]
fn pacing_spares_a_shallow_queue_and_costs_little_time() {
    // 125 MB/s, 20 ms round trip, and a queue of 30 packets: bursts of a window overflow it.
    let link = NetworkLink {
        delay: Duration::from_millis(10),
        byte_time: 8,
        queue: 45_000,
        longest: 1472,
        ..NetworkLink::default()
    };
    let (paced, paced_time) = lost_on(&link, Congestion::Reno, 4_000_000);
    let (bursts, bursts_time) = lost_on(&link, Congestion::Bursts, 4_000_000);
    println!("lost {paced} in {paced_time:?} with pacing, {bursts} in {bursts_time:?} without");
    assert!(paced * 3 < bursts * 2, "lost {paced} with pacing and {bursts} without");
    assert!(paced_time < bursts_time.mul_f64(1.05), "{paced_time:?} with pacing and {bursts_time:?} without");
}

#[test]
fn pacing_does_not_stand_in_the_way_on_a_short_path() {
    let link = NetworkLink { byte_time: 1, queue: 1_000_000, longest: 1472, ..NetworkLink::default() };
    let (_, paced) = lost_on(&link, Congestion::Reno, 1_000_000);
    let (_, bursts) = lost_on(&link, Congestion::Bursts, 1_000_000);
    assert_eq!(paced, bursts, "pacing without effect must not change the losses");
}

#[test]
fn losses_cost_what_they_must() {
    let link = NetworkLink { byte_time: 1, queue: 1_000_000, longest: 1472, ..NetworkLink::default() };
    let clean = goodput(link.clone(), 1, 8_000_000);
    for (loss, part) in [(1, 0.5), (10, 0.2), (50, 0.05)] {
        let lossy = goodput(NetworkLink { loss, ..link.clone() }, 1, 8_000_000);
        println!("{:.1} % lost: {lossy:.0} bytes/s, none: {clean:.0}", loss as f64 / 10.0);
        assert!(lossy > part * clean, "{loss} of 1,000 lost: {lossy:.0} bytes/s, none: {clean:.0}");
    }
}

#[test]
fn packets_grow_to_what_the_path_carries() {
    for (longest, refused, found) in [
        (usize::MAX, usize::MAX, 65_000),
        (1472, usize::MAX, 1452),
        (usize::MAX, 9000, 8952),
        (1232, 1472, 1232),
    ] {
        let mut net =
            Net::new(5, 2, NetworkLink { longest, refused, ..NetworkLink::default() }, Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(30));
        let endpoint = net.hosts[0].endpoint.as_ref().unwrap();
        let stats = endpoint.peer_statistics(0).unwrap();
        assert_eq!(stats.packet_size, found, "{longest} {refused}");
    }
}

/// Both directions: a larger packet size is noticed after ten minutes, at the next message, and a smaller one
/// by lost packets.
#[test]
fn a_path_that_changes_is_followed() {
    let mut net = Net::new(5, 2, NetworkLink { longest: 1472, ..NetworkLink::default() }, Congestion::Reno);
    let found = |net: &mut Net, wait: u64| {
        for _ in 0..3 {
            net.run(Duration::from_secs(wait / 3));
            net.record(0, 1, Stream::Commands, 5_000);
        }
        net.run(Duration::from_secs(20));
        net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0).unwrap().packet_size
    };
    assert_eq!(found(&mut net, 30), 1452);
    net.link.longest = 9000;
    assert_eq!(found(&mut net, 300), 1452, "the next search is not due yet");
    assert_eq!(found(&mut net, 600), 8952);
    net.link.longest = 1400;
    let begin = net.now;
    net.record(0, 1, Stream::Commands, 5_000);
    while !all_acked(net.model(0, 1)) {
        net.run(Duration::from_millis(1));
        assert!(net.now.since(begin) < Duration::from_secs(1), "the smaller packet size is not noticed");
    }
    assert_eq!(found(&mut net, 30), 1372);
}

/// A receiver that computes for a while does not affect the path: afterwards the rate and the packet size are as
/// before.
#[test]
fn a_peer_that_computes_for_a_moment_costs_the_path_nothing() {
    for delay in [Duration::from_micros(50), Duration::from_millis(5)] {
        let link =
            NetworkLink { delay, byte_time: 8, longest: 9000, queue: 1_000_000, ..NetworkLink::default() };
        let mut net = Net::new(0, 2, link, Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        let id = net.payload(0, 1, Stream::Bulk, 1 << 32);
        net.run(Duration::from_secs(1));
        let before = rate(&mut net, id, Duration::from_millis(200));
        let found = |net: &Net| net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0).unwrap();
        let packet = found(&net).packet_size;
        for compute in [60, 100, 400] {
            let window = found(&net).window;
            net.sleep(1, Duration::from_millis(compute));
            net.run(Duration::from_millis(compute) + delay * 4);
            assert_eq!(found(&net).packet_size, packet, "after {compute} ms");
            assert!(found(&net).window >= window, "{} of {window} after {compute} ms", found(&net).window);
            // A sender that has backed off to a probe every half second needs that long to notice.
            let after = rate(&mut net, id, Duration::from_millis(200));
            assert!(
                after > 0.7 * before,
                "{delay:?}: {after:.0} bytes/s after {compute} ms, {before:.0} before"
            );
        }
    }
}

/// After an outage the rate recovers quickly: the losses of the outage are one event.
#[test]
fn a_path_that_was_cut_for_a_while_is_used_again_soon() {
    let delay = Duration::from_millis(10);
    let link = NetworkLink { delay, byte_time: 8, longest: 1472, queue: 1_000_000, ..NetworkLink::default() };
    let mut net = Net::new(0, 2, link, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    let id = net.payload(0, 1, Stream::Bulk, 1 << 32);
    net.run(Duration::from_secs(2));
    let before = rate(&mut net, id, Duration::from_millis(500));
    net.cut.push((0, 1));
    net.run(Duration::from_millis(700));
    net.cut.clear();
    net.run(Duration::from_millis(700)); // a probe, and some round trips
    let stats = net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0);
    let after = rate(&mut net, id, Duration::from_millis(500));
    println!("{before:.0} bytes/s before, {after:.0} after");
    assert!(after > 0.8 * before, "{after:.0} bytes/s, {before:.0} before, {stats:?}");
}

/// The driver is notified of each sign of congestion, and of the remaining window.
#[test]
fn signs_of_congestion_are_reported_with_what_is_left_of_the_window() {
    let delay = Duration::from_millis(1);
    let calm = NetworkLink { delay, byte_time: 8, longest: 1472, queue: 1_000_000, ..NetworkLink::default() };
    let after = |link: &NetworkLink, cut: bool| {
        let mut net = Net::new(0, 2, link.clone(), Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        net.payload(0, 1, Stream::Bulk, 1 << 20);
        if cut {
            net.cut.push((0, 1));
        }
        net.run(Duration::from_secs(2));
        std::mem::take(&mut net.hosts[0].application.signs)
    };
    assert_eq!(after(&calm, false), []);
    let lossy = after(&NetworkLink { loss: 30, ..calm.clone() }, false);
    assert!(lossy.iter().any(|(sign, state)| *sign == Sign::Lost && state.lost > 0), "{lossy:?}");
    let marking = after(&NetworkLink { marking: 20_000, ..calm.clone() }, false);
    assert!(marking.iter().any(|(sign, _)| *sign == Sign::Marked), "{marking:?}");
    let silent = after(&calm, true);
    let resets: Vec<_> = silent.iter().filter(|(sign, _)| *sign == Sign::Silent).collect();
    let [(_, state)] = resets[..] else { panic!("one reset for one silence: {silent:?}") };
    // Two packets of the length before the silence, after which packets may be shorter.
    assert!(state.timeouts >= 4 && state.window <= 2 * 1472, "{state:?}");
}
