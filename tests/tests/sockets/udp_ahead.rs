//! Lone long messages over sockets: their payload is sent ahead of its request if the peer had a receive for the
//! previous one. A peer without a receive drops it and requests it later. On any network, every message arrives once,
//! whole, and in order.

use ofi_testkit::net::Random;
use ofi_testkit::prelude::*;
use ofi_tests::udp::{self, Relay, Weather};
use ofi_tests::{Naming, opening};

/// Maximum length in bytes of a message inside a command, and of one that leaves ahead of its request.
const EAGER: usize = 16 << 10;
const MAX_AHEAD_LEN: usize = 256 << 10;
/// One packet, two, and many.
const LENGTHS: [usize; 4] = [EAGER + 1, 65_536, 200_001, MAX_AHEAD_LEN];

/// Two endpoints over sockets, through a relay if `weather` is given.
fn apart(weather: Option<Weather>) -> (Pair, Option<Relay>) {
    let caps = Caps::MSG | Caps::TAGGED;
    udp::apart([(); 2].map(|()| opening(Naming::Udp).hints(|hints| hints.caps(caps)).open()), weather)
}

/// Sends a message of `len` bytes, for which a receive waits if `ready`.
fn pass(pair: &Pair, len: usize, seed: u8, ready: bool) {
    let (from, into) = (Memory::patterned(len, seed), Memory::new(len));
    let receive = || pair.post(|| pair.b.receive(&into).post());
    let send = || pair.a.out(pair.to_b, &from).send();
    if ready {
        receive();
        pair.post(send);
    } else {
        pair.keep(send);
        assert_eq!(pair.b.statistic("rx_unexpected_bytes"), 0, "it holds no payload");
        receive();
    }
    assert_eq!(pair.done(&pair.b).len, len);
    pair.done(&pair.a);
    into.check(len, seed);
}

/// Number of `side`'s messages that were announced first, and that were sent ahead.
fn counted(side: &TestEndpoint) -> [u64; 2] {
    ["udp_announced", "udp_ahead"].map(|name| side.statistic(name))
}

#[test]
fn a_lone_message_leaves_ahead_of_its_request_if_the_last_one_found_a_receive() {
    let (pair, _) = apart(None);
    for (len, seed) in LENGTHS.into_iter().zip(1..) {
        pass(&pair, len, seed, true);
    }
    assert_eq!(counted(&pair.a), [1, 3], "the first shows that a receive waits");
    pass(&pair, MAX_AHEAD_LEN + 1, 9, true);
    assert_eq!(counted(&pair.a), [2, 3], "a longer one is announced");
    pass(&pair, EAGER, 8, true);
    assert_eq!(counted(&pair.a), [2, 3], "a short one is inside its command");
}

#[test]
fn what_finds_no_receive_is_dropped_and_requested_and_the_next_one_waits() {
    let (pair, _) = apart(None);
    let expected = [(true, [1, 0]), (false, [1, 1]), (false, [2, 1]), (true, [3, 1]), (true, [3, 2])];
    for ((ready, counts), len) in expected.into_iter().zip(LENGTHS.into_iter().cycle()) {
        pass(&pair, len, counts[0] as u8, ready);
        assert_eq!(counted(&pair.a), counts, "{}", pair.a.report());
    }
}

#[test]
fn several_at_once_are_announced() {
    let (pair, _) = apart(None);
    pass(&pair, 65_536, 1, true);
    let (from, into) = (Memory::patterned(65_536, 2), [const { 0u8 }; 8].map(|_| Memory::new(65_536)));
    into.iter().for_each(|into| pair.post(|| pair.b.receive(into).post()));
    let before = counted(&pair.a);
    into.iter().for_each(|_| pair.a.out(pair.to_b, &from).send().unwrap());
    into.iter().for_each(|into| {
        pair.done(&pair.b);
        into.check(65_536, 2);
    });
    into.iter().for_each(|_| _ = pair.done(&pair.a));
    let after = counted(&pair.a);
    assert_eq!([after[0] - before[0], after[1] - before[1]], [7, 1], "the first is alone");
}

#[test]
fn a_receive_that_is_too_short_gets_the_beginning() {
    let (pair, _) = apart(None);
    pass(&pair, 65_536, 1, true);
    for len in [0, 1, 5_000, 65_000, 199_999] {
        let (from, into) = (Memory::patterned(200_000, 5), Memory::patterned(len + 4_096, 7));
        pair.post(|| pair.b.receive(into.slice(..len)).post());
        pair.post(|| pair.a.out(pair.to_b, &from).send());
        let failed = pair.failed(&pair.b);
        assert_eq!((failed.err, failed.olen), (Errno::ETRUNC, 200_000 - len));
        pair.done(&pair.a);
        assert!(into.bytes()[..len] == from.bytes()[..len], "{len}");
        let old = Memory::patterned(len + 4_096, 7).bytes();
        assert!(into.bytes()[len..] == old[len..], "{len}: behind the receive");
    }
    assert_eq!(counted(&pair.a)[0], 1, "{}", pair.a.report());
}

