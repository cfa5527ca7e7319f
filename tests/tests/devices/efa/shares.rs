//! A peer's share of what an endpoint's device takes at a time: packets in flight, and other requests.

use ofi_testkit::prelude::*;

use super::EfaPair;
use super::losses::qpn;
use super::native::{DEVICE, alone, on_own_device};

const LEN: usize = 60_000;

/// Posts until a refusal, at most as often as the endpoint permits. Returns the number of accepted operations.
fn fill(pair: &Pair, post: impl Fn() -> Result<()>) -> usize {
    let half = pair.a.info.tx_attr.size / 2;
    (0..half).take_while(|_| post().is_ok()).count()
}

/// Regression test: the requests to a device that does not answer took the whole queue of the endpoint, and its packets
/// took all slots. Nobody else got anything until that peer was given up.
#[test]
fn a_mute_device_holds_up_no_other_peer() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let open = || kit.opening().hints(on_own_device).hints(|hints| hints.progress(Progress::Manual)).open();
    let (pair, c) = (Pair::of(open(), open()), open());
    pair.warm_up();
    let to_c = pair.a.insert(&c);
    let (from, into) = (Memory::patterned(LEN, 7), Memory::new(LEN));
    let [at_b, at_c] = [&pair.b, &c].map(|side| {
        let memory = Memory::new(LEN);
        (side.register(&memory, MrAccess::REMOTE_WRITE).unwrap(), memory)
    });
    let to_c_once = || {
        let write = || pair.a.out(to_c, &from).context(1).write(&[remote_at(&at_c.0, 0, LEN)]).ok();
        wait::drive(&[&pair.a, &c], "room for a write", write);
        wait::drive(&[&pair.a, &c], "the write", || pair.a.next_of(1)).done();
        c.receive(&into).context(2).post().unwrap();
        wait::drive(&[&pair.a, &c], "room", || pair.a.out(to_c, &from).context(1).send().ok());
        wait::drive(&[&pair.a, &c], "the message", || c.next_of(2)).done();
        wait::drive(&[&pair.a, &c], "the send", || pair.a.next_of(1)).done();
    };
    to_c_once();
    DEVICE.mute(&[qpn(&pair.b)]);
    let write = || pair.a.out(pair.to_b, &from).context(3).write(&[remote_at(&at_b.0, 0, LEN)]);
    let send = || pair.a.out(pair.to_b, &from).context(3).send();
    let writes = fill(&pair, write);
    to_c_once();
    let sends = fill(&pair, send);
    for _ in 0..10 {
        to_c_once();
        let _ = (write(), send());
    }
    assert_eq!(pair.a.next_of(3).map(|event| event.context()), None, "none of {writes} writes has ended");
    assert!((64..=86).contains(&writes) && sends >= 10, "{writes} writes, {sends} messages");
    DEVICE.mend();
    for _ in 0..writes {
        wait::drive(&[&pair.a, &pair.b], "what was posted", || pair.a.next_of(3)).done();
    }
}

/// Regression test: accesses in progress counted against the peer's share of slots, of which those to long memory hold
/// none. Short ones, which are copied into a slot, were refused.
#[test]
fn long_accesses_take_no_slots() {
    const WRITES: usize = 150;
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let open = || kit.opening().hints(on_own_device).hints(|hints| hints.progress(Progress::Manual)).open();
    let pair = Pair::of(open(), open());
    pair.warm_up();
    let (from, memory) = (Memory::patterned(LEN, 7), Memory::new(LEN));
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    let halves = |len: usize| [remote_at(&region, 0, len / 2), remote_at(&region, len / 2, len / 2)];
    DEVICE.mute(&[qpn(&pair.b)]);
    for nth in 0..WRITES {
        let posted = pair.a.out(pair.to_b, &from).context(3).write(&halves(LEN));
        posted.unwrap_or_else(|error| panic!("write {nth}: {error}"));
    }
    pair.a.out(pair.to_b, from.slice(..32)).inject().write(&halves(32)).expect("a slot is free");
    DEVICE.mend();
    for _ in 0..WRITES {
        wait::drive(&[&pair.a, &pair.b], "what was posted", || pair.a.next_of(3)).done();
    }
}
