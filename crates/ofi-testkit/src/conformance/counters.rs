//! Counters of endpoints and of regions (fi_cntr(3), fi_mr(3)).

use std::sync::Arc;

use crate::prelude::*;

/// Long enough to distinguish a time-out on a busy machine.
const SHORT: Duration = Duration::from_millis(50);
/// No wake-up may take this long.
const LONG: Duration = Duration::from_secs(5);
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const BOTH: BindFlags = BindFlags::TRANSMIT.union(BindFlags::RECV);
/// Lengths of one packet, and of many parts.
const LENGTHS: [usize; 3] = [8, 3_000, 200_000];

fn plain() -> CntrAttr {
    CntrAttr::default()
}

fn bytes() -> CntrAttr {
    CntrAttr { events: CntrEvents::Bytes, ..CntrAttr::default() }
}

fn waiting(wait_obj: WaitObj) -> CntrAttr {
    CntrAttr { wait_obj, ..CntrAttr::default() }
}

/// Counters of sends, receives, reads and writes, in this order.
fn by_kind(opening: Opening) -> Opening {
    [BindFlags::SEND, BindFlags::RECV, BindFlags::READ, BindFlags::WRITE]
        .into_iter()
        .fold(opening, |opening, kind| opening.counter(plain(), kind))
}

fn values(side: &TestEndpoint) -> Vec<u64> {
    side.counters.iter().map(|counter| counter.read()).collect()
}

fn errors(side: &TestEndpoint) -> Vec<u64> {
    side.counters.iter().map(|counter| counter.read_error()).collect()
}

/// Drives both until `side`'s counters have these values.
#[track_caller]
fn reach(pair: &Pair, side: &TestEndpoint, wanted: &[u64]) {
    pair.drive(&format!("counters at {wanted:?}"), || (values(side) == wanted).then_some(()));
}

/// A pair whose second side counts accesses by peers, if the transport supports that.
fn with_events(kit: &dyn Kit, attr: &CntrAttr) -> Option<Pair> {
    let hints = kit.usual();
    let caps = hints.info.caps | Caps::RMA_EVENT;
    let hints = hints.caps(caps);
    kit.getinfo(&hints).ok()?;
    let target = kit
        .opening_for(hints)
        .counter(attr.clone(), BindFlags::REMOTE_READ)
        .counter(attr.clone(), BindFlags::REMOTE_WRITE);
    Some(Pair::of(kit.side(), target.open()))
}

pub fn every_kind_of_operation_has_its_counter(kit: &dyn Kit) {
    let pair = kit.pair_with(by_kind);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        let region = pair.b.register(&into, RIGHTS).unwrap();
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.b.receive(&into).context(1).tag(7).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).tag(7).send());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).read(&[remote(&region)]));
        pair.all_done(&pair.a, 2, 4);
        pair.all_done(&pair.b, 1, 2);
        let round = number as u64 + 1;
        assert_eq!(values(&pair.a), [2 * round, 0, round, round], "{len} bytes");
        assert_eq!(values(&pair.b), [0, 2 * round, 0, 0], "{len} bytes");
    }
    assert_eq!((errors(&pair.a), errors(&pair.b)), (vec![0; 4], vec![0; 4]));
}

pub fn operations_without_an_entry_are_counted(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| by_kind(opening).selective(BOTH));
    let into = Memory::new(4_000);
    let region = pair.b.register(&into, RIGHTS).unwrap();
    for _ in 0..6 {
        pair.post(|| pair.b.receive(&into).post());
    }
    for len in [8, 4_000] {
        let from = Memory::patterned(len, 1);
        pair.post(|| pair.a.out(pair.to_b, &from).send());
        pair.post(|| pair.a.out(pair.to_b, &from).msg(OpFlags::empty()).send());
    }
    let small = Memory::patterned(8, 1);
    pair.post(|| pair.a.out(pair.to_b, &small).inject().send());
    pair.post(|| pair.a.out(pair.to_b, &small).msg(OpFlags::INJECT).send());
    pair.post(|| pair.a.out(pair.to_b, &small).inject().write(&[remote_at(&region, 0, 8)]));
    reach(&pair, &pair.a, &[6, 0, 0, 1]);
    reach(&pair, &pair.b, &[0, 6, 0, 0]);
    pair.quiet(SHORT);
}

