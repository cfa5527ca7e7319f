//! Pairs of one end of ours and one of the C++ SDK, which is played by its calls of libfabric
//! (`common/sdk.rs`).
#![allow(unsafe_code, reason = "the stand-in lends memory to libfabric")]

use std::time::Instant;

use mxl::{BatchHints, FlowDefinition, GrainWriter, Wait};
use mxl_fabrics::{Error, Initiator, Options, PeerState, Protocol, Provider, Received, Target, TargetInfo};

use crate::common::sdk::{HEADER, Room, SdkInitiator, SdkTarget, Stands, node};
use crate::common::{Folder, LONG, camera, microphone};

const LOCAL: (Option<&str>, Option<&str>) = (Some("127.0.0.1"), None);

/// The place of a provider.
fn local(provider: Provider) -> (Option<&'static str>, Option<&'static str>) {
    (Some(node(&provider.to_string())), None)
}

/// Runs both ends until `is_done`.
#[track_caller]
fn until(mut turn: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !turn() {
        assert!(begin.elapsed() < LONG, "timeout");
    }
}

/// A byte of a grain: all differ between neighbours in space and time.
fn byte(index: u64, at: usize) -> u8 {
    (index.wrapping_mul(31) as usize + at * 7 + at / 251) as u8
}

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(index, at)).collect()
}

/// A slot of a source of the C++ SDK: a header as its writer leaves it, and the payload.
fn slot(index: u64, len: usize, (total, valid): (u16, u16), flags: u32) -> Room {
    let room = Room::new(HEADER + len);
    room.put(0, &1_u32.to_le_bytes());
    room.put(4, &4096_u32.to_le_bytes());
    room.put(8, &index.to_le_bytes());
    room.put(16, &flags.to_le_bytes());
    room.put(20, &(len as u32).to_le_bytes());
    room.put(24, &total.to_le_bytes());
    room.put(26, &valid.to_le_bytes());
    room.put(HEADER, &payload(index, len));
    room
}

fn connect(initiator: &mut SdkInitiator, target: &mut Target) {
    until(|| {
        initiator.progress();
        target.poll().unwrap();
        initiator.stands == Stands::Connected && target.is_connected()
    });
    assert_eq!(target.protocol(), Some(Protocol::Sdk));
}

/// The next event of the target that is about data.
fn next(initiator: &mut SdkInitiator, target: &mut Target) -> Received {
    let mut found = None;
    until(|| {
        initiator.progress();
        found = target.poll().unwrap();
        matches!(found, Some(Received::Grain { .. } | Received::Samples { .. } | Received::Lost { .. }))
    });
    found.unwrap()
}

fn alpha() -> FlowDefinition {
    let text = camera().to_json().replace("video/v210", "video/v210a");
    FlowDefinition::parse(&text).unwrap()
}

fn grains_of_the_sdk(provider: Provider) {
    for (definition, planes) in [(camera(), vec![512]), (alpha(), vec![512, 256])] {
        let far = Folder::new();
        let mut target = Target::open(&far.domain(), &definition, provider, local(provider), None).unwrap();
        let info = target.info().to_json();
        let mut initiator = SdkInitiator::connect(&info);
        assert_eq!(initiator.slots(), 10);
        connect(&mut initiator, &mut target);
        let reader = far.domain().read_grains(definition.id).unwrap();
        let len = planes.iter().sum::<usize>() * 40;
        for index in 1000..1030 {
            initiator.transfer_grain(slot(index, len, (40, 40), 0), index, (0, 40), 40, &planes);
            let received = next(&mut initiator, &mut target);
            assert_eq!(received, Received::Grain { index, slices: 40, invalid: false });
            assert!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap() == payload(index, len));
        }
        // Slices, which readers see as they arrive.
        for index in 1030..1045 {
            let source = slot(index, len, (40, 0), 0);
            for (start, end) in [(0_u16, 7_u16), (7, 8), (8, 33), (33, 40)] {
                source.put(26, &end.to_le_bytes());
                initiator.transfer_grain(source, index, (start, end), 40, &planes);
                let received = next(&mut initiator, &mut target);
                assert_eq!(received, Received::Grain { index, slices: end, invalid: false });
                assert_eq!(reader.read_slices(index, end, Wait::Not).unwrap().info().valid_slices, end);
            }
            assert!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap() == payload(index, len));
        }
        // An invalid one is a header alone.
        initiator.transfer_grain(slot(1045, len, (40, 0), 1), 1045, (0, 0), 40, &planes);
        let received = next(&mut initiator, &mut target);
        assert_eq!(received, Received::Grain { index: 1045, slices: 40, invalid: true });
        assert!(reader.read(1045, Wait::Not).unwrap().info().is_invalid());
        // A gap is told.
        initiator.transfer_grain(slot(1049, len, (40, 40), 0), 1049, (0, 40), 40, &planes);
        assert_eq!(next(&mut initiator, &mut target), Received::Lost { first: 1046, count: 3 });
        let stats = target.stats();
        assert_eq!((stats.nonsense, stats.overwritten, stats.taken), (0, 0, 1), "{stats:?}");
        until(|| {
            initiator.progress();
            target.poll().unwrap();
            initiator.pending == 0
        });
    }
}

