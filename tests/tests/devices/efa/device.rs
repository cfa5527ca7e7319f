//! Devices without notifications, and devices that are lost.

use std::sync::Arc;

use ofi_testkit::conformance::wait_objects;
use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::EfaPair;

/// Endpoints on a device of their own.
struct Alone(String);

impl Kit for Alone {
    fn hints(&self) -> Hints {
        EfaPair.hints().domain(&self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn device(name: &str) -> (Arc<SimulatedDevice>, Alone) {
    let device = SimulatedDevice::new(name, Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    (device, Alone(format!("{name}-rdm")))
}

#[test]
fn threads_that_wait_for_a_device_without_notifications_are_woken() {
    let (device, kit) = device("silent0");
    device.be_silent();
    let cases: [fn(&dyn Kit); 7] = [
        wait_objects::a_message_ends_a_blocking_read,
        wait_objects::an_error_ends_a_blocking_read,
        wait_objects::a_first_message_wakes_a_sleeping_receiver,
        wait_objects::the_descriptor_becomes_readable_for_every_event,
        wait_objects::no_wake_up_is_lost_between_blocking_reads,
        wait_objects::sleeping_both_ends_serves_remote_accesses,
        wait_objects::an_endpoint_that_comes_later_wakes_a_sleeper_too,
    ];
    cases.iter().for_each(|case| case(&kit));
}

/// Waits until an operation has ended with an error.
fn fails(sides: &[&TestEndpoint], side: &TestEndpoint, context: usize) {
    let event = wait::drive(sides, "the end of an operation", || side.next_of(context));
    let error = event.failed().err;
    assert!(matches!(error, Errno::ENODEV | Errno::ECONNRESET), "operation {context}: {error:?}");
}

#[test]
fn the_loss_of_a_device_ends_all_operations_with_an_error() {
    let (device, kit) = device("dying0");
    let kit: &dyn Kit = &kit;
    let pair = kit.pair();
    pair.warm_up();
    let memory = Memory::new(3 << 20);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    // The receiver has begun to read this one.
    let long = Memory::patterned(2 << 20, 1);
    let into = Memory::new(2 << 20);
    pair.post(|| pair.b.receive(&into).context(9).post());
    pair.post(|| pair.a.out(pair.to_b, &long).context(1).send());
    device.hold(true);
    for (context, len) in [(2, 64), (3, 60_000), (4, 300_000)] {
        pair.post(|| pair.a.out(pair.to_b, long.slice(..len)).context(context).send());
    }
    let there = [remote_at(&region, 0, 64)];
    pair.post(|| pair.a.out(pair.to_b, long.slice(..64)).context(5).write(&there));
    pair.post(|| pair.a.out(pair.to_b, long.slice(..64)).context(6).read(&there));
    let all = [remote(&region)];
    let (from, back) = (Memory::patterned(3 << 20, 1), Memory::new(3 << 20));
    pair.post(|| pair.a.out(pair.to_b, &from).context(7).write(&all));
    pair.post(|| pair.a.out(pair.to_b, &back).context(8).read(&all));
    device.die();
    let sides = [&pair.a, &pair.b];
    (1..=8).for_each(|context| fails(&sides, &pair.a, context));
    // Later operations fail too, and none gets FI_EAGAIN without end.
    for _ in 0..600 {
        wait::drive(&sides, "a post", || {
            pair.a.out(pair.to_b, long.slice(..64)).context(5).write(&there).ok()
        });
        wait::drive(&sides, "a post", || pair.a.out(pair.to_b, long.slice(..64)).context(2).send().ok());
        fails(&sides, &pair.a, 5);
        fails(&sides, &pair.a, 2);
    }
    let since = Instant::now();
    drop((region, pair));
    assert!(since.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_loss_of_a_device_ends_direct_requests_with_an_error() {
    let (device, kit) = device("dying1");
    let kit: &dyn Kit = &kit;
    let modes = MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED | MrMode::LOCAL;
    let hints = || kit.hints().caps(Caps::MSG | Caps::RMA).mode(Mode::CONTEXT2).mr_mode(modes);
    let side = || kit.opening_for(hints()).open();
    let pair = Pair::of(side(), side());
    assert_eq!(pair.a.info.fabric_attr.name, "efa-direct");
    let memory = Memory::new(4096);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let from = Memory::patterned(4096, 1);
    let own = pair.a.register(&from, MrAccess::empty());
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    device.hold(true);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote(&region)]));
    pair.post(|| pair.a.out(pair.to_b, &from).context(3).send());
    device.die();
    let sides = [&pair.a, &pair.b];
    [2, 3].into_iter().for_each(|context| fails(&sides, &pair.a, context));
    for _ in 0..600 {
        // A post may be refused at once.
        let refused =
            wait::drive(&sides, "a post", || match pair.a.out(pair.to_b, &from).context(4).send() {
                Err(error) if error.is_again() => None,
                sent => Some(sent.err()),
            });
        match refused {
            Some(error) => assert_eq!(error.errno(), Errno::ENODEV),
            None => fails(&sides, &pair.a, 4),
        }
    }
    drop(own);
}

/// Sets variables of the environment, which only the test's own thread reads.
fn set(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: each test runs in a process of its own, and calls this before it opens anything.
        unsafe { std::env::set_var(name, value) };
    }
}

#[test]
fn getinfo_offers_the_devices_that_are_named_alone() {
    for name in ["named0", "named1", "named10"] {
        device(name);
    }
    let offered = || {
        let found = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&EfaPair.hints()));
        found.map(|infos| {
            let mut names: Vec<_> = infos.into_iter().map(|info| info.domain_attr.name).collect();
            names.sort_unstable();
            names.dedup();
            names
        })
    };
    set(&[("FI_EFA_IFACE", "named10,named0")]);
    assert_eq!(offered().unwrap(), ["named0-rdm", "named10-rdm"]);
    set(&[("FI_EFA_IFACE", "named")]);
    let error = offered().unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    let text = error.to_string();
    assert!(text.contains("FI_EFA_IFACE") && text.contains("named0, named1, named10"), "{text}");
}

#[test]
fn without_a_cache_no_registration_outlives_its_operation() {
    set(&[("FI_EFA_MR_CACHE_ENABLE", "0")]);
    let (_device, kit) = device("plain0");
    let kit: &dyn Kit = &kit;
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(2 << 20, 1), Memory::new(2 << 20));
    for context in 1..4 {
        pair.post(|| pair.b.receive(&into).context(context).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(context).send());
        pair.all_done(&pair.a, context, 1);
        pair.all_done(&pair.b, context, 1);
    }
    assert_eq!(pair.a.statistic("efa_mr_cache_count") + pair.b.statistic("efa_mr_cache_count"), 0);
    assert_eq!(pair.a.statistic("efa_mr_cache_hits") + pair.b.statistic("efa_mr_cache_hits"), 0);
    let made = pair.a.statistic("efa_mr_cache_misses") + pair.b.statistic("efa_mr_cache_misses");
    assert!(made >= 3, "each message costs one: {made}\n{}\n{}", pair.a.report(), pair.b.report());
}
