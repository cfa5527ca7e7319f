//! Remote reads and writes (fi_rma(3)): all sizes, pieces, both kinds of memory, and every refusal.

use std::sync::Arc;

use super::receive::SIZES;
use crate::prelude::*;

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

fn target(pair: &Pair, len: usize, library: bool) -> (Memory, Arc<dyn MemoryRegion>) {
    let memory = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    (memory, region)
}

fn sweep(kit: &dyn Kit, mr_mode: MrMode, library: bool) {
    let Ok(infos) = kit.getinfo(&kit.usual().mr_mode(mr_mode)) else { return };
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.mr_mode(infos[0].domain_attr.mr_mode)));
    for (number, len) in SIZES.into_iter().enumerate() {
        let (seed, key) = (number as u8, number as u64 + 1);
        let room = len + 32;
        let memory = if library { Memory::library(&pair.b.domain, room) } else { Memory::new(room) };
        let region = pair.b.register_with(&memory, RIGHTS, key, 0).unwrap();
        let (from, back) = (Memory::patterned(len, seed), Memory::new(len));
        let there = [remote_at(&region, 16, len)];
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&there));
        assert_eq!(pair.done(&pair.a).op_context, Context(1));
        memory.slice(16..16 + len).check(seed);
        let bytes = memory.bytes();
        assert!(bytes[..16].iter().chain(&bytes[16 + len..]).all(|&byte| byte == 0), "around {len} bytes");
        pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&there));
        assert_eq!(pair.done(&pair.a).op_context, Context(2));
        back.check(len, seed);
        region.close().unwrap();
    }
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "targets are not told");
}

pub fn every_size_on_application_memory(kit: &dyn Kit) {
    sweep(kit, MrMode::VIRT_ADDR | MrMode::PROV_KEY, false);
}

pub fn huge_library_memory_is_written_read_and_sent_from(kit: &dyn Kit) {
    // In reserved huge pages if there are any, else in ordinary ones; only the speed differs.
    const LEN: usize = (2 << 20) + 77;
    let pair = kit.pair();
    let huge = Placement { huge: true, ..Placement::default() };
    let memory = Memory::placed(&pair.b.domain, LEN, huge);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let (from, back) = (Memory::placed(&pair.a.domain, LEN, huge), Memory::new(LEN));
    from.fill(9);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(LEN, 9);
    pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]));
    pair.done(&pair.a);
    back.check(LEN, 9);
    let into = Memory::new(LEN);
    pair.b.receive(&into).context(3).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(4).send());
    pair.done(&pair.b);
    pair.done(&pair.a);
    into.check(LEN, 9);
}

pub fn every_size_on_library_memory(kit: &dyn Kit) {
    sweep(kit, MrMode::VIRT_ADDR | MrMode::PROV_KEY, true);
}

pub fn every_size_with_offsets_and_requested_keys(kit: &dyn Kit) {
    sweep(kit, MrMode::empty(), false);
    sweep(kit, MrMode::empty(), true);
}

pub fn every_size_with_offsets_and_provider_keys(kit: &dyn Kit) {
    sweep(kit, MrMode::PROV_KEY, false);
    sweep(kit, MrMode::PROV_KEY, true);
}

pub fn local_and_remote_pieces_need_not_match(kit: &dyn Kit) {
    let pair = kit.pair();
    let tx = &pair.a.info.tx_attr;
    let (locals, remotes) = (tx.iov_limit.min(3), tx.rma_iov_limit.min(3));
    for library in [false, true] {
        for len in [30, 6_000, 300_000] {
            let (memory, region) = target(&pair, 2 * len, library);
            let (from, back) = (Memory::patterned(len, 9), Memory::new(len));
            let local = |memory: &Memory| -> Vec<Slice> {
                (0..locals).map(|n| memory.slice(n * len / locals..(n + 1) * len / locals)).collect()
            };
            // Remote pieces in reverse order, with gaps.
            let cut = |n: usize| n * len / (2 * remotes) + n * n;
            let mut there = Vec::new();
            for n in 0..remotes {
                let part = if n + 1 == remotes { len - cut(n) } else { cut(n + 1) - cut(n) };
                there.push(remote_at(&region, 2 * len - cut(n) - part, part));
            }
            pair.post(|| pair.a.out(pair.to_b, local(&from)).write(&there));
            pair.done(&pair.a);
            for (n, piece) in there.iter().enumerate() {
                let at = (piece.addr - region.base()) as usize;
                memory.slice(at..at + piece.len).check_from(9, cut(n));
            }
            pair.post(|| pair.a.out(pair.to_b, local(&back)).read(&there));
            pair.done(&pair.a);
            back.check(len, 9);
        }
    }
}

