//! Log entries about an endpoint's work: connections, the protocol of messages, and exhausted resources.

use std::net::SocketAddr;

use ofi_testkit::prelude::*;
use ofi_tests::heard::{count, listen, says};

use super::VerbsPair;
use super::raw::{RAW, Raw};

#[test]
fn the_protocol_of_messages_is_logged_once_for_each_peer() {
    listen();
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    says(&["verbs:domain<info> opened a", "simulated0"]);
    says(&["verbs:ep_ctrl<info> a session has begun", "credits=", "inline="]);
    let to = format!("peer={}", pair.b.name().to_socket_addr().unwrap());
    says(&["verbs:ep_data<debug> chose the protocol of short messages", &to, "protocol=eager", "up_to="]);
    let (from, into) = (Memory::patterned(1 << 20, 1), Memory::new(1 << 20));
    for _ in 0..3 {
        for len in [64, 1 << 20] {
            pair.post(|| pair.b.receive(&into).context(1).post());
            pair.post(|| pair.a.out(pair.to_b, from.slice(..len)).context(2).send());
            pair.done(&pair.b);
            pair.done(&pair.a);
        }
    }
    let chosen = ["verbs:ep_data<debug> chose the protocol of a message", &to];
    says(&[&chosen[..], &["protocol=rendezvous", "len=1048576", "why=it is longer than a record"]].concat());
    assert_eq!(count(&chosen), 1, "not for each message");
}

/// A peer that takes no messages returns no credits.
#[test]
fn credits_that_run_out_are_logged_once_for_each_episode() {
    listen();
    let kit: &dyn Kit = &VerbsPair;
    let side = kit.side();
    let raw = Raw::to(&side, 1);
    let to = side.insert_address(&SocketAddr::from(RAW).into());
    let word = Memory::patterned(8, 1);
    raw.make_room(64);
    wait::drive(&[&side], "the session", || (count(&["a session has begun"]) > 0).then_some(()));
    let mut posted = 0;
    while posted < 100 {
        match side.out(to, &word).context(2).send() {
            Ok(()) => posted += 1,
            Err(_) => side.poll(),
        }
    }
    let waits = ["verbs:ep_data<debug> records to a peer wait", "no credits are left", "peer=10.9.0.1:7"];
    says(&waits);
    assert_eq!(count(&waits), 1, "not for each record");
}
