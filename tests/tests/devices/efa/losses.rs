//! Packets that the device reports as failed (`ofi-efa/peer/repeats.rs`, `peer/restart.rs`): an error for what was
//! lost, then recovery; or a final error, until the address is inserted again.

use ofi_efa::srd::Status;
use ofi_efa::wire::{
    Abandoned, Control, Features, Form, Handshake, Message, Origin, Packet, RawAddress, parse,
};
use ofi_testkit::prelude::*;

use super::EfaPair;
use super::direct::direct_pair;
use super::native::{DEVICE, alone, on_own_device};
use super::raw::{RECEIVES, message, side};
use super::raw_peer::{C, Raw};

const CONTEXT: usize = 100;
const RECEIVE: usize = 200;
/// Maximum time until a silent peer is given up.
pub const BOUND: Duration = Duration::from_secs(20);

pub fn qpn(side: &TestEndpoint) -> u16 {
    RawAddress::from_bytes(side.name().bytes()).unwrap().qpn
}

pub fn cold_pair() -> Pair {
    let kit: &dyn Kit = &EfaPair;
    kit.pair_with(|opening| opening.hints(on_own_device))
}

fn pair() -> Pair {
    let pair = cold_pair();
    pair.warm_up();
    pair
}

/// Mends the device when a test ends, however it ends.
pub struct Mended;

impl Drop for Mended {
    fn drop(&mut self) {
        DEVICE.lose(0);
        DEVICE.mend_cuts();
    }
}

/// Every status of a device but success, "receiver not ready", after which a request is repeated anyway, and
/// "flushed", which ends the queue pair.
fn statuses() -> Vec<Status> {
    let named = [
        Status::NoDestination,
        Status::Unresponsive,
        Status::BadAddress,
        Status::UnknownPeer,
        Status::Refused(Errno::ENOMEM),
    ];
    let numbered = [2, 3, 4, 5, 6, 8, 11, 12, 16, 17, 18, 31].map(Status::Failed);
    named.into_iter().chain(numbered).collect()
}

fn post(pair: &Pair, from: &Memory, nth: usize) {
    pair.post(|| pair.a.out(pair.to_b, from).context(CONTEXT + nth).data(nth as u64).send());
}

/// Waits for the end of a message; whether it was sent.
fn ended(pair: &Pair, nth: usize) -> Result<(), Errno> {
    match wait::drive_for(BOUND, &[&pair.a, &pair.b], "the end of a message", || {
        pair.a.next_of(CONTEXT + nth)
    }) {
        Event::Done(..) => Ok(()),
        Event::Failed(error) => {
            assert_ne!(error.err, Errno::EAGAIN, "{error:?}");
            Err(error.err)
        }
    }
}

/// Receives the next message, and returns its number.
fn receive(pair: &Pair, len: usize) -> usize {
    let into = Memory::new(len);
    pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
    let entry = pair.drive("a message", || pair.b.next_of(RECEIVE)).done();
    assert_eq!(entry.len, len);
    into.check(len, entry.data as u8 + 1);
    entry.data as usize
}

/// Checks that both ends have released everything.
pub fn check_rest(pair: &Pair, what: &dyn std::fmt::Debug) {
    let both = [&pair.a, &pair.b];
    wait::drive(&both, "rest", || {
        let names = ["efa_packets_now", "efa_numbers_now", "efa_open_now", "efa_held_now"];
        let open = |side: &&TestEndpoint| names.iter().map(|name| side.statistic(name)).sum::<u64>();
        (both.iter().map(open).sum::<u64>() == 0).then_some(())
    });
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "{what:?}");
}

#[test]
fn of_ten_messages_all_arrive_whatever_the_device_reports_of_the_fifth() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    for status in statuses() {
        for (len, arrives) in [(16, false), (16, true), (4000, false), (4000, true)] {
            let memories: Vec<Memory> = (0..10).map(|nth| Memory::patterned(len, nth + 1)).collect();
            for (nth, memory) in memories.iter().enumerate() {
                if nth == 4 {
                    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), arrives, status);
                }
                post(&pair, memory, nth);
            }
            for nth in 0..10 {
                assert_eq!(ended(&pair, nth), Ok(()), "{status:?}, {len} bytes");
                assert_eq!(receive(&pair, len), nth, "{status:?}, {len} bytes");
            }
            check_rest(&pair, &status);
        }
    }
    assert!(pair.a.statistic("efa_repeated") >= statuses().len() as u64 * 4);
}

