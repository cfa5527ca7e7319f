//! Unreliable datagrams (`FI_EP_DGRAM`): the cases ask for them whatever type the kit is of.

use std::time::{Duration, Instant};

use ofi::raw::{Caps, EpType, Errno, MrAccess};

use crate::kit::Opening;
use crate::memory::Memory;
use crate::pair::Pair;
use crate::side::{Event, Side, remote};
use crate::{Kit, wait};

fn opening(kit: &dyn Kit) -> Opening {
    let caps = Caps::MSG | Caps::SOURCE;
    kit.opening_for(kit.usual().ep_type(EpType::Dgram).caps(caps))
}

fn pair(kit: &dyn Kit) -> Pair {
    Pair::of(opening(kit).open(), opening(kit).open())
}

pub fn a_datagram_endpoint_reads_and_writes_its_peer_s_memory(kit: &dyn Kit) {
    let caps = Caps::MSG | Caps::RMA;
    let opening = || Opening::new(kit.usual().ep_type(EpType::Dgram).caps(caps));
    let pair = Pair::of(opening().open(), opening().open());
    let (target, source) = (Memory::new(512), Memory::patterned(512, 5));
    let access = MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ;
    let region = pair.b.register(&target, access).expect("a registration");
    let there = [remote(&region)];
    pair.post(|| pair.a.out(pair.to_b, &source).context(1).data(77).write(&there));
    pair.drive("the write", || pair.a.next_of(1)).done();
    let told = pair.drive("its data", || pair.b.next()).done();
    assert_eq!(told.data, 77);
    target.check(512, 5);
    let back = Memory::new(512);
    pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&there));
    pair.drive("the read", || pair.a.next_of(2)).done();
    back.check(512, 5);
    // A datagram may be lost without a word. An access may not.
    region.close().expect("closing");
    pair.post(|| pair.a.out(pair.to_b, &source).context(3).write(&there));
    let failed = pair.drive("the write without a target", || pair.a.next_of(3)).failed();
    assert!([Errno::EKEYREJECTED, Errno::ENOKEY].contains(&failed.err), "{failed:?}");
}

/// Sends `count` datagrams, each with its number as remote data, reading only the sender's queue.
#[track_caller]
fn flood(pair: &Pair, first: usize, count: usize) {
    let sent = Memory::patterned(64, 1);
    let mut done = 0;
    let take = |done: &mut usize| {
        while let Some(event) = pair.a.next() {
            event.done();
            *done += 1;
        }
    };
    for number in first..first + count {
        let out = pair.a.out(pair.to_b, &sent).context(1).data(number as u64);
        wait::drive(&[&pair.a], "room", || {
            take(&mut done);
            out.send().ok()
        });
    }
    wait::drive(&[&pair.a], "all sends", || {
        take(&mut done);
        (done == count).then_some(())
    });
}

/// Receives what is there: the numbers, in order.
#[track_caller]
fn numbers(pair: &Pair, side: &Side) -> Vec<u64> {
    let into = Memory::new(64);
    let mut all = Vec::new();
    side.receive(&into).context(2).post().expect("posting");
    let mut idle = Instant::now();
    while idle.elapsed() < Duration::from_millis(100) {
        pair.poll();
        if let Some(event) = side.next_of(2) {
            all.push(event.done().data);
            side.receive(&into).context(2).post().expect("posting");
            idle = Instant::now();
        }
    }
    side.cancel(2).expect("the last receive waits");
    wait::drive(&[side], "the cancelled receive", || side.next_of(2)).failed();
    all
}

pub fn datagrams_carry_messages_and_their_source(kit: &dyn Kit) {
    let pair = pair(kit);
    let longest = pair.a.info.ep_attr.max_msg_size;
    for len in [0, 1, 100, longest] {
        let (sent, got) = (Memory::patterned(len, 7), Memory::new(len));
        pair.b.receive(&got).context(1).post().expect("posting");
        pair.post(|| pair.a.out(pair.to_b, &sent).context(2).send());
        let Event::Done(entry, source) = pair.drive("the datagram", || pair.b.next_of(1)) else {
            panic!("an error");
        };
        assert_eq!((entry.len, source), (len, pair.to_a));
        got.check(len, 7);
        pair.drive("the send", || pair.a.next_of(2)).done();
    }
}

pub fn a_datagram_has_a_bounded_size(kit: &dyn Kit) {
    let pair = pair(kit);
    let longest = pair.a.info.ep_attr.max_msg_size;
    assert!(longest < 1 << 20, "{longest}");
    let memory = Memory::new(longest + 1);
    assert_eq!(pair.a.out(pair.to_b, &memory).send().unwrap_err().errno(), Errno::EMSGSIZE);
    assert!(pair.a.info.tx_attr.inject_size <= longest);
}

pub fn datagrams_have_neither_tags_nor_atomics(kit: &dyn Kit) {
    for caps in [Caps::TAGGED, Caps::ATOMIC] {
        let hints = kit.usual().ep_type(EpType::Dgram).caps(caps);
        assert_eq!(kit.getinfo(&hints).unwrap_err().errno(), Errno::ENODATA, "{caps}");
    }
}

pub fn datagrams_that_nobody_receives_are_dropped_and_counted(kit: &dyn Kit) {
    const COUNT: usize = 10_000;
    let pair = pair(kit);
    pair.warm_up();
    for quarter in 0..4 {
        flood(&pair, quarter * COUNT / 4, COUNT / 4);
        for _ in 0..20 {
            pair.poll();
        }
    }
    let got = numbers(&pair, &pair.b);
    assert!(got.is_sorted(), "those that came are in order");
    let dropped = pair.a.statistic("tx_dropped") + pair.b.statistic("rx_dropped");
    assert!(dropped > 0 && !got.is_empty(), "{dropped} dropped, {} received", got.len());
    assert_eq!(got.len() as u64 + dropped, COUNT as u64, "each is received or counted");
    assert_eq!(pair.b.statistic("rx_unexpected_now"), 0);
    flood(&pair, 0, 1);
    assert_eq!(numbers(&pair, &pair.b), [0], "what comes later is received");
}

pub fn a_sender_of_datagrams_never_waits_for_its_receiver(kit: &dyn Kit) {
    let pair = pair(kit);
    pair.warm_up();
    flood(&pair, 0, 20_000); // reads only the sender's queue
    let received = numbers(&pair, &pair.b);
    assert!(!received.is_empty() && received.is_sorted());
}

pub fn a_datagram_to_nobody_completes(kit: &dyn Kit) {
    let side = opening(kit).open();
    let nobody = {
        let other = opening(kit).open();
        side.insert(&other)
    };
    for context in 1..=10 {
        wait::drive(&[&side], "room", || side.out(nobody, ()).context(context).send().ok());
    }
    for context in 1..=10 {
        wait::drive(&[&side], "the send", || side.next_of(context)).done();
    }
}

pub fn a_datagram_longer_than_its_receive_is_an_error(kit: &dyn Kit) {
    let pair = pair(kit);
    let got = Memory::new(10);
    pair.b.receive(&got).context(1).post().expect("posting");
    pair.post(|| pair.a.out(pair.to_b, &Memory::patterned(25, 1)).inject().send());
    let error = pair.drive("the receive", || pair.b.next_of(1)).failed();
    assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, 10, 15));
    got.check(10, 1);
}
