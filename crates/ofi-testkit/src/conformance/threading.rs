//! Threading levels (fi_domain(3), "threading").

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::prelude::*;

fn pair_at(kit: &dyn Kit, threading: Threading) -> Pair {
    kit.pair_with(|opening| opening.threading(threading))
}

fn exchange(pair: &Pair) {
    for len in [0, 64, 9_000, 300_000] {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        let target = Memory::new(len + 1);
        let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.b.receive(&into).context(2).tag(3).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).tag(3).send());
        pair.post(|| pair.a.out(pair.to_b, &from).context(4).write(&[remote_at(&region, 0, len)]));
        pair.drive("the receive", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        pair.drive("the write", || pair.a.next_of(4)).done();
        into.check(len, 5);
        target.check(len, 5);
    }
}

pub fn everything_works_at_domain_level(kit: &dyn Kit) {
    exchange(&pair_at(kit, Threading::Domain));
}

pub fn everything_works_at_completion_level(kit: &dyn Kit) {
    exchange(&pair_at(kit, Threading::Completion));
}

pub fn everything_works_at_safe_level(kit: &dyn Kit) {
    exchange(&pair_at(kit, Threading::Safe));
}

pub fn at_completion_level_endpoints_of_a_domain_run_apart(kit: &dyn Kit) {
    // Two endpoints of one domain, each with a queue and a thread of its own.
    let opening = || kit.opening().threading(Threading::Completion);
    let a1 = opening().open();
    let a2 = opening().beside(&a1).open();
    let b1 = opening().open();
    let b2 = opening().beside(&b1).open();
    let pairs = [Pair::of(a1, b1), Pair::of(a2, b2)];
    std::thread::scope(|scope| {
        for pair in &pairs {
            scope.spawn(|| (0..20).for_each(|_| exchange(pair)));
        }
    });
}

pub fn eight_threads_hammer_one_endpoint(kit: &dyn Kit) {
    const THREADS: usize = 8;
    const EACH: usize = 400;
    let pair = kit.pair();
    let (sent, received) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let into = Memory::new(THREADS * EACH * 64);
    let start = Instant::now();
    let late = || {
        let (sent, received) = (sent.load(Ordering::Relaxed), received.load(Ordering::Relaxed));
        let text = format!("{sent} sent, {received} received\n{}\n{}", pair.a.report(), pair.b.report());
        assert!(start.elapsed() < 3 * wait::BOUND, "{text}");
        std::thread::yield_now();
    };
    // Any thread may read entries of any thread's operations; the contents are counted by tag.
    let take = |side: &TestEndpoint| {
        let mut entries = [CqTaggedEntry::EMPTY; 4];
        match side.rx.read(&mut CqBuffer::new(&mut entries)) {
            Ok(count) => {
                for entry in &entries[..count] {
                    if entry.flags.contains(CompletionFlags::RECV) {
                        let (thread, number) = (entry.tag as usize >> 32, entry.tag as u32 as usize);
                        assert_eq!(
                            entry.op_context.0,
                            thread * EACH + number + 1,
                            "each receive has its tag"
                        );
                        assert_eq!(entry.len, number % 65);
                        received.fetch_add(1, Ordering::Relaxed);
                    } else {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Err(error) if error.is_again() => {}
            Err(error) => panic!("{error}: {:?}", side.rx.read_error()),
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pair, take, late, into) = (&pair, &take, &late, &into);
            scope.spawn(move || {
                for number in 0..EACH {
                    let from = Memory::patterned(number % 65, thread as u8);
                    let tag = (thread as u64) << 32 | number as u64;
                    while let Err(error) = pair.a.out(pair.to_b, &from).tag(tag).context(1).send() {
                        assert!(error.is_again(), "{error}");
                        take(&pair.a);
                        take(&pair.b); // all threads may be here, and b has to make room
                        late();
                    }
                    take(&pair.a);
                    // And the receives, in another order than the sends.
                    let number = (number * 7) % EACH;
                    let at = (thread * EACH + number) * 64;
                    let tag = (thread as u64) << 32 | number as u64;
                    let receive =
                        pair.b.receive(into.slice(at..at + 64)).tag(tag).context(thread * EACH + number + 1);
                    while let Err(error) = receive.post() {
                        assert!(error.is_again(), "{error}");
                        take(&pair.b);
                        late();
                    }
                    take(&pair.b);
                }
            });
        }
    });
    while sent.load(Ordering::Relaxed) < THREADS * EACH || received.load(Ordering::Relaxed) < THREADS * EACH {
        take(&pair.a);
        take(&pair.b);
        late();
    }
    for thread in 0..THREADS {
        for number in 0..EACH {
            let at = (thread * EACH + number) * 64;
            into.slice(at..at + (number % 65).min(64)).check(thread as u8);
        }
    }
}

pub fn eight_threads_write_and_read_through_one_endpoint(kit: &dyn Kit) {
    const THREADS: usize = 8;
    const EACH: usize = 60;
    const LEN: usize = 20_000;
    for library in [false, true] {
        let pair = kit.pair();
        let target =
            if library { Memory::library(&pair.b.domain, THREADS * LEN) } else { Memory::new(THREADS * LEN) };
        let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        let done: Vec<AtomicUsize> = (0..THREADS).map(|_| AtomicUsize::new(0)).collect();
        let start = Instant::now();
        let take = || {
            pair.b.poll();
            let mut entries = [CqTaggedEntry::EMPTY; 4];
            match pair.a.tx.read(&mut CqBuffer::new(&mut entries)) {
                Ok(count) => entries[..count].iter().for_each(|entry| {
                    done[entry.op_context.0 - 1].fetch_add(1, Ordering::Release);
                }),
                Err(error) if error.is_again() => {}
                Err(error) => panic!("{error}: {:?}", pair.a.tx.read_error()),
            }
            assert!(start.elapsed() < 3 * wait::BOUND, "{}\n{}", pair.a.report(), pair.b.report());
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pair, take, region, done) = (&pair, &take, &region, &done);
                scope.spawn(move || {
                    let there = [remote_at(region, thread * LEN, LEN)];
                    let mut count = 0;
                    let mut run = |post: &dyn Fn() -> Result<()>| {
                        while let Err(error) = post() {
                            assert!(error.is_again(), "{error}");
                            take();
                        }
                        count += 1;
                        while done[thread].load(Ordering::Acquire) < count {
                            take();
                            std::thread::yield_now();
                        }
                    };
                    for number in 0..EACH {
                        let seed = (thread * EACH + number) as u8;
                        let (from, back) = (Memory::patterned(LEN, seed), Memory::new(LEN));
                        run(&|| pair.a.out(pair.to_b, &from).context(thread + 1).write(&there));
                        run(&|| pair.a.out(pair.to_b, &back).context(thread + 1).read(&there));
                        back.check(LEN, seed);
                    }
                });
            }
        });
    }
}