#[test]
fn messages_of_every_protocol_arrive_once_and_in_order_while_packets_are_lost() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    for per_mille in [20, 150] {
        DEVICE.lose(per_mille);
        for flags in [OpFlags::COMPLETION, OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE] {
            for len in [0, 64, 8000, 9000, 60_000, 300_000] {
                let from: Vec<Memory> = (0..12).map(|nth| Memory::patterned(len, nth)).collect();
                let into: Vec<Memory> = from.iter().map(|_| Memory::new(len)).collect();
                for (nth, memory) in into.iter().enumerate() {
                    pair.post(|| pair.b.receive(memory).context(RECEIVE + nth).post());
                }
                for (nth, memory) in from.iter().enumerate() {
                    pair.post(|| pair.a.out(pair.to_b, memory).context(CONTEXT + nth).msg(flags).send());
                }
                for (nth, memory) in into.iter().enumerate() {
                    assert_eq!(ended(&pair, nth), Ok(()), "{per_mille} per mille, {len} bytes");
                    let end = pair.drive("a message", || pair.b.next_of(RECEIVE + nth)).done();
                    assert_eq!(end.len, len);
                    memory.check(len, nth as u8);
                }
            }
        }
    }
    DEVICE.lose(0);
    assert!(pair.a.statistic("efa_failed") > 10 && pair.b.statistic("efa_failed") > 10);
    check_rest(&pair, &"all");
}

#[test]
fn a_message_that_its_receiver_reads_arrives_while_packets_and_reads_are_lost() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    DEVICE.lose(100);
    let len = 2 << 20;
    let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
    for _ in 0..20 {
        pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
        post(&pair, &from, 0);
        assert_eq!(ended(&pair, 0), Ok(()));
        pair.drive("a message", || pair.b.next_of(RECEIVE)).done();
        into.check(len, 3);
        into.fill(0);
    }
    DEVICE.lose(0);
    check_rest(&pair, &"all");
}

#[test]
fn injected_messages_arrive_in_order_while_packets_are_lost_and_when_the_sender_closes() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    DEVICE.lose(100);
    let word = Memory::new(4);
    for number in 0..300u32 {
        word.slice(..).put(&number.to_le_bytes());
        pair.post(|| pair.a.out(pair.to_b, &word).inject().send());
    }
    let Pair { a, b, .. } = pair;
    drop(a);
    DEVICE.lose(0);
    for number in 0..300u32 {
        b.receive(&word).context(RECEIVE).post().unwrap();
        wait::drive(&[&b], "a message", || b.next_of(RECEIVE)).done();
        assert_eq!(word.bytes(), number.to_le_bytes());
    }
}

#[test]
fn accesses_that_the_owner_executes_take_place_once_while_packets_are_lost() {
    let (_alone, _mended) = (alone(), Mended);
    let kit: &dyn Kit = &EfaPair;
    // Without keys of the device, the owner's process executes all accesses.
    let pair = kit.pair_with(|opening| {
        opening.hints(|hints| {
            on_own_device(hints).caps(Caps::MSG | Caps::RMA | Caps::ATOMIC).mr_mode(MrMode::empty())
        })
    });
    pair.warm_up();
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let memory = Memory::new(300_000);
    let region = pair.b.register(&memory, rights).unwrap();
    let done = |what: &str| {
        wait::drive_for(BOUND, &[&pair.a, &pair.b], what, || pair.a.next_of(CONTEXT)).done();
    };
    DEVICE.lose(100);
    for len in [8, 4000, 300_000] {
        for turn in 0..10 {
            let (from, back) = (Memory::patterned(len, turn), Memory::new(len));
            let there = [remote_at(&region, 0, len)];
            pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT).data(7).write(&there));
            done("a write");
            // Each write is told once.
            let told = pair.drive("a write's data", || pair.b.next());
            assert_eq!(told.done().len, len);
            pair.post(|| pair.a.out(pair.to_b, &back).context(CONTEXT).read(&there));
            done("a read");
            back.check(len, turn);
        }
    }
    memory.slice(..8).put(&0u64.to_ne_bytes());
    let one = Memory::new(8);
    one.slice(..).put(&1u64.to_ne_bytes());
    let there = [remote_at(&region, 0, 8)];
    for _ in 0..100 {
        pair.post(|| {
            pair.a.out(pair.to_b, &one).context(CONTEXT).atomic(FiOp::Sum, Datatype::Uint64, &there)
        });
        done("an addition");
    }
    DEVICE.lose(0);
    assert_eq!(memory.bytes()[..8], 100u64.to_ne_bytes());
    check_rest(&pair, &"all");
}

