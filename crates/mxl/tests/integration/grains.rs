//! Flows of grains within one process.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::{BatchHints, Error, FlowDefinition, GrainWriter, Rational, Status, Wait, wait_any};

use super::common::{Folder, SOON, camera, file, picture};

fn writer(folder: &Folder, definition: &FlowDefinition) -> GrainWriter {
    folder.domain().create_grains(definition, &BatchHints::default()).unwrap().writer
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let len = grain.len();
    grain.write(0, &picture(index, len)).unwrap();
    grain.commit().unwrap();
}

#[test]
fn a_written_grain_is_read() {
    let (folder, camera) = (Folder::new(), camera());
    let made = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    assert!(made.created);
    let writer = made.writer;
    let reader = folder.domain().read_grains(camera.id).unwrap();
    assert_eq!((reader.rate(), reader.grains(), reader.head()), (Rational::new(50, 1), 10, 0));
    let before = reader.runtime();
    write(&writer, 1000);
    let grain = reader.read(1000, Wait::Not).unwrap();
    let info = grain.info();
    assert_eq!((info.index, info.size, info.total_slices, info.valid_slices), (1000, 512, 4, 4));
    assert_eq!(grain.to_vec().unwrap(), picture(1000, 512));
    assert!(grain.still_valid() && !info.is_invalid());
    assert!(reader.runtime().last_write >= before.last_write);
    assert!(matches!(reader.read(1001, Wait::Not), Err(Error::TooEarly { index: 1001 })));
    assert!(grain.read_into(510, &mut [0; 3]).is_err());
    assert!(grain.read_into(usize::MAX, &mut [0; 3]).is_err());
}

#[test]
fn files_are_those_of_the_sdk() {
    let (folder, camera) = (Folder::new(), camera());
    let text = format!("  {}\n", camera.to_json());
    let made = folder.domain().create_grains_as(&camera, text.as_bytes(), &BatchHints::default()).unwrap();
    let bytes = |name: &str| std::fs::read(file(&folder, &camera, name)).unwrap();
    assert_eq!(bytes("flow_def.json"), text.as_bytes());
    assert_eq!(bytes("access"), b"");
    let data = bytes("data");
    let word = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    assert_eq!(data.len(), 2064);
    assert_eq!((word(0), word(4), &data[8..24]), (1, 2048, &camera.id.as_bytes()[..]));
    assert_eq!((word(24), word(28), long(32), long(40)), (1, 0, 50, 1));
    assert_eq!((word(48), word(52), word(56), word(60)), (4, 4, 0, u32::MAX));
    assert_eq!((word(136), word(140), word(152)), (128, 0, 10));
    assert_eq!(long(2048), std::fs::metadata(file(&folder, &camera, "data")).unwrap().ino());
    assert_eq!((long(200), long(208)), (0, long(216)));
    for index in 0..10 {
        let grain = bytes(&format!("grains/data.{index}"));
        assert_eq!(grain.len(), 8192 + 512);
        assert_eq!(grain[..8], [1, 0, 0, 0, 0, 16, 0, 0]);
        assert_eq!(grain[20..28], [0, 2, 0, 0, 4, 0, 0, 0]);
    }
    assert!(!file(&folder, &camera, "grains/data.10").exists());
    let mode = std::fs::metadata(file(&folder, &camera, "")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o755);
    drop(made);
}

#[test]
fn a_reader_that_sleeps_is_woken() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.read(7, SOON).unwrap().to_vec().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        write(&writer, 7);
        assert_eq!(read.join().unwrap(), picture(7, 512));
    });
    let begin = Instant::now();
    assert!(reader.read(8, Wait::For(Duration::from_millis(30))).is_err_and(|error| error.is_early()));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert!(reader.read(8, Wait::Busy(Duration::from_millis(3))).is_err_and(|error| error.is_early()));
}

#[test]
fn slices_arrive_one_after_another() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    let mut grain = writer.open(5).unwrap();
    assert_eq!((grain.info().valid_slices, grain.slice_sizes()), (0, [128, 0, 0, 0]));
    for slice in 1..=4_u16 {
        grain.write(usize::from(slice - 1) * 128, &[slice as u8; 128]).unwrap();
        grain.commit_slices(slice).unwrap();
        let read = reader.read_slices(5, slice, Wait::Not).unwrap();
        assert_eq!(read.info().valid_slices, slice);
        let mut line = [0; 128];
        read.read_into(usize::from(slice - 1) * 128, &mut line).unwrap();
        assert_eq!(line, [slice as u8; 128]);
        assert_eq!(reader.read(5, Wait::Not).is_ok(), slice == 4);
        assert_eq!(reader.read_slices(5, slice + 1, Wait::Not).is_ok(), slice == 4);
    }
    assert!(grain.commit_slices(5).is_err());
}

