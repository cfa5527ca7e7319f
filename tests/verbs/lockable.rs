//! Exhausted locked memory (`RLIMIT_MEMLOCK`): operations that need more fail with an error that names it, and all
//! others continue.

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{ConnectedOver, device, hints};

const LEN: usize = 1 << 20;

/// Endpoints over a device of one test.
struct Over(&'static str);

impl Kit for Over {
    fn hints(&self) -> ofi::raw::Hints {
        hints(self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// A device, and a connected pair on it.
fn start(name: &'static str) -> (std::sync::Arc<SimulatedDevice>, Pair) {
    let device = device(name, Plan::default());
    let kit: &dyn Kit = &Over(name);
    let pair = kit.pair();
    pair.warm_up();
    (device, pair)
}

/// A message in each direction that needs a registration at both ends.
fn exchange(pair: &Pair) {
    for (from, to, into) in [(&pair.a, pair.to_b, &pair.b), (&pair.b, pair.to_a, &pair.a)] {
        let (sent, got) = (Memory::patterned(LEN, 1), Memory::new(LEN));
        into.receive(&got).context(1).post().unwrap();
        pair.post(|| from.out(to, &sent).context(2).send());
        pair.drive("a message", || into.next_of(1)).done();
        pair.drive("its end", || from.next_of(2)).done();
        got.check(LEN, 1);
    }
}

#[test]
fn a_sender_that_may_lock_nothing_more_is_refused_and_short_messages_arrive() {
    let (device, pair) = start("lockable0");
    device.limit_locked(LEN - 1);
    let sent = Memory::patterned(LEN, 1);
    let error = pair.a.out(pair.to_b, &sent).context(2).send().unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
    assert!(error.to_string().contains("ibv_reg_mr"), "{error}");
    pair.warm_up();
    device.limit_locked(2 * LEN);
    exchange(&pair);
}

#[test]
fn a_receiver_that_may_lock_nothing_more_fails_the_receive_alone() {
    let (device, pair) = start("lockable1");
    device.limit_locked(2 * LEN - 1);
    let (sent, got) = (Memory::patterned(LEN, 1), Memory::new(LEN));
    pair.b.receive(&got).context(1).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &sent).context(2).send());
    let end = pair.drive("the receive's end", || pair.b.next_of(1)).failed();
    assert_eq!(end.err, Errno::ENOMEM);
    pair.drive("the end of the message", || pair.a.next_of(2));
    pair.warm_up();
    device.limit_locked(2 * LEN);
    exchange(&pair);
}

#[test]
fn without_room_for_its_slots_an_endpoint_is_refused_by_name() {
    let (device, pair) = start("lockable2");
    device.limit_locked(1 << 16);
    let kit: &dyn Kit = &Over("lockable2");
    let error = kit.opening().try_open().map(|_| ()).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
    assert!(error.to_string().contains("ibv_reg_mr"), "{error}");
    pair.warm_up();
}

/// Accesses to a region that the device does not know go through its owner.
#[test]
fn a_region_that_may_not_be_locked_is_its_owner_s_to_serve() {
    let (device, pair) = start("lockable3");
    let target = Memory::new(LEN);
    device.limit_locked(LEN - 1);
    let region = pair.b.register(&target, MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ).unwrap();
    let from = Memory::patterned(4096, 3);
    for at in [0, 4096] {
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote_at(&region, at, 4096)]));
        pair.drive("a write", || pair.a.next_of(1)).done();
        assert_eq!(target.slice(at..at + 4096).bytes(), from.bytes());
    }
    assert_eq!(pair.a.statistic("verbs_native_writes"), 0);
}

/// Keys of connected endpoints are the device's.
#[test]
fn a_region_for_connected_endpoints_is_refused_by_name() {
    let device = device("lockable4", Plan::default());
    let kit: &dyn Kit = &ConnectedOver(|| hints("lockable4"));
    let side = kit.opening().open_disabled().unwrap();
    device.limit_locked(LEN - 1);
    let error = side.register(&Memory::new(LEN), MrAccess::REMOTE_WRITE).map(|_| ()).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOMEM, "{error}");
    assert!(error.to_string().contains("ibv_reg_mr"), "{error}");
    device.limit_locked(LEN);
    side.register(&Memory::new(LEN), MrAccess::REMOTE_WRITE).unwrap();
}
