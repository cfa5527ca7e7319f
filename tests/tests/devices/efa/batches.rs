//! Doorbells and requests: batches, inline payloads, payloads that are not copied.

use ofi_testkit::prelude::*;

use super::EfaPair;
use super::direct::direct_pair;
use super::native::{DEVICE, alone, on_own_device};

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

fn pair() -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    pair
}

/// How often `side`'s doorbell rings during a post.
fn doorbells(side: &TestEndpoint, post: impl FnOnce()) -> u64 {
    let before = side.statistic("efa_doorbells");
    post();
    side.statistic("efa_doorbells") - before
}

#[test]
fn messages_behind_fi_more_are_told_of_at_once() {
    let _alone = alone();
    for pair in [pair(), direct_pair(Caps::MSG)] {
        let (from, into) = (Memory::patterned(64, 3), Memory::new(64));
        (0..40).for_each(|_| pair.b.receive(&into).context(1).post().unwrap());
        let told = doorbells(&pair.a, || {
            for at in 0..10 {
                let more = if at < 9 { OpFlags::MORE } else { OpFlags::empty() };
                pair.a.out(pair.to_b, &from).context(2).msg(OpFlags::COMPLETION | more).send().unwrap();
            }
        });
        assert_eq!(told, 1);
        pair.all_done(&pair.b, 1, 10);
        pair.all_done(&pair.a, 2, 10);
        // A request with `FI_MORE` does not wait for a message that never follows.
        let word = OpFlags::COMPLETION | OpFlags::MORE;
        pair.a.out(pair.to_b, &from).context(2).msg(word).send().unwrap();
        pair.done(&pair.b);
        pair.done(&pair.a);
    }
}

#[test]
fn accesses_behind_fi_more_are_told_of_at_once() {
    let _alone = alone();
    for pair in [pair(), direct_pair(Caps::MSG | Caps::RMA)] {
        let (memory, from) = (Memory::new(640), Memory::patterned(64, 3));
        let region = pair.b.register(&memory, RIGHTS).unwrap();
        let told = doorbells(&pair.a, || {
            for at in 0..10 {
                let more = if at < 9 { OpFlags::MORE } else { OpFlags::empty() };
                let there = [remote_at(&region, 64 * at, 64)];
                let out = pair.a.out(pair.to_b, &from).context(2);
                out.msg(OpFlags::COMPLETION | more).write(&there).unwrap();
            }
        });
        assert_eq!(told, 1);
        pair.all_done(&pair.a, 2, 10);
        (0..10).for_each(|at| memory.slice(64 * at..64 * (at + 1)).check(3));
    }
}

#[test]
fn packets_that_leave_together_are_told_of_together() {
    let _alone = alone();
    let pair = pair();
    let (from, into) = (Memory::patterned(60_000, 3), Memory::new(60_000));
    pair.b.receive(&into).context(1).post().unwrap();
    let told = doorbells(&pair.a, || {
        pair.a.out(pair.to_b, &from).context(2).send().unwrap();
        pair.done(&pair.b);
        pair.done(&pair.a);
    });
    into.check(60_000, 3);
    // Seven packets of the message, and nothing else.
    assert_eq!((told, pair.a.statistic("efa_medium")), (1, 1));
}

#[test]
fn registered_memory_is_sent_and_accessed_from_where_it_lies() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG | Caps::RMA);
    let (from, into) = (Memory::patterned(8000, 3), Memory::new(8000));
    let remote_region = pair.b.register(&into, RIGHTS).unwrap();
    let at = from.as_ptr().addr();
    let is_copied = || !(at..at + 8000).contains(&DEVICE.last_used());
    let send = || {
        let copy = Memory::new(8000);
        pair.b.receive(&copy).context(1).post().unwrap();
        pair.a.out(pair.to_b, &from).context(2).send().unwrap();
        pair.done(&pair.b);
        pair.done(&pair.a);
        copy.check(8000, 3);
    };
    send();
    assert!(is_copied(), "of memory that is not registered, nothing is kept");
    let region = pair.a.register(&from, RIGHTS).unwrap();
    send();
    assert!(!is_copied(), "a message");
    for _ in 0..2 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&remote_region)]));
        assert!(!is_copied(), "a write");
        pair.done(&pair.a);
        into.check(8000, 3);
    }
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).read(&[remote(&remote_region)]));
    assert!(!is_copied(), "a read");
    pair.done(&pair.a);
    // The memory of an injected message is the caller's again at once.
    pair.a.out(pair.to_b, from.slice(..32)).inject().write(&[remote_at(&remote_region, 0, 32)]).unwrap();
    assert!(is_copied());
    region.close().unwrap();
    send();
    assert!(is_copied(), "its registration was closed");
}