pub fn pieces_in_several_regions(kit: &dyn Kit) {
    let pair = kit.pair();
    if pair.a.info.tx_attr.rma_iov_limit < 2 {
        return;
    }
    let (one, first) = target(&pair, 5_000, false);
    let (two, second) = target(&pair, 5_000, true);
    let from = Memory::patterned(10_000, 4);
    pair.post(|| pair.a.out(pair.to_b, &from).write(&[remote(&first), remote(&second)]));
    pair.done(&pair.a);
    one.check(5_000, 4);
    two.slice(..).check_from(4, 5_000);
    let back = Memory::new(10_000);
    pair.post(|| pair.a.out(pair.to_b, &back).read(&[remote(&first), remote(&second)]));
    pair.done(&pair.a);
    back.check(10_000, 4);
}

pub fn an_empty_access_completes(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        let (_memory, region) = target(&pair, 64, library);
        let nothing = [remote_at(&region, 64, 0)];
        pair.post(|| pair.a.out(pair.to_b, ()).context(1).write(&nothing));
        assert_eq!(pair.done(&pair.a).op_context, Context(1));
        pair.post(|| pair.a.out(pair.to_b, ()).context(2).read(&nothing));
        assert_eq!(pair.done(&pair.a).op_context, Context(2));
        pair.post(|| pair.a.out(pair.to_b, ()).context(3).data(8).write(&nothing));
        assert_eq!(pair.done(&pair.b).data, 8);
        assert_eq!(pair.done(&pair.a).op_context, Context(3));
    }
}

pub fn remote_data_of_a_write_takes_no_receive(kit: &dyn Kit) {
    let pair = kit.pair();
    let (_memory, region) = target(&pair, 64, false);
    let from = Memory::new(64);
    pair.b.receive(()).context(7).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).data(3).write(&[remote(&region)]));
    assert_eq!(pair.done(&pair.b).op_context, Context::NULL);
    pair.done(&pair.a);
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(pair.done(&pair.b).op_context, Context(7), "the receive is still there");
}

/// Checks the error of a refused access, and that the endpoint continues after it.
#[track_caller]
fn refused(pair: &Pair, write: bool, local: &Memory, there: RemotePiece, errnos: &[Errno]) {
    let out = pair.a.out(pair.to_b, local).context(6);
    pair.post(|| if write { out.write(&[there]) } else { out.read(&[there]) });
    let error = pair.failed(&pair.a);
    assert!(errnos.contains(&error.err), "{:?}, wanted one of {errnos:?}", error.err);
    assert_eq!(error.op_context, Context(6));
    let kind = if write { CompletionFlags::WRITE } else { CompletionFlags::READ };
    assert!(error.flags.contains(kind | CompletionFlags::RMA), "{:?}", error.flags);
    assert_eq!(pair.b.pending(), 0, "the target is not told");
}

/// The possible errors of a wrong key, and of a wrong range or right.
const KEY: &[Errno] = &[Errno::EKEYREJECTED, Errno::ENOKEY, Errno::EACCES, Errno::EREMOTEIO];
const ACCESS: &[Errno] = &[Errno::EACCES, Errno::EREMOTEIO];

