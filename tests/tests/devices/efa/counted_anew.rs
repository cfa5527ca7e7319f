//! Messages that arrive while the application reinserts a peer's address. C's endpoints forget a peer with its address
//! and restart their message ids at 0, so ids are reused.

use ofi_efa::wire::{Features, Form, Handshake, Packet, RawAddress};
use ofi_testkit::prelude::*;

use super::native::{DEVICE, alone};
use super::raw::{RECEIVES, message, side};
use super::raw_peer::{C, Raw};

/// The features of endpoints of this library.
fn own() -> Vec<usize> {
    [C, &[Features::OWN, Features::REPEATS]].concat()
}

/// An endpoint with a peer in its address vector.
struct Scene {
    side: TestEndpoint,
    raw: Raw,
    to: FiAddr,
    into: Memory,
}

impl Scene {
    /// Opens it with a peer that has sent its handshake and a first message, which was received.
    fn new(features: &[usize]) -> Self {
        let mut scene = Self::unknown();
        scene.introduce(features);
        scene.say(0, b"first");
        scene
    }

    /// Opens it with a peer that has sent nothing.
    fn unknown() -> Self {
        let side = side();
        let raw = Raw::silent(&DEVICE, &side, RECEIVES);
        let to = insert(&side, &raw.address);
        Self { side, raw, to, into: Memory::new(40_000) }
    }

    fn introduce(&mut self, features: &[usize]) {
        let features = Features::of(features);
        let shake = Packet::Handshake(Handshake { features, ..Handshake::default() });
        self.hold(|scene| scene.raw.send(&shake));
    }

    fn remove(&self) {
        self.side.av.remove(&[self.to]).unwrap();
    }

    fn insert(&mut self) {
        self.to = insert(&self.side, &self.raw.address);
    }

    fn insert_again(&mut self) {
        self.remove();
        self.insert();
    }

    /// Sends a message that is received at once.
    fn say(&mut self, msg_id: u32, word: &[u8]) {
        self.send(msg_id, word);
        assert_eq!(self.hear(), word);
    }

    fn send(&mut self, msg_id: u32, word: &[u8]) {
        self.raw.send(&message(msg_id, 0, Form::Eager { payload: word }));
    }

    /// A part of a message of `len` bytes.
    fn send_part(&mut self, msg_id: u32, len: usize, offset: usize, payload: &[u8]) {
        self.raw.send(&message(msg_id, 0, Form::Medium { len, offset, payload }));
    }

    /// Sends a message that must not be delivered yet, and waits until it has arrived.
    fn hold(&mut self, send: impl FnOnce(&mut Self)) {
        let before = self.side.statistic("efa_received");
        send(self);
        wait::drive(&[&self.side], "a packet", || {
            (self.side.statistic("efa_received") > before).then_some(())
        });
    }

    /// The next message's bytes.
    fn hear(&self) -> Vec<u8> {
        self.side.receive(&self.into).context(1).post().unwrap();
        let len = wait::drive(&[&self.side], "a message", || self.side.next_of(1)).done().len;
        self.into.bytes()[..len].to_vec()
    }

    fn stale(&self) -> u64 {
        self.side.statistic("efa_stale")
    }
}

fn insert(side: &TestEndpoint, address: &RawAddress) -> FiAddr {
    side.insert_address(&Address::new(side.name().format(), &address.to_bytes()))
}

#[test]
fn messages_held_before_are_not_taken_for_messages_of_the_new_count() {
    let _alone = alone();
    let mut scene = Scene::new(C);
    scene.hold(|scene| scene.send(2, b"ghost"));
    scene.insert_again();
    let stale = scene.stale();
    for (msg_id, word) in [b"new 0", b"new 1", b"new 2", b"new 3"].into_iter().enumerate() {
        scene.say(msg_id as u32, word);
    }
    assert_eq!(scene.stale(), stale + 1, "the ghost is counted");
    assert_eq!(scene.side.statistic("efa_held_now"), 0);
}

#[test]
fn messages_held_before_the_first_one_are_not_taken_either() {
    let _alone = alone();
    let mut scene = Scene::unknown();
    scene.introduce(C);
    scene.hold(|scene| scene.send(1, b"ghost"));
    scene.insert_again();
    let stale = scene.stale();
    scene.say(0, b"new 0");
    scene.say(1, b"new 1");
    assert_eq!(scene.stale(), stale + 1, "the ghost is counted");
}

#[test]
fn messages_of_the_new_count_that_overtake_its_first_one_have_their_turn() {
    let _alone = alone();
    let mut scene = Scene::new(C);
    scene.hold(|scene| scene.send(3, b"ghost"));
    scene.insert_again();
    // The old count would have continued with 1, and its message 3 is held.
    for (msg_id, word) in [(1, b"new 1"), (3, b"new 3"), (2, b"new 2")] {
        scene.hold(|scene| scene.send(msg_id, word));
    }
    scene.send(0, b"new 0");
    for word in [b"new 0", b"new 1", b"new 2", b"new 3"] {
        assert_eq!(scene.hear(), word);
    }
}

