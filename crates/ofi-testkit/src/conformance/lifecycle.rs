//! Opening, naming and closing (fi_endpoint(3), fi_cm(3), fi_domain(3)).

use std::sync::{Arc, Mutex};

use crate::connect::connect;
use crate::prelude::*;
use crate::side::lock;

pub fn closing_ends_outstanding_operations_silently(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::new(300_000), Memory::new(300_000));
    pair.a.out(pair.to_b, &from).context(1).send().unwrap();
    pair.a.receive(&into).context(2).post().unwrap();
    let (tx, rx) = (Arc::clone(&pair.a.tx), Arc::clone(&pair.a.rx));
    drop(pair);
    let mut entries = [CqTaggedEntry::EMPTY; 4];
    assert_eq!(tx.read(&mut CqBuffer::new(&mut entries)), Err(Error::AGAIN));
    assert_eq!(rx.read(&mut CqBuffer::new(&mut entries)), Err(Error::AGAIN));
    assert_eq!(rx.read_error().unwrap_err().errno(), Errno::EAGAIN);
}

pub fn closing_in_the_middle_fails_the_peer_s_operations_once_each(kit: &dyn Kit) {
    const LEN: usize = 8 << 20;
    for steps in [0, 2, 20] {
        for operation in 0..5 {
            let pair = kit.pair();
            pair.warm_up();
            let (ours, theirs) = (Memory::patterned(LEN, 1), Memory::new(LEN));
            let region = pair.b.register(&theirs, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
            let out = pair.a.out(pair.to_b, &ours).context(1);
            pair.post(|| match operation {
                0 => pair.b.receive(&theirs).context(2).post().and_then(|()| out.send()),
                1 => out.send(), // announced but never received
                2 => out.write(&[remote(&region)]),
                3 => out.read(&[remote(&region)]),
                _ => pair
                    .a
                    .receive(&ours)
                    .context(1)
                    .post()
                    .and_then(|()| pair.b.out(pair.to_a, &theirs).context(2).send()),
            });
            (0..steps).for_each(|_| pair.poll());
            let Pair { a, b, .. } = pair;
            drop(b);
            // It may already have completed, but it completes only once. A receive without a message stays posted.
            let event = wait::drive_for(Duration::from_secs(3), &[&a], "the end of an operation", || {
                let ended = a.next_of(1);
                let posted = operation == 4 && a.statistic("rx_posted") == 1;
                (ended.is_some() || posted).then_some(ended)
            });
            if let Some(Event::Failed(error)) = event {
                assert!(![Errno::ETRUNC, Errno::EAGAIN].contains(&error.err), "{error:?}");
            }
            wait::drive_through(Duration::from_millis(10), &[&a]);
            assert_eq!(a.pending(), 0, "operation {operation} ended twice\n{}", a.report());
            // Nobody waits for the first message, which was injected: it may end with the connection.
            wait::drive_for(Duration::from_secs(3), &[&a], "the end of all operations", || {
                (a.statistic("tx_outstanding") == 0).then_some(())
            });
            assert_eq!(a.pending(), 0, "operation {operation}\n{}", a.report());
        }
    }
}

pub fn what_a_peer_got_before_it_closed_is_a_success(kit: &dyn Kit) {
    let levels = [OpFlags::DELIVERY_COMPLETE, OpFlags::TRANSMIT_COMPLETE];
    for level in levels.into_iter().cycle().take(40) {
        let pair = kit.pair();
        pair.warm_up();
        let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
        pair.b.receive(&into).context(2).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).msg(level).send());
        let Pair { a, b, .. } = pair;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                wait::drive(&[&b], "the message", || b.next_of(2));
                drop(b);
            });
            let end = wait::drive_for(Duration::from_secs(10), &[&a], "the confirmation", || a.next_of(1));
            assert!(matches!(end, Event::Done(..)), "{end:?}");
        });
    }
}

