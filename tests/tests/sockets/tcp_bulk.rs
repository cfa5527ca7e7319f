//! Long payloads of provider `tcp` striped over several connections to a peer (`FI_TCP_BULK_CONNECTIONS`): what
//! arrives, in which order, and what becomes of connections that end, of peers that break the rules, and of C's ends.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use ofi_tcp::wire::cm::{CmKind, CmMessage, Extras, HEADER};
use ofi_tcp::wire::{Identity, Packet};
use ofi_testkit::prelude::*;

use crate::tcp_raw::{Raw, message, pieces};

/// Long enough to be striped.
pub const LEN: usize = 1 << 20;
/// Bulk connections beside the main one.
pub const BULK: u64 = 2;
/// The number that the plain peers of these tests ask for in requests for bulk connections.
pub const NUMBER: u32 = 0x1234_5678;
/// The provider closes idle bulk connections after 5 s, which it looks for every few seconds.
const IDLE_BOUND: Duration = Duration::from_secs(20);

struct Striped {
    sealed: bool,
}

impl Kit for Striped {
    fn hints(&self) -> Hints {
        ofi_tests::tcp_bulk();
        let loopback = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let hints = Hints::new().provider("tcp").ep_type(EpType::Rdm).src_addr(loopback);
        if self.sealed { hints.auth_key(*b"stripes") } else { hints }
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::SOURCE
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

pub fn pair(sealed: bool) -> Pair {
    let kit: &dyn Kit = &Striped { sealed };
    kit.pair()
}

pub fn side() -> TestEndpoint {
    let kit: &dyn Kit = &Striped { sealed: false };
    kit.side()
}

fn done(pair: &Pair, side: &TestEndpoint, context: usize) -> CqTaggedEntry {
    wait::drive(&[&pair.a, &pair.b], "a completion", || side.next_of(context)).done()
}

/// Writes until the bulk connections of `a` are there.
pub fn open_bulk(pair: &Pair) {
    let (from, into) = (Memory::patterned(LEN, 1), Memory::new(LEN));
    let region = pair.b.register(&into, MrAccess::REMOTE_WRITE).expect("a region");
    // The first one is posted before the peer has said that it takes them.
    for _ in 0..2 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
        done(pair, &pair.a, 1);
    }
    wait::drive(&[&pair.a, &pair.b], "bulk connections", || {
        (pair.a.statistic("bulk_connections") >= BULK).then_some(())
    });
}

/// Each message says that the writes before it are there, and each read gets what was written before.
#[test]
fn striped_payloads_arrive_whole_and_in_order() {
    for sealed in [false, true] {
        let pair = pair(sealed);
        open_bulk(&pair);
        let before = pair.a.statistic("stripes");
        let target = Memory::new(LEN + 5);
        let access = MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ;
        let region = pair.b.register(&target, access).expect("a region");
        for round in 0..12_u8 {
            let len = LEN - usize::from(round) * 4099;
            let (from, back) = (Memory::patterned(len, round), Memory::new(len));
            let (sent, got, word) = (Memory::patterned(len, 100 + round), Memory::new(len), Memory::new(8));
            let there = remote_at(&region, 5, len);
            pair.b.receive(&word).context(2).post().expect("a receive");
            pair.b.receive(&got).context(3).tag(9).post().expect("a receive");
            pair.post(|| pair.a.out(pair.to_b, &from).context(4).data(u64::from(round)).write(&[there]));
            pair.post(|| pair.a.out(pair.to_b, &word).context(5).send());
            pair.post(|| pair.a.out(pair.to_b, &back).context(6).read(&[there]));
            pair.post(|| pair.a.out(pair.to_b, &sent).context(7).tag(9).data(3).send());
            done(&pair, &pair.b, 2);
            target.slice(5..5 + len).check(round);
            let entry = done(&pair, &pair.b, 0);
            assert_eq!((entry.data, entry.len), (u64::from(round), len));
            let entry = done(&pair, &pair.b, 3);
            assert_eq!((entry.data, entry.len), (3, len));
            got.check(len, 100 + round);
            for context in 4..=7 {
                done(&pair, &pair.a, context);
            }
            back.check(len, round);
        }
        assert!(pair.a.statistic("stripes") >= before + 24 * BULK, "{}", pair.a.report());
        assert!(pair.b.statistic("stripes") > 0, "answers are striped too: {}", pair.b.report());
        assert_eq!(pair.a.statistic("connections"), 1);
    }
}

/// Without receives: kept, announced because there is no credit, and truncated.
#[test]
fn striped_messages_wait_for_their_receives() {
    const COUNT: usize = 12;
    for sealed in [false, true] {
        let pair = pair(sealed);
        open_bulk(&pair);
        let sent: Vec<_> = (0..COUNT).map(|at| Memory::patterned(LEN, at as u8)).collect();
        for (at, memory) in sent.iter().enumerate() {
            let post =
                || pair.a.out(pair.to_b, memory).context(10 + at).msg(OpFlags::DELIVERY_COMPLETE).send();
            pair.post(post);
        }
        // The first ones fill the window of 4 MiB, and the others are announced.
        wait::drive(&[&pair.a, &pair.b], "messages", || {
            (pair.b.statistic("rx_unexpected_now") > 5).then_some(())
        });
        wait::drive_through(Duration::from_millis(50), &[&pair.a, &pair.b]);
        assert!(pair.a.statistic("announced") > 0, "{}", pair.a.report());
        for at in 0..COUNT {
            let into = Memory::new(if at == 3 { LEN / 2 + 77 } else { LEN });
            pair.b.receive(&into).context(50 + at).post().expect("a receive");
            let event = wait::drive(&[&pair.a, &pair.b], "a message", || pair.b.next_of(50 + at));
            if at == 3 {
                assert_eq!(event.failed().err, Errno::ETRUNC);
            } else {
                event.done();
            }
            into.check(into.len(), at as u8);
            done(&pair, &pair.a, 10 + at);
        }
    }
}

/// A wrong key, and memory of which a part is not registered.
#[test]
fn a_striped_access_that_is_not_allowed_fails_alone() {
    let pair = pair(false);
    open_bulk(&pair);
    let (from, target) = (Memory::patterned(LEN, 1), Memory::new(LEN));
    let access = MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ;
    let region = pair.b.register(&target, access).expect("a region");
    let right = remote(&region);
    let wrong_key = RemotePiece { key: right.key + 1, ..right };
    let beyond = RemotePiece { addr: right.addr + 1, ..right };
    for wrong in [wrong_key, beyond] {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[wrong]));
        pair.post(|| pair.a.out(pair.to_b, &from).context(3).write(&[right]));
        wait::drive(&[&pair.a, &pair.b], "a refusal", || pair.a.next_of(2)).failed();
        done(&pair, &pair.a, 3);
        pair.post(|| pair.a.out(pair.to_b, &from).context(4).read(&[wrong]));
        wait::drive(&[&pair.a, &pair.b], "a refusal", || pair.a.next_of(4)).failed();
    }
    target.check(LEN, 1);
    assert_eq!((pair.a.statistic("connections_lost"), pair.b.statistic("broken")), (0, 0));
}