#[test]
fn a_peer_that_counts_anew_before_it_is_inserted_again_is_heard() {
    let _alone = alone();
    let mut scene = Scene::new(C);
    scene.say(1, b"second");
    scene.hold(|scene| scene.send(3, b"ghost"));
    scene.remove();
    scene.say(0, b"new 0");
    scene.hold(|scene| scene.send(2, b"new 2"));
    scene.insert();
    scene.send(1, b"new 1");
    for word in [b"new 1", b"new 2"] {
        assert_eq!(scene.hear(), word);
    }
    scene.say(3, b"new 3");
}

#[test]
fn an_address_that_is_inserted_again_does_not_end_the_count_of_this_library_s_endpoints() {
    let _alone = alone();
    let mut scene = Scene::new(&own());
    scene.hold(|scene| scene.send(3, b"word 3"));
    scene.hold(|scene| scene.send_part(2, 6, 0, b"wor"));
    scene.insert_again();
    scene.hold(|scene| scene.send_part(2, 6, 3, b"d 2"));
    scene.send(1, b"word 1");
    for word in [b"word 1", b"word 2", b"word 3"] {
        assert_eq!(scene.hear(), word);
    }
    assert_eq!(scene.side.statistic("efa_held_now"), 0);
}

#[test]
fn parts_of_a_message_are_not_put_to_those_of_another() {
    let _alone = alone();
    for len in [12, 16] {
        let mut scene = Scene::new(C);
        scene.hold(|scene| scene.send_part(2, 12, 0, b"ghost!"));
        scene.insert_again();
        let new = &b"a message of new"[..len];
        scene.hold(|scene| scene.send_part(2, len, 6, &new[6..]));
        scene.say(0, b"new 0");
        scene.say(1, b"new 1");
        scene.send_part(2, len, 0, &new[..6]);
        assert_eq!(scene.hear(), new, "{len} bytes");
    }
}

#[test]
fn packets_of_a_peer_whose_library_is_unknown_wait_until_it_is_known() {
    let _alone = alone();
    for (features, second) in [(C, b"new 1"), (&own(), b"old 1")] {
        let mut scene = Scene::unknown();
        scene.hold(|scene| scene.send(1, b"old 1"));
        scene.insert_again();
        scene.side.receive(&scene.into).context(1).post().unwrap();
        scene.hold(|scene| scene.send(0, b"word 0"));
        wait::drive_through(Duration::from_millis(20), &[&scene.side]);
        assert!(scene.side.next_of(1).is_none(), "it may be of either count");
        scene.introduce(features);
        let len = wait::drive(&[&scene.side], "a message", || scene.side.next_of(1)).done().len;
        assert_eq!(&scene.into.bytes()[..len], b"word 0");
        if second == b"new 1" {
            scene.send(1, second);
        }
        assert_eq!(scene.hear(), second);
        assert_eq!(scene.side.statistic("efa_held_now"), 0);
    }
}

#[test]
fn a_number_that_was_used_waits_for_the_handshake() {
    let _alone = alone();
    let mut scene = Scene::unknown();
    scene.say(0, b"first");
    scene.hold(|scene| scene.send(2, b"ghost"));
    scene.insert_again();
    scene.hold(|scene| scene.send(2, b"new 2"));
    scene.hold(|scene| scene.send(0, b"new 0"));
    scene.introduce(C);
    assert_eq!(scene.hear(), b"new 0");
    scene.send(1, b"new 1");
    for word in [b"new 1", b"new 2"] {
        assert_eq!(scene.hear(), word);
    }
}

#[test]
fn packets_that_wait_count_as_held() {
    let _alone = alone();
    let mut scene = Scene::unknown();
    scene.hold(|scene| scene.send_part(1, (256 << 20) - 10_000, 0, b"part"));
    scene.insert_again();
    scene.hold(|scene| scene.send(2, &[1; 8000]));
    assert!(scene.side.statistic("efa_held_now") > (256 << 20) - 10_000 + 8000);
    scene.hold(|scene| scene.send(3, &[1; 8000]));
    wait::drive(&[&scene.side], "the end of the peer", || {
        (scene.side.statistic("efa_held_now") == 0).then_some(())
    });
}

#[test]
fn a_repeated_message_of_a_peer_of_unknown_library_restarts_no_ids() {
    let _alone = alone();
    let mut scene = Scene::unknown();
    scene.say(0, b"first");
    scene.remove();
    scene.hold(|scene| scene.send(0, b"first"));
    scene.introduce(&own());
    scene.say(1, b"second");
    assert_eq!(scene.side.pending(), 0);
}
