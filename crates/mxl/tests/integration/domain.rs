//! Domains: their content, their remains, and invalid files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use mxl::{BatchHints, Domain, Error, FlowDefinition, Rational, Status, Wait};

use super::common::{Folder, camera, file, microphone};

fn hints() -> BatchHints {
    BatchHints::default()
}

#[test]
fn a_domain_is_a_directory() {
    let folder = Folder::new();
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(matches!(Domain::open(folder.path().join("nothing")), Err(Error::Os { .. })));
    assert!(matches!(Domain::open(folder.path().join("file")), Err(Error::File { .. })));
    assert!(mxl::is_tmpfs(folder.path().join("nothing")).is_err());
    if Path::new("/dev/shm").is_dir() {
        assert!(mxl::is_tmpfs("/dev/shm").unwrap());
    }
    assert!(!mxl::is_tmpfs("/proc").unwrap());
}

#[test]
fn the_history_is_an_option_of_the_domain() {
    let folder = Folder::new();
    let options = folder.path().join("options.json");
    let history = || folder.domain().history();
    let standard = Duration::from_millis(200);
    assert_eq!(history(), standard);
    fs::write(&options, r#"{"urn:x-mxl:option:history_duration/v1.0": 500000000}"#).unwrap();
    assert_eq!(history(), Duration::from_millis(500));
    let camera = camera();
    let made = folder.domain().create_grains(&camera, &hints()).unwrap();
    assert_eq!(made.writer.grains(), 25);
    for bad in [
        "{",
        "[]",
        "",
        r#"{"urn:x-mxl:option:history_duration/v1.0": "long"}"#,
        r#"{"urn:x-mxl:option:history_duration/v1.0": -1}"#,
        r#"{"urn:x-mxl:option:history_duration/v1.0": 0}"#,
        "{}",
    ] {
        fs::write(&options, bad).unwrap();
        assert_eq!(history(), standard, "{bad}");
    }
    // A ring of absurdly many files.
    fs::write(&options, r#"{"urn:x-mxl:option:history_duration/v1.0": 1e18}"#).unwrap();
    let other = FlowDefinition::video("other", 48, 4, Rational::new(50, 1)).unwrap();
    assert!(matches!(folder.domain().create_grains(&other, &hints()), Err(Error::Definition(_))));
    assert!(folder.domain().create_samples(&microphone(1), &hints()).is_err());
}

#[test]
fn flows_are_listed_and_described() {
    let folder = Folder::new();
    let (camera, microphone) = (camera(), microphone(1));
    let video = folder.domain().create_grains(&camera, &hints()).unwrap();
    let audio = folder.domain().create_samples(&microphone, &hints()).unwrap();
    fs::create_dir(folder.path().join("nonsense.mxl-flow")).unwrap();
    let mut ids = [camera.id, microphone.id];
    ids.sort_unstable();
    assert_eq!(folder.domain().flows().unwrap(), ids);
    assert_eq!(folder.domain().definition(camera.id).unwrap(), camera);
    let (info, runtime) = folder.domain().info(microphone.id).unwrap();
    assert!(!info.is_discrete() && runtime.head == 0);
    let domain = folder.domain();
    assert!(matches!(domain.read_samples(camera.id), Err(Error::Argument(_))));
    assert!(matches!(domain.read_grains(microphone.id), Err(Error::Argument(_))));
    assert!(matches!(domain.create_grains(&microphone, &hints()), Err(Error::Argument(_))));
    assert!(matches!(domain.create_samples(&camera, &hints()), Err(Error::Argument(_))));
    drop((video, audio));
    assert!(folder.domain().flows().unwrap().is_empty());
}

#[test]
fn a_definition_that_differs_from_the_flow_is_refused() {
    let (folder, camera) = (Folder::new(), camera());
    let made = folder.domain().create_grains(&camera, &hints()).unwrap();
    for other in [
        FlowDefinition::video("camera", 96, 4, Rational::new(50, 1)),
        FlowDefinition::video("camera", 48, 5, Rational::new(50, 1)),
        FlowDefinition::video("camera", 48, 4, Rational::new(25, 1)),
        FlowDefinition::data("camera", Rational::new(50, 1)),
    ] {
        let mut other = other.unwrap();
        other.id = camera.id;
        let error = folder.domain().create_grains(&other, &hints()).unwrap_err();
        assert_eq!(error.status(), Status::Conflict, "{error}");
    }
    let mut audio = microphone(1);
    audio.id = camera.id;
    assert!(folder.domain().create_samples(&audio, &hints()).is_err());
    // None of the attempts deleted the flow.
    assert!(!folder.domain().create_grains(&camera, &hints()).unwrap().created);
    drop(made);
    assert!(folder.domain().flows().unwrap().is_empty());
}

/// A flow whose writer has died: a copy of a live one, which no process has open.
fn dead(folder: &Folder) -> FlowDefinition {
    let camera = camera();
    let alive = Folder::new();
    let made = alive.domain().create_grains(&camera, &hints()).unwrap();
    made.writer.open(9).unwrap().commit().unwrap();
    let to = file(folder, &camera, "");
    fs::create_dir_all(to.join("grains")).unwrap();
    for name in ["data", "access", "flow_def.json"] {
        fs::copy(file(&alive, &camera, name), to.join(name)).unwrap();
    }
    for index in 0..10 {
        let name = format!("grains/data.{index}");
        fs::copy(file(&alive, &camera, &name), to.join(&name)).unwrap();
    }
    camera
}

#[test]
fn dead_flows_are_collected_and_live_ones_stay() {
    let folder = Folder::new();
    let dead = dead(&folder);
    let alive = camera();
    let made = folder.domain().create_grains(&alive, &hints()).unwrap();
    assert!(!folder.domain().is_active(dead.id).unwrap() && folder.domain().is_active(alive.id).unwrap());
    let reader = folder.domain().read_grains(dead.id).unwrap();
    let collected = folder.domain().collect().unwrap();
    assert_eq!((collected.flows, collected.unfinished), (1, 0));
    assert_eq!(folder.domain().flows().unwrap(), [alive.id]);
    assert!(matches!(reader.read(10, Wait::Not), Err(Error::FlowInvalid)));
    drop(made);
}

#[test]
fn one_dead_flow_is_collected_and_the_others_stay() {
    let folder = Folder::new();
    let (first, second, alive) = (dead(&folder), dead(&folder), camera());
    let made = folder.domain().create_grains(&alive, &hints()).unwrap();
    let collected = [first.id, first.id, alive.id].map(|id| folder.domain().collect_flow(id));
    assert_eq!(collected, [true, false, false]);
    assert!(folder.domain().is_active(alive.id).unwrap());
    assert!(!folder.domain().is_active(second.id).unwrap());
    drop(made);
}

/// Defect j: the remains of an interrupted start.
#[test]
fn unfinished_flows_are_collected_when_they_are_old() {
    let folder = Folder::new();
    let left = folder.path().join(".mxl-tmp-0123456789abcdef");
    fs::create_dir_all(left.join("grains")).unwrap();
    fs::write(left.join("data"), "").unwrap();
    let fresh = folder.path().join(".mxl-tmp-fedcba9876543210");
    fs::create_dir(&fresh).unwrap();
    let old = SystemTime::now() - Duration::from_secs(60);
    File::open(&left).unwrap().set_modified(old).unwrap();
    // A process is still working on it.
    let busy = folder.path().join(".mxl-tmp-busy");
    fs::create_dir(&busy).unwrap();
    let lock = File::create(busy.join("data")).unwrap();
    lock.lock_shared().unwrap();
    File::open(&busy).unwrap().set_modified(old).unwrap();
    assert_eq!(folder.domain().collect().unwrap().unfinished, 1);
    assert!(!left.exists() && fresh.exists() && busy.exists());
}

#[test]
fn the_next_writer_goes_on_with_a_dead_flow() {
    let folder = Folder::new();
    let camera = dead(&folder);
    // The inode of a copy differs from the stored one: the next writer accepts that, and readers get an error.
    let made = folder.domain().create_grains(&camera, &hints()).unwrap();
    assert!(!made.created);
    assert_eq!(made.writer.runtime().head, 9);
    let reader = folder.domain().read_grains(camera.id).unwrap();
    made.writer.open(10).unwrap().commit().unwrap();
    assert!(reader.read(9, Wait::Not).is_ok() && reader.read(10, Wait::Not).is_ok());
}

#[test]
fn a_dead_flow_that_lacks_files_is_made_anew() {
    for grains in [11, u32::MAX] {
        let folder = Folder::new();
        let id = dead(&folder);
        let path = file(&folder, &id, "data");
        let mut data = fs::read(&path).unwrap();
        data[152..156].copy_from_slice(&grains.to_ne_bytes());
        fs::write(&path, data).unwrap();
        let made = folder.domain().create_grains(&id, &hints()).unwrap();
        assert!(made.created);
        made.writer.open(1).unwrap().commit().unwrap();
        assert!(folder.domain().read_grains(id.id).unwrap().read(1, Wait::Not).is_ok());
    }
}

#[test]
fn broken_files_are_errors() {
    let folder = Folder::new();
    let id = dead(&folder);
    let data = fs::read(file(&folder, &id, "data")).unwrap();
    let open = || folder.domain().read_grains(id.id).map(|_| ());
    let put = |at: usize, bytes: &[u8]| {
        let mut changed = data.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(file(&folder, &id, "data"), changed).unwrap();
    };
    open().unwrap();
    for (what, at, bytes, said) in [
        ("version", 0, &[2][..], "/data: version 2, not 1"),
        ("id", 8, &[0; 16], "/data: belongs to flow 00000000"),
        ("format", 24, &[0, 0, 0, 0], "/data: format 0 is not supported"),
        ("format", 24, &[9, 0, 0, 0], "/data: format 9 is not supported"),
        ("rate", 32, &[0; 8], "/data: invalid rate 0"),
        ("rate", 40, &[255; 8], "/data: invalid rate 50/-1"),
        ("device", 56, &[1], "/data: its payload is in memory of device"),
        ("no grains", 152, &[0; 4], "/data: a ring without grains"),
        ("more grains", 152, &[11, 0, 0, 0], "/grains/data.10"),
        ("four billion grains", 152, &[255; 4], "/grains/data.10"),
    ] {
        put(at, bytes);
        let error = open().unwrap_err();
        assert_eq!(error.status(), Status::Unknown, "{what}: {error}");
        assert!(error.to_string().contains(said), "{what}: {error}");
        // The next writer creates a flow that lacks files again (below).
        if !["more grains", "four billion grains"].contains(&what) {
            let written = folder.domain().create_grains(&id, &hints());
            assert!(written.is_err(), "{what}");
        }
    }
    let told = |said: &str| {
        let error = open().unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    };
    fs::write(file(&folder, &id, "data"), &data[..2063]).unwrap();
    told("/data: 2063 bytes");
    fs::write(file(&folder, &id, "data"), "").unwrap();
    told("/data: 0 bytes");
    put(0, &[1]);
    open().unwrap();
    // A longer file comes from a later version, and is accepted.
    let longer = [&data[..], &[0; 100]].concat();
    fs::write(file(&folder, &id, "data"), longer).unwrap();
    open().unwrap();

    let grain = file(&folder, &id, "grains/data.4");
    let whole = fs::read(&grain).unwrap();
    for len in [0, 27, 8191, 8192, whole.len() - 1] {
        fs::write(&grain, &whole[..len]).unwrap();
        told(&format!("/grains/data.4: {len} bytes"));
    }
    fs::write(&grain, &whole).unwrap();
    File::options().write(true).open(&grain).unwrap().write_all_at(&[3], 0).unwrap();
    told("/grains/data.4: version 3, not 1");
    fs::remove_file(&grain).unwrap();
    told("/grains/data.4");
    fs::create_dir(&grain).unwrap();
    told("/grains/data.4");
}

/// A header with false sizes is harmless.
#[test]
fn a_header_that_lies_is_cut_to_what_is_mapped() {
    let folder = Folder::new();
    let camera = camera();
    let made = folder.domain().create_grains(&camera, &hints()).unwrap();
    let reader = folder.domain().read_grains(camera.id).unwrap();
    made.writer.open(4).unwrap().commit().unwrap();
    let grain = File::options().write(true).open(file(&folder, &camera, "grains/data.4")).unwrap();
    grain.write_all_at(&u32::MAX.to_le_bytes(), 20).unwrap();
    let read = reader.read(4, Wait::Not).unwrap();
    assert_eq!((read.len(), read.header().grain_size), (512, 512));
    assert_eq!(made.writer.open(4).unwrap().len(), 512);
    grain.write_all_at(&[0xff; 8], 20).unwrap();
    assert_eq!(reader.read(4, Wait::Not).unwrap().len(), 512);
}

#[test]
fn a_directory_that_is_no_flow_is_told() {
    let folder = Folder::new();
    let camera = camera();
    fs::create_dir(file(&folder, &camera, "")).unwrap();
    let error = folder.domain().create_grains(&camera, &hints()).unwrap_err();
    assert!(error.to_string().contains("remove it"), "{error}");
    assert!(matches!(folder.domain().read_grains(camera.id), Err(Error::NotFound(_))));
    // The attempts left nothing behind.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Writers that start at once: one creates the flow, the others open it.
#[test]
fn one_of_many_makers_wins() {
    let (folder, camera) = (Folder::new(), camera());
    for _ in 0..20 {
        let start = std::sync::Barrier::new(4);
        let writers: Vec<_> = std::thread::scope(|scope| {
            let make = || {
                start.wait();
                folder.domain().create_grains(&camera, &hints()).unwrap()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(writers.iter().filter(|made| made.created).count(), 1);
        drop(writers);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

/// A process that asks whether a flow is alive does not keep writers out; flows are created and deleted meanwhile.
#[test]
fn questions_do_not_disturb_writers() {
    let (folder, camera) = (Folder::new(), camera());
    let done = std::sync::atomic::AtomicBool::new(false);
    let ask = || {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = folder.domain().is_active(camera.id);
            let _ = folder.domain().collect();
        }
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(ask);
        let write = |_| {
            let made = folder.domain().create_grains(&camera, &hints())?;
            made.writer.open(1)?.commit()
        };
        let outcome: Result<(), Error> = (0..200).try_for_each(write);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    });
    outcome.unwrap();
}

/// Regression test: a writer waited for 100 ms while another process deleted the flow or checked it, and then failed.
#[test]
fn a_writer_waits_for_a_flow_that_is_locked_and_replaces_one_that_is_being_deleted() {
    let (folder, camera) = (Folder::new(), camera());
    let create = || folder.domain().create_grains(&camera, &BatchHints::default());
    // A flow without writers: the lock keeps its last one from deleting it.
    let made = create().unwrap();
    let lock = std::fs::File::open(file(&folder, &camera, "data")).unwrap();
    lock.lock_shared().unwrap();
    drop(made);
    lock.lock().unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let created = scope.spawn(|| create().map(|made| made.created));
        std::thread::sleep(Duration::from_millis(400));
        lock.unlock().unwrap();
        assert!(!created.join().unwrap().unwrap(), "it was there");
    });
    assert!(begin.elapsed() >= Duration::from_millis(400));
    // The only writer is gone, and with it the flow. The next one loses its name while its files are being removed.
    let made = create().unwrap();
    assert!(made.created);
    let lock = std::fs::File::open(file(&folder, &camera, "data")).unwrap();
    lock.lock_shared().unwrap();
    drop(made);
    lock.lock().unwrap();
    std::thread::scope(|scope| {
        let created = scope.spawn(|| create().map(|made| made.created));
        std::thread::sleep(Duration::from_millis(150));
        let dir = file(&folder, &camera, "data").parent().unwrap().to_path_buf();
        std::fs::rename(&dir, folder.path().join(".mxl-tmp-aside")).unwrap();
        assert!(created.join().unwrap().unwrap(), "another one, while the old one is locked");
    });
    drop(lock);
}