#[test]
fn the_first_packet_to_a_peer_may_be_lost() {
    let (_alone, _mended) = (alone(), Mended);
    for arrives in [false, true] {
        let pair = cold_pair();
        let memories: Vec<Memory> = (0..5).map(|nth| Memory::patterned(64, nth + 1)).collect();
        DEVICE.fail(qpn(&pair.a), qpn(&pair.b), arrives, Status::Unresponsive);
        memories.iter().enumerate().for_each(|(nth, memory)| post(&pair, memory, nth));
        for nth in 0..5 {
            assert_eq!(receive(&pair, 64), nth);
            assert_eq!(ended(&pair, nth), Ok(()));
        }
        check_rest(&pair, &arrives);
    }
}

#[test]
fn a_direct_request_fails_alone_whatever_the_device_reports() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = direct_pair(Caps::MSG | Caps::RMA);
    let memory = Memory::new(4096);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    for status in statuses().into_iter().chain([Status::Flushed]) {
        for len in [16, 4000] {
            let from = Memory::patterned(len, 1);
            for nth in 0..10 {
                let into = Memory::new(len);
                pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
                if nth == 4 {
                    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), false, status);
                }
                post(&pair, &from, nth);
                assert_eq!(ended(&pair, nth).is_ok(), nth != 4, "{status:?}, {len} bytes");
                if nth == 4 {
                    pair.b.cancel(RECEIVE).unwrap();
                }
                let end = pair.drive("the end of a receive", || pair.b.next_of(RECEIVE));
                assert_eq!(matches!(end, Event::Done(..)), nth != 4, "{status:?}, {len} bytes");
            }
        }
        for nth in 0..3 {
            if nth == 1 {
                DEVICE.fail(qpn(&pair.a), qpn(&pair.b), false, status);
            }
            let from = Memory::patterned(4096, nth);
            pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT).write(&[remote(&region)]));
            assert_eq!(ended(&pair, 0).is_ok(), nth != 1, "{status:?}");
        }
        memory.check(4096, 2);
    }
    // An injected message was reported as sent, so its loss is an error without a context.
    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), false, Status::Unresponsive);
    pair.post(|| pair.a.out(pair.to_b, &Memory::new(8)).inject().send());
    let error = pair.drive("an error", || pair.a.next()).failed();
    assert_eq!((error.op_context.0, error.err), (0, Errno::ECONNRESET));
    check_rest(&pair, &"all");
}

#[test]
fn an_access_by_the_device_fails_alone_whatever_it_reports() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    let memory = Memory::new(65_536);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    for status in statuses() {
        for len in [64, 65_536] {
            for nth in 0..3 {
                // What the device refuses, the owner executes.
                let is_lost = nth == 1 && status != Status::BadAddress;
                if nth == 1 {
                    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), false, status);
                }
                let from = Memory::patterned(len, nth);
                let there = [remote_at(&region, 0, len)];
                pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT).write(&there));
                assert_eq!(ended(&pair, 0).is_err(), is_lost, "{status:?}");
            }
            memory.slice(..len).check(2);
            let word = Memory::patterned(64, 1);
            post(&pair, &word, 0);
            assert_eq!((receive(&pair, 64), ended(&pair, 0)), (0, Ok(())), "{status:?}");
        }
    }
    check_rest(&pair, &"all");
}

