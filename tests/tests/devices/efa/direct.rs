//! Fabric `efa-direct`: one operation is one request (`ofi-efa/direct.rs`).

use std::sync::LazyLock;

use ofi_testkit::prelude::*;

use super::EfaPair;
use super::contexts::SOLICITED;
use super::native::{DEVICE, alone, cost, on_own_device};

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const MODES: MrMode = MrMode::VIRT_ADDR.union(MrMode::PROV_KEY).union(MrMode::ALLOCATED).union(MrMode::LOCAL);

/// The hints with which C's programs get this fabric.
fn hints(caps: Caps) -> Hints {
    let kit: &dyn Kit = &EfaPair;
    on_own_device(kit.hints()).caps(caps).mode(Mode::CONTEXT2).mr_mode(MODES)
}

/// A pair over that fabric.
pub fn direct_pair(caps: Caps) -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let side = || kit.opening_for(hints(caps)).open();
    let pair = Pair::of(side(), side());
    assert_eq!(pair.a.info.fabric_attr.name, "efa-direct");
    pair
}

#[test]
fn programs_get_the_fabric_that_c_s_provider_gives_them() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let first = |hints: &Hints| kit.info(hints).fabric_attr.name;
    let plain = hints(Caps::MSG);
    assert_eq!(first(&plain), "efa-direct");
    assert_eq!(kit.info(&plain).ep_attr.max_msg_size, 8760);
    assert_eq!(kit.info(&hints(Caps::MSG | Caps::RMA)).ep_attr.max_msg_size, 1 << 30);
    let names: Vec<_> = kit.getinfo(&plain).unwrap().into_iter().map(|info| info.fabric_attr.name).collect();
    assert_eq!(names, ["efa-direct", "efa"]);
    for other in [
        hints(Caps::MSG | Caps::TAGGED),
        hints(Caps::MSG | Caps::ATOMIC),
        hints(Caps::MSG | Caps::DIRECTED_RECV),
        hints(Caps::MSG).mode(Mode::empty()),
        hints(Caps::MSG).mr_mode(MODES - MrMode::LOCAL),
        hints(Caps::MSG).msg_order(MsgOrder::SAS),
    ] {
        assert_eq!(first(&other), "efa");
    }
}

#[test]
fn a_message_is_one_request_with_its_data_and_nothing_more() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG | Caps::SOURCE);
    for len in [0, 1, 32, 33, 8760] {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(8760));
        pair.post(|| pair.b.receive(&into).context(1).post());
        let cost = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(7).send());
            assert_eq!(DEVICE.last_inline(), len <= 32, "{len} bytes");
            let (entry, source) = pair.done_from(&pair.b);
            assert_eq!((entry.len, entry.data, source), (len, 7, pair.to_a));
            pair.done(&pair.a);
        });
        assert_eq!(cost, [0, 0, 1], "{len} bytes");
        into.check(len, 3);
    }
    let long = Memory::new(8761);
    assert_eq!(pair.a.out(pair.to_b, &long).context(2).send().unwrap_err().errno(), Errno::EMSGSIZE);
    assert_eq!(pair.b.statistic("efa_sent"), 0, "nobody was greeted");
}

#[test]
fn a_program_that_injects_more_gets_longer_requests() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let granted = |inject: usize| {
        let infos = kit.getinfo(&hints(Caps::MSG).inject_size(inject)).unwrap();
        infos.into_iter().map(|info| (info.fabric_attr.name, info.tx_attr.inject_size)).next().unwrap()
    };
    assert_eq!(granted(0), ("efa-direct".to_string(), 32));
    assert_eq!(granted(33), ("efa-direct".to_string(), 33));
    assert_eq!(granted(81), ("efa".to_string(), 81), "more than a request has room for");
    let side = || kit.opening_for(hints(Caps::MSG | Caps::RMA).inject_size(80)).open();
    let pair = Pair::of(side(), side());
    assert_eq!(pair.a.info.fabric_attr.name, "efa-direct");
    for len in [32, 33, 80, 81] {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
        assert_eq!(DEVICE.last_inline(), len <= 80, "{len} bytes");
        pair.done(&pair.b);
        pair.done(&pair.a);
        into.check(len, 3);
    }
    // The shorter queue has room for accesses too.
    let (memory, from) = (Memory::new(4096), Memory::patterned(4096, 5));
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(4096, 5);
}

