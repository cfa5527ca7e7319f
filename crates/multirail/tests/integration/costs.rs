//! The cost of rails on a device: doorbells and registrations, counted by the device.

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use multirail::{Agent, Local, Region, Remote, Way};
use ofi::Hints;
use ofi_testkit::srd;

const LONG: Duration = Duration::from_secs(60);
/// Descriptors that one row may have (`Config::batch`), and their length.
const ROW: usize = 16;
const PART: u64 = 64;

/// A device of one test.
fn device(name: &'static str) -> (Arc<srd::SimulatedDevice>, Hints) {
    static PROVIDER: Once = Once::new();
    // A build with every provider has it already.
    PROVIDER.call_once(|| drop(ofi::register_provider(Arc::new(ofi_efa::EfaProvider))));
    let device = srd::SimulatedDevice::new(name, srd::Plan::default());
    ofi_efa::srd::add(Arc::new(srd::Handle(Arc::clone(&device))));
    (device, Hints::new().provider("efa").domain(format!("{name}-rdm")))
}

fn agent(name: &str, hints: &Hints, rails: usize) -> Agent {
    let builder = Agent::builder(name).shared_memory(false);
    (0..rails).fold(builder, |builder, _| builder.rail(hints.clone())).open().unwrap()
}

/// One test at a time drives its agents.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Posts a plan, and drives both agents until the transfer has ended.
fn done(plan: &multirail::Prepared, agents: [&Agent; 2]) {
    let transfer = plan.post(LONG).unwrap();
    let began = Instant::now();
    while transfer.progress().outcome.is_none() {
        assert!(began.elapsed() < LONG, "the transfer ends");
        agents.into_iter().for_each(|agent| _ = agent.progress().unwrap());
    }
    transfer.wait().unwrap();
}

/// The first `count` ranges of `PART` bytes each.
fn parts(region: &Region<Vec<u8>>, count: usize) -> (Vec<Local>, Vec<Remote>) {
    let start = |nth: usize| nth as u64 * PART;
    let local = (0..count).map(|nth| region.slice(start(nth)..start(nth + 1)).unwrap()).collect();
    let remote = |nth| Remote { region: region.id(), offset: start(nth), len: PART };
    (local, (0..count).map(remote).collect())
}

/// `FI_MORE`: a row's accesses go to the device together.
#[test]
fn the_accesses_of_a_row_ring_the_doorbell_once() {
    let _alone = alone();
    let (device, hints) = device("costs0");
    let (alice, bob) = (agent("alice", &hints, 1), agent("bob", &hints, 1));
    let source = alice.register(vec![1; ROW * PART as usize]).unwrap();
    let target = bob.register(vec![0; ROW * PART as usize]).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    for way in [Way::Write, Way::Read] {
        for count in [1, ROW] {
            let plan = alice.prepare("bob", way, &parts(&source, count).0, &parts(&target, count).1).unwrap();
            done(&plan, [&alice, &bob]); // the session is open, and all is registered
            device.take_accesses();
            done(&plan, [&alice, &bob]);
            assert_eq!(device.take_accesses(), [count], "{way:?} of {count}: accesses of each doorbell");
        }
    }
}

/// A region is registered with a rail when that rail first needs it, and once.
#[test]
fn a_region_is_registered_at_its_first_use_and_kept() {
    const RAILS: usize = 2;
    let _alone = alone();
    let (device, hints) = device("costs1");
    let (alice, bob) = (agent("alice", &hints, RAILS), agent("bob", &hints, RAILS));
    let before = device.registrations();
    let since = || device.registrations() - before;
    let target = bob.register(vec![0; 4 * PART as usize]).unwrap();
    assert_eq!(since(), 0, "no rail has needed it");
    alice.load(&bob.metadata().unwrap()).unwrap();
    assert_eq!(since(), RAILS, "the metadata has its keys, one of each rail");
    alice.load(&bob.metadata().unwrap()).unwrap();
    assert_eq!(since(), RAILS, "the same keys");

    let source = alice.register(vec![1; 4 * PART as usize]).unwrap();
    let copy = source.clone();
    let plan = alice.prepare("bob", Way::Read, &parts(&copy, 4).0, &parts(&target, 4).1).unwrap();
    assert_eq!(since(), RAILS, "neither a region nor a plan registers anything");
    alice.metadata().unwrap();
    assert_eq!(since(), 2 * RAILS);
    // A rail's first access may register the memory for its own requests.
    let some = |count| (0..count).for_each(|_| done(&plan, [&alice, &bob]));
    some(40);
    let used = since();
    assert!(used <= 3 * RAILS, "{used}");
    let rails = || alice.paths("bob").unwrap().iter().filter(|path| path.moved > 0).count();
    let before = rails();
    some(40);
    assert!(since() == used || rails() > before, "none is made twice: {used}, {}", since());
    drop((plan, copy));
    source.withdraw().unwrap();
    target.withdraw().unwrap();
    alice.progress().unwrap(); // a rail keeps the last registration that it used until it is polled
    assert_eq!(since(), 0, "and none is left");
}