#[test]
fn a_silent_peer_is_given_up_with_an_error_and_is_there_again_when_its_address_is_inserted_again() {
    let (_alone, _mended) = (alone(), Mended);
    for knows in [true, false] {
        let mut pair = pair();
        for round in 0..3 {
            DEVICE.lose(1000);
            let words: Vec<Memory> = (0..5).map(|nth| Memory::patterned(64, nth + 1)).collect();
            words.iter().enumerate().for_each(|(nth, word)| post(&pair, word, nth));
            for nth in 0..5 {
                assert_eq!(ended(&pair, nth), Err(Errno::ECONNRESET), "round {round}");
            }
            // Later operations fail at once, and never get FI_EAGAIN without end.
            post(&pair, &words[0], 0);
            assert_eq!(ended(&pair, 0), Err(Errno::ECONNRESET), "round {round}");
            DEVICE.lose(0);
            // Some of them may have arrived.
            while pair.b.next().is_some() {}
            if knows {
                // The peer learns that it was given up.
                let word = Memory::patterned(64, 9);
                pair.post(|| pair.b.out(pair.to_a, &word).context(5).send());
                let _ = pair.drive("the end of a message", || pair.b.next_of(5));
                wait::drive_through(Duration::from_millis(20), &[&pair.a, &pair.b]);
            }
            pair.a.av.remove(&[pair.to_b]).unwrap();
            pair.to_b = pair.a.insert(&pair.b);
            words.iter().enumerate().for_each(|(nth, word)| post(&pair, word, nth));
            for nth in 0..5 {
                assert_eq!(ended(&pair, nth), Ok(()), "round {round}, {knows}");
            }
            // Those of before may be in front.
            let mut came = Vec::new();
            while came.iter().filter(|&&nth| nth == 4).count() == 0 || came[came.len() - 1] != 4 {
                came.push(receive(&pair, 64));
            }
            assert!(came.ends_with(&[0, 1, 2, 3, 4]), "{came:?}");
            check_rest(&pair, &round);
            // And in the other direction.
            let (word, into) = (Memory::patterned(64, 7), Memory::new(64));
            pair.post(|| pair.a.receive(&into).context(6).post());
            pair.post(|| pair.b.out(pair.to_a, &word).context(5).send());
            pair.drive("the end of a message", || pair.b.next_of(5)).done();
            pair.drive("a message", || pair.a.next_of(6)).done();
            into.check(64, 7);
        }
    }
}

#[test]
fn both_ends_may_give_each_other_up_and_begin_anew_at_the_same_time() {
    let (_alone, _mended) = (alone(), Mended);
    let mut pair = pair();
    for round in 0..5 {
        DEVICE.lose(1000);
        // Messages that are reported as lost may arrive: nothing receives those with this tag.
        let word = Memory::patterned(64, 1);
        pair.post(|| pair.a.out(pair.to_b, &word).context(CONTEXT).tag(1).send());
        pair.post(|| pair.b.out(pair.to_a, &word).context(CONTEXT).tag(1).send());
        for side in [&pair.a, &pair.b] {
            wait::drive_for(BOUND, &[&pair.a, &pair.b], "an error", || side.next_of(CONTEXT)).failed();
        }
        DEVICE.lose(if round % 2 == 0 { 0 } else { 200 });
        pair.a.av.remove(&[pair.to_b]).unwrap();
        pair.b.av.remove(&[pair.to_a]).unwrap();
        (pair.to_b, pair.to_a) = (pair.a.insert(&pair.b), pair.b.insert(&pair.a));
        for turn in 0..20 {
            let words = [Memory::patterned(64, turn), Memory::patterned(64, turn + 100)];
            let into = [Memory::new(64), Memory::new(64)];
            let sides = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
            for (at, (side, to)) in sides.into_iter().enumerate() {
                pair.post(|| side.receive(&into[at]).context(RECEIVE).tag(2).post());
                pair.post(|| side.out(to, &words[at]).context(CONTEXT).tag(2).send());
            }
            for (at, (side, _)) in sides.into_iter().enumerate() {
                pair.drive("the end of a message", || side.next_of(CONTEXT)).done();
                pair.drive("a message", || side.next_of(RECEIVE)).done();
                into[at].check(64, if at == 0 { turn + 100 } else { turn });
            }
        }
        DEVICE.lose(0);
        check_rest(&pair, &round);
    }
}