#[test]
fn accesses_are_the_device_s_and_it_refuses_them_alone() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG | Caps::RMA);
    for len in [1, 8760, 65_536, 2 << 20] {
        let memory = Memory::new(len);
        let region = pair.b.register(&memory, RIGHTS).unwrap();
        let (from, back) = (Memory::patterned(len, 7), Memory::new(len));
        let write = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(9).write(&[remote(&region)]));
            let told = pair.done(&pair.b);
            assert_eq!((told.data, told.len), (9, len));
            pair.done(&pair.a);
        });
        assert_eq!(write, [1, 0, 0], "{len} bytes");
        memory.check(len, 7);
        let read = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]));
            pair.done(&pair.a);
        });
        assert_eq!(read, [0, 1, 0], "{len} bytes");
        back.check(len, 7);
        let beyond = RemotePiece { addr: remote(&region).addr + 1, ..remote(&region) };
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[beyond]));
        assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
        let strange = RemotePiece { key: 1 << 40, ..remote(&region) };
        let refused = pair.a.out(pair.to_b, &from).context(2).write(&[strange]).unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
    }
}

/// A pair whose first endpoint sets this number of device retries.
fn pair_that_retries(hints: &Hints, retries: usize) -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let a = kit.opening_for(hints.clone()).open_disabled().expect("an endpoint");
    a.ep.set_option(EpOption::EfaRnrRetry, retries).unwrap();
    a.ep.enable().unwrap();
    Pair::of(a, kit.opening_for(hints.clone()).open())
}

/// Posts more messages than the peer's device has receives, while the peer does not poll. Returns the error of a failed
/// operation.
fn end_without_receive(pair: &Pair, post: impl Fn() -> Result<()>) -> Option<Errno> {
    let (mut sent, mut failed) = (0, None);
    let mut look = || {
        pair.a.poll();
        while let Some(event) = pair.a.next() {
            if let Event::Failed(error) = event {
                failed = Some(error.err);
            }
        }
    };
    let end = Instant::now() + Duration::from_secs(30);
    while sent < 1100 && pair.a.statistic("efa_not_ready") == 0 {
        assert!(Instant::now() < end, "{sent} sent\n{}", pair.a.report());
        sent += usize::from(post().is_ok());
        look();
    }
    assert!(pair.a.statistic("efa_not_ready") > 0, "{sent} sent");
    // A failure is reported after earlier successes.
    (0..10).for_each(|_| look());
    failed
}

#[test]
fn a_message_that_finds_no_receive_fails_if_the_application_limits_the_retries() {
    let _alone = alone();
    // 16 bytes are copied into a slot; 512 registered bytes are sent in place.
    for (len, injected) in [(16, false), (16, true), (512, false)] {
        let from = Memory::patterned(len, 1);
        for (retries, wanted) in [(0, Some(Errno::ENORX)), (7, None)] {
            let pair = pair_that_retries(&hints(Caps::MSG), retries);
            let _region = (len == 512).then(|| pair.a.register(&from, MrAccess::SEND).unwrap());
            let failed = end_without_receive(&pair, || match injected {
                true => pair.a.out(pair.to_b, &from).inject().send(),
                false => pair.a.out(pair.to_b, &from).context(2).send(),
            });
            assert_eq!(failed, wanted, "{len} bytes, injected: {injected}, {retries} retries");
        }
    }
}

