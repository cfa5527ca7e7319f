//! Bulk connections of provider `tcp` that fail at each moment, beside messages that wait for the application: what has
//! arrived whole is delivered, what awaits a lost stripe fails in time, and the peer goes on or connects anew.

use std::io::Read;
use std::os::fd::AsRawFd;

use ofi_tcp::wire::Packet;
use ofi_tcp::wire::cm::Extras;
use ofi_testkit::prelude::*;

use crate::tcp_bulk::{LEN, accept, answer, ask, dialled, meet, open_bulk, pair, side, there};
use crate::tcp_raw::{Raw, message};

/// The time within which the kernel tells of the end of a connection of this host, and as much for a busy machine.
const BOUND: Duration = Duration::from_secs(5);
/// The provider closes idle bulk connections after 5 s. What does not wait for that ends within this time.
const PROMPT: Duration = Duration::from_secs(3);
/// A payload of two stripes, and of three.
const TWO: usize = 64 << 10;
const THREE: usize = 128 << 10;
/// The messages of a flood. The endpoint keeps 16, and the others wait in its connection.
const FLOOD: usize = 100;

/// An endpoint that keeps 16 messages.
fn forgetful() {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var("FI_UNEXPECTED_MESSAGES", "16") };
}

/// A short message of one number.
fn say(raw: &mut Raw, at: usize) {
    raw.send(&message(8), &[at as u8; 8]);
}

/// Sends messages, more than the endpoint keeps.
fn flood(side: &TestEndpoint, raw: &mut Raw) {
    (0..FLOOD).for_each(|at| say(raw, at));
    wait::drive(&[side], "what is kept", || (side.statistic("rx_stopped") > 0).then_some(()));
}

/// Receives the messages of these numbers, in their order.
fn receive(side: &TestEndpoint, numbers: std::ops::Range<usize>) {
    let into = Memory::new(8);
    for at in numbers {
        side.receive(&into).context(1).post().expect("a receive");
        wait::drive_for(BOUND, &[side], "a message that has arrived", || side.next_of(1)).done();
        assert_eq!(into.bytes(), [at as u8; 8]);
    }
}

/// A peer with two bulk connections.
fn meet_with_two(side: &TestEndpoint) -> (Raw, Raw, Raw) {
    let (main, number) = meet(side);
    let [(first, _), (second, _)] = [(); 2].map(|()| ask(side, main.port(), number));
    (main, first, second)
}

/// Begins a message of `len` bytes: its packet, and its first stripe.
fn begin(main: &mut Raw, count: u8, len: usize) {
    main.send(&Packet::Striped { count }, &[]);
    main.send(&message(len as u64), &vec![9; first_stripe(count, len)]);
}

fn first_stripe(count: u8, len: usize) -> usize {
    len.div_ceil(usize::from(count)).next_multiple_of(4 << 10)
}

/// The stripe of this index, whole.
fn stripe(raw: &mut Raw, number: u64, index: u8, (count, len): (u8, usize)) {
    let share = first_stripe(count, len);
    let part = share.min(len - share * usize::from(index));
    raw.send(&Packet::Stripe { number, index, len: part as u64 }, &vec![9; part]);
}

/// An idle one is reset while messages wait for receives. The peer goes on over the other one.
#[test]
fn messages_that_wait_outlive_a_bulk_connection() {
    forgetful();
    let side = side();
    let (mut main, first, mut second) = meet_with_two(&side);
    flood(&side, &mut main);
    begin(&mut main, 2, TWO);
    stripe(&mut second, 0, 1, (2, TWO));
    first.reset();
    wait::drive_through(Duration::from_millis(50), &[&side]);
    receive(&side, 0..FLOOD);
    let into = Memory::new(TWO);
    side.receive(&into).context(2).post().expect("a receive");
    wait::drive_for(BOUND, &[&side], "a striped message", || side.next_of(2)).done();
    assert_eq!(into.bytes(), vec![9; TWO]);
    assert_eq!((side.statistic("connections_lost"), side.statistic("broken")), (0, 0));
}

