//! Rarely requested capabilities: triggers, collectives, address vectors of several processes, numbers that the program
//! assigns to its peers, and sources that are not in the vector.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ofi_testkit::connect::open_eq;
use ofi_testkit::prelude::*;

use super::ends::{End, Path, Two};
use super::moves::{count, has, length};
use super::opens::Granted;

/// Checks a pair, whose first end is of the info under test.
pub fn all(two: &Two) {
    let caps = two.a.info.caps;
    if caps.contains(Caps::TRIGGER) && has(caps, Caps::MSG, Caps::SEND) {
        triggered(two.outward());
    }
}

/// A send that waits for a counter (`FI_TRIGGER`).
fn triggered(path: Path<'_>) {
    count();
    let Path { from, to, at, .. } = path;
    let len = length(path);
    let (before, behind) = (from.prefix(), at.prefix());
    let (sent, got) = (Memory::patterned(before + len, 3), Memory::new(behind + len));
    let counter = from.domain.open_counter(&CntrAttr::default()).expect("a counter");
    let receive = at.receiver().receive(&got).context(1);
    at.post(from, "posting a receive", || receive.post());
    let piece = [sent.slice(..).piece()];
    // SAFETY: the send has ended when this function returns, and `sent` lives until then.
    let buf = unsafe { Lent::new(&piece, &[]) };
    let op = DeferredOp::Send(SendOp::new(buf, to, Context(2)));
    from.ep.trigger(&Threshold { counter: &counter, value: 1 }, &op).expect("FI_TRIGGER");
    counter.add(1).expect("adding");
    let entry = at.ended(from, 1, "a triggered message").done();
    assert_eq!(entry.len, behind + len);
    from.ended(at, 2, "a triggered send").done();
}

/// Whether endpoints of the info are opened by the plain calls, with separate contexts and keys.
fn is_plain(info: &Info) -> bool {
    let shared = [info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt].contains(&SHARED_CONTEXT);
    !shared && info.domain_attr.auth_key_size != AV_AUTH_KEY
}

/// Two members pass a barrier (`FI_COLLECTIVE`).
pub fn together(granted: &Granted) {
    if !granted.info.caps.contains(Caps::COLLECTIVE) || !is_plain(&granted.info) {
        return;
    }
    count();
    let open = || {
        let side = granted.another().open_disabled().expect("an endpoint");
        let eq = open_eq(&side.fabric).expect("an event queue");
        side.ep.bind_eq(&eq).expect("binding it");
        side.ep.enable().expect("enabling");
        (side, eq)
    };
    let members = [open(), open()];
    let sides: Vec<&TestEndpoint> = members.iter().map(|(side, _)| side).collect();
    let mut groups = Vec::new();
    for &side in &sides {
        let set = Arc::clone(&side.av).set(&AvSetAttr::default()).expect("a set");
        for other in &sides {
            set.insert(side.insert(other)).expect("a member");
        }
        let group = side.ep.join_collective(set.addr(), &*set, Context(1)).expect("joining");
        groups.push((set, group));
    }
    for (_, eq) in &members {
        let joined = wait::drive(&sides, "the join", || eq.read().ok());
        assert_eq!(joined.kind, EventKind::JoinComplete);
    }
    for (side, (_, group)) in sides.iter().zip(&groups) {
        let op = CollectiveOp::new(CollectiveKind::Barrier, group.addr(), Context(2));
        side.ep.collective(&op).expect("a barrier");
    }
    for side in &sides {
        wait::drive(&sides, "the barrier", || side.next_of(2)).done();
    }
}

