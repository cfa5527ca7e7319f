//! `rdm-proto` under the simulated network, against a naive model: what was sent is what arrives, once and in order;
//! every operation ends; a restart, a sleep and a death are told apart.

use std::time::Duration;

use proptest::prelude::*;
use rdm_proto::congestion::Congestion;
use rdm_proto::wire::VERSION;
use rdm_proto::{Lost, Stream};
use testkit::net::{Link, Model, Net, Random};

/// Cases of each property: 1,000 unless `PROPTEST_CASES` says otherwise, as a scheduled run does with 10,000.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1000);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn links() -> impl Strategy<Value = Link> {
    (
        prop_oneof![Just(0u32), 0..50u32, 0..150u32],
        1..4u32, // so up to a third is lost; were it half, forty tries to begin a session would sometimes be too few
        prop_oneof![Just(0u32), 0..200u32],
        prop_oneof![Just(0u32), 0..300u32],
        prop_oneof![3 => Just(0u32), 1 => 0..100u32],
        1..3000u64,
        0..2000u64,
        prop_oneof![Just(usize::MAX), 1232..9500usize],
        prop_oneof![Just(usize::MAX), 1400..70_000usize],
        prop_oneof![Just(0u64), 1..80u64],
    )
        .prop_map(
            |(loss, burst, duplicate, reorder, corrupt, delay, jitter, longest, refused, byte_time)| Link {
                loss,
                burst,
                duplicate,
                reorder,
                corrupt,
                delay: Duration::from_micros(delay),
                jitter: Duration::from_micros(jitter),
                longest,
                refused,
                byte_time,
                queue: 300_000,
                ..Link::default()
            },
        )
}

fn congestion() -> impl Strategy<Value = Congestion> {
    prop_oneof![Just(Congestion::Reno), Just(Congestion::Fixed)]
}

/// Sends a few things from one host to another.
fn send_some(net: &mut Net, random: &mut Random, from: usize, to: usize) {
    for _ in 0..1 + random.below(12) {
        let stream = if random.chance(700) { Stream::Commands } else { Stream::Bulk };
        match random.below(10) {
            0 => _ = net.payload(from, to, stream, 1 + random.below(200_000)),
            1 => net.record(from, to, stream, random.below(16_000) as usize),
            _ => net.record(from, to, stream, random.below(300) as usize),
        }
    }
}

/// Whether everything that `model` says was sent has been acknowledged.
fn all_acked(model: Option<&Model>) -> bool {
    model.is_none_or(Model::is_acked)
}

fn arrived(net: &Net, from: usize, to: usize) -> bool {
    let (Some(sent), Some(received)) = (net.model(from, to), net.model(to, from)) else { return true };
    (0..2).all(|stream| received.received[stream].len() as u32 == sent.sent[stream])
}

