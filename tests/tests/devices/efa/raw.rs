//! An endpoint and a peer that the test writes packet by packet: packets that only C libfabric sends, and invalid ones.

use std::sync::Arc;

use ofi_efa::srd::{Access, Completion, Device, Region};
use ofi_efa::wire::{
    Control, Features, Form, Handshake, Iov, Iovs, Message, Origin, Own, Packet, RawAddress, Read, Write,
    WriteForm, parse,
};
use ofi_testkit::prelude::*;
use ofi_testkit::srd::Handle;

use super::EfaPair;
use super::native::{DEVICE, alone, on_own_device};
use super::raw_peer::{C, Raw};

/// Number of receives of a peer.
pub const RECEIVES: usize = 64;

pub fn side() -> TestEndpoint {
    let kit: &dyn Kit = &EfaPair;
    kit.opening().hints(on_own_device).open()
}

pub fn message(msg_id: u32, send_id: u32, form: Form<'_>) -> Packet<'_> {
    let own = Own::default();
    Packet::Message(Message { msg_id, tag: None, data: None, confirm: false, send_id, own, form })
}

/// Registered bytes that a peer may read.
fn lent(len: usize) -> (&'static [u8], Box<dyn Region>, Iovs) {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let bytes = Box::leak(bytes.into_boxed_slice());
    let device = Handle(Arc::clone(&DEVICE));
    // SAFETY: the bytes stay, and nothing writes to them.
    let region = unsafe { device.register(bytes.as_mut_ptr(), len, Access::RemoteRead) }.unwrap();
    let iov =
        Iov { addr: bytes.as_ptr().expose_provenance() as u64, len: len as u64, key: region.rkey().into() };
    (bytes, region, Iovs::new([iov]).unwrap())
}

#[test]
fn a_runt_read_message_comes_in_packets_and_its_rest_is_read() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let (bytes, _region, from) = lent(5000);
    let into = Memory::new(5000);
    side.receive(&into).context(1).post().unwrap();
    for (offset, payload) in [(100, &bytes[100..300]), (0, &bytes[..100])] {
        let form = Form::RuntRead { len: 5000, offset, runt: 300, from, payload };
        raw.send(&message(0, 77, form));
    }
    let ended = raw.next(&side, "an end of read", |packet| {
        matches!(packet, Packet::Control(Control::EndOfRead { send_id: 77, .. }))
    });
    assert_eq!(ended.len(), 16);
    assert_eq!(side.next_of(1).unwrap().done().len, 5000);
    assert_eq!(into.bytes(), bytes);
    assert_eq!(side.statistic("efa_native_reads"), 1);
}

#[test]
fn what_cannot_be_read_of_c_s_is_asked_for_and_put_behind_what_came() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let (bytes, _region, from) = lent(5000);
    let into = Memory::new(5000);
    side.receive(&into).context(1).post().unwrap();
    DEVICE.refuse_local(true);
    raw.send(&message(
        0,
        77,
        Form::RuntRead { len: 5000, offset: 0, runt: 300, from, payload: &bytes[..300] },
    ));
    raw.next(&side, "a refusal to read", |packet| {
        matches!(packet, Packet::Control(Control::ReadNack { send_id: 77, .. }))
    });
    DEVICE.refuse_local(false);
    raw.send(&message(0, 78, Form::LongCts { len: 5000, credits: 8, payload: &[], nacked: true }));
    let cts = raw.next(&side, "a clearance", |packet| {
        matches!(packet, Packet::Control(Control::Cts { send_id: 78, len: 4700, .. }))
    });
    let Ok((_, Packet::Control(Control::Cts { recv_id, .. }))) = parse(&cts) else { unreachable!() };
    raw.send(&Packet::Control(Control::Data { recv_id, offset: 300, payload: &bytes[300..] }));
    let end = wait::drive(&[&side], "the message", || side.next_of(1)).done();
    assert_eq!((end.len, into.bytes()), (5000, bytes.to_vec()));
    // A repeated packet refers to no known operation.
    raw.send(&message(0, 78, Form::LongCts { len: 5000, credits: 8, payload: &[], nacked: true }));
    let stale = side.statistic("efa_stale");
    wait::drive(&[&side], "a stale packet", || (side.statistic("efa_stale") > stale).then_some(()));
}

