//! An initiator and its targets in one process.

use std::time::{Duration, Instant};

use mxl::{BatchHints, GrainInfo, Wait};
use mxl_fabrics::message::Why;
use mxl_fabrics::{
    Error, Initiator, OwnKeys, PeerState, Provider, Received, RegionInfo, Target, TargetInfo, Transfer,
};

use super::common::{ANY, Ends, Folder, LONG, both, camera, microphone};

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Tcp];

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index * 31 + at * 7) as u8).collect()
}

#[test]
fn a_target_lists_what_its_ring_holds() {
    let far = Folder::new();
    for (definition, count, len) in [(camera(), 10, 8192 + 40 * 512), (microphone(3), 1, 3 * 4 * 19_456)] {
        let target = Target::open(&far.domain(), &definition, Provider::Shm, ANY, None).unwrap();
        let region = RegionInfo { addr: 0, len, rkey: 0 };
        assert_eq!(target.info().regions, vec![region; count]);
        assert_eq!(&TargetInfo::parse(&target.info().to_json()).unwrap(), target.info());
    }
}

/// Regression test: on a path with a round trip longer than the interval of greetings, each repetition would
/// start a new connection.
#[test]
fn a_target_that_answers_late_is_connected_to_once() {
    for provider in PROVIDERS {
        let Ends {
            near: _near,
            far: _far,
            definition: _definition,
            writer: _writer,
            mut target,
            mut initiator,
        } = Ends::open(provider);
        both(&mut initiator, &mut target, |_, received| received == Some(Received::Connected));
        let id = target.info().id;
        initiator.remove(id).unwrap();
        initiator.add(target.info()).unwrap();
        // Several greetings.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(900) {
            initiator.poll().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        both(&mut initiator, &mut target, |initiator, _| {
            initiator.target(id).unwrap().0 == PeerState::Connected
        });
        assert_eq!(target.stats().taken, 2, "{provider}");
    }
}

/// Regression test: a target that was connected between two parts of a grain published the second one, and with it what
/// its slot held before as the first.
#[test]
fn a_target_that_is_connected_in_the_middle_of_a_grain_gets_all_of_it() {
    for provider in PROVIDERS {
        let Ends { near: _near, far, definition, writer, mut target, mut initiator } = Ends::open(provider);
        let mut grain = writer.open(100).unwrap();
        let (bytes, slices) = (payload(100, grain.len()), grain.info().total_slices);
        grain.write(0, &bytes).unwrap();
        grain.commit_slices(slices / 2).unwrap();
        initiator.send_slices(100, 0, slices / 2).unwrap();
        assert!(matches!(initiator.event(), Some(Transfer::Lost { index: 100, .. })), "{provider}");
        both(&mut initiator, &mut target, |initiator, _| initiator.is_idle());
        grain.commit().unwrap();
        initiator.send_slices(100, slices / 2, slices).unwrap();
        let whole = Received::Grain { index: 100, slices, invalid: false };
        both(&mut initiator, &mut target, |_, received| received == Some(whole));
        let reader = far.domain().read_grains(definition.id).unwrap();
        assert!(reader.read(100, Wait::Not).unwrap().to_vec().unwrap() == bytes, "{provider}");
    }
}

/// Regression test: an initiator gave up a target that took longer than a second to answer, as on a busy machine, and
/// lost what it was sending.
#[test]
fn a_target_that_is_slow_to_answer_is_waited_for_and_nothing_is_lost() {
    for provider in PROVIDERS {
        let Ends { near: _near, far: _far, definition: _definition, writer, mut target, mut initiator } =
            Ends::open(provider);
        let id = target.info().id;
        both(&mut initiator, &mut target, |initiator, _| initiator.is_idle());
        writer.open(100).unwrap().commit().unwrap();
        initiator.send(100).unwrap();
        // The target's process does not run.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1_500) {
            initiator.poll().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        both(&mut initiator, &mut target, |initiator, _| {
            let (_, stats) = initiator.target(id).unwrap();
            assert_eq!((stats.lost, stats.connected), (0, 1), "{provider}");
            stats.done == 1
        });
        assert_eq!(target.stats().taken, 1, "{provider}");
    }
}

