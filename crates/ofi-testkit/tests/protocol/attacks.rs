//! An attacker who sees every datagram of the simulated network sends them back to their senders, to others, and again
//! later. The application of `ofi_testkit::net` checks that each record is accepted once, in order, from the host that
//! sent it, by the host to which it was sent.

use std::net::SocketAddr;
use std::time::Duration;

use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::header::{self, flag};
use ofi_rdm::wire::{Header, Kind};
use ofi_rdm::{EndpointStats, Limits, Lost, Stream, suites};
use ofi_testkit::net::{Model, Net, NetworkLink, Random};
use proptest::prelude::*;

const WISHES: [(u8, &[u8]); 4] = [
    (suites::CLEAR, b""),
    (suites::ENCRYPTED, b""),
    (suites::ENCRYPTED, b"job 7"),
    (suites::CLEAR, b"job 7"),
];

/// A network in which all hosts have these security settings.
fn net(seed: u64, hosts: usize, link: NetworkLink, wish: (u8, &'static [u8])) -> Net {
    let mut net = Net::new(seed, hosts, link, Congestion::Reno);
    net.security = vec![wish; hosts];
    (0..hosts).for_each(|host| net.start(host));
    net
}

/// Fails if a packet of an encrypted session is in the clear.
fn must_be_sealed(bytes: &mut [u8]) {
    if let Ok((head, _)) = Header::parse(bytes)
        && head.kind == Kind::Data
    {
        assert!(head.flags & flag::SEALED != 0, "{head:?} in the clear");
    }
}

fn is_sealed((suites, _): (u8, &[u8])) -> bool {
    suites & suites::CLEAR == 0
}

fn damage(wish: (u8, &[u8])) -> Option<fn(&mut [u8])> {
    is_sealed(wish).then_some(must_be_sealed)
}

fn sessions(net: &Net, host: usize) -> u64 {
    stats(net, host).sessions
}

#[test]
fn a_question_that_comes_back_opens_no_session() {
    for wish in WISHES {
        // The peer is gone, and the new owner of its address reflects everything.
        let link = NetworkLink { reflect: 1000, damage: damage(wish), ..NetworkLink::default() };
        let mut net = net(1, 2, link, wish);
        net.kill(1);
        net.record(0, 1, Stream::Commands, 100);
        net.run(Duration::from_secs(20));
        assert_eq!(sessions(&net, 0), 0, "{wish:?}");
        assert!(net.model(0, 1).is_some_and(|model| model.lost == 1), "{wish:?}");
    }
}

#[test]
fn an_endpoint_talks_to_itself_as_it_would_to_others() {
    for wish in WISHES {
        let mut net = net(1, 1, NetworkLink { damage: damage(wish), ..NetworkLink::default() }, wish);
        net.record(0, 0, Stream::Commands, 100);
        net.payload(0, 0, Stream::Bulk, 300_000);
        net.run(Duration::from_secs(1));
        let model = net.model(0, 0).unwrap();
        assert!(model.is_acked() && model.received[0].len() == 1, "{wish:?}");
    }
}

fn stats(net: &Net, host: usize) -> EndpointStats {
    net.hosts[host].endpoint.as_ref().map(|endpoint| endpoint.statistics()).unwrap_or_default()
}

fn arrived(net: &Net, from: usize, to: usize) -> usize {
    net.model(to, from).map_or(0, |model| model.received[0].len())
}

/// Holders of the same key are distinguished by the address that the peer used: the application fails if a
/// record reaches a host other than its destination.
#[test]
fn nobody_takes_what_somebody_on_the_way_turned_to_him() {
    for wish in [(suites::ENCRYPTED, &b"job 7"[..]), (suites::CLEAR, b"job 7")] {
        let mut net = net(1, 3, NetworkLink::default(), wish);
        net.swapped = Some((0, 1, 2));
        for (from, to) in [(0, 1), (1, 0)] {
            net.record(from, to, Stream::Commands, 100);
            net.run(Duration::from_secs(1));
            assert_eq!(net.model(from, to).unwrap().reason, Some(Lost::Address), "{from} to {to}");
            assert_eq!(sessions(&net, 1) + sessions(&net, 2), 0);
        }
        net.swapped = None;
        net.record(0, 1, Stream::Commands, 100);
        net.run(Duration::from_secs(1));
        assert_eq!(arrived(&net, 0, 1), 1);
    }
}

/// A host gets addresses while it runs. Peers with the key reach it at these too, and it reaches itself there.
#[test]
fn an_address_that_appeared_later_is_one_of_the_endpoint_s_own() {
    for wish in [(suites::ENCRYPTED, &b"job 7"[..]), (suites::CLEAR, b"job 7")] {
        for (from, to) in [(0, 1), (1, 0), (1, 1)] {
            let mut net = net(1, 2, NetworkLink::default(), wish);
            let before = SocketAddr::new([10, 0, 9, 9].into(), 7471);
            net.hosts[1].endpoint.as_mut().unwrap().set_addresses([before]);
            net.record(from, to, Stream::Commands, 100);
            net.run(Duration::from_millis(100));
            assert_eq!(
                (arrived(&net, from, to), net.model(from, to).unwrap().lost),
                (1, 0),
                "{from} to {to}"
            );
        }
    }
}

/// Destroys all packets of sessions.
fn no_data(bytes: &mut [u8]) {
    if bytes[1] == Kind::Data as u8 {
        bytes[0] = 0;
    }
}

#[test]
fn a_session_stands_until_whoever_asked_for_another_has_shown_that_it_has_it() {
    for wish in WISHES {
        let mut net = net(1, 2, NetworkLink::default(), wish);
        net.record(1, 0, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        net.kill(0);
        net.start(0);
        net.link.damage = Some(no_data);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        assert_eq!(sessions(&net, 0), 1, "{wish:?}: the session was granted");
        assert_eq!((sessions(&net, 1), net.model(1, 0).unwrap().lost), (1, 0), "{wish:?}");
        net.link.damage = None;
        net.run(Duration::from_secs(2));
        assert_eq!((sessions(&net, 1), net.model(1, 0).unwrap().reason), (2, Some(Lost::Reset)), "{wish:?}");
        assert_eq!(arrived(&net, 0, 1), 1, "{wish:?}");
    }
}

/// Packets that an attacker who sees a session's headers can forge.
fn forge(net: &mut Net, from: usize, to: usize) {
    let name = |at: usize, of: usize| {
        let endpoint = net.hosts[at].endpoint.as_ref()?;
        endpoint.session_name(endpoint.find(net.address(of))?)
    };
    let epoch = |at: usize| net.hosts[at].endpoint.as_ref().map_or(0, |endpoint| endpoint.epoch());
    let (Some(theirs), Some(own)) = (name(to, from), name(from, to)) else { return };
    let port = |port| SocketAddr::new(net.address(from).ip(), port);
    let (to, data, liveness) = (net.address(to), port(7471), port(9));
    for (at, kind, session, number, body) in [
        (data, Kind::Reset, own, 0, 0),
        (data, Kind::Refused, theirs, 1, 0),
        (data, Kind::Versions, theirs, 0, 1),
        (liveness, Kind::Answer, epoch(from), theirs, 0),
        (data, Kind::Data, theirs, 1 << 20, 40),
    ] {
        let mut packet = vec![9u8; header::LEN + body];
        let flags = if kind == Kind::Data { flag::SEALED } else { flag::CHECKED };
        Header { flags, ..Header::new(kind, session, number) }.write(&mut packet);
        net.inject(at, to, packet);
    }
}

#[test]
fn what_anybody_can_say_ends_no_sealed_session_and_what_is_true_is_found_out() {
    for wish in WISHES.into_iter().filter(|&wish| is_sealed(wish)) {
        let mut net = net(1, 2, NetworkLink::default(), wish);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_millis(10));
        for _ in 0..100 {
            forge(&mut net, 0, 1);
            forge(&mut net, 1, 0);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_millis(30));
        }
        // Then while the library is not called.
        net.sleep(1, Duration::from_secs(10));
        for _ in 0..100 {
            forge(&mut net, 1, 0);
            net.record(0, 1, Stream::Commands, 10);
            net.run(Duration::from_millis(30));
        }
        net.run(Duration::from_secs(20));
        assert_eq!((arrived(&net, 0, 1), net.model(0, 1).unwrap().lost), (201, 0));
        assert_eq!(net.model(1, 0).unwrap().lost, 0);
        let before = net.datagrams;
        net.run(Duration::from_secs(3600));
        assert_eq!(net.datagrams, before, "an idle network is silent");
        // A true report: the peer is another incarnation.
        net.kill(1);
        net.start(1);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_millis(100));
        assert_eq!(net.model(0, 1).unwrap().reason, Some(Lost::Reset));
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_millis(100));
        assert_eq!(arrived(&net, 0, 1), 1);
    }
}

