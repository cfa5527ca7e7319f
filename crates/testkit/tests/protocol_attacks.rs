//! Somebody who sees every datagram of the simulated network sends them back to their senders, to others, and again later.
//! The application of `testkit::net` checks that each record is taken once, in order, from the host that sent it, by the host
//! that it was sent to.

use std::time::Duration;

use proptest::prelude::*;
use rdm_proto::congestion::Congestion;
use rdm_proto::wire::header::flag;
use rdm_proto::wire::{Header, Kind};
use rdm_proto::{Stream, suites};
use testkit::net::{Link, Model, Net, Random};

const WISHES: [(u8, &[u8]); 4] = [
    (suites::CLEAR, b""),
    (suites::ENCRYPTED, b""),
    (suites::ENCRYPTED, b"job 7"),
    (suites::CLEAR, b"job 7"),
];

/// A network in which everybody wants this.
fn net(seed: u64, hosts: usize, link: Link, wish: (u8, &'static [u8])) -> Net {
    let mut net = Net::new(seed, hosts, link, Congestion::Reno);
    net.security = vec![wish; hosts];
    (0..hosts).for_each(|host| net.start(host));
    net
}

/// Fails where a packet of a session that is to be encrypted is not.
fn must_be_sealed(bytes: &mut [u8]) {
    if let Ok((head, _)) = Header::parse(bytes)
        && head.kind == Kind::Data
    {
        assert!(head.flags & flag::SEALED != 0, "{head:?} in the clear");
    }
}

fn damage((suites, _): (u8, &[u8])) -> Option<fn(&mut [u8])> {
    (suites & suites::CLEAR == 0).then_some(must_be_sealed)
}

fn sessions(net: &Net, host: usize) -> u64 {
    net.hosts[host].endpoint.as_ref().map_or(0, |endpoint| endpoint.statistics().sessions)
}

#[test]
fn a_question_that_comes_back_opens_no_session() {
    for wish in WISHES {
        // The peer is gone, and whoever has its address now sends everything back.
        let link = Link { reflect: 1000, damage: damage(wish), ..Link::default() };
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
        let mut net = net(1, 1, Link { damage: damage(wish), ..Link::default() }, wish);
        net.record(0, 0, Stream::Commands, 100);
        net.payload(0, 0, Stream::Bulk, 300_000);
        net.run(Duration::from_secs(1));
        let model = net.model(0, 0).unwrap();
        assert!(model.is_acked() && model.received[0].len() == 1, "{wish:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Everything ends, and nobody takes what was not meant for him.
    #[test]
    fn reflections_and_replays_change_nothing(
        seed: u64,
        wish in 0..WISHES.len(),
        (reflect, replay, loss) in (0..500u32, 0..500u32, 0..50u32),
    ) {
        let wish = WISHES[wish];
        let link = Link { reflect, replay, loss, damage: damage(wish), ..Link::default() };
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
                prop_assert!(model.is_none_or(Model::is_acked), "{} to {}", from, to);
            }
        }
    }

    /// The same with hosts that come back, to which all their past is told again: everything ends, and afterwards all talk.
    #[test]
    fn the_past_of_restarted_hosts_changes_nothing(
        seed: u64,
        wish in 0..WISHES.len(),
        (reflect, replay) in (0..300u32, 0..500u32),
    ) {
        let wish = WISHES[wish];
        let link = Link { reflect, replay, damage: damage(wish), ..Link::default() };
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
}
