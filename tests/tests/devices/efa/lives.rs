//! A peer that was given up and is there again, or whose messages are counted anew: nothing of before enters the new
//! life (`ofi-efa/peer/restart.rs`, `peer/insertion.rs`).

use ofi_efa::srd::Status;
use ofi_efa::wire::{Control, Features, Form, Handshake, Message, Packet, RawAddress, parse};
use ofi_testkit::prelude::*;

use super::EfaPair;
use super::losses::{BOUND, Mended, c_peer, check_rest, cold_pair, id_of, own, qpn};
use super::native::{DEVICE, alone, on_own_device};
use super::raw::{RECEIVES, message, side};
use super::raw_peer::{C, Raw};

/// An endpoint, and a peer that the test writes.
struct Scene {
    side: TestEndpoint,
    raw: Raw,
    to: FiAddr,
}

impl Scene {
    /// Opens it with a peer that has these features and was greeted.
    fn new(features: &[usize]) -> Self {
        let side = side();
        let (raw, to) = c_peer(&side, features);
        Self { side, raw, to }
    }

    fn insert(&mut self, address: &RawAddress) -> FiAddr {
        self.side.insert_address(&Address::new(self.side.name().format(), &address.to_bytes()))
    }

    fn insert_again(&mut self) {
        self.side.av.remove(&[self.to]).unwrap();
        let address = self.raw.address;
        self.to = self.insert(&address);
    }

    /// Posts a message of 8 bytes.
    fn post(&self, context: usize, seed: u8) {
        let from = Memory::patterned(8, seed);
        wait::drive(&[&self.side], "room", || self.side.out(self.to, &from).context(context).send().ok());
    }

    /// Posts a message that the device keeps in flight.
    fn post_late(&self, context: usize, seed: u8) {
        DEVICE.delay(qpn(&self.side), self.raw.address.qpn);
        self.post(context, seed);
    }

    fn fail(&self, times: usize, status: Status) {
        for _ in 0..times {
            DEVICE.fail(qpn(&self.side), self.raw.address.qpn, false, status);
        }
    }

    /// What the device kept in flight fails.
    fn fail_late(&self) {
        let failed = self.side.statistic("efa_failed");
        self.fail(1, Status::Unresponsive);
        DEVICE.release();
        wait::drive(&[&self.side], "a failure", || {
            (self.side.statistic("efa_failed") > failed).then_some(())
        });
    }

    fn failed(&self, context: usize) -> Errno {
        wait::drive_for(BOUND, &[&self.side], "an error", || self.side.next_of(context)).failed().err
    }

    fn sent(&self, context: usize) {
        wait::drive_for(BOUND, &[&self.side], "the end of a message", || self.side.next_of(context)).done();
    }

    /// The next message at the peer has this id and these bytes.
    fn hears(&mut self, id: u32, seed: u8) {
        let bytes = self.raw.next(&self.side, "a message", |packet| matches!(packet, Packet::Message(_)));
        let Ok((_, Packet::Message(Message { msg_id, form: Form::Eager { payload }, .. }))) = parse(&bytes)
        else {
            panic!("{bytes:?}")
        };
        assert_eq!((msg_id, payload), (id, &*Memory::patterned(8, seed).bytes()));
    }

    /// The peer's message is received.
    fn receives(&mut self, id: u32, word: &[u8]) {
        let into = Memory::new(16);
        self.side.receive(&into).context(1).post().unwrap();
        self.raw.send(&message(id, 0, Form::Eager { payload: word }));
        let len = wait::drive(&[&self.side], "a message", || self.side.next_of(1)).done().len;
        assert_eq!(&into.bytes()[..len], word);
    }

    /// The peer breaks the protocol with two parts of a message that name different lengths.
    fn breaks(&mut self, id: u32) {
        let malformed = self.side.statistic("efa_malformed");
        for len in [8, 9] {
            self.raw.send(&message(id, 0, Form::Medium { len, offset: 4, payload: b"part" }));
        }
        wait::drive(&[&self.side], "a violation", || {
            (self.side.statistic("efa_malformed") > malformed).then_some(())
        });
    }

