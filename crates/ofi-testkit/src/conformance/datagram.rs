//! Unreliable datagrams (`FI_EP_DGRAM`). The cases request them whatever the kit's type.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ofi::raw::{Address, BindFlags, Caps, Context, EpType, Errno, EventKind, Hints, MrAccess};

use crate::connect::{event, open_eq};
use crate::memory::Memory;
use crate::opening::Opening;
use crate::pair::Pair;
use crate::side::{Event, TestEndpoint, remote, remote_at};
use crate::{Kit, wait};

fn opening(kit: &dyn Kit) -> Opening {
    let caps = Caps::MSG | Caps::SOURCE;
    kit.opening_for(kit.usual().ep_type(EpType::Dgram).caps(caps))
}

/// With remote CQ data to distinguish datagrams.
fn numbered(kit: &dyn Kit) -> Pair {
    let open = || opening(kit).hints(|hints| hints.cq_data_size(4)).open();
    Pair::of(open(), open())
}

/// Datagrams dropped for lack of room, at either end.
fn dropped(pair: &Pair) -> u64 {
    let of = |side: &TestEndpoint, which: &str| -> u64 {
        let all = side.ep.statistics();
        all.iter().filter(|one| one.name.ends_with(which)).map(|one| one.value).sum()
    };
    of(&pair.a, "tx_dropped") + of(&pair.b, "rx_dropped")
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
    // A datagram may be lost silently, but an access may not.
    region.close().expect("closing");
    pair.post(|| pair.a.out(pair.to_b, &source).context(3).write(&there));
    let failed = pair.drive("the write without a target", || pair.a.next_of(3)).failed();
    assert!([Errno::EKEYREJECTED, Errno::ENOKEY].contains(&failed.err), "{failed:?}");
}

pub fn messages_and_accesses_share_a_datagram_endpoint(kit: &dyn Kit) {
    let caps = Caps::MSG | Caps::RMA | Caps::SOURCE;
    let opening = || Opening::new(kit.usual().ep_type(EpType::Dgram).caps(caps));
    let pair = Pair::of(opening().open(), opening().open());
    let longest = pair.a.info.ep_attr.max_msg_size;
    let target = Memory::new(longest + 1);
    let region =
        pair.b.register(&target, MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ).expect("registering");
    let there = |len| [remote_at(&region, 0, len)];
    for (seed, len) in (1..).zip([1, 100, longest / 2, longest]) {
        let (sent, got) = (Memory::patterned(len, seed), Memory::new(len));
        pair.b.receive(&got).context(1).post().expect("posting");
        pair.post(|| pair.a.out(pair.to_b, &sent).context(2).write(&there(len)));
        pair.drive("the write", || pair.a.next_of(2)).done();
        target.check(len, seed);
        pair.post(|| pair.a.out(pair.to_b, &sent).context(3).send());
        let Event::Done(entry, source) = pair.drive("the message", || pair.b.next_of(1)) else {
            panic!("an error");
        };
        assert_eq!((entry.len, source), (len, pair.to_a));
        got.check(len, seed);
        pair.drive("the send", || pair.a.next_of(3)).done();
        let back = Memory::new(len);
        pair.post(|| pair.a.out(pair.to_b, &back).context(4).read(&there(len)));
        pair.drive("the read", || pair.a.next_of(4)).done();
        back.check(len, seed);
    }
    let memory = Memory::new(longest + 1);
    let out = || pair.a.out(pair.to_b, &memory);
    for refused in [out().write(&there(longest + 1)), out().read(&there(longest + 1)), out().send()] {
        assert_eq!(refused.unwrap_err().errno(), Errno::EMSGSIZE);
    }
}

/// Sends `count` datagrams, each with its number as remote CQ data, and reads only the sender's queue.
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