#[test]
fn grains_arrive_and_are_published() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        let text = target.info().to_json();
        initiator.add(&TargetInfo::parse(&text).unwrap()).unwrap();
        assert!(matches!(initiator.add(target.info()), Err(Error::Exists(_))));
        let reader = far.domain().read_grains(definition.id).unwrap();
        both(&mut initiator, &mut target, |initiator, _| {
            initiator.target(target_id(&text)).unwrap().0 == PeerState::Connected
        });
        for index in 1000..1040 {
            let mut grain = writer.open(index).unwrap();
            let bytes = payload(index, grain.len());
            grain.write(0, &bytes).unwrap();
            grain.commit().unwrap();
            initiator.send(index).unwrap();
            let mut seen = Vec::new();
            both(&mut initiator, &mut target, |_, received| {
                seen.extend(received);
                seen.iter().any(|event| matches!(event, Received::Grain { .. }))
            });
            let slices = reader.read_slices(index, 0, Wait::Not).unwrap().info().total_slices;
            assert!(
                seen.contains(&Received::Grain { index, slices, invalid: false }),
                "{provider}: {seen:?}"
            );
            assert!(!seen.iter().any(|event| matches!(event, Received::Lost { .. })), "{provider}: {seen:?}");
            assert_eq!(
                reader.read(index, Wait::Not).unwrap().to_vec().unwrap(),
                bytes,
                "{provider}: {index}"
            );
        }
        assert_eq!(target.stats().nonsense, 0, "{provider}");
        assert_eq!(target.stats().published, 40);
        both(&mut initiator, &mut target, |initiator, _| {
            initiator.target(target_id(&text)).unwrap().1.done == 40
        });
        let latency = initiator.latency(target_id(&text)).unwrap();
        assert!(latency.count() == 40 && latency.bound(500).is_some(), "{provider}: {latency:?}");
        let labels = format!("{{flow=\"{}\",target=\"{}\"", definition.id, target_id(&text));
        let metrics = initiator.metrics();
        for sample in [
            format!("mxl_initiator_connected{labels}}} 1\n"),
            format!("mxl_initiator_done_total{labels}}} 40\n"),
            format!("mxl_initiator_transfer_seconds_bucket{labels},le=\"+Inf\"}} 40\n"),
            format!("mxl_initiator_transfer_seconds_count{labels}}} 40\n"),
        ] {
            assert!(metrics.contains(&sample), "{sample}: {metrics}");
        }
        let metrics = target.metrics();
        for sample in [
            format!("mxl_target_published_total{labels}}} 40\n"),
            format!("mxl_target_arrival_seconds_count{labels}}} 40\n"),
            format!("mxl_target_interval_seconds_count{labels}}} 39\n"),
        ] {
            assert!(metrics.contains(&sample), "{sample}: {metrics}");
        }
    }
}

fn target_id(text: &str) -> u64 {
    TargetInfo::parse(text).unwrap().id
}

/// Many at once: none is refused, and the order is kept.
#[test]
fn grains_are_queued_behind_their_slots() {
    for provider in PROVIDERS {
        let Ends { near: _near, far: _far, definition: _definition, writer, mut target, mut initiator } =
            Ends::open(provider);
        both(&mut initiator, &mut target, |_, received| received == Some(Received::Connected));
        let first = 5000;
        let count = writer.grains() - 2;
        for index in first..first + count {
            let mut grain = writer.open(index).unwrap();
            let bytes = payload(index, grain.len());
            grain.write(0, &bytes).unwrap();
            grain.commit().unwrap();
        }
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        (first..first + count).for_each(|index| initiator.send(index).unwrap());
        let mut seen = Vec::new();
        both(&mut initiator, &mut target, |_, received| {
            if let Some(Received::Grain { index, .. }) = received {
                seen.push(index);
            }
            seen.len() as u64 == count
        });
        assert_eq!(seen, (first..first + count).collect::<Vec<_>>(), "{provider}");
    }
}