#[test]
fn memory_that_a_peer_names_and_has_not_is_not_read() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let into = Memory::new(5000);
    for (msg_id, iov) in [
        Iov { addr: 0, len: 5000, key: 1 << 23 },
        Iov { addr: u64::MAX - 10, len: 5000, key: 1 },
        Iov { addr: 0x1000, len: 5000, key: 1 << 40 },
    ]
    .into_iter()
    .enumerate()
    {
        side.receive(&into).context(1).post().unwrap();
        let from = Iovs::new([iov]).unwrap();
        raw.send(&message(msg_id as u32, 5, Form::LongRead { len: 5000, from }));
        raw.next(&side, "a refusal to read", |packet| {
            matches!(packet, Packet::Control(Control::ReadNack { send_id: 5, .. }))
        });
    }
    assert_eq!(into.bytes(), [0; 5000]);
}

#[test]
fn what_breaks_the_protocol_is_counted_and_disturbs_nobody_else() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    let mut raw = Raw::silent(&DEVICE, &pair.b, RECEIVES);
    let good = message(0, 0, Form::Eager { payload: b"x" }).to_vec(Origin::Address(raw.address));
    for version in [3, 5] {
        let mut other = good.clone();
        other[1] = version;
        raw.send_bytes(&other);
    }
    let mut seed = 1u64;
    let mut draw = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for _ in 0..2000 {
        let mut bytes: Vec<u8> = (0..draw() % 200).map(|_| draw() as u8).collect();
        if let [kind, version, ..] = &mut bytes[..] {
            (*kind, *version) = (draw() as u8, 4);
        }
        raw.send_bytes(&bytes);
        pair.poll();
    }
    // Each kind of control packet, for operations that do not exist.
    for (send_id, recv_id) in [(0, 0), (1, 1), (u32::MAX, u32::MAX), (1 << 20, 1 << 20)] {
        for control in [
            Control::EndOfRead { send_id, recv_id },
            Control::ReadNack { send_id, recv_id },
            Control::Cts { send_id, recv_id, len: u64::MAX, read: false, before: None },
            Control::Data { recv_id, offset: u64::MAX, payload: b"payload" },
            Control::Receipt { send_id, msg_id: recv_id },
        ] {
            raw.send(&Packet::Control(control));
        }
    }
    let counted =
        || (pair.b.statistic("efa_version") >= 2 && pair.b.statistic("efa_malformed") > 0).then_some(());
    pair.drive("all of it", counted);
    pair.warm_up();
    for _ in 0..64 {
        pair.warm_up();
    }
    let (memory, from) = (Memory::new(65_536), Memory::patterned(65_536, 8));
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(65_536, 8);
}

#[test]
fn a_peer_that_comes_back_with_its_queue_pair_s_number_is_another_one() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::silent(&DEVICE, &side, RECEIVES);
    // The first peer lost the queue pair number: a message with its Q-Key matches no peer.
    let second = raw.address;
    let first = RawAddress { connid: second.connid ^ 1, ..second };
    let into = Memory::new(16);
    for (msg_id, address) in [(0, first), (0, second)] {
        side.receive(&into).context(1).post().unwrap();
        raw.send_as(Origin::Address(address), &message(msg_id, 0, Form::Eager { payload: b"hello" }));
        assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
    }
    // Packets of the former peer are dropped, both by its address and by its connection id.
    let stale = side.statistic("efa_stale");
    for origin in [Origin::Address(first), Origin::Connid(first.connid)] {
        raw.send_as(origin, &message(1, 0, Form::Eager { payload: b"ghost" }));
    }
    wait::drive(&[&side], "two stale packets", || (side.statistic("efa_stale") >= stale + 2).then_some(()));
    side.receive(&into).context(1).post().unwrap();
    raw.send_as(Origin::Connid(second.connid), &message(1, 0, Form::Eager { payload: b"alive" }));
    assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
    assert_eq!(&into.bytes()[..5], b"alive");
}