/// Bulk connections that nobody uses are closed by both ends, and opened again when they are needed.
#[test]
fn idle_bulk_connections_are_closed() {
    let pair = pair(false);
    open_bulk(&pair);
    let count = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let open = count();
    wait::drive_for(IDLE_BOUND, &[&pair.a, &pair.b], "the end of both ends", || {
        (count() <= open - 2 * BULK as usize).then_some(())
    });
    let (from, into) = (Memory::patterned(LEN, 2), Memory::new(LEN));
    let region = pair.b.register(&into, MrAccess::REMOTE_WRITE).expect("a region");
    let before = pair.a.statistic("stripes");
    wait::drive(&[&pair.a, &pair.b], "a striped write", || {
        pair.post(|| pair.a.out(pair.to_b, &from).context(3).write(&[remote(&region)]));
        done(&pair, &pair.a, 3);
        (pair.a.statistic("stripes") > before).then_some(())
    });
    into.check(LEN, 2);
    assert_eq!((pair.a.statistic("connections_lost"), pair.a.statistic("connections")), (0, 1));
}

/// The next connection to a listener of a plain peer.
pub fn accept(side: &TestEndpoint, listener: &TcpListener) -> Raw {
    listener.set_nonblocking(true).expect("a listener that does not block");
    let (stream, _) = wait::drive(&[side], "a connection", || listener.accept().ok());
    Raw::of(stream, listener.try_clone().expect("a listener"))
}

