//! A forked child: what it closes remains open for its parent.

use mxl::{BatchHints, Wait};
use ofi_testkit::fork::in_a_child;

use super::common::{self, Folder, SOON, camera, microphone};

/// Regression test: the child released the lock that it shares with its parent, and deleted the flow. The parent went
/// on to commit, and no reader saw it. The child also stopped the thread that records the times of reads.
#[test]
fn a_child_that_drops_writers_leaves_their_flows_to_its_parent() {
    let folder = Folder::new();
    let domain = folder.domain();
    let (camera, microphone) = (camera(), microphone(1));
    let grains = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let samples = domain.create_samples(&microphone, &BatchHints::default()).unwrap().writer;
    grains.open(1).unwrap().commit().unwrap();
    let (mut grains, mut samples) = (Some(grains), Some(samples));
    in_a_child(|| {
        drop((grains.take(), samples.take()));
        // A flow that the child opens itself is its own.
        let own = common::camera();
        let writer = domain.create_grains(&own, &BatchHints::default()).unwrap().writer;
        assert!(domain.is_active(own.id).unwrap());
        drop(writer);
        assert!(domain.info(own.id).is_err());
    });
    let (grains, mut samples) = grains.zip(samples).expect("only the child has taken them");
    assert!(grains.is_current() && samples.is_current());
    assert_eq!(domain.flows().unwrap().len(), 2);
    assert!(domain.is_active(camera.id).unwrap() && domain.is_active(microphone.id).unwrap());
    grains.open(2).unwrap().commit().unwrap();
    let reader = domain.read_grains(camera.id).unwrap();
    let before = grains.runtime().last_read;
    assert!(reader.read(2, Wait::Not).is_ok());
    let begin = std::time::Instant::now();
    while grains.runtime().last_read == before {
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(20),
            "times of reads are recorded no longer"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
        let _ = reader.read(2, SOON);
    }
    samples.open(48, 48).unwrap().commit().unwrap();
    drop((grains, samples));
    assert_eq!(domain.flows().unwrap().len(), 0, "the parent deletes them");
}
