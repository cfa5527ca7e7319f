//! Long reads and writes of application memory: contents and counters, and two processes, one of which closes
//! its registration, dies or loses permission in the middle.

use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::process::Line;
use ofi_tests::denied::deny_process_vm;
use ofi_tests::{Naming, open};
use proptest::prelude::*;

use super::contents::{cuts, length, pieces};
use super::endings::{BOUND, meet, start};
use super::missing;

const ROOM: usize = 3 << 20;
/// Many chunks, and larger than any ring.
const LARGE: usize = 24 << 20;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

#[derive(Clone, Debug)]
struct Shape {
    len: usize,
    offsets: [usize; 2],
    cuts: Vec<f64>,
    write: bool,
    data: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let offset = prop_oneof![Just(0_usize), Just(4_096), 0..9_000_usize];
    let whole = prop_oneof![2 => Just(Vec::new()), 1 => cuts()];
    (length(), [offset.clone(), offset], whole, any::<bool>(), any::<bool>())
        .prop_map(|(len, offsets, cuts, write, data)| Shape { len, offsets, cuts, write, data })
}

fn check(pair: &Pair, local: &Memory, there: (&Memory, &Arc<dyn MemoryRegion>), shape: &Shape, seed: u8) {
    let (here, target) = (shape.offsets[0], shape.offsets[1]);
    let part = [remote_at(there.1, target, shape.len)];
    let (from, from_at, to, to_at) =
        if shape.write { (local, here, there.0, target) } else { (there.0, target, local, here) };
    from.slice(from_at..from_at + shape.len).fill(seed);
    to.slice(..).put(&vec![0; ROOM]);
    let out = pair.a.out(pair.to_b, pieces(local, here, shape.len, &shape.cuts)).context(1);
    let out = if shape.write && shape.data { out.data(5) } else { out };
    pair.post(|| if shape.write { out.write(&part) } else { out.read(&part) });
    pair.drive("an access", || pair.a.next_of(1)).done();
    if shape.write && shape.data {
        assert_eq!(pair.done(&pair.b).data, 5);
    }
    let bytes = to.bytes();
    let end = to_at + shape.len;
    assert!(bytes[..to_at].iter().chain(&bytes[end..]).all(|&byte| byte == 0), "beside the target");
    assert!(bytes[to_at..end] == from.slice(from_at..from_at + shape.len).bytes()[..], "{shape:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_access_moves_all_its_bytes_and_touches_nothing_else(shapes in prop::collection::vec(shape(), 1..6)) {
        if missing().is_some() {
            return Ok(());
        }
        let pair = Pair::of(open(Naming::Names), open(Naming::Names));
        pair.warm_up();
        let [local, there] = [Memory::new(ROOM), Memory::new(ROOM)];
        let region = pair.b.register(&there, RIGHTS).unwrap();
        for (number, shape) in shapes.iter().enumerate() {
            check(&pair, &local, (&there, &region), shape, 1 + number as u8);
        }
        let straight = [&pair.a, &pair.b].map(|side| side.statistic("shm_single_accesses") as usize);
        let writes = shapes.iter().filter(|shape| shape.write).count();
        prop_assert_eq!(straight, [shapes.len() - writes, writes], "{}", pair.b.report());
        prop_assert_eq!(pair.a.statistic("shm_single_failed") + pair.b.statistic("shm_single_failed"), 0);
        region.close().unwrap();
    }
}

#[test]
fn both_ends_copy_an_access() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (local, there) = (Memory::patterned(8 << 20, 3), Memory::new(8 << 20));
    let region = pair.b.register(&there, RIGHTS).unwrap();
    for _ in 0..4 {
        pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&[remote(&region)]));
        pair.drive("a write", || pair.a.next_of(1)).done();
        there.check(8 << 20, 3);
        local.fill(0);
        pair.post(|| pair.a.out(pair.to_b, &local).context(2).read(&[remote(&region)]));
        pair.drive("a read", || pair.a.next_of(2)).done();
        local.check(8 << 20, 3);
        there.fill(0);
    }
    for side in [&pair.a, &pair.b] {
        let of = |name| side.statistic(name);
        assert!(of("shm_single_read_bytes") > 0 && of("shm_single_written_bytes") > 0, "{}", side.report());
        assert_eq!((of("shm_single_accesses"), of("shm_bulk_bytes")), (4, 0), "{}", side.report());
    }
}