#[test]
fn messages_outside_of_the_window_are_dropped_and_counted() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let into = Memory::new(16);
    let hear = |raw: &mut Raw, msg_id| {
        side.receive(&into).context(1).post().unwrap();
        raw.send(&message(msg_id, 0, Form::Eager { payload: b"hello" }));
        assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
    };
    hear(&mut raw, 0);
    let [stale, malformed] = ["efa_stale", "efa_malformed"].map(|name| side.statistic(name));
    // A repeated message, an old one, and one too far ahead.
    for (nth, msg_id) in [0, u32::MAX, 1 + (1 << 24), 1 << 31].into_iter().enumerate() {
        raw.send(&message(msg_id, 0, Form::Eager { payload: b"ghost" }));
        let counted = || (side.statistic("efa_stale") > stale + nth as u64).then_some(());
        wait::drive(&[&side], "a dropped message", counted);
    }
    assert_eq!((side.statistic("efa_held_now"), side.statistic("efa_malformed")), (0, malformed));
    hear(&mut raw, 1);
    assert_eq!(&into.bytes()[..5], b"hello");
}

#[test]
fn messages_far_ahead_of_one_that_waits_are_held_and_come_in_order() {
    const COUNT: u32 = 20_000;
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    // C's sender continues while its device retries one packet.
    for msg_id in (1..COUNT).chain([0]) {
        raw.send(&message(msg_id, 0, Form::Eager { payload: &msg_id.to_le_bytes() }));
        wait::drive(&[&side], "a packet's arrival", || (DEVICE.flying() < 32).then_some(()));
    }
    let into = Memory::new(4);
    for msg_id in 0..COUNT {
        side.receive(&into).context(1).post().unwrap();
        wait::drive(&[&side], "a message", || side.next_of(1)).done();
        assert_eq!(into.bytes(), msg_id.to_le_bytes());
    }
    assert_eq!((side.statistic("efa_stale"), side.statistic("efa_held_now")), (0, 0));
}

#[test]
fn a_sender_is_asked_to_pause_far_ahead_of_a_message_that_its_device_delays() {
    // Maximum number of messages, in case the device never asks for a pause.
    const MAX_SENDS: u32 = 20_000;
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    let [from, to] = [&pair.a, &pair.b].map(|side| RawAddress::from_bytes(side.name().bytes()).unwrap().qpn);
    DEVICE.delay(from, to);
    let word = Memory::new(4);
    let (mut sent, mut refused) = (0u32, 0);
    wait::drive_for(Duration::from_secs(60), &[&pair.a, &pair.b], "the sender's pause", || {
        for _ in 0..64 {
            word.slice(..).put(&sent.to_le_bytes());
            if let Err(error) = pair.a.out(pair.to_b, &word).inject().send() {
                assert!(error.is_again(), "{error}");
                refused += u32::from(DEVICE.flying() == 0);
                break;
            }
            (sent, refused) = (sent + 1, 0);
        }
        (refused == 100 || sent >= MAX_SENDS).then_some(())
    });
    DEVICE.release();
    assert!((1000..MAX_SENDS).contains(&sent), "{sent} sent");
    for number in 0..sent {
        pair.b.receive(&word).context(1).post().unwrap();
        pair.drive("a message", || pair.b.next_of(1)).done();
        assert_eq!(word.bytes(), number.to_le_bytes());
    }
    pair.warm_up();
}

