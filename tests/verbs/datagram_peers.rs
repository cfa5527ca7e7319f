//! A datagram endpoint with too many peers forgets the least recently used one.

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Fates, Forged, Plan, route_header};

use super::{Driven, driven, qp};

/// Maximum number of peers that an endpoint remembers.
const REMEMBERED: u64 = 1 << 14;

fn gid(of: &TestEndpoint) -> [u8; 16] {
    of.name().bytes()[..16].try_into().unwrap()
}

/// The address of a queue pair that may not exist.
fn address(of: &TestEndpoint, qp: u32) -> Address {
    let mut bytes = of.name().bytes().to_vec();
    bytes[16..20].copy_from_slice(&qp.to_ne_bytes());
    Address::new(AddrFormat::IbUd, &bytes)
}

#[test]
fn strangers_are_forgotten_and_peers_that_have_a_number_are_not() {
    let (device, _alone) = driven();
    device.begin(Plan::default());
    let kit: &dyn Kit = &Driven;
    let pair = kit.pair();
    pair.warm_up();
    let into = Memory::new(8);
    let came = |source_qp: u32| {
        pair.b.receive(&into).context(1).post().unwrap();
        let mut bytes = route_header(gid(&pair.a), gid(&pair.b)).to_vec();
        bytes.extend(source_qp.to_ne_bytes());
        let forged = Forged { len: bytes.len(), bytes, source_qp, has_route: true, ..Forged::default() };
        device.forge(qp(&pair.b), forged);
        let Event::Done(entry, source) = wait::drive(&[&pair.b], "the datagram", || pair.b.next_of(1)) else {
            panic!("an error");
        };
        assert_eq!(entry.len, 4);
        source
    };
    let strangers = 1_000_000..1_000_000 + REMEMBERED as u32 + 3000;
    for stranger in strangers.clone() {
        assert_eq!(came(stranger), FiAddr::NOTAVAIL);
    }
    assert_eq!(came(qp(&pair.a)), pair.to_a, "who has a number keeps it, though many came since");
    let count = |name| pair.b.statistic(name);
    assert_eq!(count("verbs_peers_now"), REMEMBERED);
    assert!(count("verbs_forgotten") >= 3000, "{}", count("verbs_forgotten"));
    assert_eq!(count("verbs_nameless"), 0, "there is always one that may be forgotten");
    // A removed peer may be inserted again.
    let number = pair.b.insert_address(&address(&pair.a, strangers.start));
    assert_eq!(came(strangers.start), number);
}

#[test]
fn addresses_that_were_removed_are_forgotten() {
    let (device, _alone) = driven();
    device.begin(Plan::default());
    let kit: &dyn Kit = &Driven;
    let side = kit.side();
    let count = REMEMBERED as u32 + 2000;
    for number in 0..count {
        let to = side.insert_address(&address(&side, 1_000_000 + number));
        wait::drive(&[&side], "room", || side.out(to, ()).context(1).send().ok());
        wait::drive(&[&side], "the send", || side.next_of(1)).done();
        side.av.remove(&[to]).unwrap();
    }
    assert_eq!(side.statistic("verbs_peers_now"), REMEMBERED);
    assert_eq!(side.statistic("verbs_forgotten"), 2000);
    assert_eq!(device.routes(qp(&side)) as u64, REMEMBERED, "the ways to those who were forgotten are gone");
    assert_eq!(device.fates(), Fates { stray: count.into(), ..Fates::default() });
}

#[test]
fn a_device_with_few_address_handles_serves_many_peers() {
    let (device, _alone) = driven();
    device.begin(Plan { routes: 3, ..Plan::default() });
    let kit: &dyn Kit = &Driven;
    let hub = kit.side();
    let peers: Vec<TestEndpoint> = (0..8).map(|_| kit.side()).collect();
    let numbers: Vec<FiAddr> = peers.iter().map(|peer| hub.insert(peer)).collect();
    let all: Vec<&TestEndpoint> = peers.iter().chain([&hub]).collect();
    for round in 0..20u8 {
        let (from, into) = (Memory::patterned(100, round), [0; 8].map(|_| Memory::new(100)));
        for ((peer, into), &to) in peers.iter().zip(&into).zip(&numbers) {
            peer.receive(into).context(1).post().unwrap();
            wait::drive(&all, "room", || hub.out(to, &from).context(2).send().ok());
        }
        for (peer, into) in peers.iter().zip(&into) {
            wait::drive(&all, "a datagram", || peer.next_of(1)).done();
            wait::drive(&all, "its end", || hub.next_of(2)).done();
            into.check(100, round);
        }
    }
    assert_eq!(device.routes(qp(&hub)), 3);
    assert_eq!(device.fates(), Fates { arrived: 160, ..Fates::default() });
}
