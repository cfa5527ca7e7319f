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

/// A completion queue that overruns is lost, and the endpoint with it.
#[test]
fn a_burst_to_many_peers_fits_into_the_completion_queue() {
    const EACH: usize = 20;
    let kit: &dyn Kit = &VerbsPair;
    let sender = kit.side();
    let peers: Vec<Side> = (0..50).map(|_| kit.side()).collect();
    let from = Memory::patterned(64, 1);
    let into: Vec<Memory> = peers.iter().map(|_| Memory::new(64)).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| sender.insert(peer)).collect();
    let all: Vec<&Side> = peers.iter().chain([&sender]).collect();
    for (at, &to) in to.iter().enumerate() {
        peers[at].receive(&into[at]).context(1).post().unwrap();
        sender.out(to, &from).context(0).send().unwrap();
        wait::drive(&all, "a connection", || peers[at].next_of(1)).done();
        wait::drive(&all, "a message", || sender.next_of(0)).done();
    }
    // Nothing is taken out of the queue from here on until all is posted, and as much as fits is over.
    for &to in &to {
        (0..EACH).for_each(|_| sender.out(to, &from).context(2).send().unwrap());
    }
    let others: Vec<&Side> = peers.iter().collect();
    wait::drive_through(Duration::from_millis(100), &others);
    for _ in 0..EACH {
        for (peer, into) in peers.iter().zip(&into) {
            peer.receive(into).context(3).post().unwrap();
        }
    }
    for peer in &peers {
        for _ in 0..EACH {
            wait::drive(&all, "a message", || peer.next_of(3)).done();
        }
    }
    for _ in 0..EACH * peers.len() {
        wait::drive(&all, "the end of a send", || sender.next_of(2)).done();
    }
}
