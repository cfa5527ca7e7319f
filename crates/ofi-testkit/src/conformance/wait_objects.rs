//! Sleeping until a queue has entries (fi_cq(3), fi_poll(3), fi_trywait).

use crate::prelude::*;

/// Long enough to distinguish a time-out on a busy machine.
const SHORT: Duration = Duration::from_millis(50);
/// No wake-up may take this long.
const LONG: Duration = Duration::from_secs(5);

/// Blocks as in fi_trywait(3) until `side`'s receive queue has an entry.
fn next_by_fd(side: &TestEndpoint) -> Event {
    let fd = side.rx.wait_fd().expect("FI_WAIT_FD has a descriptor");
    let start = Instant::now();
    loop {
        side.poll();
        if let Some(event) = side.next() {
            return event;
        }
        assert!(start.elapsed() < LONG, "nothing came\n{}", side.report());
        if side.rx.trywait().is_ok() {
            assert!(wait::readable(fd, LONG), "blocked for ever after fi_trywait said so\n{}", side.report());
        }
    }
}

/// Blocks in `read_wait` until an entry arrives.
fn next_by_wait(side: &TestEndpoint) -> CqTaggedEntry {
    let mut entry = [CqTaggedEntry::EMPTY];
    let start = Instant::now();
    loop {
        match side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG)) {
            Ok(1) => return entry[0],
            Err(error) if error.is_again() => {
                assert!(start.elapsed() < LONG, "nothing came\n{}", side.report())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Opens sides on which a thread can block while another one sends.
fn sides(kit: &dyn Kit, wait_obj: WaitObj) -> Pair {
    kit.pair_with(|opening| opening.wait_obj(wait_obj))
}

pub fn without_a_wait_object_nothing_blocks(kit: &dyn Kit) {
    let side = kit.opening().wait_obj(WaitObj::None).open();
    let mut entry = [CqTaggedEntry::EMPTY];
    let error = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(SHORT)).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    assert_eq!(side.rx.signal().unwrap_err().errno(), Errno::EINVAL);
    assert!(side.rx.wait_fd().is_none());
}

pub fn an_unspecified_wait_object_has_no_descriptor(kit: &dyn Kit) {
    let side = kit.opening().wait_obj(WaitObj::Unspec).open();
    assert!(side.rx.wait_fd().is_none());
    assert!(kit.opening().wait_obj(WaitObj::Fd).open().rx.wait_fd().is_some());
}

pub fn every_wait_object_can_be_had(kit: &dyn Kit) {
    let side = kit.side();
    for &wait_obj in WaitObj::VALUES {
        let queue = side.domain.open_cq(&CqAttr { wait_obj, ..CqAttr::default() });
        if wait_obj == WaitObj::Set {
            let error = queue.err().unwrap();
            assert_eq!(error.errno(), Errno::EINVAL, "without a set: {error}");
            assert!(error.detail().is_some());
            continue;
        }
        let queue = queue.unwrap();
        let shows_descriptor = matches!(wait_obj, WaitObj::Fd | WaitObj::Pollfd);
        assert_eq!(queue.wait_fd().is_some(), shows_descriptor, "{wait_obj}");
        assert_eq!(queue.mutex_cond().is_some(), wait_obj == WaitObj::MutexCond, "{wait_obj}");
    }
}

pub fn a_blocking_read_times_out(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let side = kit.opening().wait_obj(wait_obj).open();
        let mut entry = [CqTaggedEntry::EMPTY];
        for timeout in [Duration::ZERO, SHORT] {
            let start = Instant::now();
            let error = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(timeout)).unwrap_err();
            assert_eq!(error.errno(), Errno::EAGAIN);
            assert!(start.elapsed() >= timeout, "{wait_obj}: returned after {:?}", start.elapsed());
            assert!(start.elapsed() < timeout + LONG, "{wait_obj}: returned after {:?}", start.elapsed());
        }
    }
}

pub fn a_blocking_read_answers_what_is_there_at_once(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let pair = sides(kit, wait_obj);
        pair.warm_up();
        pair.b.receive(()).context(2).post().unwrap();
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
        assert_eq!(next_by_wait(&pair.b).op_context, Context(2), "{wait_obj}");
    }
}

pub fn a_signal_ends_a_blocking_read(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let side = kit.opening().wait_obj(wait_obj).open();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let start = Instant::now();
                let mut entry = [CqTaggedEntry::EMPTY];
                let answer = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG));
                (answer, start.elapsed())
            });
            // Repeat: the waiter may not have started yet.
            while !waiter.is_finished() {
                side.rx.signal().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            let (answer, waited) = waiter.join().unwrap();
            assert_eq!(answer.unwrap_err().errno(), Errno::EAGAIN, "{wait_obj}");
            assert!(waited < LONG, "{wait_obj}");
        });
    }
}