/// One is reset in the middle of a stripe, behind so many messages that wait. They arrive, and the striped one fails.
fn before_a_lost_stripe(count: usize) {
    let side = side();
    let (mut main, mut first, _second) = meet_with_two(&side);
    (0..count).for_each(|at| say(&mut main, at));
    begin(&mut main, 2, TWO);
    first.send(&Packet::Stripe { number: 0, index: 1, len: 32 << 10 }, &[9; 1000]);
    wait::drive_through(Duration::from_millis(50), &[&side]);
    first.reset();
    wait::drive_through(Duration::from_millis(50), &[&side]);
    receive(&side, 0..count);
    let into = Memory::new(TWO);
    side.receive(&into).context(2).post().expect("a receive");
    let error = wait::drive_for(BOUND, &[&side], "the end of half a message", || side.next_of(2));
    assert_eq!(error.failed().err, Errno::ECONNRESET);
    main.is_closed(&[&side]);
    assert_eq!(side.statistic("connections_lost"), 1);
    meet(&side);
}

#[test]
fn messages_before_a_lost_stripe_arrive() {
    before_a_lost_stripe(5);
}

#[test]
fn messages_without_room_before_a_lost_stripe_arrive() {
    forgetful();
    before_a_lost_stripe(FLOOD);
}

/// It has brought its stripe, and the other one still brings its own.
#[test]
fn a_bulk_connection_may_end_behind_its_stripe() {
    for (is_posted, resets) in [(true, true), (true, false), (false, true)] {
        let side = side();
        let (mut main, mut first, mut second) = meet_with_two(&side);
        let into = Memory::new(THREE);
        if is_posted {
            side.receive(&into).context(2).post().expect("a receive");
        }
        begin(&mut main, 3, THREE);
        stripe(&mut first, 0, 1, (3, THREE));
        wait::drive_through(Duration::from_millis(20), &[&side]);
        if resets {
            first.reset()
        } else {
            drop(first)
        }
        wait::drive_through(Duration::from_millis(20), &[&side]);
        stripe(&mut second, 0, 2, (3, THREE));
        if !is_posted {
            side.receive(&into).context(2).post().expect("a receive");
        }
        wait::drive_for(BOUND, &[&side], "a striped message", || side.next_of(2)).done();
        assert_eq!(into.bytes(), vec![9; THREE]);
        say(&mut main, 0);
        receive(&side, 0..1);
        assert_eq!((side.statistic("connections_lost"), side.statistic("broken")), (0, 0));
    }
}

/// Its stripe does not come any more: at once when the message waits for it, or when the message is reached.
#[test]
fn a_stripe_that_was_lost_between_packets_ends_its_message() {
    for (is_posted, is_begun) in [(true, true), (false, true), (true, false)] {
        let side = side();
        let (mut main, mut first, second) = meet_with_two(&side);
        let into = Memory::new(THREE);
        if is_posted {
            side.receive(&into).context(2).post().expect("a receive");
        }
        let is_here = |main: &mut Raw| {
            begin(main, 3, THREE);
            wait::drive_through(Duration::from_millis(20), &[&side]);
        };
        if is_begun {
            is_here(&mut main);
            stripe(&mut first, 0, 1, (3, THREE));
            wait::drive_through(Duration::from_millis(20), &[&side]);
        }
        second.reset();
        wait::drive_through(Duration::from_millis(20), &[&side]);
        if !is_begun {
            is_here(&mut main);
        }
        main.is_closed(&[&side]);
        if is_posted {
            let error = wait::drive_for(BOUND, &[&side], "the end of the message", || side.next_of(2));
            assert_eq!(error.failed().err, Errno::ECONNRESET);
        }
        assert_eq!((side.statistic("connections_lost"), side.statistic("broken")), (1, 0));
        meet(&side);
    }
}