/// Receives the datagrams that are there. Returns their numbers in order.
#[track_caller]
fn numbers(pair: &Pair, side: &TestEndpoint) -> Vec<u64> {
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

pub fn datagrams_have_no_atomics_and_no_collectives(kit: &dyn Kit) {
    for caps in [Caps::ATOMIC, Caps::COLLECTIVE] {
        let hints = kit.usual().ep_type(EpType::Dgram).caps(caps);
        assert_eq!(kit.getinfo(&hints).unwrap_err().errno(), Errno::ENODATA, "{caps}");
    }
}

pub fn datagrams_carry_tags_and_data_where_they_are_granted(kit: &dyn Kit) {
    let caps = Caps::MSG | Caps::TAGGED | Caps::SOURCE;
    let hints = kit.usual().ep_type(EpType::Dgram).caps(caps).cq_data_size(8);
    if kit.getinfo(&hints).is_err() {
        return; // a transport without tags or data
    }
    let pair = Pair::of(Opening::new(hints.clone()).open(), Opening::new(hints).open());
    let (sent, got, other) = (Memory::patterned(100, 3), Memory::new(100), Memory::new(100));
    pair.b.receive(&other).context(9).tag(8).post().expect("posting");
    pair.b.receive(&got).context(1).tag(7).post().expect("posting");
    pair.post(|| pair.a.out(pair.to_b, &sent).tag(7).data(55).context(2).send());
    let entry = pair.drive("the datagram", || pair.b.next_of(1)).done();
    assert_eq!((entry.len, entry.tag, entry.data), (100, 7, 55));
    got.check(100, 3);
}

pub fn a_group_s_members_receive_what_is_sent_to_it(kit: &dyn Kit) {
    for more in [Caps::empty(), Caps::RMA] {
        let caps = Caps::MSG | Caps::SOURCE | Caps::MULTICAST | more;
        let hints = kit.usual().ep_type(EpType::Dgram).caps(caps);
        if kit.getinfo(&hints).is_ok() {
            send_to_a_group(kit, &hints);
        } // otherwise a transport without multicast
    }
}

fn send_to_a_group(kit: &dyn Kit, hints: &Hints) {
    let open = || {
        let side = Opening::new(hints.clone()).open_disabled().expect("opening an endpoint");
        let eq = open_eq(&side.fabric).expect("an event queue");
        side.ep.bind_eq(&eq).expect("binding");
        side.ep.enable().expect("enabling");
        (side, eq)
    };
    let ((a, eq_a), (b, eq_b), (outsider, _)) = (open(), open(), open());
    let own = a.name().to_socket_addr().expect("an IP address");
    // Scoped to this host's organisation (RFC 2365) or link (RFC 4291); the port distinguishes it from those of other
    // tests.
    let ip: IpAddr = if own.is_ipv4() {
        Ipv4Addr::new(239, 192, 77, 1).into()
    } else {
        Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, 0x77).into()
    };
    let group = Address::from(SocketAddr::new(ip, own.port()));
    let both = BindFlags::empty();
    let joined = [(&a, &eq_a), (&b, &eq_b)].map(|(side, eq)| {
        let joined = side.ep.join_multicast(&group, both, Context::from(4)).expect("joining");
        let event = event(eq, &[side]);
        assert_eq!((event.kind, event.fid), (EventKind::JoinComplete, joined.fid()));
        joined
    });
    assert_eq!(
        a.ep.join_multicast(&group, both, Context::from(4)).err().map(|e| e.errno()),
        Some(Errno::EALREADY)
    );
    if own.is_ipv6() && own.ip().is_loopback() {
        println!("NOT RUN: sends to a group: Linux routes no IPv6 multicast over loopback");
        return;
    }
    let source = b.insert(&a);
    let memory = [Memory::new(32), Memory::new(32), Memory::new(32)];
    for (side, memory) in [&a, &b, &outsider].into_iter().zip(&memory) {
        side.receive(memory).context(1).post().expect("posting");
    }
    let sent = Memory::patterned(32, 5);
    a.out(joined[0].addr(), &sent).context(2).send().expect("sending to a group");
    let sides = [&a, &b, &outsider];
    for side in [&a, &b] {
        let Event::Done(entry, from) = wait::drive(&sides, "the datagram", || side.next_of(1)) else {
            panic!("an error");
        };
        assert_eq!(entry.len, 32);
        if std::ptr::eq(side, &raw const b) {
            assert_eq!(from, source, "the source is the sender, not the group");
        }
    }
    memory[1].check(32, 5);
    wait::drive(&sides, "the send", || a.next_of(2)).done();
    wait::drive_through(Duration::from_millis(20), &sides);
    assert!(outsider.next_of(1).is_none(), "who has not joined hears nothing");
    drop(joined);
    b.receive(&memory[1]).context(3).post().expect("posting");
    let to_b = a.insert(&b);
    outsider.insert(&b);
    a.out(to_b, &sent).context(2).send().expect("sending to one");
    wait::drive(&sides, "what is not for the group", || b.next_of(3)).done();
    let plain = kit.usual().ep_type(EpType::Dgram).caps(Caps::MSG);
    let side = Opening::new(plain).open();
    let refused = side.ep.join_multicast(&group, both, Context::from(4)).err().map(|error| error.errno());
    assert_eq!(refused, Some(Errno::EOPNOTSUPP));
}

pub fn datagrams_that_nobody_receives_are_dropped_and_counted(kit: &dyn Kit) {
    const COUNT: usize = 10_000;
    let pair = numbered(kit);
    pair.warm_up();
    for quarter in 0..4 {
        flood(&pair, quarter * COUNT / 4, COUNT / 4);
        for _ in 0..20 {
            pair.poll();
        }
    }
    let got = numbers(&pair, &pair.b);
    assert!(got.is_sorted(), "those that came are in order");
    let dropped = dropped(&pair);
    assert!(dropped > 0 && !got.is_empty(), "{dropped} dropped, {} received", got.len());
    assert_eq!(got.len() as u64 + dropped, COUNT as u64, "each is received or counted");
    assert_eq!(pair.b.statistic("rx_unexpected_now"), 0);
    flood(&pair, 0, 1);
    assert_eq!(numbers(&pair, &pair.b), [0], "what comes later is received");
}

pub fn a_sender_of_datagrams_never_waits_for_its_receiver(kit: &dyn Kit) {
    let pair = numbered(kit);
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