proptest! {
    #![proptest_config(config())]

    /// Whatever the network does short of cutting somebody off: everything arrives once, and no session is lost.
    #[test]
    fn everything_arrives_once_and_in_order(
        seed: u64,
        link in links(),
        congestion in congestion(),
        hosts in 2..4usize,
    ) {
        let mut random = Random(seed);
        let mut net = Net::new(seed, hosts, link, congestion);
        net.stops(random.below(300) as u32);
        for _ in 0..1 + random.below(20) {
            let (from, to) = (random.below(hosts as u64) as usize, random.below(hosts as u64) as usize);
            send_some(&mut net, &mut random, from, to);
            net.run(Duration::from_micros(random.below(3000)));
        }
        net.run(Duration::from_secs(120));
        for from in 0..hosts {
            for to in 0..hosts {
                let model = net.model(from, to);
                prop_assert_eq!(model.map_or(0, |model| model.lost), 0, "{:?}", model);
                prop_assert!(all_acked(model), "{} to {}: {:#?}", from, to, net.hosts[from].endpoint);
                prop_assert!(arrived(&net, from, to), "{} to {}", from, to);
            }
        }
        let before = net.datagrams;
        net.run(Duration::from_secs(3600));
        prop_assert_eq!(net.datagrams, before, "an idle network is silent");
    }

    /// Hosts die and come back under their addresses, sleep, and are cut off. The application of `testkit::net` checks
    /// that each session's records come from their first, without a gap, once. Here: everything ends.
    #[test]
    fn every_operation_ends_whatever_becomes_of_the_hosts(
        seed: u64,
        link in links(),
        congestion in congestion(),
    ) {
        let hosts = 3;
        let mut random = Random(seed);
        let mut net = Net::new(seed, hosts, link, congestion);
        net.stops(random.below(200) as u32);
        for _ in 0..1 + random.below(25) {
            let (one, other) = (random.below(3) as usize, random.below(3) as usize);
            match random.below(12) {
                0 => net.kill(one),
                1 => {
                    net.kill(one);
                    net.start(one);
                }
                2 if net.hosts[one].endpoint.is_none() => net.start(one),
                3 => net.sleep(one, Duration::from_millis(random.below(20_000))),
                4 if one != other => net.cut.push((one, other)),
                5 => net.cut.clear(),
                6 => {
                    net.close(one);
                    net.start(one);
                }
                _ => send_some(&mut net, &mut random, one, other),
            }
            net.run(Duration::from_micros(random.below(2_000_000)));
        }
        net.cut.clear();
        net.run(Duration::from_secs(200));
        for from in 0..hosts {
            for to in 0..hosts {
                let ended = net.hosts[from].endpoint.is_none() || all_acked(net.model(from, to));
                prop_assert!(ended, "{} to {}: {:#?}", from, to, net.hosts[from].endpoint);
            }
        }
        // And afterwards everybody reaches everybody.
        for host in 0..hosts {
            if net.hosts[host].endpoint.is_none() {
                net.start(host);
            }
        }
        for from in 0..hosts {
            for to in 0..hosts {
                // The first word after a restart may find a session that only its other end remembers.
                for _ in 0..2 {
                    net.record(from, to, Stream::Commands, 100);
                    net.run(Duration::from_secs(60));
                }
                let model = net.model(from, to).expect("just sent");
                let acked = !model.acked[0].is_empty() && all_acked(Some(model));
                prop_assert!(acked, "{} to {}: {:?}", from, to, model);
            }
        }
    }

    /// Whatever bytes arrive, from whomever: nothing breaks, nobody is introduced, and live sessions go on.
    #[test]
    fn garbage_changes_nothing(
        seed: u64,
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1300), 1..40),
    ) {
        let mut random = Random(seed);
        let mut net = Net::new(seed, 3, Link::default(), Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        for (number, mut bytes) in garbage.into_iter().enumerate() {
            if number % 2 == 0 && bytes.len() > 8 {
                // Past the first checks: the version and a kind.
                (bytes[0], bytes[1], bytes[2], bytes[3]) = (VERSION, bytes[1] % 9, 0, 0);
                bytes[4..8].fill(0);
            }
            let to = net.address(1);
            net.put(2, to, bytes.clone());
            net.put(0, to, bytes);
            send_some(&mut net, &mut random, 0, 1);
            net.run(Duration::from_millis(1));
        }
        net.run(Duration::from_secs(60));
        prop_assert_eq!(net.model(0, 1).map(|model| model.lost), Some(0));
        prop_assert!(all_acked(net.model(0, 1)) && arrived(&net, 0, 1));
        prop_assert_eq!(net.hosts[1].endpoint.as_ref().map(rdm_proto::Endpoint::peers), Some(1));
    }
}

#[test]
fn a_peer_that_sleeps_keeps_its_session_and_a_dead_one_is_reported_within_the_bound() {
    let mut net = Net::new(1, 3, Link::default(), Congestion::Reno);
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
    assert!(all_acked(Some(sleeper)) && arrived(&net, 0, 1));
}

