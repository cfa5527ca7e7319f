//! Accesses that devices execute (`ofi-efa/native.rs`), and payloads that their receivers read (`read.rs`).

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::EfaPair;
use crate::steady;

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);

/// The device of these tests, which run one at a time: it can be set to refuse registrations.
pub static DEVICE: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    let device = SimulatedDevice::new("simulated1", Plan { seed: 7, ..Plan::default() });
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    device
});

/// Serializes these tests.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// These hints, for the device of these tests.
pub fn on_own_device(hints: Hints) -> Hints {
    LazyLock::force(&DEVICE);
    hints.domain("simulated1-rdm")
}

fn pair_with(change: impl Fn(Opening) -> Opening) -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| change(opening.hints(on_own_device)));
    pair.warm_up();
    pair
}

fn pair() -> Pair {
    pair_with(|opening| opening)
}

/// The cost of an operation at `side`: numbers of write requests, read requests and packets.
pub fn cost(side: &TestEndpoint, run: impl FnOnce()) -> [u64; 3] {
    let count = || ["efa_native_writes", "efa_native_reads", "efa_sent"].map(|name| side.statistic(name));
    let before = count();
    run();
    let after = count();
    std::array::from_fn(|index| after[index] - before[index])
}

#[test]
fn one_request_writes_or_reads_and_the_owner_need_not_look() {
    let _alone = alone();
    let pair = pair();
    for len in [1, 64, 8760, 8761, 65_536, 3 << 20] {
        let memory = Memory::new(len);
        let region = pair.b.register(&memory, RIGHTS).unwrap();
        assert!(region.key() <= u64::from(u32::MAX), "a device's key");
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

#[test]
fn data_of_32_bits_goes_with_the_write_and_longer_data_by_the_owner() {
    let _alone = alone();
    let pair = pair();
    let memory = Memory::new(65_536);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    for (data, wanted) in [(u64::from(u32::MAX), [1, 0]), (1 << 32, [0, 0])] {
        let from = Memory::patterned(65_536, data as u8);
        let cost = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).data(data).write(&[remote(&region)]));
            let told = pair.done(&pair.b);
            assert_eq!((told.data, told.len), (data, 65_536));
            memory.check(65_536, data as u8);
            pair.done(&pair.a);
        });
        assert_eq!(cost[..2], wanted);
    }
}

#[test]
fn what_the_device_refuses_its_owner_refuses_and_the_lane_goes_on() {
    let _alone = alone();
    let pair = pair();
    for len in [64, 65_536] {
        let memory = Memory::new(len);
        let region = pair.b.register(&memory, RIGHTS).unwrap();
        let from = Memory::patterned(len, 5);
        let there = remote(&region);
        let beyond = RemotePiece { addr: there.addr + 1, ..there };
        let refused = pair.a.statistic("efa_native_refused");
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[beyond]));
        assert_eq!(pair.failed(&pair.a).err, Errno::EACCES);
        assert_eq!(pair.a.statistic("efa_native_refused"), refused + 1);
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[there]));
        pair.done(&pair.a);
        memory.check(len, 5);
        region.close().unwrap();
        for write in [true, false] {
            pair.post(|| match write {
                true => pair.a.out(pair.to_b, &from).context(2).write(&[there]),
                false => pair.a.out(pair.to_b, &from).context(2).read(&[there]),
            });
            assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
        }
    }
}

#[test]
fn a_region_with_a_counter_is_its_owner_s_and_its_key_stays() {
    let _alone = alone();
    let pair = pair();
    let memory = Memory::new(64);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let key = region.key();
    let counter = pair.b.domain.open_counter(&CntrAttr::default()).unwrap();
    region.bind_counter(&counter, BindFlags::REMOTE_WRITE).unwrap();
    let from = Memory::patterned(64, 6);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.done(&pair.a);
    memory.check(64, 6);
    assert_eq!((counter.read(), region.key()), (1, key));
    // Later registrations with the device do not get that key.
    let others: Vec<_> = (0..100).map(|_| pair.b.register(&memory, RIGHTS).unwrap()).collect();
    assert!(others.iter().all(|other| other.key() != key));
}

