//! Payloads by remote writes or in messages, whole or cut to a largest message.

use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, Rational, Wait};
use mxl_fabrics::{Error, Initiator, Options, Pacing, PeerState, Provider, Received, Target, Transfer};

use super::common::{self, Folder, both, camera, microphone};

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Tcp];
const ANY: (Option<&str>, Option<&str>) = (None, None);

fn options(messages_only: bool, max_message: Option<usize>) -> Options {
    let mut options = Options::default();
    (options.messages_only, options.max_message) = (messages_only, max_message);
    options
}

/// The options of the target and of the initiator.
fn ways() -> Vec<(Options, Options)> {
    vec![
        // Remote writes, whole.
        (options(false, None), options(false, None)),
        // Either end, or both, without remote writes.
        (options(true, None), options(true, None)),
        (options(true, None), options(false, None)),
        (options(false, None), options(true, None)),
        // Short messages: limited by the receiver, or by the sender.
        (options(true, Some(600)), options(true, None)),
        (options(true, None), options(true, Some(700))),
        // Remote writes that are cut.
        (options(false, None), options(false, Some(1000))),
    ]
}

/// With an alpha plane: two pieces for each part of a picture.
fn keyed_camera() -> FlowDefinition {
    let text = camera().to_json().replace("video/v210", "video/v210a");
    FlowDefinition::parse(&text).unwrap()
}

fn payload(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (index * 31 + at * 7 + at / 251) as u8).collect()
}

#[test]
fn grains_and_slices_arrive_whole_however_they_are_cut() {
    for (provider, (of_target, of_initiator)) in
        PROVIDERS.into_iter().flat_map(|provider| ways().into_iter().map(move |ways| (provider, ways)))
    {
        let what = format!("{provider}, target {of_target:?}, initiator {of_initiator:?}");
        let (near, far) = (Folder::new(), Folder::new());
        let definition = keyed_camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut target =
            Target::open_with(&far.domain(), &definition, provider, ANY, None, &of_target).unwrap();
        let mut initiator =
            Initiator::open_with(&near.domain(), definition.id, provider, ANY, &of_initiator).unwrap();
        initiator.add(target.info()).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        let reader = far.domain().read_grains(definition.id).unwrap();
        for index in 300..310 {
            let mut grain = writer.open(index).unwrap();
            let (bytes, total) = (payload(index, grain.len()), grain.info().total_slices);
            grain.write(0, &bytes).unwrap();
            // The first half is visible before the rest is sent.
            for (start, end) in [(0, total / 2), (total / 2, total)] {
                grain.commit_slices(end).unwrap();
                initiator.send_slices(index, start, end).unwrap();
                both(&mut initiator, &mut target, |_, received| {
                    assert!(!matches!(received, Some(Received::Lost { .. })), "{what}: {received:?}");
                    received == Some(Received::Grain { index, slices: end, invalid: false })
                });
            }
            assert_eq!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap(), bytes, "{what}: {index}");
        }
        writer.open(310).unwrap().commit_invalid().unwrap();
        initiator.send(310).unwrap();
        both(&mut initiator, &mut target, |_, received| {
            matches!(received, Some(Received::Grain { index: 310, invalid: true, .. }))
        });
        assert_eq!(target.stats().nonsense, 0, "{what}");
    }
}

#[test]
fn samples_arrive_in_their_rings_however_they_are_cut() {
    for (provider, channels, (of_target, of_initiator)) in PROVIDERS
        .into_iter()
        .flat_map(|provider| [1, 3, 64].map(|channels| (provider, channels)))
        .flat_map(|(provider, channels)| ways().into_iter().map(move |ways| (provider, channels, ways)))
    {
        let what =
            format!("{provider}, {channels} channels, target {of_target:?}, initiator {of_initiator:?}");
        let (near, far) = (Folder::new(), Folder::new());
        let longer = r#"{"urn:x-mxl:option:history_duration/v1.0": 130000000}"#;
        std::fs::write(far.path().join("options.json"), longer).unwrap();
        let definition = microphone(channels);
        let mut writer = near.domain().create_samples(&definition, &BatchHints::default()).unwrap().writer;
        let mut target =
            Target::open_with(&far.domain(), &definition, provider, ANY, None, &of_target).unwrap();
        let mut initiator =
            Initiator::open_with(&near.domain(), definition.id, provider, ANY, &of_initiator).unwrap();
        initiator.add(target.info()).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        let reader = far.domain().read_samples(definition.id).unwrap();
        let value = |channel: u32, sample: u64| (sample % 4096 + u64::from(channel) * 5000) as f32;
        for batch in 1..=30 {
            let (index, count) = (1_000_003 + batch * 480, 480_u64);
            let mut open = writer.open(index, count).unwrap();
            for channel in 0..channels {
                let samples: Vec<f32> = (index - count..index).map(|at| value(channel, at)).collect();
                open.write_channel(channel, &samples).unwrap();
            }
            open.commit().unwrap();
            initiator.send_samples(index, count).unwrap();
            both(&mut initiator, &mut target, |_, received| {
                assert!(!matches!(received, Some(Received::Lost { .. })), "{what}: {received:?}");
                received == Some(Received::Samples { index, count })
            });
            let samples = reader.read(index, count, Wait::Not).unwrap();
            let mut there = vec![0_f32; count as usize];
            for channel in 0..channels {
                samples.read_channel(channel, &mut there).unwrap();
                let is_right =
                    there.iter().zip(index - count..).all(|(&sample, at)| sample == value(channel, at));
                assert!(is_right, "{what}: batch {batch} of channel {channel}");
            }
        }
        assert_eq!(target.stats().nonsense, 0, "{what}");
    }
}

