//! Options of `mxl-fabrics-demo` that other tests do not give: they reach the library, and wrong values are told.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mxl::{BatchHints, Wait};
use mxl_fabrics::TargetInfo;

use super::common::{Folder, LONG, byte_of, camera, command, demo};

fn file(folder: &Folder, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// The info that a target writes when it is ready.
fn info(path: &str) -> TargetInfo {
    let begin = Instant::now();
    loop {
        if let Some(info) = std::fs::read_to_string(path).ok().and_then(|text| TargetInfo::parse(&text).ok())
        {
            return info;
        }
        assert!(begin.elapsed() < LONG, "no target info");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn grains_go_in_small_messages_and_at_a_pace() {
    let (near, far) = (Folder::new(), Folder::new());
    let definition = camera();
    let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let (flow, at, id) = (file(&far, "flow.json"), file(&far, "info.json"), definition.id.to_string());
    std::fs::write(&flow, definition.to_json()).unwrap();
    let cut = ["--messages-only", "--max-message", "2048", "--quiet"];
    let _receiving = demo(&[&["-p", "shm", "-f", &flow, "-t", &at][..], &cut].concat(), &far);
    // Its memory is not for writing.
    assert!(!info(&at).ours.unwrap().has_writes);
    // As the target prints it.
    let from = STANDARD.encode(std::fs::read(&at).unwrap());
    let paced = ["-i", "-p", "shm", "-f", &id, "-t", &from, "--pace", "0.5", "--phase", "0.25"];
    let _sending = demo(&[&paced[..], &cut].concat(), &near);
    let reader = far.domain().read_grains(definition.id).unwrap();
    let begin = Instant::now();
    let (mut right, mut last) = (0, 0);
    for index in 100.. {
        let mut grain = writer.open(index).unwrap();
        let bytes = vec![byte_of(index); grain.len()];
        grain.write(0, &bytes).unwrap();
        grain.commit().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let head = reader.head();
        // On a busy machine a grain may be overwritten at either end, and is flagged or refused then.
        if head > last
            && let Ok(grain) = reader.read(head, Wait::Not)
            && let Ok(bytes) = grain.to_vec()
            && !grain.info().is_invalid()
        {
            assert!(bytes.iter().all(|&byte| byte == byte_of(head)), "grain {head}");
            (right, last) = (right + 1, head);
        }
        if right == 5 {
            break;
        }
        assert!(begin.elapsed() < LONG, "{right} of 5 arrived");
    }
}

#[test]
fn wrong_values_are_told() {
    let near = Folder::new();
    let definition = camera();
    let _writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
    let (flow, id) = (file(&near, "flow.json"), definition.id.to_string());
    std::fs::write(&flow, definition.to_json()).unwrap();
    let missing = file(&near, "no.json");
    let (from, none) = (format!("@{missing}"), missing.as_str());
    let send = ["-i", "-p", "shm", "-f", &id];
    let receive = ["-p", "shm", "-f", &flow];
    for (role, options, why) in [
        (&send[..], &["--max-message", "511"][..], "511 bytes, but 512"),
        (&receive, &["--max-message", "511"], "511 bytes, but 512"),
        (&send, &["--pace", "2"], "pacing over 2"),
        (&send, &["--pace", "0.5", "--phase", "1"], "a phase of 1"),
        (&send, &["--phase", "0.5"], "--pace"),
        (&receive, &["--pace", "0.5"], "--initiator"),
        (&send, &[], "give --target-info"),
        (&send, &["-t", "???"], "not base64"),
        (&send, &["-t", "e30="], "addressFormat is missing"),
        (&send, &["-t", &from], "no.json"),
        (&["-i", "-f", &id], &["-p", "pigeon"], "pigeon"),
        (&["-i", "-f", "camera"], &[], "camera"),
        (&["-f", none], &[], "no.json"),
    ] {
        let output = command(&[role, options].concat(), &near).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{role:?} {options:?}: {said}");
        assert!(said.contains(why), "{role:?} {options:?}: {said}");
    }
}

#[test]
fn a_domain_on_a_disk_is_warned_of() {
    let folder = Folder::below(Path::new(env!("CARGO_TARGET_TMPDIR")));
    if mxl::is_tmpfs(folder.path()).unwrap() {
        println!("NOT RUN: a_domain_on_a_disk_is_warned_of: {} is a tmpfs", folder.path().display());
        return;
    }
    let output = command(&["-i", "-f", "00000000-0000-4000-8000-000000000000"], &folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let wanted = format!("mxl-fabrics-demo: {} is not on a tmpfs", folder.path().display());
    assert!(said.starts_with(&wanted) && said.contains("no flow 00000000"), "{said}");
}