#[test]
fn a_silent_peer_takes_no_slots_from_others() {
    let (_alone, _mended) = (alone(), Mended);
    let pair = pair();
    let kit: &dyn Kit = &EfaPair;
    let other = kit.opening().hints(on_own_device).open();
    let (to_other, word) = (pair.a.insert(&other), Memory::patterned(4000, 1));
    for _ in 0..2000 {
        DEVICE.fail(qpn(&pair.a), qpn(&other), false, Status::Unresponsive);
    }
    for _ in 0..200 {
        pair.post(|| pair.a.out(to_other, &word).context(5).send());
    }
    for nth in 0..200 {
        post(&pair, &word, nth);
        assert_eq!((receive_any(&pair), ended(&pair, nth)), (4000, Ok(())));
    }
    assert!(pair.a.statistic("efa_packets_now") < 10);
    DEVICE.mend_cuts();
    for _ in 0..200 {
        wait::drive(&[&pair.a, &other], "the end of a message", || pair.a.next_of(5)).done();
    }
}

/// Receives a message, and returns its length.
fn receive_any(pair: &Pair) -> usize {
    let into = Memory::new(4000);
    pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
    pair.drive("a message", || pair.b.next_of(RECEIVE)).done().len
}

/// The features of endpoints of this library.
pub fn own() -> Vec<usize> {
    [C, &[Features::PEER_ERROR, Features::OWN, Features::REPEATS]].concat()
}

/// A peer of C's with these features, met by the endpoint.
pub fn c_peer(side: &TestEndpoint, features: &[usize]) -> (Raw, FiAddr) {
    let mut raw = Raw::to(&DEVICE, side, features, RECEIVES);
    raw.next(side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    (raw, to)
}

/// The id of the next message at a peer.
pub fn id_of(raw: &mut Raw, side: &TestEndpoint) -> u32 {
    let bytes = raw.next(side, "a message", |packet| matches!(packet, Packet::Message(_)));
    let Ok((_, Packet::Message(Message { msg_id, .. }))) = parse(&bytes) else { unreachable!() };
    msg_id
}

#[test]
fn a_lost_message_to_c_is_an_error_and_is_skipped_and_never_repeated() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let (mut raw, to) = c_peer(&side, &[C, &[Features::PEER_ERROR]].concat());
    let word = Memory::patterned(8, 1);
    for (nth, arrives) in [(0u32, false), (1, true)] {
        let first = nth * 4;
        for id in first..first + 4 {
            if id == first + 1 {
                DEVICE.fail(qpn(&side), raw.address.qpn, arrives, Status::Unresponsive);
            }
            wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
            let end = wait::drive(&[&side], "the end of a message", || side.next_of(2));
            assert_eq!(matches!(end, Event::Done(..)), id != first + 1, "{id}: {end:?}");
        }
        let came = if arrives {
            vec![first, first + 1, first + 2, first + 3]
        } else {
            vec![first, first + 2, first + 3]
        };
        let mut ids: Vec<u32> = came.iter().map(|_| id_of(&mut raw, &side)).collect();
        ids.sort_unstable();
        assert_eq!(ids, came);
        let skipped = Abandoned::Skipped(first + 1);
        raw.next(
            &side,
            "a notice",
            |packet| matches!(packet, Packet::Control(Control::PeerError { what, .. }) if *what == skipped),
        );
    }
    // The notice may be lost too.
    for _ in 0..3 {
        DEVICE.fail(qpn(&side), raw.address.qpn, false, Status::Unresponsive);
    }
    wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
    wait::drive(&[&side], "an error", || side.next_of(2)).failed();
    raw.next(&side, "a notice", |packet| {
        matches!(packet, Packet::Control(Control::PeerError { what: Abandoned::Skipped(8), .. }))
    });
    assert_eq!(side.pending(), 0);
}

