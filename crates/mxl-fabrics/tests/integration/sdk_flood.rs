//! An initiator of the C++ SDK's protocol that writes and connects without end: what a target keeps is bounded, and it
//! serves the next one.
//!
//! It measures the memory of the whole process, both ends included: run it with nextest, which gives each test one of
//! its own.
#![allow(unsafe_code, reason = "the stand-in lends memory to libfabric")]

use std::time::Instant;

use mxl_fabrics::{Provider, Received, Target};

use crate::common::sdk::{HEADER, Room, SdkInitiator, Stands};
use crate::common::{Folder, LONG, camera, microphone};

const LOCAL: (Option<&str>, Option<&str>) = (Some("127.0.0.1"), None);
/// Writes of each kind, and connections.
const WRITES: u64 = 5000;
const CALLS: usize = 200;
/// Bytes that they may cost.
const MAX_COST: usize = 3 << 20;
/// Bytes that as many again may cost, when everything that is bounded has its full size: less than 64 a write.
const MAX_LEAK: usize = 256 << 10;

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[track_caller]
fn until(mut turn: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !turn() {
        assert!(begin.elapsed() < LONG, "timeout");
    }
}

fn take_all(target: &mut Target) {
    while target.poll().unwrap().is_some() {}
}

fn connected(target: &mut Target) -> SdkInitiator {
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    until(|| {
        initiator.progress();
        if initiator.stands == Stands::Refused {
            initiator = SdkInitiator::connect(&target.info().to_json());
        }
        take_all(target);
        initiator.stands == Stands::Connected && target.is_connected()
    });
    initiator
}

fn cost(what: &str, mut flood: impl FnMut(u64)) {
    flood(0); // what is made once
    let before = resident();
    (1..=WRITES).for_each(&mut flood);
    let full = resident();
    let cost = full.saturating_sub(before);
    (WRITES + 1..=2 * WRITES).for_each(&mut flood);
    let leak = resident().saturating_sub(full);
    println!("{what}: {cost} bytes, then {leak}");
    assert!(cost < MAX_COST && leak < MAX_LEAK, "{what}: {cost} bytes, then {leak}");
}

/// A write with the number's header and CQ data.
type Kind = (&'static str, fn(&Room, u64) -> Option<u64>);

#[test]
fn what_an_initiator_of_the_sdk_makes_a_target_keep_is_bounded() {
    let grains: [Kind; 5] = [
        ("writes without CQ data", |_, _| None),
        ("marks of slots that are not there", |_, nth| Some((1000 + nth) | 40 << 16)),
        ("any CQ data", |_, nth| Some(nth.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
        ("grain after grain", |header, nth| {
            header.put(8, &(1000 + 10 * nth).to_le_bytes());
            Some(40 << 16)
        }),
        ("grains backwards", |header, nth| {
            header.put(8, &(10 * (1 << 40) - 10 * nth).to_le_bytes());
            Some(40 << 16)
        }),
    ];
    let samples: [Kind; 3] = [
        ("batch after batch", |header, nth| {
            header.put(0, &(48_000 + 48 * nth).to_le_bytes());
            header.put(8, &48_u64.to_le_bytes());
            Some(0)
        }),
        ("batches far apart", |header, nth| {
            header.put(0, &(48_000 + nth.wrapping_mul(1 << 40)).to_le_bytes());
            header.put(8, &48_u64.to_le_bytes());
            Some(0)
        }),
        ("entries that are not there", |_, nth| Some(100 + nth)),
    ];
    for (definition, kinds) in [(camera(), &grains[..]), (microphone(2), &samples[..])] {
        let far = Folder::new();
        let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
        let header = Room::new(64);
        // That of a sound grain of the camera.
        for (at, value) in [(0, 1_u32), (4, 4096), (20, 512 * 40), (24, 40 << 16 | 40)] {
            header.put(at, &value.to_le_bytes());
        }
        let mut initiator = connected(&mut target);
        for &(what, next) in kinds {
            cost(what, |nth| {
                let data = next(&header, nth);
                initiator.write(0, 0, &[header.all()], data);
                until(|| {
                    initiator.progress();
                    take_all(&mut target);
                    initiator.pending == 0
                });
            });
        }
        println!("{:?}", target.stats());
        drop(initiator);
        until(|| {
            take_all(&mut target);
            !target.is_connected()
        });
        // Connections that end at once, before the target looks at all of them.
        let (before, open) = (resident(), descriptors());
        for nth in 0..CALLS {
            drop(SdkInitiator::connect(&target.info().to_json()));
            if nth % 20 == 0 {
                take_all(&mut target);
            }
        }
        let mut next = connected(&mut target);
        let cost = resident().saturating_sub(before);
        println!("{CALLS} connections: {cost} bytes, {} descriptors", descriptors().saturating_sub(open));
        assert!(cost < MAX_COST, "{cost} bytes for {CALLS} connections");
        assert!(descriptors() <= open + 32, "{} descriptors are left", descriptors() - open);
        // It serves the next one.
        if let mxl::Geometry::Grains { .. } = definition.geometry() {
            let whole = Room::new(HEADER + 512 * 40);
            whole.put(0, &header.get(0, 28));
            whole.put(8, &(1_u64 << 41).to_le_bytes());
            let index = 1_u64 << 41;
            next.transfer_grain(whole, index, (0, 40), 40, &[512]);
            until(|| {
                next.progress();
                let wanted = Received::Grain { index, slices: 40, invalid: false };
                std::iter::from_fn(|| target.poll().unwrap()).any(|received| received == wanted)
            });
        }
    }
}