#[test]
fn a_sender_s_address_that_contradicts_the_device_is_counted_and_dropped() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::silent(&DEVICE, &side, RECEIVES);
    let into = Memory::new(16);
    side.receive(&into).context(1).post().unwrap();
    let malformed = side.statistic("efa_malformed");
    let own = raw.address;
    let others = [RawAddress { qpn: own.qpn ^ 1, ..own }, RawAddress { gid: [9; 16], ..own }];
    for (nth, other) in others.into_iter().enumerate() {
        raw.send_as(Origin::Address(other), &message(0, 0, Form::Eager { payload: b"ghost" }));
        let counted = || (side.statistic("efa_malformed") > malformed + nth as u64).then_some(());
        wait::drive(&[&side], "a dropped message", counted);
    }
    raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
    assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
    assert_eq!(&into.bytes()[..5], b"hello");
}

#[test]
fn accesses_of_c_s_with_a_closed_key_are_refused_and_counted() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let memory = Memory::new(8);
    let region = side.register(&memory, MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE)).unwrap();
    let RemotePiece { addr, len, key } = remote(&region);
    let at = Iovs::new([Iov { addr, len: len as u64, key }]).unwrap();
    let write = |payload: &'static [u8]| {
        let form = WriteForm::Eager(payload);
        let own = Own::default();
        Packet::Write(Write { remote: at, data: None, confirm: true, send_id: 5, own, number: 0, form })
    };
    raw.send(&write(b"new word"));
    raw.next(&side, "a receipt", |packet| {
        matches!(packet, Packet::Control(Control::Receipt { send_id: 5, .. }))
    });
    assert_eq!(memory.bytes(), b"new word");
    region.close().unwrap();
    let refused = side.statistic("efa_refused");
    raw.send(&write(b"old word"));
    raw.send(&Packet::Read(Read { remote: at, len: 8, recv_id: 6, cleared: None, number: 0 }));
    wait::drive(&[&side], "two refusals", || (side.statistic("efa_refused") >= refused + 2).then_some(()));
    assert_eq!(memory.bytes(), b"new word");
    // The peer is not given up.
    let into = Memory::new(16);
    side.receive(&into).context(1).post().unwrap();
    raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
    assert_eq!(wait::drive(&[&side], "a message", || side.next_of(1)).done().len, 5);
}

#[test]
fn accesses_of_c_s_to_a_region_with_a_counter_are_counted_if_the_endpoint_reports_accesses() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    for events in [Caps::RMA_EVENT, Caps::empty()] {
        let caps = Caps::MSG | Caps::RMA | events;
        let side = kit.opening().hints(|hints| on_own_device(hints).caps(caps)).open();
        let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
        let greeting = raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
        let Ok((_, Packet::Handshake(Handshake { features, .. }))) = parse(&greeting) else { unreachable!() };
        // From these bits C's endpoints choose between their device and the owner, for all regions.
        let by_device = [Features::RDMA_READ, Features::RDMA_WRITE].map(|bit| features.has(bit));
        assert_eq!(by_device, [events.is_empty(); 2]);
        let memory = Memory::new(8);
        let region = side.register(&memory, MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE)).unwrap();
        let counter = side.domain.open_counter(&CntrAttr::default()).unwrap();
        region.bind_counter(&counter, BindFlags::REMOTE_WRITE | BindFlags::REMOTE_READ).unwrap();
        let RemotePiece { addr, len, key } = remote(&region);
        let at = Iovs::new([Iov { addr, len: len as u64, key }]).unwrap();
        let (form, own) = (WriteForm::Eager(b"new word"), Own::default());
        raw.send(&Packet::Write(Write {
            remote: at,
            data: None,
            confirm: true,
            send_id: 5,
            own,
            number: 0,
            form,
        }));
        raw.next(&side, "a receipt", |packet| {
            matches!(packet, Packet::Control(Control::Receipt { send_id: 5, .. }))
        });
        assert_eq!((memory.bytes(), counter.read()), (b"new word".to_vec(), 1));
        raw.send(&Packet::Read(Read { remote: at, len: 8, recv_id: 6, cleared: None, number: 0 }));
        let answer = raw.next(&side, "an answer", |packet| {
            matches!(packet, Packet::Control(Control::ReadResponse { recv_id: 6, .. }))
        });
        assert!(answer.ends_with(b"new word"));
        assert_eq!(counter.read(), 2);
    }
}