/// Defects d, e and f of the SDK: the slot that is being written, skipped grains, and slices of the last lap.
#[test]
fn nothing_of_the_last_lap_is_read_as_new() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    (100..=110).for_each(|index| write(&writer, index));
    // The oldest slot is the next that the writer opens: until then it can be read.
    assert_eq!(reader.read(100, Wait::Not).unwrap_err().status(), Status::TooLate);
    let oldest = reader.read(101, Wait::Not).unwrap();
    let held = reader.read(102, Wait::Not).unwrap();
    assert_eq!((oldest.still_valid(), reader.successor(101)), (true, None));
    let next = writer.open(111).unwrap();
    assert!(!oldest.still_valid() && held.still_valid());
    assert!(matches!(reader.read(101, Wait::Not), Err(Error::TooLate { index: 101, oldest: 102 })));
    assert_eq!((reader.successor(101), reader.successor(102)), (Some(111), None));
    drop(next);
    // A grain that was opened and not committed has no slices, though its slot was full.
    let mut part = writer.open(112).unwrap();
    assert!(!held.still_valid() && held.to_vec().is_err());
    part.commit_slices(1).unwrap();
    assert!(reader.read(112, Wait::Not).is_err_and(|error| error.is_early()));
    assert!(reader.read_slices(112, 1, Wait::Not).is_ok());
    // A skipped grain is not confused with the grain in its slot.
    write(&writer, 115);
    assert!(matches!(reader.read(113, Wait::Not), Err(Error::Skipped { index: 113 })));
    assert!(reader.read(107, Wait::Not).is_ok());
}

#[test]
fn several_grains_are_open_and_committed_in_any_order() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    let first = writer.open(20).unwrap();
    let second = writer.open(21).unwrap();
    assert!(matches!(writer.open(20), Err(Error::AlreadyOpen(20))));
    assert!(matches!(writer.open(30), Err(Error::AlreadyOpen(30))));
    second.commit().unwrap();
    assert_eq!(reader.head(), 21);
    assert!(reader.read(20, Wait::Not).is_err_and(|error| error.is_early()));
    first.commit_invalid().unwrap();
    assert_eq!(reader.head(), 21);
    assert!(reader.read(20, Wait::Not).unwrap().info().is_invalid());
    drop(writer.open(30).unwrap());
    writer.open(30).unwrap().commit().unwrap();
    assert!(!reader.read(30, Wait::Not).unwrap().info().is_invalid());
}

/// Defect g: the SDK makes an empty ring, and divides by its length.
#[test]
fn one_grain_a_second_is_a_flow() {
    let folder = Folder::new();
    let clock = FlowDefinition::data("clock", Rational::new(1, 1)).unwrap();
    let writer = writer(&folder, &clock);
    let reader = folder.domain().read_grains(clock.id).unwrap();
    assert_eq!(writer.grains(), 3);
    for index in 0..10 {
        write(&writer, index);
        assert_eq!(reader.read(index, Wait::Not).unwrap().to_vec().unwrap(), picture(index, 4096));
    }
    assert!(reader.read(7, Wait::Not).is_ok() && reader.read(6, Wait::Not).is_err());
}

#[test]
fn the_last_writer_deletes_the_flow_and_readers_are_told() {
    let (folder, camera) = (Folder::new(), camera());
    let first = writer(&folder, &camera);
    let second = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    assert!(!second.created);
    let reader = Arc::new(folder.domain().read_grains(camera.id).unwrap());
    write(&first, 3);
    drop(first);
    assert!(folder.domain().is_active(camera.id).unwrap() && reader.is_current());
    let sleeper = {
        let reader = reader.clone();
        std::thread::spawn(move || reader.read(4, SOON).map(|_| ()))
    };
    std::thread::sleep(Duration::from_millis(20));
    drop(second);
    assert!(matches!(sleeper.join().unwrap(), Err(Error::FlowInvalid)));
    assert!(!file(&folder, &camera, "").exists());
    assert!(matches!(reader.read(4, Wait::Not), Err(Error::FlowInvalid)));
    // Mapped grains stay readable.
    assert_eq!(reader.read(3, Wait::Not).unwrap().to_vec().unwrap(), picture(3, 512));
    assert!(matches!(folder.domain().read_grains(camera.id), Err(Error::NotFound(_))));
    assert!(matches!(folder.domain().is_active(camera.id), Err(Error::NotFound(_))));
}