pub fn an_unknown_key_is_rejected_and_the_endpoint_goes_on(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        for len in [8, 300_000] {
            let (memory, region) = target(&pair, len, library);
            let local = Memory::patterned(len, 3);
            for write in [true, false] {
                let wrong = RemotePiece { key: region.key() ^ 0x5555, ..remote(&region) };
                refused(&pair, write, &local, wrong, KEY);
            }
            assert!(memory.bytes().iter().all(|&byte| byte == 0));
            pair.post(|| pair.a.out(pair.to_b, &local).write(&[remote(&region)]));
            pair.done(&pair.a);
            memory.check(len, 3);
        }
    }
}

pub fn an_access_outside_the_region_is_refused(kit: &dyn Kit) {
    for mr_mode in [MrMode::VIRT_ADDR | MrMode::PROV_KEY, MrMode::empty()] {
        let Ok(infos) = kit.getinfo(&kit.usual().mr_mode(mr_mode)) else { continue };
        let pair =
            kit.pair_with(|opening| opening.hints(|hints| hints.mr_mode(infos[0].domain_attr.mr_mode)));
        for library in [false, true] {
            let (memory, region) = target(&pair, 4_096, library);
            let base = region.base();
            let key = region.key();
            let local = Memory::patterned(64, 3);
            let piece = |addr: u64, len: usize| RemotePiece { addr, len, key };
            for write in [true, false] {
                for addr in [
                    base.wrapping_add(4_096 - 63),
                    base.wrapping_add(4_096),
                    base.wrapping_sub(1),
                    base.wrapping_sub(64),
                    u64::MAX - 10, // the end wraps around
                    u64::MAX,
                    base.wrapping_add(1 << 63),
                ] {
                    refused(&pair, write, &local, piece(addr, 64), ACCESS);
                }
            }
            assert!(memory.bytes().iter().all(|&byte| byte == 0));
            // The last bytes themselves are accessible.
            pair.post(|| pair.a.out(pair.to_b, &local).write(&[piece(base.wrapping_add(4_096 - 64), 64)]));
            pair.done(&pair.a);
            memory.slice(4_096 - 64..).check(3);
        }
    }
}

pub fn an_access_without_the_right_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        for len in [8, 300_000] {
            let local = Memory::patterned(len, 3);
            for (rights, write) in [
                (MrAccess::REMOTE_READ, true),
                (MrAccess::REMOTE_WRITE, false),
                (MrAccess::SEND | MrAccess::RECV, true),
                (MrAccess::SEND | MrAccess::RECV, false),
                (MrAccess::READ | MrAccess::WRITE, true),
            ] {
                let memory = if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) };
                let region = pair.b.register(&memory, rights).unwrap();
                let errnos: Vec<Errno> = [KEY, ACCESS].concat();
                refused(&pair, write, &local, remote(&region), &errnos);
                assert!(memory.bytes().iter().all(|&byte| byte == 0));
                // Permitted accesses succeed.
                if rights.intersects(RIGHTS) {
                    let out = pair.a.out(pair.to_b, &local).context(1);
                    pair.post(|| {
                        if write { out.read(&[remote(&region)]) } else { out.write(&[remote(&region)]) }
                    });
                    pair.done(&pair.a);
                    local.fill(3);
                }
            }
        }
    }
}

pub fn one_bad_piece_fails_the_access(kit: &dyn Kit) {
    let pair = kit.pair();
    if pair.a.info.tx_attr.rma_iov_limit < 2 {
        return;
    }
    let local = Memory::patterned(200, 3);
    for library in [false, true] {
        let (_memory, region) = target(&pair, 100, library);
        let bad = RemotePiece { key: region.key() ^ 0x5555, ..remote(&region) };
        for there in [[remote(&region), bad], [bad, remote(&region)]] {
            pair.post(|| pair.a.out(pair.to_b, &local).context(6).write(&there));
            assert!(KEY.contains(&pair.failed(&pair.a).err));
        }
    }
}

pub fn a_closed_region_is_not_touched_any_more(kit: &dyn Kit) {
    let pair = kit.pair();
    for library in [false, true] {
        for len in [8, 300_000] {
            let (memory, region) = target(&pair, len, library);
            let (local, there) = (Memory::patterned(len, 3), remote(&region));
            pair.post(|| pair.a.out(pair.to_b, &local).write(&[there]));
            pair.done(&pair.a);
            memory.check(len, 3);
            region.close().unwrap();
            memory.fill(200);
            for write in [true, false] {
                refused(&pair, write, &local, there, KEY);
            }
            memory.check(len, 200);
        }
    }
}