#[test]
fn the_receiver_of_a_long_message_reads_it() {
    let _alone = alone();
    let pair = pair();
    for (len, room) in [(1 << 20, 1 << 20), ((3 << 20) + 5, 4 << 20), (2 << 20, 1000)] {
        let (from, into) = (Memory::patterned(len, 9), Memory::new(room));
        let fetched = pair.b.statistic("efa_fetched");
        pair.post(|| pair.b.receive(&into).context(1).post());
        let cost = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
            if room < len {
                assert_eq!(pair.failed(&pair.b).err, Errno::ETRUNC);
            } else {
                assert_eq!(pair.done(&pair.b).len, len);
            }
            pair.done(&pair.a);
        });
        assert_eq!(cost, [0, 0, 1], "one packet");
        into.check(len.min(room), 9);
        assert_eq!(pair.b.statistic("efa_fetched"), fetched + 1);
    }
    // A message without a receive waits at its sender.
    let (from, into) = (Memory::patterned(1 << 20, 3), Memory::new(1 << 20));
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).tag(5).send());
    pair.quiet(Duration::from_millis(20));
    pair.post(|| pair.b.receive(&into).context(1).tag(5).post());
    pair.done(&pair.b);
    pair.done(&pair.a);
    into.check(1 << 20, 3);
}

#[test]
fn what_cannot_be_read_is_sent() {
    let _alone = alone();
    let pair = pair();
    let (from, into) = (Memory::patterned(2 << 20, 4), Memory::new(2 << 20));
    DEVICE.refuse_local(true);
    for delivered in [false, true] {
        let flags = if delivered { OpFlags::DELIVERY_COMPLETE } else { OpFlags::empty() };
        let nacks = pair.b.statistic("efa_nacks");
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).msg(flags).send());
        assert_eq!(pair.done(&pair.b).len, 2 << 20);
        pair.done(&pair.a);
        into.check(2 << 20, 4);
        assert_eq!(pair.b.statistic("efa_nacks"), nacks + 1);
    }
    // Later messages stay in order.
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    let short = Memory::patterned(8, 1);
    pair.post(|| pair.a.out(pair.to_b, &short).context(3).send());
    for _ in 0..2 {
        pair.post(|| pair.b.receive(&into).context(1).post());
    }
    let lens = [pair.done(&pair.b).len, pair.done(&pair.b).len];
    assert_eq!(
        {
            let mut sorted = lens;
            sorted.sort_unstable();
            sorted
        },
        [8, 2 << 20]
    );
    pair.all_done(&pair.a, 2, 1);
    pair.all_done(&pair.a, 3, 1);
    DEVICE.refuse_local(false);
}

#[test]
fn accesses_end_when_their_peer_closes() {
    let _alone = alone();
    let pair = pair();
    let memory = Memory::new(1 << 20);
    let region = pair.b.register(&memory, RIGHTS).unwrap();
    let into: Vec<_> = (0..16).map(|_| Memory::new(1 << 20)).collect();
    for into in &into {
        pair.post(|| pair.a.out(pair.to_b, into).context(2).read(&[remote(&region)]));
    }
    let Pair { a, b, .. } = pair;
    region.close().unwrap();
    drop(b);
    for _ in &into {
        match wait::drive(&[&a], "the end of a read", || a.next()) {
            Event::Done(..) => {}
            Event::Failed(error) => assert!(
                matches!(error.err, Errno::EKEYREJECTED | Errno::ECONNRESET | Errno::ECONNREFUSED),
                "{error:?}"
            ),
        }
    }
}

#[test]
fn messages_of_registered_memory_register_nothing() {
    let _alone = alone();
    steady::registered_memory_is_registered_once(&pair(), "efa");
}

#[test]
fn messages_of_other_memory_register_it_once() {
    let _alone = alone();
    steady::other_memory_is_registered_once_while_it_is_watched(&pair(), "efa");
}

#[test]
fn memory_that_is_mapped_again_is_registered_again() {
    let _alone = alone();
    steady::replaced_memory_is_registered_anew(&pair(), "efa");
}

#[test]
fn a_forked_child_changes_no_message() {
    let _alone = alone();
    steady::a_child_that_writes_changes_no_message(&pair());
}
