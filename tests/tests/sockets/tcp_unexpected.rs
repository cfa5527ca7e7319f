//! Messages without receives on provider `tcp`: they stop no reads and writes between ends of this library, and take no
//! more memory than they may, whoever sends them.

use std::io::{ErrorKind, Write};

use ofi_tcp::wire::cm::Extras;
use ofi_tcp::wire::{Order, Packet, charge};
use ofi_testkit::prelude::*;

use crate::tcp_raw::{Raw, message, pair, side};

fn set(variable: &str, value: &str) {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var(variable, value) };
}

#[test]
fn reads_and_writes_pass_however_many_messages_wait_for_receives() {
    const MESSAGES: u64 = 10_000;
    const LONG: usize = 300_000;
    set("FI_TCP_UNEXPECTED_BYTES", "2M");
    let pair = pair();
    let (small, long) = (Memory::patterned(64, 1), Memory::patterned(LONG, 2));
    let mut sent = 0;
    // All of these wait at the receiver, and the following ones, of which only the headers travel, at the sender.
    while sent < MESSAGES {
        pair.post(|| pair.a.out(pair.to_b, &small).data(sent).inject().send());
        sent += 1;
    }
    pair.drive("what waits", || (pair.b.statistic("rx_unexpected_now") >= MESSAGES).then_some(()));
    let announced = pair.a.statistic("announced");
    while pair.a.out(pair.to_b, &small).data(sent).inject().send().is_ok() {
        sent += 1;
        pair.poll();
    }
    let refused = pair.a.out(pair.to_b, &long).data(sent).context(1).send().expect_err("no number is free");
    assert!(refused.is_again() && pair.a.statistic("announced") > announced);
    for len in [8, LONG] {
        let (target, back) = (Memory::new(len), Memory::new(len));
        let access = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let region = pair.b.register(&target, access).expect("a region");
        let from = Memory::patterned(len, 3);
        pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]).expect("a write");
        pair.drive("a write", || pair.a.next_of(2)).done();
        pair.a.out(pair.to_b, &back).context(3).read(&[remote(&region)]).expect("a read");
        pair.drive("a read", || pair.a.next_of(3)).done();
        back.check(len, 3);
    }
    // In the order in which they were sent.
    let into = Memory::new(64);
    for number in 0..sent {
        into.fill(9);
        pair.post(|| pair.b.receive(&into).context(4).post());
        let entry = pair.drive("a message", || pair.b.next_of(4)).done();
        assert_eq!((entry.data, entry.len), (number, 64));
        into.check(64, 1);
    }
    // With receives, messages are sent unasked again.
    let announced = pair.a.statistic("announced");
    for number in 0..2000 {
        pair.post(|| pair.b.receive(&into).context(4).post());
        pair.post(|| pair.a.out(pair.to_b, &small).data(number).inject().send());
        assert_eq!(pair.drive("a message", || pair.b.next_of(4)).done().data, number);
    }
    assert_eq!(pair.a.statistic("announced"), announced);
}

/// The bytes on the wire.
#[test]
fn an_end_without_credit_announces_every_message() {
    const LEN: u64 = 50;
    let side = side();
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 2 * charge(LEN), ..Extras::OURS });
    let (peer, payload) = (side.insert_address(&raw.name()), Memory::patterned(LEN as usize, 1));
    let send = |context| side.out(peer, &payload).context(context).send().expect("a send");
    send(1);
    send(2);
    send(3);
    side.out(peer, ()).tag(8).context(6).send().expect("a send of nothing");
    side.out(peer, &payload).tag(9).context(4).send().expect("a send");
    for context in [1, 2] {
        assert_eq!(raw.hear_packet(&[&side]), message(LEN));
        assert_eq!(raw.hear(&[&side], LEN as usize), payload.bytes());
        wait::drive(&[&side], "a send", || side.next_of(context)).done();
    }
    for (number, tag, len) in [(1, None, LEN), (2, Some(8), 0), (3, Some(9), LEN)] {
        let announcement = Packet::Rts { number, tag, data: None, confirm: false, len };
        assert_eq!(raw.hear_packet(&[&side]), announcement);
    }
    raw.send(&Packet::Grant { bytes: charge(LEN) }, &[]);
    for (context, number, len) in [(4, 3, LEN), (6, 2, 0), (3, 1, LEN)] {
        raw.send(&Packet::Cts { number }, &[]);
        assert_eq!(raw.hear_packet(&[&side]), Packet::Data { number, len });
        assert_eq!(raw.hear(&[&side], len as usize), payload.bytes()[..len as usize]);
        wait::drive(&[&side], "a send on request", || side.next_of(context)).done();
    }
    send(5);
    assert_eq!(raw.hear_packet(&[&side]), message(LEN));
    assert_eq!(side.statistic("announced"), 3);
}

#[test]
fn a_receiver_grants_what_receives_have_taken() {
    set("FI_TCP_UNEXPECTED_BYTES", "256K");
    let side = side();
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 1, ..Extras::OURS });
    // Of the second size each is kept by the transport, and of the first by the core.
    for (len, count) in [(8 << 10, 25), (40 << 10, 5)] {
        for _ in 0..count {
            raw.send(&message(len as u64), &vec![7; len]);
        }
        let waits = || (side.statistic("rx_unexpected_now") == count).then_some(());
        wait::drive(&[&side], "what waits", waits);
        wait::drive_through(Duration::from_millis(50), &[&side]);
        assert!(raw.listen() && raw.read.is_empty(), "a grant for what waits");
        let into = Memory::new(len);
        for _ in 0..count {
            side.receive(&into).context(1).post().expect("a receive");
        }
        assert_eq!(raw.hear_packet(&[&side]), Packet::Grant { bytes: count * charge(len as u64) });
        for _ in 0..count {
            wait::drive(&[&side], "a message", || side.next_of(1)).done();
        }
    }
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("the sizes of this process");
    4096 * pages.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number")
}

/// A peer that sends for ever, to an endpoint without receives. `counts`: it says that it counts, and does not.
fn is_bounded(len: usize, counts: bool, most: usize) {
    let side = side();
    let window = u64::from(counts);
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window, ..Extras::OURS });
    let packet = raw.bytes(&message(len as u64), &vec![7; len]);
    let before = resident();
    let (mut at, mut last) = (0, Instant::now());
    while last.elapsed() < Duration::from_millis(500) {
        match raw.stream.write(&packet[at..]) {
            Ok(some) => (at, last) = ((at + some) % packet.len(), Instant::now()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                side.poll();
            }
        }
    }
    let held = side.statistic("rx_unexpected_bytes") as usize;
    assert!(held <= 1_310_720, "{held} bytes of short messages");
    let grown = resident().saturating_sub(before);
    assert!(grown < most, "{grown} bytes for messages of {len}");
}

#[test]
fn a_flood_without_receives_takes_bounded_memory() {
    set("FI_UNEXPECTED_BYTES", "1M");
    set("FI_TCP_UNEXPECTED_BYTES", "256K");
    for counts in [false, true] {
        is_bounded(1000, counts, 16 << 20);
        is_bounded(20_000, counts, 160 << 20);
    }
}