#[test]
fn slices_are_visible_when_they_arrive_and_invalid_grains_too() {
    for provider in PROVIDERS {
        let Ends { near: _near, far, definition, writer, mut target, mut initiator } = Ends::open(provider);
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        let reader = far.domain().read_grains(definition.id).unwrap();
        let mut grain = writer.open(77).unwrap();
        let (bytes, total) = (payload(77, grain.len()), grain.info().total_slices);
        grain.write(0, &bytes).unwrap();
        for end in [total / 4, total / 2, total] {
            grain.commit_slices(end).unwrap();
            let start = if end == total { total / 2 } else { end - total / 4 };
            initiator.send_slices(77, start, end).unwrap();
            both(&mut initiator, &mut target, |_, received| {
                received == Some(Received::Grain { index: 77, slices: end, invalid: false })
            });
            let there = reader.read_slices(77, end, Wait::Not).unwrap();
            assert_eq!(there.info().valid_slices, end, "{provider}");
            assert_eq!(reader.read(77, Wait::Not).is_ok(), end == total, "{provider}");
        }
        assert_eq!(reader.read(77, Wait::Not).unwrap().to_vec().unwrap(), bytes, "{provider}");
        drop(grain);
        writer.open(78).unwrap().commit_invalid().unwrap();
        initiator.send(78).unwrap();
        both(&mut initiator, &mut target, |_, received| {
            received == Some(Received::Grain { index: 78, slices: total, invalid: true })
        });
        assert!(reader.read(78, Wait::Not).unwrap().info().is_invalid());
        // Three commits with payload and one without.
        let times = target.times();
        assert_eq!((times.arrival.count(), times.interval.count()), (3, 3), "{provider}");
        // After a jump the target reports the skipped grains.
        writer.open(90).unwrap().commit().unwrap();
        initiator.send(90).unwrap();
        both(&mut initiator, &mut target, |_, received| {
            received == Some(Received::Lost { first: 79, count: 11 })
        });
    }
}

/// Regression test: samples that the source's writer overwrote after a jump were sent as whole.
#[test]
fn samples_that_a_jump_of_the_source_overwrites_are_torn() {
    for provider in PROVIDERS {
        let (near, far, sound) = (Folder::new(), Folder::new(), microphone(2));
        let mut source = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
        let mut target = Target::open(&far.domain(), &sound, provider, ANY, None).unwrap();
        let id = target.info().id;
        let mut initiator = Initiator::open(&near.domain(), sound.id, provider, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.is_idle());
        for (index, event) in [
            (48_000, Transfer::Done { target: id, index: 48_000 }),
            (48_480, Transfer::Torn { target: id, index: 48_480 }),
        ] {
            source.open(index, 480).unwrap().commit().unwrap();
            initiator.send_samples(index, 480).unwrap();
            if matches!(event, Transfer::Torn { .. }) {
                let mut open = source.open(90_000, 480).unwrap();
                open.write_channel(0, &[1.0_f32; 480]).unwrap();
            }
            let mut events = Vec::new();
            both(&mut initiator, &mut target, |initiator, _| {
                events.extend(initiator.event());
                events.iter().any(|there| matches!(there, Transfer::Done { .. } | Transfer::Torn { .. }))
            });
            assert!(events.contains(&event), "{provider}: {events:?}");
        }
    }
}