pub fn counters_stand_in_for_queues(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| by_kind(opening).without_queue(BOTH));
    let size = pair.a.info.tx_attr.size.max(pair.b.info.rx_attr.size) as u64;
    // More than the credits, so that each credit must be returned without an entry being read.
    let count = size + 100;
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    for _ in 0..count {
        pair.post(|| pair.b.receive(&into).post());
        pair.post(|| pair.a.out(pair.to_b, &from).send());
    }
    reach(&pair, &pair.b, &[0, count, 0, 0]);
    reach(&pair, &pair.a, &[count, 0, 0, 0]);
    into.check(64, 1);
    let large = Memory::new(200_000);
    let region = pair.b.register(&large, RIGHTS).unwrap();
    let source = Memory::patterned(200_000, 9);
    pair.post(|| pair.a.out(pair.to_b, &source).write(&[remote(&region)]));
    reach(&pair, &pair.a, &[count, 0, 0, 1]);
    large.check(200_000, 9);
    pair.quiet(SHORT);
}

pub fn one_counter_counts_every_kind(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.counter(plain(), BindFlags::empty()));
    pair.warm_up();
    reach(&pair, &pair.a, &[2]);
    reach(&pair, &pair.b, &[2]);
}

pub fn bytes_are_counted(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        let kinds = [BindFlags::SEND, BindFlags::RECV, BindFlags::READ, BindFlags::WRITE];
        kinds.into_iter().fold(opening, |opening, kind| opening.counter(bytes(), kind))
    });
    let mut total = 0;
    for len in LENGTHS {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        let region = pair.b.register(&into, RIGHTS).unwrap();
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(5).send());
        pair.all_done(&pair.b, 1, 1);
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).read(&[remote(&region)]));
        pair.all_done(&pair.a, 2, 3);
        total += len as u64;
        assert_eq!(values(&pair.a), [total, 0, total, total]);
        assert_eq!(values(&pair.b), [0, total, 0, 0]);
    }
}

pub fn failures_are_counted_apart(kit: &dyn Kit) {
    let pair = kit.pair_with(by_kind);
    let memory = Memory::new(8);
    let closed = pair.b.register(&memory, RIGHTS).unwrap();
    let there = [remote(&closed)];
    closed.close().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &memory).context(2).write(&there));
    pair.failed(&pair.a);
    pair.post(|| pair.a.out(pair.to_b, &memory).context(2).read(&there));
    pair.failed(&pair.a);
    pair.b.receive(&memory).context(3).post().unwrap();
    pair.b.cancel(3).unwrap();
    pair.failed(&pair.b);
    // A message longer than its receive fails at the receiver, not here.
    pair.post(|| pair.b.receive(memory.slice(..4)).context(4).post());
    pair.post(|| pair.a.out(pair.to_b, &memory).context(2).send());
    pair.failed(&pair.b);
    pair.all_done(&pair.a, 2, 1);
    assert_eq!((values(&pair.a), errors(&pair.a)), (vec![1, 0, 0, 0], vec![0, 0, 1, 1]));
    assert_eq!((values(&pair.b), errors(&pair.b)), (vec![0; 4], vec![0, 2, 0, 0]));
}

pub fn failures_without_a_queue_are_counted_only(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| by_kind(opening).without_queue(BOTH));
    let memory = Memory::new(8);
    let closed = pair.b.register(&memory, RIGHTS).unwrap();
    let there = [remote(&closed)];
    closed.close().unwrap();
    let count = pair.a.info.tx_attr.size as u64 + 10;
    for _ in 0..count {
        pair.post(|| pair.a.out(pair.to_b, &memory).write(&there));
    }
    pair.drive("failures", || (errors(&pair.a) == [0, 0, 0, count]).then_some(()));
    for _ in 0..pair.b.info.rx_attr.size + 10 {
        pair.b.receive(&memory).context(3).post().unwrap();
        pair.b.cancel(3).unwrap();
    }
    pair.quiet(SHORT);
}