/// The receives are the library's: each comes back, and those of the program are for messages.
#[test]
fn accesses_are_offered_where_their_data_consumes_receives_of_the_device() {
    const WRITES: usize = 5_000; // more than the device has receives
    let _alone = alone();
    let device = LazyLock::force(&SOLICITED);
    let kit: &dyn Kit = &EfaPair;
    let of_device = hints(Caps::MSG | Caps::RMA).domain("simulated2-rdm");
    let side = || kit.opening_for(of_device.clone()).open();
    let pair = Pair::of(side(), side());
    let info = &pair.a.info;
    assert_eq!((info.fabric_attr.name.as_str(), info.rx_attr.mode), ("efa-direct", Mode::empty()));
    let (memory, from, into) = (Memory::new(64), Memory::patterned(64, 4), Memory::new(64));
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    pair.post(|| pair.b.receive(&into).context(1).post());
    let before = device.solicited();
    for at in 0..WRITES {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(at as u64).write(&[remote(&region)]));
        assert_eq!(pair.done(&pair.b).data, at as u64);
        pair.done(&pair.a);
    }
    assert_eq!(device.solicited() - before, WRITES);
    memory.check(64, 4);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    assert_eq!(pair.done(&pair.b).op_context, Context(1), "the program's receive is still there");
    pair.done(&pair.a);
}

/// On a device that has both kinds of writes with data, the application chooses. Both ends must choose the same kind.
#[test]
fn an_application_may_have_its_writes_with_data_consume_receives() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    for own in [[true, true], [false, false], [true, false], [false, true]] {
        let [a, b] = own.map(|on| {
            let side = kit.opening_for(hints(Caps::MSG | Caps::RMA)).open_disabled().unwrap();
            assert_eq!(side.info.fabric_attr.name, "efa-direct");
            assert_eq!(side.ep.option(EpOption::EfaUseUnsolicitedWriteRecv), Ok(1));
            side.ep.set_option(EpOption::EfaUseUnsolicitedWriteRecv, on.into()).unwrap();
            assert_eq!(side.ep.option(EpOption::EfaUseUnsolicitedWriteRecv), Ok(on.into()));
            side.ep.enable().unwrap();
            side
        });
        let pair = Pair::of(a, b);
        let (memory, from) = (Memory::new(64), Memory::patterned(64, 4));
        let region = pair.b.register(&memory, RIGHTS).unwrap();
        let before = DEVICE.solicited();
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(77).write(&[remote(&region)]));
        if own[0] == own[1] {
            assert_eq!(pair.done(&pair.b).data, 77);
            pair.done(&pair.a);
            memory.check(64, 4);
            assert_eq!(DEVICE.solicited() - before, usize::from(!own[0]));
        } else {
            assert_eq!(pair.failed(&pair.a).err, Errno::EIO, "{own:?}");
            pair.quiet(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_device_that_does_not_know_the_requester_refuses_its_accesses() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let open = || kit.opening_for(hints(Caps::MSG | Caps::RMA)).open();
    let (a, b) = (open(), open());
    let to_b = a.insert(&b);
    let memory = Memory::new(512);
    let region = b.register(&memory, RIGHTS).unwrap();
    let (from, there) = (Memory::patterned(512, 7), [remote(&region)]);
    let end = |write: bool| {
        match write {
            true => a.out(to_b, &from).context(2).write(&there).unwrap(),
            false => a.out(to_b, &from).context(2).read(&there).unwrap(),
        }
        wait::drive(&[&a, &b], "an end", || a.next_of(2))
    };
    for write in [true, false] {
        assert_eq!(end(write).failed().err, Errno::ENOTCONN);
    }
    assert_eq!(memory.bytes(), [0; 512]);
    b.insert(&a);
    end(true).done();
    memory.check(512, 7);
}

/// C's endpoints of this fabric do the same. A program that has injected a message may wait for its peer elsewhere.
#[test]
fn the_device_repeats_without_end_unless_the_application_limits_it() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let _side = kit.opening_for(hints(Caps::MSG)).open();
    assert_eq!(DEVICE.rnr_retry(), Some(7));
    let limited = kit.opening_for(hints(Caps::MSG)).open_disabled().unwrap();
    limited.ep.set_option(EpOption::EfaRnrRetry, 2).unwrap();
    limited.ep.enable().unwrap();
    assert_eq!(DEVICE.rnr_retry(), Some(2));
}

