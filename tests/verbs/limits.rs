//! Settings that limit the use of device resources, on a real device. Each case is a process with its own environment.

use ofi_testkit::connect::connect;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};

use super::{ConnectedPair, VerbsPair};

const PEERS: usize = 4;

/// An endpoint with several peers, which exchanges two messages with each.
pub fn bounded(line: &mut Line, _: &[String]) {
    let kit: &dyn Kit = &VerbsPair;
    let hub = kit.side();
    let peers: [TestEndpoint; PEERS] = std::array::from_fn(|_| kit.side());
    let to = peers.each_ref().map(|peer| (hub.insert(peer), peer.insert(&hub)));
    let sides: Vec<&TestEndpoint> = std::iter::once(&hub).chain(&peers).collect();
    let exchange = |from: &TestEndpoint, to: FiAddr, into: &TestEndpoint, seed| {
        let (sent, got) = (Memory::patterned(3000, seed), Memory::new(3000));
        into.receive(&got).context(1).tag(5).post().unwrap();
        wait::drive(&sides, "room", || from.out(to, &sent).context(2).tag(5).send().ok());
        wait::drive(&sides, "a message", || into.next_of(1)).done();
        wait::drive(&sides, "its end", || from.next_of(2)).done();
        got.check(3000, seed);
    };
    for round in 0..2 {
        for (at, (peer, &(there, back))) in peers.iter().zip(&to).enumerate() {
            let seed = (10 * round + 2 * at + 1) as u8;
            exchange(&hub, there, peer, seed);
            exchange(peer, back, &hub, seed + 1);
        }
    }
    let counts = || ["verbs_connections", "verbs_retired"].map(|name| hub.statistic(name));
    // The last connection but one may still be closing.
    let all = 2 * PEERS as u64;
    let [connections, retired] = wait::drive(&sides, "connections that are put away", || {
        let [connections, retired] = counts();
        (connections < all || retired + 1 >= all).then_some([connections, retired])
    });
    line.say(format!("{connections} made, {} kept", connections - retired));
}

/// A connected endpoint whose peer receives one message, and then has no receive.
pub fn sized(line: &mut Line, _: &[String]) {
    let kit: &dyn Kit = &ConnectedPair;
    let a = kit.opening().open_disabled().unwrap();
    let (tx, rx) = (&a.info.tx_attr, &a.info.rx_attr);
    let offered = [tx.size, rx.size, tx.iov_limit, rx.iov_limit];
    let b = connect(&a, kit.opening()).unwrap();
    let from = Memory::patterned(3000, 1);
    let into = Memory::new(3000);
    b.receive(vec![into.slice(..7), into.slice(7..1000), into.slice(1000..)]).context(2).post().unwrap();
    a.out(FiAddr::UNSPEC, vec![from.slice(..1), from.slice(1..)]).context(1).send().unwrap();
    wait::drive(&[&a, &b], "a message", || b.next_of(2)).done();
    wait::drive(&[&a, &b], "its end", || a.next_of(1)).done();
    into.check(3000, 1);
    let three = vec![from.slice(..1), from.slice(1..2), from.slice(2..3)];
    let error = a.out(FiAddr::UNSPEC, three).send().unwrap_err().errno();
    let sends = (0..100).take_while(|_| a.out(FiAddr::UNSPEC, &from).context(1).send().is_ok()).count();
    let receives = (0..100).take_while(|_| b.receive(&into).context(2).post().is_ok()).count();
    line.say(format!("{offered:?}, three pieces {error:?}, {sends} sends, {receives} receives"));
}

#[track_caller]
fn says(role: &str, environment: &[(&str, &str)], expected: &str) {
    let mut child = Child::start_with(role, &[], environment);
    child.line.expect(expected);
    child.finish();
}

#[test]
fn connections_beyond_the_bound_are_put_away_and_made_anew() {
    says("bounded", &[("FI_VERBS_MAX_CONNECTIONS", "1")], "8 made, 1 kept");
    says("bounded", &[], "4 made, 4 kept");
}

#[test]
fn a_queue_pair_has_the_sizes_that_are_set() {
    let sizes = [("FI_VERBS_TX_SIZE", "5"), ("FI_VERBS_RX_SIZE", "7")];
    let pieces = [("FI_VERBS_TX_IOV_LIMIT", "2"), ("FI_VERBS_RX_IOV_LIMIT", "3")];
    let all = [&sizes[..], &pieces, &[("FI_VERBS_INLINE_SIZE", "32")]].concat();
    says("sized", &all, "[5, 7, 2, 3], three pieces FI_EINVAL(22), 5 sends, 7 receives");
}