#[test]
fn one_thread_waits_for_many_flows() {
    let folder = Folder::new();
    let cameras: Vec<_> = (0..100).map(|_| camera()).collect();
    let writers: Vec<_> = cameras.iter().map(|camera| writer(&folder, camera)).collect();
    let readers: Vec<_> =
        cameras.iter().map(|camera| folder.domain().read_grains(camera.id).unwrap()).collect();
    let watches: Vec<_> = readers.iter().map(|reader| reader.watch()).collect();
    assert!(!wait_any(&watches, Wait::For(Duration::from_millis(5))));
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| wait_any(&watches, SOON));
        std::thread::sleep(Duration::from_millis(20));
        write(&writers[73], 1);
        assert!(waited.join().unwrap());
    });
    let changed: Vec<_> = (0..100).filter(|&at| watches[at].changed()).collect();
    assert_eq!(changed, [73]);
    // More than the kernel takes in one call.
    let twice: Vec<_> = readers.iter().chain(&readers).map(|reader| reader.watch()).collect();
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| wait_any(&twice, SOON));
        write(&writers[12], 1);
        assert!(waited.join().unwrap());
    });
}

#[test]
fn a_read_is_noted_by_the_writer() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    write(&writer, 1);
    let before = writer.runtime().last_read;
    reader.read(1, Wait::Not).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while writer.runtime().last_read <= before {
        assert!(Instant::now() < end, "the read was not recorded");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn hints_are_kept_in_the_flow() {
    let (folder, camera) = (Folder::new(), camera());
    let made = folder.domain().create_grains(&camera, &BatchHints::new(2, 4)).unwrap();
    let common = made.writer.info().config.common;
    assert_eq!((common.max_commit_batch, common.max_sync_batch), (2, 4));
    assert!(folder.domain().create_grains(&camera, &BatchHints::new(2, 3)).is_err());
}

/// If a writer laps it, a reader gets whole pictures or an error.
#[test]
fn a_torn_picture_is_noticed() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    write(&writer, 1);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (2..20_000).for_each(|index| write(&writer, index)));
        let mut whole = 0;
        while !writing.is_finished() {
            let index = reader.head().saturating_sub(7).max(1);
            let Ok(grain) = reader.read(index, Wait::Not) else { continue };
            let mut bytes = vec![0; grain.len()];
            grain.read_into(0, &mut bytes).unwrap();
            if grain.still_valid() {
                assert_eq!(bytes, picture(index, bytes.len()), "grain {index}");
                whole += 1;
            }
        }
        assert!(whole > 0);
    });
}

/// The reserved part of a header is what the last commit gave, whether or not the slot was blank before.
#[test]
fn reserved_bytes_of_a_header_follow_each_commit() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = writer(&folder, &camera);
    let mut header = std::mem::MaybeUninit::uninit();
    // Twice round the ring of ten, so that each slot is blank, filled and blank again.
    let mut commit = |writer: &GrainWriter, index, byte, reads_header| {
        let (info, _) = writer.begin(index).unwrap();
        if reads_header {
            writer.slot_header_into(index, &mut header).unwrap();
        }
        writer.set_reserved(index, &[byte; 4068]);
        writer.publish(info).unwrap();
        assert!(writer.slot_header(index).unwrap().reserved == [byte; 4068], "{index}");
    };
    for (index, byte) in [(1000, 0), (1010, 7), (1020, 0), (1030, 0), (1040, 9), (1050, 9)] {
        commit(&writer, index, byte, true);
    }
    for (index, byte) in [(1060, 0), (1070, 5), (1080, 0), (1090, 0)] {
        commit(&writer, index, byte, false);
    }
    // Another writer fills a header that this one knew to be blank.
    let other = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    for (reads_header, first) in [(true, 1100), (false, 1130)] {
        commit(&writer, first, 0, reads_header);
        commit(&other, first + 10, 3, reads_header);
        commit(&writer, first + 20, 0, reads_header);
    }
}