pub fn objects_may_be_dropped_in_any_order(kit: &dyn Kit) {
    // Children keep their parents open, so no order is wrong and nothing dangles.
    for first in 0..5 {
        let pair = kit.pair();
        pair.warm_up();
        let Pair { a, b, to_b, .. } = pair;
        let (domain, fabric, av, cq) =
            (Arc::clone(&b.domain), Arc::clone(&b.fabric), Arc::clone(&b.av), Arc::clone(&b.rx));
        let region = b.register(&Memory::new(64), MrAccess::REMOTE_WRITE).unwrap();
        let there = remote(&region);
        let mut objects: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(domain), Box::new(fabric), Box::new(av), Box::new(cq), Box::new(region)];
        objects.rotate_left(first);
        let from = Memory::new(64);
        wait::drive(&[&a, &b], "room", || a.out(to_b, &from).context(1).write(&[there]).ok());
        drop(objects);
        wait::drive(&[&a, &b], "the end of the write", || a.next());
        drop(b);
        drop(a);
    }
}

pub fn a_name_is_known_once_enabled(kit: &dyn Kit) {
    let side = kit.opening().open_disabled().unwrap();
    let early = side.ep.name().map_err(|error| error.errno());
    assert_eq!(early.is_ok(), kit.names_early(), "{early:?}");
    assert!(matches!(early, Ok(_) | Err(Errno::EOPBADSTATE)), "{early:?}");
    side.ep.enable().unwrap();
    let name = side.ep.name().unwrap();
    assert_eq!(name.format(), side.info.addr_format);
    assert!(!name.bytes().is_empty());
}

/// fi_getname(3) before fi_enable, as C's providers answer it.
pub fn an_endpoint_keeps_the_name_that_it_has_before_enabling(kit: &dyn Kit) {
    let [first, second] = [(); 2].map(|()| kit.opening().open_disabled().unwrap());
    let name = first.ep.name().unwrap();
    assert_eq!(name.format(), first.info.addr_format);
    assert_eq!(first.ep.name().unwrap(), name, "each time the same");
    assert_ne!(second.ep.name().unwrap(), name, "nobody else gets it");
    first.ep.enable().unwrap();
    assert_eq!(first.ep.name().unwrap(), name);
    drop(second); // disabled, with a name
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    let (sender, to) = if first.info.ep_attr.ep_type == EpType::Msg {
        (connect(&first, kit.opening()).unwrap(), FiAddr::UNSPEC)
    } else {
        let sender = kit.side();
        let to = sender.insert_address(&name);
        (sender, to)
    };
    first.receive(&into).context(1).post().unwrap();
    wait::drive(&[&sender, &first], "room", || sender.out(to, &from).context(2).send().ok());
    wait::drive(&[&sender, &first], "a message", || first.next_of(1)).done();
    into.check(64, 1);
}

pub fn a_name_is_chosen_before_enabling_only(kit: &dyn Kit) {
    let name = {
        let side = kit.side();
        side.name()
    };
    let side = kit.opening().name(&name).open_disabled().unwrap();
    if kit.names_early() {
        assert_eq!(side.ep.name().unwrap(), name, "the name that was set");
        side.ep.set_name(&name).expect("the name may still be set");
    }
    side.ep.enable().unwrap();
    assert_eq!(side.name(), name, "the name of an endpoint that is gone is free");
    let error = side.ep.set_name(&name).unwrap_err();
    assert_eq!(error.errno(), Errno::EOPBADSTATE, "{error}");
}

pub fn a_name_in_use_is_refused(kit: &dyn Kit) {
    let first = kit.side();
    let error = kit.opening().name(&first.name()).try_open().err().unwrap();
    assert_eq!(error.errno(), Errno::EADDRINUSE, "{error}");
    assert!(error.detail().is_some(), "{error}");
    let name = first.name();
    drop(first);
    kit.opening().name(&name).open();
}

pub fn a_name_of_another_format_is_refused(kit: &dyn Kit) {
    let side = kit.opening().open_disabled().unwrap();
    let error = side.ep.set_name(&Address::new(AddrFormat::Efa, &[1; 32])).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
}

