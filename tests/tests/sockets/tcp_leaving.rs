//! Peers of provider `tcp` that leave while something is under way between ends of this library: what they have sent,
//! and what they rely on as sent, arrives. And what an end may ask of a peer.

use ofi_tcp::wire::cm::Extras;
use ofi_tcp::wire::{Order, Packet};
use ofi_testkit::connect::{connect, event_of};
use ofi_testkit::prelude::*;
use ofi_tests::{Naming, opening};

use crate::tcp_raw::{Raw, message, pair, side, side_with};

fn set(variable: &str, value: &str) {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var(variable, value) };
}

/// Messages of 8 bytes: more than one poll takes, fewer than the socket's buffer has room for, and as they count more
/// than three quarters of the window.
const MESSAGES: u64 = 1900;
const WINDOW: &str = "256K";

/// A peer that has announced some tagged messages, has sent [`MESSAGES`] others, and has closed its socket. The
/// endpoint has not polled since.
fn gone(announced: u8) -> TestEndpoint {
    set("FI_TCP_UNEXPECTED_BYTES", WINDOW);
    let side = side();
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 1, ..Extras::OURS });
    for number in 1..=announced {
        let tag = Some(u64::from(number));
        raw.send(&Packet::Rts { number, tag, data: None, confirm: false, len: 8 }, &[]);
    }
    let bytes: Vec<u8> = (0..MESSAGES)
        .flat_map(|number| {
            raw.bytes(&Packet::Message { tag: None, data: Some(number), confirm: false, len: 8 }, &[7; 8])
        })
        .collect();
    raw.say(&bytes);
    drop(raw);
    std::thread::sleep(Duration::from_millis(50)); // its end has arrived
    side
}

/// Receives all of the messages, with many receives posted at any time. Calls `at` before those of this number.
fn receives_all(side: &TestEndpoint, at: u64, then: impl Fn()) {
    const POSTED: u64 = 500;
    let into = Memory::new(8);
    let post = || side.receive(&into).context(1).post().expect("a receive");
    (0..POSTED).for_each(|_| post());
    for number in 0..MESSAGES {
        if number == at {
            then();
        }
        let entry = wait::drive(&[side], "a message", || side.next_of(1)).done();
        assert_eq!(entry.data, number);
        if number + POSTED < MESSAGES {
            post();
        }
    }
}

/// Its host answers whatever is sent to it by a reset, and requests of announced messages cannot be withheld. The
/// announced messages themselves are lost.
#[test]
fn a_failed_request_takes_nothing_from_what_a_closed_peer_has_sent() {
    const ANNOUNCED: u8 = 4;
    let side = gone(ANNOUNCED);
    let into = Memory::new(8);
    receives_all(&side, 1, || {
        for tag in 1..=ANNOUNCED {
            side.receive(&into).tag(tag.into()).context(2).post().expect("a receive");
            std::thread::sleep(Duration::from_millis(5)); // the reset has arrived
        }
    });
    for _ in 0..ANNOUNCED {
        let failed = wait::drive(&[&side], "an error", || side.next_of(2)).failed();
        assert_eq!(failed.err, Errno::ECONNRESET);
    }
}

/// The host of a peer that has closed still sends what it has, until somebody sends it something.
#[test]
fn messages_of_less_than_a_window_arrive_after_a_close_in_the_middle_of_them() {
    const LEN: usize = 8 << 10;
    const COUNT: usize = 300;
    let side = side();
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 1, ..Extras::OURS });
    let packet = raw.bytes(&message(LEN as u64), &[7; LEN]);
    let sender = std::thread::spawn(move || {
        raw.stream.set_nonblocking(false).expect("a socket that blocks");
        (0..COUNT).for_each(|_| raw.say(&packet));
    });
    let into = Memory::new(LEN);
    for _ in 0..COUNT {
        side.receive(&into).context(1).post().expect("a receive");
    }
    for _ in 0..COUNT {
        wait::drive(&[&side], "a message", || side.next_of(1)).done();
    }
    sender.join().expect("a sender");
}

/// The application has no more to do with an injected message, so it may close.
#[test]
fn injected_messages_that_were_announced_arrive_although_their_sender_closes() {
    set("FI_TCP_UNEXPECTED_BYTES", WINDOW);
    set("FI_TCP_LINGER_MS", "20000");
    let Pair { a, b, to_a, to_b } = pair();
    let small = Memory::patterned(64, 1);
    let mut sent = 0;
    let inject = |number: u64| a.out(to_b, &small).data(number).inject().send();
    wait::drive(&[&a, &b], "a connection", || inject(0).ok());
    while b.statistic("rx_unexpected_now") == 0 {
        wait::drive_through(Duration::from_millis(1), &[&a, &b]);
    }
    while inject(sent + 1).is_ok() {
        sent += 1;
    }
    assert!(a.statistic("announced") > 250, "{} were announced", a.statistic("announced"));
    // What the closing end discards comes before what it waits for.
    let long = Memory::patterned(3000, 2);
    for context in [2, 3, 4] {
        b.out(to_a, &long).context(context).send().expect("a send");
    }
    let closes = std::thread::spawn(move || {
        let start = Instant::now();
        drop(a);
        start.elapsed()
    });
    let into = Memory::new(64);
    for number in 0..=sent {
        into.fill(9);
        b.receive(&into).context(1).post().expect("a receive");
        let entry = wait::drive(&[&b], "a message", || b.next_of(1)).done();
        assert_eq!((entry.data, entry.len), (number, 64));
        into.check(64, 1);
    }
    let took = closes.join().expect("the end");
    assert!(took < Duration::from_secs(10), "closing took {took:?} although everything was received");
}

