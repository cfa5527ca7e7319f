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

fn raw(side: &Side) -> RawAddress {
    RawAddress::from_bytes(side.name().bytes()).unwrap()
}

#[test]
fn a_peer_is_as_good_as_before_after_a_message_to_it_was_lost() {
    let _alone = alone();
    let pair = pair();
    let word = Memory::patterned(64, 1);
    DEVICE.cut(raw(&pair.a).qpn, raw(&pair.b).qpn, false);
    pair.post(|| pair.a.out(pair.to_b, &word).context(2).send());
    assert_eq!(pair.failed(&pair.a).err, Errno::ECONNRESET);
    pair.post(|| {
        pair.b.out(pair.to_a, &word).context(3).msg(OpFlags::COMPLETION | OpFlags::MATCH_COMPLETE).send()
    });
    let into = Memory::new(64);
    pair.post(|| pair.a.receive(&into).context(4).post());
    pair.done(&pair.a);
    pair.done(&pair.b);
    into.check(64, 1);
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