pub fn the_source_address_of_the_hints_is_the_name(kit: &dyn Kit) {
    let name = {
        let side = kit.side();
        side.name()
    };
    let side = kit.opening().hints(|hints| hints.src_addr(name.clone())).open();
    assert_eq!(side.name(), name);
}

pub fn a_peer_that_closes_and_comes_back_under_its_name_is_met_anew(kit: &dyn Kit) {
    let a = kit.side();
    let b = kit.side();
    let name = b.name();
    let to_b = a.insert(&b);
    let mut b = Some(b);
    for round in 0..6 {
        let side = b.take().unwrap_or_else(|| kit.opening().name(&name).open());
        let (from, into) = (Memory::patterned(100, round), Memory::new(100));
        side.receive(&into).context(2).post().unwrap();
        // Until the new incarnation is known, sends may fail as for the old one.
        let start = Instant::now();
        let mut outstanding = false;
        while side.next_of(2).is_none() {
            assert!(start.elapsed() < wait::BOUND, "{}\n{}", a.report(), side.report());
            if !outstanding {
                // Delivered, or an error: data that the old incarnation had taken is lost with it.
                let flags = OpFlags::DELIVERY_COMPLETE;
                outstanding = a.out(to_b, &from).context(1).msg(flags).send().is_ok();
            }
            a.poll();
            side.poll();
            while let Some(event) = a.next() {
                outstanding &= !matches!(event, Event::Failed(_));
            }
            std::thread::yield_now();
        }
        into.check(100, round);
    }
}

pub fn options_are_read_set_and_bounded(kit: &dyn Kit) {
    let side = kit.side();
    let info = &side.info;
    for (option, limit) in [
        (EpOption::MaxMsgSize, info.ep_attr.max_msg_size),
        (EpOption::MaxTaggedSize, info.ep_attr.max_msg_size),
        (EpOption::MaxRmaSize, info.ep_attr.max_msg_size),
        (EpOption::InjectMsgSize, info.tx_attr.inject_size),
        (EpOption::InjectTaggedSize, info.tx_attr.inject_size),
        (EpOption::InjectRmaSize, info.tx_attr.inject_size),
    ] {
        match side.ep.option(option) {
            Ok(value) => assert!(value <= limit, "{option:?}"),
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOPROTOOPT, "{option:?}");
                continue;
            }
        }
        let error = side.ep.set_option(option, limit + 1).unwrap_err();
        assert!([Errno::EINVAL, Errno::ENOPROTOOPT].contains(&error.errno()), "{option:?}: {error}");
        if side.ep.set_option(option, 100).is_ok() {
            assert_eq!(side.ep.option(option), Ok(100));
        }
    }
}

pub fn every_option_is_served_or_refused_with_a_reason(kit: &dyn Kit) {
    let side = kit.side();
    for option in EpOption::ALL {
        assert_eq!(EpOption::from_c(option as i32), Some(option));
        match side.ep.option(option) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), Errno::ENOPROTOOPT, "{option:?}");
                assert!(!error.detail().expect("a reason").wanted.is_empty(), "{option:?}");
                assert_eq!(side.ep.set_option(option, 0).unwrap_err().errno(), Errno::ENOPROTOOPT);
            }
        }
    }
    assert_eq!(side.ep.option(EpOption::TxSize), Ok(side.info.tx_attr.size));
    assert_eq!(side.ep.option(EpOption::RxSize), Ok(side.info.rx_attr.size));
    for read_only in [EpOption::TxSize, EpOption::RxSize, EpOption::CmDataSize] {
        assert_eq!(side.ep.set_option(read_only, 1).unwrap_err().errno(), Errno::ENOPROTOOPT);
    }
}

pub fn a_size_option_bounds_what_is_sent(kit: &dyn Kit) {
    let pair = kit.pair();
    if pair.a.ep.set_option(EpOption::InjectMsgSize, 10).is_ok() {
        let memory = Memory::new(11);
        let error = pair.a.out(pair.to_b, &memory).inject().send().unwrap_err();
        assert_eq!(error.errno(), Errno::EMSGSIZE, "{error}");
        pair.a
            .out(pair.to_b, &memory)
            .tag(1)
            .inject()
            .send()
            .unwrap_or_else(|error| assert!(error.is_again()));
    }
}

