//! `ofi-rdm` under the simulated network, against a naive model: sent records arrive once and in order, and every
//! operation ends, whatever the network does. The files beside test single sessions, paths and acknowledgements.

use std::time::Duration;

use ofi_rdm::Stream;
use ofi_rdm::congestion::Congestion;
use ofi_rdm::wire::VERSION;
use ofi_testkit::net::{Net, NetworkLink, Random, all_acked, all_arrived};
use proptest::prelude::*;

/// Cases of each property: 300 unless `PROPTEST_CASES` says otherwise; `cargo xtask simulate` runs 10,000.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn links() -> impl Strategy<Value = NetworkLink> {
    (
        prop_oneof![Just(0u32), 0..50u32, 0..150u32],
        1..4u32, // loses up to a third; with half, forty attempts to begin a session would sometimes not be enough
        prop_oneof![Just(0u32), 0..200u32],
        prop_oneof![Just(0u32), 0..300u32],
        prop_oneof![3 => Just(0u32), 1 => 0..100u32],
        1..3000u64,
        0..2000u64,
        prop_oneof![Just(usize::MAX), 1232..9500usize],
        prop_oneof![Just(usize::MAX), 1400..70_000usize],
        prop_oneof![Just(0u64), 1..80u64],
        prop_oneof![Just(None), any::<bool>().prop_map(Some)],
    )
        .prop_map(
            |(
                loss,
                burst,
                duplicate,
                reorder,
                corrupt,
                delay,
                jitter,
                longest,
                refused,
                byte_time,
                reports,
            )| NetworkLink {
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
                reports,
                ..NetworkLink::default()
            },
        )
}

fn congestion() -> impl Strategy<Value = Congestion> {
    prop_oneof![Just(Congestion::Reno), Just(Congestion::Fixed)]
}

/// Sends a few records and payloads from one host to another.
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

proptest! {
    #![proptest_config(config())]

    /// Whatever the network does, unless hosts are cut off: everything arrives once, and no session is lost.
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
                prop_assert!(all_arrived(&net, from, to), "{} to {}", from, to);
            }
        }
        let before = net.datagrams;
        net.run(Duration::from_secs(3600));
        prop_assert_eq!(net.datagrams, before, "an idle network is silent");
    }

    /// Hosts die and return under their addresses, sleep, and are cut off. The application of `ofi_testkit::net` checks
    /// that each session's records arrive from the first on, without a gap, once. This test checks that everything
    /// ends.
    #[test]
    fn every_operation_ends_whatever_becomes_of_the_hosts(
        seed: u64,
        link in links(),
        congestion in congestion(),
    ) {
        let mut random = Random(seed);
        let hosts = 3 + random.below(6) as usize;
        let mut net = Net::new(seed, hosts, link, congestion);
        net.stops(random.below(200) as u32);
        for _ in 0..1 + random.below(25) {
            let any = hosts as u64;
            let (one, other) = (random.below(any) as usize, random.below(any) as usize);
            match random.below(14) {
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
                7 if one != other => net.mute.push((one, other)),
                8 => net.mute.clear(),
                _ => send_some(&mut net, &mut random, one, other),
            }
            net.run(Duration::from_micros(random.below(2_000_000)));
        }
        net.cut.clear();
        net.mute.clear();
        net.run(Duration::from_secs(200));
        for from in 0..hosts {
            for to in 0..hosts {
                let ended = net.hosts[from].endpoint.is_none() || all_acked(net.model(from, to));
                prop_assert!(ended, "{} to {}: {:#?}", from, to, net.hosts[from].endpoint);
            }
        }
        // Afterwards all hosts reach each other.
        for host in 0..hosts {
            if net.hosts[host].endpoint.is_none() {
                net.start(host);
            }
        }
        for from in 0..hosts {
            for to in 0..hosts {
                // The first message after a restart may use a session that only the other end remembers.
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

    /// Arbitrary bytes from arbitrary sources: nothing breaks, no peer is introduced, and live sessions continue.
    #[test]
    fn garbage_changes_nothing(
        seed: u64,
        garbage in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1300), 1..40),
    ) {
        let mut random = Random(seed);
        let mut net = Net::new(seed, 3, NetworkLink::default(), Congestion::Reno);
        net.record(0, 1, Stream::Commands, 10);
        net.run(Duration::from_secs(1));
        for (number, mut bytes) in garbage.into_iter().enumerate() {
            if number % 2 == 0 && bytes.len() > 8 {
                // Pass the first checks: the version and a kind.
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
        prop_assert!(all_acked(net.model(0, 1)) && all_arrived(&net, 0, 1));
        prop_assert_eq!(net.hosts[1].endpoint.as_ref().map(ofi_rdm::Endpoint::peers), Some(1));
    }
}
