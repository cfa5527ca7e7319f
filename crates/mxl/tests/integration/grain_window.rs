//! Readers that map a few grains of a ring at a time.

use std::fs;

use mxl::{BatchHints, Error, FlowDefinition, GrainWindow, GrainWriter, Rational, Wait};

use super::common::{Folder, SOON, camera, file, microphone, picture};

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = picture(index, grain.len());
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
}

fn read(window: &mut GrainWindow, index: u64) -> Vec<u8> {
    window.read(index, Wait::Not).unwrap().to_vec().unwrap()
}

/// Mappings of files below the folder.
fn mappings(folder: &Folder) -> usize {
    let path = folder.path().to_str().unwrap().to_owned();
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(&path)).count()
}

#[test]
fn a_window_reads_each_grain_and_maps_few() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    assert_eq!(mappings(&folder), 2, "the writer's: the flow's description, and the slot of the head");
    (100..110).for_each(|index| drop(writer.open(index).unwrap()));
    let of_writer = mappings(&folder);
    assert_eq!(of_writer, 11);
    let mut window = folder.domain().read_grain_window(camera.id, 3).unwrap();
    assert_eq!((window.grains(), window.id()), (10, camera.id));
    for index in 1..35 {
        assert!(matches!(window.read(index, Wait::Not), Err(Error::TooEarly { .. })));
        write(&writer, index);
        assert_eq!(read(&mut window, index), picture(index, 512));
        assert!(window.holds(index));
        assert!(mappings(&folder) <= of_writer + 4, "after grain {index}");
    }
    // Out of order, as far as the ring goes.
    for index in [34, 27, 30, 26, 34, 29, 28] {
        assert_eq!(read(&mut window, index), picture(index, 512));
    }
    assert_eq!(mappings(&folder), of_writer + 4);
    assert!(matches!(window.read(24, Wait::Not), Err(Error::TooLate { oldest: 26, .. })));
    // A grain that is overwritten while it is read is noticed, as with any reader.
    let grain = window.read(27, Wait::Not).unwrap();
    assert!(grain.still_valid());
    write(&writer, 37);
    assert!(!grain.still_valid() && !window.holds(27));
    // More than the ring is the ring.
    let mut whole = folder.domain().read_grain_window(camera.id, 1000).unwrap();
    (28..=34).for_each(|index| assert_eq!(read(&mut whole, index), picture(index, 512)));
    drop((window, whole));
    assert_eq!(mappings(&folder), of_writer);
    assert!(matches!(folder.domain().read_grain_window(camera.id, 0), Err(Error::Argument(_))));
}

#[test]
fn a_window_sleeps_until_its_grain_is_there_and_its_reads_are_noted() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    write(&writer, 1);
    let mut window = folder.domain().read_grain_window(camera.id, 1).unwrap();
    let before = mxl::time::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| window.read(9, SOON).unwrap().to_vec().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(30));
        (2..=9).for_each(|index| write(&writer, index));
        assert_eq!(waits.join().unwrap(), picture(9, 512));
    });
    let begin = std::time::Instant::now();
    while writer.runtime().last_read < before {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "the read was not noted");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A grain is mapped by its name, which may have passed to another flow.
#[test]
fn a_window_does_not_read_the_flow_that_has_replaced_its_own() {
    let (folder, camera) = (Folder::new(), camera());
    let create = || folder.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let writer = create();
    (1..=5).for_each(|index| write(&writer, index));
    let mut window = folder.domain().read_grain_window(camera.id, 2).unwrap();
    assert_eq!(read(&mut window, 5), picture(5, 512));
    drop(writer);
    assert!(matches!(window.read(4, Wait::Not), Err(Error::FlowInvalid)));
    let writer = create();
    (1..=5).for_each(|index| write(&writer, index));
    for index in 1..=4 {
        assert!(matches!(window.read(index, Wait::Not), Err(Error::FlowInvalid)), "{index}");
    }
    // What is mapped is the old flow's.
    assert_eq!(read(&mut window, 5), picture(5, 512));
}

#[test]
fn broken_rings_are_refused() {
    let (folder, camera, sound) = (Folder::new(), camera(), microphone(1));
    let domain = folder.domain();
    let _sound = domain.create_samples(&sound, &BatchHints::default()).unwrap();
    assert!(matches!(domain.read_grain_window(sound.id, 2), Err(Error::Argument(_))));
    let writer = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
    (1..=9).for_each(|index| write(&writer, index));
    let mut window = domain.read_grain_window(camera.id, 1).unwrap();
    let longer = fs::File::options().write(true).open(file(&folder, &camera, "grains/data.3")).unwrap();
    longer.set_len(20_000).unwrap();
    assert!(matches!(window.read(3, Wait::Not), Err(Error::File { .. })));
    fs::remove_file(file(&folder, &camera, "grains/data.4")).unwrap();
    assert!(matches!(window.read(4, Wait::Not), Err(Error::Os { .. })));
    fs::write(file(&folder, &camera, "grains/data.5"), "short").unwrap();
    assert!(matches!(window.read(5, Wait::Not), Err(Error::File { .. })));
    assert_eq!(read(&mut window, 6), picture(6, 512));
}

/// The required number of picture flows in one process, within the default limit of mappings. (To save memory, a few
/// flows are opened many times: each reader has mappings of its own.)
#[test]
fn ten_thousand_flows_are_read_in_one_process() {
    const FLOWS: usize = 20;
    const READERS: usize = 10_000;
    const DEFAULT_MAPPINGS: usize = 65_530;
    let folder = Folder::new();
    let domain = folder.domain();
    let writers: Vec<_> = (0..FLOWS)
        .map(|number| {
            let label = format!("camera {number}");
            let camera = FlowDefinition::video(&label, 48, 4, Rational::new(60_000, 1001)).unwrap();
            domain.create_grains(&camera, &BatchHints::default()).unwrap().writer
        })
        .collect();
    assert_eq!(writers[0].grains(), 11);
    // Their mappings are made with their first use.
    writers.iter().for_each(|writer| (0..11).for_each(|index| drop(writer.open(index).unwrap())));
    let all = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let (of_others, open) = (all(), descriptors());
    let mut windows: Vec<_> =
        (0..READERS).map(|at| domain.read_grain_window(writers[at % FLOWS].id(), 3).unwrap()).collect();
    for index in 1..=5 {
        writers.iter().for_each(|writer| write(writer, index));
        for window in &mut windows {
            assert_eq!(read(window, index), picture(index, 512));
        }
    }
    let (mappings, descriptors) = (all(), descriptors());
    println!("{READERS} readers: {} mappings, {} descriptors", mappings - of_others, descriptors - open);
    // The process has allocated memory meanwhile.
    let others = 100;
    assert!(mappings <= of_others + 4 * READERS + others, "{mappings} mappings");
    assert!(mappings < DEFAULT_MAPPINGS, "{mappings} mappings");
    assert_eq!(descriptors, open);
}