#[test]
fn an_access_in_several_remote_pieces_goes_through_the_ring() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let (local, there) = (Memory::patterned(200_000, 3), Memory::new(300_000));
    let region = pair.b.register(&there, RIGHTS).unwrap();
    let parts = [remote_at(&region, 0, 150_000), remote_at(&region, 200_000, 50_000)];
    pair.post(|| pair.a.out(pair.to_b, &local).context(1).write(&parts));
    pair.drive("a write", || pair.a.next_of(1)).done();
    let back = Memory::new(200_000);
    pair.post(|| pair.a.out(pair.to_b, &back).context(1).read(&parts));
    pair.drive("a read", || pair.a.next_of(1)).done();
    back.check(200_000, 3);
    assert_eq!(pair.a.statistic("shm_single_accesses") + pair.b.statistic("shm_single_accesses"), 0);
}

/// Repeats the given access (`write` or `read`, address, length and key) until it fails, reports the error,
/// and reads the next command.
pub fn accessor(line: &mut Line, _arguments: &[String]) {
    let (side, to) = meet(line);
    let local = Memory::patterned(LARGE, 1);
    loop {
        let text = line.hear();
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["end"] => return,
            ["deny"] => deny_process_vm(),
            [what, addr, len, key] => {
                let number = |text: &str| text.parse::<u64>().unwrap();
                let part = [RemotePiece { addr: number(addr), len: number(len) as usize, key: number(key) }];
                let once = what.ends_with("once");
                let failed = loop {
                    let out = side.out(to, local.slice(..part[0].len)).context(1);
                    wait::drive(&[&side], "room", || {
                        if what.starts_with("write") { out.write(&part) } else { out.read(&part) }.ok()
                    });
                    match wait::drive(&[&side], "the completion", || side.next_of(1)) {
                        Event::Done(..) if once => break 0,
                        Event::Done(..) => {}
                        failed => break failed.failed().err.get(),
                    }
                };
                line.say(failed);
            }
            _ => unreachable!("{text}"),
        }
    }
}

fn access(what: &str, region: &Arc<dyn MemoryRegion>) -> String {
    format!("{what} {} {} {}", region.base(), region.len(), region.key())
}

/// Polls until a child's access is in progress, and then for a while that grows with `round`.
fn under_way(side: &TestEndpoint, before: u64, round: u32) {
    let moved = || side.statistic("shm_single_read_bytes") + side.statistic("shm_single_written_bytes");
    let begin = wait::drive(&[side], "the first bytes", || (moved() > before).then(Instant::now));
    while begin.elapsed() < Duration::from_micros(u64::from(round) * 237) {
        side.poll();
    }
}

#[test]
fn nobody_writes_into_a_registration_that_was_closed() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, _) = start("accessor", &[]);
    let into = Memory::new(LARGE);
    for round in 0..30_u32 {
        let region = side.register(&into, RIGHTS).unwrap();
        let moved = side.statistic("shm_single_read_bytes") + side.statistic("shm_single_written_bytes");
        child.line.say(access("write", &region));
        under_way(&side, moved, round);
        region.close().unwrap();
        into.fill(7);
        let copy = into.bytes();
        for _ in 0..200 {
            side.poll();
        }
        std::thread::sleep(Duration::from_millis(3));
        assert!(into.bytes() == copy, "round {round}: written after the registration was closed");
        let failed: i32 =
            wait::drive(&[&side], "the report", || child.line.has_news().then(|| child.line.hear()))
                .parse()
                .unwrap();
        assert_eq!(failed, Errno::EKEYREJECTED.get(), "round {round}");
    }
    child.line.say("end");
    child.finish();
}