#[test]
fn a_session_ends_before_somebody_has_guessed_often_enough() {
    for suite in [suites::AES_256_GCM, suites::CHACHA20_POLY1305] {
        let wish = (suite, &b"job 7"[..]);
        let mut net = net(1, 2, NetworkLink::default(), wish);
        net.limits = Limits { forgeries_aes: 20, forgeries_chacha: 20, ..Limits::RFC_9001 };
        (0..2).for_each(|host| net.start(host));
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        for round in 0..20 {
            assert_eq!(net.model(1, 0).unwrap().lost, 0, "{round}");
            forge(&mut net, 0, 1);
            net.run(Duration::from_millis(1));
        }
        assert_eq!(net.model(1, 0).unwrap().reason, Some(Lost::Forged));
        assert!(stats(&net, 1).forged >= 20);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Everything ends, and no host accepts data meant for another.
    #[test]
    fn reflections_and_replays_change_nothing(
        seed: u64,
        wish in 0..WISHES.len(),
        (reflect, replay, loss) in (0..500u32, 0..500u32, 0..50u32),
    ) {
        let wish = WISHES[wish];
        let link = NetworkLink { reflect, replay, loss, damage: damage(wish), ..NetworkLink::default() };
        let mut random = Random(seed);
        let mut net = net(seed, 3, link, wish);
        for _ in 0..1 + random.below(20) {
            let (from, to) = (random.below(3) as usize, random.below(3) as usize);
            for _ in 0..1 + random.below(5) {
                net.record(from, to, Stream::Commands, random.below(3000) as usize);
            }
            net.run(Duration::from_micros(random.below(100_000)));
        }
        net.run(Duration::from_secs(60));
        for from in 0..3 {
            for to in 0..3 {
                let model = net.model(from, to);
                if is_sealed(wish) {
                    let lost = model.map_or(0, |model| model.lost);
                    prop_assert_eq!(lost, 0, "{} to {}: {:?}", from, to, model.map(|model| model.reason));
                }
                prop_assert!(model.is_none_or(Model::is_acked), "{} to {}", from, to);
            }
        }
    }

    /// A host with the key that is given data meant for another host with the key accepts none of it, and no host is
    /// kept from its intended peers.
    #[test]
    fn what_is_turned_to_others_as_well_changes_nothing(
        seed: u64,
        wish in 0..WISHES.len(),
        (redirect, loss) in (0..800u32, 0..50u32),
    ) {
        let wish = WISHES[wish];
        let link = NetworkLink { redirect, loss, damage: damage(wish), ..NetworkLink::default() };
        let mut random = Random(seed);
        let mut net = net(seed, 4, link, wish);
        let mut sent = [[0; 4]; 4];
        for _ in 0..1 + random.below(20) {
            let (from, to) = (random.below(4) as usize, random.below(4) as usize);
            for _ in 0..1 + random.below(5) {
                net.record(from, to, Stream::Commands, random.below(3000) as usize);
                sent[from][to] += 1;
            }
            net.run(Duration::from_micros(random.below(100_000)));
        }
        net.run(Duration::from_secs(60));
        for (from, sent) in sent.iter().enumerate() {
            for (to, &sent) in sent.iter().enumerate() {
                let model = net.model(from, to);
                prop_assert!(model.is_none_or(Model::is_acked), "{} to {}", from, to);
                if model.is_some_and(|model| model.lost == 0) {
                    prop_assert_eq!(arrived(&net, from, to), sent, "{} to {}", from, to);
                }
                if !wish.1.is_empty() || is_sealed(wish) {
                    prop_assert_eq!(model.map_or(0, |model| model.lost), 0, "{} to {}: {:?}", from, to, model);
                }
            }
        }
    }

    /// The same with hosts that return, to which all earlier datagrams are replayed: everything ends, and afterwards
    /// all hosts communicate.
    #[test]
    fn the_past_of_restarted_hosts_changes_nothing(
        seed: u64,
        wish in 0..WISHES.len(),
        (reflect, replay) in (0..300u32, 0..500u32),
    ) {
        let wish = WISHES[wish];
        let link = NetworkLink { reflect, replay, damage: damage(wish), ..NetworkLink::default() };
        let mut random = Random(seed);
        let mut net = net(seed, 3, link, wish);
        for _ in 0..1 + random.below(20) {
            let (from, to) = (random.below(3) as usize, random.below(3) as usize);
            if random.chance(200) {
                net.kill(from);
                net.start(from);
            }
            net.record(from, to, Stream::Commands, random.below(3000) as usize);
            net.run(Duration::from_micros(random.below(10_000_000)));
        }
        (net.link.reflect, net.link.replay) = (0, 0);
        net.run(Duration::from_secs(60));
        for from in 0..3 {
            for to in 0..3 {
                for _ in 0..2 {
                    net.record(from, to, Stream::Commands, 100);
                    net.run(Duration::from_secs(10));
                }
                let model = net.model(from, to).expect("just sent");
                prop_assert!(model.is_acked() && !model.acked[0].is_empty(), "{} to {}: {:?}", from, to, model);
            }
        }
    }

    /// Keys are replaced continually in both directions, while packets are lost, late or duplicated.
    #[test]
    fn everything_arrives_while_keys_are_replaced(
        seed: u64,
        suite in prop_oneof![Just(suites::AES_256_GCM), Just(suites::CHACHA20_POLY1305)],
        packets in 16..200u64,
        (loss, reorder, duplicate) in (0..100u32, 0..300u32, 0..200u32),
    ) {
        let wish = (suite, &b"job 7"[..]);
        let link = NetworkLink { loss, reorder, duplicate, damage: Some(must_be_sealed), ..NetworkLink::default() };
        let mut random = Random(seed);
        let mut net = net(seed, 2, link, wish);
        net.limits = Limits { packets, ..Limits::RFC_9001 };
        (0..2).for_each(|host| net.start(host));
        for _ in 0..20 {
            let (from, to) = if random.chance(500) { (0, 1) } else { (1, 0) };
            net.payload(from, to, Stream::Bulk, 1 + random.below(300_000));
            (0..10).for_each(|_| net.record(to, from, Stream::Commands, 100));
            net.run(Duration::from_micros(random.below(20_000)));
        }
        net.run(Duration::from_secs(60));
        for (from, to) in [(0, 1), (1, 0)] {
            let model = net.model(from, to).unwrap();
            prop_assert!(model.is_acked() && model.lost == 0, "{} to {}: {:?}", from, to, stats(&net, to));
        }
    }
}
