//! Files that another process truncates while they are mapped: an error that names the file, and no signal. Any other
//! `SIGBUS` still ends the process.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, Error, FlowDefinition, Status, Uuid, Wait};

use super::common::{self, Folder, SOON, camera, file, microphone, other_process, picture, role};

/// A definition whose id both processes know.
fn known(mut definition: FlowDefinition, number: u128) -> FlowDefinition {
    definition.id = Uuid::from_u128(number);
    definition
}

fn hints() -> BatchHints {
    BatchHints::default()
}

/// Cuts a file as another process would.
fn truncate(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Waits for a child, for a limited time.
fn ended(mut child: Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > Duration::from_secs(30) {
            child.kill().unwrap();
            panic!("the child does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the other process reports that it is ready.
fn until_there(path: &Path, child: &mut Child) {
    let begin = Instant::now();
    while !path.exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child ended too early");
        assert!(begin.elapsed() < Duration::from_secs(30), "the child does not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_truncation(error: &Error, name: &str) -> bool {
    matches!(error, Error::Truncated { path } if path.ends_with(name))
        && error.status() == Status::FlowInvalid
}

/// Loops in the other process until the flow is broken; the error that ended it.
fn loops(role: &str, path: &Path) -> Error {
    let domain = Domain::open(path).unwrap();
    let ready = || std::fs::write(path.join("ready"), b"").unwrap();
    let (video, sound) = (Uuid::from_u128(31), Uuid::from_u128(32));
    let mut turns = 0_u64;
    let mut again = || {
        turns += 1;
        if turns == 100 {
            ready();
        }
    };
    match role {
        "reads" => {
            let reader = domain.read_grains(video).unwrap();
            let mut bytes = vec![0; 512];
            loop {
                let read = reader.read(9, Wait::Not).and_then(|grain| {
                    grain.read_into(0, &mut bytes)?;
                    // A read without an error returned the right bytes.
                    assert!(!grain.still_valid() || bytes == picture(9, 512));
                    Ok(())
                });
                match read {
                    Ok(()) => again(),
                    Err(error) => return error,
                }
            }
        }
        "writes" => {
            let writer = domain.create_grains(&known(camera(), 31), &hints()).unwrap().writer;
            let all = (10..).map(|index| {
                let mut grain = writer.open(index)?;
                grain.write(0, &picture(index, 512))?;
                grain.commit()
            });
            all.inspect(|_| again()).find_map(Result::err).unwrap()
        }
        "listens" => {
            let reader = domain.read_samples(sound).unwrap();
            let mut samples = [0_f32; 480];
            loop {
                let read = reader
                    .read(480, 480, Wait::Not)
                    .and_then(|there| there.read_channel(1, &mut samples).map(|()| there.still_valid()));
                match read {
                    Ok(valid) => assert!(!valid || samples == [0.5; 480]),
                    Err(error) => return error,
                }
                again();
            }
        }
        "plays" => {
            let mut writer = domain.create_samples(&known(microphone(2), 32), &hints()).unwrap().writer;
            let all = (2..).map(|batch| {
                let mut open = writer.open(batch * 480, 480)?;
                open.write_channel(1, &[0.5_f32; 480])?;
                open.commit()
            });
            all.inspect(|_| again()).find_map(Result::err).unwrap()
        }
        "sleeps" => {
            let reader = domain.read_grains(video).unwrap();
            ready();
            reader.read(1000, SOON).unwrap_err()
        }
        other => panic!("{other}"),
    }
}

/// One process works with a flow in a loop, and another truncates each of its files.
#[test]
fn a_truncated_file_is_an_error_in_whoever_uses_it() {
    if let Some((role, path)) = role() {
        let (role, name) = role.split_once(' ').unwrap();
        let error = loops(role, &path);
        assert!(is_truncation(&error, name), "{error}");
        println!("{role} {name}: {error}");
        return;
    }
    for (role, name, sound) in [
        ("reads", "grains/data.9", false),
        ("reads", "data", false),
        ("writes", "grains/data.3", false),
        ("writes", "data", false),
        ("listens", "channels", true),
        ("listens", "data", true),
        ("plays", "channels", true),
        ("plays", "data", true),
        ("sleeps", "data", false),
    ] {
        let folder = Folder::new();
        let video = known(camera(), 31);
        let audio = known(microphone(2), 32);
        let writer = folder.domain().create_grains(&video, &hints()).unwrap().writer;
        let mut grain = writer.open(9).unwrap();
        grain.write(0, &picture(9, 512)).unwrap();
        grain.commit().unwrap();
        let mut sounds = folder.domain().create_samples(&audio, &hints()).unwrap().writer;
        let mut open = sounds.open(480, 480).unwrap();
        open.write_channel(1, &[0.5_f32; 480]).unwrap();
        open.commit().unwrap();
        let test = "truncated::a_truncated_file_is_an_error_in_whoever_uses_it";
        let mut child = other_process(test, &format!("{role} {name}"), folder.path());
        until_there(&folder.path().join("ready"), &mut child);
        truncate(&file(&folder, if sound { &audio } else { &video }, name), 0);
        let status = ended(child);
        assert!(status.success(), "{role} {name}: {status}");
        // This process has the flow open too, and closes it.
        drop((writer, sounds));
        assert!(!file(&folder, &video, "").exists() && !file(&folder, &audio, "").exists(), "{role} {name}");
    }
}

/// A reader or writer that noticed a lost file keeps reporting it, and a new flow of the same name works.
#[test]
fn a_broken_flow_is_broken_as_a_whole_and_can_be_made_again() {
    let folder = Folder::new();
    let domain = folder.domain();
    let camera = known(camera(), 33);
    let writer = domain.create_grains(&camera, &hints()).unwrap().writer;
    let reader = domain.read_grains(camera.id).unwrap();
    for index in 1..=3 {
        writer.open(index).unwrap().commit().unwrap();
    }
    let held = reader.read(2, Wait::Not).unwrap();
    let open = writer.open(3).unwrap();
    truncate(&file(&folder, &camera, "grains/data.2"), 0);
    // No access has reached the missing page yet.
    assert!(reader.read(3, Wait::Not).is_ok() && reader.intact().is_ok() && reader.is_current());
    assert!(!held.still_valid());
    assert!(is_truncation(&held.read_into(0, &mut [0; 16]).unwrap_err(), "grains/data.2"));
    assert!(is_truncation(&held.to_vec().unwrap_err(), "grains/data.2"));
    assert!(is_truncation(&reader.read(3, Wait::Not).unwrap_err(), "grains/data.2"));
    assert!(!reader.is_current() && !reader.holds(3));
    // The writer has mappings of its own, and comes to that slot later.
    open.commit().unwrap();
    assert!(is_truncation(&writer.open(12).unwrap_err(), "grains/data.2"));
    assert!(is_truncation(&writer.open(4).unwrap_err(), "grains/data.2"));
    let said = reader.intact().unwrap_err().to_string();
    assert!(said.contains("data.2 was truncated while it was in use"), "{said}");
    drop(writer);
    let writer = domain.create_grains(&camera, &hints()).unwrap();
    assert!(writer.created);
    writer.writer.open(1).unwrap().commit().unwrap();
    assert!(domain.read_grains(camera.id).unwrap().read(1, Wait::Not).is_ok());
    assert!(reader.read(1, Wait::Not).is_err());
}

/// A commit of data that was written to a truncated file fails, and does not move the head.
#[test]
fn what_went_to_a_truncated_file_is_not_published() {
    let folder = Folder::new();
    let (sound, camera) = (known(microphone(2), 35), known(camera(), 36));
    let mut writer = folder.domain().create_samples(&sound, &hints()).unwrap().writer;
    writer.open(480, 480).unwrap().commit().unwrap();
    let reader = folder.domain().read_samples(sound.id).unwrap();
    let mut open = writer.open(960, 480).unwrap();
    truncate(&file(&folder, &sound, "channels"), 0);
    assert!(is_truncation(&open.write_channel(1, &[0.5_f32; 480]).unwrap_err(), "channels"));
    assert!(is_truncation(&open.commit().unwrap_err(), "channels"));
    assert!(is_truncation(&writer.publish(960).unwrap_err(), "channels"));
    assert_eq!(reader.head(), 480);

    let writer = folder.domain().create_grains(&camera, &hints()).unwrap().writer;
    writer.open(1).unwrap().commit().unwrap();
    let reader = folder.domain().read_grains(camera.id).unwrap();
    let mut open = writer.open(2).unwrap();
    truncate(&file(&folder, &camera, "grains/data.2"), 0);
    assert!(is_truncation(&open.write(0, &[1; 16]).unwrap_err(), "grains/data.2"));
    assert!(is_truncation(&open.commit().unwrap_err(), "grains/data.2"));
    assert_eq!(reader.head(), 1);
}

/// A reader that waits notices a data file that was truncated within its page, where no access raises a
/// signal.
#[test]
fn a_data_file_that_is_cut_within_its_page_is_noticed_by_a_wait() {
    let folder = Folder::new();
    let camera = known(camera(), 34);
    let writer = folder.domain().create_grains(&camera, &hints()).unwrap().writer;
    writer.open(1).unwrap().commit().unwrap();
    let reader = folder.domain().read_grains(camera.id).unwrap();
    let path = file(&folder, &camera, "data");
    truncate(&path, std::fs::metadata(&path).unwrap().len() - 1);
    assert!(!reader.is_current());
    assert!(matches!(reader.read(2, Wait::For(Duration::from_secs(5))), Err(Error::FlowInvalid)));
}

/// Maps a page of a file, truncates that, and reads the page.
fn fault_elsewhere(folder: &Path) -> u8 {
    let path = folder.join("foreign");
    std::fs::write(&path, [7; 4096]).unwrap();
    let opened = std::fs::File::open(&path).unwrap();
    let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping, which affects no other memory.
    let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, read, shared, &opened, 0) }.unwrap();
    truncate(&path, 0);
    // SAFETY: mapped and never unmapped; the test wants the signal.
    unsafe { map.cast::<u8>().read_volatile() }
}

extern "C" fn says_goodbye(_: libc::c_int) {
    // SAFETY: it ends the process at once.
    unsafe { libc::_exit(42) };
}

/// A `SIGBUS` outside our mappings has its previous effect, and so has every one if the handler is switched
/// off.
#[test]
fn other_bus_errors_are_passed_on() {
    let test = "truncated::other_bus_errors_are_passed_on";
    let camera = known(camera(), 35);
    if let Some((role, path)) = role() {
        let install = |handler: libc::sighandler_t| {
            // SAFETY: the handler only ends the process, or it is the system's default.
            unsafe { libc::signal(libc::SIGBUS, handler) };
        };
        match role.as_str() {
            "program's handler" => install(says_goodbye as *const () as usize),
            "none before" => install(libc::SIG_DFL),
            "ignored before" => install(libc::SIG_IGN),
            "off" => mxl::sigbus::leave_alone(),
            _ => {}
        }
        let reader = Domain::open(&path).unwrap().read_grains(camera.id).unwrap();
        match role.as_str() {
            "off" | "off by the environment" => {
                truncate(&path.join(format!("{}.mxl-flow/grains/data.1", camera.id)), 0);
                println!("{:?}", reader.read(1, Wait::Not));
            }
            "sent" => {
                install(libc::SIG_DFL);
                drop(reader);
                // SAFETY: it has no requirements.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            "own handler that repairs" => {
                // SAFETY: the handler does what a handler may do.
                unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
                let path = path.join(format!("{}.mxl-flow/grains/data.1", camera.id));
                let grain = reader.read(1, Wait::Not).unwrap();
                let address = grain.as_ptr().addr();
                truncate(&path, 0);
                assert!(
                    mxl::sigbus::repair(address)
                        && !mxl::sigbus::repair(path.as_os_str().as_encoded_bytes().as_ptr().addr())
                );
                assert!(is_truncation(&grain.read_into(0, &mut [0; 1]).unwrap_err(), "grains/data.1"));
                drop(reader);
                assert!(!mxl::sigbus::repair(address), "the address is unmapped");
                return;
            }
            _ => drop(reader),
        }
        fault_elsewhere(&path);
        return;
    }
    let killed = (Some(libc::SIGBUS), None);
    for (role, wanted) in [
        ("as it is", killed),
        ("none before", killed),
        ("ignored before", killed),
        ("program's handler", (None, Some(42))),
        ("sent", killed),
        ("off", killed),
        ("off by the environment", killed),
        ("own handler that repairs", (None, Some(0))),
    ] {
        let folder = Folder::new();
        let writer = folder.domain().create_grains(&camera, &hints()).unwrap().writer;
        writer.open(1).unwrap().commit().unwrap();
        let mut command = common::other_command(test, role, folder.path());
        if role == "off by the environment" {
            command.env("MXL_SIGBUS", "off");
        }
        let status = ended(command.spawn().unwrap());
        assert_eq!((status.signal(), status.code()), wanted, "{role}");
        drop(writer);
    }
}