pub fn statistics_count_what_happened(kit: &dyn Kit) {
    let pair = kit.pair();
    let before = pair.a.statistic("tx_messages");
    for _ in 0..5 {
        pair.b.receive(()).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
        pair.done(&pair.b);
    }
    assert_eq!(pair.a.statistic("tx_messages"), before + 5);
    assert_eq!(pair.b.statistic("rx_messages"), 5);
    assert!(pair.b.ep.statistics().iter().all(|one| !one.name.is_empty() && !one.help.is_empty()));
}

pub fn a_watcher_hears_of_messages_before_their_receives(kit: &dyn Kit) {
    use UnexpectedEvent::{Matched, Received};
    let pair = kit.pair();
    let heard = Arc::new(Mutex::new(Vec::new()));
    // The state that it reads in the call is the state after the event.
    let (told, ep) = (Arc::clone(&heard), Arc::downgrade(&pair.b.ep));
    let watcher: Watcher = Arc::new(move |event| {
        let waiting = ep.upgrade().map(|ep| ep.statistics()).unwrap_or_default();
        let waiting = waiting.iter().find(|one| one.name == "rx_unexpected_now").map(|one| one.value);
        lock(&told).push((event, waiting));
    });
    pair.b.ep.watch_unexpected(Some(watcher)).unwrap();
    // An expected message is not reported.
    pair.b.receive(()).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    pair.done(&pair.b);
    assert_eq!(*lock(&heard), []);
    for _ in 0..2 {
        pair.keep(|| pair.a.out(pair.to_b, ()).inject().send());
    }
    let expected = [(Received, Some(1)), (Received, Some(2))];
    pair.drive("both to be heard of", || (lock(&heard).len() == 2).then_some(()));
    assert_eq!(lock(&heard).split_off(0), expected);
    for left in [1, 0] {
        pair.b.receive(()).post().unwrap();
        pair.done(&pair.b);
        pair.drive("it to be heard of", || (!lock(&heard).is_empty()).then_some(()));
        assert_eq!(lock(&heard).split_off(0), [(Matched, Some(left))]);
    }
    pair.b.ep.watch_unexpected(None).unwrap();
    pair.keep(|| pair.a.out(pair.to_b, ()).inject().send());
    pair.b.receive(()).post().unwrap();
    pair.done(&pair.b);
    assert_eq!(*lock(&heard), []);
}

pub fn a_domain_adds_up_what_is_open_in_it(kit: &dyn Kit) {
    let count = |side: &TestEndpoint, name: &str| {
        let all = side.domain.statistics();
        assert!(all.iter().all(|one| all.iter().filter(|other| other.name == one.name).count() == 1));
        all.iter().find(|one| one.name == name).map(|one| one.value)
    };
    let pair = kit.pair();
    let memory = Memory::new(64);
    let [endpoints, regions, received] =
        ["endpoints", "memory_regions", "rx_messages"].map(|name| count(&pair.b, name).unwrap());
    assert!(endpoints >= 1);
    let other = pair.b.domain.open_endpoint(&pair.b.info).unwrap();
    let region = pair.b.register(&memory, MrAccess::SEND).unwrap();
    pair.b.receive(()).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    pair.done(&pair.b);
    let now = ["endpoints", "memory_regions", "rx_messages"].map(|name| count(&pair.b, name).unwrap());
    assert_eq!(now, [endpoints + 1, regions + 1, received + 1]);
    drop((other, region));
    assert_eq!(
        ["endpoints", "memory_regions"].map(|name| count(&pair.b, name)),
        [Some(endpoints), Some(regions)]
    );
}

pub fn enabling_twice_is_harmless_or_refused(kit: &dyn Kit) {
    let side = kit.side();
    if let Err(error) = side.ep.enable() {
        assert_eq!(error.errno(), Errno::EOPBADSTATE, "{error}");
    }
    side.name();
}
