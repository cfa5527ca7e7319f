//! Flows of samples within one process.

use std::sync::Arc;
use std::time::Duration;

use mxl::{BatchHints, Error, FlowDefinition, Format, Rational, SampleWriter, Status, SyncGroup, Wait, time};

use super::common::{Folder, SOON, camera, file, microphone};

fn writer(folder: &Folder, channels: u32) -> (SampleWriter, mxl::Uuid) {
    let microphone = microphone(channels);
    let made = folder.domain().create_samples(&microphone, &BatchHints::default()).unwrap();
    assert!(made.created);
    (made.writer, microphone.id)
}

/// The sample of a channel at an absolute index.
fn sample(channel: u32, index: u64) -> f32 {
    (index % 65_536) as f32 + channel as f32 / 16.0
}

fn write(writer: &mut SampleWriter, index: u64, count: u64) {
    let channels = writer.channels();
    let mut open = writer.open(index, count).unwrap();
    for channel in 0..channels {
        let samples: Vec<f32> = (index - count..index).map(|at| sample(channel, at)).collect();
        open.write_channel(channel, &samples).unwrap();
    }
    open.commit().unwrap();
}

#[test]
fn samples_are_read_across_the_end_of_the_ring() {
    let folder = Folder::new();
    let (mut writer, id) = writer(&folder, 3);
    let reader = folder.domain().read_samples(id).unwrap();
    assert_eq!((reader.channels(), reader.word(), reader.max_read()), (3, 4, 9728));
    let mut index = 48_000_000;
    for _ in 0..200 {
        index += 480;
        write(&mut writer, index, 480);
        let read = reader.read(index, 480, Wait::Not).unwrap();
        for channel in 0..3 {
            let mut samples = vec![0.0_f32; read.len()];
            read.read_channel(channel, &mut samples).unwrap();
            let wanted: Vec<f32> = (index - 480..index).map(|at| sample(channel, at)).collect();
            assert_eq!(samples, wanted);
        }
        assert!(read.still_valid());
    }
    // Longer than one write, with a different end.
    let read = reader.read(index - 100, 5000, Wait::Not).unwrap();
    let mut samples = vec![0.0_f32; 5000];
    read.read_channel(2, &mut samples).unwrap();
    assert_eq!((samples[0], samples[4999]), (sample(2, index - 5100), sample(2, index - 101)));
    let [(_, first), (_, second)] = read.pieces(0);
    assert_eq!((first + second, read.stride()), (20_000, 19_456 * 4));
}

/// `audio/float64`: twice the bytes of a sample in each ring.
#[test]
fn samples_of_eight_bytes_are_read_as_they_were_written() {
    let folder = Folder::new();
    let mut microphone = microphone(2);
    if let Format::Audio(audio) = &mut microphone.format {
        audio.word = 8;
    }
    let microphone = FlowDefinition::parse(&microphone.to_json()).unwrap();
    let mut writer = folder.domain().create_samples(&microphone, &BatchHints::default()).unwrap().writer;
    let reader = folder.domain().read_samples(microphone.id).unwrap();
    assert_eq!((reader.word(), reader.stride() as u64 % 4096), (8, 0));
    // No `f32` has these values.
    let sample = |channel: u32, at: u64| 1.0 / (at * 2 + u64::from(channel) + 3) as f64;
    let batch =
        |channel, index: u64| -> Vec<f64> { (index - 480..index).map(|at| sample(channel, at)).collect() };
    for index in (48_480..96_000).step_by(480) {
        let mut open = writer.open(index, 480).unwrap();
        assert!(open.write_channel(0, &[0.0_f32; 480]).is_err());
        for channel in 0..2 {
            open.write_channel(channel, &batch(channel, index)).unwrap();
        }
        open.commit().unwrap();
        let read = reader.read(index, 480, Wait::Not).unwrap();
        for channel in 0..2 {
            let mut samples = vec![0.0_f64; 480];
            read.read_channel(channel, &mut samples).unwrap();
            assert_eq!(samples, batch(channel, index), "channel {channel} before {index}");
        }
    }
}

#[test]
fn what_is_not_there_is_told() {
    let folder = Folder::new();
    let (mut writer, id) = writer(&folder, 1);
    let reader = folder.domain().read_samples(id).unwrap();
    write(&mut writer, 100_000, 480);
    let status = |index, count| reader.read(index, count, Wait::Not).unwrap_err().status();
    assert_eq!(status(100_001, 1), Status::TooEarly);
    assert_eq!(status(100_000 - 9729, 0), Status::TooLate);
    assert_eq!(status(100_000 - 9000, 1000), Status::TooLate);
    assert_eq!(status(100_000, 9729), Status::InvalidArg);
    assert_eq!(status(100_000, u64::MAX), Status::InvalidArg);
    assert!(writer.open(100_480, 9729).is_err());
    let held = reader.read(100_000, 480, Wait::Not).unwrap();
    write(&mut writer, 109_000, 480);
    assert!(held.still_valid());
    write(&mut writer, 109_300, 300);
    assert!(!held.still_valid());
    // Defect h: zero samples are zero bytes.
    let none = reader.read(109_300, 0, Wait::Not).unwrap();
    assert_eq!(none.pieces(0).map(|(_, bytes)| bytes), [0, 0]);
    assert!(none.read_channel::<f32>(0, &mut []).is_ok());
    // Another type, another channel, another length.
    let one = reader.read(109_300, 1, Wait::Not).unwrap();
    assert!(one.read_channel(0, &mut [0.0_f64]).is_err());
    assert!(one.read_channel(1, &mut [0.0_f32]).is_err());
    assert!(one.read_channel(0, &mut [0.0_f32; 2]).is_err());
}