/// Receives one message, and then stops reading the queue. Skips completions of sends before it.
fn receive(side: &TestEndpoint) {
    // With room for one entry, the completion of a send would delay the message until the next read.
    let mut entries = [CqTaggedEntry::EMPTY; 4];
    wait::until("a message", || match side.rx.read(&mut CqBuffer::new(&mut entries)) {
        Ok(count) => entries[..count].iter().any(|entry| entry.flags.contains(CompletionFlags::RECV)),
        Err(_) => false,
    });
}

/// Messages of one packet, so that no acknowledgement is due before the whole message is there.
#[test]
fn an_answer_takes_the_acknowledgement_along() {
    const LEN: usize = EAGER + 1;
    let (pair, _) = apart(None);
    let back = Pair { a: pair.b, b: pair.a, to_b: pair.to_a, to_a: pair.to_b };
    (0..8).for_each(|seed| pass(&back, MAX_AHEAD_LEN, seed, true));
    let pair = Pair { a: back.b, b: back.a, to_b: back.to_a, to_a: back.to_b };
    (0..8).for_each(|seed| pass(&pair, MAX_AHEAD_LEN, seed, true));
    let (from, into) = (Memory::patterned(LEN, 1), [Memory::new(LEN), Memory::new(LEN)]);
    let send = |from_side: &TestEndpoint, to: FiAddr| from_side.out(to, &from).send().unwrap();
    pair.quiet(std::time::Duration::from_millis(20));
    let counts = || {
        let sum = |name| pair.a.statistic(name) + pair.b.statistic(name);
        [sum("udp_tx_datagrams"), sum("udp_ahead")]
    };
    let before = counts();
    for _ in 0..50 {
        pair.b.receive(&into[1]).post().unwrap();
        pair.a.receive(&into[0]).post().unwrap();
        send(&pair.a, pair.to_b);
        receive(&pair.b);
        send(&pair.b, pair.to_a);
        receive(&pair.a);
    }
    let [sent, ahead] = counts();
    assert_eq!(ahead - before[1], 100, "{}", pair.a.report());
    assert!(sent - before[0] <= 120, "a datagram for a message, and few others: {}", sent - before[0]);
    into.iter().for_each(|into| into.check(LEN, 1));
}

#[test]
fn the_sender_hears_of_the_arrival_if_the_receiver_never_polls_again() {
    let (pair, _) = apart(None);
    pass(&pair, 65_536, 1, true);
    let (from, into) = (Memory::patterned(65_536, 2), Memory::new(65_536));
    pair.b.receive(&into).post().unwrap();
    pair.a.out(pair.to_b, &from).send().unwrap();
    receive(&pair.b);
    wait::drive(&[&pair.a], "the end of the message", || pair.a.next()).done();
    into.check(65_536, 2);
}

/// Both ends send at random, with or without posted receives, over a path that loses, repeats and reorders packets.
/// Tags identify the messages; each arrives once, and those of one tag in order.
fn converse(weather: Weather, seed: u64) {
    const COUNT: usize = 60;
    let (pair, relay) = apart(Some(weather));
    let mut random = Random(seed);
    for round in 0..COUNT {
        let len = LENGTHS[random.below(4) as usize] - random.below(3) as usize * 1_000;
        let ready = random.chance(700);
        let forth = random.chance(500);
        let (from, to, at) =
            if forth { (&pair.a, pair.to_b, &pair.b) } else { (&pair.b, pair.to_a, &pair.a) };
        // A short message follows, and must not overtake it.
        let (long, short) = (Memory::patterned(len, round as u8), Memory::patterned(9, round as u8));
        let into = [Memory::new(MAX_AHEAD_LEN), Memory::new(MAX_AHEAD_LEN)];
        let receive = || into.iter().for_each(|into| pair.post(|| at.receive(into).context(7).post()));
        if ready {
            receive();
        }
        let confirms = random.chance(300);
        pair.post(|| {
            let out = from.out(to, &long);
            if confirms {
                out.msg(OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE).send()
            } else {
                out.send()
            }
        });
        pair.post(|| from.out(to, &short).send());
        if !ready {
            wait::drive_through(std::time::Duration::from_millis(random.below(4)), &[&pair.a, &pair.b]);
            receive();
        }
        let lengths = [(); 2].map(|()| pair.drive("a message", || at.next_of(7)).done().len);
        assert_eq!(lengths.iter().sum::<usize>(), len + 9);
        into[0].check(len, round as u8);
        into[1].check(9, round as u8);
        (0..2).for_each(|_| _ = pair.done(from));
    }
    let ahead = counted(&pair.a)[1] + counted(&pair.b)[1];
    assert!(ahead > 5, "too few left ahead: {ahead}; {}", pair.a.report());
    assert!(weather.loss == 0 || relay.is_some_and(|relay| relay.lost() > 0), "the relay lost no packets");
}

#[test]
fn everything_arrives_once_and_in_order_whatever_the_network_does() {
    let bad = Weather { loss: 30, duplicate: 30, reorder: 30, longest: 9_000, forge: 100 };
    let long = Weather { loss: 60, duplicate: 60, reorder: 60, longest: 65_536, forge: 100 };
    let short = Weather { loss: 10, duplicate: 20, reorder: 50, longest: 1_472, forge: 0 };
    for (weather, seed) in
        [(Weather { longest: 65_536, ..Weather::default() }, 1), (bad, 2), (long, 3), (short, 4)]
    {
        converse(weather, seed);
    }
}