pub fn a_search_that_finds_nothing_counts_as_nothing(kit: &dyn Kit) {
    let side = by_kind(kit.opening()).open();
    side.receive(()).context(1).tag(4).msg(OpFlags::PEEK).post().unwrap();
    assert_eq!(wait::drive(&[&side], "the answer", || side.next()).failed().err, Errno::ENOMSG);
    assert_eq!((values(&side), errors(&side)), (vec![0; 4], vec![0; 4]));
}

pub fn a_counter_is_added_to_and_set(kit: &dyn Kit) {
    let side = kit.opening().counter(plain(), BindFlags::SEND).open();
    let counter = &side.counters[0];
    counter.add(5).unwrap();
    counter.add(7).unwrap();
    counter.add_error(2).unwrap();
    assert_eq!((counter.read(), counter.read_error()), (12, 2));
    counter.set(3).unwrap();
    counter.set_error(1).unwrap();
    assert_eq!((counter.read(), counter.read_error()), (3, 1));
    counter.set(u64::MAX).unwrap();
    assert_eq!(counter.read(), u64::MAX);
    counter.add(1).unwrap();
    assert_eq!(counter.read(), 0, "it wraps");
    assert_eq!(counter.events(), CntrEvents::Comp);
}

pub fn endpoints_share_a_counter(kit: &dyn Kit) {
    let hub = kit.opening().without_queue(BindFlags::RECV).open_disabled().unwrap();
    let counter = hub.domain.open_counter(&waiting(WaitObj::Unspec)).unwrap();
    hub.ep.bind_counter(&counter, BindFlags::RECV).unwrap();
    hub.ep.enable().unwrap();
    let second = kit.opening().beside(&hub).without_queue(BindFlags::RECV).open_disabled().unwrap();
    second.ep.bind_counter(&counter, BindFlags::RECV).unwrap();
    second.ep.enable().unwrap();
    let sender = kit.side();
    for receiver in [&hub, &second] {
        receiver.receive(()).post().unwrap();
        let to = sender.insert(receiver);
        wait::drive(&[&sender], "room", || sender.out(to, ()).context(1).send().ok());
    }
    // Their queues are not read: the counter drives both.
    wait::drive(&[&sender], "both messages", || (counter.read() == 2).then_some(()));
    drop(hub);
    assert_eq!(counter.read(), 2);
    second.receive(()).post().unwrap();
    let to = sender.insert(&second);
    wait::drive(&[&sender], "room", || sender.out(to, ()).context(1).send().ok());
    wait::drive(&[&sender], "one more", || (counter.read() == 3).then_some(()));
}

/// A pair whose second side has one counter of receives and no queue for them.
fn counting_receiver(kit: &dyn Kit, wait_obj: WaitObj) -> Pair {
    let receiver = kit.opening().counter(waiting(wait_obj), BindFlags::RECV).without_queue(BindFlags::RECV);
    let pair = Pair::of(kit.side(), receiver.open());
    // Connects them.
    pair.post(|| pair.b.receive(()).post());
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    reach(&pair, &pair.b, &[1]);
    pair
}

pub fn a_wait_ends_at_its_threshold(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield, WaitObj::Pollfd] {
        let pair = counting_receiver(kit, wait_obj);
        let counter = &pair.b.counters[0];
        for _ in 0..60 {
            pair.b.receive(()).post().unwrap();
        }
        let mut at = 1;
        for step in [1, 3, 0, 10] {
            at += step;
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| counter.wait(at, Some(LONG)));
                std::thread::sleep(Duration::from_millis(5));
                for _ in 0..step {
                    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
                }
                while !waiter.is_finished() {
                    pair.a.poll();
                }
                waiter.join().unwrap().unwrap();
            });
            assert!(counter.read() >= at, "{wait_obj}");
        }
    }
}

pub fn a_wait_times_out(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let side = kit.opening().counter(waiting(wait_obj), BindFlags::RECV).open();
        for timeout in [Duration::ZERO, SHORT] {
            let start = Instant::now();
            let error = side.counters[0].wait(1, Some(timeout)).unwrap_err();
            assert_eq!(error.errno(), Errno::ETIMEDOUT, "{wait_obj}");
            assert!(start.elapsed() >= timeout, "{wait_obj}: returned after {:?}", start.elapsed());
            assert!(start.elapsed() < timeout + LONG, "{wait_obj}: returned after {:?}", start.elapsed());
        }
        side.counters[0].wait(0, Some(Duration::ZERO)).unwrap();
    }
}

