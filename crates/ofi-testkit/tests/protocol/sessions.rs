//! Sessions of `ofi-rdm` under the simulated network: their beginning and end, and how they are distinguished.

use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::VERSION;
use ofi_rdm::{Lost, Stream};
use ofi_testkit::net::{Net, NetworkLink, all_acked, all_arrived};

#[test]
fn a_peer_that_sleeps_keeps_its_session_and_a_dead_one_is_reported_within_the_bound() {
    let mut net = Net::new(1, 3, NetworkLink::default(), Congestion::Reno);
    for host in [1, 2] {
        net.record(0, host, Stream::Commands, 10);
    }
    net.run(Duration::from_secs(1));
    net.sleep(1, Duration::from_secs(60));
    net.kill(2);
    for host in [1, 2] {
        net.record(0, host, Stream::Commands, 10);
        net.payload(0, host, Stream::Bulk, 100_000);
    }
    net.run(Duration::from_millis(4900));
    assert_eq!(net.model(0, 2).unwrap().lost, 0, "not before the bound");
    net.run(Duration::from_millis(2100));
    assert_eq!(net.model(0, 2).unwrap().reason, Some(Lost::Silent));
    net.run(Duration::from_secs(60));
    let sleeper = net.model(0, 1).unwrap();
    assert_eq!(sleeper.lost, 0);
    assert!(all_acked(Some(sleeper)) && all_arrived(&net, 0, 1));
}

/// Both ends request a session at about the same time: one session results, and it lasts.
#[test]
fn ends_that_ask_each_other_at_once_have_one_session() {
    for seed in 0..8 {
        for apart in (0..400).step_by(10) {
            let mut net = Net::new(seed, 2, NetworkLink::default(), Congestion::Reno);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_micros(apart));
            net.record(1, 0, Stream::Commands, 10);
            net.run(Duration::from_secs(2));
            for (host, other) in [(0, 1), (1, 0)] {
                let endpoint = net.hosts[host].endpoint.as_ref().unwrap();
                assert_eq!(endpoint.statistics().sessions, 1, "seed {seed}, {apart} us apart, host {host}");
                assert_eq!(net.model(host, other).unwrap().lost, 0, "seed {seed}, {apart} us apart");
                assert!(all_arrived(&net, host, other), "seed {seed}, {apart} us apart");
            }
        }
    }
}

/// Answers to a peer's requests are sent before the end, even if a search for the longest packet fills the window of a
/// young session: otherwise the peer would consider completed requests failed.
#[test]
fn an_answer_leaves_before_its_endpoint_closes() {
    let link = NetworkLink { byte_time: 80, ..NetworkLink::default() }; // the search takes a while
    let mut net = Net::new(1, 2, link, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 1000);
    while !all_arrived(&net, 0, 1) || net.model(1, 0).is_none() {
        net.run(Duration::from_micros(10));
    }
    net.record(1, 0, Stream::Bulk, 16);
    net.close(1);
    net.run(Duration::from_millis(100));
    let peer = net.model(0, 1).unwrap();
    assert_eq!(peer.received[Stream::Bulk as usize].len(), 1, "the answer did not arrive");
    assert_eq!((peer.lost, peer.reason), (1, Some(Lost::Closed)));
}

#[test]
fn a_peer_that_is_not_there_is_reported_within_the_bound() {
    let mut net = Net::new(2, 2, NetworkLink::default(), Congestion::Reno);
    net.kill(1);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_millis(6000));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Silent));
}

#[test]
fn a_restarted_peer_ends_the_session_at_once() {
    let mut net = Net::new(3, 2, NetworkLink::default(), Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    net.kill(1);
    net.start(1);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_millis(100));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Reset));
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_millis(100));
    assert_eq!(net.model(1, 0).unwrap().received[0].len(), 1);
    net.close(1);
    net.run(Duration::from_millis(10));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Closed));
}

/// A server grants a session after its client has given up. The session does not begin, as the client does
/// not know it.
#[test]
fn a_session_that_its_client_never_heard_of_does_not_begin() {
    // The path drops long packets, including those of the search.
    let mut net = Net::new(10, 2, NetworkLink { longest: 1472, ..NetworkLink::default() }, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_micros(120)); // a cookie, and the question that returns it, which is in flight
    net.sleep(1, Duration::from_millis(5500));
    net.run(Duration::from_micros(40)); // the question reaches the socket
    net.cut.push((0, 1)); // so that the server's process does not answer
    net.run(Duration::from_millis(5400));
    net.cut.clear();
    net.run(Duration::from_millis(200));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Silent), "no answer may arrive");
    let server = net.hosts[1].endpoint.as_ref().unwrap();
    assert!(server.statistics().retries > 0, "the server did not process the question");
    assert_eq!((server.statistics().sessions, server.peers()), (0, 0));
    net.run(Duration::from_secs(60));
    net.record(1, 0, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    assert!(all_arrived(&net, 1, 0));
}