/// Regression test: what a writer overwrote after a jump counted as valid, since its head had not moved yet.
#[test]
fn samples_that_a_jump_overwrites_are_not_valid_any_more() {
    let folder = Folder::new();
    let (mut writer, id) = writer(&folder, 1);
    let data = file(&folder, &microphone_of(id), "data");
    let reserved = |data: &std::path::Path| std::fs::read(data).unwrap()[224..2048].to_vec();
    let reader = folder.domain().read_samples(id).unwrap();
    for (head, jump) in [(100_000, 200_000), (300_000, 250_000), (400_000, 400_000 + 19_456)] {
        write(&mut writer, head, 4800);
        write(&mut writer, head + 480, 480);
        assert!(reserved(&data).iter().all(|byte| *byte == 0), "the file is the C++ SDK's");
        let held = reader.read(head + 480, 4800, Wait::Not).unwrap();
        let mut samples = vec![0.0_f32; 4800];
        held.read_channel(0, &mut samples).unwrap();
        assert!(held.still_valid());
        let mut open = writer.open(jump, 480).unwrap();
        open.write_channel(0, &[9.0_f32; 480]).unwrap();
        assert!(!held.still_valid(), "from {head} to {jump}");
        open.commit().unwrap();
        assert!(!held.still_valid(), "from {head} to {jump}");
        let read = reader.read(jump, 480, Wait::Not).unwrap();
        read.read_channel(0, &mut samples[..480]).unwrap();
        assert!(read.still_valid() && samples[..480] == [9.0; 480]);
    }
}

/// The file names of a flow need its id alone.
fn microphone_of(id: mxl::Uuid) -> FlowDefinition {
    FlowDefinition { id, ..microphone(1) }
}

/// Defect i: the SDK never records when samples were written.
#[test]
fn the_time_of_a_commit_is_noted() {
    let folder = Folder::new();
    let (mut writer, _) = writer(&folder, 1);
    let before = time::now();
    write(&mut writer, 480, 480);
    assert!((before..=time::now()).contains(&writer.runtime().last_write));
}

#[test]
fn a_reader_that_sleeps_is_woken() {
    let folder = Folder::new();
    let (mut writer, id) = writer(&folder, 2);
    let reader = folder.domain().read_samples(id).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.read(4800, 480, SOON).is_ok());
        for index in (480..=4800).step_by(480) {
            std::thread::sleep(Duration::from_millis(2));
            write(&mut writer, index, 480);
        }
        assert!(read.join().unwrap());
    });
    drop(writer);
    assert!(matches!(reader.read(9600, 480, Wait::Not), Err(Error::FlowInvalid)));
}

#[test]
fn files_are_those_of_the_sdk() {
    let folder = Folder::new();
    let microphone = microphone(2);
    let made = folder.domain().create_samples(&microphone, &BatchHints::default()).unwrap();
    let data = std::fs::read(file(&folder, &microphone, "data")).unwrap();
    let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
    assert_eq!((word(24), word(32), word(40)), (2, 48_000, 1));
    assert_eq!((word(48), word(52), word(136), word(140), word(144)), (480, 480, 2, 19_456, 0));
    assert_eq!(std::fs::metadata(file(&folder, &microphone, "channels")).unwrap().len(), 155_648);
    assert!(!file(&folder, &microphone, "access").exists() && !file(&folder, &microphone, "grains").exists());
    assert_eq!(made.writer.rate(), Rational::new(48_000, 1));
}

/// Defects a, b and c: a late flow stays in the group, a partial grain does not count as a grain, and missing data is
/// reported.
#[test]
fn a_group_waits_for_all_of_its_flows() {
    let folder = Folder::new();
    let (mut audio, id) = writer(&folder, 1);
    let (camera, domain) = (camera(), folder.domain());
    let video = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let sound = Arc::new(domain.read_samples(id).unwrap());
    let picture = Arc::new(domain.read_grains(camera.id).unwrap());
    let mut group = SyncGroup::new();
    group.add_grains(&picture, u16::MAX);
    group.add_grains(&picture, u16::MAX);
    group.add_samples(&sound);
    group.add_samples(&sound);
    assert_eq!(group.len(), 2);
    // The audio is late once, and last in the list.
    let at = |frame: u64| time::index_to_timestamp(Rational::new(50, 1), frame).unwrap();
    let begin = time::current_index(Rational::new(50, 1)).unwrap() - 1000;
    video.open(begin).unwrap().commit().unwrap();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| group.wait_for_data_at(at(begin), SOON));
        std::thread::sleep(Duration::from_millis(30));
        write(&mut audio, begin * 960, 480);
        waited.join().unwrap().unwrap();
    });
    assert_eq!(group.len(), 2);
    assert!(group.wait_for_data_at(at(begin + 1), Wait::For(Duration::from_millis(5))).is_err());
    // The head of the video is committed in part.
    let mut part = video.open(begin + 1).unwrap();
    part.commit_slices(1).unwrap();
    write(&mut audio, (begin + 1) * 960, 960);
    let early = group.wait_for_data_at(at(begin + 1), Wait::For(Duration::from_millis(5)));
    assert!(early.is_err_and(|error| error.is_early()));
    group.add_grains(&picture, 1);
    group.wait_for_data_at(at(begin + 1), Wait::Not).unwrap();
    // Long ago.
    drop(part);
    video.open(begin + 50).unwrap().commit().unwrap();
    let late = group.wait_for_data_at(at(begin), Wait::Not);
    assert_eq!(late.unwrap_err().status(), Status::TooLate);
    group.remove_grains(&picture);
    group.remove_samples(&sound);
    assert!(group.is_empty() && group.wait_for_data_at(0, Wait::Not).is_ok());
}