pub fn a_failure_ends_a_wait_on_a_counter(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let side = kit.opening().counter(waiting(wait_obj), BindFlags::RECV).open();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| side.counters[0].wait(1, Some(LONG)));
            std::thread::sleep(Duration::from_millis(20));
            side.receive(()).context(3).post().unwrap();
            side.cancel(3).unwrap();
            // The wait may have started after the failure; then another failure ends it.
            let start = Instant::now();
            while !waiter.is_finished() {
                if start.elapsed() > Duration::from_millis(500) {
                    side.counters[0].add_error(1).unwrap();
                }
                std::thread::yield_now();
            }
            assert_eq!(waiter.join().unwrap().unwrap_err().errno(), Errno::EAVAIL, "{wait_obj}");
        });
    }
}

pub fn a_counter_without_a_wait_object_cannot_be_waited_on(kit: &dyn Kit) {
    let side = kit.opening().counter(plain(), BindFlags::RECV).open();
    let counter = &side.counters[0];
    assert_eq!(counter.wait(0, Some(SHORT)).unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(counter.trywait().unwrap_err().errno(), Errno::EINVAL);
    assert!(counter.wait_fd().is_none());
    let unspecified = side.domain.open_counter(&waiting(WaitObj::Unspec)).unwrap();
    assert!(unspecified.wait_fd().is_none());
}

pub fn a_counter_s_descriptor_becomes_readable(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Fd, WaitObj::Pollfd] {
        let pair = counting_receiver(kit, wait_obj);
        let counter = &pair.b.counters[0];
        let fd = counter.wait_fd().expect("FI_WAIT_FD has a descriptor");
        for round in 0..20u64 {
            pair.b.receive(()).post().unwrap();
            std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
                });
                while counter.read() < round + 2 {
                    if counter.trywait().is_ok() {
                        assert!(wait::readable(fd, LONG), "blocked for ever after fi_trywait said so");
                    }
                }
                sender.join().unwrap();
            });
        }
        // Unprocessed changes must prevent sleep.
        counter.add(1).unwrap();
        assert!(counter.trywait().unwrap_err().is_again());
        counter.read();
        counter.trywait().unwrap();
    }
}

pub fn no_wake_up_is_lost_between_counters(kit: &dyn Kit) {
    const ROUNDS: u64 = 500;
    let side = || {
        kit.opening().counter(waiting(WaitObj::Unspec), BindFlags::RECV).without_queue(BindFlags::RECV).open()
    };
    let pair = Pair::of(side(), side());
    let play = |side: &TestEndpoint, to: FiAddr, serves: bool| {
        for round in 1..=ROUNDS {
            side.receive(()).post().unwrap();
            if serves {
                wait::drive(&[side], "room", || side.out(to, ()).inject().send().ok());
            }
            side.counters[0].wait(round, Some(LONG)).unwrap();
            if !serves {
                wait::drive(&[side], "room", || side.out(to, ()).inject().send().ok());
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&pair.b, pair.to_a, false));
        play(&pair.a, pair.to_b, true);
        // The last answer may still have to be sent.
        wait::drive(&[&pair.a, &pair.b], "the end", || (values(&pair.b) == [ROUNDS]).then_some(()));
    });
}

pub fn automatic_progress_counts_without_a_call(kit: &dyn Kit) {
    let automatic = |opening: Opening| opening.hints(|hints| hints.progress(Progress::Auto));
    let receiver = automatic(kit.opening())
        .counter(waiting(WaitObj::Unspec), BindFlags::RECV)
        .without_queue(BindFlags::RECV);
    let pair = Pair::of(automatic(kit.opening()).open(), receiver.open());
    let into = Memory::new(200_000);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        pair.b.receive(&into).post().unwrap();
        let from = Memory::patterned(len, 8);
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
        pair.b.counters[0].wait(number as u64 + 1, Some(LONG)).unwrap();
        into.slice(..len).check(8);
        wait::drive(&[&pair.a], "the send", || pair.a.next_of(1)).done();
    }
}