/// A bulk connection that was added behind a striped message brings none of its stripes.
#[test]
fn a_stripe_lost_behind_an_added_bulk_connection_ends_its_message() {
    let side = side();
    let (mut main, number) = meet(&side);
    let (first, _) = ask(&side, main.port(), number);
    let into = Memory::new(TWO);
    side.receive(&into).context(2).post().expect("a receive");
    begin(&mut main, 2, TWO);
    wait::drive_through(Duration::from_millis(20), &[&side]);
    let (_second, _) = ask(&side, main.port(), number);
    first.reset();
    let error = wait::drive_for(PROMPT, &[&side], "the end of the message", || side.next_of(2));
    assert_eq!(error.failed().err, Errno::ECONNRESET);
    main.is_closed(&[&side]);
}

/// The kernel accepts nothing more on the main connection, but the stripes are here.
#[test]
fn a_striped_message_outlives_the_reset_of_its_main_connection() {
    let side = side();
    let (mut main, mut first, _second) = meet_with_two(&side);
    let (short, long) = (Memory::new(8), Memory::new(TWO));
    side.receive(&short).context(1).post().expect("a receive");
    side.receive(&long).context(2).post().expect("a receive");
    // The stripe waits for its packet, and goes on at the poll after the one that fails to send the acknowledgement.
    stripe(&mut first, 0, 1, (2, TWO));
    main.send(&Packet::Message { tag: None, data: None, confirm: true, len: 8 }, &[1; 8]);
    begin(&mut main, 2, TWO);
    main.reset();
    std::thread::sleep(Duration::from_millis(20));
    wait::drive_for(BOUND, &[&side], "a short message", || side.next_of(1)).done();
    wait::drive_for(BOUND, &[&side], "a striped message", || side.next_of(2)).done();
    assert_eq!(long.bytes(), vec![9; TWO]);
    wait::drive_for(BOUND, &[&side], "the end", || (side.statistic("connections_lost") == 1).then_some(()));
}

