//! Accesses that the device executes without the owner's program, and their numbers of requests
//! (`ofi-verbs/native.rs`).

use std::os::fd::AsFd;

use ofi_testkit::prelude::*;

use super::VerbsPair;
use crate::steady;

fn pair() -> Pair {
    let kit: &dyn Kit = &VerbsPair;
    kit.pair()
}

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// A pair whose `a` knows the device's key of `len` registered bytes of `b`.
fn known(pair: &Pair, len: usize) -> (Memory, std::sync::Arc<dyn MemoryRegion>) {
    let memory = Memory::new(len);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let from = Memory::new(8);
    let given = pair.b.statistic("verbs_keys_given");
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote_at(&region, 0, 8)]));
    pair.done(&pair.a);
    assert_eq!(pair.b.statistic("verbs_keys_given"), given + 1);
    pair.warm_up(); // and so the key has come
    (memory, region)
}

/// Reliable datagrams: the owner executes the first access of a peer, so its processor must be able to access the
/// memory.
#[test]
fn a_dma_buf_is_refused_by_name() {
    let pair = pair();
    let file = std::fs::File::open("/dev/zero").unwrap();
    let piece = [Piece::new(std::ptr::without_provenance_mut(4096), 4096)];
    let attr = MrAttr::of_dmabuf(Dmabuf { fd: file.as_fd(), offset: 0 }, &piece, RIGHTS);
    let error = pair.b.domain.register(&attr).map(drop).expect_err("a refusal");
    assert_eq!(error.errno(), Errno::ENOSYS);
    assert!(error.to_string().contains("FI_EP_MSG"), "{error}");
}

/// The cost of an operation at `side`: numbers of write requests, read requests and records.
fn cost(side: &TestEndpoint, run: impl FnOnce()) -> [u64; 3] {
    let count =
        || ["verbs_native_writes", "verbs_native_reads", "verbs_sent"].map(|name| side.statistic(name));
    let before = count();
    run();
    let after = count();
    std::array::from_fn(|index| after[index] - before[index])
}

#[test]
fn one_request_writes_or_reads_and_the_owner_need_not_look() {
    let pair = pair();
    for len in [1, 64, 8192, 8193, 65_536, 1 << 20] {
        let (memory, region) = known(&pair, len.max(8));
        let (from, back, there) = (Memory::patterned(len, 7), Memory::new(len), [remote_at(&region, 0, len)]);
        let alone = |what: &str| wait::drive(&[&pair.a], what, || pair.a.next_of(2)).done();
        let write = cost(&pair.a, || {
            pair.a.out(pair.to_b, &from).context(2).write(&there).unwrap();
            alone("a write");
        });
        assert_eq!(write, [1, 0, 0], "{len} bytes");
        memory.slice(..len).check(7);
        let read = cost(&pair.a, || {
            pair.a.out(pair.to_b, &back).context(2).read(&there).unwrap();
            alone("a read");
        });
        assert_eq!(read, [0, 1, 0], "{len} bytes");
        back.check(len, 7);
        region.close().unwrap();
    }
    assert_eq!(pair.b.pending(), 0);
}

/// A message of 64 bytes is one inline request. Injected ones have no completion from the device.
#[test]
fn a_short_message_is_one_request_that_carries_it() {
    const INJECTED: u64 = 20;
    let pair = pair();
    pair.warm_up();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    let count = || ["verbs_sent", "verbs_inline", "verbs_quiet"].map(|name| pair.a.statistic(name));
    let since = |before: [u64; 3]| std::array::from_fn(|index| count()[index] - before[index]);
    let take = || {
        let entry = wait::drive(&[&pair.a, &pair.b], "a message", || pair.b.next_of(1)).done();
        assert_eq!(entry.len, 64);
        into.check(64, 5);
    };
    let before = count();
    pair.b.receive(&into).context(1).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    take();
    wait::drive(&[&pair.a, &pair.b], "the send", || pair.a.next_of(2)).done();
    assert_eq!(since(before), [1, 1, 0]);
    let before = count();
    for _ in 0..INJECTED {
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
        take();
    }
    let [sent, inline, quiet]: [u64; 3] = since(before);
    assert!(sent >= INJECTED && inline == sent && quiet >= INJECTED, "{sent} {inline} {quiet}");
}