pub fn peers_accesses_are_counted(kit: &dyn Kit) {
    let Some(pair) = with_events(kit, &plain()) else { return };
    let mut round = 0;
    for library in [false, true] {
        for len in LENGTHS {
            let target = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
            let region = pair.b.register(&target, RIGHTS).unwrap();
            let from = Memory::patterned(len, 4);
            for _ in 0..3 {
                pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
                pair.all_done(&pair.a, 1, 1);
                pair.post(|| pair.a.out(pair.to_b, &from).context(1).read(&[remote(&region)]));
                pair.all_done(&pair.a, 1, 1);
                round += 1;
                reach(&pair, &pair.b, &[round, round]);
                target.check(len, 4);
            }
        }
    }
    pair.quiet(SHORT);
    assert_eq!(errors(&pair.b), [0, 0]);
}

pub fn peers_bytes_are_counted(kit: &dyn Kit) {
    let Some(pair) = with_events(kit, &bytes()) else { return };
    let mut total = 0;
    for len in LENGTHS {
        let target = Memory::new(len);
        let region = pair.b.register(&target, RIGHTS).unwrap();
        let from = Memory::patterned(len, 4);
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).read(&[remote(&region)]));
        pair.all_done(&pair.a, 1, 2);
        total += len as u64;
        reach(&pair, &pair.b, &[total, total]);
    }
}

pub fn refused_accesses_of_peers_are_not_counted(kit: &dyn Kit) {
    let Some(pair) = with_events(kit, &plain()) else { return };
    let target = Memory::new(8);
    let region = pair.b.register(&target, MrAccess::REMOTE_READ).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &target).context(1).write(&[remote(&region)]));
    pair.failed(&pair.a);
    pair.quiet(SHORT);
    assert_eq!(values(&pair.b), [0, 0]);
}

/// Counters of a region's reads and writes.
fn watch(pair: &Pair, region: &Arc<dyn MemoryRegion>) -> [Arc<dyn Counter>; 2] {
    [BindFlags::REMOTE_READ, BindFlags::REMOTE_WRITE].map(|flag| {
        let counter = pair.b.domain.open_counter(&waiting(WaitObj::Unspec)).unwrap();
        region.bind_counter(&counter, flag).unwrap();
        counter
    })
}

pub fn a_region_counts_its_accesses(kit: &dyn Kit) {
    let Some(pair) = with_events(kit, &plain()) else { return };
    for library in [false, true] {
        let len = 200_000;
        let target = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
        let (region, other) =
            (pair.b.register(&target, RIGHTS).unwrap(), pair.b.register(&target, RIGHTS).unwrap());
        let [reads, writes] = watch(&pair, &region);
        let from = Memory::patterned(len, 4);
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let part = from.slice(..len);
            for region in [&region, &other] {
                let there = [remote_at(region, 0, len)];
                pair.post(|| pair.a.out(pair.to_b, part.clone()).context(1).write(&there));
                pair.post(|| pair.a.out(pair.to_b, part.clone()).context(1).read(&there));
                pair.all_done(&pair.a, 1, 2);
            }
            // Reading the region's counters must be enough to drive its endpoint.
            let number = number as u64 + 1;
            pair.drive("the region's counters", || {
                ((reads.read(), writes.read()) == (number, number)).then_some(())
            });
        }
        writes.wait(3, Some(LONG)).unwrap();
        assert_eq!((reads.read(), writes.read()), (3, 3));
    }
}

pub fn a_region_counts_from_the_moment_it_is_bound(kit: &dyn Kit) {
    let pair = kit.pair();
    let target = Memory::library(&pair.b.domain, 4096);
    let region = pair.b.register(&target, RIGHTS).unwrap();
    let from = Memory::patterned(4096, 4);
    let write = |times: u64| {
        for _ in 0..times {
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
            pair.all_done(&pair.a, 1, 1);
        }
    };
    write(5); // perhaps after its owner
    let [reads, writes] = watch(&pair, &region);
    write(7);
    pair.drive("seven writes", || (writes.read() == 7).then_some(()));
    assert_eq!(reads.read(), 0);
}