/// The number of the next message that arrives at `raw`.
fn number(raw: &mut Raw, side: &TestEndpoint) -> u32 {
    let bytes = raw.next(side, "a message", is_message);
    let Ok((_, Packet::Message(message))) = parse(&bytes) else { unreachable!() };
    message.msg_id
}

#[test]
fn an_address_of_c_s_that_was_removed_and_inserted_again_is_a_new_peer_s() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let (word, into) = (Memory::patterned(8, 1), Memory::new(16));
    let insert =
        |raw: &Raw| side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let mut to = insert(&raw);
    let send = |to, raw: &mut Raw| {
        wait::drive(&[&side], "room", || side.out(to, &word).context(2).send().ok());
        number(raw, &side)
    };
    let hear = |raw: &mut Raw, msg_id| {
        side.receive(&into).context(1).post().unwrap();
        raw.send(&message(msg_id, 0, Form::Eager { payload: b"hello" }));
        wait::drive(&[&side], "a message", || side.next_of(1)).done();
    };
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    for msg_id in 0..3 {
        hear(&mut raw, msg_id);
        assert_eq!(send(to, &mut raw), msg_id);
    }
    // A second insertion keeps the address when the first one is removed.
    assert_eq!(insert(&raw), to);
    side.av.remove(&[to]).unwrap();
    assert_eq!(send(to, &mut raw), 3);
    // C's endpoints forget a removed peer and restart at 0, whichever end sends first.
    for sends_first in [true, false] {
        side.av.remove(&[to]).unwrap();
        to = insert(&raw);
        if sends_first {
            assert_eq!(send(to, &mut raw), 0);
        }
        hear(&mut raw, 0);
        raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
        hear(&mut raw, 1);
        assert_eq!(send(to, &mut raw), u32::from(sends_first));
    }
    // A peer whose library is still unknown.
    let mut raw = Raw::silent(&DEVICE, &side, RECEIVES);
    to = insert(&raw);
    hear(&mut raw, 0);
    assert_eq!(send(to, &mut raw), 0);
    side.av.remove(&[to]).unwrap();
    to = insert(&raw);
    // Its number may be of either count until its handshake has arrived.
    side.receive(&into).context(1).post().unwrap();
    raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
    let refused = side.out(to, &word).context(2).send().unwrap_err();
    assert!(refused.is_again(), "{refused:?}");
    raw.next(&side, "a question", |packet| matches!(packet, Packet::Write(_)));
    raw.send(&Packet::Handshake(Handshake { features: Features::of(C), ..Handshake::default() }));
    wait::drive(&[&side], "a message", || side.next_of(1)).done();
    assert_eq!(send(to, &mut raw), 0);
    // Without a reinsertion, a repeated number belongs to an old packet.
    let stale = side.statistic("efa_stale");
    raw.send(&message(0, 0, Form::Eager { payload: b"again" }));
    wait::drive(&[&side], "a stale packet", || (side.statistic("efa_stale") > stale).then_some(()));
}

#[test]
fn atomic_operations_of_16_bytes_are_refused_towards_c() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let caps = Caps::MSG | Caps::ATOMIC;
    let side = kit.opening().hints(|hints| on_own_device(hints).caps(caps)).open();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(16, 1);
    let there = [RemotePiece { addr: 0x1000, len: 16, key: 1 }];
    wait::drive(&[&side], "a peer that is known", || {
        let posted = side.out(to, &word).context(2).atomic(FiOp::Sum, Datatype::Uint64, &there);
        assert!(posted.as_ref().is_ok() || posted.as_ref().is_err_and(Error::is_again), "{posted:?}");
        posted.ok()
    });
    raw.next(&side, "an operation", |packet| matches!(packet, Packet::Atomic(_)));
    for datatype in [Datatype::DoubleComplex, Datatype::LongDouble, Datatype::Int128, Datatype::Uint128] {
        let refused = side.out(to, &word).context(2).atomic(FiOp::Sum, datatype, &there).unwrap_err();
        assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{datatype}");
    }
}

