//! What the simulated device has found, each by itself.

use ofi_testkit::prelude::*;

use super::VerbsPair;

/// A peer that goes while it is answered has what it sent behind its read taken all the same.
#[test]
fn what_a_reader_sent_before_it_went_is_received() {
    const LEN: usize = 1 << 20;
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let region = pair.b.register(&Memory::patterned(LEN, 1), MrAccess::REMOTE_READ).unwrap();
    let (from, into) = (Memory::patterned(64, 2), Memory::new(64));
    let back = Memory::new(LEN);
    pair.b.receive(&into).context(3).post().unwrap();
    pair.a.out(pair.to_b, &back).context(1).read(&[remote(&region)]).unwrap();
    pair.a.out(pair.to_b, &from).context(2).send().unwrap();
    let before = pair.b.statistic("verbs_received");
    // More parts than the reader has receives for: it does not look.
    wait::drive(&[&pair.b], "both records", || {
        (pair.b.statistic("verbs_received") == before + 2).then_some(())
    });
    assert_eq!(pair.b.pending(), 0, "the message waits behind the read");
    let Pair { a, b, .. } = pair;
    drop(a);
    wait::drive(&[&b], "the message", || b.next_of(3)).done();
    into.check(64, 2);
    wait::drive(&[&b], "the end of the lane", || (b.statistic("verbs_lanes") == 0).then_some(()));
}
