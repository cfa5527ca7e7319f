//! Other kinds of files in place of a flow's files: FIFOs, which block whoever opens them, and links.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use mxl::{BatchHints, Domain, Error, Uuid};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::common::{Folder, camera, microphone};

/// Longer than any call here takes on a loaded machine.
const LONG: Duration = Duration::from_secs(20);

/// A domain with a flow of grains and one of samples, whose writers have gone without deleting them.
fn abandoned() -> (Folder, [(Uuid, PathBuf); 2]) {
    let folder = Folder::new();
    let domain = folder.domain();
    let (camera, microphone) = (camera(), microphone(2));
    let grains = domain.create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let samples = domain.create_samples(&microphone, &BatchHints::default()).unwrap().writer;
    // As after a SIGKILL, but for the locks, which the process keeps.
    std::mem::forget((grains, samples));
    let flow = |id: Uuid| (id, folder.path().join(format!("{id}.mxl-flow")));
    let flows = [flow(camera.id), flow(microphone.id)];
    (folder, flows)
}

fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

/// Puts a FIFO in place of a file.
fn replace(path: &Path) {
    std::fs::remove_file(path).unwrap();
    make_fifo(path);
}

/// What a call answers, in time.
fn soon<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, answer) = channel();
    std::thread::spawn(move || send.send(call()));
    answer.recv_timeout(LONG).unwrap_or_else(|_| panic!("{what} waits for a FIFO"))
}

/// All calls that open files of a flow.
fn calls(domain: &Domain, id: Uuid) -> Vec<(&'static str, Result<(), Error>)> {
    vec![
        ("info", domain.info(id).map(drop)),
        ("definition", domain.definition(id).map(drop)),
        ("read grains", domain.read_grains(id).map(drop)),
        ("read samples", domain.read_samples(id).map(drop)),
        ("is active", domain.is_active(id).map(drop)),
        ("collect", domain.collect().map(drop)),
    ]
}

#[test]
fn a_fifo_in_place_of_a_file_makes_nobody_wait() {
    for name in ["data", "flow_def.json", "access", "grains/data.1", "channels"] {
        let (folder, flows) = abandoned();
        for (id, dir) in flows {
            let path = dir.join(name);
            if !path.exists() {
                continue;
            }
            replace(&path);
            let domain = folder.domain();
            for (call, answer) in soon(name, move || calls(&domain, id)) {
                let is_named = answer.as_ref().is_err_and(|error| error.to_string().contains(name));
                let wants_it = match name {
                    "data" => !["collect", "definition"].contains(&call),
                    "flow_def.json" => call == "definition",
                    // Readers that cannot record their reads read all the same.
                    "access" => false,
                    "channels" => call == "read samples",
                    _ => call == "read grains",
                };
                assert!(!wants_it || is_named, "{name}: {call}: {answer:?}");
            }
        }
    }
    let folder = Folder::new();
    make_fifo(&folder.path().join("options.json"));
    let path = folder.path().to_path_buf();
    let opened = soon("options.json", move || Domain::open(path).map(|domain| domain.history()));
    assert_eq!(opened.unwrap(), Duration::from_millis(200));
}

#[test]
fn links_in_place_of_files_and_folders_are_not_followed() {
    for name in ["data", "flow_def.json", "grains", "grains/data.1", "channels", ""] {
        let (folder, flows) = abandoned();
        for (id, dir) in flows {
            let path = if name.is_empty() { dir.clone() } else { dir.join(name) };
            if !path.exists() {
                continue;
            }
            // The content is right, but it lies elsewhere.
            let elsewhere = folder.path().join(format!("elsewhere-{id}"));
            std::fs::rename(&path, &elsewhere).unwrap();
            std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
            let domain = folder.domain();
            let answers = [
                ("read", domain.read_grains(id).map(drop).or_else(|_| domain.read_samples(id).map(drop))),
                ("definition", domain.definition(id).map(drop)),
                ("info", domain.info(id).map(drop)),
            ];
            for (call, answer) in answers {
                let uses = match name {
                    "" => true,
                    "data" => call != "definition",
                    "flow_def.json" => call == "definition",
                    _ => call == "read",
                };
                assert_eq!(answer.is_err(), uses, "{name:?}: {call}: {answer:?}");
            }
        }
    }
}

/// The owner of a domain may keep its options elsewhere, as volumes of Kubernetes do.
#[test]
fn options_of_a_domain_may_be_a_link() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let file = elsewhere.path().join("options");
    std::fs::write(&file, r#"{"urn:x-mxl:option:history_duration/v1.0": 500000000}"#).unwrap();
    std::os::unix::fs::symlink(&file, folder.path().join("options.json")).unwrap();
    assert_eq!(folder.domain().history(), Duration::from_millis(500));
}