pub fn a_message_ends_a_blocking_read(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let pair = sides(kit, wait_obj);
        pair.warm_up();
        for round in 0..30 {
            pair.b.receive(()).context(round + 1).post().unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| next_by_wait(&pair.b).op_context);
                // The waiter sometimes sleeps already, and sometimes does not.
                std::thread::sleep(Duration::from_micros(200 * (round as u64 % 5)));
                wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
                assert_eq!(waiter.join().unwrap(), Context(round + 1), "{wait_obj}");
            });
        }
    }
}

pub fn an_error_ends_a_blocking_read(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd, WaitObj::Yield] {
        let pair = sides(kit, wait_obj);
        pair.warm_up();
        pair.b.receive(()).context(2).post().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut entry = [CqTaggedEntry::EMPTY];
                pair.b.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG))
            });
            std::thread::sleep(Duration::from_millis(2));
            let from = Memory::new(10);
            wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).inject().send().ok());
            assert_eq!(waiter.join().unwrap().unwrap_err().errno(), Errno::EAVAIL, "{wait_obj}");
        });
        assert_eq!(pair.b.rx.read_error().unwrap().err, Errno::ETRUNC);
    }
}

pub fn a_cancellation_by_another_thread_ends_a_blocking_read(kit: &dyn Kit) {
    for wait_obj in [WaitObj::Unspec, WaitObj::Fd] {
        let side = kit.opening().wait_obj(wait_obj).open();
        side.receive(()).context(2).post().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut entry = [CqTaggedEntry::EMPTY];
                side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG))
            });
            std::thread::sleep(Duration::from_millis(5));
            side.cancel(2).unwrap();
            assert_eq!(waiter.join().unwrap().unwrap_err().errno(), Errno::EAVAIL, "{wait_obj}");
        });
    }
}

/// A thread sleeps on the queue of `b`, another one runs `meanwhile`, then `a` sends: the sleeper must wake at once.
fn is_woken_after(pair: &Pair, what: &str, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let (mut entry, begun) = ([CqTaggedEntry::EMPTY], Instant::now());
            pair.b.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG)).unwrap();
            assert!(begun.elapsed() < LONG / 2, "not woken after {what}");
        });
        std::thread::sleep(Duration::from_millis(20));
        meanwhile();
        std::thread::sleep(Duration::from_millis(5));
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
        while !waiter.is_finished() {
            pair.a.poll();
            std::thread::yield_now();
        }
    });
}

pub fn calls_of_another_thread_leave_a_sleeper_its_wake_up(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.wait_obj(WaitObj::Unspec).hints(|hints| hints.rx_size(8)));
    pair.warm_up();
    // A post without room drives the endpoint, and a read of the same queue finds nothing.
    let post = || while pair.b.receive(()).context(2).post().is_ok() {};
    is_woken_after(&pair, "a post without room", post);
    let read = || {
        let mut entry = [CqTaggedEntry::EMPTY];
        let read = pair.b.rx.read(&mut CqBuffer::new(&mut entry));
        assert_eq!(read.unwrap_err().errno(), Errno::EAGAIN);
    };
    is_woken_after(&pair, "a read of the queue", read);
}

pub fn a_signal_tells_who_waits_by_descriptor_once(kit: &dyn Kit) {
    let side = kit.opening().wait_obj(WaitObj::Fd).open();
    wait::drive(&[&side], "a queue that may be waited for", || side.tx.trywait().ok());
    side.tx.signal().unwrap();
    assert_eq!(side.tx.trywait().unwrap_err().errno(), Errno::EAGAIN);
    wait::drive(&[&side], "the queue to be waited for again", || side.tx.trywait().ok());
}

pub fn trywait_says_again_while_something_waits(kit: &dyn Kit) {
    let pair = sides(kit, WaitObj::Fd);
    pair.warm_up();
    // FI_EAGAIN requires a read, because data of the peer may still arrive.
    pair.drive("an idle queue", || pair.b.rx.trywait().ok());
    pair.b.receive(()).context(2).post().unwrap();
    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
    // The message has arrived or is in flight; once it has arrived, blocking must not be allowed.
    wait::until("word of the message", || pair.b.rx.trywait().is_err());
    assert_eq!(pair.b.rx.trywait().unwrap_err().errno(), Errno::EAGAIN);
    assert_eq!(pair.done(&pair.b).op_context, Context(2));
}

