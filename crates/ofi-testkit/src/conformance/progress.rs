//! Progress modes (fi_domain(3), "progress").

use crate::prelude::*;

/// Small, in several parts, and large.
const LENGTHS: [usize; 4] = [64, 9_000, 300_000, 8 << 20];

/// A pair in which `b` (or both) makes progress automatically.
fn automatic(kit: &dyn Kit) -> Pair {
    kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Auto)))
}

/// Polls only `side` until it reports something.
#[track_caller]
fn next(side: &TestEndpoint, what: &str) -> Event {
    wait::drive(&[side], what, || side.next())
}

pub fn a_few_injected_messages_leave_without_a_poll(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    for _ in 0..20 {
        for context in 1..=4 {
            pair.b.receive(()).context(context).post().unwrap();
        }
        for _ in 0..4 {
            wait::drive(&[], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
        }
        for context in 1..=4 {
            let entry = next(&pair.b, "a message whose sender makes no more calls").done();
            assert_eq!(entry.op_context, Context(context));
        }
        wait::drive_through(Duration::from_millis(1), &[&pair.a, &pair.b]);
    }
}

pub fn automatic_targets_serve_accesses_without_a_call(kit: &dyn Kit) {
    let pair = automatic(kit);
    assert_eq!(pair.b.info.domain_attr.progress, Progress::Auto);
    for library in [false, true] {
        for len in LENGTHS {
            let target = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
            let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
            let (from, back) = (Memory::patterned(len, 5), Memory::new(len));
            wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).write(&[remote(&region)]).ok());
            next(&pair.a, "a write to a target that makes no calls").done();
            target.check(len, 5);
            wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &back).read(&[remote(&region)]).ok());
            next(&pair.a, "a read from a target that makes no calls").done();
            back.check(len, 5);
        }
    }
}

pub fn automatic_receivers_take_large_messages_without_a_call(kit: &dyn Kit) {
    let pair = automatic(kit);
    for len in LENGTHS {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        pair.b.receive(&into).context(2).post().unwrap();
        let flags = OpFlags::DELIVERY_COMPLETE;
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).msg(flags).send().ok());
        next(&pair.a, "delivery to a receiver that makes no calls").done();
        into.check(len, 5);
        assert_eq!(next(&pair.b, "the entry").done().len, len);
    }
}

pub fn automatic_senders_send_large_messages_without_a_call(kit: &dyn Kit) {
    let a = kit.opening().hints(|hints| hints.progress(Progress::Auto)).open();
    let pair = Pair::of(a, kit.side());
    for len in LENGTHS {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        pair.b.receive(&into).context(2).post().unwrap();
        wait::drive(&[&pair.b], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
        assert_eq!(next(&pair.b, "a message whose sender makes no more calls").done().len, len);
        into.check(len, 5);
        assert_eq!(next(&pair.a, "the send").done().op_context, Context(1));
    }
}

pub fn automatic_on_both_sides_needs_no_call_at_all(kit: &dyn Kit) {
    let pair = automatic(kit);
    let (from, into) = (Memory::patterned(8 << 20, 5), Memory::new(8 << 20));
    pair.b.receive(&into).context(2).post().unwrap();
    wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
    let last = into.slice((8 << 20) - 1..);
    let wanted = from.slice((8 << 20) - 1..).bytes();
    assert_ne!(wanted, [0]);
    wait::until("the last byte, with nobody calling", || last.bytes() == wanted);
    assert_eq!(pair.done(&pair.b).len, 8 << 20);
    into.check(8 << 20, 5);
}

pub fn automatic_progress_lets_the_application_poll_too(kit: &dyn Kit) {
    let pair = automatic(kit);
    for round in 0..3_000_usize {
        let len = if round % 100 == 0 { 200_000 } else { round % 64 };
        let (from, into) = (Memory::patterned(len, round as u8), Memory::new(len));
        pair.post(|| pair.b.receive(&into).context(2).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        assert_eq!(pair.done(&pair.b).len, len);
        into.check(len, round as u8);
        pair.done(&pair.a);
    }
}

pub fn automatic_progress_keeps_the_order_of_entries(kit: &dyn Kit) {
    let pair = automatic(kit);
    let count = pair.b.info.rx_attr.size.min(500);
    for number in 0..count {
        pair.b.receive(()).context(number + 1).post().unwrap();
    }
    for number in 0..count {
        wait::drive(&[], "room", || pair.a.out(pair.to_b, ()).data(number as u64).inject().send().ok());
        if number % 100 == 50 {
            std::thread::sleep(Duration::from_millis(25)); // long enough for a helper to take over
        }
    }
    for number in 0..count {
        let entry = next(&pair.b, "a message").done();
        assert_eq!((entry.op_context, entry.data), (Context(number + 1), number as u64));
    }
}

pub fn automatic_progress_wakes_a_blocked_reader(kit: &dyn Kit) {
    let pair =
        kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Auto)).wait_obj(WaitObj::Fd));
    let (from, into) = (Memory::patterned(1 << 20, 5), Memory::new(1 << 20));
    for _ in 0..5 {
        pair.b.receive(&into).context(2).post().unwrap();
        wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
        let mut entry = [CqTaggedEntry::EMPTY];
        for side in [&pair.b, &pair.a] {
            let read = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(wait::BOUND));
            assert_eq!(read, Ok(1), "{}", side.report());
        }
    }
}

pub fn manual_progress_needs_only_reads_of_a_queue(kit: &dyn Kit) {
    // Every read makes progress, even one into an empty array, and one of a queue that stays empty.
    let pair = kit.pair_with(|opening| opening.two_queues().hints(|hints| hints.progress(Progress::Manual)));
    let (target, from) = (Memory::new(300_000), Memory::patterned(300_000, 5));
    let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
    wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]).ok());
    let mut entries = [CqTaggedEntry::EMPTY];
    wait::drive(&[], "the write, driven by reads of b's transmit queue", || {
        let _ = pair.b.tx.read(&mut CqBuffer::new::<CqTaggedEntry>(&mut []));
        pair.a.tx.read(&mut CqBuffer::new(&mut entries)).ok()
    });
    target.check(300_000, 5);
}

pub fn a_send_ends_though_its_receiver_looks_no_more(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    for len in [0, 64, 5_000] {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        pair.b.receive(&into).context(2).post().unwrap();
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
        // The poll that finds the message is the last one.
        wait::drive(&[&pair.b], "the message", || pair.b.next_of(2)).done();
        into.check(len, 5);
        wait::drive(&[&pair.a], "the end of the send", || pair.a.next_of(1)).done();
    }
}