#[test]
fn a_peer_that_was_given_up_is_greeted_until_it_has_a_receive() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::deaf(&DEVICE, &side, RECEIVES);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    DEVICE.lose(1000);
    wait::drive(&[&side], "room", || side.out(to, &Memory::patterned(8, 1)).context(2).send().ok());
    let failed = wait::drive(&[&side], "a failure", || side.next_of(2)).failed();
    DEVICE.lose(0);
    assert_eq!(failed.err, Errno::ECONNREFUSED);
    let talk = |raw: &mut Raw| {
        let stale = side.statistic("efa_stale");
        raw.send(&message(0, 0, Form::Eager { payload: b"hello" }));
        wait::drive(&[&side], "a stale packet", || (side.statistic("efa_stale") > stale).then_some(()));
    };
    // The answer is a handshake, for which there is no receive.
    for _ in 0..3 {
        talk(&mut raw);
        wait::drive_through(Duration::from_millis(20), &[&side]);
    }
    raw.listen(RECEIVES);
    talk(&mut raw);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    // A peer of this library is notified that it was given up.
    let features = Features::of(&[C, &[Features::OWN]].concat());
    raw.send(&Packet::Handshake(Handshake { features, ..Handshake::default() }));
    raw.next(&side, "a farewell", |packet| matches!(packet, Packet::Bye));
}

#[test]
fn a_peer_that_was_given_up_is_greeted_again_when_a_greeting_is_lost() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::silent(&DEVICE, &side, RECEIVES);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let number = RawAddress::from_bytes(side.name().bytes()).unwrap().qpn;
    DEVICE.lose(1000);
    wait::drive(&[&side], "room", || side.out(to, &Memory::patterned(8, 1)).context(2).send().ok());
    wait::drive(&[&side], "a failure", || side.next_of(2)).failed();
    DEVICE.lose(0);
    let word = message(0, 0, Form::Eager { payload: b"hello" });
    DEVICE.cut(number, raw.address.qpn, false);
    let sent = side.statistic("efa_sent");
    raw.send(&word);
    wait::drive(&[&side], "a lost greeting", || {
        (side.statistic("efa_sent") > sent && side.statistic("efa_packets_now") == 0).then_some(())
    });
    raw.send(&word);
    raw.next(&side, "another greeting", |packet| matches!(packet, Packet::Handshake(_)));
}

/// A message with a receipt, from `side` to `raw`.
fn confirmed(side: &TestEndpoint, raw: &Raw, context: usize) {
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(64, 1);
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    wait::drive(&[side], "a post", || {
        let posted = side.out(to, &word).context(context).msg(flags).send();
        assert!(posted.is_ok() || posted.as_ref().is_err_and(Error::is_again), "{posted:?}");
        posted.ok()
    });
}

fn is_message(packet: &Packet<'_>) -> bool {
    matches!(packet, Packet::Message(_))
}

#[test]
fn a_peer_of_c_s_that_dies_before_its_receipt_is_noticed() {
    let _alone = alone();
    for features in [Some(C), None] {
        let side = side();
        let mut raw = match features {
            Some(features) => Raw::to(&DEVICE, &side, features, RECEIVES),
            None => Raw::silent(&DEVICE, &side, RECEIVES),
        };
        if features.is_some() {
            raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
        }
        confirmed(&side, &raw, 1);
        raw.next(&side, "a message", is_message);
        drop(raw);
        let since = Instant::now();
        let failed = wait::drive(&[&side], "the end of a message", || side.next_of(1)).failed();
        let wanted = if features.is_some() { Errno::ECONNRESET } else { Errno::ECONNREFUSED };
        assert_eq!(failed.err, wanted);
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    }
}