/// What this end asks for has a limit, however long its queue is: answers for which nobody has room stop both ends.
#[test]
fn an_end_asks_for_no_more_than_a_peer_can_answer() {
    let side = side_with(|hints| hints.tx_size(1 << 16));
    let (into, there) = (Memory::new(8), [ofi::raw::RemotePiece { addr: 0x10, len: 8, key: 0x20 }]);
    for (fetches, most) in [(false, 1 << 15), (true, 1024)] {
        let mut raw = Raw::meet_as_ours(&side);
        let peer = side.insert_address(&raw.name());
        let post = || match fetches {
            false => side.out(peer, &into).context(1).read(&there),
            true => side.out(peer, &into).context(1).fetch(FiOp::Sum, Datatype::Uint64, &into, &there),
        };
        let (mut count, mut last) = (0, Instant::now());
        while last.elapsed() < Duration::from_millis(200) {
            match post() {
                Ok(()) => (count, last) = (count + 1, Instant::now()),
                Err(error) => {
                    assert!(error.is_again() && raw.listen(), "{error}");
                    raw.read.clear();
                    side.poll();
                }
            }
        }
        assert_eq!(count, most, "fetches: {fetches}");
    }
}

/// Connected endpoints, of which the first one's messages without receives have a window.
fn connected_pair() -> Pair {
    let opening = || opening(Naming::Tcp).hints(|hints| hints.ep_type(EpType::Msg).caps(Caps::MSG));
    let a = opening().open_disabled().expect("an endpoint");
    a.ep.enable().expect("enabling");
    let b = connect(&a, opening()).expect("a connection");
    Pair { a, b, to_b: FiAddr::UNSPEC, to_a: FiAddr::UNSPEC }
}

/// Injects messages of these bytes until no more is taken. Returns how many.
fn inject_all(a: &TestEndpoint, from: &Memory) -> u64 {
    let mut sent = 0;
    while a.out(FiAddr::UNSPEC, from).data(sent).inject().send().is_ok() {
        sent += 1;
    }
    sent
}

/// Receives as many messages, after `b` was told of the end of its connection.
fn receives_after_the_end(b: &TestEndpoint, sent: u64, len: usize) {
    let into = Memory::new(len);
    for number in 0..sent {
        into.fill(9);
        b.receive(&into).context(1).post().expect("a receive of what came before");
        let entry = wait::drive(&[b], "a message", || b.next_of(1)).done();
        assert_eq!((entry.data, entry.len), (number, len));
        into.check(len, 1);
    }
    assert_eq!(b.receive(&into).post().expect_err("no more").errno(), Errno::ESHUTDOWN);
}

/// Their receives come only after the end, of which the peer is told at once.
#[test]
fn injected_messages_that_were_announced_arrive_although_their_sender_shuts_down() {
    const LEN: usize = 3000;
    set("FI_TCP_UNEXPECTED_BYTES", WINDOW);
    let Pair { a, b, .. } = connected_pair();
    let sent = inject_all(&a, &Memory::patterned(LEN, 1));
    assert!(a.statistic("announced") > 250, "{} were announced", a.statistic("announced"));
    a.ep.shutdown().expect("shutting down");
    assert_eq!(a.statistic("tx_failed"), 0, "all of them were sent");
    event_of(&b, EventKind::Shutdown, &[&b]);
    receives_after_the_end(&b, sent, LEN);
}

/// They have completed, although the kernel has no room for them yet.
#[test]
fn injected_messages_arrive_although_their_sender_shuts_down_before_the_kernel_takes_them() {
    const LEN: usize = 4096;
    set("FI_TCP_UNEXPECTED_BYTES", "64M");
    let Pair { a, b, .. } = connected_pair();
    let sent = inject_all(&a, &Memory::patterned(LEN, 1));
    assert!(a.statistic("send_full") > 0 && a.statistic("announced") == 0, "{}", a.report());
    a.ep.shutdown().expect("shutting down");
    event_of(&b, EventKind::Shutdown, &[&b]);
    receives_after_the_end(&b, sent, LEN);
}