pub fn a_region_is_enabled_late(kit: &dyn Kit) {
    let pair = kit.pair();
    let target = Memory::new(8);
    let pieces = [target.slice(..).piece()];
    // SAFETY: `target` lives as long as the pair's endpoints do, which are closed below.
    let mut attr = unsafe { MrAttr::new(&pieces, RIGHTS) };
    attr.disabled = true;
    let region = pair.b.domain.register(&attr).unwrap();
    assert_eq!(region.key(), KEY_NOTAVAIL);
    region.bind_endpoint(&pair.b.ep).unwrap();
    let [_, writes] = watch(&pair, &region);
    region.enable().unwrap();
    region.enable().unwrap();
    assert_ne!(region.key(), KEY_NOTAVAIL);
    let from = Memory::patterned(8, 4);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
    pair.all_done(&pair.a, 1, 1);
    target.check(8, 4);
    pair.drive("the count", || (writes.read() == 1).then_some(()));
    region.close().unwrap();
    assert_eq!(region.enable().unwrap_err().errno(), Errno::EINVAL);
    drop((pair, target));
}

pub fn a_region_is_refreshed(kit: &dyn Kit) {
    let side = kit.side();
    let (memory, outside) = (Memory::new(100), Memory::new(100));
    let region = side.register(&memory, RIGHTS).unwrap();
    region.refresh(&[]).unwrap();
    region.refresh(&[memory.slice(10..20).piece(), memory.slice(90..).piece()]).unwrap();
    let error = region.refresh(&[outside.slice(..).piece()]).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    region.close().unwrap();
    assert_eq!(region.refresh(&[]).unwrap_err().errno(), Errno::EINVAL);
}

pub fn wrong_bindings_of_counters_are_refused(kit: &dyn Kit) {
    let side = kit.opening().open_disabled().unwrap();
    let counter = side.domain.open_counter(&plain()).unwrap();
    let bind =
        |counter: &Arc<dyn Counter>, flags| side.ep.bind_counter(counter, flags).map_err(|e| e.errno());
    assert_eq!(bind(&counter, BindFlags::SELECTIVE_COMPLETION), Err(Errno::EBADFLAGS));
    assert_eq!(bind(&counter, BindFlags::REMOTE_WRITE), Err(Errno::EOPNOTSUPP), "without FI_RMA_EVENT");
    let elsewhere = kit.side().domain.open_counter(&plain()).unwrap();
    assert_eq!(bind(&elsewhere, BindFlags::SEND), Err(Errno::EDOMAIN));
    bind(&counter, BindFlags::SEND | BindFlags::RECV).unwrap();
    assert_eq!(bind(&counter, BindFlags::RECV), Err(Errno::EBUSY));
    bind(&counter, BindFlags::READ).unwrap();
    side.ep.enable().unwrap();
    assert_eq!(bind(&counter, BindFlags::WRITE), Err(Errno::EOPBADSTATE));
    let region = side.register(&Memory::new(8), RIGHTS).unwrap();
    let bind = |counter: &Arc<dyn Counter>, flags| region.bind_counter(counter, flags).map_err(|e| e.errno());
    assert_eq!(bind(&counter, BindFlags::SEND), Err(Errno::EBADFLAGS));
    assert_eq!(bind(&counter, BindFlags::empty()), Err(Errno::EBADFLAGS));
    assert_eq!(bind(&elsewhere, BindFlags::REMOTE_WRITE), Err(Errno::EDOMAIN));
    bind(&counter, BindFlags::REMOTE_WRITE).unwrap();
    assert_eq!(bind(&counter, BindFlags::REMOTE_WRITE), Err(Errno::EBUSY));
    // With one direction that has neither a queue nor a counter.
    let half = kit.opening().without_queue(BOTH).counter(plain(), BindFlags::SEND).try_open();
    assert_eq!(half.err().unwrap().errno(), Errno::ENOCQ);
}

pub fn a_counter_outlives_its_endpoint(kit: &dyn Kit) {
    let pair = kit.pair_with(by_kind);
    pair.warm_up();
    let counters = pair.a.counters.clone();
    drop(pair);
    assert_eq!(counters.iter().map(|counter| counter.read()).collect::<Vec<_>>(), [1, 1, 0, 0]);
    counters[0].add(1).unwrap();
    assert_eq!(counters[0].read(), 2);
}
