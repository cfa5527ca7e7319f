//! Agents of `multirail` over two rails of sockets, one of which runs through a relay that loses datagrams or
//! stops.

use std::net::SocketAddr;
use std::time::Duration;

use multirail::wire::Metadata;
use multirail::{Agent, Config, Remote, Way};
use ofi::raw::{AddrFormat, Address};
use ofi::{Errno, Hints};
use ofi_tests::udp::{Relay, Weather};

const LEN: usize = 8 << 20;
const LONG: Duration = Duration::from_secs(60);

fn agent(name: &str) -> Agent {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let rail = || Hints::new().provider("udp").src_addr(loopback.into());
    let builder = Agent::builder(name).config(Config { largest_access: 256 << 10, ..Config::default() });
    builder.rail(rail()).rail(rail()).shared_memory(false).progress_thread(true).open().unwrap()
}

fn socket(metadata: &Metadata, rail: usize) -> SocketAddr {
    let rail = &metadata.rails[rail];
    Address::new(AddrFormat::from_c(rail.format).unwrap(), &rail.address).to_socket_addr().unwrap()
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at * 13 + at / 509 + seed) as u8).collect()
}

/// The second rails reach each other through the relay, whose addresses replace theirs in the metadata.
fn meet(alice: &Agent, bob: &Agent, weather: Weather) -> Relay {
    let [mut of_alice, mut of_bob] =
        [alice, bob].map(|agent| Metadata::parse(&agent.metadata().unwrap()).unwrap());
    let relay = Relay::between([socket(&of_alice, 1), socket(&of_bob, 1)], weather);
    for (metadata, side) in [(&mut of_bob, relay.sides[0]), (&mut of_alice, relay.sides[1])] {
        metadata.rails[1].address = Address::from(side).bytes().to_vec();
    }
    alice.load(&of_bob.encode()).unwrap();
    bob.load(&of_alice.encode()).unwrap();
    relay
}

#[test]
fn a_rail_that_loses_and_repeats_datagrams_delivers_all() {
    let (alice, bob) = (agent("alice"), agent("bob"));
    let (source, target) = (alice.register(pattern(1)).unwrap(), bob.register(vec![0_u8; LEN]).unwrap());
    let weather = Weather { loss: 20, duplicate: 20, reorder: 20, longest: 65_536, forge: 0 };
    let relay = meet(&alice, &bob, weather);
    let remote = [Remote { region: target.id(), offset: 0, len: LEN as u64 }];
    for (round, way) in [Way::Write, Way::Read, Way::Write].into_iter().enumerate() {
        source.write_from(0, &pattern(round)).unwrap();
        target.write_from(0, &pattern(round + 7)).unwrap();
        let plan = alice.prepare("bob", way, &[source.slice(..).unwrap()], &remote).unwrap();
        let transfer = plan.post_notify(b"done", LONG).unwrap();
        assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, b"done");
        transfer.wait().unwrap();
        let seed = if way == Way::Write { round } else { round + 7 };
        for region in [&source, &target] {
            let mut bytes = vec![0; LEN];
            region.read_into(0, &mut bytes).unwrap();
            assert!(bytes == pattern(seed));
        }
    }
    assert!(relay.lost() > 0, "the rail through the relay was not used");
}

#[test]
fn when_all_rails_are_cut_transfers_end_with_an_error() {
    let (alice, bob) = (agent("alice"), agent("bob"));
    let (source, target) = (alice.register(pattern(1)).unwrap(), bob.register(vec![0_u8; LEN]).unwrap());
    let relay = meet(&alice, &bob, Weather { longest: 65_536, ..Weather::default() });
    let remote = [Remote { region: target.id(), offset: 0, len: LEN as u64 }];
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &remote).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
    drop(relay);
    drop(target);
    drop(bob);
    let transfer = plan.post(LONG).unwrap();
    let error = transfer.wait().unwrap_err();
    let known =
        [Errno::ETIMEDOUT, Errno::ESHUTDOWN, Errno::ECONNRESET, Errno::ECONNREFUSED, Errno::EHOSTUNREACH];
    assert!(known.contains(&error.errno()), "{error}");
    assert!(transfer.wait_quiet(LONG).unwrap());
}