/// So they do if the endpoint is closed: it does not wait for receives.
#[test]
fn a_closing_end_does_not_wait_for_receives_of_announced_messages() {
    set("FI_TCP_UNEXPECTED_BYTES", WINDOW);
    set("FI_TCP_LINGER_MS", "20000");
    let Pair { a, b, .. } = connected_pair();
    let sent = inject_all(&a, &Memory::patterned(64, 1));
    assert!(a.statistic("announced") > 250, "{} were announced", a.statistic("announced"));
    let closes = std::thread::spawn(move || {
        let start = Instant::now();
        drop(a);
        start.elapsed()
    });
    event_of(&b, EventKind::Shutdown, &[&b]);
    let took = closes.join().expect("the end");
    assert!(took < Duration::from_secs(10), "closing took {took:?}");
    receives_after_the_end(&b, sent, 64);
}

/// The application has its memory back, so the payload that is leaving stops, and the peer waits for its rest.
#[test]
fn nothing_follows_a_payload_that_a_closing_end_has_not_sent_whole() {
    const LEN: usize = 32 << 20;
    set("FI_TCP_LINGER_MS", "20000");
    for unasked in [false, true] {
        let side = side();
        let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 1, unasked, ..Extras::OURS });
        let peer = side.insert_address(&raw.name());
        // Injected messages that wait until the peer asks for them.
        let small = Memory::patterned(64, 1);
        for number in [1, 2] {
            side.out(peer, &small).data(number).inject().send().expect("a message");
        }
        for _ in 0..2 {
            assert!(matches!(raw.hear_packet(&[&side]), Packet::Rts { .. }), "unasked: {unasked}");
        }
        let long = Memory::patterned(LEN, 2);
        let bytes = long.bytes();
        let there = [ofi::raw::RemotePiece { addr: 0x10, len: LEN, key: 0x20 }];
        side.out(peer, &long).context(1).write(&there).expect("a write");
        assert!(matches!(raw.hear_packet(&[&side]), Packet::Write { .. }));
        raw.send(&Packet::Cts { number: 1 }, &[]);
        let closes = std::thread::spawn(move || drop(side));
        wait::drive(&[], "the end", || {
            let goes_on = raw.listen();
            (!goes_on).then_some(())
        });
        assert!(raw.read.len() < LEN, "the payload was sent whole");
        let differs = raw.read.iter().zip(&bytes).position(|(got, sent)| got != sent);
        assert_eq!(differs, None, "unasked: {unasked}, {} bytes", raw.read.len());
        closes.join().expect("the end");
    }
}

/// Only one who is told what it takes, and only once for each number.
#[test]
fn unasked_messages_are_taken_once() {
    let side = side();
    let broken = side.statistic("broken");
    let ours = Extras { window: 1, ..Extras::OURS };
    let announce = Packet::Rts { number: 1, tag: None, data: None, confirm: false, len: 8 };
    let data = Packet::Data { number: 1, len: 8 };
    // Twice under one number.
    let mut raw = Raw::meet_by(&side, Order::Own, ours);
    for _ in 0..2 {
        raw.send(&announce, &[]);
        raw.send(&data, &[7; 8]);
    }
    wait::drive(&[&side], "the end", || (side.statistic("broken") > broken).then_some(()));
    // The first one is there.
    let into = Memory::new(8);
    side.receive(&into).context(1).post().expect("a receive");
    wait::drive(&[&side], "the message", || side.next_of(1)).done();
    // Of another length than was announced.
    let mut raw = Raw::meet_by(&side, Order::Own, ours);
    raw.send(&announce, &[]);
    raw.send(&Packet::Data { number: 1, len: 9 }, &[7; 9]);
    wait::drive(&[&side], "the end", || (side.statistic("broken") > broken + 1).then_some(()));
    // Not of a peer that counts nothing.
    let mut raw = Raw::meet(&side);
    raw.send(&Packet::Rts { number: 1, tag: Some(1), data: None, confirm: false, len: 8 }, &[]);
    raw.send(&data, &[7; 8]);
    wait::drive(&[&side], "the end", || (side.statistic("broken") > broken + 2).then_some(()));
}

/// The peer may end anywhere: what has arrived as a whole stays.
#[test]
fn an_unasked_message_that_does_not_arrive_as_a_whole_is_an_error_of_its_receive() {
    let side = side();
    let mut raw = Raw::meet_by(&side, Order::Own, Extras { window: 1, ..Extras::OURS });
    for number in 1..=2 {
        raw.send(&Packet::Rts { number, tag: None, data: Some(number.into()), confirm: false, len: 8 }, &[]);
    }
    raw.send(&Packet::Data { number: 1, len: 8 }, &[7; 8]);
    raw.send(&Packet::Data { number: 2, len: 8 }, &[7; 4]);
    drop(raw);
    wait::drive(&[&side], "the end", || (side.statistic("connections_lost") > 0).then_some(()));
    let into = Memory::new(8);
    for context in [1, 2] {
        side.receive(&into).context(context).post().expect("a receive");
    }
    let entry = wait::drive(&[&side], "the message", || side.next_of(1)).done();
    assert_eq!(entry.data, 1);
    let error = wait::drive(&[&side], "the end of half a message", || side.next_of(2)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
}
