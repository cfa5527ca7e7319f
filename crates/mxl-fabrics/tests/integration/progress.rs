//! Progress of the programs: drawn on a terminal, unless `--quiet` is given.

use std::io::Read as _;
use std::process::{Command, Output};

use mxl::BatchHints;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

use super::common::{self, Folder, camera};

/// Runs a program with a terminal for its standard error. Returns what was drawn.
fn on_a_terminal(mut command: Command) -> (Output, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
    let output = command.env("TERM", "xterm").stderr(terminal).output().unwrap();
    drop(command); // with it goes the last descriptor of the terminal, so reading ends
    let mut drawn = Vec::new();
    // Linux ends such a read with EIO.
    let _ = std::fs::File::from(master).read_to_end(&mut drawn);
    assert!(output.status.success(), "{output:?} {}", String::from_utf8_lossy(&drawn));
    (output, String::from_utf8_lossy(&drawn).into_owned())
}

#[test]
fn the_steps_of_a_measurement_are_shown() {
    let folder = Folder::new();
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mxl-bench"));
        command.arg("-d").arg(folder.path()).args(["--width", "192", "--height", "40", "--json"]);
        command.args(arguments);
        command
    };
    let (_, drawn) = on_a_terminal(bench(&["-n", "10", "--interval", "200"]));
    // Steps that are shorter than 50 ms may not be drawn.
    for shown in ["0/34 a bare futex", "grains to another process"] {
        assert!(drawn.contains(shown), "{shown}: {drawn:?}");
    }
    let stream = ["stream", "--seconds", "0.2", "--over", "shm"];
    let (output, drawn) = on_a_terminal(bench(&stream));
    assert!(drawn.contains("0/1 0.2 s over shm") && output.stdout.starts_with(b"{"), "{drawn:?}");
    let (_, drawn) = on_a_terminal(bench(&[&stream[..], &["--quiet"]].concat()));
    assert!(drawn.is_empty(), "{drawn:?}");
}

#[test]
fn what_was_carried_is_shown_at_both_ends() {
    for quiet in [false, true] {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let file = far.path().join("flow.json");
        std::fs::write(&file, definition.to_json()).unwrap();
        let info = far.path().join("info.json");
        let demo = |domain: &Folder, arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mxl-fabrics-demo"));
            command.arg("-d").arg(domain.path()).args(["-p", "shm", "-c", "5"]).args(arguments);
            command.args(quiet.then_some("--quiet"));
            command
        };
        let id = definition.id.to_string();
        let (file, info, at) =
            (file.to_str().unwrap(), info.to_str().unwrap(), format!("@{}", info.display()));
        let target = demo(&far, &["-f", file, "-t", info]);
        let receiving = std::thread::spawn(move || on_a_terminal(target));
        let begin = std::time::Instant::now();
        while !std::fs::read_to_string(info).is_ok_and(|text| text.ends_with('}')) {
            assert!(begin.elapsed() < common::LONG && !receiving.is_finished(), "no target info");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let initiator = demo(&near, &["-i", "-f", &id, "-t", &at]);
        let sending = std::thread::spawn(move || on_a_terminal(initiator));
        for index in 100.. {
            writer.open(index).unwrap().commit().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
            if sending.is_finished() && receiving.is_finished() {
                break;
            }
            assert!(begin.elapsed() < common::LONG, "a program does not end");
        }
        for (running, shown) in [(sending, "/5 sent"), (receiving, "/5 received")] {
            let (_, drawn) = running.join().unwrap();
            assert!(drawn.contains(shown) != quiet && (!quiet || drawn.is_empty()), "{shown}: {drawn:?}");
        }
    }
}
