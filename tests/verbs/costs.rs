//! Checks the costs of operations on the simulated device against the tables in `docs/hot-path.md`, "Over verbs" and
//! "Over verbs, connected endpoints".

use ofi_core::copy;
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Did, Logged};
use ofi_tests::costs::{Counted, check, check_copies};

use super::{ConnectedPair, DEVICE, VerbsPair};

/// Number of operations of each row.
const COUNT: usize = 100;
const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// The number of requests that one end has posted, and of completions reported to it.
type Cost = (Vec<Logged>, usize);

/// The costs of operations of `len` bytes at both ends, and how often the library copies each payload.
struct Costs {
    ends: [Cost; 2],
    copies: usize,
}

/// The costs at both ends of running `run` this number of times.
fn costs(pair: &Pair, len: usize, mut run: impl FnMut()) -> Costs {
    let take = |side: &TestEndpoint| DEVICE.take_log(side.name().to_socket_addr().unwrap());
    pair.quiet(Duration::from_millis(5));
    let _before = [&pair.a, &pair.b].map(take);
    let before = copy::counted();
    (0..COUNT).for_each(|_| run());
    pair.quiet(Duration::from_millis(5));
    let copied = (copy::counted() - before) as usize;
    // Headers of records are shorter than any payload here.
    Costs { ends: [&pair.a, &pair.b].map(take), copies: copied / (COUNT * len.max(1)) }
}

/// How a message is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Its sender waits for the completion.
    Awaited,
    /// Its sender has bound its queue with `FI_SELECTIVE_COMPLETION`, and requests no completion.
    Unasked,
    Injected,
}

/// Sends messages of `len` bytes, each into a posted receive.
fn messages(pair: &Pair, len: usize, how: How, tagged: bool) -> Costs {
    let cost = exchange(pair, &Memory::patterned(len, 5), how, tagged);
    if len > 8192 {
        assert!(cost.ends[0].0.iter().all(|request| request.len < 256), "the payload is in no record");
    }
    cost
}

/// The same for connected endpoints, whose requests also carry long payloads from the application's memory.
fn whole_messages(pair: &Pair, len: usize) -> Costs {
    let from = Memory::patterned(len, 5);
    let cost = exchange(pair, &from, How::Awaited, false);
    for request in &cost.ends[0].0 {
        assert_eq!((request.addr, request.len), (from.as_ptr().addr(), len), "straight from where it is");
    }
    cost
}

fn exchange(pair: &Pair, from: &Memory, how: How, tagged: bool) -> Costs {
    let (len, into) = (from.len(), Memory::new(from.len()));
    let cost = costs(pair, len, || {
        let receive = pair.b.receive(&into).context(1);
        if tagged { receive.tag(7) } else { receive }.post().unwrap();
        pair.post(|| {
            let out = pair.a.out(pair.to_b, from).context(2);
            let out = if tagged { out.tag(7) } else { out };
            if how == How::Injected { out.inject() } else { out }.send()
        });
        pair.drive("a message", || pair.b.next_of(1)).done();
        if how == How::Awaited {
            pair.drive("its end", || pair.a.next_of(2)).done();
        }
    });
    into.check(len, 5);
    for request in cost.ends[1].0.iter().filter(|request| request.did == Did::Read) {
        assert_eq!(
            (request.addr, request.len),
            (into.as_ptr().addr(), len),
            "straight to where it is wanted"
        );
    }
    cost
}

/// Reads or writes `len` bytes of a region whose key is known.
fn accesses(pair: &Pair, len: usize, write: bool, flags: OpFlags) -> Costs {
    let (there, here) = (Memory::patterned(len, 6), Memory::patterned(len, 7));
    let region = pair.b.register(&there, RIGHTS).unwrap();
    let first = Memory::patterned(8, 6);
    pair.post(|| pair.a.out(pair.to_b, &first).write(&[remote_at(&region, 0, 8)]));
    pair.done(&pair.a);
    pair.warm_up(); // and so the key has come
    let cost = costs(pair, len, || {
        pair.post(|| {
            let out = pair.a.out(pair.to_b, &here).context(2).msg(flags | OpFlags::COMPLETION);
            if write { out.write(&[remote(&region)]) } else { out.read(&[remote(&region)]) }
        });
        pair.drive("an access", || pair.a.next_of(2)).done();
    });
    if len > 8192 {
        let whole = |request: &&Logged| request.len == len;
        let straight =
            cost.ends[0].0.iter().filter(whole).all(|request| request.addr == here.as_ptr().addr());
        assert!(straight, "straight from or to the application's memory");
    }
    there.check(len, if write { 7 } else { 6 });
    here.check(len, if write { 7 } else { 6 });
    cost
}