#[test]
fn a_read_of_a_registration_that_is_closed_fails() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, _) = start("accessor", &[]);
    let from = Memory::patterned(LARGE, 4);
    for round in 0..15_u32 {
        let region = side.register(&from, RIGHTS).unwrap();
        let moved = side.statistic("shm_single_written_bytes");
        child.line.say(access("read", &region));
        under_way(&side, moved, round);
        region.close().unwrap();
        let failed: i32 =
            wait::drive(&[&side], "the report", || child.line.has_news().then(|| child.line.hear()))
                .parse()
                .unwrap();
        assert_eq!(failed, Errno::EKEYREJECTED.get(), "round {round}");
    }
    child.line.say("end");
    child.finish();
}

#[test]
fn a_counter_bound_in_the_middle_of_a_write_does_not_end_it() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, _) = start("accessor", &[]);
    let into = Memory::new(LARGE);
    for round in 0..8_u32 {
        into.fill(0);
        let region = side.register(&into, RIGHTS).unwrap();
        let counter = side.domain.open_counter(&CntrAttr::default()).unwrap();
        let moved = side.statistic("shm_single_read_bytes");
        child.line.say(access("write-once", &region));
        under_way(&side, moved, round);
        region.bind_counter(&counter, BindFlags::REMOTE_WRITE).unwrap();
        let failed: i32 =
            wait::drive(&[&side], "the report", || child.line.has_news().then(|| child.line.hear()))
                .parse()
                .unwrap();
        assert_eq!(failed, 0, "round {round}");
        into.check(LARGE, 1);
        region.close().unwrap();
    }
    child.line.say("end");
    child.finish();
}

#[test]
fn an_owner_whose_peer_is_killed_in_the_middle_works_on_and_gets_no_more_bytes() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    for round in 0..6_u32 {
        let (mut child, side, _) = start("accessor", &[]);
        let into = Memory::new(LARGE);
        let region = side.register(&into, RIGHTS).unwrap();
        child.line.say(access(if round % 2 == 0 { "write" } else { "read" }, &region));
        under_way(&side, 0, 2 * round);
        child.kill();
        region.close().unwrap();
        into.fill(9);
        for _ in 0..200 {
            side.poll();
        }
        into.check(LARGE, 9);
    }
}

/// Serves accesses to its memory until it is told to end. `deny` revokes its permission to copy.
pub fn owner(line: &mut Line, _arguments: &[String]) {
    let (side, _) = meet(line);
    let memory = Memory::patterned(LARGE, 6);
    let region = side.register(&memory, RIGHTS).unwrap();
    line.say(format!("{} {}", region.base(), region.key()));
    loop {
        match wait::drive(&[&side], "a command", || line.has_news().then(|| line.hear())).as_str() {
            "deny" => deny_process_vm(),
            "count" => line.say(side.statistic("shm_single_accesses")),
            _ => return,
        }
    }
}

fn piece_of(text: &str) -> [RemotePiece; 1] {
    let (base, key) = text.split_once(' ').unwrap();
    [RemotePiece { addr: base.parse().unwrap(), len: LARGE, key: key.parse().unwrap() }]
}

#[test]
fn an_access_whose_owner_is_killed_in_the_middle_fails() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    for round in 0..6_u32 {
        let (mut child, side, to) = start("owner", &[]);
        let part = piece_of(&child.line.hear());
        let local = Memory::new(LARGE);
        let out = side.out(to, &local).context(1);
        let post = || if round % 2 == 0 { out.write(&part) } else { out.read(&part) }.ok();
        wait::drive(&[&side], "room", post);
        // The owner may have copied everything before this end was scheduled.
        let mut early = None;
        let moved =
            || side.statistic("shm_single_read_bytes") + side.statistic("shm_single_written_bytes") > 0;
        wait::drive(&[&side], "the first bytes, or the end", || {
            early = side.next_of(1);
            (early.is_some() || moved()).then_some(())
        });
        let begin = Instant::now();
        while early.is_none() && begin.elapsed() < Duration::from_micros(u64::from(2 * round) * 237) {
            side.poll();
        }
        child.kill();
        let killed = Instant::now();
        match early.unwrap_or_else(|| wait::drive(&[&side], "the completion", || side.next_of(1))) {
            Event::Done(..) => {} // it completed before the kill
            failed => assert_eq!(failed.failed().err, Errno::ECONNRESET),
        }
        assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
        let copy = local.bytes();
        std::thread::sleep(Duration::from_millis(2));
        assert!(local.bytes() == copy);
    }
}

