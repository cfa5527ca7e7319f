//! A full disk, a read-only domain, and readers that are killed.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, Error, FlowDefinition, GrainWriter, Rational, Status, Uuid, Wait};
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};

use super::common::{self, Folder, SOON, camera, file, microphone, other_process, picture, role};

fn hints() -> BatchHints {
    BatchHints::default()
}

/// A flow whose id both processes know.
fn known(mut definition: FlowDefinition, number: u128) -> FlowDefinition {
    definition.id = Uuid::from_u128(number);
    definition
}

fn write(writer: &GrainWriter, index: u64) {
    let mut grain = writer.open(index).unwrap();
    let len = grain.len();
    grain.write(0, &picture(index, len)).unwrap();
    grain.commit().unwrap();
}

/// Drops all rights of the process.
fn become_nobody() {
    let (user, group) = (Uid::from_raw(65_534), Gid::from_raw(65_534));
    setgroups(&[]).unwrap();
    setresgid(group, group, group).unwrap();
    setresuid(user, user, user).unwrap();
}

/// The command that runs a test in another process, with its role and its domain.
fn part(test: &str, role: &str, folder: &Folder) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-ec"]);
    command.arg("mount -t tmpfs -o size=400k none \"$MXL_TEST_DOMAIN\"; exec \"$@\"").arg("sh");
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    command.env("MXL_TEST_ROLE", role).env("MXL_TEST_DOMAIN", folder.path());
    command
}

/// A full disk is an error when a flow is created, not a signal when one is written.
#[test]
fn a_full_disk_is_told_and_leaves_nothing_behind() {
    if let Some((_, path)) = role() {
        let domain = Domain::open(path).unwrap();
        let mut made = Vec::new();
        let error = loop {
            match domain.create_grains(&camera(), &hints()) {
                Ok(flow) => made.push(flow.writer),
                Err(error) => break error,
            }
            assert!(made.len() < 20, "the disk does not fill up");
        };
        assert!(!made.is_empty());
        let Error::Os { path, source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), ErrorKind::StorageFull, "{error}");
        assert!(path.starts_with(domain.path()), "{error}");
        assert_eq!(std::fs::read_dir(domain.path()).unwrap().count(), made.len(), "remains of a flow");
        // All memory of the other flows is allocated.
        for writer in &made {
            let reader = domain.read_grains(writer.id()).unwrap();
            (1..=2 * writer.grains()).for_each(|index| write(writer, index));
            let last = 2 * writer.grains();
            assert_eq!(reader.read(last, Wait::Not).unwrap().to_vec().unwrap(), picture(last, 512));
        }
        made.pop();
        domain.create_grains(&camera(), &hints()).unwrap();
        return;
    }
    let can_mount = Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !can_mount.as_ref().is_ok_and(|output| output.status.success()) {
        println!("NOT RUN: a_full_disk_is_told_and_leaves_nothing_behind: {can_mount:?}");
        return;
    }
    let folder = Folder::new();
    let mut child = part("limits::a_full_disk_is_told_and_leaves_nothing_behind", "fills", &folder);
    assert!(child.status().unwrap().success());
}

/// A process without write permission for the domain reads its flows, and cannot create one.
#[test]
fn a_domain_that_may_only_be_read_is_read() {
    let camera = known(camera(), 21);
    if let Some((_, path)) = role() {
        become_nobody();
        let domain = Domain::open(path).unwrap();
        let reader = domain.read_grains(camera.id).unwrap();
        assert_eq!(reader.read(7, Wait::Not).unwrap().to_vec().unwrap(), picture(7, 512));
        assert!(reader.read(8, Wait::For(Duration::from_millis(20))).is_err_and(|error| error.is_early()));
        assert!(domain.is_active(camera.id).unwrap());
        for refused in [
            domain.create_grains(&known(common::camera(), 22), &hints()).map(|_| ()),
            domain.create_grains(&camera, &hints()).map(|_| ()),
            domain.create_samples(&microphone(1), &hints()).map(|_| ()),
        ] {
            let error = refused.unwrap_err();
            assert_eq!(error.status(), Status::PermissionDenied, "{error}");
        }
        return;
    }
    if !geteuid().is_root() {
        println!("NOT RUN: a_domain_that_may_only_be_read_is_read: only root can change its user");
        return;
    }
    let folder = Folder::new();
    let writer = folder.domain().create_grains(&camera, &hints()).unwrap().writer;
    write(&writer, 7);
    let mut child = other_process("limits::a_domain_that_may_only_be_read_is_read", "reads", folder.path());
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the reader left files");
}

