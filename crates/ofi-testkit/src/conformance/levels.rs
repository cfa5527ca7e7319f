//! Completion levels, fences and FI_MORE (fi_cq(3), "Completion event semantics"; fi_msg(3), fi_rma(3)).

use crate::prelude::*;

/// The wait for an entry that must not arrive.
const WATCH: Duration = Duration::from_millis(30);

/// Lengths below and above the limit of data inside a command, for any transport.
const LENGTHS: [usize; 4] = [0, 64, 6_000, 300_000];

pub fn delivery_complete_waits_for_the_peer(kit: &dyn Kit) {
    let flags = OpFlags::DELIVERY_COMPLETE;
    for warm in [false, true] {
        for len in LENGTHS {
            let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
            if warm {
                pair.warm_up();
            }
            let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
            pair.b.receive(&into).context(2).post().unwrap();
            wait::drive(&[&pair.a], "room to post", || {
                pair.a.out(pair.to_b, &from).context(1).msg(flags).send().ok()
            });
            if !kit.moves_by_itself() {
                wait::drive_through(WATCH, &[&pair.a]);
                assert_eq!(pair.a.pending(), 0, "{len} bytes were delivered to a peer that did not look");
            }
            assert_eq!(pair.done(&pair.a).op_context, Context(1));
            // Processed: the data is in the buffer, although its completion was not read.
            into.check(len, 5);
        }
    }
}

pub fn delivery_complete_needs_no_posted_receive(kit: &dyn Kit) {
    let pair = kit.pair();
    let from = Memory::patterned(64, 5);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).msg(OpFlags::DELIVERY_COMPLETE).send());
    assert_eq!(
        pair.done(&pair.a).op_context,
        Context(1),
        "a buffer of the library's is a buffer of the peer's"
    );
    let into = Memory::new(64);
    pair.post(|| pair.b.receive(&into).post());
    pair.done(&pair.b);
    into.check(64, 5);
}

pub fn delivery_complete_by_the_endpoint_s_flags(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        opening.hints(|hints| hints.tx_op_flags(OpFlags::DELIVERY_COMPLETE).progress(Progress::Manual))
    });
    pair.warm_up();
    let from = Memory::patterned(64, 5);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    if !kit.moves_by_itself() {
        wait::drive_through(WATCH, &[&pair.a]);
        assert_eq!(pair.a.pending(), 0);
    }
    assert_eq!(pair.done(&pair.a).op_context, Context(1));
}

pub fn transmit_complete_no_longer_depends_on_the_sender(kit: &dyn Kit) {
    for len in LENGTHS {
        for posted in [true, false] {
            let (a, b) = (kit.side(), kit.side());
            let Pair { a, b, to_b, .. } = Pair::of(a, b);
            let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
            let receive = || b.receive(&into).context(2).post();
            if posted {
                receive().unwrap();
            }
            wait::drive(&[&a, &b], "room", || {
                a.out(to_b, &from).context(1).msg(OpFlags::TRANSMIT_COMPLETE).send().ok()
            });
            // Without a receive, a large message may stay at its sender, and does not complete.
            let complete = if posted || len <= 64 {
                Some(wait::drive(&[&a, &b], "transmit complete", || a.next()))
            } else {
                wait::drive_through(WATCH, &[&a, &b]);
                a.next()
            };
            let Some(event) = complete else { continue };
            assert_eq!(event.done().op_context, Context(1));
            drop(a);
            if !posted {
                receive().unwrap();
            }
            let entry = wait::drive(&[&b], "a message whose sender has gone", || b.next()).done();
            assert_eq!((entry.op_context, entry.len), (Context(2), len), "posted {posted}");
            into.check(len, 5);
        }
    }
}

pub fn closing_loses_nothing_that_was_transmitted(kit: &dyn Kit) {
    const COUNT: usize = 100;
    let Pair { a, b, to_b, .. } = {
        let pair = kit.pair();
        pair.warm_up();
        pair
    };
    let from = Memory::new(8);
    for number in 0..COUNT {
        from.slice(..).put(&number.to_ne_bytes());
        a.out(to_b, &from).tag(number as u64).msg(OpFlags::INJECT).send().unwrap();
    }
    wait::drive(&[&a], "transmit completions", || (a.pending() == COUNT).then_some(()));
    drop(a);
    // Read one by one: a reader with little room must not lose the remaining messages.
    let into = Memory::new(8 * COUNT);
    for number in 0..COUNT {
        let slice = into.slice(number * 8..number * 8 + 8);
        b.receive(slice).context(number + 1).tag(number as u64).post().unwrap();
    }
    let mut got = Vec::new();
    wait::drive(&[], "all messages of a closed sender", || {
        let mut entry = [CqTaggedEntry::EMPTY];
        match b.rx.read(&mut CqBuffer::new(&mut entry)) {
            Ok(1) => got.push(entry[0].op_context.0),
            Err(error) if error.errno() == Errno::EAVAIL => panic!("{:?}", b.rx.read_error()),
            _ => {}
        }
        (got.len() == COUNT).then_some(())
    });
    assert_eq!(got, (1..=COUNT).collect::<Vec<_>>());
}