pub fn closing_in_the_middle_of_an_access_stops_it(kit: &dyn Kit) {
    const LEN: usize = 8 << 20;
    let pair = kit.pair();
    for library in [false, true] {
        for write in [true, false] {
            for steps in [0, 1, 3, 10] {
                let (memory, region) = target(&pair, LEN, library);
                let local = Memory::patterned(LEN, 3);
                let out = pair.a.out(pair.to_b, &local).context(1);
                let there = [remote(&region)];
                pair.post(|| if write { out.write(&there) } else { out.read(&there) });
                (0..steps).for_each(|_| pair.poll());
                region.close().unwrap();
                memory.fill(200);
                // The operation ends once, whatever its result, and the memory is not accessed after that.
                match pair.drive("the end of the access", || pair.a.next_of(1)) {
                    Event::Done(..) => {}
                    Event::Failed(error) => {
                        assert!([KEY, ACCESS].concat().contains(&error.err), "{error:?}");
                    }
                }
                memory.check(LEN, 200);
                assert!(pair.a.next_of(1).is_none());
            }
        }
    }
    // And the connection still works.
    pair.warm_up();
}

/// The target reports a write with data if and only if the initiator's operation succeeds, whenever the region closes.
pub fn a_write_is_reported_only_if_it_happened(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.cq_data_size(4)));
    pair.warm_up();
    // With one of these lengths the last poll of the target finds only the last part, of up to 16 KiB.
    for len in (32..=64).map(|parts| parts * (16 << 10)) {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        // Each round closes the region one poll later, until the write has ended before.
        for polls in 0..300 {
            if closed_after(&pair, &from, &into, polls) {
                break;
            }
        }
    }
}

/// Writes `from` into a region of `into` that closes after `polls` polls. Returns whether the write had ended by then.
fn closed_after(pair: &Pair, from: &Memory, into: &Memory, polls: u64) -> bool {
    let region = pair.b.register(into, RIGHTS).unwrap();
    pair.post(|| pair.a.out(pair.to_b, from).context(1).data(polls).write(&[remote(&region)]));
    let mut end = None;
    for _ in 0..polls {
        pair.poll();
        end = end.or_else(|| pair.a.next_of(1));
    }
    let was_over = end.is_some();
    region.close().unwrap();
    match end.unwrap_or_else(|| pair.drive("the end of the write", || pair.a.next_of(1))) {
        Event::Done(..) => assert_eq!(pair.drive("the data", || pair.b.next()).done().data, polls),
        Event::Failed(error) => {
            assert!([KEY, ACCESS].concat().contains(&error.err), "{error:?}");
            // The target would report the write before what follows it.
            pair.warm_up();
            assert!(pair.b.next().is_none(), "closed after {polls} polls: reported, and failed");
        }
    }
    was_over
}

/// On the first access to a key, the target is asked for the memory, by a thread of its own if there is one.
pub fn closing_while_the_target_is_asked_for_its_memory_stops_the_access(kit: &dyn Kit) {
    const LEN: usize = 64;
    let pair = kit.pair();
    pair.warm_up();
    let local = Memory::patterned(LEN, 3);
    for pause in 0..1500 {
        let (memory, region) = target(&pair, LEN, true);
        let (out, there) = (pair.a.out(pair.to_b, &local).context(1), [remote(&region)]);
        pair.post(|| out.write(&there));
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_nanos(50 * pause) {
            std::hint::spin_loop();
        }
        region.close().unwrap();
        memory.fill(200);
        pair.drive("the end of the access", || pair.a.next_of(1));
        memory.check(LEN, 200);
    }
}

pub fn a_read_takes_neither_inject_nor_remote_data(kit: &dyn Kit) {
    let pair = kit.pair();
    let (_memory, region) = target(&pair, 64, false);
    let local = Memory::new(64);
    for out in [pair.a.out(pair.to_b, &local).msg(OpFlags::INJECT), pair.a.out(pair.to_b, &local).data(3)] {
        let error = out.read(&[remote(&region)]).unwrap_err();
        assert!([Errno::EBADFLAGS, Errno::EINVAL].contains(&error.errno()), "{error}");
    }
}

