//! Devices that take long to make an address handle.

use std::sync::Arc;
use std::time::Duration;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{CAPS, add, hints, qp};

struct Slow(&'static str, Arc<SimulatedDevice>);

impl Slow {
    fn new(name: &'static str, routes: usize) -> Self {
        let device = SimulatedDevice::new(name, Plan { slow_routes: true, routes, ..Plan::default() });
        add(&device);
        Self(name, device)
    }

    /// Waits until the device has made so many routes, of which so many exist.
    fn await_routes(&self, made: usize, exist: usize) {
        wait::until("the routes", || self.1.made_routes() == [made, exist]);
    }
}

impl Kit for Slow {
    fn hints(&self) -> Hints {
        hints(self.0)
    }

    fn usual_caps(&self) -> Caps {
        CAPS
    }
}

/// Sends a datagram, and waits for its arrival.
fn exchange(from: &TestEndpoint, to: FiAddr, at: &TestEndpoint, seed: u8) {
    let (out, into) = (Memory::patterned(100, seed), Memory::new(100));
    at.receive(&into).context(1).post().unwrap();
    wait::drive(&[from, at], "room", || from.out(to, &out).context(2).send().ok());
    wait::drive(&[from, at], "the datagram", || at.next_of(1)).done();
    wait::drive(&[from, at], "its end", || from.next_of(2)).done();
    into.check(100, seed);
}

#[test]
fn others_send_while_the_device_makes_a_route() {
    let slow = Slow::new("slow5", 100);
    let kit: &dyn Kit = &slow;
    let (pair, far) = (kit.pair(), kit.side());
    pair.warm_up();
    slow.await_routes(2, 2);
    let to_far = pair.a.insert(&far);
    slow.1.hold_routes(true);
    let out: Vec<Memory> = (0..40).map(|seed| Memory::patterned(100, seed)).collect();
    let into: Vec<Memory> = (0..40).map(|_| Memory::new(100)).collect();
    into.iter().for_each(|into| far.receive(into).context(1).post().unwrap());
    // Two threads send to the same new peer.
    std::thread::scope(|scope| {
        for half in out[..20].chunks(10) {
            scope.spawn(|| half.iter().for_each(|out| pair.a.out(to_far, out).inject().send().unwrap()));
        }
    });
    for (seed, out) in (0..20).zip(&out[20..]) {
        exchange(&pair.a, pair.to_b, &pair.b, seed);
        pair.a.out(to_far, out).inject().send().unwrap();
    }
    assert_eq!(slow.1.made_routes(), [2, 2]);
    assert_eq!(slow.1.fates().arrived, 22);
    slow.1.hold_routes(false);
    for _ in 0..40 {
        wait::drive(&[&pair.a, &far], "a datagram", || far.next_of(1)).done();
    }
    // Each thread's datagrams stay in order, and so do the later ones.
    into[20..].iter().zip(20..).for_each(|(into, seed)| into.check(100, seed));
    slow.await_routes(3, 3);
}

#[test]
fn datagrams_that_wait_for_a_route_leave_room_for_others() {
    let slow = Slow::new("slow4", 100);
    let kit: &dyn Kit = &slow;
    let (pair, far) = (kit.pair(), kit.side());
    pair.warm_up();
    let to_far = pair.a.insert(&far);
    slow.1.hold_routes(true);
    for seed in 0..200 {
        pair.a.out(to_far, ()).inject().send().unwrap();
        exchange(&pair.a, pair.to_b, &pair.b, seed);
    }
    assert!(pair.a.statistic("verbs_send_full") > 100, "those above the limit are dropped");
    slow.1.hold_routes(false);
    wait::drive(&[&pair.a], "the others", || (slow.1.fates().arrived == 266).then_some(()));
}

#[test]
fn a_thread_that_sleeps_wakes_when_the_route_is_there() {
    let slow = Slow::new("slow6", 100);
    let kit: &dyn Kit = &slow;
    let (side, far) = (kit.opening().wait_obj(WaitObj::Fd).open(), kit.side());
    let to_far = side.insert(&far);
    let fd = side.tx.wait_fd().unwrap();
    slow.1.hold_routes(true);
    side.out(to_far, ()).context(3).send().unwrap();
    wait::drive(&[&side], "its end", || side.next_of(3)).done();
    wait::drive(&[&side], "sleep", || side.tx.trywait().ok());
    assert!(!wait::readable(fd, Duration::from_millis(20)), "there is nothing to wake for");
    slow.1.hold_routes(false);
    assert!(wait::readable(fd, wait::BOUND), "woken");
    wait::drive(&[&side], "the datagram", || (slow.1.fates().arrived == 1).then_some(()));
    wait::drive(&[&side], "sleep", || side.tx.trywait().ok());
    assert!(!wait::readable(fd, Duration::from_millis(20)), "a route that is there keeps nobody awake");
}

#[test]
fn a_route_that_is_refused_is_an_error_and_the_next_try_works() {
    let slow = Slow::new("slow7", 100);
    let pair = (&slow as &dyn Kit).pair();
    slow.1.fail_route(libc::EHOSTUNREACH);
    pair.a.out(pair.to_b, ()).inject().send().unwrap();
    wait::drive(&[&pair.a], "the refusal", || (pair.a.statistic("verbs_unsendable") == 1).then_some(()));
    let sent = pair.a.out(pair.to_b, ()).inject().send();
    assert_eq!(sent.unwrap_err().errno(), Errno::EHOSTUNREACH);
    exchange(&pair.a, pair.to_b, &pair.b, 5);
}

#[test]
fn routes_above_the_device_s_limit_take_the_place_of_others() {
    let slow = Slow::new("slow8", 3);
    let kit: &dyn Kit = &slow;
    let hub = kit.side();
    let peers: Vec<TestEndpoint> = (0..8).map(|_| kit.side()).collect();
    let numbers: Vec<FiAddr> = peers.iter().map(|peer| hub.insert(peer)).collect();
    for round in 0..5 {
        for (peer, &to) in peers.iter().zip(&numbers) {
            exchange(&hub, to, peer, round);
        }
    }
    wait::until("the limit", || slow.1.routes(qp(&hub)) <= 3);
    assert!(slow.1.made_routes()[0] >= 8);
}

#[test]
fn no_route_outlives_its_endpoint() {
    let slow = Slow::new("slow9", 100);
    let kit: &dyn Kit = &slow;
    let (pair, far) = (kit.pair(), kit.side());
    pair.warm_up();
    let to_far = pair.a.insert(&far);
    slow.1.hold_routes(true);
    pair.a.out(to_far, ()).inject().send().unwrap();
    pair.a.av.remove(&[to_far]).unwrap();
    let began = std::time::Instant::now();
    drop(pair);
    assert!(began.elapsed() < Duration::from_secs(5), "closing waits for a route");
    slow.1.hold_routes(false);
    wait::until("the end of the routes", || slow.1.made_routes()[1] == 0);
}
