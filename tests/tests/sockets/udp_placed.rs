//! Long payloads over sockets: where the endpoint can predict the packets, the kernel copies the payload directly to
//! its place. On any network every byte is right, and no byte outside the destination changes.

use ofi_testkit::prelude::*;
use ofi_tests::udp::{self, Relay, Weather};
use ofi_tests::{Naming, opening};

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
/// One packet, a few with a remainder, and many.
const LENGTHS: [usize; 4] = [20_000, 300_001, 1 << 20, 5 << 20];
const NEW: u8 = 90;
const OLD: u8 = 7;
/// Number of bytes before and after the payload's destination.
const BESIDE: usize = 4_096;

/// Two endpoints over sockets, through a relay if `weather` is given.
fn apart(weather: Option<Weather>) -> (Pair, Option<Relay>) {
    let caps = Caps::MSG | Caps::TAGGED | Caps::RMA;
    udp::apart([(); 2].map(|()| opening(Naming::Udp).hints(|hints| hints.caps(caps)).open()), weather)
}

/// Memory with a place of `len` bytes in its middle, filled with the old pattern.
fn around(len: usize) -> Memory {
    Memory::patterned(len + 2 * BESIDE, OLD)
}

/// Checks that the place has the payload, and that nothing beside it has changed.
fn check(memory: &Memory, len: usize) {
    memory.slice(BESIDE..BESIDE + len).check(NEW);
    let old = Memory::patterned(len + 2 * BESIDE, OLD);
    for range in [0..BESIDE, BESIDE + len..len + 2 * BESIDE] {
        assert!(memory.bytes()[range.clone()] == old.bytes()[range], "beside the place");
    }
}

fn write(pair: &Pair, len: usize) {
    let (from, into) = (Memory::patterned(len, NEW), around(len));
    let region = pair.b.register(&into, RIGHTS).unwrap();
    let there = [remote_at(&region, BESIDE, len)];
    pair.post(|| pair.a.out(pair.to_b, &from).write(&there));
    pair.done(&pair.a);
    check(&into, len);
}

fn read(pair: &Pair, len: usize) {
    let (from, into) = (Memory::patterned(len, NEW), around(len));
    let region = pair.a.register(&from, RIGHTS).unwrap();
    let place = into.slice(BESIDE..BESIDE + len);
    pair.post(|| pair.b.out(pair.to_a, place.clone()).read(&[remote(&region)]));
    pair.done(&pair.b);
    check(&into, len);
}

fn message(pair: &Pair, len: usize) {
    let (from, into) = (Memory::patterned(len, NEW), around(len));
    let place = into.slice(BESIDE..BESIDE + len);
    pair.post(|| pair.b.receive(place.clone()).post());
    pair.post(|| pair.a.out(pair.to_b, &from).send());
    pair.done(&pair.b);
    pair.done(&pair.a);
    check(&into, len);
}

#[test]
fn what_is_foreseen_needs_no_second_copy() {
    for (name, transfer) in [("write", write as fn(&Pair, usize)), ("message", message), ("read", read)] {
        let (pair, _) = apart(None);
        LENGTHS.iter().for_each(|&len| transfer(&pair, len));
        let placed = pair.b.statistic("udp_placed");
        assert!(placed > 0, "{name}: {}", pair.b.report());
    }
}

/// Many reads and messages at once: their payloads come in the order of the requests, so the first packet of each
/// and the last, which is shorter, are predicted too.
#[test]
fn payloads_that_follow_each_other_are_put_in_place_from_the_first_packet_to_the_last() {
    let len = 1 << 20;
    for is_read in [true, false] {
        let (pair, _) = apart(None);
        let (from, into) = (Memory::patterned(len, NEW), [const { 0u8 }; 8].map(|_| around(len)));
        let region = pair.a.register(&from, RIGHTS).unwrap();
        // The path's longest packet is found during the first.
        (0..4).for_each(|_| message(&pair, 5 << 20));
        let counted = |name| pair.b.statistic(name);
        let before = [counted("udp_placed"), counted("udp_rx_datagrams")];
        for memory in &into {
            let place = memory.slice(BESIDE..BESIDE + len);
            if is_read {
                pair.post(|| pair.b.out(pair.to_a, place.clone()).read(&[remote(&region)]));
            } else {
                pair.post(|| pair.b.receive(place.clone()).post());
            }
        }
        if !is_read {
            (0..into.len()).for_each(|_| pair.post(|| pair.a.out(pair.to_b, &from).send()));
        }
        into.iter().for_each(|_| _ = pair.done(&pair.b));
        into.iter().for_each(|memory| check(memory, len));
        let [placed, came] = ["udp_placed", "udp_rx_datagrams"].map(counted);
        let (placed, came) = (placed - before[0], came - before[1]);
        assert!(placed > came / 2, "{placed} of {came} in place; {}", pair.b.report());
    }
}

