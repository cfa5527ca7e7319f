//! One thread that drives both ends and waits for either: a wait that drove one end alone would last for its whole
//! timeout, as the other end's answers would not come.

use std::time::Instant;

use mxl::BatchHints;
use mxl_fabrics::{Initiator, Merge, MergePath, Provider, Received};

use super::common::{ANY, Ends, Folder, LONG, camera};

#[test]
fn a_thread_that_waits_for_one_end_drives_the_other() {
    for provider in [Provider::Shm, Provider::Udp] {
        let Ends { near, far, definition, writer, mut target, mut initiator } = Ends::open(provider);
        let begin = Instant::now();
        assert!(initiator.settle_beside(LONG, &mut target).unwrap(), "{provider}: not connected");
        assert_eq!(target.read_beside(LONG, &mut initiator).unwrap(), Some(Received::Connected));
        for index in 100..120 {
            writer.open(index).unwrap().commit().unwrap();
            initiator.send(index).unwrap();
            if index % 2 == 0 {
                assert!(initiator.settle_beside(LONG, &mut target).unwrap(), "{provider}: {index}");
            }
            let received = target.read_beside(LONG, &mut initiator).unwrap();
            assert!(
                matches!(received, Some(Received::Grain { index: there, .. }) if there == index),
                "{received:?}"
            );
        }
        assert!(begin.elapsed() < LONG, "{provider}: {:?}", begin.elapsed());
        drop((near, far, definition));
    }
}

/// The paths of a merge are driven by the wait for one of its initiators.
#[test]
fn a_thread_that_waits_for_an_initiator_drives_a_merge() {
    let (near, far, camera) = (Folder::new(), Folder::new(), camera());
    let writer = near.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let path = MergePath { provider: Provider::Shm, node: None, service: None, id: None, options: None };
    let mut merge = Merge::open(&far.domain(), &camera, &[path, path]).unwrap();
    let mut initiators: Vec<Initiator> = (0..2)
        .map(|at| {
            let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Shm, ANY).unwrap();
            initiator.add(merge.path(at).unwrap().info()).unwrap();
            initiator
        })
        .collect();
    for initiator in &mut initiators {
        assert!(initiator.settle_beside(LONG, &mut merge).unwrap());
    }
    writer.open(100).unwrap().commit().unwrap();
    for initiator in &mut initiators {
        initiator.send(100).unwrap();
        assert!(initiator.settle_beside(LONG, &mut merge).unwrap());
    }
    let received = merge.read_beside(LONG, &mut initiators[0]).unwrap();
    assert!(matches!(received, Some(Received::Grain { index: 100, invalid: false, .. })), "{received:?}");
}
