//! What gathers over provider `tcp` leaves in time, and a peer that talks alone silences nobody.

use ofi_testkit::prelude::*;

use crate::tcp_raw::{pair, side};

/// Exchanges as many messages, one at a time.
fn talk(a: &TestEndpoint, b: &TestEndpoint, (to_b, to_a): (FiAddr, FiAddr), rounds: usize) {
    let (sent, got) = (Memory::patterned(64, 1), Memory::new(64));
    for _ in 0..rounds {
        for (from, to, at) in [(a, to_b, b), (b, to_a, a)] {
            at.receive(&got).context(1).post().expect("a receive");
            from.out(to, &sent).context(2).send().expect("a send");
            wait::drive(&[from, at], "the send", || from.next_of(2)).done();
            wait::drive(&[from, at], "the message", || at.next_of(1)).done();
        }
    }
}

/// The sender of a stream may stop in the middle of it, and has no reason to poll.
#[test]
fn injected_messages_that_gather_leave_without_a_poll() {
    const COUNT: u64 = 40;
    let Pair { a, b, to_b, to_a } = pair();
    talk(&a, &b, (to_b, to_a), 1);
    let sent = Memory::patterned(64, 1);
    let calls = a.statistic("send_calls");
    for number in 0..COUNT {
        a.out(to_b, &sent).data(number).inject().send().expect("a message");
    }
    assert!(a.statistic("send_calls") - calls < COUNT / 4, "they gather");
    let got = Memory::new(64);
    for number in 0..COUNT {
        b.receive(&got).context(1).post().expect("a receive");
        let entry = wait::drive(&[&b], "a message", || b.next_of(1)).done();
        assert_eq!((entry.data, entry.len), (number, 64));
    }
}

/// Polls read the connection of a peer that talks alone without asking for other events, which must not be missed.
#[test]
fn others_are_heard_while_one_peer_talks() {
    let Pair { a, b, to_b, to_a } = pair();
    talk(&a, &b, (to_b, to_a), 20);
    let c = side();
    let to_c = a.insert(&c);
    let from_c = c.insert(&a);
    talk(&c, &a, (from_c, to_c), 1);
    talk(&a, &b, (to_b, to_a), 20);
    talk(&c, &a, (from_c, to_c), 2);
    // Those that write and do not ask for anything.
    let (sent, got) = (Memory::patterned(64, 3), Memory::new(64));
    a.receive(&got).context(7).post().expect("a receive");
    c.out(from_c, &sent).inject().send().expect("a message");
    wait::drive(&[&a], "the message", || a.next_of(7)).done();
    got.check(64, 3);
}

/// Short and long messages follow each other, so what is read ahead changes all the time.
#[test]
fn messages_of_all_lengths_arrive_whole_after_each_other() {
    let Pair { a, b, to_b, to_a } = pair();
    talk(&a, &b, (to_b, to_a), 1);
    let lengths =
        [0usize, 64, 70_000, 8, 16_384, 16_385, 1 << 20, 1, 1, 1, 1, 9000, 300_000, 200, 15_000, 600_000, 64];
    for (round, chunk) in (0..6u8).zip(lengths.chunks(3).cycle()) {
        let many: Vec<usize> = chunk.iter().chain(&lengths).copied().collect();
        let memory = |len: usize, seed: u8| Memory::patterned(len.max(1), seed);
        let sent: Vec<_> = many.iter().map(|&len| memory(len, round)).collect();
        let got: Vec<_> = many.iter().map(|&len| Memory::new(len.max(1))).collect();
        for (into, from) in got.iter().zip(&sent) {
            b.receive(into).context(1).post().expect("a receive");
            a.out(to_b, from).context(2).send().expect("a send");
        }
        for _ in &many {
            wait::drive(&[&a, &b], "a send", || a.next_of(2)).done();
        }
        for (into, len) in got.iter().zip(&many) {
            wait::drive(&[&a, &b], "a message", || b.next_of(1)).done();
            into.check((*len).max(1), round);
        }
    }
}