#[test]
fn an_owner_that_may_not_copy_is_copied_from_and_to() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("owner", &[]);
    let part = piece_of(&child.line.hear());
    child.line.say("deny");
    let local = Memory::new(LARGE);
    for round in 0..3 {
        local.fill(0);
        let out = side.out(to, &local).context(1);
        wait::drive(&[&side], "room", || out.read(&part).ok());
        wait::drive(&[&side], "a read", || side.next_of(1)).done();
        local.check(LARGE, if round == 0 { 6 } else { 8 });
        local.fill(8);
        wait::drive(&[&side], "room", || out.write(&part).ok());
        wait::drive(&[&side], "a write", || side.next_of(1)).done();
    }
    assert_eq!(side.statistic("shm_single_accesses"), 3, "{}", side.report());
    assert!(side.statistic("shm_single_written_bytes") >= 3 * LARGE as u64, "{}", side.report());
    child.line.say("count");
    assert_eq!(child.line.hear(), "3");
    child.line.say("end");
    child.finish();
}

#[test]
fn left_to_itself_an_owner_tries_both_ways() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("owner", &[("FI_SHM_SINGLE_COPY", "auto")]);
    let [part] = piece_of(&child.line.hear());
    let part = [RemotePiece { len: 300_000, ..part }];
    let local = Memory::patterned(300_000, 6);
    let out = side.out(to, &local).context(1);
    for _ in 0..40 {
        wait::drive(&[&side], "room", || out.write(&part).ok());
        wait::drive(&[&side], "a write", || side.next_of(1)).done();
    }
    child.line.say("count");
    let straight: u64 = child.line.hear().parse().unwrap();
    assert!((3..=37).contains(&straight), "{straight}");
    assert!(side.statistic("shm_bulk_bytes") >= 3 * 300_000, "{}", side.report());
    child.line.say("end");
    child.finish();
}

#[test]
fn reads_of_all_lengths_behind_each_other_come_in_their_order() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    let there = Memory::patterned(2 << 20, 3);
    let region = pair.b.register(&there, RIGHTS).unwrap();
    let lengths = [1 << 20, 9_000, 700, 400_000, 2 << 20, 8, 70_000, 70_000, 70_000, 300_000];
    for round in 0..6 {
        let into: Vec<Memory> = lengths.iter().map(|&len| Memory::new(len)).collect();
        for (number, memory) in into.iter().enumerate() {
            let part = remote_at(&region, 0, memory.len());
            // Some have two pieces: those go through the ring.
            let (left, right) = (part.len / 2, part.len - part.len / 2);
            let two = [
                RemotePiece { len: left, ..part },
                RemotePiece { addr: part.addr + left as u64, len: right, ..part },
            ];
            let remote = if (number + round) % 4 == 0 { &two[..] } else { std::slice::from_ref(&part) };
            pair.post(|| pair.a.out(pair.to_b, memory).context(number).read(remote));
        }
        // Then a write, whose data none of the reads may see.
        let other = Memory::patterned(2 << 20, 4 + round as u8);
        pair.post(|| pair.a.out(pair.to_b, &other).context(99).write(&[remote(&region)]));
        let order: Vec<usize> = (0..=lengths.len())
            .map(|_| pair.drive("an access", || pair.a.next()).done().op_context.0)
            .collect();
        assert!(order.is_sorted(), "{order:?}");
        for memory in &into {
            memory.check(memory.len(), 3 + round as u8);
        }
        there.check(2 << 20, 4 + round as u8);
    }
    assert!(pair.a.statistic("shm_single_accesses") > 20, "{}", pair.a.report());
}
