//! Log entries about an endpoint's work: the protocol of messages, and exhausted resources.

use ofi_testkit::prelude::*;
use ofi_tests::heard::{count, listen, says};

use super::EfaPair;
use super::native::{DEVICE, alone, on_own_device};
use super::raw_peer::Raw;

fn exchange(pair: &Pair, len: usize) {
    let (from, into) = (Memory::patterned(len, 1), Memory::new(len));
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    pair.done(&pair.b);
    pair.done(&pair.a);
}

#[test]
fn the_protocol_of_messages_is_logged_once_for_each_peer() {
    listen();
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    says(&["efa:ep_ctrl<info> opened a queue pair", "address=fi_addr_efa://", "sends=", "receives=", "mtu="]);
    says(&[
        "efa:ep_ctrl<info> met a peer",
        "peer=fi_addr_efa://",
        "reads_by=the device",
        "own_protocol=true",
    ]);
    says(&["efa:av<debug> attached a peer's device", "peer=fi_addr_efa://", "device_reads=true"]);
    let eager =
        ["efa:ep_data<debug> chose the protocol of messages to a peer", "protocol=eager", "medium_up_to="];
    says(&[&eager[..], &["peer=fi_addr_efa://", "packet=8760"]].concat());
    for _ in 0..3 {
        for len in [64, 20_000, 3 << 20] {
            exchange(&pair, len);
        }
    }
    let to = raw_name(&pair.b);
    let chosen = ["efa:ep_data<debug> chose the protocol of a message", &to];
    assert_eq!(count(&[&chosen[..], &["protocol=medium", "len=20000"]].concat()), 1);
    assert_eq!(count(&[&chosen[..], &["protocol=rendezvous", "device reads", "len=3145728"]].concat()), 1);
    assert_eq!(count(&chosen), 2, "not for each message");
}

fn raw_name(side: &TestEndpoint) -> String {
    format!("peer={}", side.name())
}

#[test]
fn a_peer_without_receives_and_a_full_queue_are_logged_once_for_each_episode() {
    listen();
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let side = kit.opening().hints(on_own_device).open();
    let raw = Raw::deaf(&DEVICE, &side, 1);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(8, 1);
    side.out(to, &word).context(2).send().unwrap();
    let failures = |count| side.statistic("efa_not_ready") > count;
    wait::drive(&[&side], "some attempts", || failures(4).then_some(()));
    let rest = ["efa:ep_data<debug> a peer's device has no receive left (RNR)", "first_pause_us=100"];
    assert_eq!(count(&rest), 1, "for all attempts");
    // Packets to many peers without a poll: their slots are not freed.
    let peers: Vec<FiAddr> = (2..64)
        .map(|number| {
            let address = ofi_efa::wire::RawAddress { qpn: 1000 + number, ..raw.address };
            side.insert_address(&Address::new(side.name().format(), &address.to_bytes()))
        })
        .collect();
    for _ in 0..64 {
        for &peer in &peers {
            let _ = side.out(peer, &word).context(2).send();
        }
    }
    let full = ["efa:ep_data<debug> the endpoint's queue of requests is full (FI_EFA_TX_SIZE)"];
    says(&full);
    says(&[full[0], "room_for_packets=", "address=fi_addr_efa://"]);
    assert!(count(&full) < 4, "{} lines", count(&full));
}