#[test]
fn a_peer_of_c_s_that_dies_before_its_data_is_noticed() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    let into = Memory::new(100_000);
    side.receive(&into).context(1).post().unwrap();
    raw.send(&message(0, 7, Form::LongCts { len: 100_000, credits: 8, payload: &[1; 100], nacked: false }));
    raw.next(&side, "word to send", |packet| matches!(packet, Packet::Control(Control::Cts { .. })));
    drop(raw);
    let failed = wait::drive(&[&side], "the end of a receive", || side.next_of(1)).failed();
    assert_eq!(failed.err, Errno::ECONNRESET);
}

#[test]
fn a_peer_of_c_s_that_is_slow_is_only_asked() {
    let _alone = alone();
    let side = side();
    let mut raw = Raw::to(&DEVICE, &side, C, RECEIVES);
    raw.next(&side, "a greeting", |packet| matches!(packet, Packet::Handshake(_)));
    confirmed(&side, &raw, 1);
    let bytes = raw.next(&side, "a message", is_message);
    // The request without effect, as C's endpoints send it.
    for _ in 0..2 {
        let asked = raw.next(&side, "a question", |packet| !is_message(packet));
        let Ok((_, Packet::Write(write))) = parse(&asked) else { panic!("{asked:?}") };
        assert_eq!((write.remote.iter().count(), write.data, write.confirm), (0, None, false));
        assert_eq!(side.pending(), 0);
    }
    let Ok((_, Packet::Message(Message { send_id, msg_id, .. }))) = parse(&bytes) else {
        panic!("{bytes:?}")
    };
    raw.send(&Packet::Control(Control::Receipt { send_id, msg_id }));
    wait::drive(&[&side], "the end of a message", || side.next_of(1)).done();
}

#[test]
fn a_peer_of_c_s_that_takes_nothing_is_not_asked_again_and_again() {
    let _alone = alone();
    let side = side();
    let raw = Raw::to(&DEVICE, &side, C, 0);
    confirmed(&side, &raw, 1);
    // Long enough for several probes.
    wait::drive_through(Duration::from_millis(2500), &[&side]);
    assert!(side.statistic("efa_not_ready") > 10, "what is for it is sent again");
    assert!(side.statistic("efa_packets_now") <= 2, "a greeting and the message");
}

impl Raw {
    /// The next message as received, with its immediate data.
    pub fn next_message(&mut self, side: &TestEndpoint, what: &str) -> (Vec<u8>, Option<u32>) {
        wait::drive(&[side], what, || self.try_message())
    }

    /// The same, if there is one.
    pub fn try_message(&mut self) -> Option<(Vec<u8>, Option<u32>)> {
        self.qp.poll(&mut self.came).unwrap();
        match self.came.pop_front()? {
            Completion::Received { id, len, data, .. } => Some((self.taken(id, len), data)),
            _ => None,
        }
    }

    /// Sends its handshake, which requests messages at the queue pair of `bare`.
    pub fn wants_messages_at(&mut self, bare: (u32, u32)) {
        let features = Features::of(&[C, &[Features::USER_RECV_QP]].concat());
        self.send(&Packet::Handshake(Handshake {
            features,
            user_recv_qp: Some(bare),
            ..Handshake::default()
        }));
    }
}

/// An endpoint for untagged messages of one packet, whose C peers may use zero-copy receive.
fn side_of_short() -> TestEndpoint {
    let kit: &dyn Kit = &EfaPair;
    let side = kit.opening().hints(|hints| on_own_device(hints).caps(Caps::MSG)).open_disabled().unwrap();
    assert_eq!(side.info.fabric_attr.name, "efa");
    side.ep.set_option(EpOption::MaxMsgSize, 8760).unwrap();
    side.ep.enable().unwrap();
    side
}