/// Regression test: garbage collection by a user who may write the domain but not the flow hid the flow, kept its
/// memory, and reported that nothing was removed.
#[test]
fn a_flow_of_another_user_is_collected_by_its_owner_only() {
    const TEST: &str = "limits::a_flow_of_another_user_is_collected_by_its_owner_only";
    let camera = known(camera(), 23);
    if let Some((role, path)) = role() {
        let domain = Domain::open(path).unwrap();
        if role == "leaves" {
            std::mem::forget(domain.create_grains(&camera, &hints()).unwrap().writer);
        } else {
            become_nobody();
            assert_eq!(domain.collect().unwrap().flows, 0);
        }
        return;
    }
    if !geteuid().is_root() {
        println!("NOT RUN: {TEST}: only root can change its user");
        return;
    }
    let folder = Folder::new();
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody.clone()).unwrap();
    assert!(other_process(TEST, "leaves", folder.path()).wait().unwrap().success());
    let dir = folder.path().join(format!("{}.mxl-flow", camera.id));
    // As a member of the group finds it when the owner's umask is 0002.
    std::fs::set_permissions(dir.join("grains"), everybody).unwrap();
    let grains = || std::fs::read_dir(dir.join("grains")).unwrap().count();
    let before = grains();
    assert!(other_process(TEST, "collects", folder.path()).wait().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(grains(), before, "its grains were removed");
    assert_eq!(folder.domain().collect().unwrap().flows, 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Regression test: only the owner of a flow could record its reads. Another user with write permission for the file
/// was refused, because only a file's owner may set one of its two times alone.
#[test]
fn a_user_that_may_write_the_flow_notes_its_reads() {
    const TEST: &str = "limits::a_user_that_may_write_the_flow_notes_its_reads";
    let camera = known(camera(), 24);
    if let Some((_, path)) = role() {
        become_nobody();
        let reader = Domain::open(path).unwrap().read_grains(camera.id).unwrap();
        reader.read(7, Wait::Not).unwrap();
        return;
    }
    if !geteuid().is_root() {
        println!("NOT RUN: {TEST}: only root can change its user");
        return;
    }
    let folder = Folder::new();
    let writer = folder.domain().create_grains(&camera, &hints()).unwrap().writer;
    let access = folder.path().join(format!("{}.mxl-flow", camera.id)).join("access");
    std::fs::set_permissions(access, std::fs::Permissions::from_mode(0o666)).unwrap();
    write(&writer, 7);
    // The watcher may note the new mode first.
    std::thread::sleep(Duration::from_millis(100));
    let before = writer.runtime().last_read;
    assert!(other_process(TEST, "reads", folder.path()).wait().unwrap().success());
    let begin = Instant::now();
    while writer.runtime().last_read == before {
        assert!(begin.elapsed() < Duration::from_secs(20), "the read is not noted");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A reader that dies, at any point, does not prevent writing, reading or removing the flow.
#[test]
fn a_killed_reader_disturbs_nobody() {
    let (camera, sound, mark) = (known(camera(), 23), known(microphone(2), 24), known(microphone(1), 25));
    if let Some((role, path)) = role() {
        let domain = Domain::open(path).unwrap();
        let pictures = domain.read_grains(camera.id).unwrap();
        let samples = domain.read_samples(sound.id).unwrap();
        let held = (pictures.read(1, Wait::Not).unwrap(), samples.read(480, 480, Wait::Not).unwrap());
        let _mark = domain.create_samples(&mark, &hints()).unwrap();
        match role.as_str() {
            "asleep for a grain" => assert!(pictures.read(u64::MAX / 2, SOON).is_err()),
            "asleep for samples" => assert!(samples.read(u64::MAX / 2, 1, SOON).is_err()),
            "with grain and samples" => std::thread::sleep(Duration::from_secs(60)),
            other => panic!("{other}"),
        }
        assert!(held.0.still_valid() && held.1.still_valid());
        return;
    }
    for step in ["asleep for a grain", "asleep for samples", "with grain and samples"] {
        let folder = Folder::new();
        let domain = folder.domain();
        let pictures = domain.create_grains(&camera, &hints()).unwrap().writer;
        let mut samples = domain.create_samples(&sound, &hints()).unwrap().writer;
        write(&pictures, 1);
        samples.open(480, 480).unwrap().commit().unwrap();
        let mut reader = other_process("limits::a_killed_reader_disturbs_nobody", step, folder.path());
        while domain.read_samples(mark.id).is_err() {
            assert!(reader.try_wait().unwrap().is_none(), "{step}: it has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The reader should be asleep by now; if not, it dies a step earlier.
        std::thread::sleep(Duration::from_millis(20));
        reader.kill().unwrap();
        reader.wait().unwrap();
        let (other, ear) = (domain.read_grains(camera.id).unwrap(), domain.read_samples(sound.id).unwrap());
        for index in 2..30 {
            write(&pictures, index);
            samples.open(index * 480, 480).unwrap().commit().unwrap();
            assert_eq!(
                other.read(index, Wait::Not).unwrap().to_vec().unwrap(),
                picture(index, 512),
                "{step}"
            );
            assert!(ear.read(index * 480, 480, Wait::Not).is_ok(), "{step}");
        }
        drop((pictures, samples));
        assert!(!file(&folder, &camera, "").exists() && !file(&folder, &sound, "").exists(), "{step}");
        // The writer of the mark died.
        assert_eq!(domain.collect().unwrap().flows, 1, "{step}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{step}");
    }
}

/// Regression test: each domain with a writer of grains took one of the few instances of inotify that the system gives
/// a user (128), so the 129th domain could not be written.
#[test]
fn writers_in_many_domains_take_one_instance_of_inotify() {
    let count = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
        let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|link| link.to_string_lossy().contains("inotify")).count()
    };
    let folders: Vec<Folder> = (0..150).map(|_| Folder::new()).collect();
    let writers: Vec<GrainWriter> = folders
        .iter()
        .map(|folder| folder.domain().create_grains(&camera(), &hints()).unwrap().writer)
        .collect();
    assert!(count() <= 1, "{}", count());
    // The times of reads are recorded for each of them.
    for (folder, writer) in folders.iter().zip(&writers).step_by(50) {
        write(writer, 1);
        let before = writer.runtime().last_read;
        folder.domain().read_grains(writer.id()).unwrap().read(1, Wait::Not).unwrap();
        let begin = Instant::now();
        while writer.runtime().last_read == before {
            assert!(begin.elapsed() < Duration::from_secs(20), "a read is not recorded");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(writers);
    assert_eq!(count(), 0);
}

/// Regression test: a rate that a definition may have made the batch size divide by zero.
#[test]
fn a_rate_near_the_end_of_the_range_is_an_error_or_a_flow() {
    let folder = Folder::new();
    let large = [i64::MAX, i64::MAX - 1, i64::MAX / 100 + 1, 1 << 62, 184_467_440_737_095_517];
    for (numerator, denominator) in large.into_iter().flat_map(|one| [(one, 1), (1, one), (one - 2, one)]) {
        let sound = FlowDefinition::audio("microphone", 1, Rational::new(numerator, denominator));
        let made = sound.and_then(|sound| folder.domain().create_samples(&sound, &hints()).map(drop));
        assert!(matches!(made, Ok(()) | Err(Error::Definition(_))), "{numerator}/{denominator}: {made:?}");
        let picture = FlowDefinition::video("camera", 48, 4, Rational::new(numerator, denominator));
        let made = picture.and_then(|one| folder.domain().create_grains(&one, &hints()).map(drop));
        assert!(matches!(made, Ok(()) | Err(Error::Definition(_))), "{numerator}/{denominator}: {made:?}");
    }
}