/// A program that got its message need not look again, and the sender's buffer is not to wait for that.
#[test]
fn a_payload_is_acknowledged_by_the_look_that_takes_its_end() {
    let mut net = Net::new(1, 2, Link::default(), Congestion::Reno);
    let until = |net: &mut Net, there: &dyn Fn(&Net) -> bool| {
        for _ in 0..100_000 {
            net.run(Duration::from_micros(1));
            if there(net) {
                return;
            }
        }
        panic!("nothing came");
    };
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1)); // a session, packet sizes
    for len in (1..12).map(|packets| packets * 20_000) {
        // An answer, with which an acknowledgement goes along: the next one waits for company too.
        net.record(0, 1, Stream::Commands, 10);
        until(&mut net, &|net| arrived(net, 0, 1));
        net.record(1, 0, Stream::Commands, 10);
        net.run(Duration::from_millis(10));
        let name = net.payload(0, 1, Stream::Bulk, len);
        until(&mut net, &|net| net.model(1, 0).is_some_and(|model| model.payloads.get(&name) == Some(&len)));
        net.sleep(1, Duration::from_secs(1));
        net.run(Duration::from_millis(10));
        assert!(all_acked(net.model(0, 1)), "{len} bytes are there, and their sender does not know");
        net.run(Duration::from_secs(2));
    }
}

/// What somebody posts who does not look again leaves with the post, unless something of its own is under way: a question whether
/// the peer is there, or a search for the longest packet, brings no acknowledgement that anybody would look at.
#[test]
fn a_message_does_not_gather_behind_packets_that_carry_none() {
    let mut net = Net::new(1, 2, Link::default(), Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    let (now, there) = (net.now, net.address(1));
    net.hosts[0].endpoint.as_mut().unwrap().unreachable(now, there);
    let before = net.datagrams;
    net.turn(0);
    assert!(net.datagrams > before, "it asks");
    let endpoint = net.hosts[0].endpoint.as_mut().unwrap();
    let peer = endpoint.find(there).unwrap();
    let gap = Duration::from_micros(20);
    let post = |endpoint: &mut rdm_proto::Endpoint| {
        endpoint.sender(now, peer).unwrap().commands.record(1, 0, &[], 0, None);
        endpoint.is_ready(now, peer, gap)
    };
    assert!(post(endpoint), "a question is no company");
    let mut buf = vec![0u8; 2000];
    let Net { hosts, .. } = &mut net;
    let host = &mut hosts[0];
    let endpoint = host.endpoint.as_mut().unwrap();
    assert!(endpoint.poll_transmit_to(now, peer, &mut buf, &mut host.application).is_some());
    assert!(!post(endpoint), "a message that has just left is");
}

/// Both ends ask for a session at once, the one a little later than the other: there is one, and it stands.
#[test]
fn ends_that_ask_each_other_at_once_have_one_session() {
    for seed in 0..8 {
        for apart in (0..400).step_by(10) {
            let mut net = Net::new(seed, 2, Link::default(), Congestion::Reno);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_micros(apart));
            net.record(1, 0, Stream::Commands, 10);
            net.run(Duration::from_secs(2));
            for (host, other) in [(0, 1), (1, 0)] {
                let endpoint = net.hosts[host].endpoint.as_ref().unwrap();
                assert_eq!(endpoint.statistics().sessions, 1, "seed {seed}, {apart} us apart, host {host}");
                assert_eq!(net.model(host, other).unwrap().lost, 0, "seed {seed}, {apart} us apart");
                assert!(arrived(&net, host, other), "seed {seed}, {apart} us apart");
            }
        }
    }
}

/// What a peer's request was answered goes out before the end, though a search for the longest packet fills the window of
/// a young session: otherwise the peer would take for failed what was done.
#[test]
fn an_answer_leaves_before_its_endpoint_closes() {
    let link = Link { byte_time: 80, ..Link::default() }; // the search takes a while
    let mut net = Net::new(1, 2, link, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 1000);
    while !arrived(&net, 0, 1) || net.model(1, 0).is_none() {
        net.run(Duration::from_micros(10));
    }
    net.record(1, 0, Stream::Bulk, 16);
    net.close(1);
    net.run(Duration::from_millis(100));
    let peer = net.model(0, 1).unwrap();
    assert_eq!(peer.received[Stream::Bulk as usize].len(), 1, "the answer");
    assert_eq!((peer.lost, peer.reason), (1, Some(Lost::Closed)));
}