#[test]
fn an_access_of_nothing_is_a_request_over_efa_direct() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG | Caps::RMA);
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let nothing = Memory::new(0);
    pair.post(|| pair.a.out(pair.to_b, &nothing).context(2).data(9).write(&[remote_at(&region, 0, 0)]));
    let told = pair.done(&pair.b);
    assert_eq!((told.data, told.len), (9, 0));
    pair.done(&pair.a);
    pair.post(|| pair.a.out(pair.to_b, &nothing).context(2).read(&[remote_at(&region, 0, 0)]));
    pair.done(&pair.a);
    assert_eq!((pair.a.statistic("efa_native_writes"), pair.a.statistic("efa_native_reads")), (1, 1));
}

#[test]
fn injected_messages_arrive_in_order_with_others() {
    let _alone = alone();
    let pair = pair();
    let into: Vec<Memory> = (0..30).map(|_| Memory::new(64)).collect();
    for (at, into) in into.iter().enumerate() {
        pair.b.receive(into).context(at).post().unwrap();
    }
    for at in 0..30 {
        let from = Memory::patterned(64, at as u8);
        match at % 3 {
            0 => pair.post(|| pair.a.out(pair.to_b, &from).context(2).send()),
            _ => pair.post(|| pair.a.out(pair.to_b, &from).inject().send()),
        }
    }
    for (at, into) in into.iter().enumerate() {
        assert_eq!(pair.done(&pair.b).op_context.0, at);
        into.check(64, at as u8);
    }
    pair.all_done(&pair.a, 2, 10);
}

#[test]
fn requests_that_the_device_refuses_fail_by_its_reason_and_the_lane_goes_on() {
    let _alone = alone();
    let pair = pair();
    let (memory, from) = (Memory::new(64), Memory::patterned(64, 3));
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    DEVICE.refuse_requests(true);
    for _ in 0..3 {
        let out = pair.a.out(pair.to_b, &from).context(2);
        out.msg(OpFlags::COMPLETION | OpFlags::MORE).write(&[remote(&region)]).unwrap();
    }
    (0..3).for_each(|_| assert_eq!(pair.failed(&pair.a).err, Errno::ENOMEM));
    DEVICE.refuse_requests(false);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(64, 3);
}

/// A batch of requests under one doorbell is refused as a whole.
#[test]
fn of_a_batch_that_the_device_refuses_every_operation_ends_and_nothing_is_lost() {
    let _alone = alone();
    for direct in [false, true] {
        let pair = if direct { direct_pair(Caps::MSG | Caps::RMA) } else { pair() };
        let (memory, from) = (Memory::new(4096), Memory::patterned(4096, 3));
        let (region, _own) =
            (pair.b.register(&memory, RIGHTS).unwrap(), pair.a.register(&from, RIGHTS).unwrap());
        let back = Memory::new(4096);
        let into: Vec<Memory> = (0..4).map(|_| Memory::new(4096)).collect();
        let post = || {
            for at in 0..4 {
                let out = || pair.a.out(pair.to_b, &from).msg(OpFlags::COMPLETION | OpFlags::MORE);
                out().context(10 + at).write(&[remote(&region)]).unwrap();
                out().context(20 + at).send().unwrap();
                let last = if at == 3 { OpFlags::empty() } else { OpFlags::MORE };
                let read = pair.a.out(pair.to_b, &back).msg(OpFlags::COMPLETION | last);
                read.context(30 + at).read(&[remote(&region)]).unwrap();
            }
        };
        DEVICE.refuse_requests(true);
        let told = doorbells(&pair.a, post);
        assert_eq!(told, 1);
        // Each request ends alone, but messages in packets with headers are sent again.
        let failing: &[usize] = if direct { &[10, 20, 30] } else { &[10, 30] };
        let all: Vec<usize> = failing.iter().flat_map(|&first| first..first + 4).collect();
        let mut ended: Vec<usize> = all.iter().map(|_| pair.failed(&pair.a).op_context.0).collect();
        ended.sort_unstable();
        assert_eq!(ended, all, "each once");
        DEVICE.refuse_requests(false);
        for turn in 0..2 {
            into.iter().for_each(|into| pair.b.receive(into).context(1).post().unwrap());
            match turn == 0 && !direct {
                true => (0..4).for_each(|_| _ = pair.done(&pair.a)),
                false => {
                    post();
                    (0..12).for_each(|_| _ = pair.done(&pair.a));
                }
            }
            pair.all_done(&pair.b, 1, 4);
        }
        [&memory, &back, &into[0], &into[3]].iter().for_each(|memory| memory.check(4096, 3));
        assert_eq!(pair.a.statistic("efa_open_now"), 0);
        assert_eq!(pair.a.statistic("efa_packets_now"), 0);
    }
}
