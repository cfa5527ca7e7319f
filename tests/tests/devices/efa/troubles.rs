//! Regression tests of defects that the model (`tests/model`) found.

use ofi_efa::wire::RawAddress;
use ofi_testkit::prelude::*;

use super::EfaPair;
use super::native::{DEVICE, alone, on_own_device};

fn pair() -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    pair
}

fn raw(side: &TestEndpoint) -> RawAddress {
    RawAddress::from_bytes(side.name().bytes()).unwrap()
}

#[test]
fn a_peer_that_was_given_up_is_told_so() {
    let _alone = alone();
    let pair = pair();
    let word = Memory::patterned(64, 1);
    DEVICE.lose(1000);
    pair.post(|| pair.a.out(pair.to_b, &word).context(2).send());
    assert_eq!(pair.failed(&pair.a).err, Errno::ECONNRESET);
    DEVICE.lose(0);
    // It would wait for its receipt: the first endpoint has no receive, and accepts nothing from a peer that it has
    // given up.
    pair.post(|| {
        pair.b.out(pair.to_a, &word).context(3).msg(OpFlags::COMPLETION | OpFlags::MATCH_COMPLETE).send()
    });
    assert_eq!(pair.failed(&pair.b).err, Errno::ECONNRESET);
}

#[test]
fn a_receive_ends_when_the_rest_of_its_message_cannot_come() {
    let _alone = alone();
    let pair = pair();
    let (from, into) = (Memory::patterned(900_000, 1), Memory::new(900_000));
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    pair.drive("a part of it", || (pair.b.statistic("efa_numbers_now") > 0).then_some(()));
    DEVICE.stop(raw(&pair.a).qpn);
    assert_eq!(pair.failed(&pair.b).err, Errno::ECONNRESET);
    assert_eq!(pair.failed(&pair.a).err, Errno::ECONNRESET);
}

#[test]
fn an_old_address_takes_no_queue_pair_from_who_has_it() {
    let _alone = alone();
    let pair = pair();
    let word = Memory::patterned(64, 1);
    let old = raw(&pair.b);
    let old = RawAddress { connid: old.connid ^ 1, ..old };
    let old = pair.a.insert_address(&Address::new(pair.b.name().format(), &old.to_bytes()));
    pair.post(|| pair.a.out(old, &word).context(2).send());
    assert_eq!(pair.failed(&pair.a).err, Errno::ECONNREFUSED);
    for _ in 0..3 {
        pair.warm_up();
    }
}