pub fn inject_complete_gives_the_buffer_back(kit: &dyn Kit) {
    for len in LENGTHS {
        let pair = kit.pair();
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        pair.post(|| pair.b.receive(&into).context(2).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).msg(OpFlags::INJECT_COMPLETE).send());
        assert_eq!(pair.done(&pair.a).op_context, Context(1));
        from.fill(99);
        pair.done(&pair.b);
        into.check(len, 5);
    }
}

pub fn every_completion_gives_the_buffer_back(kit: &dyn Kit) {
    for len in LENGTHS {
        let pair = kit.pair();
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        pair.post(|| pair.b.receive(&into).context(2).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        pair.done(&pair.a);
        from.fill(99);
        pair.done(&pair.b);
        into.check(len, 5);
    }
}

pub fn a_write_completes_when_it_is_visible(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        for len in [1, 64, 6_000, 300_000] {
            let from = Memory::patterned(len, 5);
            let target = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
            let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
            let flags = OpFlags::DELIVERY_COMPLETE;
            pair.post(|| pair.a.out(pair.to_b, &from).msg(flags).write(&[remote(&region)]));
            pair.done(&pair.a);
            target.check(len, 5);
        }
    }
}

pub fn a_fenced_message_follows_earlier_operations(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        for len in [64, 300_000] {
            let (from, note, into) = (Memory::patterned(len, 5), Memory::new(1), Memory::new(1));
            let target = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
            let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
            pair.post(|| pair.b.receive(&into).context(2).post());
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
            pair.post(|| pair.a.out(pair.to_b, &note).context(3).msg(OpFlags::FENCE).send());
            pair.drive("the fenced message", || pair.b.next_of(2)).done();
            target.check(len, 5);
            pair.drive("the write", || pair.a.next_of(1)).done();
            pair.drive("the fenced send", || pair.a.next_of(3)).done();
        }
    }
}

pub fn a_fence_lifts_earlier_operations_to_its_level(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
    pair.warm_up();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    let target = Memory::library(&pair.b.domain, 64);
    let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
    // Once before, so that a transport that has to ask for the memory has done so.
    pair.post(|| pair.a.out(pair.to_b, &from).write(&[remote(&region)]));
    pair.done(&pair.a);
    pair.b.receive(&into).context(2).post().unwrap();
    pair.a.out(pair.to_b, &from).context(1).msg(OpFlags::TRANSMIT_COMPLETE).send().unwrap();
    let flags = OpFlags::FENCE | OpFlags::DELIVERY_COMPLETE;
    let mut posted = false;
    let mut write = || {
        posted =
            posted || pair.a.out(pair.to_b, &from).context(3).msg(flags).write(&[remote(&region)]).is_ok();
    };
    if !kit.moves_by_itself() {
        let start = Instant::now();
        while start.elapsed() < WATCH {
            write();
            pair.a.poll();
            assert!(
                pair.a.next_of(3).is_none(),
                "complete, and so all before it delivered, to a peer that did not look"
            );
        }
    }
    pair.drive("the fenced write", || {
        write();
        pair.a.next_of(3)
    })
    .done();
    into.check(64, 5);
}

pub fn a_burst_with_more_arrives(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    for number in 0..16 {
        let flags = if number < 15 { OpFlags::MORE } else { OpFlags::empty() };
        pair.post(|| pair.b.receive(&into).context(number + 1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).msg(flags).send());
    }
    for number in 0..16 {
        assert_eq!(pair.drive("a receive", || pair.b.next_of(number + 1)).done().len, 64);
    }
}

pub fn a_last_message_with_more_is_not_held_for_ever(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    pair.post(|| pair.b.receive(&into).context(2).post());
    pair.post(|| pair.a.out(pair.to_b, &from).msg(OpFlags::MORE).send());
    pair.drive("the message", || pair.b.next_of(2)).done();
}

/// Whether the transport supports `FI_MATCH_COMPLETE`.
fn matches(kit: &dyn Kit) -> bool {
    kit.getinfo(&kit.usual().tx_op_flags(OpFlags::MATCH_COMPLETE)).is_ok()
}

/// An operation of `side` completes within the bound, or does not complete while it is watched.
fn completes_or_waits(sides: &[&TestEndpoint], side: &TestEndpoint, completes: bool, what: &str) {
    if completes {
        wait::drive(sides, what, || (side.pending() == 1).then_some(()));
    } else {
        wait::drive_through(WATCH, sides);
        assert_eq!(side.pending(), 0, "{what}");
    }
}