/// Features of an endpoint's address vector other than numbering peers.
pub fn by_vectors(granted: &Granted) {
    let caps = granted.info.caps;
    if !is_plain(&granted.info)
        || !has(caps, Caps::MSG, Caps::RECV)
        || granted.info.mode.contains(Mode::MSG_PREFIX)
    {
        return;
    }
    if caps.contains(Caps::SOURCE_ERR) {
        stranger(granted);
    }
    if caps.contains(Caps::MULTICAST) && has(caps, Caps::MSG, Caps::SEND) {
        grouped(granted);
    }
    if caps.contains(Caps::SHARED_AV) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("granted-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        receives(granted, AvAttr { name: Some(name), ..AvAttr::default() }, |end, peer| {
            end.insert(peer);
        });
    }
    if caps.contains(Caps::AV_USER_ID) {
        let source = receives(granted, AvAttr { user_ids: true, ..AvAttr::default() }, |end, peer| {
            let number = end.insert(peer);
            end.av.set_user_id(number, FiAddr(4711)).expect("FI_AV_USER_ID");
        });
        if caps.contains(Caps::SOURCE) {
            assert_eq!(source, FiAddr(4711), "FI_AV_USER_ID");
        }
    }
}

/// Receives a message at an endpoint with a vector of this kind. Returns its source.
fn receives(granted: &Granted, av: AvAttr, meet: impl FnOnce(&TestEndpoint, &TestEndpoint)) -> FiAddr {
    count();
    let end = End::of(granted.another().av(av).open());
    let peer = End::of(granted.peer().open());
    meet(&end, &peer);
    let (sent, got) = (Memory::patterned(8, 3), Memory::new(8));
    end.receive(&got).context(1).post().expect("posting a receive");
    let out = peer.out(peer.insert(&end), &sent).context(2);
    peer.post(&end, "posting a send", || out.send());
    let event = end.ended(&peer, 1, "a message");
    let Event::Done(_, source) = event else { panic!("a failure: {event:?}") };
    got.check(8, 3);
    source
}

/// A message from a peer that is not in the vector (`FI_SOURCE_ERR`).
fn stranger(granted: &Granted) {
    count();
    let end = End::of(granted.another().open());
    let peer = End::of(granted.peer().open());
    let (sent, got) = (Memory::patterned(8, 3), Memory::new(8));
    end.receive(&got).context(1).post().expect("posting a receive");
    let out = peer.out(peer.insert(&end), &sent).context(2);
    peer.post(&end, "posting a send", || out.send());
    let error = end.ended(&peer, 1, "a message").failed();
    assert_eq!(error.err, Errno::EADDRNOTAVAIL, "FI_SOURCE_ERR");
    end.insert_address(&Address::new(end.info.addr_format, &error.err_data));
}

/// Messages to a group (`FI_MULTICAST`), repeated until one arrives: datagrams may be lost.
fn grouped(granted: &Granted) {
    count();
    let v6 = granted.info.addr_format == AddrFormat::SockaddrIn6;
    let ip = if v6 {
        Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, 0x78).into()
    } else {
        Ipv4Addr::new(239, 192, 78, 200).into()
    };
    let group = Address::from(SocketAddr::new(ip, 7471));
    let open = || {
        let side = granted.another().open_disabled().expect("an endpoint");
        let eq = open_eq(&side.fabric).expect("an event queue");
        side.ep.bind_eq(&eq).expect("binding it");
        side.ep.enable().expect("enabling");
        let joined = side.ep.join_multicast(&group, BindFlags::empty(), Context(4)).expect("FI_MULTICAST");
        let event = wait::drive(&[&side], "the join", || eq.read().ok());
        assert_eq!(event.kind, EventKind::JoinComplete);
        (side, joined, eq)
    };
    let ((from, joined, _from_eq), (at, _member, _at_eq)) = (open(), open());
    if v6 {
        return; // not every interface of IPv6 routes its own groups back
    }
    at.insert(&from); // or it is a stranger (FI_SOURCE_ERR)
    let (sent, got) = (Memory::patterned(8, 3), Memory::new(8));
    at.receive(&got).context(1).post().expect("posting a receive");
    let mut last = None;
    wait::drive(&[&from, &at], "a message to a group", || {
        if last.is_none_or(|last: Instant| last.elapsed() > Duration::from_millis(20)) {
            last = Some(Instant::now());
            let _ = from.out(joined.addr(), &sent).context(2).send();
        }
        at.next_of(1)
    })
    .done();
}