/// Regression test: a transfer counted as done for good when it was in the target's ring, whether or not the target
/// lived to publish it.
#[test]
fn a_transfer_is_published_when_the_target_says_so_and_unconfirmed_if_it_does_not_live_to() {
    for provider in PROVIDERS {
        let Ends { near: _near, far, definition, writer, mut target, mut initiator } = Ends::open(provider);
        let id = target.info().id;
        let reader = far.domain().read_grains(definition.id).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.is_idle());
        let send = |initiator: &mut Initiator, index| {
            writer.open(index).unwrap().commit().unwrap();
            initiator.send(index).unwrap();
        };
        // Seldom, and more at once than one report covers.
        for (first, count) in [(100, 1), (101, 1), (102, 40)] {
            for index in first..first + count {
                send(&mut initiator, index);
                both(&mut initiator, &mut target, |_, received| {
                    matches!(received, Some(Received::Grain { .. }))
                });
            }
            let mut published = Vec::new();
            both(&mut initiator, &mut target, |initiator, _| {
                while let Some(event) = initiator.event() {
                    if let Transfer::Published { index, .. } = event {
                        assert!(reader.head() >= index, "{provider}: {index}");
                        published.push(index);
                    }
                }
                published.len() as u64 == count
            });
            assert_eq!(published, (first..first + count).collect::<Vec<_>>(), "{provider}");
            assert!(initiator.confirm(Duration::ZERO).unwrap());
        }
        // The target ends between the arrival and the publication.
        send(&mut initiator, 142);
        let (begin, mut events) = (Instant::now(), Vec::new());
        let done = Transfer::Done { target: id, index: 142 };
        while !events.contains(&done) {
            initiator.poll().unwrap();
            events.extend(std::iter::from_fn(|| initiator.event()));
            if !events.contains(&done) {
                target.poll().unwrap();
            }
            assert!(begin.elapsed() < LONG, "{provider}: {events:?}");
        }
        assert_ne!(reader.head(), 142, "{provider}: it is not published yet");
        assert!(!initiator.confirm(Duration::ZERO).unwrap());
        drop(target);
        while initiator.target(id).unwrap().0 == PeerState::Connected {
            initiator.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{provider}");
        }
        events.extend(std::iter::from_fn(|| initiator.event()));
        assert!(events.contains(&Transfer::Unconfirmed { target: id, index: 142 }), "{provider}: {events:?}");
        assert!(!events.contains(&Transfer::Published { target: id, index: 142 }), "{provider}: {events:?}");
        let (_, stats) = initiator.target(id).unwrap();
        assert_eq!((stats.done, stats.published, stats.unconfirmed), (43, 42, 1), "{provider}");
        assert!(initiator.confirm(LONG).unwrap(), "nothing is waited for");
    }
}

