//! Many connected peers of one endpoint of provider `verbs`, on the simulated device: the memory of an idle connection,
//! and a message each way over each connection while all stand. `OFI_VERBS_PEERS` sets their number. All endpoints are
//! in one process, and each takes five descriptors: a hard limit of 20,000 allows 3,900.

use std::sync::Arc;

use ofi::raw::{AddrFormat, EpType, Hints};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_tests::{limit_descriptors, resident_kib};

ofi_testkit::roles!(hub);

/// Peers in every check.
const PEERS: usize = 200;
/// Resident memory that one end of an idle connection may take, the simulated device's share included.
const MOST_KIB: u64 = 32;

struct Many;

impl Kit for Many {
    fn hints(&self) -> Hints {
        Hints::new()
            .provider("verbs")
            .ep_type(EpType::Rdm)
            .addr_format(AddrFormat::SockaddrIn)
            .domain("many0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint and its peers, which exchange a message each way one after the other, twice.
fn hub(line: &mut Line, arguments: &[String]) {
    let count: usize = arguments[0].parse().expect("a number");
    limit_descriptors(0);
    ofi_verbs::rc::add(Arc::new(Handle(SimulatedDevice::new("many0", Plan::default()))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    let kit: &dyn Kit = &Many;
    let hub = kit.side();
    // A parent that hears nothing for long gives up.
    let heartbeat = |line: &mut Line, at: usize| {
        if at.is_multiple_of(PEERS) {
            line.say(at);
        }
    };
    let mut peers = Vec::new();
    for at in 0..count {
        heartbeat(line, at);
        peers.push(kit.side());
    }
    let to: Vec<_> = peers.iter().map(|peer| (hub.insert(peer), peer.insert(&hub))).collect();
    let (sent, got) = (Memory::patterned(64, 1), Memory::new(64));
    let pass = |what: &str, sides: &[&Side; 2], from: &Side, to: FiAddr, into: &Side| {
        into.receive(&got).context(1).tag(5).post().unwrap();
        wait::drive(sides, what, || from.out(to, &sent).context(2).tag(5).send().ok());
        wait::drive(sides, what, || into.next_of(1)).done();
        wait::drive(sides, what, || from.next_of(2)).done();
        got.check(64, 1);
    };
    let before = resident_kib();
    let mut connected = before;
    for round in ["a message over a new connection", "a message over an idle connection"] {
        for (at, (peer, &(there, back))) in peers.iter().zip(&to).enumerate() {
            heartbeat(line, at);
            let sides = [&hub, peer];
            pass(round, &sides, &hub, there, peer);
            pass(round, &sides, peer, back, &hub);
        }
        connected = connected.max(resident_kib());
    }
    let kept = hub.statistic("verbs_connections") - hub.statistic("verbs_retired");
    line.say(format!("kept {kept} {}", (connected - before) * 1024 / (2 * count as u64)));
    for (at, peer) in peers.into_iter().enumerate() {
        heartbeat(line, at);
        drop(peer);
    }
    drop(hub);
    line.say("closed");
}

#[test]
fn all_peers_stay_connected_and_an_idle_connection_takes_little_memory() {
    let peers =
        std::env::var("OFI_VERBS_PEERS").map_or(PEERS, |text| text.parse().expect("a number of peers"));
    let text = peers.to_string();
    let mut child = Child::start_with("hub", &[&text], &[("FI_VERBS_MAX_CONNECTIONS", &text)]);
    let found = std::iter::from_fn(|| Some(child.line.hear())).find_map(|line| {
        let (kept, bytes) = line.strip_prefix("kept ")?.split_once(' ')?;
        Some((kept.to_string(), bytes.parse::<u64>().expect("a number of bytes")))
    });
    let (kept, bytes) = found.expect("the lines never end");
    assert_eq!(kept, text, "connections that stand");
    println!("{peers} peers: {bytes} bytes for each end of an idle connection");
    assert!(bytes <= MOST_KIB * 1024, "{bytes} bytes");
    while child.line.hear() != "closed" {}
    child.finish();
}
