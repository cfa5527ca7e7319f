//! A forked child: what it closes stays as it is for its parent and its parent's peers.

use std::time::Instant;

use mxl::{BatchHints, Wait};
use mxl_fabrics::{Driven, Engine, Initiator, Merge, MergePath, Provider, Received, Target, Transfer};
use ofi_testkit::fork::in_a_child;

use super::common::{ANY, Ends, Folder, LONG, both, byte_of, camera};

/// Writes and sends a grain, and waits until readers see it.
fn send(ends: &mut Ends, index: u64) {
    let mut grain = ends.writer.open(index).unwrap();
    let bytes = vec![byte_of(index); grain.len()];
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
    ends.initiator.send(index).unwrap();
    both(&mut ends.initiator, &mut ends.target, |_, received| {
        received == Some(Received::Grain { index, slices: 40, invalid: false })
    });
}

fn is_whole(ends: &Ends, index: u64) -> bool {
    let reader = ends.far.domain().read_grains(ends.definition.id).unwrap();
    let bytes = reader.read(index, Wait::Not).unwrap().to_vec().unwrap();
    bytes.iter().all(|&byte| byte == byte_of(index))
}

#[test]
fn a_child_that_drops_both_ends_leaves_them_to_its_parent() {
    for provider in [Provider::Shm, Provider::Udp, Provider::Tcp] {
        let mut ends = Ends::open(provider);
        both(&mut ends.initiator, &mut ends.target, |initiator, _| initiator.is_idle());
        send(&mut ends, 100);
        let mut ends = Some(ends);
        in_a_child(|| {
            let mut ends = ends.take().expect("both ends");
            assert!(ends.target.poll().is_err() && ends.initiator.poll().is_err());
            let id = ends.target.info().id;
            ends.initiator.remove(id).unwrap();
            // Not the folders: they are the test's, and it drops them.
            let Ends { near, far, writer, target, initiator, .. } = ends;
            drop((writer, target, initiator));
            std::mem::forget((near, far));
        });
        let mut ends = ends.expect("only the child has taken them");
        send(&mut ends, 101);
        assert!(is_whole(&ends, 100) && is_whole(&ends, 101), "{provider}");
        let (target, id) = (ends.target.stats(), ends.target.info().id);
        assert_eq!((target.taken, target.parted, target.nonsense), (1, 0, 0), "{provider}");
        assert_eq!(ends.initiator.target(id).unwrap().1.connected, 1, "{provider}");
    }
}

/// The child has neither the thread of an end nor that of an engine, and one of them may have held any lock.
#[test]
fn a_child_that_drops_driven_ends_leaves_them_to_its_parent() {
    let engine = Engine::start().unwrap();
    for is_on_engine in [false, true] {
        let Ends { near, far, definition: _, writer, target, initiator } = Ends::open(Provider::Shm);
        let (target, initiator) = if is_on_engine {
            (Driven::start_on(&engine, target).unwrap(), Driven::start_on(&engine, initiator).unwrap())
        } else {
            (Driven::start(target).unwrap(), Driven::start(initiator).unwrap())
        };
        let send = |(target, initiator): (&Driven<Target>, &Driven<Initiator>), index: u64| {
            let grain = writer.open(index).unwrap();
            grain.commit().unwrap();
            initiator.with(|initiator| initiator.send(index)).unwrap();
            let begin = Instant::now();
            while target.wait(LONG).unwrap() != Some(Received::Grain { index, slices: 40, invalid: false }) {
                assert!(begin.elapsed() < LONG, "grain {index}");
            }
            while !matches!(initiator.wait(LONG).unwrap(), Some(Transfer::Published { index: of, .. }) if of == index)
            {
                assert!(begin.elapsed() < LONG, "grain {index}");
            }
        };
        assert!(initiator.wait_until(LONG, Initiator::is_idle).unwrap());
        send((&target, &initiator), 100);
        let mut driven = Some((target, initiator, engine.clone()));
        for nth in 0..10 {
            in_a_child(|| {
                let (target, initiator, engine) = driven.take().expect("both ends");
                assert!(target.wait(LONG).is_err() && initiator.wait_until(LONG, |_| true).is_err());
                drop((target, initiator, engine));
            });
            let (target, initiator, _) = driven.as_ref().expect("only the child has taken them");
            send((target, initiator), 101 + nth);
        }
        let (target, initiator, _) = driven.expect("only the child has taken them");
        // They end as ever.
        let stats = target.stop().stats();
        assert_eq!((stats.taken, stats.parted), (1, 0));
        drop((initiator.stop(), near, far));
    }
}

#[test]
fn a_child_that_drops_a_merge_leaves_its_flows_to_its_parent() {
    let (near, far, definition) = (Folder::new(), Folder::new(), camera());
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let path = || MergePath { provider: Provider::Shm, node: None, service: None, id: None, options: None };
    let mut merge = Merge::open(&far.domain(), &definition, &[path(), path()]).unwrap();
    let open = |at| {
        let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
        initiator.add(merge.path(at).unwrap().info()).unwrap();
        initiator
    };
    let mut initiators = [open(0), open(1)];
    let begin = Instant::now();
    while !initiators.iter().all(Initiator::is_idle) {
        initiators.iter_mut().for_each(|initiator| _ = initiator.poll().unwrap());
        merge.poll().unwrap();
        assert!(begin.elapsed() < LONG, "no connection");
    }
    let mut send = |merge: &mut Merge, index: u64| {
        writer.open(index).unwrap().commit().unwrap();
        let begin = Instant::now();
        initiators.iter_mut().for_each(|initiator| initiator.send(index).unwrap());
        while merge.poll().unwrap() != Some(Received::Grain { index, slices: 40, invalid: false }) {
            initiators.iter_mut().for_each(|initiator| _ = initiator.poll().unwrap());
            assert!(begin.elapsed() < LONG, "grain {index}");
        }
    };
    send(&mut merge, 100);
    let flows = far.domain().flows().unwrap().len();
    assert_eq!(flows, 3);
    let mut merge = Some(merge);
    in_a_child(|| {
        let mut merge = merge.take().expect("the merge");
        assert!(merge.poll().is_err());
        drop(merge);
    });
    let mut merge = merge.expect("only the child has taken it");
    assert_eq!(far.domain().flows().unwrap().len(), flows);
    send(&mut merge, 101);
    assert!((0..2).all(|at| merge.path(at).unwrap().stats().parted == 0));
}