pub fn each_level_completes_at_its_step(kit: &dyn Kit) {
    // The peer's action before a short message completes: none, a poll, a receive.
    let levels = [
        (OpFlags::INJECT_COMPLETE, 0),
        (OpFlags::TRANSMIT_COMPLETE, 0),
        (OpFlags::DELIVERY_COMPLETE, 1),
        (OpFlags::MATCH_COMPLETE, 2),
    ];
    for (level, step) in levels {
        if level == OpFlags::MATCH_COMPLETE && !matches(kit) {
            continue;
        }
        for tag in [None, Some(9)] {
            let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
            pair.warm_up();
            let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
            let out = pair.a.out(pair.to_b, &from).context(1).msg(level);
            let out = if let Some(tag) = tag { out.tag(tag) } else { out };
            pair.post(|| out.send());
            if !kit.moves_by_itself() {
                completes_or_waits(
                    &[&pair.a],
                    &pair.a,
                    step == 0,
                    &format!("{level}, before the peer looks"),
                );
            }
            let what = format!("{level}, before the peer receives");
            completes_or_waits(&[&pair.a, &pair.b], &pair.a, step <= 1, &what);
            let receive = pair.b.receive(&into).context(2);
            let receive = if let Some(tag) = tag { receive.tag(tag) } else { receive };
            receive.post().unwrap();
            assert_eq!(pair.done(&pair.a).op_context, Context(1), "{level}");
            pair.done(&pair.b);
            into.check(64, 5);
            pair.quiet(Duration::from_millis(5));
        }
    }
}

pub fn match_complete_waits_for_a_receive_at_every_size(kit: &dyn Kit) {
    if !matches(kit) {
        return;
    }
    let pair = kit.pair_with(|opening| {
        let flags = OpFlags::COMPLETION | OpFlags::MATCH_COMPLETE;
        opening.hints(|hints| hints.tx_op_flags(flags)).selective(BindFlags::TRANSMIT)
    });
    for len in LENGTHS {
        for early in [true, false] {
            let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
            if early {
                pair.b.receive(&into).context(2).post().unwrap();
            }
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
            if !early {
                wait::drive_through(WATCH, &[&pair.a, &pair.b]);
                assert_eq!(pair.a.pending(), 0, "{len} bytes were matched with nothing");
                pair.b.receive(&into).context(2).post().unwrap();
            }
            pair.all_done(&pair.a, 1, 1);
            pair.all_done(&pair.b, 2, 1);
            into.check(len, 5);
        }
    }
}

pub fn match_complete_ends_when_the_peer_discards_or_closes(kit: &dyn Kit) {
    if !matches(kit) {
        return;
    }
    let pair = kit.pair();
    pair.warm_up();
    let from = Memory::patterned(64, 5);
    let send = || pair.a.out(pair.to_b, &from).tag(3).context(1).msg(OpFlags::MATCH_COMPLETE).send();
    pair.post(send);
    let flags = OpFlags::PEEK | OpFlags::DISCARD;
    pair.drive("the message to be discarded", || {
        pair.b.receive(()).tag(3).context(2).msg(flags).post().unwrap();
        let event = wait::drive(&[&pair.a, &pair.b], "an answer", || pair.b.next_of(2));
        matches!(event, Event::Done(..)).then_some(())
    });
    pair.all_done(&pair.a, 1, 1);
    pair.post(send);
    wait::drive_through(WATCH, &[&pair.a, &pair.b]);
    assert_eq!(pair.a.pending(), 0);
    let Pair { a, b, .. } = pair;
    drop(b);
    wait::drive(&[&a], "the failure", || a.next_of(1)).failed();
}

pub fn a_level_decides_when_an_operation_without_an_entry_is_counted(kit: &dyn Kit) {
    if kit.moves_by_itself() {
        return; // the peer's part happens without it
    }
    for level in [OpFlags::DELIVERY_COMPLETE, OpFlags::MATCH_COMPLETE] {
        if level == OpFlags::MATCH_COMPLETE && !matches(kit) {
            continue;
        }
        let pair = kit.pair_with(|opening| {
            opening
                .hints(|hints| hints.progress(Progress::Manual))
                .selective(BindFlags::TRANSMIT)
                .counter(CntrAttr::default(), BindFlags::SEND)
        });
        pair.warm_up();
        let count = || pair.a.counters[0].read();
        let before = pair.drive("the first message", || Some(count()).filter(|&count| count == 1));
        let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
        pair.post(|| pair.a.out(pair.to_b, &from).msg(level).send());
        wait::drive_through(WATCH, &[&pair.a]);
        assert_eq!(count(), before, "{level}, before the peer looks");
        if level == OpFlags::MATCH_COMPLETE {
            wait::drive_through(WATCH, &[&pair.a, &pair.b]);
            assert_eq!(count(), before, "{level}, before the peer receives");
        }
        pair.post(|| pair.b.receive(&into).context(2).post());
        pair.drive("the count", || (count() == before + 1).then_some(()));
        pair.all_done(&pair.b, 2, 1);
        into.check(64, 5);
        pair.quiet(Duration::from_millis(5));
    }
}
