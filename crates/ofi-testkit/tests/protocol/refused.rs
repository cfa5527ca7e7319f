//! Peers whose hosts report that their ports are closed, under the simulated network.

use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::{Lost, Stream};
use ofi_testkit::net::{Net, NetworkLink, all_acked, all_arrived};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A network in which hosts report closed ports, each time or at a limited rate, and host 1 has not started.
fn net(seed: u64, limited: bool) -> Net {
    let mut net =
        Net::new(seed, 3, NetworkLink { reports: Some(limited), ..NetworkLink::default() }, Congestion::Reno);
    net.kill(1);
    net
}

fn reason(net: &Net) -> Option<Lost> {
    net.model(0, 1).unwrap().reason
}

#[test]
fn a_peer_that_nobody_has_is_refused_after_some_time() {
    for (seed, limited) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut net = net(seed, limited);
        net.record(0, 1, Stream::Commands, 10);
        net.run(MILLISECOND * 1900);
        assert_eq!(reason(&net), None, "seed {seed}: a peer that may be about to start was given up");
        net.run(MILLISECOND * 1600);
        assert_eq!(reason(&net), Some(Lost::Refused), "seed {seed}, limited {limited}");
        // The next message begins a new question.
        net.record(0, 1, Stream::Commands, 10);
        net.run(MILLISECOND * 1900);
        assert_eq!(net.model(0, 1).unwrap().lost, 1, "seed {seed}");
        net.start(1);
        net.run(MILLISECOND * 500);
        assert!(all_acked(net.model(0, 1)), "seed {seed}");
        assert_eq!(net.model(1, 0).unwrap().received[0].len(), 1, "seed {seed}");
    }
}

/// Also over a long path: a handshake takes two round trips.
#[test]
fn a_peer_that_starts_within_that_time_is_reached() {
    for (seed, limited) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        for late in (0..=1950).step_by(150) {
            let mut net = net(seed, limited);
            net.link.delay = MILLISECOND * if seed > 3 { 20 } else { 1 };
            net.record(0, 1, Stream::Commands, 10);
            net.run(MILLISECOND * late);
            net.start(1);
            net.run(Duration::from_secs(10));
            assert_eq!(net.model(0, 1).unwrap().lost, 0, "seed {seed}, {late} ms");
            assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1), "seed {seed}, {late} ms");
        }
    }
}

/// In a burst, all reports but one concern the same question.
#[test]
fn a_burst_of_forged_reports_ends_nothing() {
    let mut net = Net::new(1, 2, NetworkLink::default(), Congestion::Reno);
    net.kill(1);
    net.record(0, 1, Stream::Commands, 10);
    net.run(MILLISECOND * 2500);
    let there = net.address(1);
    (0..1000).for_each(|_| net.refuse(0, there));
    net.run(MILLISECOND * 1500);
    (0..1000).for_each(|_| net.refuse(0, there));
    net.run(MILLISECOND * 900);
    assert_eq!(reason(&net), None, "given up before the patience ended");
    net.run(MILLISECOND * 500);
    assert_eq!(reason(&net), Some(Lost::Silent));
}

/// The process of a peer answers even if the peer is not polled: no number of forged reports outweighs that.
#[test]
fn forged_reports_do_not_end_a_question_that_its_peer_has_received() {
    let mut net = Net::new(1, 2, NetworkLink::default(), Congestion::Reno);
    net.sleep(1, Duration::from_secs(60));
    net.record(0, 1, Stream::Commands, 10);
    let there = net.address(1);
    for _ in 0..5900 {
        net.refuse(0, there);
        net.run(MILLISECOND * 10);
    }
    assert_eq!(net.model(0, 1).unwrap().lost, 0);
    net.run(Duration::from_secs(3));
    assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));
    // In an open session reports only cause probes.
    for _ in 0..1000 {
        net.record(0, 1, Stream::Commands, 10);
        net.refuse(0, there);
        net.run(MILLISECOND * 10);
    }
    assert_eq!(net.model(0, 1).unwrap().lost, 0);
    assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));
}

/// Late reports about an ended question do not count for the next one.
#[test]
fn reports_for_an_earlier_question_do_not_count() {
    let mut net = net(2, false);
    net.record(0, 1, Stream::Commands, 10);
    net.run(MILLISECOND * 1900);
    net.cut.push((0, 1));
    net.run(MILLISECOND * 3500);
    assert_eq!(reason(&net), Some(Lost::Silent), "reports that stopped must not end the question early");
    net.cut.clear();
    net.record(0, 1, Stream::Commands, 10);
    net.run(MILLISECOND * 1900);
    assert_eq!(net.model(0, 1).unwrap().lost, 1);
}

/// A report may be as old as the sleep of the host in whose socket it waited.
#[test]
fn an_endpoint_that_is_rarely_polled_reaches_a_peer_that_started_meanwhile() {
    for seed in 0..6 {
        let mut net = net(seed, false);
        net.record(0, 1, Stream::Commands, 10);
        net.run(MILLISECOND * 400);
        net.sleep(0, Duration::from_secs(30));
        net.run(Duration::from_secs(29));
        net.start(1);
        net.run(Duration::from_secs(5));
        assert_eq!(net.model(0, 1).unwrap().lost, 0, "seed {seed}");
        assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1), "seed {seed}");
    }
}