pub fn the_descriptor_becomes_readable_for_every_event(kit: &dyn Kit) {
    let pair = sides(kit, WaitObj::Fd);
    pair.warm_up();
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, MrAccess::REMOTE_WRITE).unwrap();
    let events: [(&str, &(dyn Fn() -> Result<()> + Sync)); 4] = [
        ("a message", &|| pair.a.out(pair.to_b, ()).inject().send()),
        ("a truncated message", &|| pair.a.out(pair.to_b, &memory).inject().send()),
        ("a remote write", &|| pair.a.out(pair.to_b, &memory).data(1).inject().write(&[remote(&region)])),
        ("a large message", &|| pair.a.out(pair.to_b, ()).inject().send()),
    ];
    for (what, post) in events {
        for _ in 0..5 {
            pair.b.receive(()).context(2).post().unwrap();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| next_by_fd(&pair.b));
                std::thread::sleep(Duration::from_micros(300));
                wait::drive(&[&pair.a], what, || post().ok());
                // A write may need its initiator's progress until the target has taken it.
                wait::drive(&[&pair.a], what, || waiter.is_finished().then_some(()));
                waiter.join().unwrap();
            });
            let _ = pair.b.cancel(2);
            pair.b.poll();
            while pair.b.next().is_some() {}
        }
    }
}

pub fn a_sender_can_sleep_until_its_large_message_is_gone(kit: &dyn Kit) {
    let pair = sides(kit, WaitObj::Fd);
    let (from, into) = (Memory::patterned(3_000_000, 5), Memory::new(3_000_000));
    for wait_first in [false, true] {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                if wait_first {
                    std::thread::sleep(Duration::from_millis(5));
                }
                pair.b.receive(&into).context(2).post().unwrap();
                next_by_fd(&pair.b).done()
            });
            wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
            assert_eq!(next_by_fd(&pair.a).done().op_context, Context(1));
            assert_eq!(receiver.join().unwrap().len, 3_000_000);
        });
        into.check(3_000_000, 5);
        into.fill(0);
    }
}

pub fn sleeping_both_ends_serves_remote_accesses(kit: &dyn Kit) {
    let pair = sides(kit, WaitObj::Fd);
    let (memory, target) = (Memory::patterned(1_000_000, 5), Memory::new(1_000_000));
    let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| next_by_fd(&pair.b)); // ends with the message after the accesses
        pair.b.receive(()).context(9).post().unwrap();
        wait::drive(&[], "room", || pair.a.out(pair.to_b, &memory).context(1).write(&[remote(&region)]).ok());
        assert_eq!(next_by_fd(&pair.a).done().op_context, Context(1));
        let back = Memory::new(1_000_000);
        wait::drive(&[], "room", || pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]).ok());
        assert_eq!(next_by_fd(&pair.a).done().op_context, Context(2));
        back.check(1_000_000, 5);
        wait::drive(&[], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
        assert_eq!(server.join().unwrap().done().op_context, Context(9));
    });
}

pub fn no_wake_up_is_lost_in_a_long_ping_pong(kit: &dyn Kit) {
    const ROUNDS: usize = 3_000;
    let pair = sides(kit, WaitObj::Fd);
    pair.warm_up();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(next_by_fd(&pair.b).done().data, round as u64);
                pair.b.receive(()).context(2).post().unwrap();
                wait::drive(&[], "room", || {
                    pair.b.out(pair.to_a, ()).data(round as u64).inject().send().ok()
                });
            }
        });
        pair.a.receive(()).context(1).post().unwrap();
        for round in 0..ROUNDS {
            wait::drive(&[], "room", || pair.a.out(pair.to_b, ()).data(round as u64).inject().send().ok());
            if round == 0 {
                pair.b.receive(()).context(2).post().unwrap();
            }
            assert_eq!(next_by_fd(&pair.a).done().data, round as u64);
            pair.a.receive(()).context(1).post().unwrap();
        }
        echo.join().unwrap();
    });
}

pub fn no_wake_up_is_lost_between_blocking_reads(kit: &dyn Kit) {
    const ROUNDS: usize = 2_000;
    for wait_obj in [WaitObj::Unspec, WaitObj::Yield] {
        let pair = sides(kit, wait_obj);
        pair.warm_up();
        pair.a.receive(()).context(1).post().unwrap();
        pair.b.receive(()).context(2).post().unwrap();
        std::thread::scope(|scope| {
            let echo = scope.spawn(|| {
                for round in 0..ROUNDS {
                    assert_eq!(next_by_wait(&pair.b).data, round as u64);
                    pair.b.receive(()).context(2).post().unwrap();
                    wait::drive(&[], "room", || {
                        pair.b.out(pair.to_a, ()).data(round as u64).inject().send().ok()
                    });
                }
            });
            for round in 0..ROUNDS {
                wait::drive(&[], "room", || {
                    pair.a.out(pair.to_b, ()).data(round as u64).inject().send().ok()
                });
                assert_eq!(next_by_wait(&pair.a).data, round as u64);
                pair.a.receive(()).context(1).post().unwrap();
            }
            echo.join().unwrap();
        });
    }
}

