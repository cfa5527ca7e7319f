//! Writers and readers in different processes, and processes that die.

use std::time::Duration;

use mxl::{BatchHints, Domain, Error, FlowDefinition, Wait};

use super::common::{self, Folder, SOON, camera, microphone, other_process, picture, role};

const FRAMES: u64 = 500;

/// A definition whose id both processes know.
fn known(mut definition: FlowDefinition, number: u128) -> FlowDefinition {
    definition.id = mxl::Uuid::from_u128(number);
    definition
}

/// Opens the flow as soon as it exists.
fn soon<T>(open: impl Fn() -> Result<T, Error>) -> T {
    for _ in 0..20_000 {
        match open() {
            Ok(there) => return there,
            Err(Error::NotFound(_)) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the flow did not appear");
}

#[test]
fn grains_cross_processes() {
    let camera = known(camera(), 1);
    if let Some((_, path)) = role() {
        let domain = Domain::open(path).unwrap();
        let writer = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
        for index in 1..=FRAMES {
            let mut grain = writer.open(index).unwrap();
            let len = grain.len();
            grain.write(0, &picture(index, len)).unwrap();
            grain.commit().unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
        // Keeps the flow until the reader has finished.
        let done = known(common::microphone(1), 2);
        soon(|| domain.read_samples(done.id));
        return;
    }
    let folder = Folder::new();
    let mut writer = other_process("processes::grains_cross_processes", "writer", folder.path());
    let reader = soon(|| folder.domain().read_grains(camera.id));
    let (mut index, mut read) = (1, 0);
    while index <= FRAMES {
        match reader.read(index, SOON) {
            Ok(grain) => {
                let bytes = grain.to_vec();
                if let Ok(bytes) = bytes {
                    assert_eq!(bytes, picture(index, 512), "grain {index}");
                    read += 1;
                }
                index += 1;
            }
            // On a loaded machine the writer may be a ring ahead.
            Err(Error::TooLate { oldest, .. }) => index = oldest,
            Err(error) => panic!("grain {index}: {error}"),
        }
    }
    assert!(read > 10, "{read} grains of {FRAMES}");
    let done = folder.domain().create_samples(&known(microphone(1), 2), &BatchHints::default()).unwrap();
    assert!(writer.wait().unwrap().success());
    assert!(matches!(reader.read(FRAMES + 1, SOON), Err(Error::FlowInvalid)));
    drop(done);
}

#[test]
fn samples_cross_processes() {
    let microphone = known(microphone(4), 3);
    const BATCH: u64 = 48;
    let sample = |channel: u32, index: u64| index as f32 + channel as f32 * 0.25;
    if let Some((_, path)) = role() {
        let domain = Domain::open(path).unwrap();
        let mut writer = domain.create_samples(&microphone, &BatchHints::new(48, 48)).unwrap().writer;
        for batch in 1..=FRAMES {
            let mut open = writer.open(batch * BATCH, BATCH).unwrap();
            for channel in 0..4 {
                let samples: Vec<f32> =
                    ((batch - 1) * BATCH..batch * BATCH).map(|at| sample(channel, at)).collect();
                open.write_channel(channel, &samples).unwrap();
            }
            open.commit().unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
        let done = known(common::microphone(1), 2);
        soon(|| domain.read_samples(done.id));
        return;
    }
    let folder = Folder::new();
    let mut writer = other_process("processes::samples_cross_processes", "writer", folder.path());
    let reader = soon(|| folder.domain().read_samples(microphone.id));
    let (mut batch, mut read) = (1, 0);
    while batch <= FRAMES {
        match reader.read(batch * BATCH, BATCH, SOON) {
            Ok(samples) => {
                let mut last = [0.0_f32; BATCH as usize];
                samples.read_channel(3, &mut last).unwrap();
                if samples.still_valid() {
                    let wanted: Vec<f32> =
                        ((batch - 1) * BATCH..batch * BATCH).map(|at| sample(3, at)).collect();
                    assert_eq!(last[..], wanted);
                    read += 1;
                }
                batch += 1;
            }
            Err(Error::TooLate { oldest, .. }) => batch = oldest / BATCH + 2,
            Err(error) => panic!("batch {batch}: {error}"),
        }
    }
    assert!(read > 10);
    let done =
        folder.domain().create_samples(&known(common::microphone(1), 2), &BatchHints::default()).unwrap();
    assert!(writer.wait().unwrap().success());
    drop(done);
}

/// A killed writer leaves a flow that the next writer continues. Without a writer the flow is collected.
#[test]
fn a_killed_writer_leaves_a_flow_that_goes_on() {
    let camera = known(camera(), 5);
    if let Some((role, path)) = role() {
        let writer =
            Domain::open(path).unwrap().create_grains(&camera, &BatchHints::default()).unwrap().writer;
        writer.open(1).unwrap().commit().unwrap();
        let mut grain = writer.open(2).unwrap();
        match role.as_str() {
            "opened" => grain.write(0, &[1; 100]).unwrap(),
            "slices" => grain.commit_slices(2).unwrap(),
            "committed" => grain.commit().unwrap(),
            other => panic!("{other}"),
        }
        // The mark that the parent waits for.
        let mark = Domain::open(std::env::var_os("MXL_TEST_DOMAIN").unwrap()).unwrap();
        let done = mark.create_samples(&known(microphone(1), 2), &BatchHints::default()).unwrap();
        std::thread::sleep(Duration::from_secs(60));
        drop(done);
        return;
    }
    for (step, head) in [("opened", 1), ("slices", 2), ("committed", 2)] {
        let folder = Folder::new();
        let mut writer =
            other_process("processes::a_killed_writer_leaves_a_flow_that_goes_on", step, folder.path());
        soon(|| folder.domain().read_samples(mxl::Uuid::from_u128(2)));
        let reader = folder.domain().read_grains(camera.id).unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert!(!folder.domain().is_active(camera.id).unwrap());
        assert_eq!(reader.head(), head, "{step}");
        assert_eq!(reader.read(2, Wait::Not).is_ok(), step == "committed");
        // The next writer.
        let made = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        assert!(!made.created);
        made.writer.open(2).unwrap().commit().unwrap();
        made.writer.open(3).unwrap().commit().unwrap();
        assert!(reader.read(3, Wait::Not).is_ok() && reader.read(2, Wait::Not).is_ok());
        drop(made);
        assert!(matches!(reader.read(4, Wait::Not), Err(Error::FlowInvalid)));
        // The writer of the mark died too.
        assert_eq!(folder.domain().collect().unwrap().flows, 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

/// A process that dies while it deletes a flow leaves no flow, or one that the next writer can use.
#[test]
fn a_killed_deletion_leaves_nothing_in_the_way() {
    let camera = known(camera(), 6);
    if let Some((role, path)) = role() {
        let domain = Domain::open(path).unwrap();
        loop {
            let made = domain.create_grains(&camera, &BatchHints::default()).unwrap();
            made.writer.open(1).unwrap().commit().unwrap();
            if role == "stays" {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
    }
    let name = "processes::a_killed_deletion_leaves_nothing_in_the_way";
    let folder = Folder::new();
    let made_and_killed = |role, after| {
        let mut writer = other_process(name, role, folder.path());
        soon(|| folder.domain().read_grains(camera.id));
        std::thread::sleep(after);
        writer.kill().unwrap();
        writer.wait().unwrap();
    };
    for round in 0..30 {
        made_and_killed("comes and goes", Duration::from_micros(round * 137));
        let made = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap();
        made.writer.open(2).unwrap().commit().unwrap();
    }
    // An implementation that deletes file by file may die with some files left.
    made_and_killed("stays", Duration::ZERO);
    let grains = folder.path().join(format!("{}.mxl-flow/grains", camera.id));
    std::fs::remove_file(grains.join("data.1")).unwrap();
    let made = folder.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    assert!(made.created, "the remains were opened as a flow");
    made.writer.open(2).unwrap().commit().unwrap();
    // The remains are not replaced while a process has the flow open.
    std::fs::remove_file(grains.join("data.1")).unwrap();
    assert!(matches!(folder.domain().create_grains(&camera, &BatchHints::default()), Err(Error::Os { .. })));
    assert!(folder.domain().is_active(camera.id).unwrap());
    made.writer.open(3).unwrap().commit().unwrap();
}