/// Injected writes of `len` bytes, which have no completions.
fn injected_writes(pair: &Pair, len: usize) -> Costs {
    let (there, here) = (Memory::new(len), Memory::patterned(len, 7));
    let region = pair.b.register(&there, RIGHTS).unwrap();
    let cost = costs(pair, len, || {
        pair.post(|| pair.a.out(pair.to_b, &here).inject().write(&[remote(&region)]));
        pair.poll();
    });
    there.check(len, 7);
    cost
}

/// The rows in the form of the tables.
fn counted<'a>(measured: &[(&'a str, Costs)]) -> Vec<(&'a str, Counted)> {
    let row = |(name, Costs { ends: [here, there], .. }): &(&'a str, Costs)| {
        (*name, [here.0.len(), here.1, there.0.len(), there.1])
    };
    measured.iter().map(row).collect()
}

fn copied<'a>(measured: &[(&'a str, Costs)]) -> Vec<(&'a str, usize)> {
    measured.iter().map(|(name, costs)| (*name, costs.copies)).collect()
}

#[test]
fn operations_cost_no_more_than_the_table_says() {
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let none = OpFlags::empty();
    let measured = [
        ("send 64 B, injected", messages(&pair, 64, How::Injected, false)),
        ("send 64 B tagged, injected", messages(&pair, 64, How::Injected, true)),
        ("send 64 B", messages(&pair, 64, How::Awaited, false)),
        ("send 4 KiB", messages(&pair, 4096, How::Awaited, false)),
        ("send 1 MiB", messages(&pair, 1 << 20, How::Awaited, false)),
        ("write 64 B", accesses(&pair, 64, true, none)),
        ("write 64 KiB", accesses(&pair, 65_536, true, none)),
        ("write 64 KiB, delivered", accesses(&pair, 65_536, true, OpFlags::DELIVERY_COMPLETE)),
        ("read 64 B", accesses(&pair, 64, false, none)),
        ("read 64 KiB", accesses(&pair, 65_536, false, none)),
    ];
    check("Over verbs", &counted(&measured));
    check_copies("Over verbs", &copied(&measured));
    for (_, Costs { ends: [here, _], .. }) in &measured[..3] {
        assert!(here.0.iter().all(|request| request.inline), "short messages are in their requests");
    }
}

#[test]
fn operations_of_connected_endpoints_cost_no_more_than_the_table_says() {
    let kit: &dyn Kit = &ConnectedPair;
    let pair = kit.pair();
    let unasked = kit.pair_with(|opening| opening.selective(BindFlags::TRANSMIT));
    let counting = kit.pair_with(|opening| opening.counter(CntrAttr::default(), BindFlags::SEND));
    [&pair, &unasked, &counting].into_iter().for_each(Pair::warm_up);
    let none = OpFlags::empty();
    let measured = [
        ("send 64 B, injected", messages(&pair, 64, How::Injected, false)),
        ("send 64 B", messages(&pair, 64, How::Awaited, false)),
        ("send 64 B, unasked", messages(&unasked, 64, How::Unasked, false)),
        ("send 64 B, injected, counted", messages(&counting, 64, How::Injected, false)),
        ("send 1 KiB, injected", messages(&pair, 1024, How::Injected, false)),
        ("send 4 KiB, unasked", messages(&unasked, 4096, How::Unasked, false)),
        ("write 64 B, injected", injected_writes(&pair, 64)),
        ("send 1 KiB", messages(&pair, 1024, How::Awaited, false)),
        ("send 4 KiB", messages(&pair, 4096, How::Awaited, false)),
        ("send 1 MiB", whole_messages(&pair, 1 << 20)),
        ("write 64 B", accesses(&pair, 64, true, none)),
        ("write 64 KiB", accesses(&pair, 65_536, true, none)),
        ("read 64 B", accesses(&pair, 64, false, none)),
        ("read 64 KiB", accesses(&pair, 65_536, false, none)),
    ];
    check("Over verbs, connected endpoints", &counted(&measured));
    check_copies("Over verbs, connected endpoints", &copied(&measured));
    for (_, Costs { ends: [here, _], .. }) in &measured[..2] {
        assert!(here.0.iter().all(|request| request.inline), "short messages are in their requests");
    }
    let poll = costs(&pair, 0, || pair.poll()).ends;
    assert_eq!(poll.map(|(requests, reported)| (requests.len(), reported)), [(0, 0); 2], "of who only looks");
}

/// A poll without traffic posts no request.
#[test]
fn a_poll_that_finds_nothing_posts_nothing() {
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let cost = costs(&pair, 0, || pair.poll()).ends;
    assert_eq!(cost.map(|(requests, reported)| (requests.len(), reported)), [(0, 0); 2]);
}
