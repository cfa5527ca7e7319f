//! Preparing takes time in proportion to the descriptors, whatever the number of regions.

use std::time::{Duration, Instant};

use multirail::{Agent, Region, Remote, Way};
use ofi::Hints;

/// The time of preparing one descriptor for each of these regions; the best of five.
fn prepared(agent: &Agent, regions: &[Region<Vec<u8>>]) -> Duration {
    let local: Vec<_> = regions.iter().map(|region| region.slice(..).unwrap()).collect();
    // Local and remote regions in opposite orders.
    let remote = |region: &Region<Vec<u8>>| Remote { region: region.id(), offset: 0, len: 64 };
    let remote: Vec<_> = regions.iter().rev().map(remote).collect();
    let time = || {
        let began = Instant::now();
        let plan = agent.prepare("alice", Way::Write, &local, &remote).unwrap();
        let took = began.elapsed();
        assert_eq!(plan.len(), regions.len());
        took
    };
    (0..5).map(|_| time()).min().unwrap()
}

#[test]
fn many_regions_cost_each_descriptor_the_same() {
    const FEW: usize = 2_000;
    const MANY: usize = 32_000;
    let alice = Agent::builder("alice").rail(Hints::new().provider("shm")).open().unwrap();
    let regions: Vec<_> = (0..MANY).map(|_| alice.register(vec![0_u8; 64]).unwrap()).collect();
    alice.load(&alice.metadata().unwrap()).unwrap();
    let (few, many) = (prepared(&alice, &regions[..FEW]), prepared(&alice, &regions));
    println!("{FEW} descriptors in as many regions: {few:?}; {MANY}: {many:?}");
    let limit = 3 * few * (MANY / FEW) as u32;
    assert!(many < limit, "{many:?} for {MANY}, {few:?} for {FEW}");
}
