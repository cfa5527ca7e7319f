//! Six small cases in which C libfabric 2.6 fails on some provider: the source of a message, the length of a truncated
//! one, a first send that only its sender drives, wildcards beside directed receives (tagged and untagged), and a dead
//! peer.

use crate::prelude::*;

pub fn six_the_source_is_the_number_of_the_sender(kit: &dyn Kit) {
    let (a, b) = (kit.side(), kit.side());
    let nobody = kit.side();
    // Number 0 is another peer, so that a default of 0 is wrong.
    assert_eq!(b.insert(&nobody), FiAddr(0));
    assert_eq!(b.insert(&a), FiAddr(1));
    let to_b = a.insert(&b);
    b.receive(()).context(2).post().unwrap();
    wait::drive(&[&a, &b], "room", || a.out(to_b, ()).inject().send().ok());
    match wait::drive(&[&a, &b], "the message", || b.next()) {
        Event::Done(_, source) => assert_eq!(source, FiAddr(1)),
        Event::Failed(error) => panic!("{error:?}"),
    }
}

pub fn six_a_truncated_message_has_len_16_and_olen_84(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(100, 5), Memory::new(16));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    let error = pair.failed(&pair.b);
    assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, 16, 84));
    into.check(16, 5);
    pair.done(&pair.a);
}

pub fn six_a_first_send_needs_no_call_of_an_automatic_peer(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Auto)));
    let from = Memory::patterned(100, 5);
    wait::drive_for(Duration::from_secs(2), &[&pair.a], "a first send, with only its sender calling", || {
        pair.a.out(pair.to_b, &from).context(1).send().ok()
    });
    wait::drive_for(Duration::from_secs(2), &[&pair.a], "its completion", || pair.a.next()).done();
    let into = Memory::new(100);
    pair.b.receive(&into).post().unwrap();
    assert_eq!(pair.done(&pair.b).len, 100);
    into.check(100, 5);
}

fn wildcard_first(kit: &dyn Kit, tagged: bool) {
    let pair = kit.pair();
    let post = |context: usize, directed: bool| {
        let receive = pair.b.receive(()).context(context);
        let receive = if directed { receive.from(pair.to_a) } else { receive };
        if tagged { receive.tag(5) } else { receive }.post().unwrap();
    };
    post(1, false);
    post(2, true);
    for wanted in [1, 2] {
        let out = pair.a.out(pair.to_b, ()).inject();
        let out = if tagged { out.tag(5) } else { out };
        pair.post(|| out.send());
        assert_eq!(pair.done(&pair.b).op_context, Context(wanted));
    }
}

pub fn six_a_wildcard_posted_first_wins_tagged(kit: &dyn Kit) {
    wildcard_first(kit, true);
}

pub fn six_a_wildcard_posted_first_wins_untagged(kit: &dyn Kit) {
    wildcard_first(kit, false);
}

pub fn six_a_closed_peer_is_an_error_within_a_bound(kit: &dyn Kit) {
    let Pair { a, b, to_b, .. } = {
        let pair = kit.pair();
        pair.warm_up();
        pair
    };
    drop(b);
    let from = Memory::patterned(100, 5);
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < Duration::from_secs(6), "no error from a dead peer\n{}", a.report());
        match a.out(to_b, &from).context(1).send() {
            Ok(()) => {}
            Err(error) if error.is_again() => {}
            Err(error) => panic!("an address is not invalid because nobody is there now: {error}"),
        }
        a.poll();
        match a.next() {
            Some(Event::Failed(error)) => break error,
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(error.op_context, Context(1));
    // The endpoint continues to work with others.
    let c = kit.side();
    let to_c = a.insert(&c);
    c.receive(()).context(3).post().unwrap();
    wait::drive(&[&a, &c], "room", || a.out(to_c, ()).inject().send().ok());
    wait::drive(&[&a, &c], "a message to somebody else", || c.next_of(3)).done();
}