/// One flipped bit turns a question into one of another version, which cannot be checked. The answer says that this
/// version is supported, so the question was damaged, and is repeated.
#[test]
fn a_question_damaged_into_another_version_is_asked_again() {
    use ofi_rdm::wire::{Header, Kind, header};
    let mut net = Net::new(9, 2, NetworkLink::default(), Congestion::Reno);
    let versions = |session: u64, versions: &[u8]| {
        let mut packet = vec![0u8; header::LEN];
        packet.extend_from_slice(versions);
        Header { flags: header::flag::CHECKED, ..Header::new(Kind::Versions, session, 0) }.write(&mut packet);
        packet
    };
    net.link.damage = Some(|bytes: &mut [u8]| {
        if bytes[1] == Kind::Init as u8 {
            bytes[0] ^= 0x10;
        }
    });
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_millis(5));
    net.link.damage = None;
    assert_eq!(net.hosts[1].endpoint.as_ref().unwrap().statistics().versions, 1);
    assert_eq!(net.hosts[0].endpoint.as_ref().unwrap().statistics().stale, 1, "the answer is counted");
    net.run(Duration::from_secs(1));
    assert_eq!(net.model(0, 1).unwrap().lost, 0);
    assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));

    // A server that does not list this version is different.
    net.kill(1);
    net.start(1);
    net.kill(0);
    net.start(0);
    net.cut.push((0, 1));
    net.record(0, 1, Stream::Commands, 10);
    let name = net.hosts[0].endpoint.as_ref().unwrap().session_name(0).unwrap();
    let (server, to) = (net.address(1), net.address(0));
    net.inject(server, to, versions(name, &[VERSION + 1, VERSION + 2]));
    net.run(Duration::from_millis(200));
    assert_eq!(net.model(0, 1).unwrap().reason, None, "given up at the first forgeable answer");
    net.run(Duration::from_millis(100));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Version));
}

#[test]
fn a_flood_of_strangers_leaves_nothing_behind() {
    use ofi_rdm::wire::{Header, Init, Kind, Params, header};
    let mut net = Net::new(6, 3, NetworkLink::default(), Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    let params = Params { window: 1 << 20, in_flight: 1 << 20, max_packet: 9000, liveness_port: 0, flags: 0 };
    for number in 0..5000u64 {
        let mut packet = vec![0u8; 1200];
        let to = net.address(1);
        let init = Init { cookie: number, ..Init::plain(number + 1, number + 9, 1, params, to) };
        init.write(&mut packet[header::LEN..]);
        Header { flags: header::flag::CHECKED, ..Header::new(Kind::Init, 0, 0) }.write(&mut packet);
        net.put(2, to, packet);
    }
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(10));
    let endpoint = net.hosts[1].endpoint.as_ref().unwrap();
    assert_eq!(endpoint.peers(), 1);
    assert!(endpoint.statistics().retries >= 100, "{:?}", endpoint.statistics());
    assert!(all_arrived(&net, 0, 1));
}

#[test]
fn peers_that_are_forgotten_or_change_their_numbers_leave_nothing_wrong_behind() {
    let mut net = Net::new(8, 6, NetworkLink::default(), Congestion::Reno);
    for round in 0..30u64 {
        for host in 1..6 {
            net.record(0, host, Stream::Commands, 50);
            net.record(host, 0, Stream::Commands, 50);
        }
        net.run(Duration::from_micros(37 * round));
        let one = (round % 5) as u32;
        net.swap(0, one, (one + 2) % 5);
        net.run(Duration::from_secs(1));
    }
    for host in 1..6 {
        assert!(
            all_acked(net.model(0, host)) && all_arrived(&net, 0, host) && all_arrived(&net, host, 0),
            "{host}"
        );
    }
    let before = net.datagrams;
    net.run(Duration::from_secs(60));
    assert_eq!(net.datagrams, before, "timers of other peers fire");
    let endpoint = net.hosts[0].endpoint.as_mut().unwrap();
    endpoint.forget(2);
    assert_eq!(endpoint.peer("10.0.0.77:5".parse().unwrap()), (2, true), "the number was not freed");
    endpoint.forget(2);
    endpoint.forget(2);
    assert_eq!(endpoint.peer("10.0.0.78:5".parse().unwrap()), (2, true));
    assert!(endpoint.peer("10.0.0.79:5".parse().unwrap()).1);
    assert_eq!(endpoint.peers(), 6, "the number was freed twice");
}

#[test]
fn a_peer_that_was_forgotten_and_is_met_again_does_not_take_a_question_for_an_echo() {
    let mut net = Net::new(9, 2, NetworkLink::default(), Congestion::Reno);
    let sessions = |net: &Net, host: usize| net.hosts[host].endpoint.as_ref().unwrap().statistics().sessions;
    for round in 1..5 {
        net.record(0, 1, Stream::Commands, 50);
        net.run(Duration::from_secs(1));
        assert_eq!((sessions(&net, 0), sessions(&net, 1)), (round, round));
        let there = net.address(1);
        let endpoint = net.hosts[0].endpoint.as_mut().unwrap();
        let peer = endpoint.find(there).unwrap();
        endpoint.forget(peer);
        assert_eq!(endpoint.find(there), None);
        assert_eq!(endpoint.peer(there), (peer, true));
    }
}

/// The process of a peer answers for it even if it is not polled and has no session yet.
#[test]
fn a_first_message_waits_for_a_peer_that_lives_and_does_not_look() {
    let mut net = Net::new(13, 2, NetworkLink::default(), Congestion::Reno);
    net.sleep(1, Duration::from_secs(60));
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(59));
    assert_eq!(net.model(0, 1).unwrap().lost, 0);
    assert!(net.datagrams < 300, "{} datagrams to a peer that is not polled", net.datagrams);
    net.run(Duration::from_secs(3));
    assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));
    // The wait ends when the process is gone.
    net.sleep(0, Duration::from_secs(60));
    net.kill(1);
    net.start(1);
    net.record(1, 0, Stream::Commands, 10);
    net.run(Duration::from_secs(10));
    assert_eq!(net.model(1, 0).unwrap().lost, 0);
    net.kill(0);
    net.run(Duration::from_secs(7));
    assert_eq!(net.model(1, 0).unwrap().reason, Some(Lost::Silent));
}