/// The source's writer overtakes a grain that was sent in part: the target publishes the partial data as an invalid
/// grain, and continues.
#[test]
fn a_grain_that_is_overwritten_while_it_is_sent_in_parts_is_given_up() {
    for (provider, messages) in
        PROVIDERS.into_iter().flat_map(|provider| [(provider, true), (provider, false)])
    {
        let what = format!("{provider}, messages: {messages}");
        let (near, far) = (Folder::new(), Folder::new());
        // The grain is so long that no provider accepts all of its parts at once.
        let definition = FlowDefinition::video("camera", 1920, 1080, Rational::new(50, 1)).unwrap();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let way = options(messages, Some(640));
        let mut target = Target::open_with(&far.domain(), &definition, provider, ANY, None, &way).unwrap();
        let mut initiator = Initiator::open_with(&near.domain(), definition.id, provider, ANY, &way).unwrap();
        initiator.add(target.info()).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        let id = target.info().id;
        let grain = writer.open(50).unwrap();
        let len = grain.len() as u64;
        grain.commit().unwrap();
        initiator.send(50).unwrap();
        // Until the slot is granted and a part is in flight.
        let (mut turns, begin) = (0, std::time::Instant::now());
        while turns < 20 {
            initiator.poll().unwrap();
            target.poll().unwrap();
            turns += u32::from(target.stats().taken > 0 && !initiator.is_idle());
            assert!(begin.elapsed() < common::LONG, "{what}: no part in flight");
        }
        let later = 50 + writer.grains();
        writer.open(later).unwrap().commit().unwrap();
        let mut torn = false;
        both(&mut initiator, &mut target, |initiator, received| {
            while let Some(event) = initiator.event() {
                torn |= event == Transfer::Torn { target: id, index: 50 };
            }
            matches!(received, Some(Received::Grain { index: 50, invalid: true, .. })) && torn
        });
        let (state, stats) = initiator.target(id).unwrap();
        assert_eq!(state, PeerState::Connected, "{what}");
        assert!(stats.bytes < len, "{what}: {stats:?}");
        // The next grain is whole.
        initiator.send(later).unwrap();
        both(
            &mut initiator,
            &mut target,
            |_, received| matches!(received, Some(Received::Grain { index, invalid: false, .. }) if index == later),
        );
        assert_eq!(target.stats().nonsense, 0, "{what}");
    }
}

/// A paced grain is not complete before its last part was due, however fast the provider is; and nothing is lost.
#[test]
fn paced_grains_take_their_time_and_arrive_whole() {
    for (provider, messages) in PROVIDERS.into_iter().zip([false, true]) {
        let (near, far) = (Folder::new(), Folder::new());
        // Ten pictures per second: 100 ms each.
        let definition = FlowDefinition::video("camera", 192, 160, Rational::new(10, 1)).unwrap();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let mut way = options(messages, None);
        way.pacing = Some(Pacing { spread: 0.5, phase: Some(0.5) });
        let mut target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let mut initiator = Initiator::open_with(&near.domain(), definition.id, provider, ANY, &way).unwrap();
        initiator.add(target.info()).unwrap();
        both(&mut initiator, &mut target, |initiator, _| initiator.event().is_some());
        let reader = far.domain().read_grains(definition.id).unwrap();
        for index in 70..73 {
            let mut grain = writer.open(index).unwrap();
            let bytes = payload(index, grain.len());
            assert!(bytes.len() > 16 * 4096);
            grain.write(0, &bytes).unwrap();
            grain.commit().unwrap();
            let handed = Instant::now();
            initiator.send(index).unwrap();
            both(&mut initiator, &mut target, |_, received| matches!(received, Some(Received::Grain { .. })));
            // Half of the period until it begins, and 15 of 16 parts of another half.
            assert!(handed.elapsed() >= Duration::from_millis(50 + 46), "{provider}: {:?}", handed.elapsed());
            assert_eq!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap(), bytes, "{provider}");
        }
        way.pacing = Some(Pacing { spread: 2.0, phase: None });
        let refused = Initiator::open_with(&near.domain(), definition.id, provider, ANY, &way);
        assert!(matches!(refused, Err(Error::Argument(why)) if why.contains('2')));
    }
}

#[test]
fn limits_that_are_too_low_are_refused_with_their_numbers() {
    let near = Folder::new();
    let definition = camera();
    let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let open = |most| {
        Initiator::open_with(&near.domain(), definition.id, Provider::Shm, ANY, &options(false, Some(most)))
    };
    let error = open(511).err().unwrap().to_string();
    assert!(error.contains("511") && error.contains("512"), "{error}");
    open(512).unwrap();
    // A batch of audio may have fewer writes.
    let sound = microphone(64);
    let mut writer = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
    let mut initiator =
        Initiator::open_with(&near.domain(), sound.id, Provider::Shm, ANY, &options(false, Some(512)))
            .unwrap();
    writer.open(2400, 2400).unwrap().commit().unwrap();
    let Err(Error::Argument(why)) = initiator.send_samples(2400, 2400) else { panic!("it was accepted") };
    assert!(why.contains("2400 samples of 64 channels") && why.contains("256"), "{why}");
    initiator.send_samples(2400, 48).unwrap();
}