pub fn many_accesses_at_once(kit: &dyn Kit) {
    const COUNT: usize = 200;
    const LEN: usize = 5_000;
    let pair = kit.pair();
    for library in [false, true] {
        let (memory, region) = target(&pair, COUNT * LEN, library);
        let from = Memory::patterned(COUNT * LEN, 3);
        for number in 0..COUNT {
            let (at, there) = (number * LEN, [remote_at(&region, number * LEN, LEN)]);
            pair.post(|| pair.a.out(pair.to_b, from.slice(at..at + LEN)).context(1).write(&there));
        }
        pair.all_done(&pair.a, 1, COUNT);
        memory.check(COUNT * LEN, 3);
        let back = Memory::new(COUNT * LEN);
        for number in 0..COUNT {
            let (at, there) = (number * LEN, [remote_at(&region, number * LEN, LEN)]);
            pair.post(|| pair.a.out(pair.to_b, back.slice(at..at + LEN)).context(1).read(&there));
        }
        pair.all_done(&pair.a, 1, COUNT);
        back.check(COUNT * LEN, 3);
    }
}

pub fn both_sides_access_each_other(kit: &dyn Kit) {
    const LEN: usize = 1 << 20;
    let pair = kit.pair();
    let (at_a, at_b) = (Memory::new(LEN), Memory::new(LEN));
    let region_a = pair.a.register(&at_a, RIGHTS).unwrap();
    let region_b = pair.b.register(&at_b, RIGHTS).unwrap();
    for round in 0..5 {
        let (one, two) = (Memory::patterned(LEN, round), Memory::patterned(LEN, round + 50));
        pair.post(|| pair.a.out(pair.to_b, &one).context(1).write(&[remote(&region_b)]));
        pair.post(|| pair.b.out(pair.to_a, &two).context(2).write(&[remote(&region_a)]));
        pair.drive("a's write", || pair.a.next_of(1)).done();
        pair.drive("b's write", || pair.b.next_of(2)).done();
        at_b.check(LEN, round);
        at_a.check(LEN, round + 50);
        let (one, two) = (Memory::new(LEN), Memory::new(LEN));
        pair.post(|| pair.a.out(pair.to_b, &one).context(1).read(&[remote(&region_b)]));
        pair.post(|| pair.b.out(pair.to_a, &two).context(2).read(&[remote(&region_a)]));
        pair.drive("a's read", || pair.a.next_of(1)).done();
        pair.drive("b's read", || pair.b.next_of(2)).done();
        one.check(LEN, round);
        two.check(LEN, round + 50);
    }
}

pub fn an_endpoint_accesses_its_own_memory(kit: &dyn Kit) {
    let side = kit.side();
    let to_self = side.insert_address(&side.name());
    for library in [false, true] {
        for len in [8, 300_000] {
            let memory = if library { Memory::library(&side.domain, len) } else { Memory::new(len) };
            let region = side.register(&memory, RIGHTS).unwrap();
            let from = Memory::patterned(len, 7);
            wait::drive(&[&side], "room", || {
                side.out(to_self, &from).context(1).write(&[remote(&region)]).ok()
            });
            wait::drive(&[&side], "the write", || side.next_of(1)).done();
            memory.check(len, 7);
        }
    }
}

pub fn what_was_executed_is_confirmed_though_its_owner_closes_at_once(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.cq_data_size(8)));
    let (_memory, region) = target(&pair, 1000, false);
    let from = Memory::patterned(1000, 3);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).data(77).write(&[remote(&region)]));
    // Only until the owner notices it: nothing else has passed between the two.
    let told = pair.drive("the data", || pair.b.next()).done();
    assert_eq!(told.data, 77);
    let Pair { a, b, .. } = pair;
    drop((region, b));
    wait::drive(&[&a], "the write", || a.next_of(1)).done();
}
