//! Slots of a ring that are mapped when they are used first: those of writers, and of readers that ask for it.

use std::fs;

use mxl::{BatchHints, Error, GrainWriter, Wait};

use super::common::{Folder, camera, file, picture};

fn create(folder: &Folder, definition: &mxl::FlowDefinition) -> GrainWriter {
    folder.domain().create_grains(definition, &BatchHints::default()).unwrap().writer
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let bytes = picture(index, grain.len());
    grain.write(0, &bytes).unwrap();
    grain.commit().unwrap();
}

/// Mappings of files below the folder.
fn mappings(folder: &Folder) -> usize {
    let path = folder.path().to_str().unwrap().to_owned();
    fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(&path)).count()
}

/// Each idle writer mapped its whole ring, so a process had room for 5,000 of them.
#[test]
fn idle_writers_and_readers_on_demand_take_two_mappings_each() {
    const ENDS: usize = 200;
    let (folder, camera) = (Folder::new(), camera());
    let writers: Vec<_> = (0..ENDS).map(|_| create(&folder, &camera)).collect();
    assert_eq!(mappings(&folder), 2 * ENDS);
    let domain = folder.domain();
    let readers: Vec<_> = (0..ENDS).map(|_| domain.read_grains_on_demand(camera.id).unwrap()).collect();
    assert_eq!(mappings(&folder), 4 * ENDS);
    // In use, an end maps the whole ring of ten grains.
    (1..=25).for_each(|index| {
        write(&writers[0], index);
        assert_eq!(readers[0].read(index, Wait::Not).unwrap().to_vec().unwrap(), picture(index, 512));
        assert!(readers[0].holds(index));
    });
    assert_eq!(mappings(&folder), 4 * ENDS + 2 * 9);
    drop((writers, readers));
    assert_eq!(mappings(&folder), 0);
}

#[test]
fn threads_that_use_a_slot_first_share_its_mapping() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = create(&folder, &camera);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let writer = &writer;
            scope.spawn(move || {
                for index in 0..writer.grains() {
                    let index = (index + thread) % writer.grains();
                    let begun = writer.begin(index).unwrap().1;
                    assert_eq!(begun, writer.begin(index).unwrap().1);
                }
            });
        }
    });
    assert_eq!(mappings(&folder), 11);
}

/// A slot is mapped by its name, which may have passed to another flow.
#[test]
fn no_slot_of_the_flow_that_replaced_its_own_is_written_or_read() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = create(&folder, &camera);
    write(&writer, 5);
    let reader = folder.domain().read_grains_on_demand(camera.id).unwrap();
    let dir = folder.path().join(format!("{}.mxl-flow", camera.id));
    // As a careless program removes it, which the lock does not keep from it.
    fs::remove_dir_all(&dir).unwrap();
    let refused = || {
        assert!(matches!(writer.open(6), Err(Error::FlowInvalid)));
        assert!(matches!(writer.slot_header(6), Err(Error::FlowInvalid)));
        assert!(matches!(reader.read(6, Wait::Not), Err(Error::FlowInvalid)));
    };
    refused();
    let other = create(&folder, &camera);
    refused();
    // What is mapped is the old flow's, and a refused slot is not taken for an open one.
    write(&writer, 15);
    assert_eq!(reader.read(15, Wait::Not).unwrap().to_vec().unwrap(), picture(15, 512));
    refused();
    write(&other, 6);
    drop(writer);
    assert!(other.is_current(), "the first writer removed the flow of the second");
}

/// Files that are missing or of another size are seen when the flow is opened, though they are not mapped yet.
#[test]
fn a_broken_ring_is_refused_when_it_is_opened() {
    let (folder, camera) = (Folder::new(), camera());
    let writer = create(&folder, &camera);
    let there = file(&folder, &camera, "grains/data.7");
    let len = fs::metadata(&there).unwrap().len();
    let set_len = |len| fs::File::options().write(true).open(&there).unwrap().set_len(len).unwrap();
    let domain = folder.domain();
    set_len(len + 1);
    assert!(matches!(domain.read_grains_on_demand(camera.id), Err(Error::File { .. })));
    assert!(matches!(domain.create_grains(&camera, &BatchHints::default()), Err(Error::File { .. })));
    // Shorter than it was when the flow was opened.
    set_len(len - 1);
    assert!(matches!(writer.open(7), Err(Error::Truncated { path }) if path == there));
    set_len(len);
    write(&writer, 7);
    fs::remove_file(&there).unwrap();
    fs::create_dir(&there).unwrap();
    assert!(matches!(domain.read_grains_on_demand(camera.id), Err(Error::File { .. })));
}
