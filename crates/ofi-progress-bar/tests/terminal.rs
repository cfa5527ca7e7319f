//! What is drawn on a terminal: this program starts itself with one.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::process::{Command, Stdio};

use ofi_progress_bar::Progress;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

const DRAWS: &str = "OFI_PROGRESS_BAR_TEST_DRAWS";

/// Runs `test` of this program with a terminal for standard error, and returns what it drew.
fn on_a_terminal(test: &str) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let terminal = OpenOptions::new().read(true).write(true).open(name).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(DRAWS, "1").env("TERM", "xterm");
    let status = command.stdout(Stdio::null()).stderr(terminal).status().unwrap();
    drop(command); // with it goes the last descriptor of the terminal, so reading ends
    assert!(status.success());
    let mut drawn = Vec::new();
    // Linux ends such a read with EIO.
    let _ = File::from(master).read_to_end(&mut drawn);
    String::from_utf8_lossy(&drawn).into_owned()
}

/// Runs `draw` in the process that has the terminal, and `check` on what it drew in the other one.
fn drawn(test: &str, draw: impl FnOnce(), check: impl FnOnce(String)) {
    if std::env::var_os(DRAWS).is_some() {
        draw();
    } else {
        check(on_a_terminal(test));
    }
}

#[test]
fn steps_are_named_and_counted() {
    let draw = || {
        let progress = Progress::steps(false, Some(3));
        progress.begin("one step");
        progress.done();
        progress.begin("another");
        assert_eq!(progress.aside(|| 7), 7);
        drop(progress);
        let unknown = Progress::steps(false, None);
        unknown.begin("received");
    };
    drawn("steps_are_named_and_counted", draw, |drawn| {
        for shown in ["0/3 one step", "1/3 another", "0 received, 0s"] {
            assert!(drawn.contains(shown), "{shown}: {drawn:?}");
        }
    });
}

#[test]
fn bytes_grow_and_rates_have_a_unit() {
    let draw = || {
        let bytes = Progress::bytes(false);
        bytes.grow(4 << 20);
        bytes.resume(1 << 20);
        bytes.begin("");
        drop(bytes);
        let rate = Progress::rate(false, 10, "arrivals");
        rate.advance(4);
        drop(rate);
    };
    drawn("bytes_grow_and_rates_have_a_unit", draw, |drawn| {
        for shown in ["1.00 MiB/4.00 MiB", "4/10 arrivals, "] {
            assert!(drawn.contains(shown), "{shown}: {drawn:?}");
        }
    });
}

#[test]
fn nothing_is_drawn_if_it_shall_be_quiet() {
    let draw = || {
        let progress =
            [Progress::steps(true, Some(1)), Progress::bytes(true), Progress::rate(true, 2, "pages")];
        for progress in progress {
            progress.grow(5);
            progress.begin("a step");
            progress.done();
        }
    };
    drawn("nothing_is_drawn_if_it_shall_be_quiet", draw, |drawn| assert_eq!(drawn, ""));
}

/// Standard error of this process is no terminal when tests run, and may be one for a person: then it is quiet.
#[test]
fn nothing_is_drawn_without_a_terminal() {
    if std::env::var_os(DRAWS).is_some() {
        let progress = Progress::steps(false, Some(1));
        progress.begin("a step");
        progress.done();
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["nothing_is_drawn_without_a_terminal", "--exact", "--nocapture"]).env(DRAWS, "1");
    let output = command.output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