#[test]
fn a_target_that_is_gone_stops_nobody_and_is_found_again() {
    for provider in PROVIDERS {
        let (near, far, other) = (Folder::new(), Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        // The target is found again with a fixed address and the same id.
        let service = (30_000 + std::process::id() % 20_000).to_string();
        let name = format!("fi_shm://mxl-again-{service}");
        let place = if provider == Provider::Shm {
            (Some(&*name), None)
        } else {
            (Some("127.0.0.1"), Some(&*service))
        };
        let open = |id| Target::open(&far.domain(), &definition, provider, place, id);
        let mut first = open(None).unwrap_or_else(|error| panic!("{provider}: {error}"));
        let mut second = Target::open(&other.domain(), &definition, provider, ANY, None).unwrap();
        let (id, healthy) = (first.info().id, second.info().id);
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(first.info()).unwrap();
        initiator.add(second.info()).unwrap();
        let connected = |initiator: &Initiator, id| initiator.target(id).unwrap().0 == PeerState::Connected;
        let begin = Instant::now();
        while !(connected(&initiator, id) && connected(&initiator, healthy)) {
            initiator.poll().unwrap();
            first.poll().unwrap();
            second.poll().unwrap();
            assert!(begin.elapsed() < LONG, "{provider}: no connections");
        }
        drop(first);
        let mut index = 2000;
        let mut got = 0;
        // The healthy target gets all of them, and the initiator notices the other's failure.
        let begin = Instant::now();
        while connected(&initiator, id) || got < 5 {
            writer.open(index).unwrap().commit().unwrap();
            initiator.send(index).unwrap();
            index += 1;
            both(&mut initiator, &mut second, |_, received| matches!(received, Some(Received::Grain { .. })));
            got += 1;
            std::thread::sleep(Duration::from_millis(20));
            assert!(begin.elapsed() < LONG, "{provider}: the loss of a target was not noticed");
        }
        assert_eq!(second.stats().lost, 0, "{provider}");
        let mut again = open(Some(id)).unwrap();
        both(&mut initiator, &mut again, |initiator, _| connected(initiator, id));
        writer.open(index).unwrap().commit().unwrap();
        initiator.send(index).unwrap();
        both(&mut initiator, &mut again, |_, received| matches!(received, Some(Received::Grain { .. })));
        assert!(initiator.target(id).unwrap().1.connected == 2, "{provider}");
    }
}

#[test]
fn strangers_are_refused_and_the_newest_initiator_writes() {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut target = Target::open(&far.domain(), &definition, Provider::Shm, ANY, None).unwrap();
    let info = target.info().clone();
    // Another flow, and another target's id.
    let sound = microphone(2);
    let _sound = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
    let mut wrong = Initiator::open(&near.domain(), sound.id, Provider::Shm, ANY).unwrap();
    let refused = wrong.add(&info).unwrap_err().to_string();
    assert!(refused.contains("grains there, samples here"), "{refused}");
    // The target refuses as well, if the info does not show the difference.
    let ours = info.ours.clone().unwrap();
    wrong
        .add(&TargetInfo { ours: Some(OwnKeys { geometry: None, ..ours.clone() }), ..info.clone() })
        .unwrap();
    both(&mut wrong, &mut target, |wrong, _| {
        matches!(wrong.target(info.id).unwrap().0, PeerState::Refused(_))
    });
    let other = TargetInfo { id: info.id ^ 1, ..info.clone() };
    let mut lost = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
    lost.add(&other).unwrap();
    both(&mut lost, &mut target, |lost, _| matches!(lost.target(other.id).unwrap().0, PeerState::Refused(_)));
    let other = OwnKeys { version: 9, ..ours.clone() };
    assert!(lost.add(&TargetInfo { ours: Some(other), ..info.clone() }).is_err());
    assert!(lost.add(&TargetInfo { ours: None, ..info.clone() }).is_err());

    let mut old = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
    old.add(&info).unwrap();
    both(&mut old, &mut target, |old, _| old.target(info.id).unwrap().0 == PeerState::Connected);
    let mut new = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
    new.add(&info).unwrap();
    both(&mut new, &mut target, |new, _| new.target(info.id).unwrap().0 == PeerState::Connected);
    both(&mut old, &mut target, |old, _| old.target(info.id).unwrap().0 == PeerState::Parted(Why::Replaced));
    writer.open(9).unwrap().commit().unwrap();
    old.send(9).unwrap();
    assert!(std::iter::from_fn(|| old.event()).any(|event| matches!(event, Transfer::Lost { index: 9, .. })));
    new.send(9).unwrap();
    both(&mut new, &mut target, |_, received| matches!(received, Some(Received::Grain { index: 9, .. })));
    // A grain that does not exist is the caller's error.
    assert!(matches!(new.send(10), Err(Error::Flow(mxl::Error::TooEarly { .. }))));
    assert!(matches!(new.send_samples(10, 1), Err(Error::Argument(_))));
    assert!(matches!(new.send_slices(9, 5, 4), Err(Error::Argument(_))));
    let _: GrainInfo = far.domain().read_grains(definition.id).unwrap().read(9, Wait::Not).unwrap().info();
}

/// A target that returns at another address is found by its new info, which replaces the old one; an older info does
/// not move it.
#[test]
fn a_target_that_has_moved_is_found_by_its_new_info() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        let mut infos: Vec<TargetInfo> = Vec::new();
        for life in 0..3 {
            let index = 100 + life;
            let mut target = Target::open(&far.domain(), &definition, provider, ANY, Some(4711)).unwrap();
            assert!(
                infos.iter().all(|info| info.address != target.info().address),
                "{provider}: its address is unchanged"
            );
            initiator.add(target.info()).unwrap();
            for info in infos.iter().chain([target.info()]) {
                assert!(matches!(initiator.add(info), Err(Error::Exists(4711))), "{provider}");
            }
            infos.push(target.info().clone());
            both(&mut initiator, &mut target, |initiator, _| {
                initiator.target(4711).unwrap().0 == PeerState::Connected
            });
            writer.open(index).unwrap().commit().unwrap();
            initiator.send(index).unwrap();
            both(
                &mut initiator,
                &mut target,
                |_, received| matches!(received, Some(Received::Grain { index: there, .. }) if there == index),
            );
            assert_eq!(initiator.target(4711).unwrap().1.connected, life + 1, "{provider}");
        }
        assert_eq!(initiator.targets().count(), 1);
    }
}