/// A peer with zero-copy receive: its queue pairs for packets and for messages, and its number at the endpoint.
fn in_place(side: &TestEndpoint) -> (Raw, Raw, FiAddr) {
    let (raw, bare) = (Raw::silent(&DEVICE, side, RECEIVES), Raw::silent(&DEVICE, side, RECEIVES));
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    (raw, bare, to)
}

#[test]
fn a_peer_that_receives_in_place_gets_messages_without_headers_elsewhere() {
    let _alone = alone();
    let side = side_of_short();
    let (mut raw, mut bare, to) = in_place(&side);
    let from = Memory::patterned(8760, 3);
    let send = |len: usize, data: u64| side.out(to, from.slice(..len)).context(2).data(data).send();
    let early = send(64, 7).unwrap_err();
    assert_eq!(early.errno(), Errno::EAGAIN, "it is asked first what it can do");
    raw.next(&side, "the question", |packet| matches!(packet, Packet::Write(_)));
    raw.wants_messages_at((bare.address.qpn.into(), bare.address.connid));
    for (at, len) in [64, 0, 1, 33, 8760].into_iter().enumerate() {
        wait::drive(&[&side], "a message", || send(len, at as u64).ok());
        let (bytes, data) = bare.next_message(&side, "a message without a header");
        assert_eq!((bytes, data), (from.bytes()[..len].to_vec(), Some(at as u32)), "{len} bytes");
        wait::drive(&[&side], "its end", || side.next_of(2)).done();
    }
    side.out(to, from.slice(..64)).inject().send().unwrap();
    assert_eq!(bare.next_message(&side, "an injected one"), (from.bytes()[..64].to_vec(), None));
    assert_eq!(
        send(64, 1 << 32).unwrap_err().errno(),
        Errno::EOPNOTSUPP,
        "data that the device has no room for"
    );
    // If the peer is not ready, the message is resent to the same queue pair.
    let (mut sent, mut waits, mut came) = (0, false, 0);
    wait::drive(&[&side], "more messages than it has receives", || {
        if sent < 2 * RECEIVES {
            match send(64, 9) {
                Ok(()) => sent += 1,
                Err(_) => waits = true,
            }
        }
        if waits && bare.try_message().is_some_and(|(bytes, _)| bytes == from.bytes()[..64]) {
            came += 1;
        }
        (came == 2 * RECEIVES).then_some(())
    });
    assert!(side.statistic("efa_not_ready") > 0);
}

#[test]
fn tags_and_strange_places_are_refused_towards_and_of_a_peer_that_receives_in_place() {
    let _alone = alone();
    let side = side();
    let (mut raw, mut bare, to) = in_place(&side);
    let from = Memory::patterned(64, 3);
    // C has no such peers of an endpoint with tags, so the endpoint does not wait for the handshake.
    side.out(to, &from).context(2).send().unwrap();
    raw.next(&side, "a message with a header", |packet| matches!(packet, Packet::Message(_)));
    raw.wants_messages_at((bare.address.qpn.into(), bare.address.connid));
    let refused = wait::drive(&[&side], "a refusal", || {
        side.out(to, &from).context(3).tag(1).send().err().filter(|error| error.errno() != Errno::EAGAIN)
    });
    assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{refused}");
    let refused = side.out(to, &Memory::new(8761)).context(3).send().unwrap_err();
    assert_eq!(refused.errno(), Errno::EOPNOTSUPP, "{refused}");
    wait::drive(&[&side], "a message", || side.out(to, &from).context(4).send().ok());
    assert_eq!(bare.next_message(&side, "a message without a header").0, from.bytes());
    // Numbers of queue pairs have 16 bits: a peer that names a larger one is given up.
    let (mut raw, _bare, to) = in_place(&side);
    raw.wants_messages_at((1 << 16, 1));
    let error = wait::drive(&[&side], "the end of such a peer", || {
        let _ = side.out(to, &from).context(5).send();
        match side.next()? {
            Event::Failed(error) => Some(error),
            Event::Done(..) => None,
        }
    });
    assert_eq!(error.err, Errno::EIO);
}