/// Imitates a widely used program, which asks for a level at which an endpoint and its queue belong to one thread, and
/// then sends and writes from one thread while another posts receives and reads the queue. Both ends do that.
pub fn threads_that_break_their_promise_lose_nothing(kit: &dyn Kit) {
    const COUNT: usize = 600;
    const POSTED: usize = 16;
    const LEN: usize = 4_096;
    for threading in [Threading::Completion, Threading::Domain] {
        let pair = pair_at(kit, threading);
        let ends = [(&pair.a, &pair.b, pair.to_b), (&pair.b, &pair.a, pair.to_a)];
        let targets = [Memory::new(COUNT * 64), Memory::new(COUNT * 64)];
        let regions: Vec<_> = ends
            .iter()
            .zip(&targets)
            .map(|((_, to, _), target)| to.register(target, MrAccess::REMOTE_WRITE).unwrap())
            .collect();
        // Counted by direction.
        let counts: [[AtomicUsize; 3]; 2] = Default::default();
        let start = Instant::now();
        let wait = || {
            let text = || format!("{threading:?} {counts:?}\n{}\n{}", pair.a.report(), pair.b.report());
            assert!(start.elapsed() < 3 * wait::BOUND, "{}", text());
            std::thread::yield_now();
        };
        let len = |number: usize| number * 37 % LEN;
        std::thread::scope(|scope| {
            for (direction, &(from, to, peer)) in ends.iter().enumerate() {
                let received = &counts[direction][1];
                let [sent_back, _, written_back] = &counts[1 - direction];
                let (region, wait, counts) = (&regions[direction], &wait, &counts);
                scope.spawn(move || {
                    let post = |post: &dyn Fn() -> Result<()>| {
                        while let Err(error) = post() {
                            assert!(error.is_again(), "{error}");
                            wait();
                        }
                    };
                    for number in 0..COUNT {
                        let out = Memory::patterned(len(number), number as u8);
                        post(&|| from.out(peer, &out).context(1 << 32).tag(number as u64).send());
                        let out = Memory::patterned(64, number as u8);
                        let there = [remote_at(region, number * 64, 64)];
                        post(&|| from.out(peer, &out).context(2 << 32).write(&there));
                    }
                });
                // This thread alone reads the queue of `to`, which also reports the completions of `to`'s sends.
                scope.spawn(move || {
                    let into = Memory::new(POSTED * LEN);
                    let (mut posted, mut taken) = (0, 0);
                    let mut entries = [CqTaggedEntry::EMPTY; 8];
                    // The peer's last operations need polls of this end too.
                    while counts.iter().flatten().any(|count| count.load(Ordering::Relaxed) < COUNT) {
                        while posted < COUNT && posted < taken + POSTED {
                            let at = posted % POSTED * LEN;
                            let receive = to.receive(into.slice(at..at + LEN)).tag(posted as u64);
                            match receive.context(posted).post() {
                                Ok(()) => posted += 1,
                                Err(error) if error.is_again() => break,
                                Err(error) => panic!("{error}"),
                            }
                        }
                        match to.rx.read(&mut CqBuffer::new(&mut entries)) {
                            Ok(count) => {
                                entries[..count].iter().for_each(|entry| match entry.op_context.0 >> 32 {
                                    1 => drop(sent_back.fetch_add(1, Ordering::Relaxed)),
                                    2 => drop(written_back.fetch_add(1, Ordering::Relaxed)),
                                    _ => {
                                        let number = entry.op_context.0;
                                        assert_eq!(
                                            (number, entry.tag, entry.len),
                                            (taken, taken as u64, len(taken))
                                        );
                                        let at = number % POSTED * LEN;
                                        into.slice(at..at + entry.len).check(number as u8);
                                        taken += 1;
                                        received.store(taken, Ordering::Relaxed);
                                    }
                                })
                            }
                            Err(error) if error.is_again() => wait(),
                            Err(error) => panic!("{error}: {:?}", to.rx.read_error()),
                        }
                    }
                });
            }
        });
        for target in &targets {
            for number in 0..COUNT {
                target.slice(number * 64..(number + 1) * 64).check(number as u8);
            }
        }
    }
}

