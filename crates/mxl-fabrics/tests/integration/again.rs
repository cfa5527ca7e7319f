//! Whether removing and adding targets leaks anything. The test is alone in its process, whose files it counts.

use mxl::{BatchHints, Geometry};
use mxl_fabrics::{Initiator, PeerState, Provider, Received, Target};

use super::common::{Folder, both, camera, microphone};

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Tcp];
const ANY: (Option<&str>, Option<&str>) = (None, None);

/// Defects 7 and 11 of the SDK: a target that is removed while writes to it are in flight, and added again, any number
/// of times, must leave nothing behind.
#[test]
fn a_target_is_removed_and_added_again_in_mid_flight() {
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    for provider in PROVIDERS {
        for definition in [camera(), microphone(64)] {
            let (near, far) = (Folder::new(), Folder::new());
            let domain = near.domain();
            let is_video = matches!(definition.geometry(), Geometry::Grains { .. });
            let (grains, mut samples) = match is_video {
                true => {
                    (Some(domain.create_grains(&definition, &BatchHints::default()).unwrap().writer), None)
                }
                false => {
                    (None, Some(domain.create_samples(&definition, &BatchHints::default()).unwrap().writer))
                }
            };
            let mut target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
            let mut initiator = Initiator::open(&domain, definition.id, provider, ANY).unwrap();
            let (id, info) = (target.info().id, target.info().clone());
            let mut before = (0, 0);
            for round in 1..=60_u64 {
                initiator.add(&info).unwrap();
                both(&mut initiator, &mut target, |initiator, _| {
                    initiator.target(id).unwrap().0 == PeerState::Connected
                });
                let index = 1_000 * round;
                for index in [index, index + 1] {
                    if let Some(writer) = &grains {
                        writer.open(index).unwrap().commit().unwrap();
                        initiator.send(index).unwrap();
                    }
                    if let Some(writer) = &mut samples {
                        writer.open(index * 48, 48).unwrap().commit().unwrap();
                        initiator.send_samples(index * 48, 48).unwrap();
                    }
                }
                // Every fourth arrives; the others are abandoned at successive steps.
                if round % 4 == 0 {
                    both(&mut initiator, &mut target, |_, received| {
                        matches!(received, Some(Received::Grain { .. } | Received::Samples { .. }))
                    });
                } else {
                    (0..round % 7).for_each(|_| {
                        initiator.poll().unwrap();
                        target.poll().unwrap();
                    });
                }
                initiator.remove(id).unwrap();
                assert!(initiator.remove(id).is_err());
                if round == 20 {
                    before = (files(), maps());
                }
            }
            // Mappings of freed memory come and go.
            let after = (files(), maps());
            assert!(
                after.0 <= before.0 && after.1 < before.1 + 20,
                "{provider}: files and maps were {before:?} and are {after:?}"
            );
            assert_eq!(target.stats().nonsense, 0, "{provider}");
        }
    }
}