/// Reads a request, answers it, and returns it.
pub fn answer(side: &TestEndpoint, raw: &mut Raw, extras: Extras) -> Extras {
    let request = raw.hear(&[side], HEADER + 8);
    let (asked, _) = CmMessage::parse(&request).expect("a request").expect("a whole one");
    assert_eq!(asked.kind, CmKind::Request);
    let identity = Identity::parse(asked.payload).expect("an identity").answer(77).encode();
    raw.say(&CmMessage { extras, ..CmMessage::new(CmKind::Response, &identity) }.encode());
    asked.extras
}

/// An endpoint that has posted writes of [`LEN`] bytes to a plain peer, of contexts 1 and 2. Returns it, its number of
/// the peer, the main connection and the bulk connections; the peer has read everything and acknowledged nothing.
pub fn dialled(from: &Memory) -> (TestEndpoint, FiAddr, TcpListener, Raw, Vec<Raw>) {
    let side = side();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let to = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    side.out(to, from).context(1).write(&[there()]).expect("a write");
    let mut main = accept(&side, &listener);
    let extras = Extras { bulk: NUMBER, ..Extras::OURS };
    let theirs = answer(&side, &mut main, extras);
    assert!(theirs.bulk != 0 && !theirs.is_bulk, "{theirs:?}");
    let first = main.hear_packet(&[&side]);
    assert!(
        matches!(first, Packet::Write { len, .. } if len == LEN as u64),
        "no bulk connection yet: {first:?}"
    );
    main.hear(&[&side], LEN);
    // The next long payload opens them, and is not striped, because they are not there yet.
    side.out(to, from).context(2).write(&[there()]).expect("a write");
    let mut bulk: Vec<_> = (0..BULK).map(|_| accept(&side, &listener)).collect();
    for raw in &mut bulk {
        let asked = answer(&side, raw, Extras::OURS);
        assert!(asked.is_bulk && asked.bulk == NUMBER, "{asked:?}");
    }
    assert!(matches!(main.hear_packet(&[&side]), Packet::Write { .. }));
    main.hear(&[&side], LEN);
    wait::drive(&[&side], "bulk connections", || (side.statistic("bulk_connections") == BULK).then_some(()));
    (side, to, listener, main, bulk)
}

/// The memory that the writes to a plain peer name.
pub fn there() -> RemotePiece {
    RemotePiece { addr: 0, len: LEN, key: 1 }
}

/// Reads a write that is striped over the main connection and `bulk`. Returns its payload.
pub fn hear_striped(side: &TestEndpoint, main: &mut Raw, bulk: &mut [Raw], number: u64) -> Vec<u8> {
    assert_eq!(main.hear_packet(&[side]), Packet::Striped { count: bulk.len() as u8 + 1 });
    let (mut part, mut stripe) = (Vec::new(), LEN);
    for (raw, at) in bulk.iter_mut().zip(1..) {
        let Packet::Stripe { number: of, index, len } = raw.hear_packet(&[side]) else { panic!("no stripe") };
        assert_eq!((of, index), (number, at));
        part.extend(raw.hear(&[side], len as usize));
        stripe -= len as usize;
    }
    main.hear_packet(&[side]);
    let mut all = main.hear(&[side], stripe);
    all.extend(part);
    all
}

/// The peer has everything that was sent on it: the main connection goes on, and payloads are striped over the others.
#[test]
fn a_bulk_connection_that_dies_with_nothing_under_way_ends_alone() {
    let from = Memory::patterned(LEN, 1);
    let (side, to, _listener, mut main, mut bulk) = dialled(&from);
    side.out(to, &from).context(3).write(&[there()]).expect("a write");
    assert_eq!(hear_striped(&side, &mut main, &mut bulk, 0), from.bytes());
    wait::drive_through(Duration::from_millis(60), &[&side]); // acknowledgements may be delayed by 40 ms
    bulk.remove(0).reset();
    wait::drive_through(Duration::from_millis(60), &[&side]);
    for context in 1..=3 {
        main.send(&Packet::Ack, &[]);
        wait::drive(&[&side], "a write", || side.next_of(context)).done();
    }
    side.out(to, &from).context(4).write(&[there()]).expect("a write");
    assert_eq!(hear_striped(&side, &mut main, &mut bulk, 1), from.bytes());
    main.send(&Packet::Ack, &[]);
    wait::drive(&[&side], "a write", || side.next_of(4)).done();
    assert_eq!((side.statistic("connections_lost"), side.statistic("connections")), (0, 1));
}