#[test]
fn an_initiator_of_the_sdk_sends_grains_and_slices_to_a_target_of_ours() {
    grains_of_the_sdk(Provider::Tcp);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn an_initiator_of_the_sdk_sends_grains_and_slices_to_a_target_of_ours_over_verbs() {
    grains_of_the_sdk(Provider::Verbs);
}

/// A source of ours with a grain.
fn commit(writer: &GrainWriter, index: u64) -> Vec<u8> {
    let mut grain = writer.open(index).unwrap();
    let bytes = payload(index, grain.len());
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
    bytes
}

fn grains_to_the_sdk(provider: Provider) {
    for definition in [camera(), alpha()] {
        let near = Folder::new();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let len = writer.open(0).unwrap().len();
        // Its ring has another length.
        let mut target = SdkTarget::open_over(&provider.to_string(), 77, None, (7, HEADER + len), false);
        let mut initiator =
            Initiator::open(&near.domain(), definition.id, provider, local(provider)).unwrap();
        initiator.add(&TargetInfo::parse(&target.info()).unwrap()).unwrap();
        assert_eq!(initiator.protocol(77), Some(Protocol::Sdk));
        until(|| {
            target.read();
            initiator.poll().unwrap();
            initiator.is_idle() && target.is_connected()
        });
        for index in 1000..1030 {
            let bytes = commit(&writer, index);
            initiator.send(index).unwrap();
            let mut read = None;
            until(|| {
                initiator.poll().unwrap();
                read = target.read_grain();
                read.is_some()
            });
            assert_eq!(read, Some((index, 40)));
            let room = target.rooms[(index % 7) as usize];
            assert!(room.get(HEADER, len) == bytes, "grain {index}");
            // The header that its program commits.
            assert_eq!(room.get(0, 28), slot(index, len, (40, 40), 0).get(0, 28));
        }
        for index in 1030..1040 {
            let bytes = payload(index, len);
            let mut grain = writer.open(index).unwrap();
            grain.write(0, &bytes).unwrap();
            let mut start = 0;
            drop(grain);
            for end in [9_u16, 10, 40] {
                let mut grain = writer.open(index).unwrap();
                if end < 40 {
                    grain.commit_slices(end).unwrap()
                } else {
                    grain.commit().unwrap()
                }
                initiator.send_slices(index, start, end).unwrap();
                let mut read = None;
                until(|| {
                    initiator.poll().unwrap();
                    read = target.read_grain();
                    read.is_some()
                });
                assert_eq!(read, Some((index, end)));
                start = end;
            }
            assert!(target.rooms[(index % 7) as usize].get(HEADER, len) == bytes, "grain {index}");
        }
        // An invalid one.
        writer.open(1040).unwrap().commit_invalid().unwrap();
        initiator.send(1040).unwrap();
        let mut read = None;
        until(|| {
            initiator.poll().unwrap();
            read = target.read_grain();
            read.is_some()
        });
        assert_eq!(read, Some((1040, 0)));
        assert_eq!(target.rooms[1040 % 7].get(16, 4), [1, 0, 0, 0]);
        until(|| {
            target.read();
            initiator.poll().unwrap();
            initiator.is_idle()
        });
        let (state, stats) = initiator.target(77).unwrap();
        assert_eq!(
            (state, stats.done, stats.lost, stats.torn),
            (PeerState::Connected, 61, 0, 0),
            "{stats:?}"
        );
    }
}

#[test]
fn an_initiator_of_ours_sends_grains_and_slices_to_a_target_of_the_sdk() {
    grains_to_the_sdk(Provider::Tcp);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn an_initiator_of_ours_sends_grains_and_slices_to_a_target_of_the_sdk_over_verbs() {
    grains_to_the_sdk(Provider::Verbs);
}

/// A channel's sample as bytes.
fn sample(channel: u32, at: u64) -> [u8; 4] {
    (channel as f32 * 1000.0 + (at % 977) as f32).to_le_bytes()
}

/// Samples `index - count` to `index`.
fn samples(channel: u32, index: u64, count: u64) -> Vec<u8> {
    (index - count..index).flat_map(|at| sample(channel, at)).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn samples_of_the_sdk(provider: Provider) {
    for channels in [2, 16] {
        let (far, definition) = (Folder::new(), microphone(channels));
        let mut target = Target::open(&far.domain(), &definition, provider, local(provider), None).unwrap();
        let mut initiator = SdkInitiator::connect(&target.info().to_json());
        // What the SDK's targets of 48 kHz have.
        assert_eq!((initiator.slots(), initiator.entry_size), (41, Some(16 + 480 * 4 * channels as usize)));
        connect(&mut initiator, &mut target);
        let reader = far.domain().read_samples(definition.id).unwrap();
        let mut index = 1_000_000;
        // Batches of any length; the source's ring wraps in some of them.
        for count in (0..120).map(|at| [48, 480, 1, 100][at % 4]) {
            index += count;
            let split = if count > 10 { count / 3 } else { count };
            let pieces: Vec<(Room, usize, usize)> = (0..channels)
                .flat_map(|channel| {
                    let room = Room::new(count as usize * 4);
                    room.put(0, &samples(channel, index, count));
                    let (first, all) = (split as usize * 4, count as usize * 4);
                    [(room, 0, first), (room, first, all - first)].into_iter().filter(|(.., len)| *len > 0)
                })
                .collect();
            initiator.transfer_samples(index, count, &pieces);
            assert_eq!(next(&mut initiator, &mut target), Received::Samples { index, count });
            let read = reader.read(index, count, Wait::Not).unwrap();
            for channel in 0..channels {
                let mut there = vec![0.0; count as usize];
                read.read_channel(channel, &mut there).unwrap();
                assert_eq!(
                    there,
                    floats(&samples(channel, index, count)),
                    "channel {channel} before {index}"
                );
            }
        }
        let stats = target.stats();
        assert_eq!((stats.nonsense, stats.overwritten, stats.lost), (0, 0, 0), "{stats:?}");
        // A gap is told, and silent.
        index += 500;
        let room = Room::new(200 * 4 * channels as usize);
        let pieces: Vec<_> = (0..channels as usize).map(|channel| (room, channel * 800, 800)).collect();
        initiator.transfer_samples(index, 200, &pieces);
        assert_eq!(next(&mut initiator, &mut target), Received::Lost { first: index - 500, count: 300 });
        assert_eq!(next(&mut initiator, &mut target), Received::Samples { index, count: 200 });
        let mut silent = vec![1.0_f32; 300];
        reader.read(index - 200, 300, Wait::Not).unwrap().read_channel(1, &mut silent).unwrap();
        assert_eq!(silent, vec![0.0; 300]);
        until(|| {
            initiator.progress();
            target.poll().unwrap();
            initiator.pending == 0
        });
    }
}

#[test]
fn an_initiator_of_the_sdk_sends_samples_to_a_target_of_ours() {
    samples_of_the_sdk(Provider::Tcp);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn an_initiator_of_the_sdk_sends_samples_to_a_target_of_ours_over_verbs() {
    samples_of_the_sdk(Provider::Verbs);
}

/// Regression test: targets had entries of 10 ms whatever the flow's commits were, and the C++ SDK's initiators refuse
/// to send a batch that is longer than an entry.
#[test]
fn a_target_of_ours_takes_batches_as_long_as_its_flow_s_hints() {
    let (far, definition) = (Folder::new(), microphone(2));
    let mut options = Options::default();
    options.batches = BatchHints::new(480, 960);
    let mut target =
        Target::open_with(&far.domain(), &definition, Provider::Tcp, LOCAL, None, &options).unwrap();
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    assert_eq!(initiator.entry_size, Some(16 + 960 * 4 * 2));
    connect(&mut initiator, &mut target);
    let (index, count) = (1_000_960, 960);
    let room = Room::new(count as usize * 4);
    room.put(0, &samples(0, index, count));
    initiator.transfer_samples(index, count, &[(room, 0, 3840), (room, 0, 3840)]);
    assert_eq!(next(&mut initiator, &mut target), Received::Samples { index, count });
    let reader = far.domain().read_samples(definition.id).unwrap();
    let mut there = vec![0.0; count as usize];
    reader.read(index, count, Wait::Not).unwrap().read_channel(1, &mut there).unwrap();
    assert_eq!(there, floats(&samples(0, index, count)));
    until(|| {
        initiator.progress();
        target.poll().unwrap();
        initiator.pending == 0
    });
}

fn samples_to_the_sdk(provider: Provider) {
    for channels in [2, 16] {
        let (near, definition) = (Folder::new(), microphone(channels));
        let mut writer = near.domain().create_samples(&definition, &BatchHints::default()).unwrap().writer;
        // Entries for fewer samples than the longest batch.
        let mut target = SdkTarget::open_over(
            &provider.to_string(),
            7,
            None,
            (41, 16 + 480 * 4 * channels as usize),
            true,
        );
        let mut initiator =
            Initiator::open(&near.domain(), definition.id, provider, local(provider)).unwrap();
        initiator.add(&TargetInfo::parse(&target.info()).unwrap()).unwrap();
        until(|| {
            target.read();
            initiator.poll().unwrap();
            initiator.is_idle() && target.is_connected()
        });
        let (mut index, mut batches) = (1_000_000, 0);
        for count in (0..120).map(|at| [48_u64, 480, 1, 1500][at % 4]) {
            index += count;
            batches += 1;
            let mut open = writer.open(index, count).unwrap();
            for channel in 0..channels {
                open.write_channel(channel, &floats(&samples(channel, index, count))).unwrap();
            }
            open.commit().unwrap();
            initiator.send_samples(index, count).unwrap();
            let mut at = index - count;
            while at < index {
                let mut read = None;
                until(|| {
                    initiator.poll().unwrap();
                    read = target.read_samples(channels as usize);
                    read.is_some()
                });
                let (end, part, there) = read.unwrap();
                assert_eq!(end - part, at, "the next samples");
                for (channel, bytes) in there.iter().enumerate() {
                    assert!(*bytes == samples(channel as u32, end, part), "channel {channel} before {end}");
                }
                at = end;
            }
        }
        until(|| {
            target.read();
            initiator.poll().unwrap();
            initiator.is_idle()
        });
        let (_, stats) = initiator.target(7).unwrap();
        assert_eq!((stats.done, stats.lost, stats.torn), (batches, 0, 0), "{stats:?}");
    }
}

#[test]
fn an_initiator_of_ours_sends_samples_to_a_target_of_the_sdk() {
    samples_to_the_sdk(Provider::Tcp);
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs an RDMA device of 10.77.0.1: cargo xtask rdma"]
fn an_initiator_of_ours_sends_samples_to_a_target_of_the_sdk_over_verbs() {
    samples_to_the_sdk(Provider::Verbs);
}

/// A target that reads late notices what was overwritten meanwhile, and publishes nothing that is torn or old.
#[test]
fn slots_that_an_initiator_of_the_sdk_overwrites_are_noticed() {
    let (far, definition, planes) = (Folder::new(), camera(), [512]);
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    connect(&mut initiator, &mut target);
    let reader = far.domain().read_grains(definition.id).unwrap();
    initiator.transfer_grain(slot(999, 512 * 40, (40, 40), 0), 999, (0, 40), 40, &planes);
    assert_eq!(next(&mut initiator, &mut target), Received::Grain { index: 999, slices: 40, invalid: false });
    // Two and a half rings in one go.
    for index in 1000..1025 {
        initiator.transfer_grain(slot(index, 512 * 40, (40, 40), 0), index, (0, 40), 40, &planes);
    }
    let mut published = Vec::new();
    until(|| {
        initiator.progress();
        if let Some(Received::Grain { index, slices, invalid }) = target.poll().unwrap() {
            assert_eq!((slices, invalid), (40, false), "grain {index}");
            published.push(index);
            let there = reader.read(index, Wait::Not).unwrap().to_vec();
            // A later turn may have published more of the ring than is kept.
            assert!(there.is_err() || there.unwrap() == payload(index, 512 * 40), "grain {index}");
        }
        published.last() == Some(&1024)
    });
    assert!(published.is_sorted(), "{published:?}");
    let stats = target.stats();
    assert_eq!(stats.published + stats.overwritten, 26, "{stats:?}");
    assert_eq!((stats.lost, stats.nonsense), (stats.overwritten, 0), "{stats:?}");
}

/// Whatever an initiator writes and marks, nothing of it is believed unchecked.
#[test]
fn nonsense_of_an_initiator_of_the_sdk_is_counted() {
    let (far, definition, planes) = (Folder::new(), camera(), [512]);
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    connect(&mut initiator, &mut target);
    let (len, some) = (512 * 40, Room::new(64));
    let wrong_slot = slot(1001, len, (40, 40), 0);
    let wrong_size = slot(1000, len, (40, 40), 0);
    wrong_size.put(20, &u32::MAX.to_le_bytes());
    let wrong_total = slot(1000, len, (u16::MAX, 40), 0);
    let wrong_version = slot(1000, len, (40, 40), 0);
    wrong_version.put(0, &[9]);
    let mut expected = 0;
    for header in [wrong_slot, wrong_size, wrong_total, wrong_version] {
        initiator.transfer_grain(header, 1000, (0, 40), 40, &planes);
        expected += 1;
    }
    // Slots that are not there, more slices than there are, CQ data of more than 32 bits.
    for data in [10 | 40 << 16, 0xffff | 40 << 16, 41 << 16, 0xffff_ffff, 1 << 32 | 40 << 16, u64::MAX] {
        initiator.write(0, 8000, &[some.all()], Some(data));
        expected += 1;
    }
    until(|| {
        initiator.progress();
        target.poll().unwrap();
        let stats = target.stats();
        stats.nonsense + stats.overwritten == expected
    });
    assert_eq!(target.stats().published, 0);
    initiator.transfer_grain(slot(1010, len, (40, 40), 0), 1010, (0, 40), 40, &planes);
    let received = next(&mut initiator, &mut target);
    assert_eq!(received, Received::Grain { index: 1010, slices: 40, invalid: false });

    let (far, definition) = (Folder::new(), microphone(2));
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    connect(&mut initiator, &mut target);
    let header = Room::new(16);
    for (index, count) in [(1000, 0), (1000, 481), (1000, u64::MAX), (10, 11), (u64::MAX, u64::MAX)] {
        header.put(0, &u64::to_le_bytes(index));
        header.put(8, &u64::to_le_bytes(count));
        let before = target.stats().nonsense;
        initiator.write(0, 0, &[header.all()], Some(0));
        until(|| {
            initiator.progress();
            target.poll().unwrap();
            target.stats().nonsense > before
        });
    }
    for entry in [41, u64::from(u32::MAX), u64::MAX] {
        let before = target.stats().nonsense;
        initiator.write(0, 0, &[header.all()], Some(entry));
        until(|| {
            initiator.progress();
            target.poll().unwrap();
            target.stats().nonsense > before
        });
    }
    assert_eq!(target.stats().published, 0);
}

/// Initiators of the SDK come and go at one target of ours, whose port stays.
#[test]
fn a_target_of_ours_serves_one_initiator_of_the_sdk_after_the_other() {
    let (far, definition, planes) = (Folder::new(), camera(), [512]);
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let info = target.info().to_json();
    for round in 0..4 {
        let mut initiator = SdkInitiator::connect(&info);
        connect(&mut initiator, &mut target);
        let index = 1000 + round * 10;
        initiator.transfer_grain(slot(index, 512 * 40, (40, 40), 0), index, (0, 40), 40, &planes);
        until(|| {
            initiator.progress();
            matches!(target.poll().unwrap(), Some(Received::Grain { index: of, .. }) if of == index)
        });
        // One that writes keeps its place.
        let mut second = SdkInitiator::connect(&info);
        until(|| {
            second.progress();
            target.poll().unwrap();
            second.stands != Stands::Connecting
        });
        assert_eq!((second.stands, target.protocol()), (Stands::Refused, Some(Protocol::Sdk)));
        drop(initiator);
        until(|| {
            target.poll().unwrap();
            !target.is_connected()
        });
    }
    assert_eq!((target.stats().taken, target.stats().refused), (4, 4));
    // One of ours, which knows the id, takes its place at once.
    let near = Folder::new();
    let _source = near.domain().create_grains(&definition, &BatchHints::default()).unwrap();
    let mut initiator = SdkInitiator::connect(&info);
    connect(&mut initiator, &mut target);
    let mut own = Initiator::open(&near.domain(), definition.id, Provider::Tcp, LOCAL).unwrap();
    own.add(target.info()).unwrap();
    until(|| {
        initiator.progress();
        target.poll().unwrap();
        own.poll().unwrap();
        own.is_idle() && initiator.stands == Stands::Gone
    });
    assert_eq!(
        (target.protocol(), own.protocol(target.info().id)),
        (Some(Protocol::Own), Some(Protocol::Own))
    );
}

/// A target of the SDK is restarted: at its port it is found again; elsewhere by its new info.
#[test]
fn an_initiator_of_ours_finds_a_target_of_the_sdk_again() {
    let (near, definition) = (Folder::new(), camera());
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let len = HEADER + 512 * 40;
    let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Tcp, LOCAL).unwrap();
    let mut index = 1000;
    for round in 0..3 {
        // Its port, and so its info, is another one each time.
        let mut target = SdkTarget::open(77, None, 7, len, false);
        initiator.add(&TargetInfo::parse(&target.info()).unwrap()).unwrap();
        until(|| {
            target.read();
            initiator.poll().unwrap();
            initiator.is_idle() && target.is_connected()
        });
        for _ in 0..5 {
            index += 1;
            commit(&writer, index);
            initiator.send(index).unwrap();
            until(|| {
                initiator.poll().unwrap();
                target.read_grain() == Some((index, 40))
            });
        }
        drop(target);
        until(|| {
            initiator.poll().unwrap();
            initiator.target(77).unwrap().0 == PeerState::Connecting
        });
        // What is sent meanwhile is lost.
        index += 1;
        commit(&writer, index);
        initiator.send(index).unwrap();
        let stats = initiator.target(77).unwrap().1;
        assert!(stats.lost > round && stats.connected == round + 1, "{stats:?}");
    }
}

/// A target of the SDK whose program hangs takes no writes. It is dropped within a bound, and called again.
#[test]
fn a_stuck_target_of_the_sdk_is_dropped_and_called_again() {
    let (near, definition) = (Folder::new(), camera());
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let mut target = SdkTarget::open(77, None, 7, HEADER + 512 * 40, false);
    let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Tcp, LOCAL).unwrap();
    initiator.add(&TargetInfo::parse(&target.info()).unwrap()).unwrap();
    until(|| {
        target.read();
        initiator.poll().unwrap();
        initiator.is_idle() && target.is_connected()
    });
    commit(&writer, 1000);
    initiator.send(1000).unwrap();
    let begin = Instant::now();
    until(|| {
        initiator.poll().unwrap();
        initiator.target(77).unwrap().0 == PeerState::Connecting
    });
    let waited = begin.elapsed().as_secs();
    assert!((5..15).contains(&waited), "dropped after {waited} s");
    assert_eq!(initiator.target(77).unwrap().1.lost, 1);
}

/// Slices of a flagged grain: it is published once, as invalid.
#[test]
fn a_flagged_grain_of_the_sdk_is_published_once() {
    let (far, definition, planes) = (Folder::new(), camera(), [512]);
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let mut initiator = SdkInitiator::connect(&target.info().to_json());
    connect(&mut initiator, &mut target);
    for (start, end) in [(0, 7), (7, 20), (20, 40)] {
        initiator.transfer_grain(slot(1000, 512 * 40, (40, end), 1), 1000, (start, end), 40, &planes);
    }
    initiator.transfer_grain(slot(1001, 512 * 40, (40, 40), 0), 1001, (0, 40), 40, &planes);
    let received = [next(&mut initiator, &mut target), next(&mut initiator, &mut target)];
    let wanted = [(1000, true), (1001, false)];
    assert_eq!(received, wanted.map(|(index, invalid)| Received::Grain { index, slices: 40, invalid }));
    let stats = target.stats();
    assert_eq!(
        (stats.published, stats.invalid, stats.overwritten, stats.nonsense),
        (2, 1, 0, 0),
        "{stats:?}"
    );
}

/// The program is told of the end of a silent initiator before it is told of the one in its place.
#[test]
fn an_initiator_that_takes_the_place_of_a_silent_one_is_told_after_its_end() {
    let (far, definition) = (Folder::new(), camera());
    let mut target = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, None).unwrap();
    let info = target.info().to_json();
    let mut silent = SdkInitiator::connect(&info);
    let mut told = Vec::new();
    until(|| {
        silent.progress();
        told.extend(target.poll().unwrap());
        silent.stands == Stands::Connected && target.is_connected()
    });
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let mut second = SdkInitiator::connect(&info);
    until(|| {
        second.progress();
        silent.progress();
        told.extend(target.poll().unwrap());
        second.stands != Stands::Connecting && target.stats().taken == 2 && silent.stands == Stands::Gone
    });
    told.extend(std::iter::from_fn(|| target.poll().unwrap()));
    assert_eq!(told, [Received::Connected, Received::Disconnected, Received::Connected]);
    assert_eq!((second.stands, target.is_connected()), (Stands::Connected, true));
}

/// An id is that of one target, whichever protocol it speaks.
#[test]
fn a_target_of_ours_takes_the_place_of_one_of_the_sdk() {
    let (near, far, definition) = (Folder::new(), Folder::new(), camera());
    let _source = near.domain().create_grains(&definition, &BatchHints::default()).unwrap();
    let theirs = SdkTarget::open(77, None, 7, HEADER + 512 * 40, false);
    let theirs = TargetInfo::parse(&theirs.info()).unwrap();
    let ours = Target::open(&far.domain(), &definition, Provider::Tcp, LOCAL, Some(77)).unwrap();
    let mut initiator = Initiator::open(&near.domain(), definition.id, Provider::Tcp, LOCAL).unwrap();
    initiator.add(&theirs).unwrap();
    initiator.add(ours.info()).unwrap();
    assert_eq!((initiator.targets().count(), initiator.protocol(77)), (1, Some(Protocol::Own)));
    assert!(matches!(initiator.add(&theirs), Err(Error::Exists(77))));
    initiator.remove(77).unwrap();
    initiator.add(&theirs).unwrap();
    assert_eq!((initiator.targets().count(), initiator.protocol(77)), (1, Some(Protocol::Sdk)));
}

/// A header of the SDK is one write.
#[test]
fn targets_of_the_sdk_are_refused_where_a_header_is_longer_than_a_write() {
    let (near, definition) = (Folder::new(), camera());
    let _source = near.domain().create_grains(&definition, &BatchHints::default()).unwrap();
    let target = SdkTarget::open(77, None, 7, HEADER + 512 * 40, false);
    let info = TargetInfo::parse(&target.info()).unwrap();
    for (max_message, is_enough) in [(HEADER, false), (HEADER + 1, true)] {
        let mut options = Options::default();
        options.max_message = Some(max_message);
        let mut initiator =
            Initiator::open_with(&near.domain(), definition.id, Provider::Tcp, LOCAL, &options).unwrap();
        match initiator.add(&info) {
            Err(Error::Argument(why)) => assert!(!is_enough && why.contains("raise max_message"), "{why}"),
            added => assert!(is_enough && added.is_ok(), "{added:?}"),
        }
    }
}