#[test]
fn a_peer_that_is_not_there_is_reported_within_the_bound() {
    let mut net = Net::new(2, 2, Link::default(), Congestion::Reno);
    net.kill(1);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_millis(6000));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Silent));
}

#[test]
fn a_restarted_peer_ends_the_session_at_once() {
    let mut net = Net::new(3, 2, Link::default(), Congestion::Reno);
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

/// Runs one bulk transfer from each sender; answers bytes per second of virtual time.
fn goodput(link: Link, senders: usize, bytes: u64) -> f64 {
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

/// A server whose client has given up meanwhile grants a session of which the client knows nothing. It does not begin.
#[test]
fn a_session_that_its_client_never_heard_of_does_not_begin() {
    // The path takes no long packets: what finds that out does not arrive either.
    let mut net = Net::new(10, 2, Link { longest: 1472, ..Link::default() }, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_micros(120)); // a cookie, and the question that brings it back, which is on its way
    net.sleep(1, Duration::from_millis(5500));
    net.run(Duration::from_micros(40)); // it lies there
    net.cut.push((0, 1)); // so that its process does not answer for it
    net.run(Duration::from_millis(5400));
    net.cut.clear();
    net.run(Duration::from_millis(200));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Silent), "no answer came");
    let server = net.hosts[1].endpoint.as_ref().unwrap();
    assert!(server.statistics().retries > 0, "it looked at last, and found the question");
    assert_eq!((server.statistics().sessions, server.peers()), (0, 0));
    net.run(Duration::from_secs(60));
    net.record(1, 0, Stream::Commands, 10);
    net.run(Duration::from_secs(1));
    assert!(arrived(&net, 1, 0));
}

/// One flipped bit of a question makes it one of another version, which nobody can check. The answer says that this version
/// is spoken, so the question was damaged, and is asked again.
#[test]
fn a_question_damaged_into_another_version_is_asked_again() {
    use rdm_proto::wire::{Header, Kind, header};
    let mut net = Net::new(9, 2, Link::default(), Congestion::Reno);
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
    assert!(all_acked(net.model(0, 1)) && arrived(&net, 0, 1));

    // A server that does not list it is another matter.
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
    assert_eq!(net.model(0, 1).unwrap().reason, None, "anybody can say that: a better answer may come");
    net.run(Duration::from_millis(100));
    assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Version));
}

#[test]
fn a_network_that_repeats_everything_comes_to_rest() {
    let mut net = Net::new(12, 2, Link { duplicate: 1000, ..Link::default() }, Congestion::Reno);
    net.record(0, 1, Stream::Commands, 10);
    net.payload(0, 1, Stream::Bulk, 100_000);
    net.run(Duration::from_secs(1));
    assert!(all_acked(net.model(0, 1)) && arrived(&net, 0, 1));
    assert!(net.datagrams < 200, "{}", net.datagrams);
}

#[test]
fn many_senders_share_a_receiver_s_link() {
    // 1 GB/s, 1,500-byte packets, a queue of 200 KB.
    let link = Link { byte_time: 1, queue: 200_000, longest: 1472, ..Link::default() };
    let one = goodput(link.clone(), 1, 8_000_000);
    assert!(one > 0.5e9, "one sender alone: {one:.0} bytes/s");
    let many = goodput(link, 16, 1_000_000);
    assert!(many > 0.8 * one, "16 senders: {many:.0} bytes/s, one: {one:.0}");
}