/// An end of C libfabric says nothing of bulk connections, and gets none.
#[test]
fn ends_of_c_see_one_connection_and_its_packets() {
    let side = side();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let to = side.insert_address(&Address::from(listener.local_addr().expect("an address")));
    let from = Memory::patterned(LEN, 1);
    side.out(to, &from).context(1).send().expect("a message");
    let mut main = accept(&side, &listener);
    answer(&side, &mut main, Extras::NONE);
    for _ in 0..4 {
        assert_eq!(main.hear_packet(&[&side]), message(LEN as u64));
        assert_eq!(main.hear(&[&side], LEN), from.bytes());
        wait::drive(&[&side], "the message", || side.next_of(1)).done();
        side.out(to, &from).context(1).send().expect("a message");
        assert!(listener.accept().is_err(), "one connection is enough for C");
    }
    let read = Memory::patterned(LEN, 2);
    let region = side.register(&read, MrAccess::REMOTE_READ).expect("a region");
    let own = remote(&region);
    main.hear_packet(&[&side]);
    main.hear(&[&side], LEN);
    main.send(&Packet::Read { remote: pieces(&[(own.addr, LEN as u64, own.key)]) }, &[]);
    assert_eq!(main.hear_packet(&[&side]), Packet::ReadAnswer { len: LEN as u64 });
    assert_eq!(main.hear(&[&side], LEN), read.bytes());
    assert_eq!((side.statistic("stripes"), side.statistic("bulk_connections")), (0, 0));
}

/// A plain peer of this library, and the number for bulk connections to the side that it got.
pub fn meet(side: &TestEndpoint) -> (Raw, u32) {
    let mut raw = Raw::dial(side);
    let identity = Identity::new(raw.port(), 77).encode();
    raw.say(&CmMessage::ours(CmKind::Request, &identity).encode());
    let answer = raw.hear(&[side], HEADER + 8);
    let number = CmMessage::parse(&answer).expect("an answer").expect("a whole one").0.extras.bulk;
    assert_ne!(number, 0, "it takes bulk connections");
    (raw, number)
}

/// Asks for a bulk connection beside one of `raw`. Returns the kind of the answer too.
pub fn ask(side: &TestEndpoint, port: u16, bulk: u32) -> (Raw, CmKind) {
    let mut raw = Raw::dial(side);
    let extras = Extras { is_bulk: true, bulk, ..Extras::OURS };
    let identity = Identity::new(port, 77).encode();
    raw.say(&CmMessage { extras, ..CmMessage::new(CmKind::Request, &identity) }.encode());
    let answer = raw.hear(&[side], HEADER + 8);
    let kind = CmMessage::parse(&answer).expect("an answer").expect("a whole one").0.kind;
    (raw, kind)
}

#[test]
fn bulk_connections_are_refused_without_a_peer_and_beyond_their_number() {
    let side = side();
    let (mut main, number) = meet(&side);
    let port = main.port();
    for (port, number) in [(port, number ^ 1), (port, 0), (port ^ 1, number)] {
        let before = side.statistic("connections_refused");
        let (mut raw, kind) = ask(&side, port, number);
        assert_eq!((kind, side.statistic("connections_refused")), (CmKind::Refusal, before + 1));
        raw.is_closed(&[&side]);
    }
    let held: Vec<_> = (0..7).map(|_| ask(&side, port, number)).collect();
    assert!(held.iter().all(|(_, kind)| *kind == CmKind::Response));
    assert_eq!(ask(&side, port, number).1, CmKind::Refusal, "no more than seven");
    // The main connection goes on.
    let buffer = Memory::new(64);
    side.receive(&buffer).context(9).post().expect("a receive");
    main.send(&message(64), &[7; 64]);
    wait::drive(&[&side], "a message", || side.next_of(9)).done();
}