/// More requests than a queue pair holds: now and then one is reported, which shows that earlier ones have ended.
#[test]
fn quiet_requests_end_with_those_that_are_reported() {
    const COUNT: u64 = 500;
    let pair = pair();
    let (from, into) = (Memory::patterned(64, 6), Memory::new(64));
    for _ in 0..COUNT {
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
        wait::drive(&[&pair.a, &pair.b], "a message", || pair.b.next_of(1)).done();
        into.check(64, 6);
    }
    let (sent, quiet) = (pair.a.statistic("verbs_sent"), pair.a.statistic("verbs_quiet"));
    assert!(quiet >= COUNT * 9 / 10 && quiet < sent, "{quiet} of {sent}");
}

#[test]
fn delivery_is_a_read_behind_the_write() {
    let pair = pair();
    let (memory, region) = known(&pair, 64);
    let from = Memory::patterned(64, 3);
    let cost = cost(&pair.a, || {
        let out = pair.a.out(pair.to_b, &from).context(2).msg(OpFlags::DELIVERY_COMPLETE);
        out.write(&[remote(&region)]).unwrap();
        wait::drive(&[&pair.a], "a delivered write", || pair.a.next_of(2)).done();
    });
    assert_eq!(cost, [1, 1, 0]);
    memory.check(64, 3);
}

#[test]
fn remote_data_follows_in_a_record() {
    let pair = pair();
    let (memory, region) = known(&pair, 65_536);
    let from = Memory::patterned(65_536, 4);
    let cost = cost(&pair.a, || {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(u64::MAX).write(&[remote(&region)]));
        let told = pair.done(&pair.b);
        assert_eq!((told.data, told.len), (u64::MAX, 65_536));
        memory.check(65_536, 4);
        pair.done(&pair.a);
    });
    assert_eq!(cost, [1, 0, 1]);
}

#[test]
fn what_is_out_of_bounds_is_the_owner_s_to_refuse_and_the_lane_goes_on() {
    let pair = pair();
    let (memory, region) = known(&pair, 64);
    let from = Memory::patterned(64, 5);
    let beyond = RemotePiece { addr: remote(&region).addr + 1, ..remote(&region) };
    let connections = pair.a.statistic("verbs_connections");
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[beyond]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EACCES);
    assert_eq!(memory.bytes(), [0; 64]);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(64, 5);
    assert_eq!(pair.a.statistic("verbs_connections"), connections);
}

#[test]
fn a_key_of_a_closed_region_is_taken_back() {
    let pair = pair();
    let (memory, region) = known(&pair, 64);
    let connections = pair.a.statistic("verbs_connections");
    let there = remote(&region);
    region.close().unwrap();
    pair.warm_up(); // the owner says so
    let from = Memory::patterned(64, 5);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[there]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    assert_eq!(memory.bytes(), [0; 64]);
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "the connection went on");
}

#[test]
fn an_access_of_a_closed_region_that_the_device_refuses_costs_the_connection_and_no_more() {
    let pair = pair();
    let (memory, region) = known(&pair, 64);
    let there = remote(&region);
    region.close().unwrap();
    // Before the owner has sent the notice.
    let from = Memory::patterned(64, 5);
    pair.a.out(pair.to_b, &from).context(2).write(&[there]).unwrap();
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    assert_eq!(memory.bytes(), [0; 64]);
    let (connections, (memory, region)) = (pair.a.statistic("verbs_connections"), known(&pair, 64));
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(64, 5);
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "made anew to ask the owner");
}

