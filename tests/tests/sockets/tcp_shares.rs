//! What one poll of provider `tcp` does for one peer is bounded, however much that peer writes or reads: counted by the
//! accesses that each poll executes.

use std::io::{Read, Write};

use ofi_tcp::wire::Packet;
use ofi_testkit::prelude::*;

use crate::tcp_raw::{Raw, counting, pieces};

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