#[test]
fn what_was_foreseen_wrongly_harms_nothing() {
    let bad = Weather { loss: 30, duplicate: 30, reorder: 30, longest: 9_000, forge: 200 };
    let forged = Weather { forge: 500, longest: 65_536, ..Weather::default() };
    for weather in [bad, forged] {
        let (pair, relay) = apart(Some(weather));
        for transfer in [write, read, message] {
            LENGTHS[..3].iter().for_each(|&len| transfer(&pair, len));
        }
        for name in ["udp_placed", "udp_placement_undone", "udp_strangers"] {
            assert!(pair.b.statistic(name) > 0, "{name}: {}", pair.b.report());
        }
        assert!(
            weather.loss == 0 || relay.is_some_and(|relay| relay.lost() > 0),
            "the relay lost no packets"
        );
    }
}

/// Both ends send at once, so packets carry acknowledgements behind the predicted frames.
#[test]
fn payloads_of_both_directions_are_right() {
    let (pair, _) = apart(None);
    let len = 3 << 20;
    let memories = || (Memory::patterned(len, NEW), around(len));
    let ((from_a, into_b), (from_b, into_a)) = (memories(), memories());
    let region = |side: &TestEndpoint, memory: &Memory| side.register(memory, RIGHTS).unwrap();
    let (in_b, in_a) = (region(&pair.b, &into_b), region(&pair.a, &into_a));
    for _ in 0..8 {
        pair.post(|| pair.a.out(pair.to_b, &from_a).write(&[remote_at(&in_b, BESIDE, len)]));
        pair.post(|| pair.b.out(pair.to_a, &from_b).write(&[remote_at(&in_a, BESIDE, len)]));
    }
    for _ in 0..8 {
        pair.done(&pair.a);
        pair.done(&pair.b);
    }
    check(&into_b, len);
    check(&into_a, len);
}

#[test]
fn a_place_ends_with_its_piece() {
    let (pair, _) = apart(None);
    let lengths = [100_001, 3, 400_000, 70_000];
    let len: usize = lengths.iter().sum();
    let from = Memory::patterned(len, NEW);
    let into: Vec<Memory> = lengths.iter().map(|&len| around(len)).collect();
    let places: Vec<_> =
        into.iter().zip(lengths).map(|(memory, len)| memory.slice(BESIDE..BESIDE + len)).collect();
    let sent = from.bytes();
    let all_there = |what: &str| {
        let got: Vec<u8> = places.iter().flat_map(|place| place.bytes().to_vec()).collect();
        assert!(got == sent, "{what}");
        for (memory, len) in into.iter().zip(lengths) {
            let old = Memory::patterned(len + 2 * BESIDE, OLD);
            assert!(memory.bytes()[..BESIDE] == old.bytes()[..BESIDE], "{what}: before a place");
            assert!(memory.bytes()[BESIDE + len..] == old.bytes()[BESIDE + len..], "{what}: behind a place");
            memory.fill(OLD);
        }
    };
    pair.post(|| pair.b.receive(places.clone()).post());
    pair.post(|| pair.a.out(pair.to_b, &from).send());
    pair.done(&pair.b);
    pair.done(&pair.a);
    all_there("message");

    let region = pair.a.register(&from, RIGHTS).unwrap();
    pair.post(|| pair.b.out(pair.to_a, places.clone()).read(&[remote(&region)]));
    pair.done(&pair.b);
    all_there("read");

    let regions: Vec<_> = into.iter().map(|memory| pair.b.register(memory, RIGHTS).unwrap()).collect();
    let there: Vec<_> =
        regions.iter().zip(lengths).map(|(region, len)| remote_at(region, BESIDE, len)).collect();
    pair.post(|| pair.a.out(pair.to_b, &from).write(&there));
    pair.done(&pair.a);
    all_there("write");
}