/// Beside a flow that does as TCP does, with the same round trips, each gets about half of a link, whatever its queue is.
#[test]
fn a_link_is_shared_with_tcp() {
    for queue in [20_000, 60_000, 120_000] {
        // 12.5 MB/s, 5 ms there and back.
        let delay = Duration::from_micros(2_500);
        let link = Link { byte_time: 80, queue, delay, longest: 1472, ..Link::default() };
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

/// Packets that one sender loses, and the time that it takes, for some megabytes over a path.
fn lost_on(link: &Link, congestion: Congestion, bytes: u64) -> (u64, Duration) {
    let (mut lost, mut time) = (0, Duration::ZERO);
    for seed in 0..5 {
        let mut net = Net::new(seed, 2, link.clone(), congestion);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        let begin = net.now;
        net.payload(0, 1, Stream::Bulk, bytes);
        while !all_acked(net.model(0, 1)) {
            net.run(Duration::from_millis(5));
            assert!(net.now.since(begin) < Duration::from_secs(60), "it takes too long");
        }
        time += net.now.since(begin);
        lost += net.hosts[0].endpoint.as_ref().unwrap().peer_statistics(0).unwrap().lost;
    }
    (lost, time)
}

#[test]
fn pacing_spares_a_shallow_queue_and_costs_little_time() {
    // 125 MB/s, 20 ms there and back, and a queue of 30 packets: bursts of a window overflow it.
    let link = Link {
        delay: Duration::from_millis(10),
        byte_time: 8,
        queue: 45_000,
        longest: 1472,
        ..Link::default()
    };
    let (paced, paced_time) = lost_on(&link, Congestion::Reno, 4_000_000);
    let (bursts, bursts_time) = lost_on(&link, Congestion::Bursts, 4_000_000);
    println!("lost {paced} in {paced_time:?} with pacing, {bursts} in {bursts_time:?} without");
    assert!(paced * 3 < bursts * 2, "lost {paced} with pacing and {bursts} without");
    assert!(paced_time < bursts_time.mul_f64(1.05), "{paced_time:?} with pacing and {bursts_time:?} without");
}

#[test]
fn pacing_does_not_stand_in_the_way_on_a_short_path() {
    let link = Link { byte_time: 1, queue: 1_000_000, longest: 1472, ..Link::default() };
    let (_, paced) = lost_on(&link, Congestion::Reno, 1_000_000);
    let (_, bursts) = lost_on(&link, Congestion::Bursts, 1_000_000);
    assert_eq!(paced, bursts, "nothing is paced, so nothing differs");
}

#[test]
fn losses_cost_what_they_must() {
    let link = Link { byte_time: 1, queue: 1_000_000, longest: 1472, ..Link::default() };
    let clean = goodput(link.clone(), 1, 8_000_000);
    for (loss, part) in [(1, 0.5), (10, 0.2), (50, 0.05)] {
        let lossy = goodput(Link { loss, ..link.clone() }, 1, 8_000_000);
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
        let mut net = Net::new(5, 2, Link { longest, refused, ..Link::default() }, Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(30));
        let endpoint = net.hosts[0].endpoint.as_ref().unwrap();
        let stats = endpoint.peer_statistics(0).unwrap();
        assert_eq!(stats.packet_size, found, "{longest} {refused}");
    }
}

/// Both ways: a longer path is noticed after ten minutes, at the next message, and a shorter one by what vanishes.
#[test]
fn a_path_that_changes_is_followed() {
    let mut net = Net::new(5, 2, Link { longest: 1472, ..Link::default() }, Congestion::Reno);
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
    assert_eq!(found(&mut net, 300), 1452, "nothing says so");
    assert_eq!(found(&mut net, 600), 8952);
    net.link.longest = 1400;
    let begin = net.now;
    net.record(0, 1, Stream::Commands, 5_000);
    while !all_acked(net.model(0, 1)) {
        net.run(Duration::from_millis(1));
        assert!(
            net.now.since(begin) < Duration::from_secs(1),
            "short packets arrive, and nothing tells of it"
        );
    }
    assert_eq!(found(&mut net, 30), 1372);
}

#[test]
fn a_flood_of_strangers_leaves_nothing_behind() {
    use rdm_proto::wire::{Header, Init, Kind, Params, header};
    let mut net = Net::new(6, 3, Link::default(), Congestion::Reno);
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
    assert!(arrived(&net, 0, 1));
}

#[test]
fn peers_that_are_forgotten_or_change_their_numbers_leave_nothing_wrong_behind() {
    let mut net = Net::new(8, 6, Link::default(), Congestion::Reno);
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
        assert!(all_acked(net.model(0, host)) && arrived(&net, 0, host) && arrived(&net, host, 0), "{host}");
    }
    let before = net.datagrams;
    net.run(Duration::from_secs(60));
    assert_eq!(net.datagrams, before, "timers of other peers do not fire for it");
    let endpoint = net.hosts[0].endpoint.as_mut().unwrap();
    endpoint.forget(2);
    assert_eq!(endpoint.peer("10.0.0.77:5".parse().unwrap()), (2, true), "its number is free");
    endpoint.forget(2);
    endpoint.forget(2);
    assert_eq!(endpoint.peer("10.0.0.78:5".parse().unwrap()), (2, true));
    assert!(endpoint.peer("10.0.0.79:5".parse().unwrap()).1);
    assert_eq!(endpoint.peers(), 6, "and is free once");
}

#[test]
fn a_peer_that_was_forgotten_and_is_met_again_does_not_take_a_question_for_an_echo() {
    let mut net = Net::new(9, 2, Link::default(), Congestion::Reno);
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

/// Bytes per second that arrive of a payload within some time.
fn rate(net: &mut Net, id: u64, time: Duration) -> f64 {
    let bytes = |net: &Net| net.model(1, 0).and_then(|model| model.payloads.get(&id).copied()).unwrap_or(0);
    let before = bytes(net);
    net.run(time);
    (bytes(net) - before) as f64 / time.as_secs_f64()
}

/// What a receiver computes for a while is no business of the path between: as fast as before, in packets as long.
#[test]
fn a_peer_that_computes_for_a_moment_costs_the_path_nothing() {
    for delay in [Duration::from_micros(50), Duration::from_millis(5)] {
        let link = Link { delay, byte_time: 8, longest: 9000, queue: 1_000_000, ..Link::default() };
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
            // A sender that has backed off to a probe every half a second needs that to notice.
            let after = rate(&mut net, id, Duration::from_millis(200));
            assert!(
                after > 0.7 * before,
                "{delay:?}: {after:.0} bytes/s after {compute} ms, {before:.0} before"
            );
        }
    }
}

/// A path that was cut is taken up again quickly: the losses of the outage are one event.
#[test]
fn a_path_that_was_cut_for_a_while_is_used_again_soon() {
    let delay = Duration::from_millis(10);
    let link = Link { delay, byte_time: 8, longest: 1472, queue: 1_000_000, ..Link::default() };
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

/// The process of a peer that does not look answers for it before there is a session, too.
#[test]
fn a_first_message_waits_for_a_peer_that_lives_and_does_not_look() {
    let mut net = Net::new(13, 2, Link::default(), Congestion::Reno);
    net.sleep(1, Duration::from_secs(60));
    net.record(0, 1, Stream::Commands, 10);
    net.run(Duration::from_secs(59));
    assert_eq!(net.model(0, 1).unwrap().lost, 0);
    assert!(net.datagrams < 300, "{} datagrams to one who does not look", net.datagrams);
    net.run(Duration::from_secs(3));
    assert!(all_acked(net.model(0, 1)) && arrived(&net, 0, 1));
    // It is not waited for when its process is gone, either.
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

/// Holes that losses leave in the numbers are told of for as long as that says something new.
#[test]
fn acknowledgements_become_short_again_after_losses() {
    let mut net = Net::new(0, 2, Link { loss: 30, longest: 1472, ..Link::default() }, Congestion::Reno);
    let longest = |net: &mut Net| {
        let mut longest = 0;
        for _ in 0..100 {
            net.longest = 0;
            net.record(1, 0, Stream::Commands, 10);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_millis(2));
            longest = longest.max(net.longest);
        }
        longest
    };
    for _ in 0..30 {
        net.payload(0, 1, Stream::Bulk, 100_000);
        net.payload(1, 0, Stream::Bulk, 100_000);
        net.run(Duration::from_millis(100));
    }
    net.run(Duration::from_secs(1));
    net.link.loss = 0;
    longest(&mut net);
    longest(&mut net);
    // Header, acknowledgement of one run, and a record.
    let found = longest(&mut net);
    assert!(found < 140, "{found} bytes around a message of 10");
}