/// A write to an end that has inserted the writer and has not polled since, or was enabled after that.
#[test]
fn an_access_may_be_the_first_that_a_target_sees_of_whom_it_has_inserted() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let opening = || kit.opening_for(hints(Caps::MSG | Caps::RMA));
    for late in [false, true] {
        let a = opening().open();
        let b = match late {
            true => {
                let b = opening().open_disabled().unwrap();
                b.insert(&a);
                b.ep.enable().unwrap();
                b
            }
            false => {
                let b = opening().open();
                b.insert(&a);
                b
            }
        };
        let to_b = a.insert(&b);
        let memory = Memory::new(512);
        let region = b.register(&memory, RIGHTS).unwrap();
        let from = Memory::patterned(512, 7);
        a.out(to_b, &from).context(2).write(&[remote(&region)]).unwrap();
        wait::drive(&[&a], "an end", || a.next_of(2)).done();
        memory.check(512, 7);
    }
}

#[test]
fn messages_that_nobody_receives_yet_are_kept_and_none_is_lost() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG);
    let count = 3000;
    let from = Memory::patterned(512, 1);
    let mut ended = 0;
    let mut sent = 0;
    let mut received = 0;
    let into = Memory::new(512);
    let end = Instant::now() + Duration::from_secs(30);
    while received < count {
        assert!(Instant::now() < end, "{received} of {count}, {sent} sent\n{}", pair.b.report());
        if sent < count && pair.a.out(pair.to_b, &from).context(2).send().is_ok() {
            sent += 1;
        }
        pair.poll();
        while pair.a.next().is_some_and(|event| event.done().op_context.0 == 2) {
            ended += 1;
        }
        // The receiver starts when a third of the messages is sent.
        if sent > count / 3 && pair.b.pending() == 0 {
            let _ = pair.b.receive(&into).context(1).post();
        }
        while let Some(event) = pair.b.next() {
            assert_eq!(event.done().len, 512);
            received += 1;
        }
    }
    while ended < count {
        pair.done(&pair.a);
        ended += 1;
    }
}

#[test]
fn a_device_is_named_by_its_gid_and_a_peer_by_its_queue_pair_too() {
    let _alone = alone();
    let hints = hints(Caps::MSG);
    let ask = |node: &str, flags| ofi::getinfo(Version::API, Some(node), Some("9228"), flags, Some(&hints));
    let kit: &dyn Kit = &EfaPair;
    let own = kit.info(&hints).src_addr.unwrap();
    let gid: [u8; 16] = own.bytes()[..16].try_into().unwrap();
    let node = std::net::Ipv6Addr::from(gid).to_string();
    for node in [&node, &own.to_string()] {
        let infos = ask(node, GetinfoFlags::SOURCE).unwrap();
        assert!(infos.iter().all(|info| info.src_addr.as_ref() == Some(&own)), "{infos:?}");
    }
    for node in ["fe80::dead", "10.1.2.3"] {
        assert_eq!(ask(node, GetinfoFlags::SOURCE).unwrap_err().errno(), Errno::ENODATA);
    }
    // Another host's device: every info has this end's address and the peer's.
    let infos = ask("fe80::dead", GetinfoFlags::empty()).unwrap();
    for info in infos {
        let peer = info.dest_addr.unwrap();
        assert_eq!(peer.to_string(), "fi_addr_efa://[fe80::dead]:9228:0");
        assert_eq!(info.src_addr.as_ref(), Some(&own));
    }
    for node in ["10.1.2.3", "host"] {
        assert_eq!(ask(node, GetinfoFlags::empty()).unwrap_err().errno(), Errno::ENODATA);
    }
}