pub fn an_idle_queue_sleeps(kit: &dyn Kit) {
    let pair = sides(kit, WaitObj::Fd);
    pair.warm_up();
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    // After earlier events have been processed, a block lasts.
    let fd = pair.b.rx.wait_fd().unwrap();
    let lasted = (0..20).any(|_| {
        pair.b.poll();
        pair.b.rx.trywait().is_ok() && !wait::readable(fd, SHORT)
    });
    assert!(lasted, "the descriptor of an idle queue stays readable");
    let mut entry = [CqTaggedEntry::EMPTY];
    let wait = kit.opening().wait_obj(WaitObj::Unspec).open();
    let before = thread_time(); // without the opening, which takes 20 ms under AddressSanitizer
    let _ = wait.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_millis(200)));
    let used = thread_time() - before;
    assert!(used < Duration::from_millis(20), "an idle blocking read used {used:?} of 200 ms");
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn a_first_message_wakes_a_sleeping_receiver(kit: &dyn Kit) {
    // Between unconnected peers: the greeting may wake the receiver before the message arrives.
    for _ in 0..60 {
        let pair = sides(kit, WaitObj::Fd);
        pair.b.receive(()).context(2).post().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| next_by_fd(&pair.b).done().op_context);
            std::thread::sleep(Duration::from_micros(300));
            wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
            wait::drive(&[&pair.a], "the waiter", || waiter.is_finished().then_some(()));
            assert_eq!(waiter.join().unwrap(), Context(2));
        });
    }
}

pub fn one_descriptor_serves_many_endpoints(kit: &dyn Kit) {
    let hub = kit.opening().wait_obj(WaitObj::Fd).open();
    let others: Vec<TestEndpoint> =
        (0..4).map(|_| kit.opening().beside(&hub).queue(&hub.rx).open()).collect();
    let sender = kit.side();
    let to: Vec<FiAddr> = others.iter().map(|side| sender.insert(side)).collect();
    for round in 0..40 {
        let which = round * 7 % 4;
        others[which].receive(()).context(which + 1).post().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| next_by_fd(&hub).done().op_context);
            std::thread::sleep(Duration::from_micros(100));
            wait::drive(&[&sender], "room", || sender.out(to[which], ()).inject().send().ok());
            wait::drive(&[&sender], "the waiter", || waiter.is_finished().then_some(()));
            assert_eq!(waiter.join().unwrap(), Context(which + 1));
        });
    }
}

pub fn a_sleeping_hub_is_woken_by_each_of_many_peers(kit: &dyn Kit) {
    // More peers than a transport may check in every poll, each quiet for long.
    const PEERS: usize = 150;
    let hub = kit.opening().wait_obj(WaitObj::Fd).open();
    let first = kit.side();
    let peers: Vec<TestEndpoint> =
        (0..PEERS).map(|_| kit.opening().beside(&first).queue(&first.rx).open()).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| peer.insert(&hub)).collect();
    let send = |number: usize| {
        hub.receive(()).context(1).post().unwrap();
        let out = peers[number].out(to[number], ()).data(number as u64).inject();
        wait::drive(&[&first], "room", || out.send().ok());
    };
    for number in 0..PEERS {
        send(number);
        wait::drive(&[&hub, &first], "a first message", || hub.next()).done();
    }
    // Long enough for quiet peers to be checked less often.
    wait::drive_through(Duration::from_millis(30), &[&hub, &first]);
    for round in 0..3 * PEERS {
        let number = round * 37 % PEERS;
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| next_by_fd(&hub).done().data);
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
            send(number);
            assert_eq!(waiter.join().unwrap(), number as u64);
        });
    }
}

pub fn an_endpoint_that_comes_later_wakes_a_sleeper_too(kit: &dyn Kit) {
    let hub = kit.opening().wait_obj(WaitObj::Unspec).open();
    let sender = kit.side();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| next_by_wait(&hub).op_context);
        std::thread::sleep(Duration::from_millis(10));
        let late = kit.opening().beside(&hub).queue(&hub.rx).open();
        let to = sender.insert(&late);
        late.receive(()).context(5).post().unwrap();
        wait::drive(&[&sender], "room", || sender.out(to, ()).inject().send().ok());
        // A first message may need more than one poll of its sender.
        wait::drive(&[&sender], "the sleeper", || waiter.is_finished().then_some(()));
        assert_eq!(waiter.join().unwrap(), Context(5));
    });
}