#[test]
fn accesses_that_the_device_refuses_are_the_owner_s_if_the_region_is_still_there() {
    let pair = pair();
    const LEN: usize = 100_000;
    let (memory, region) = known(&pair, LEN);
    let counter = pair.b.domain.open_counter(&CntrAttr::default()).unwrap();
    // The counter withdraws the device's registration, and the peer is not notified yet.
    region.bind_counter(&counter, BindFlags::REMOTE_WRITE).unwrap();
    let there = |len: usize| [remote_at(&region, 0, len)];
    let (long, short, told) =
        (Memory::patterned(LEN, 5), Memory::patterned(64, 6), Memory::patterned(500, 7));
    let (first, second, third) = (Memory::new(LEN), Memory::new(64), Memory::new(600));
    pair.a.out(pair.to_b, &long).context(2).write(&there(LEN)).unwrap();
    pair.a.out(pair.to_b, &first).context(3).read(&there(LEN)).unwrap();
    pair.a.out(pair.to_b, &short).context(4).write(&there(64)).unwrap();
    pair.a.out(pair.to_b, &second).context(5).read(&there(64)).unwrap();
    pair.a.out(pair.to_b, &told).context(6).data(9).write(&there(500)).unwrap();
    pair.a.out(pair.to_b, &third).context(7).read(&there(600)).unwrap();
    for context in 2..8 {
        pair.drive("an access", || pair.a.next_of(context)).done();
    }
    pair.drive("its data", || pair.b.next()).done();
    first.check(LEN, 5);
    second.check(64, 6);
    assert!(third.bytes()[..500] == told.bytes()[..] && third.bytes()[500..] == memory.bytes()[500..600]);
    assert_eq!(counter.read(), 3);
    assert_eq!(pair.a.statistic("verbs_asked_again"), 6);
}

#[test]
fn reads_and_writes_of_one_place_keep_their_order() {
    let pair = pair();
    let (_memory, region) = known(&pair, 4096);
    let there = [remote(&region)];
    for round in 1..40u8 {
        let (first, second) = (Memory::new(4096), Memory::new(4096));
        let (one, two) = (Memory::patterned(4096, round), Memory::patterned(4096, round + 100));
        first.fill(round);
        pair.post(|| pair.a.out(pair.to_b, &one).context(2).write(&there));
        pair.post(|| pair.a.out(pair.to_b, &first).context(2).read(&there));
        pair.post(|| pair.a.out(pair.to_b, &two).context(2).write(&there));
        pair.post(|| pair.a.out(pair.to_b, &second).context(2).read(&there));
        pair.all_done(&pair.a, 2, 4);
        first.check(4096, round);
        second.check(4096, round + 100);
    }
}

#[test]
fn registrations_of_registered_memory_are_kept() {
    let pair = pair();
    let (_memory, region) = known(&pair, 1 << 20);
    let from = Memory::patterned(1 << 20, 9);
    let own = pair.a.register(&from, MrAccess::SEND).unwrap();
    let (hits, misses) = (pair.a.statistic("verbs_mr_cache_hits"), pair.a.statistic("verbs_mr_cache_misses"));
    for _ in 0..3 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
        pair.done(&pair.a);
    }
    assert_eq!(pair.a.statistic("verbs_mr_cache_hits") - hits, 2);
    assert_eq!(pair.a.statistic("verbs_mr_cache_misses") - misses, 1);
    own.close().unwrap();
    assert_eq!(pair.a.statistic("verbs_mr_cache_count"), 0, "flushed");
}

#[test]
fn messages_of_registered_memory_register_nothing() {
    steady::registered_memory_is_registered_once(&pair(), "verbs");
}

#[test]
fn messages_of_other_memory_register_it_once() {
    steady::other_memory_is_registered_once_while_it_is_watched(&pair(), "verbs");
}

#[test]
fn memory_that_is_mapped_again_is_registered_again() {
    steady::replaced_memory_is_registered_anew(&pair(), "verbs");
}

#[test]
fn a_forked_child_changes_no_message() {
    steady::a_child_that_writes_changes_no_message(&pair());
}