/// Both connections end before the stripe has come.
#[test]
fn a_striped_message_ends_with_its_connections() {
    let side = side();
    let (mut main, number) = meet(&side);
    let (bulk, _) = ask(&side, main.port(), number);
    let (short, long) = (Memory::new(8), Memory::new(TWO));
    side.receive(&short).context(1).post().expect("a receive");
    side.receive(&long).context(2).post().expect("a receive");
    main.send(&Packet::Message { tag: None, data: None, confirm: true, len: 8 }, &[1; 8]);
    begin(&mut main, 2, TWO);
    main.reset();
    std::thread::sleep(Duration::from_millis(20));
    wait::drive_for(BOUND, &[&side], "a short message", || side.next_of(1)).done();
    wait::drive_through(Duration::from_millis(20), &[&side]);
    drop(bulk);
    let error = wait::drive_for(BOUND, &[&side], "the end of the message", || side.next_of(2)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
}

/// The peer does not read, and resets a connection of a write under way. The write fails, the messages that the peer
/// has sent before arrive, and the next operation connects anew.
fn at_a_sender(sent: usize) {
    let from = Memory::patterned(LEN, 1);
    let (side, to, listener, mut main, mut bulk) = dialled(&from);
    if sent > 0 {
        flood(&side, &mut main);
    }
    let long = Memory::patterned(64 << 20, 2); // more than the kernel takes
    let all = RemotePiece { len: long.len(), ..there() };
    side.out(to, &long).context(3).write(&[all]).expect("a write");
    wait::drive_through(Duration::from_millis(20), &[&side]);
    bulk.remove(0).reset();
    for context in 1..=3 {
        let error = wait::drive_for(BOUND, &[&side], "an error", || side.next_of(context)).failed();
        assert_eq!(error.err, Errno::ECONNRESET);
    }
    receive(&side, 0..sent);
    wait::drive_for(BOUND, &[&side], "the end", || (side.statistic("connections_lost") == 1).then_some(()));
    side.out(to, &from).context(4).write(&[there()]).expect("a write by the next connection");
    let mut main = accept(&side, &listener);
    answer(&side, &mut main, Extras::OURS);
    assert!(matches!(main.hear_packet(&[&side]), Packet::Write { .. }));
    main.hear(&[&side], LEN);
    main.send(&Packet::Ack, &[]);
    wait::drive(&[&side], "a write", || side.next_of(4)).done();
}

#[test]
fn the_sender_of_a_lost_stripe_connects_anew() {
    at_a_sender(0);
}

#[test]
fn the_sender_of_a_lost_stripe_takes_what_has_arrived() {
    forgetful();
    at_a_sender(FLOOD);
}

/// A sender that has lost a stripe, and keeps its connection because messages wait for the application, ends its other
/// bulk connections when their stripes have left: the peer learns that they bring no more.
#[test]
fn the_sender_of_a_lost_stripe_ends_its_other_bulk_connections() {
    forgetful();
    let from = Memory::patterned(LEN, 1);
    let (side, to, _listener, mut main, mut bulk) = dialled(&from);
    flood(&side, &mut main);
    let [lost, other] = &mut bulk[..] else { panic!("two bulk connections") };
    silence(lost); // nothing of its stripe is acknowledged
    side.out(to, &from).context(3).write(&[there()]).expect("a write");
    let Packet::Stripe { len, .. } = other.hear_packet(&[&side]) else { panic!("no stripe") };
    other.hear(&[&side], len as usize);
    wait::drive_through(Duration::from_millis(60), &[&side]); // acknowledgements may be delayed by 40 ms
    bulk.remove(0).reset();
    for context in 1..=3 {
        wait::drive(&[&side], "an error", || side.next_of(context)).failed();
    }
    let mut byte = [0];
    let over = || (matches!(bulk[0].stream.read(&mut byte), Ok(0))).then_some(());
    wait::drive_for(PROMPT, &[&side], "the end of the other one", over);
    assert_eq!(side.statistic("connections_lost"), 0);
    receive(&side, 0..FLOOD);
}

/// Bytes that come last on a main connection that sends no more, fewer than were asked for: with them it ends, although
/// the peer keeps it open.
#[test]
fn a_main_connection_that_has_stopped_ends_with_its_last_bytes() {
    let from = Memory::patterned(LEN, 1);
    let (side, to, _listener, mut main, mut bulk) = dialled(&from);
    let long = Memory::patterned(64 << 20, 2);
    let all = RemotePiece { len: long.len(), ..there() };
    side.out(to, &long).context(3).write(&[all]).expect("a write");
    wait::drive_through(Duration::from_millis(20), &[&side]); // no connection is read unasked any more
    bulk.remove(0).reset();
    say(&mut main, 0);
    wait::drive_for(PROMPT, &[&side], "the end", || (side.statistic("connections_lost") == 1).then_some(()));
    for context in 1..=3 {
        wait::drive(&[&side], "an error", || side.next_of(context)).failed();
    }
    receive(&side, 0..1);
}

/// Drops all packets that arrive for a socket, as a network that has lost its path.
fn silence(raw: &Raw) {
    let mut drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut drop_all };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    let (fd, from) = (raw.stream.as_raw_fd(), std::ptr::from_ref(&program).cast());
    // SAFETY: the structure of this option, whose one instruction is there during the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, from, len) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Keepalive of an endpoint with the shortest bound: a second, and four probes a second apart, with 3 s for a busy
/// machine.
const SILENCE: Duration = Duration::from_secs(8);

/// The path of a bulk connection loses all packets, and nobody says so. The end that awaits a stripe, and the end that
/// sends one, give it up as they do a main connection.
#[test]
fn a_silent_bulk_connection_is_given_up() {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var("FI_TCP_PEER_TIMEOUT_MS", "1000") };
    let from = Memory::patterned(LEN, 1);
    let (sender, to, _listener, _main, bulk) = dialled(&from);
    let receiver = side();
    let (mut main, first, _second) = meet_with_two(&receiver);
    let into = Memory::new(THREE);
    receiver.receive(&into).context(2).post().expect("a receive");
    begin(&mut main, 3, THREE);
    wait::drive_through(Duration::from_millis(20), &[&receiver]);
    bulk.iter().chain([&first]).for_each(silence);
    sender.out(to, &from).context(3).write(&[there()]).expect("a write");
    let both = [&sender, &receiver];
    let sent = wait::drive_for(SILENCE, &both, "the end of the write", || sender.next_of(3)).failed();
    let got = wait::drive_for(SILENCE, &both, "the end of the message", || receiver.next_of(2)).failed();
    assert_eq!((sent.err, got.err), (Errno::ETIMEDOUT, Errno::ETIMEDOUT));
}

