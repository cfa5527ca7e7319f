//! Message order (fi_endpoint(3), "Message ordering"): an endpoint keeps the order that it promises, whichever path an
//! operation takes.

use crate::prelude::*;

/// Lengths that take different paths through a transport.
const LENGTHS: [usize; 4] = [8, 6_000, 40_000, 300_000];

/// A pair opened with `order`, if that is offered.
fn pair_with(kit: &dyn Kit, order: MsgOrder) -> Option<Pair> {
    kit.getinfo(&kit.usual().msg_order(order)).ok()?;
    Some(kit.pair_with(|opening| opening.hints(|hints| hints.msg_order(order))))
}

fn target(pair: &Pair, len: usize, library: bool) -> Memory {
    if library { Memory::library(&pair.b.domain, len) } else { Memory::new(len) }
}

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

pub fn send_after_write(kit: &dyn Kit) {
    let Some(pair) = pair_with(kit, MsgOrder::SAW) else { return };
    for library in [false, true] {
        for len in LENGTHS {
            let memory = target(&pair, len, library);
            let region = pair.b.register(&memory, RIGHTS).unwrap();
            for round in 0..8 {
                let (from, note) = (Memory::patterned(len, round), Memory::new(8));
                pair.post(|| pair.b.receive(&note).context(2).post());
                pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
                pair.post(|| pair.a.out(pair.to_b, note.slice(..0)).inject().send());
                pair.drive("the message", || pair.b.next_of(2)).done();
                memory.check(len, round); // the message announces the data
                pair.drive("the write", || pair.a.next_of(1)).done();
            }
        }
    }
}

pub fn send_after_read(kit: &dyn Kit) {
    // The peer overwrites its memory when it gets the message; the earlier read must not see that.
    let Some(pair) = pair_with(kit, MsgOrder::SAR) else { return };
    for library in [false, true] {
        for len in LENGTHS {
            let memory = target(&pair, len, library);
            let region = pair.b.register(&memory, RIGHTS).unwrap();
            memory.fill(1);
            let into = Memory::new(len);
            pair.post(|| pair.b.receive(()).context(2).post());
            pair.post(|| pair.a.out(pair.to_b, &into).context(1).read(&[remote(&region)]));
            pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
            pair.drive("the message", || pair.b.next_of(2)).done();
            memory.fill(2);
            pair.drive("the read", || pair.a.next_of(1)).done();
            into.check(len, 1);
        }
    }
}

pub fn read_after_write(kit: &dyn Kit) {
    let Some(pair) = pair_with(kit, MsgOrder::RAW) else { return };
    for library in [false, true] {
        for len in LENGTHS {
            let memory = target(&pair, len, library);
            let region = pair.b.register(&memory, RIGHTS).unwrap();
            for round in 0..6 {
                let (from, into) = (Memory::patterned(len, round), Memory::new(len));
                pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
                pair.post(|| pair.a.out(pair.to_b, &into).context(2).read(&[remote(&region)]));
                pair.drive("the read", || pair.a.next_of(2)).done();
                into.check(len, round);
                pair.drive("the write", || pair.a.next_of(1)).done();
            }
        }
    }
}

pub fn write_after_write(kit: &dyn Kit) {
    let Some(pair) = pair_with(kit, MsgOrder::WAW) else { return };
    for library in [false, true] {
        for (first, second) in
            [(300_000, 8), (300_000, 6_000), (6_000, 300_000), (8, 300_000), (300_000, 300_000)]
        {
            let memory = target(&pair, 300_000, library);
            let region = pair.b.register(&memory, RIGHTS).unwrap();
            for round in 0..4 {
                let (one, two) = (Memory::patterned(first, round), Memory::patterned(second, round + 100));
                pair.post(|| pair.a.out(pair.to_b, &one).context(1).write(&[remote_at(&region, 0, first)]));
                pair.post(|| pair.a.out(pair.to_b, &two).context(1).write(&[remote_at(&region, 0, second)]));
                pair.drive("a write", || pair.a.next_of(1)).done();
                pair.drive("a write", || pair.a.next_of(1)).done();
                memory.check(second, round + 100);
            }
        }
    }
}

pub fn write_after_read(kit: &dyn Kit) {
    let Some(pair) = pair_with(kit, MsgOrder::WAR) else { return };
    for library in [false, true] {
        for len in LENGTHS {
            let memory = target(&pair, len, library);
            let region = pair.b.register(&memory, RIGHTS).unwrap();
            for round in 0..6 {
                memory.fill(round);
                let (into, from) = (Memory::new(len), Memory::patterned(len, round + 100));
                pair.post(|| pair.a.out(pair.to_b, &into).context(1).read(&[remote(&region)]));
                pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
                pair.drive("the write", || pair.a.next_of(2)).done();
                pair.drive("the read", || pair.a.next_of(1)).done();
                into.check(len, round);
                memory.check(len, round + 100);
            }
        }
    }
}

/// Messages that the peer has not taken yet, then an access that must wait for them. The peer observes that when the
/// access's result is there, the messages have been taken.
fn access_after_send(kit: &dyn Kit, order: MsgOrder) {
    let Some(pair) = pair_with(kit, order) else { return };
    if kit.moves_by_itself() {
        return;
    }
    let memory = Memory::library(&pair.b.domain, 64);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let from = Memory::patterned(64, 5);
    // By now the transport has the memory's mapping.
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&region)]));
    pair.drive("a write", || pair.a.next_of(1)).done();
    memory.fill(0);
    let into = Memory::new(64);
    pair.b.receive(&into).context(2).post().unwrap();
    pair.a.out(pair.to_b, &from).inject().send().unwrap();
    let mine = Memory::patterned(64, 7);
    let access = pair.a.out(pair.to_b, &mine).context(3);
    if order == MsgOrder::WAS { access.write(&[remote(&region)]) } else { access.read(&[remote(&region)]) }
        .unwrap();
    wait::drive_through(Duration::from_millis(30), &[&pair.a]);
    assert!(pair.a.next_of(3).is_none(), "the access overtook the message");
    memory.check(64, 0);
    pair.drive("the message", || pair.b.next_of(2)).done();
    pair.drive("the access", || pair.a.next_of(3)).done();
}

pub fn write_after_send(kit: &dyn Kit) {
    access_after_send(kit, MsgOrder::WAS);
}

pub fn read_after_send(kit: &dyn Kit) {
    access_after_send(kit, MsgOrder::RAS);
}

pub fn order_holds_whichever_memory_an_access_touches(kit: &dyn Kit) {
    // Application memory and library memory in turn: accesses to one go by command, to the other possibly directly.
    let Some(pair) = pair_with(kit, MsgOrder::WAW | MsgOrder::SAW) else { return };
    let slow = target(&pair, 300_000, false);
    let fast = target(&pair, 8, true);
    let (slow_region, fast_region) =
        (pair.b.register(&slow, RIGHTS).unwrap(), pair.b.register(&fast, RIGHTS).unwrap());
    let flag = Memory::new(8);
    for round in 1..20_u8 {
        let from = Memory::patterned(300_000, round);
        flag.slice(..).put(&u64::from(round).to_ne_bytes());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote(&slow_region)]));
        pair.post(|| pair.a.out(pair.to_b, &flag).context(2).write(&[remote(&fast_region)]));
        // The peer polls the flag, as programs with one-sided protocols do.
        pair.drive("the flag", || (fast.bytes()[0] == round).then_some(()));
        slow.check(300_000, round);
        pair.drive("a write", || pair.a.next_of(1)).done();
        pair.drive("a write", || pair.a.next_of(2)).done();
    }
}
