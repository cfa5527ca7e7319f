//! What one poll of provider `tcp` does for one peer is bounded, however much that peer writes or reads: counted by the
//! accesses that each poll executes.

use std::io::{Read, Write};

use ofi_tcp::wire::Packet;
use ofi_testkit::prelude::*;

use crate::tcp_raw::{Raw, counting, pieces, sleeper};

/// Bytes of each write or read.
const LEN: usize = 64 << 10;
/// How many a peer asks for: 64 MiB.
const COUNT: u64 = 1024;
/// The maximum number in one poll: two shares of a mebibyte, of which the second one may just have begun, and the ends
/// of what came before.
const MAX_PER_POLL: u64 = 2 * 16 + 2;

/// Polls until all accesses are executed. Returns the maximum number in one poll.
fn most(side: &TestEndpoint, mut pause: impl FnMut()) -> u64 {
    let (mut all, mut most) = (0, 0);
    wait::drive(&[], "all accesses", || {
        pause();
        let now = side.counters[0].read(); // after one poll
        (most, all) = (most.max(now - all), now);
        (all >= COUNT).then_some(())
    });
    most
}

#[test]
fn one_poll_takes_a_share_of_what_a_peer_writes() {
    let side = counting(BindFlags::REMOTE_WRITE);
    let memory = Memory::new(LEN);
    let region = side.register(&memory, MrAccess::REMOTE_WRITE).expect("a region");
    let own = remote(&region);
    let raw = Raw::meet_as_ours(&side);
    raw.stream.set_nonblocking(false).expect("a socket that blocks");
    let there = pieces(&[(own.addr, LEN as u64, own.key)]);
    let write = Packet::Write { remote: there, data: None, confirm: true, len: LEN as u64 };
    let packet = raw.bytes(&write, &[7; LEN]);
    let mut stream = raw.stream.try_clone().expect("another descriptor");
    let writer = std::thread::spawn(move || {
        (0..COUNT).for_each(|_| stream.write_all(&packet).expect("room"));
    });
    // The kernel's buffers grow while somebody reads, and then fill during pauses.
    let mut polls = 0;
    let most = most(&side, || {
        polls += 1;
        if polls > 200 {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    writer.join().expect("a writer");
    assert!(most <= MAX_PER_POLL, "{most} writes in one poll");
    assert_eq!(memory.bytes(), [7; LEN]);
}

/// Each answer is short enough to be a copy, which costs its peer nothing.
#[test]
fn one_poll_answers_a_share_of_what_a_peer_reads() {
    let side = counting(BindFlags::REMOTE_READ);
    let memory = Memory::patterned(LEN, 1);
    let region = side.register(&memory, MrAccess::REMOTE_READ).expect("a region");
    let own = remote(&region);
    let mut raw = Raw::meet_as_ours(&side);
    let read = Packet::Read { remote: pieces(&[(own.addr, LEN as u64, own.key)]) };
    let packets: Vec<u8> = (0..COUNT).flat_map(|_| raw.bytes(&read, &[])).collect();
    raw.say(&packets); // 40 KiB, which one call of the endpoint receives
    raw.stream.set_nonblocking(false).expect("a socket that blocks");
    let reader = std::thread::spawn(move || {
        let mut answer = vec![0; 16 + LEN];
        (0..COUNT).for_each(|_| raw.stream.read_exact(&mut answer).expect("an answer"));
    });
    let most = most(&side, || {});
    while !reader.is_finished() {
        side.poll();
    }
    reader.join().expect("a reader");
    assert!(most <= MAX_PER_POLL, "{most} answers in one poll");
}

/// One thread sleeps in a blocking read, and another one posts and never polls. The kernel takes a whole share at once,
/// and nothing else would wake the sleeper.
#[test]
fn no_message_waits_for_a_thread_that_sleeps() {
    // A sleeper looks for silent peers rarely.
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var("FI_TCP_PEER_TIMEOUT_MS", "3600000") };
    let pair = Pair::of(sleeper(), crate::tcp_raw::side());
    let memory = Memory::patterned(64, 1);
    let received = [1, 2, 3].map(|_| Memory::new(64));
    pair.b.receive(&received[0]).context(1).post().expect("a receive");
    pair.post(|| pair.a.out(pair.to_b, &memory).context(1).send());
    pair.all_done(&pair.a, 1, 1);
    pair.all_done(&pair.b, 1, 1);
    std::thread::scope(|scope| {
        let sleeper = &pair.a;
        pair.a.receive(&received[0]).context(9).post().expect("a receive");
        scope.spawn(move || {
            let mut entry = [CqTaggedEntry::EMPTY];
            sleeper
                .rx
                .read_wait(&mut CqBuffer::new(&mut entry), Some(wait::BOUND))
                .expect("the last message");
        });
        std::thread::sleep(Duration::from_millis(100)); // until it is asleep
        for number in [2, 3] {
            pair.b.receive(&received[number - 1]).context(number).post().expect("a receive");
            pair.a.out(pair.to_b, &memory).context(number).send().expect("a send");
        }
        for number in [2, 3] {
            wait::drive(&[&pair.b], "a message", || pair.b.next_of(number)).done();
        }
        pair.b.out(pair.to_a, &memory).context(8).send().expect("a send");
        wait::drive(&[&pair.b], "its end", || pair.b.next_of(8)).done();
    });
}

#[test]
fn a_sleeping_reader_sends_on_what_another_thread_posts() {
    const LEN: usize = 8 << 20;
    const ROUNDS: usize = 20;
    // A sleeper looks for silent peers rarely, and messages leave unasked.
    for (variable, value) in [("FI_TCP_PEER_TIMEOUT_MS", "3600000"), ("FI_TCP_UNEXPECTED_BYTES", "256M")] {
        // SAFETY: as in `ofi_tests::tcp_atomics`.
        unsafe { std::env::set_var(variable, value) };
    }
    let (side, other) = (sleeper(), crate::tcp_raw::side());
    let pair = Pair::of(side, other);
    let (from, into) = (Memory::patterned(LEN, 1), Memory::new(LEN));
    let round = |context| {
        pair.b.receive(&into).context(context).post().expect("a receive");
        pair.a.out(pair.to_b, &from).context(context).send().expect("a send");
    };
    // The kernel's buffers grow.
    for _ in 0..20 {
        round(1);
        pair.all_done(&pair.a, 1, 1);
        pair.all_done(&pair.b, 1, 1);
    }
    std::thread::scope(|scope| {
        let (read, readers) = std::sync::mpsc::channel();
        let sleeper = &pair.a;
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                let mut entry = [CqTaggedEntry::EMPTY];
                let got = sleeper.tx.read_wait(&mut CqBuffer::new(&mut entry), Some(wait::BOUND));
                read.send(got.map(|_| entry[0].op_context.0)).expect("the poster");
            }
        });
        for number in 2..2 + ROUNDS {
            std::thread::sleep(Duration::from_millis(20)); // the reader is asleep
            round(number);
            wait::drive(&[&pair.b], "the message", || pair.b.next_of(number)).done();
            assert_eq!(readers.recv().expect("a reader").expect("a completion"), number);
        }
    });
}