#[test]
fn a_peer_of_an_older_c_is_given_up_and_is_there_again_when_its_address_is_inserted_again() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let (mut raw, to) = c_peer(&side, C);
    let word = Memory::patterned(8, 1);
    DEVICE.fail(qpn(&side), raw.address.qpn, false, Status::Unresponsive);
    for _ in 0..3 {
        wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
        wait::drive(&[&side], "an error", || side.next_of(2)).failed();
    }
    side.av.remove(&[to]).unwrap();
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    for id in 0..3 {
        wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
        wait::drive(&[&side], "the end of a message", || side.next_of(2)).done();
        assert_eq!(id_of(&mut raw, &side), id);
    }
    raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
    let into = Memory::new(16);
    side.receive(&into).context(1).post().unwrap();
    assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
}

#[test]
fn a_first_message_to_c_that_is_lost_is_an_error_once_its_handshake_has_arrived() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let mut raw = Raw::silent(&DEVICE, &side, RECEIVES);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    DEVICE.fail(qpn(&side), raw.address.qpn, false, Status::Unresponsive);
    let word = Memory::patterned(8, 1);
    wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
    // It is asked again and again until its process answers.
    for _ in 0..2 {
        raw.next(&side, "a question", |packet| matches!(packet, Packet::Write(_)));
    }
    assert_eq!(side.pending(), 0);
    let features = Features::of(&[C, &[Features::PEER_ERROR]].concat());
    raw.send(&Packet::Handshake(Handshake { features, ..Handshake::default() }));
    wait::drive(&[&side], "an error", || side.next_of(2)).failed();
    raw.next(&side, "a notice", |packet| {
        matches!(packet, Packet::Control(Control::PeerError { what: Abandoned::Skipped(0), .. }))
    });
    wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
    wait::drive(&[&side], "the end of a message", || side.next_of(2)).done();
    assert_eq!(id_of(&mut raw, &side), 1);
}

#[test]
fn a_peer_that_broke_the_protocol_begins_anew_when_its_address_is_inserted_again() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, &own(), RECEIVES);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let insert = || side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let (mut to, word) = (insert(), Memory::patterned(8, 1));
    let name = raw.address;
    let insert_again = |to| {
        side.av.remove(&[to]).unwrap();
        side.insert_address(&Address::new(side.name().format(), &name.to_bytes()))
    };
    for round in 1..4 {
        // Parts of one message that name different lengths.
        let (id, malformed) = (u32::from(round > 1), side.statistic("efa_malformed"));
        for len in [8, 9] {
            raw.send(&message(id, 0, Form::Medium { len, offset: 4, payload: b"part" }));
        }
        wait::drive(&[&side], "a violation", || (side.statistic("efa_malformed") > malformed).then_some(()));
        wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
        assert_eq!(wait::drive(&[&side], "an error", || side.next_of(2)).failed().err, Errno::EIO);
        while side.next().is_some() {}
        to = insert_again(to);
        wait::drive(&[&side], "room", || side.out(to, &word).context(3).send().ok());
        raw.next(&side, "a request", |packet| *packet == Packet::Restart { round, answer: false });
        // What is from before is dropped, and so are answers to other requests.
        raw.send(&message(0, 0, Form::Eager { payload: b"ghost" }));
        for other in [round - 1, round + 1, round.wrapping_add(1 << 31)] {
            raw.send(&Packet::Restart { round: other, answer: true });
        }
        wait::drive_through(Duration::from_millis(20), &[&side]);
        assert_eq!(side.pending(), 0);
        raw.send(&Packet::Restart { round, answer: true });
        wait::drive(&[&side], "the end of a message", || side.next_of(3)).done();
        while id_of(&mut raw, &side) != 0 {}
        let into = Memory::new(16);
        side.receive(&into).context(1).post().unwrap();
        raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
        assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
        assert_eq!(&into.bytes()[..5], b"hello");
    }
}

#[test]
fn a_paused_peer_that_dies_ends_what_waits_for_it() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, &own(), RECEIVES);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(8, 1);
    raw.send_as(Origin::Connid(raw.address.connid), &Packet::Pause(1));
    wait::drive(&[&side], "a pause", || {
        let sent = side.out(to, &word).context(2).send();
        if sent.is_ok() {
            wait::drive(&[&side], "the end of a message", || side.next_of(2)).done();
        }
        sent.err()
    });
    drop(raw);
    wait::drive_for(BOUND, &[&side], "an error", || {
        let _ = side.out(to, &word).context(3).send();
        side.next_of(3)
    })
    .failed();
}