    fn awaits(&mut self, packet: Packet<'static>) {
        self.raw.next(&self.side, "a packet", |it| *it == packet);
    }

    fn is_greeted(&mut self) {
        self.raw.next(&self.side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    }
}

#[test]
fn a_message_of_before_is_not_sent_again_after_the_peer_has_begun_anew() {
    let (_alone, _mended) = (alone(), Mended);
    let mut scene = Scene::new(&own());
    scene.post_late(2, 1);
    scene.raw.send(&Packet::Restart { round: 1, answer: false });
    assert_eq!(scene.failed(2), Errno::ECONNRESET);
    scene.fail_late();
    scene.awaits(Packet::Restart { round: 1, answer: true });
    for id in 0..3u8 {
        scene.post(3, 5 + id);
        scene.sent(3);
        scene.hears(id.into(), 5 + id);
    }
    // The peer has forgotten this end, and is greeted again.
    scene.receives(0, b"hello");
    scene.is_greeted();
    check_rest_of(&scene);
}

#[test]
fn a_message_of_before_is_not_sent_again_after_this_end_has_begun_anew() {
    let (_alone, _mended) = (alone(), Mended);
    let mut scene = Scene::new(&own());
    scene.post_late(2, 1);
    scene.breaks(0);
    assert_eq!(scene.failed(2), Errno::EIO);
    scene.insert_again();
    scene.post(3, 7);
    scene.fail_late();
    scene.awaits(Packet::Restart { round: 1, answer: false });
    // It is asked again.
    scene.awaits(Packet::Restart { round: 1, answer: false });
    scene.raw.send(&Packet::Restart { round: 1, answer: true });
    scene.sent(3);
    scene.hears(0, 7);
    scene.receives(0, b"hello");
    scene.is_greeted();
    check_rest_of(&scene);
}

#[test]
fn a_farewell_of_before_is_not_sent_again() {
    let (_alone, _mended) = (alone(), Mended);
    let mut scene = Scene::new(&own());
    scene.breaks(0);
    wait::drive_through(Duration::from_millis(5), &[&scene.side]);
    DEVICE.delay(qpn(&scene.side), scene.raw.address.qpn);
    let stale = scene.side.statistic("efa_stale");
    scene.raw.send(&message(1, 0, Form::Eager { payload: b"more" }));
    wait::drive(&[&scene.side], "a stale packet", || {
        (scene.side.statistic("efa_stale") > stale).then_some(())
    });
    scene.insert_again();
    scene.post(3, 7);
    scene.fail_late();
    scene.awaits(Packet::Restart { round: 1, answer: false });
    scene.raw.send(&Packet::Restart { round: 1, answer: true });
    scene.sent(3);
    scene.hears(0, 7);
    wait::drive_through(Duration::from_millis(50), &[&scene.side]);
    scene.post(3, 8);
    scene.sent(3);
    scene.hears(1, 8);
    assert!(!scene.raw.has(|packet| *packet == Packet::Bye));
}

#[test]
fn a_late_failure_does_not_end_the_next_life_of_a_peer_of_c() {
    let (_alone, _mended) = (alone(), Mended);
    for is_early in [false, true] {
        let mut scene = Scene::new(C);
        scene.post_late(2, 1);
        scene.fail(1, Status::Unresponsive);
        scene.post(3, 2);
        assert_eq!((scene.failed(2), scene.failed(3)), (Errno::ECONNRESET, Errno::ECONNRESET));
        // An outdated address of its queue pair changes nothing.
        let RawAddress { gid, qpn, connid } = scene.raw.address;
        scene.insert(&RawAddress { gid, qpn, connid: connid ^ 1 });
        wait::drive_through(Duration::from_millis(5), &[&scene.side]);
        scene.insert_again();
        if is_early {
            scene.fail_late();
        }
        for id in 0..3u8 {
            scene.post(4, 5 + id);
            scene.sent(4);
            scene.hears(id.into(), 5 + id);
            if id == 0 && !is_early {
                scene.fail_late();
            }
        }
        check_rest_of(&scene);
    }
}

#[test]
fn a_late_failure_skips_no_message_of_the_new_count() {
    let (_alone, _mended) = (alone(), Mended);
    for features in [C.to_vec(), [C, &[Features::PEER_ERROR]].concat()] {
        let mut scene = Scene::new(&features);
        scene.post_late(2, 1);
        scene.insert_again();
        scene.post(3, 7);
        scene.sent(3);
        scene.hears(0, 7);
        scene.fail_late();
        assert_eq!(scene.failed(2), Errno::ECONNRESET);
        scene.post(3, 8);
        scene.sent(3);
        scene.hears(1, 8);
        wait::drive_through(Duration::from_millis(5), &[&scene.side]);
        let is_notice = |packet: &Packet<'_>| matches!(packet, Packet::Control(Control::PeerError { .. }));
        assert!(!scene.raw.has(is_notice));
        check_rest_of(&scene);
    }
}

#[test]
fn both_ends_may_send_first_and_lose_their_greetings_or_their_messages() {
    let (_alone, _mended) = (alone(), Mended);
    for greetings in [true, false] {
        let pair = cold_pair();
        let fail = || {
            DEVICE.fail(qpn(&pair.a), qpn(&pair.b), false, Status::Unresponsive);
            DEVICE.fail(qpn(&pair.b), qpn(&pair.a), false, Status::Unresponsive);
        };
        if !greetings {
            fail();
        }
        let sides = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
        let word = Memory::patterned(64, 1);
        let into = [Memory::new(64), Memory::new(64)];
        for (side, to) in sides {
            side.out(to, &word).context(2).send().unwrap();
        }
        wait::until("arrivals", || DEVICE.flying() == 0);
        if greetings {
            fail();
        }
        for turn in 0..3 {
            for (at, (side, to)) in sides.into_iter().enumerate() {
                pair.post(|| side.receive(&into[at]).context(1).post());
                pair.post(|| side.out(to, &word).context(2).send());
            }
            for (at, (side, _)) in sides.into_iter().enumerate() {
                wait::drive_for(BOUND, &[&pair.a, &pair.b], "a message", || side.next_of(1)).done();
                wait::drive_for(BOUND, &[&pair.a, &pair.b], "its end", || side.next_of(2)).done();
                into[at].check(64, 1);
            }
            assert!(turn > 0 || pair.a.statistic("efa_failed") > 0);
        }
    }
}

#[test]
fn both_ends_may_give_each_other_up_before_they_have_met() {
    let (_alone, _mended) = (alone(), Mended);
    let mut pair = cold_pair();
    DEVICE.lose(1000);
    let word = Memory::patterned(64, 1);
    pair.post(|| pair.a.out(pair.to_b, &word).context(2).tag(1).send());
    pair.post(|| pair.b.out(pair.to_a, &word).context(2).tag(1).send());
    for side in [&pair.a, &pair.b] {
        wait::drive_for(BOUND, &[&pair.a, &pair.b], "an error", || side.next_of(2)).failed();
    }
    DEVICE.lose(0);
    pair.a.av.remove(&[pair.to_b]).unwrap();
    pair.b.av.remove(&[pair.to_a]).unwrap();
    (pair.to_b, pair.to_a) = (pair.a.insert(&pair.b), pair.b.insert(&pair.a));
    for turn in 0..5 {
        let into = [Memory::new(64), Memory::new(64)];
        let from = Memory::patterned(64, turn);
        let sides = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
        for (at, (side, to)) in sides.into_iter().enumerate() {
            pair.post(|| side.receive(&into[at]).context(1).tag(2).post());
            pair.post(|| side.out(to, &from).context(2).tag(2).send());
        }
        for (at, (side, _)) in sides.into_iter().enumerate() {
            wait::drive_for(BOUND, &[&pair.a, &pair.b], "a message", || side.next_of(1)).done();
            wait::drive_for(BOUND, &[&pair.a, &pair.b], "its end", || side.next_of(2)).done();
            into[at].check(64, turn);
        }
    }
    check_rest(&pair, &"all");
}

#[test]
fn messages_that_came_before_the_handshake_are_of_before() {
    let (_alone, _mended) = (alone(), Mended);
    let side = side();
    let raw = Raw::silent(&DEVICE, &side, RECEIVES);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let mut scene = Scene { side, raw, to };
    scene.fail(20, Status::NoDestination);
    scene.post(2, 1);
    assert_eq!(scene.failed(2), Errno::ECONNREFUSED);
    DEVICE.mend_cuts();
    scene.insert_again();
    scene.post(3, 7);
    scene.receives(0, b"old 0");
    scene.receives(1, b"old 1");
    let features = Features::of(&own());
    scene.raw.send(&Packet::Handshake(Handshake { features, ..Handshake::default() }));
    scene.awaits(Packet::Restart { round: 1, answer: false });
    scene.raw.send(&Packet::Restart { round: 1, answer: true });
    scene.sent(3);
    scene.hears(0, 7);
    scene.receives(0, b"new 0");
    scene.receives(1, b"new 1");
    check_rest_of(&scene);
}

#[test]
fn a_round_that_this_end_has_given_up_again_is_followed_by_the_next() {
    let (_alone, _mended) = (alone(), Mended);
    let mut scene = Scene::new(&own());
    scene.fail(20, Status::NoDestination);
    let failed = scene.side.statistic("efa_failed");
    scene.raw.send(&Packet::Restart { round: 1, answer: false });
    wait::drive(&[&scene.side], "failures", || {
        (scene.side.statistic("efa_failed") >= failed + 3).then_some(())
    });
    wait::drive_through(Duration::from_millis(20), &[&scene.side]);
    DEVICE.mend_cuts();
    scene.raw.send(&Packet::Restart { round: 1, answer: false });
    scene.awaits(Packet::Restart { round: 2, answer: false });
    scene.raw.send(&Packet::Restart { round: 2, answer: true });
    scene.receives(0, b"hello");
    scene.post(3, 7);
    scene.sent(3);
    scene.hears(0, 7);
    check_rest_of(&scene);
}

#[test]
fn an_older_endpoint_of_this_library_gets_nothing_that_it_does_not_know() {
    let (_alone, _mended) = (alone(), Mended);
    let mut scene = Scene::new(&[C, &[Features::PEER_ERROR, Features::OWN]].concat());
    scene.fail(1, Status::Unresponsive);
    scene.post(2, 1);
    assert_eq!(scene.failed(2), Errno::ECONNRESET);
    scene.post(3, 7);
    scene.sent(3);
    assert_eq!(id_of(&mut scene.raw, &scene.side), 1);
    let is_notice = |packet: &Packet<'_>| matches!(packet, Packet::Control(Control::PeerError { .. }));
    scene.raw.next(&scene.side, "a notice", is_notice);
    assert_eq!(scene.side.statistic("efa_repeated"), 0);
    check_rest_of(&scene);
}

#[test]
fn what_only_this_library_has_fails_with_a_peer_that_was_given_up_before_it_was_known() {
    let (_alone, _mended) = (alone(), Mended);
    let kit: &dyn Kit = &EfaPair;
    let caps = Caps::MSG | Caps::ATOMIC;
    let side = kit.opening().hints(|hints| on_own_device(hints).caps(caps)).open();
    let raw = Raw::silent(&DEVICE, &side, RECEIVES);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let scene = Scene { side, raw, to };
    scene.fail(20, Status::NoDestination);
    scene.post(2, 1);
    assert_eq!(scene.failed(2), Errno::ECONNREFUSED);
    let word = Memory::patterned(16, 1);
    let there = [RemotePiece { addr: 0x1000, len: 16, key: 1 }];
    let out = scene.side.out(scene.to, &word).context(2);
    assert_eq!(out.atomic(FiOp::Sum, Datatype::Uint128, &there).unwrap_err().errno(), Errno::ECONNREFUSED);
}

/// Checks that the endpoint has released everything.
fn check_rest_of(scene: &Scene) {
    let names = ["efa_packets_now", "efa_numbers_now", "efa_open_now", "efa_held_now"];
    wait::drive(&[&scene.side], "rest", || {
        (names.iter().map(|name| scene.side.statistic(name)).sum::<u64>() == 0).then_some(())
    });
}