/// Each ends its own connection alone.
#[test]
fn peers_whose_stripes_cannot_be_lose_their_connection() {
    let side = side();
    let long = message(LEN as u64);
    let striped = |count| Packet::Striped { count };
    let stripe = |number, index, len| Packet::Stripe { number, index, len };
    let half = (LEN / 2) as u64;
    // On the main connection, and then on a bulk connection.
    let cases: [(&str, Vec<Packet>, Vec<Packet>); 11] = [
        ("stripes of a short message", vec![striped(2), message(8)], vec![]),
        ("more stripes than connections", vec![striped(9), long], vec![]),
        ("one stripe", vec![striped(1)], vec![]),
        ("stripes twice", vec![striped(2), striped(2)], vec![]),
        ("stripes of a packet without a payload", vec![striped(2), Packet::Grant { bytes: 1 }], vec![]),
        ("a stripe on the main connection", vec![stripe(0, 1, half)], vec![]),
        ("a message on a bulk connection", vec![], vec![message(8)]),
        ("the first stripe on a bulk connection", vec![striped(2), long], vec![stripe(0, 0, half)]),
        ("a third of two stripes", vec![striped(2), long], vec![stripe(0, 2, half)]),
        ("a stripe of another length", vec![striped(2), long], vec![stripe(0, 1, half - 1)]),
        ("garbage", vec![], vec![Packet::Data { number: 1, len: 3 }]),
    ];
    let into = Memory::new(LEN);
    for (what, on_main, on_bulk) in cases {
        println!("{what}");
        let before = side.statistic("broken");
        let (mut main, number) = meet(&side);
        let (mut bulk, kind) = ask(&side, main.port(), number);
        assert_eq!(kind, CmKind::Response);
        side.receive(&into).context(9).post().expect("a receive");
        on_main
            .iter()
            .for_each(|packet| main.send(packet, if packet.payload_len() == 8 { &[7; 8] } else { &[] }));
        wait::drive_through(Duration::from_millis(2), &[&side]);
        on_bulk.iter().for_each(|packet| bulk.send(packet, &[7; 8]));
        main.is_closed(&[&side]);
        bulk.is_closed(&[&side]);
        assert_eq!(side.statistic("broken"), before + 1);
        let _gone = side.cancel(9);
        wait::drive(&[&side], "the receive", || side.next_of(9));
    }
    // Stripes whose packet never comes hold nothing up, and end with their connections.
    let (main, number) = meet(&side);
    let (mut bulk, _) = ask(&side, main.port(), number);
    bulk.send(&stripe(5, 1, 1 << 40), &[7; 4096]);
    let (mut other, _) = meet(&side);
    side.receive(&into).context(9).post().expect("a receive");
    other.send(&message(64), &[7; 64]);
    wait::drive(&[&side], "a message of another peer", || side.next_of(9)).done();
    drop(main);
    bulk.is_closed(&[&side]);
}

/// A peer sends its stripes on connections of which each waits for the others, and dies.
#[test]
fn a_peer_that_dies_between_stripes_ends_their_message() {
    let side = side();
    let (mut main, number) = meet(&side);
    let (bulk, _) = ask(&side, main.port(), number);
    let into = Memory::new(64 << 10);
    side.receive(&into).context(9).post().expect("a receive");
    main.send(&Packet::Striped { count: 2 }, &[]);
    main.send(&message(64 << 10), &[7; 32 << 10]);
    wait::drive_through(Duration::from_millis(20), &[&side]);
    assert!(side.next_of(9).is_none(), "half a message");
    let streams: [TcpStream; 2] = [main.stream, bulk.stream];
    drop(streams);
    let error = wait::drive(&[&side], "an error", || side.next_of(9)).failed();
    assert_eq!(error.err, Errno::ECONNRESET);
    meet(&side);
}

/// No connection can bring the stripes: the peer has opened none, or the one that had to has ended.
#[test]
fn a_message_whose_stripes_cannot_come_ends_its_connection() {
    let side = side();
    let (mut main, _) = meet(&side);
    main.send(&Packet::Striped { count: 2 }, &[]);
    main.send(&message(64 << 10), &[7; 32 << 10]);
    main.is_closed(&[&side]);

    // Without a receive the stripes are taken in turn: the last one waits for that which does not come.
    let (mut main, number) = meet(&side);
    let (first, _) = ask(&side, main.port(), number);
    let (mut second, _) = ask(&side, main.port(), number);
    main.send(&Packet::Striped { count: 3 }, &[]);
    main.send(&message(128 << 10), &[7; 44 << 10]);
    wait::drive_through(Duration::from_millis(2), &[&side]);
    second.send(&Packet::Stripe { number: 0, index: 2, len: 40 << 10 }, &[7; 40 << 10]);
    wait::drive_through(Duration::from_millis(2), &[&side]);
    drop(first);
    main.is_closed(&[&side]);
    second.is_closed(&[&side]);
}