pub fn control_calls_come_from_any_thread(kit: &dyn Kit) {
    let pair = kit.pair();
    let names: Vec<Address> = {
        let others: Vec<TestEndpoint> = (0..20).map(|_| kit.side()).collect();
        others.iter().map(TestEndpoint::name).collect()
    };
    let stop = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let control = scope.spawn(|| {
            for round in 0..200 {
                let inserted = pair.b.av.insert(&names);
                let numbers: Vec<FiAddr> = inserted.into_iter().map(|one| one.unwrap()).collect();
                let region = pair.b.register(&Memory::new(64), MrAccess::REMOTE_WRITE).unwrap();
                let _ = pair.b.ep.statistics();
                region.close().unwrap();
                pair.b.av.remove(&numbers).unwrap();
                stop.store(round + 1, Ordering::Relaxed);
            }
        });
        let mut count = 0;
        while !control.is_finished() || count < 100 {
            pair.post(|| pair.b.receive(()).context(2).post());
            pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
            let (entry, source) = pair.done_from(&pair.b);
            assert_eq!((entry.op_context, source), (Context(2), pair.to_a));
            count += 1;
        }
    });
    assert_eq!(stop.load(Ordering::Relaxed), 200);
}

pub fn endpoints_come_and_go_beside_a_busy_queue(kit: &dyn Kit) {
    let pair = kit.pair();
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for _ in 0..60 {
                let other = kit.opening().beside(&pair.b).queue(&pair.b.rx).open();
                drop(other);
            }
        });
        let mut count = 0;
        while !churn.is_finished() || count < 100 {
            pair.post(|| pair.b.receive(()).context(2).post());
            pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
            assert_eq!(pair.done(&pair.b).op_context, Context(2));
            count += 1;
        }
    });
}

/// A receiver that does not poll again does not delay others for long, and one poll of it always suffices.
pub fn a_send_ends_by_its_receiver_s_next_look_at_any_level(kit: &dyn Kit) {
    for threading in [Threading::Domain, Threading::Completion] {
        let pair = pair_at(kit, threading);
        // After answers, acknowledgements wait to be combined with data.
        for _ in 0..20 {
            for (from, to, peer) in [(&pair.a, &pair.b, pair.to_b), (&pair.b, &pair.a, pair.to_a)] {
                let (out, into) = (Memory::patterned(64, 5), Memory::new(64));
                pair.post(|| to.receive(&into).context(2).post());
                pair.post(|| from.out(peer, &out).context(1).send());
                pair.drive("the message", || to.next_of(2)).done();
                pair.drive("its end", || from.next_of(1)).done();
            }
        }
        let (out, into) = (Memory::patterned(64, 6), Memory::new(64));
        pair.post(|| pair.b.receive(&into).context(2).post());
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &out).context(1).send().ok());
        wait::drive(&[&pair.b], "the message", || pair.b.next_of(2)).done();
        let start = Instant::now();
        let mut end = None;
        while end.is_none() && start.elapsed() < Duration::from_millis(300) {
            end = pair.a.next_of(1);
        }
        let end = end.unwrap_or_else(|| {
            let _ = pair.b.rx.read(&mut CqBuffer::new::<CqTaggedEntry>(&mut []));
            wait::drive(&[&pair.a], "the end of the send, after one look of its receiver", || {
                pair.a.next_of(1)
            })
        });
        end.done();
    }
}