/// The TCP sockets of this process that are connected.
fn sockets() -> Vec<libc::c_int> {
    let all = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_connected = |&fd: &libc::c_int| {
        let mut address = std::mem::MaybeUninit::<libc::sockaddr_in>::zeroed();
        let mut len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: fills the address.
        let rc = unsafe { libc::getpeername(fd, address.as_mut_ptr().cast(), &mut len) };
        rc == 0 && len == size_of::<libc::sockaddr_in>() as libc::socklen_t
    };
    numbers.filter(is_connected).collect()
}

/// Between two endpoints, one after another of all connections ends at some moment of a stream of messages. Each ends
/// whole or by an error, in the order of their posting, and afterwards there is a connection again.
#[test]
fn each_connection_of_a_pair_may_end_under_load() {
    for sealed in [false, true] {
        let pair = pair(sealed);
        open_bulk(&pair);
        for round in 0..12_usize {
            let sent: Vec<_> = (0..6).map(|at| Memory::patterned(LEN, at)).collect();
            let into: Vec<_> = (0..6).map(|_| Memory::new(LEN)).collect();
            for (at, memory) in into.iter().enumerate() {
                pair.b.receive(memory).context(50 + at).tag(round as u64).post().expect("a receive");
            }
            for (at, memory) in sent.iter().enumerate() {
                let out = pair.a.out(pair.to_b, memory).context(10 + at).tag(round as u64);
                pair.post(|| out.send());
            }
            wait::drive_through(Duration::from_micros(150 * (round as u64 % 5)), &[&pair.a, &pair.b]);
            if let Some(&socket) = sockets().iter().cycle().nth(round) {
                // SAFETY: the descriptor is open: this thread alone opens and closes any.
                unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
            }
            let (a, b) = (&pair.a, &pair.b);
            for at in 0..6 {
                wait::drive(&[a, b], "the end of a send", || a.next_of(10 + at));
            }
            // An error may come at the sender alone.
            let until = Instant::now() + Duration::from_millis(300);
            let mut has_failed = false;
            for (at, memory) in into.iter().enumerate() {
                let mut event = b.next_of(50 + at);
                while event.is_none() && !has_failed && Instant::now() < until {
                    wait::drive_through(Duration::from_micros(100), &[a, b]);
                    event = b.next_of(50 + at);
                }
                match event {
                    Some(Event::Done(..)) => {
                        assert!(!has_failed, "a message behind one that failed");
                        memory.check(LEN, at as u8);
                    }
                    Some(Event::Failed(error)) => {
                        assert_eq!(error.err, Errno::ECONNRESET);
                        has_failed = true;
                    }
                    None => {
                        has_failed = true;
                        let _gone = b.cancel(50 + at);
                        wait::drive(&[a, b], "the receive", || b.next_of(50 + at));
                    }
                }
            }
        }
        wait::drive_through(Duration::from_millis(50), &[&pair.a, &pair.b]); // what ends has ended
        open_bulk(&pair);
        assert_eq!((pair.a.statistic("broken"), pair.b.statistic("broken")), (0, 0));
    }
}
